"""Layouts of operators' results, computed directly from the layouts of the arguments.

Torch's fake mode answers for any operator, in 50 to 500 microseconds; the rules here answer for
the frequent ones in a few. Read ``base`` first (what a rule is and what it may assume); the other
modules hold the rules by theme and register them on import.
"""

from torchsmith_guards._src.fake.layouts import (
    attention,
    convolution,
    factories,
    indexing,
    inplace,
    normalization,
    pointwise,
    products,
    reductions,
    views,
)
from torchsmith_guards._src.fake.layouts.base import (
    Effect,
    Entry,
    Layout,
    Result,
    contiguous_strides,
    entry_of,
    holds,
    is_contiguous,
    is_dense,
    layout_of,
    same_sizes,
)
from torchsmith_guards._src.fake.layouts.views import resolve_size, view_strides

__all__ = [
    "Effect",
    "Entry",
    "Layout",
    "Result",
    "attention",
    "contiguous_strides",
    "convolution",
    "entry_of",
    "factories",
    "holds",
    "indexing",
    "inplace",
    "is_contiguous",
    "is_dense",
    "layout_of",
    "normalization",
    "pointwise",
    "products",
    "reductions",
    "resolve_size",
    "same_sizes",
    "view_strides",
    "views",
]
