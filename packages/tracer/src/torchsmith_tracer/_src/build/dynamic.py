"""Which sizes and numbers become symbolic: history of what changed between compiles.

Policy: the first compile is static; a size or int that differs at a recompile becomes symbolic
(``dynamic=None``). ``dynamic=True`` makes all symbolic from the start, ``False`` none. Sizes 0
and 1 are always specialised.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import torch
import torchsmith_guards as guards

from torchsmith_tracer._src import size_marks
from torchsmith_tracer._src.breaks.kinds import Varies
from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Args, Kwargs, Value
from torchsmith_tracer._src.values.constants import NONE
from torchsmith_tracer._src.values.containers import ListValue, SequenceValue
from torchsmith_tracer._src.values.symnum import SymNumValue
from torchsmith_tracer._src.values.tensor import TensorValue
from torchsmith_tracer._src.values.torch_queries import Handler, register, register_name
from torchsmith_tracer.errors import ConstraintViolationError

_VARIES = None
_FLAG = 2  # numbers in a buffer that code is made for


@dataclass(slots=True)
class FrameState:
    """What the compiles of one code object have seen, by source text. The region keeps it.

    Attributes:
        sizes: sizes of tensors; None in place of one that varied, None altogether after the
            number of dimensions changed.
        strides: likewise strides.
        scalars: ints and floats, keys of tables; None after the value varied.
        edge: whether a size that varies was 0 or 1 in the compile under way.
        varying: sizes that vary, of this compile.
        compiles: how many there have been, with the one under way.
        seen: size of a dimension in each compile, by text of its tensor and place.
        unrolled: lengths or keys that versions were compiled for, by text of what has them.
        lists: texts of lists.
        ragged: dimensions that vary among the tensors of a list, by the text of that.
        held: numbers that buffers had where Python asked for them.
    """

    sizes: dict[str, list[int | None] | None] = field(default_factory=dict)
    strides: dict[str, list[int | None] | None] = field(default_factory=dict)
    scalars: dict[str, Hashable] = field(default_factory=dict)
    edge: bool = False
    varying: set[int] = field(default_factory=set)
    compiles: int = 0
    seen: dict[tuple[str, int | None], dict[int, int]] = field(default_factory=dict)
    unrolled: dict[str, set[Hashable]] = field(default_factory=dict)
    lists: set[str] = field(default_factory=set)
    ragged: dict[str, set[int]] = field(default_factory=dict)
    held: dict[tuple[str, int], set[Hashable]] = field(default_factory=dict)

    def begin(self) -> None:
        """A compile begins."""
        self.edge = False
        self.varying.clear()
        self.compiles += 1

    def history(self, source: guards.Source) -> Hashable:
        """What is known of a size of a tensor: others that have been equal to it at each compile
        may be equal for a reason."""
        assert isinstance(source, guards.TensorPropertySource)
        return frozenset(self.seen.get((source.base.expr, source.dim), {}).items())

    def dynamic_dims(
        self, source: guards.Source, tensor: torch.Tensor, dynamic: bool | None
    ) -> frozenset[int]:
        """Note the sizes of ``tensor`` and give the dimensions that are to be symbolic."""
        if dynamic is False:
            return frozenset()
        late = self.compiles > 1 and source.expr not in self.sizes
        ragged = self.ragged.setdefault(self._place(source, source.expr), set())
        ragged.update(_varied(self.sizes, source.expr, tensor.shape))
        if late:  # as long as what varies, and not seen before: a mask that is given now and then
            ragged.update(d for d, n in enumerate(tensor.shape) if n in self.varying)
        dims = {d for d in ragged if d < tensor.dim()}
        self.varying.update(n for d, n in enumerate(tensor.shape) if d in dims and n > 1)
        if isinstance(tensor, torch.nn.Parameter):
            return frozenset()
        self.edge = self.edge or any(tensor.shape[d] in (0, 1) for d in dims)
        for d, size in enumerate(tensor.shape):
            self.seen.setdefault((source.expr, d), {})[self.compiles] = size
        return size_marks.applied(tensor, range(tensor.dim()) if dynamic is True else dims)

    def dynamic_strides(
        self, source: guards.Source, tensor: torch.Tensor, dynamic: bool | None
    ) -> frozenset[int]:
        """Note the strides of ``tensor`` and give the dimensions whose stride has varied."""
        if dynamic is False:
            return frozenset()
        return frozenset(_varied(self.strides, source.expr, tensor.stride()))

    def unroll(self, tx: Trace, what: str, key: str, length: Hashable, most: int) -> None:
        """Traced code needs a ``length`` that varies: that of a loop, say, which had a constant one
        before. Code for the first ones is made as ever; for others a break leaves what needs it to
        Python, and the body of a loop is compiled once.

        Raises:
            Unsupported: more than ``most`` lengths have been seen at ``key``; says ``what`` it is.
        """
        lengths = self.unrolled.setdefault(key, {_VARIES})
        lengths.add(length)
        users = [frame for frame in tx.frames if not frame.globals.own]
        breaks = bool(users) and users[-1].resumable and not tx.settings.fullgraph
        if breaks and len(lengths) > most:
            raise Unsupported("varying-length", what=what)

    def holds(self, source: guards.Source, buffer: torch.Tensor, number: Hashable) -> bool:
        """Note the number in a buffer and tell whether code may be made for it: a flag changes
        once, a counter at each call."""
        numbers = self.held.setdefault((key_of(source), id(buffer)), set())
        numbers.add(number)
        return number == number and len(numbers) <= _FLAG

    def _place(self, source: guards.Source, key: str) -> str:
        """Where what varies with the numbers at ``key`` is found: all items of a list."""
        listed = isinstance(source, guards.ItemSource) and key_of(source.base) in self.lists
        return f"{key[: key.rindex('[')]}[]" if listed else key

    def follow(
        self,
        outer: FrameState,
        labels: Sequence[str],
        values: Sequence[Value],
        varies: Varies,
        *,
        called: bool,
    ) -> None:
        """This is the state of a piece of a broken function, which finds ``values`` of the piece
        before at the first of ``labels``: what varies there varies here, too. At the others it
        finds what the instruction between the two leaves, which may be the one that ``varies``, or
        a call in the middle of which that one is (``called``)."""
        for label, value in zip(labels, values, strict=False):
            self._inherit(outer, label, value, grows=varies == "length")
        if varies == "length" or (varies and not called):
            results = labels[len(values) :]
            for place in (*results, *(f"{label}[]" for label in results)):
                self.scalars[place] = _VARIES
                if not called:  # tensors have as many rows as the data says
                    self.ragged[place] = {0}

    def _inherit(
        self, outer: FrameState, label: str, value: Value, depth: int = 3, *, grows: bool
    ) -> None:
        """What is known of ``value``; lists that were made before a loop grow in it."""
        if isinstance(value, TensorValue):
            sizes = [n if type(n) is int else _VARIES for n in value.fake.shape]
            if _VARIES in sizes:
                self.sizes.setdefault(label, sizes)
        elif (
            isinstance(value, SymNumValue)
            or getattr(value, "growing", None)
            or (grows and isinstance(value, ListValue))
        ):
            self.scalars[label] = _VARIES
        elif value.source is not None:
            path = value.source.expr
            for name in ("sizes", "strides", "scalars"):
                mine, theirs = getattr(self, name), getattr(outer, name)
                for key, seen in [*theirs.items()]:  # a loop is its own outer one
                    own = key == path or key.startswith((f"{path}.", f"{path}["))
                    if own and (seen is _VARIES or (isinstance(seen, list) and _VARIES in seen)):
                        mine.setdefault(label + key[len(path) :], seen and list(seen))
        elif isinstance(value, SequenceValue) and depth:
            for i, item in enumerate(value.items):
                self._inherit(outer, f"{label}[{i}]", item, depth - 1, grows=grows)

    def is_dynamic_scalar(
        self, source: guards.Source, value: Hashable, dynamic: bool | None
    ) -> bool:
        """Note a number and tell whether it is to be symbolic."""
        if dynamic is False:
            return False
        if isinstance(source, guards.IndexedSource):
            return True  # its place varies
        key = key_of(source)
        place = self._place(source, key)
        if self.scalars.setdefault(key, value) != value:
            self.scalars[key] = self.scalars[place] = _VARIES
        return dynamic is True or _VARIES in (self.scalars[key], self.scalars.get(place, 0))

    def vary(self, sources: Iterable[guards.Source]) -> dict[str, Hashable]:
        """Numbers that the very code which was traced changes: what was known of those that were
        not known to vary."""
        keys = {key for key in map(key_of, sources) if self.scalars.get(key) is not _VARIES}
        before = {key: self.scalars[key] for key in keys}
        self.scalars.update(dict.fromkeys(keys, _VARIES))
        return before


def key_of(source: guards.Source) -> str:
    """The text of a source that no other has: many objects have the same."""
    root = source.root
    return f"{id(root.obj)} {source.expr}" if isinstance(root, guards.PinnedSource) else source.expr


def _varied(
    seen: dict[str, list[int | None] | None], key: str, numbers: tuple[int, ...]
) -> Collection[int]:
    """Note what a tensor has in each dimension, and give those where it has varied."""
    known = seen.setdefault(key, list(numbers))
    if known is None or len(known) != len(numbers):
        seen[key] = None
        return range(len(numbers))
    for d, number in enumerate(numbers):
        if known[d] != number:
            known[d] = _VARIES
    return [d for d, number in enumerate(known) if number is _VARIES]


def state_ranges(env: guards.ShapeEnv, source: guards.Source, tensor: torch.Tensor) -> None:
    """Guard the ranges that were given with marks on ``tensor``, found at ``source``."""
    for given in size_marks.ranges(tensor):
        env.bound_size(guards.TensorPropertySource(source, "size", given.dim), given.min, given.max)


def check_marks(env: guards.ShapeEnv, source: guards.Source, tensor: torch.Tensor) -> None:
    """The program has not specialised what is marked as dynamic in ``tensor``, found at ``source``.

    Raises:
        ConstraintViolationError: it has, or a size is out of its range.
    """
    for given in size_marks.ranges(tensor):
        size = tensor.size(given.dim)
        low = size if given.min is None else given.min
        high = size if given.max is None else given.max
        if not low <= size <= high:
            raise ConstraintViolationError(
                f"[TS-T907] dimension {given.dim} of {source.expr} was marked as from {given.min} "
                f"to {given.max}, but its size is {size}"
            )
    for dim in sorted(size_marks.dynamic(tensor)):
        text = f"[TS-T907] dimension {dim} of {source.expr} was marked as dynamic, but"
        symbol = env.symbol_of(guards.TensorPropertySource(source, "size", dim))
        if symbol is not None and env.simplify(symbol).free_symbols:
            continue
        for guard in env.shape_guards():
            relation = guard.expected
            if guard.user_line and isinstance(relation, guards.ShapeRelation):
                if symbol in relation.condition.free_symbols:
                    text += f" the program needs {relation.text()} ({guard.user_line}),"
        fixed = f"{text} its size is fixed to {tensor.size(dim)}; leave the mark out, or use "
        fixed += "maybe_mark_dynamic, which allows that"
        raise ConstraintViolationError(fixed)


def _refuse(*args: object) -> NoReturn:
    raise Unsupported("torch-state", what="a mark on a tensor's sizes")


def _specialise(tx: Trace, args: Args, kwargs: Kwargs) -> Value:
    """``mark_static`` in traced code: the sizes are constants from here on."""
    values = [*args, *kwargs.values()]
    tensor = values[0]
    if not isinstance(tensor, TensorValue):
        _refuse()
    dims = tx.interp.concrete(values[1]) if len(values) > 1 else None
    for dim in range(tensor.fake.dim()) if dims is None else [dims] if type(dims) is int else dims:  # type: ignore[attr-defined]
        int(tensor.fake.size(dim))
    return NONE


_HANDLERS: dict[str, Handler] = {"mark_static": _specialise}
for _name in "mark_dynamic maybe_mark_dynamic mark_unbacked mark_static".split():
    _handler = _HANDLERS.get(_name, _refuse)
    register_name("torch._dynamo.decorators", _name, _handler)
    register(getattr(size_marks, _name), _handler)
