"""Which sizes and numbers become symbolic: history of what changed between compiles.

Policy: the first compile is static; a size or int that differs at a recompile becomes symbolic
(``dynamic=None``). ``dynamic=True`` makes all symbolic from the start, ``False`` none. Sizes 0
and 1 are always specialised.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from typing import NoReturn

import torch
from torchsmith_guards import (
    IndexedSource,
    PinnedSource,
    ShapeEnv,
    ShapeRelation,
    Source,
    TensorPropertySource,
)

from torchsmith_tracer._src import size_marks
from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Args, Kwargs, Value
from torchsmith_tracer._src.values.constants import NONE
from torchsmith_tracer._src.values.tensor import TensorValue
from torchsmith_tracer._src.values.torch_queries import Handler, register, register_name
from torchsmith_tracer.errors import ConstraintViolationError

_VARIES = None


@dataclass(slots=True)
class FrameState:
    """What the compiles of one code object have seen, by source text. The region keeps it.

    Attributes:
        sizes: sizes of tensors; None in place of one that varied, None altogether after the
            number of dimensions changed.
        strides: likewise strides.
        scalars: ints and floats; None after the value varied.
        edge: whether a size that varies was 0 or 1 in the compile under way.
        compiles: how many there have been, with the one under way.
        seen: size of a dimension in each compile, by text of its tensor and place.
    """

    sizes: dict[str, list[int | None] | None] = field(default_factory=dict)
    strides: dict[str, list[int | None] | None] = field(default_factory=dict)
    scalars: dict[str, int | float | None] = field(default_factory=dict)
    edge: bool = False
    compiles: int = 0
    seen: dict[tuple[str, int | None], dict[int, int]] = field(default_factory=dict)

    def begin(self) -> None:
        """A compile begins."""
        self.edge = False
        self.compiles += 1

    def history(self, source: Source) -> Hashable:
        """What is known of a size of a tensor: others that have been equal to it at each compile
        may be equal for a reason."""
        assert isinstance(source, TensorPropertySource)
        return frozenset(self.seen.get((source.base.expr, source.dim), {}).items())

    def dynamic_dims(
        self, source: Source, tensor: torch.Tensor, dynamic: bool | None
    ) -> frozenset[int]:
        """Note the sizes of ``tensor`` and give the dimensions that are to be symbolic."""
        if dynamic is False:
            return frozenset()
        dims = _varied(self.sizes, source.expr, tensor.shape)
        if isinstance(tensor, torch.nn.Parameter):
            return frozenset()
        self.edge = self.edge or any(tensor.shape[d] in (0, 1) for d in dims)
        for d, size in enumerate(tensor.shape):
            self.seen.setdefault((source.expr, d), {})[self.compiles] = size
        return size_marks.applied(tensor, range(tensor.dim()) if dynamic is True else dims)

    def dynamic_strides(
        self, source: Source, tensor: torch.Tensor, dynamic: bool | None
    ) -> frozenset[int]:
        """Note the strides of ``tensor`` and give the dimensions whose stride has varied."""
        if dynamic is False:
            return frozenset()
        return frozenset(_varied(self.strides, source.expr, tensor.stride()))

    def is_dynamic_scalar(self, source: Source, value: int | float, dynamic: bool | None) -> bool:
        """Note a number and tell whether it is to be symbolic."""
        if dynamic is False:
            return False
        if isinstance(source, IndexedSource):
            return True  # its place varies
        key, root = source.expr, source.root
        if isinstance(root, PinnedSource):  # many objects have the same text
            key = f"{id(root.obj)} {key}"
        if key not in self.scalars:
            self.scalars[key] = value
            return dynamic is True
        if self.scalars[key] != value:
            self.scalars[key] = _VARIES
        return dynamic is True or self.scalars[key] is _VARIES


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


def state_ranges(env: ShapeEnv, source: Source, tensor: torch.Tensor) -> None:
    """Guard the ranges that were given with marks on ``tensor``, found at ``source``."""
    for given in size_marks.ranges(tensor):
        env.bound_size(TensorPropertySource(source, "size", given.dim), given.min, given.max)


def check_marks(env: ShapeEnv, source: Source, tensor: torch.Tensor) -> None:
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
        symbol = env.symbol_of(TensorPropertySource(source, "size", dim))
        if symbol is not None and env.simplify(symbol).free_symbols:
            continue
        for guard in env.shape_guards():
            relation = guard.expected
            if guard.user_line and isinstance(relation, ShapeRelation):
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
