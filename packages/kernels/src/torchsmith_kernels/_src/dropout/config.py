"""Tile sizes of the dropout kernel."""

from __future__ import annotations

from torchsmith_kernels._src.pointwise.config import Case, Config, accepts, derived
from torchsmith_kernels._src.tables import Table

table: Table[Case, Config] = Table("dropout", Config, derived, accepts)
