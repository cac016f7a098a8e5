"""Filters of warnings that are in force for some of a graph's operators, which warn in C++.

Python is not told that they have changed: it would forget which warnings it has shown.
"""

from __future__ import annotations

import re
import warnings
from typing import Any

from torch.fx import has_side_effect

Filter = tuple[str, re.Pattern[str] | None, type[Warning], re.Pattern[str] | None, int]
# The filter that is in place while tracing, which is none of the user's.
SILENT = ("ignore", None, Warning, None, 0)


@has_side_effect
def enter_filters() -> list[Filter]:
    """Put equal filters in force, which may be changed; returns those of before."""
    before: Any = warnings.filters
    if not any(entry is SILENT for entry in before):  # nothing is shown while tracing
        warnings.filters = before[:]
    return before  # type: ignore[no-any-return]


@has_side_effect
def add_filter(entry: Filter) -> None:
    """Put a filter before all others."""
    warnings.filters.insert(0, entry)  # type: ignore[attr-defined]


@has_side_effect
def exit_filters(before: list[Filter]) -> None:
    """Put the filters of before in force again."""
    warnings.filters = before
