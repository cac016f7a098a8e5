"""What stands between the caller and a generated wrapper: structure of the result, inputs that are
literals in the graph, and writes to inputs that share memory."""

from __future__ import annotations

import json
import logging
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, cast

import torch

from torchsmith_fx_backend._src.capture.torch_private import (
    below_autocast,
    has_autocast,
    pytree,
    set_version,
)
from torchsmith_fx_backend._src.runtime.addresses import addresses, extent, overlap
from torchsmith_fx_backend.errors import UnsupportedError

if TYPE_CHECKING:  # what is restored needs no stages
    from torchsmith_fx_backend._src.aot.joint import Joint

log = logging.getLogger("torchsmith.backend")

_PAIRS = ("frozen", "attributes", "once")


@dataclass(frozen=True, slots=True)
class Frame:
    """How a flat compiled graph is called like the graph it came from.

    Attributes:
        out_spec: structure of the result.
        mutated: positions of inputs that the graph writes.
        frozen: Python values that the graph has as literals, by position.
        attributes: names of the plan's constants that are attributes of the captured graph, with
            their paths.
        written: names of those that the graph writes.
        once: names of those that are computed when the graph is loaded, with their positions in
            what computes them.
        static: no size is symbolic.
        obstacle: why calls cannot be recorded; empty when they can.
    """

    out_spec: Any
    mutated: tuple[int, ...]
    frozen: tuple[tuple[int, object], ...]
    attributes: tuple[tuple[str, str], ...] = ()
    written: tuple[str, ...] = ()
    once: tuple[tuple[str, int], ...] = ()
    static: bool = True
    obstacle: str = ""

    def dump(self) -> bytes:
        """A text form of the frame."""
        record = {field.name: getattr(self, field.name) for field in fields(self)}
        record["out_spec"] = pytree.treespec_dumps(self.out_spec)
        return json.dumps(record).encode()

    @staticmethod
    def load(data: bytes) -> Frame:
        """The frame that ``dump`` wrote."""
        record = json.loads(data)
        record["out_spec"] = pytree.treespec_loads(record["out_spec"])
        record |= {name: tuple(record[name]) for name in ("mutated", "written")}
        record |= {name: tuple(map(tuple, record[name])) for name in _PAIRS}
        return Frame(**record)

    def wrap(
        self,
        built: Any,
        eager: Callable[..., Any],
        examples: Sequence[object],
        ambient: Callable[[], AbstractContextManager[object]] | None,
        named: Mapping[str, torch.Tensor] | None = None,
    ) -> Any:
        """Make ``built`` callable as ``eager`` is; ``built`` itself where nothing is needed.

        Args:
            built: takes the graph's inputs and returns a flat tuple.
            eager: the graph as captured; it runs when written tensors share memory with others,
                when a literal input has another value, or when an attribute was replaced.
            examples: the example inputs.
            ambient: makes a context to run in.
            named: the tensors of the captured graph by path.

        Raises:
            UnsupportedError: the graph writes to an inference tensor outside inference mode.
        """
        if not torch.is_inference_mode_enabled():
            targets: list[Any] = [examples[i] for i in self.mutated]
            if any(target.is_inference() for target in targets):
                raise UnsupportedError(what="a write to an inference tensor, which eager refuses")
        call: Any = built
        if ambient is not None:
            call = _inside(ambient, call)
        call = _restructured(call, self.out_spec)
        tensors = [(named or {})[path] for _, path in self.attributes]
        written = [t for (name, _), t in zip(self.attributes, tensors) if name in self.written]
        separate = apart(examples, self.mutated, tensors, written)
        changed = _changed(eager, named or {}, tensors) if tensors else None
        if separate is not None or self.frozen or changed is not None:
            call = _checked(
                call, getattr(eager, "forward", eager), separate, self.frozen, changed, self.mutated
            )
        if call is not built:
            call.source, call.kernels = built.source, built.kernels
        return call


