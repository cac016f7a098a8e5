"""What happens when a compiled graph raises.

No effect has been replayed yet. What the graph may have written to its inputs, and the random
numbers that it took, are put back from copies (made only for graphs where an operator that may
fail follows such a write), so running the user's code instead gives every effect that comes before
the failing operator and none after it, the user's own exception from the user's line, and honours
``try`` blocks around the operator. This holds for every backend.
"""

from __future__ import annotations

import types
import warnings
from typing import TYPE_CHECKING

from torchsmith_tracer._src.codegen.tail import hide_ours
from torchsmith_tracer._src.effects.undo import Undo
from torchsmith_tracer._src.records import frames
from torchsmith_tracer._src.torch_private import AmbientState
from torchsmith_tracer.errors import TracerWarning

if TYPE_CHECKING:
    from torchsmith_tracer._src.regions.record import CodeRecord


def graph_failed(
    record: CodeRecord,
    fn: types.FunctionType | None,
    ambient: AmbientState,
    error: BaseException,
    undo: Undo | None,
    *args: object,
) -> object:
    """Run the function natively instead of its compiled body, which was called with ``args`` when
    torch's state was ``ambient``. ``fn`` is None where ``args`` begin with the function."""
    place = error.__traceback__
    error.__traceback__ = None  # its frames hold guards of contexts that the graph has entered
    ambient.restore()
    flat = args
    if fn is None:
        fn, flat = args[0], args[1:]  # type: ignore[assignment]
    assert fn is not None
    if not isinstance(error, Exception) or (undo and not undo.restore()):
        return record.raise_inside(fn, flat, error.with_traceback(place))
    del place
    try:
        result = record.native(fn, flat)
    except BaseException as own:
        hide_ours(own)
        frames.crashed(record, own)
        raise
    if record.code.co_exceptiontable:  # a handler of the user's may have dealt with it
        return result
    frames.crashed(record, error)
    warnings.warn(
        f"[TS-T905] the compiled graph of {record.name} raised {type(error).__name__}: {error}; "
        "running the function eagerly did not, so its result was used",
        TracerWarning,
        stacklevel=3,
    )
    return result
