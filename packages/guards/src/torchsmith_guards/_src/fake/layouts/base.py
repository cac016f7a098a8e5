"""What a layout rule is, the table of them, and the questions that rules ask about layouts.

A rule takes an operator's arguments and gives the layout of what it returns. Where it is not sure
it gives None, or what it calls raises ``Unsure``; then torch is asked. Wrong arguments are left to
torch to complain about. Rules never make a guard: symbolic sizes are compared as expressions, and
an answer that depends on the value of a symbol is left to torch. They assume that every symbol is a
size of at least two, so they must not be asked once a size comes from data.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any, TypeVar

import torch
from torch._ops import OpOverload

from torchsmith_guards._src.shapes.expr import floordiv, mul, sub
from torchsmith_guards._src.shapes.nodes import SymExpr
from torchsmith_guards._src.shapes.queries import expr_of

# size, stride, dtype, device, storage offset
Layout = tuple[Sequence[int], Sequence[int], torch.dtype, torch.device, int | torch.SymInt]
# A list for operators that return several values; numbers and None stand for themselves.
Layouts = list[Layout | int | None]
Result = Layout | Layouts
LayoutRule = Callable[..., Result | None]
_Rule = TypeVar("_Rule", bound=LayoutRule)

# Types whose tensors have no conjugate or quantisation state; the rest is left to torch.
INTEGRAL = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
PLAIN_DTYPES = INTEGRAL | {torch.float16, torch.bfloat16, torch.float32, torch.float64}


class Effect(enum.Enum):
    """How a result relates to the arguments."""

    FRESH = enum.auto()  # new tensors
    VIEW = enum.auto()  # shares the first argument's storage
    WRITE = enum.auto()  # is the first argument


class Unsure(Exception):
    """Only torch can tell."""


def unsure_if(condition: object) -> None:
    """Leave the call to torch where this holds."""
    if condition:
        raise Unsure


@dataclass(frozen=True, slots=True)
class Entry:
    """A rule, what it says about storage, and of which types tensors may be."""

    rule: LayoutRule
    effect: Effect
    dtypes: Collection[torch.dtype]

    def result(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result | None:
        """What a call returns, or None when only torch can tell."""
        try:
            return self.rule(*args, **kwargs)
        except Unsure:
            return None


_RULES: dict[str, Entry] = {}
_RESOLVED: dict[object, Entry | None] = {}


def rule(
    *names: str, effect: Effect = Effect.FRESH, dtypes: Collection[torch.dtype] = PLAIN_DTYPES
) -> Callable[[_Rule], _Rule]:
    """Register a rule for aten operators.

    Args:
        names: each one or several overloads, as in ``"add.Tensor mul.Tensor"``; ``relu`` stands
            for the overload without a name.
        effect: what the operators do with storage.
        dtypes: of their tensors.
    """

    def register(function: _Rule) -> _Rule:
        for name in " ".join(names).split():
            if name in _RULES:
                raise ValueError(f"{name} has a layout rule already")
            _RULES[name] = Entry(function, effect, dtypes)
        return function

    return register


def entry_of(func: object) -> Entry | None:
    """The rule of an operator, or None."""
    try:
        return _RESOLVED[func]
    except KeyError:
        found = None
        if isinstance(func, OpOverload) and func.namespace == "aten":
            name: str = func.name()  # type: ignore[no-untyped-call]
            found = _RULES.get(name.removeprefix("aten::"))
        _RESOLVED[func] = found
        return found


def layout_of(
    func: object, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> Result | None:
    """Layout of what a call returns, or None when only torch can tell.

    Args:
        func: an overload of ``torch.ops``.
        args: fake tensors, numbers and other arguments. Every symbolic size is at least two.
        kwargs: keyword arguments.

    Returns:
        ``(size, stride, dtype, device, storage offset)``; a list of them for several results.
        Views keep the storage of their argument. None for operators that write.
    """
    entry = entry_of(func)
    if entry is None or entry.effect is Effect.WRITE:
        return None
    return entry.result(args, kwargs or {})


def same(a: Any, b: Any) -> bool:
    """Whether two sizes are equal for every value of their symbols. Never makes a guard."""
    if type(a) is int and type(b) is int:
        return a == b
    try:
        return expr_of(a) is expr_of(b)
    except TypeError:
        return False  # symbols of another library


def less(a: Any, b: Any) -> bool | None:
    """Whether ``a < b`` for sizes or strides, for every value of their symbols, all positive."""
    if type(b) is int and (b <= 1 or type(a) is int):
        return type(a) is int and a < b
    try:
        left, right = expr_of(a), expr_of(b)
    except TypeError:
        return None  # symbols of another library
    difference = sub(right, left)
    if difference.lo > 0 or difference is right:
        return True
    if difference.hi <= 0:
        return False
    return _multiplies(left, right) or (False if _multiplies(right, left) else None)


def _multiplies(small: SymExpr, large: SymExpr) -> bool:
    """Whether ``large`` is ``small`` times something that is at least two."""
    factor = floordiv(large, small)
    return factor.lo >= 2 and mul(factor, small) is large


def same_sizes(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether two lists of sizes are equal for every value of their symbols."""
    return len(a) == len(b) and all(x is y or same(x, y) for x, y in zip(a, b))


def holds(size: Sequence[Any], value: int) -> bool:
    """Whether one of the sizes is ``value``. Symbols are at least two."""
    return any(type(n) is int and n == value for n in size)


def is_static(*lists: Sequence[Any]) -> bool:
    """Whether all sizes are plain ints."""
    return all(type(n) is int for numbers in lists for n in numbers)