def _inside(
    ambient: Callable[[], AbstractContextManager[object]], call: Callable[..., Any]
) -> Callable[..., Any]:
    def run(*inputs: object) -> Any:
        with ambient():
            return call(*inputs)

    return run


def _restructured(call: Callable[..., Any], spec: Any) -> Callable[..., Any]:
    children = spec.children()
    if spec.type is tuple and all(child.is_leaf() for child in children):
        return call
    if spec.is_leaf():
        return lambda *inputs: call(*inputs)[0]
    if spec.type is list and all(child.is_leaf() for child in children):
        return lambda *inputs: list(call(*inputs))
    return lambda *inputs: pytree.tree_unflatten(list(call(*inputs)), spec)


@dataclass(slots=True)
class _Apart:
    """Tells whether written tensors share memory with any other tensor of the graph.

    Attributes:
        positions: the inputs that count.
        attributes: tensors of the graph itself, compared as well.
        written: for each of both, whether the graph writes it.
        extents: bytes from the first to the last element; None where sizes are symbolic.
        order: of all by where they begin, as it was at the last call.
        pointers: those of the last call that passed.
    """

    positions: tuple[int, ...]
    attributes: tuple[torch.Tensor, ...]
    written: bytes
    extents: array[int] | None
    order: array[int]
    pointers: array[int] | None = None

    def __call__(self, inputs: Sequence[Any]) -> bool:
        tensors = (*(inputs[i] for i in self.positions), *self.attributes)
        pointers = addresses(tensors)
        if pointers == self.pointers:
            return True
        extents = self.extents
        if extents is None:
            extents = array("q", map(extent, tensors))
        if overlap(pointers, extents, self.written, self.order):
            return False
        if self.extents is not None:
            self.pointers = pointers
        return True


def apart(
    examples: Sequence[object],
    mutated: Sequence[int],
    attributes: Sequence[torch.Tensor],
    written_attributes: Sequence[torch.Tensor],
) -> _Apart | None:
    """What must be compared before each call; None when nothing can be shared."""
    if not mutated and not written_attributes:
        return None
    first = {id(x): i for i, x in reversed([*enumerate(examples)]) if isinstance(x, torch.Tensor)}
    found = sorted(first.values())
    own = list({id(a): a for a in attributes}.values())
    if len(found) + len(own) < 2:
        return None
    compared = [*(cast(torch.Tensor, examples[i]) for i in found), *own]
    changed = set(mutated)
    attributes_changed = (any(a is w for w in written_attributes) for a in own)
    written = bytes((*(i in changed for i in found), *attributes_changed))
    layouts = [n for t in compared for part in (t.shape, t.stride()) for n in part]
    static = all(type(n) is int for n in layouts)
    extents = array("q", map(extent, compared)) if static else None
    return _Apart(tuple(found), tuple(own), written, extents, array("q", range(len(written))))


def _checked(
    call: Callable[..., Any],
    eager: Callable[..., Any],
    apart: Callable[[Sequence[Any]], bool] | None,
    frozen: tuple[tuple[int, object], ...],
    changed: Callable[[], bool] | None,
    written: Sequence[int],
) -> Callable[..., Any]:
    def run(*inputs: object) -> Any:
        if changed is not None and changed():
            log.info("attributes were replaced or have other layouts: running as captured")
            return eager(*inputs)
        reason = differs(inputs, frozen, apart)
        if reason is not None:
            log.info("%s: running as captured", reason)
            return _or_unchanged(eager, inputs, [inputs[i] for i in written])
        return call(*inputs)

    return run


def _or_unchanged(run: Callable[..., Any], inputs: Sequence[Any], written: Sequence[Any]) -> Any:
    """``run(*inputs)``. Where that raises, as eager does at a write to what is read, all is as
    before: a program may run again from its beginning."""
    kept = [(t, t._version, t.detach().clone()) for t in written if not t.is_inference()]
    try:
        return run(*inputs)
    except Exception:
        for tensor, version, content in kept:
            tensor.detach().copy_(content)
            set_version(tensor, version)
        raise


