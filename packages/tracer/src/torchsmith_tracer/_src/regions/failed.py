"""What happens when a compiled graph raises.

No effect has been replayed yet. What the graph may have written to its inputs, and the random
numbers that it took, are put back from copies (made only for graphs where an operator that may
fail follows such a write), so running the user's code instead gives every effect that comes before
the failing operator and none after it, the user's own exception from the user's line, and honours
``try`` blocks around the operator. This holds for every backend.

What a backend's own failure leaves written is known where the backend tells. A value that nothing
but itself depends on, as batch norm's statistics, keeps what the graph gave it, whatever the second
run writes; after any other write there is no second run, and the failure is raised. So is what a
hook of the user's raised that takes what autograd saves, which would be handed the same again, and
what a handler of a signal raised. What is no ``Exception`` is raised even if no second run does.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Sequence

import torch
from torchsmith_guards import is_interruption

from torchsmith_tracer._src.codegen.tail import hide_ours
from torchsmith_tracer._src.effects.undo import Undo
from torchsmith_tracer._src.records import frames
from torchsmith_tracer._src.regions.record import CodeRecord
from torchsmith_tracer._src.torch_private import AmbientState, saving_hook
from torchsmith_tracer.errors import TracerWarning


def graph_failed(
    record: CodeRecord,
    fn: types.FunctionType | None,
    ambient: AmbientState,
    written_before: Callable[[BaseException], list[torch.Tensor]] | None,
    inputs: Sequence[str],
    stays: Callable[[int], bool],
    error: BaseException,
    undo: Undo | None,
    *args: object,
) -> object:
    """Run the function natively instead of its compiled body, which was called with ``args`` when
    torch's state was ``ambient``. ``fn`` is None where ``args`` begin with the function; ``inputs``
    are the names that the body has for those of the graph, and ``stays`` says of which by position
    nothing but its own new value depends."""
    place = error.__traceback__
    assert place is not None
    interrupted = is_interruption(error, saving_hook())
    found = {**place.tb_frame.f_globals, **place.tb_frame.f_locals}  # a class's own are bound
    places = {id(found[name]): place for place, name in enumerate(inputs)}
    written = [] if written_before is None else written_before(error)
    copied = set() if undo is None else {id(entry[0]) for entry in undo.tensors}
    written = [t for t in written if id(t) not in copied]
    del found
    error.__traceback__ = None  # its frames hold guards of contexts that the graph has entered
    ambient.restore()
    if undo is not None:
        warnings.filters = undo.filters
    flat = args
    if fn is None:
        fn, flat = args[0], args[1:]  # type: ignore[assignment]
    assert fn is not None
    if (
        interrupted
        or (undo and not undo.restore())
        or not all(id(t) in places and stays(places[id(t)]) for t in written)
    ):
        return record.raise_inside(fn, flat, error.with_traceback(place))
    del place
    contents = [(tensor, tensor.detach().clone()) for tensor in written]
    try:
        result = record.native(fn, flat)
    except BaseException as own:
        hide_ours(own)
        frames.crashed(record, own)
        raise
    finally:
        for tensor, content in contents:
            tensor.data.copy_(content)
    if record.code.co_exceptiontable:  # a handler of the user's may have dealt with it
        return result
    frames.crashed(record, error)
    if not isinstance(error, Exception):  # it is to end more than the graph
        raise error
    warnings.warn(
        f"[TS-T905] the compiled graph of {record.name} raised {type(error).__name__}: {error}; "
        "running the function eagerly did not, so its result was used",
        TracerWarning,
        stacklevel=3,
    )
    return result
