"""Tile sizes of the squared ReLU kernels."""

from __future__ import annotations

from torchsmith_kernels._src.pointwise.config import Case, Config, accepts, derived
from torchsmith_kernels._src.tables import Table

table: Table[Case, Config] = Table("relu_squared", Config, derived, accepts)