def differs(
    inputs: Sequence[Any],
    frozen: tuple[tuple[int, object], ...],
    apart: Callable[[Sequence[Any]], bool] | None,
) -> str | None:
    """In which way, in words, a call is not one that a graph was compiled for; None if it is.

    Args:
        inputs: what it is given.
        frozen: Python values that the graph has as literals, by position.
        apart: whether nothing that is written shares memory; None where nothing can.
    """
    for position, value in frozen:
        given = inputs[position]
        if type(given) is not type(value) or not (given == value or given != given):
            return f"input {position} is {given!r}, not {value!r}"
    return "written tensors share memory" if apart is not None and not apart(inputs) else None


Unusual = Callable[[Sequence[Any], bytes], str | None]


def unlike(joint: Joint, examples: Sequence[object]) -> Unusual:
    """A function that tells in which way, in words, a call is unlike ``examples``, which the graph
    was compiled for; None when it is not. It is told what ``looks`` says of the tensors."""
    first = {id(x): i for i, x in reversed(list(enumerate(examples)))}
    places = tuple(i for i, x in enumerate(examples) if isinstance(x, torch.Tensor))
    wanted = [first[id(examples[i])] in joint.wanted for i in places]
    separate = apart(examples, [i for i in joint.mutated if i < len(examples)], (), ())
    count, frozen, grad = len(places), joint.trace.frozen, torch.is_grad_enabled()
    # Views of these have a history that begins where they are views themselves.
    given = {place for place, _, _ in joint.rewritten}.symmetric_difference(joint.mutated)
    plain = [i for i in given.intersection(joint.wanted) if i < len(examples)]
    written = [i for i in joint.wanted if i in joint.mutated and i < len(examples)]
    compared = bool(frozen) or separate is not None
    usual = b""  # what the tensors of the last call were

    def difference(inputs: Sequence[Any], seen: bytes) -> str | None:
        nonlocal usual
        if torch.is_grad_enabled() is not grad:
            return f"gradients are switched {'off' if grad else 'on'}"
        flags = seen[-count:]
        if flags != usual:
            if [flag & 1 for flag in flags] != wanted:
                return "another set of inputs requires gradients"
            if any(inputs[i]._is_view() for i in plain):
                return "a written input is a view itself"
            usual = flags
        if written and any(inputs[i]._backward_hooks and inputs[i]._is_view() for i in written):
            return "a written input is a view with hooks, which eager's writes leave behind"
        return differs(inputs, frozen, separate) if compared else None

    return difference


def _changed(
    gm: Any, named: Mapping[str, torch.Tensor], tensors: Sequence[torch.Tensor]
) -> Callable[[], bool]:
    """Whether ``gm`` has other objects by now where it had ``tensors``, or they other layouts.

    ``load_state_dict(assign=True)`` and ``p.data = other`` do that; values may change freely.
    """
    used = {id(tensor) for tensor in tensors}
    held: dict[tuple[int, str], tuple[dict[str, Any], str, object]] = {}
    for path in (path for path, tensor in named.items() if id(tensor) in used):
        owner = gm
        for name in path.split("."):
            for place in (vars(owner), owner._parameters, owner._buffers, owner._modules):
                if name in place:
                    held[id(place), name] = (place, name, place[name])
                    owner = place[name]
                    break
    layouts = [(t, t.shape, t.stride(), t.dtype, t.device) for t in tensors]

    def changed() -> bool:
        for place, name, value in held.values():
            if place.get(name) is not value:
                return True
        for tensor, shape, stride, dtype, device in layouts:
            if tensor.dtype is not dtype or tensor.shape != shape or tensor.stride() != stride:
                return True
            if tensor.device != device:
                return True
        return False

    return changed


def ambient_guard() -> Callable[[], AbstractContextManager[object]] | None:
    """The context that a graph runs in, if it needs one."""
    return below_autocast if has_autocast() else None
