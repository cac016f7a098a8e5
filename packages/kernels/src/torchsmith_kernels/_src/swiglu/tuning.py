"""How SwiGLU is tuned."""

from __future__ import annotations

from torchsmith_kernels._src.gated import tuning
from torchsmith_kernels._src.swiglu.config import table

tunable = tuning.tunable("swiglu", "silu", table)
