"""How ``add_rms_norm`` is tuned."""

from __future__ import annotations

from torchsmith_kernels._src.row_norm.tuning import tunable as of

tunable = of("add_rms_norm")