def contiguous_strides(size: Sequence[Any]) -> tuple[Any, ...]:
    """Row-major strides of a tensor of this size, as ``torch.empty`` gives them."""
    try:
        return _contiguous_strides(tuple(size))
    except TypeError:  # symbols have no hash
        return _contiguous_strides.__wrapped__(size)


@lru_cache(maxsize=4096)
def _contiguous_strides(size: tuple[Any, ...]) -> tuple[Any, ...]:
    strides: list[Any] = [1] * len(size)
    for axis in range(len(size) - 2, -1, -1):
        extent = size[axis + 1]
        strides[axis] = strides[axis + 1] * (1 if type(extent) is int and extent == 0 else extent)
    return tuple(strides)


def is_contiguous(x: torch.Tensor) -> bool:
    """Whether ``x`` is row-major for every value of its symbols. Never makes a guard."""
    if is_static(x.shape, x.stride()):
        return x.is_contiguous()
    return lies(x, contiguous_strides(x.shape))


def lies(x: torch.Tensor, strides: Sequence[Any]) -> bool:
    """Whether ``x`` has these strides, but along axes of one, for every value of its symbols."""
    each = zip(x.shape, x.stride(), strides)
    return all(same(step, wanted) or (type(n) is int and n == 1) for n, step, wanted in each)


def is_row_major(x: torch.Tensor) -> bool:
    """``is_contiguous`` and the usual strides along axes of one too."""
    return same_sizes(x.stride(), contiguous_strides(x.shape))


def is_dense(size: Sequence[Any], stride: Sequence[Any]) -> bool:
    """Whether the elements fill one block of memory, each once, in some order of the axes."""
    try:
        return _is_dense(tuple(size), tuple(stride))
    except TypeError:  # symbols have no hash
        return _is_dense.__wrapped__(size, stride)


@lru_cache(maxsize=4096)
def _is_dense(size: tuple[Any, ...], stride: tuple[Any, ...]) -> bool:
    rest = [(n, step) for n, step in zip(size, stride) if not (type(n) is int and n == 1)]
    expected: Any = 1
    while rest:
        for index, (extent, step) in enumerate(rest):
            if same(step, expected):
                expected = expected * extent
                del rest[index]
                break
        else:
            return False
    return not holds(size, 0)


def is_channels_last(x: torch.Tensor, most: int = 4) -> bool | None:
    """Whether torch's kernels take a tensor of four to ``most`` axes to be in channels-last order.

    The test of ``suggest_memory_format``: it looks at strides only, and takes ambiguous layouts to
    be row-major. None when it depends on the value of a symbol.
    """
    size: Sequence[Any] = x.shape
    stride: Sequence[Any] = x.stride()
    if not 4 <= len(size) <= most or is_row_major(x):
        return False
    least: Any = 0
    for axis in (1, *range(len(size) - 1, 1, -1), 0):
        if holds((size[axis],), 0) or (holds((stride[axis],), 0) and axis == 1):
            return False
        below = less(stride[axis], least)
        if below is not False:
            return None if below is None else False
        if axis == 0 and same(least, stride[1]):
            return False
        least = stride[axis] * size[axis] if axis else least
    return True


def channels_last_strides(size: Sequence[int]) -> tuple[int, ...]:
    """Strides of a channels-last tensor of this size of four axes or five."""
    batch, channels, *space = size
    strides = contiguous_strides((batch, *space, channels))
    return (strides[0], 1, *strides[1:-1])


def image_layout(size: Sequence[int], x: torch.Tensor, *, suggested: bool = False) -> Layout:
    """The layout of an image made from ``x``: channels-last if that is, row-major if that is; or,
    also of volumes, in the order that torch suggests, row-major where ``x`` is neither."""
    last = is_channels_last(x, 5 if suggested else 4)
    unsure_if(last is None or not (last or suggested or is_contiguous(x)))
    strides = channels_last_strides(size) if last else contiguous_strides(size)
    return tuple(size), strides, x.dtype, x.device, 0


def alike(x: torch.Tensor, *others: torch.Tensor | None) -> bool:
    """Whether ``x`` and the others are of one floating type on one device."""
    return x.dtype.is_floating_point and all(
        o is None or (o.dtype == x.dtype and o.device == x.device) for o in others
    )


def fits(x: torch.Tensor, *others: torch.Tensor | None) -> bool:
    """Whether ``x`` has static sizes, none of them 0, and the others are ``alike``."""
    return is_static(x.shape, x.stride()) and not holds(x.shape, 0) and alike(x, *others)


def spread(values: Sequence[int], count: int) -> list[int]:
    """One number for each spatial dimension."""
    unsure_if(not is_static(values) or len(values) not in (1, count))
    return list(values) * (count if len(values) == 1 else 1)


def wanted(parts: Layouts, mask: Sequence[bool]) -> Layouts:
    """The gradients that a mask asks for."""
    unsure_if(any(part is None and asked for part, asked in zip(parts, mask)))
    return [part if asked else None for part, asked in zip(parts, mask)]


def contiguous(size: Sequence[Any], x: torch.Tensor, dtype: torch.dtype | None = None) -> Layout:
    """Row-major layout on the device (and of the type) of ``x``."""
    shape = tuple(size)
    return shape, contiguous_strides(shape), dtype or x.dtype, x.device, 0


@lru_cache
def promoted(*dtypes: torch.dtype) -> torch.dtype:
    """The type that elements of all these types are cast to. Torch calls it an operator, which
    would go to the mode at work."""
    with torch._C._DisableTorchDispatch():
        return reduce(torch.promote_types, dtypes)


def axis_of(dim: Any, rank: int) -> int:
    """A dimension counted from the front, which must be in range and a plain int."""
    unsure_if(type(dim) is not int or not -max(rank, 1) <= dim < max(rank, 1))
    return dim % max(rank, 1)  # type: ignore[no-any-return]
