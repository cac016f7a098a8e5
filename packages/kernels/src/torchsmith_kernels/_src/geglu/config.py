"""Tile sizes of the kernels of ``geglu``."""

from __future__ import annotations

from torchsmith_kernels._src.pointwise.config import Case, Config, accepts, derived
from torchsmith_kernels._src.tables import Table

table: Table[Case, Config] = Table("geglu", Config, derived, accepts)
