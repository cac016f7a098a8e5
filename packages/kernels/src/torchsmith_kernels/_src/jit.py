"""``triton.jit`` with types: Triton's own decorator loses those of what it wraps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import triton

Function = TypeVar("Function", bound=Callable[..., object])
jit: Callable[[Function], Function] = triton.jit
