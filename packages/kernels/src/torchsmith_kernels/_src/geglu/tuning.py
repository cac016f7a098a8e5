"""How GeGLU is tuned, by its exact form, which computes more."""

from __future__ import annotations

from torchsmith_kernels._src.gated import tuning
from torchsmith_kernels._src.geglu.config import table

tunable = tuning.tunable("geglu", "gelu", table)
