"""Values that are computed in vectors, a block of points at a time, and wait in arrays until loops
that go point by point, or come later, take them."""

from __future__ import annotations

from collections.abc import Iterable

from torchsmith_fx_backend._src.codegen.c import scalars
from torchsmith_fx_backend._src.codegen.c.emit import Emitter

SHORT = 8  # shorter axes make no vectors


def make_room(out: Emitter, waiting: Iterable[int], points: int) -> None:
    """Declare the arrays of values, of as many points."""
    for position in waiting:
        ctype = scalars.value_type(scalars.dtype_of(out.kernel, position))
        out.line(f"{ctype} value{position}[{points}];")


def keep(out: Emitter, waiting: Iterable[int], axis: int) -> None:
    """Store values that have been computed at a point of the block from ``low`` on."""
    for position in waiting:
        out.line(f"{_place(position, axis)} = {out.value(position)};")


def take(out: Emitter, waiting: Iterable[int], axis: int) -> None:
    """Have the statements that follow read them."""
    out.names |= {position: _place(position, axis) for position in waiting}


def _place(position: int, axis: int) -> str:
    return f"value{position}[i{axis} - low]"
