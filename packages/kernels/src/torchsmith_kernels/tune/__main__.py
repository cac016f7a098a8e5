"""The command ``python -m torchsmith_kernels.tune``."""

from __future__ import annotations

from torchsmith_kernels.tune import main

raise SystemExit(main())
