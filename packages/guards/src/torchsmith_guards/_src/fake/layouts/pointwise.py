"""Rules of pointwise operators: type promotion, broadcasting and the strides of the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch

from torchsmith_guards._src.fake.layouts.base import (
    INTEGRAL,
    Layout,
    LayoutRule,
    Layouts,
    Unsure,
    axis_of,
    channels_last_strides,
    contiguous,
    contiguous_strides,
    fits,
    holds,
    is_contiguous,
    is_dense,
    is_row_major,
    is_static,
    less,
    promoted,
    rule,
    same,
    same_sizes,
    unsure_if,
)

Ints = tuple[int, ...]

_DEFAULT, _TO_FLOAT, _TO_BOOL, _ONLY_FLOAT, _NOT_BOOL = range(5)


@lru_cache(maxsize=4096)
def _promote(full: tuple[Any, ...], zero_dim: tuple[Any, ...], numbers: tuple[type, ...]) -> Any:
    """Result type of tensors with and without dimensions and Python numbers."""
    result = _merge(*(promoted(*dtypes) if dtypes else None for dtypes in (full, zero_dim)))
    for kind in (bool, int, float, complex):
        if kind in numbers:
            result = _merge(result, _NUMBER_DTYPES[kind]())
    return result


_NUMBER_DTYPES: dict[type, Callable[[], torch.dtype]] = {
    bool: lambda: torch.bool,
    int: lambda: torch.int64,
    float: torch.get_default_dtype,
    complex: lambda: torch.complex64,
}
_SYMBOLIC_NUMBERS: dict[type, type] = {torch.SymInt: int, torch.SymFloat: float}


def _category(dtype: torch.dtype) -> int:
    if dtype is torch.bool:
        return 0
    if dtype.is_complex:
        return 3
    return 2 if dtype.is_floating_point else 1


def _merge(strong: torch.dtype | None, weak: torch.dtype | None) -> torch.dtype | None:
    """``weak`` only counts when it is of a higher category."""
    if strong is None:
        return weak
    if weak is None or _category(weak) <= _category(strong):
        return strong
    return weak


def result_dtype(operands: Sequence[Any]) -> torch.dtype:
    """The type that tensors and numbers promote to, which must not be complex."""
    tensors = [x for x in operands if isinstance(x, torch.Tensor)]
    full = tuple(t.dtype for t in tensors if t.dim())
    zero = tuple(t.dtype for t in tensors if not t.dim())
    kinds = [type(x) for x in operands if not isinstance(x, torch.Tensor)]
    numbers = tuple({_SYMBOLIC_NUMBERS.get(kind, kind) for kind in kinds})
    unsure_if(any(kind not in _NUMBER_DTYPES for kind in numbers))
    dtype: torch.dtype
    if full and not numbers and not zero and all(d is full[0] for d in full):
        dtype = full[0]
    elif float in numbers:  # depends on the default type
        dtype = _promote.__wrapped__(full, zero, numbers)
    else:
        dtype = _promote(full, zero, numbers)
    unsure_if(dtype is None or dtype.is_complex)
    return dtype


def result_device(tensors: Sequence[torch.Tensor]) -> torch.device:
    """The device of the result: CPU scalars go anywhere."""
    device = tensors[0].device
    for index, other in enumerate(tensors[1:], 1):
        if other.device == device or (other.dim() == 0 and other.device.type == "cpu"):
            continue
        unsure_if(any(t.dim() or t.device.type != "cpu" for t in tensors[:index]))
        device = other.device
    return device


def broadcast_all(tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """The size that tensors broadcast to."""
    size: tuple[Any, ...] = tuple(tensors[0].shape)
    for other in tensors[1:]:
        if not same_sizes(other.shape, size):
            size = broadcast(size, tuple(other.shape))
    return size


def broadcast(a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
    """The size that two sizes broadcast to, whatever the values of their symbols."""
    if len(a) < len(b):
        a, b = b, a
    merged = list(a)
    offset = len(a) - len(b)
    for i, extent in enumerate(b):
        have = merged[offset + i]
        if same(have, extent) or (type(extent) is int and extent == 1):
            continue
        unsure_if(not (type(have) is int and have == 1))
        merged[offset + i] = extent
    return tuple(merged)


def pointwise_layout(kind: int, operands: Sequence[Any]) -> Layout:
    """Layout of a pointwise operator's result.

    Args:
        kind: how the promoted type of the operands becomes that of the result.
        operands: tensors and numbers.
    """
    tensors = [x for x in operands if isinstance(x, torch.Tensor)]
    unsure_if(not tensors)
    device = result_device(tensors)
    size = broadcast_all(tensors)
    dtype = result_dtype(operands)
    common = torch.get_default_dtype() if kind == _TO_FLOAT and dtype in INTEGRAL else dtype
    stride = pointwise_stride(tensors, size, len(tensors) < len(operands), common)
    unsure_if(kind == _NOT_BOOL and any(t.dtype is torch.bool for t in tensors))
    if kind == _TO_BOOL:
        dtype = torch.bool
    elif dtype in INTEGRAL:
        unsure_if(kind == _ONLY_FLOAT)
        dtype = common
    return size, stride, dtype, device, 0


def pointwise_stride(
    tensors: Sequence[torch.Tensor],
    size: tuple[Any, ...],
    numbers: bool = False,
    dtype: torch.dtype | None = None,
) -> tuple[Any, ...]:
    """Strides that TensorIterator gives its output; for symbolic sizes, where that is easy to say.

    Args:
        tensors: the operands.
        size: what they broadcast to.
        numbers: there are Python numbers among the operands, which count as tensors of no
            dimension.
        dtype: the type that the operands promote to; on a CPU others are cast to it first.
    """
    sizes = [tuple(t.shape) for t in tensors]
    strides = []
    for t in tensors:
        cast = dtype is not None and t.dtype is not dtype and t.device.type == "cpu"
        strides.append(copy_stride(t) if cast else tuple(t.stride()))
    if is_static(size, *sizes, *strides):
        return iterator_strides(size, tuple(sizes), tuple(strides), numbers)
    unsure_if(holds(size, 0))
    full = [t for t in tensors if same_sizes(t.shape, size)]
    wanted = contiguous_strides(size)
    if len(full) == len(tensors):
        if all(same_sizes(stride, wanted) for stride in strides):
            return wanted
        if holds(size, 1) and not numbers:
            common = _common_strides(size, strides)
            unsure_if(common is None)
            return common  # type: ignore[return-value]
    order = axis_order(size, [expanded_strides(size, s, t) for s, t in zip(sizes, strides)])
    return strides_in_order(size, order)


def copy_stride(x: torch.Tensor) -> tuple[Any, ...]:
    """Strides of a copy of ``x``: its own if it is dense, else dense ones in their order."""
    return dense_stride(tuple(x.shape), tuple(x.stride()))


def dense_stride(size: tuple[Any, ...], stride: tuple[Any, ...]) -> tuple[Any, ...]:
    """Strides of a copy of what has this size and these strides."""
    if is_dense(size, stride) or holds(size, 0):
        return stride
    return strides_in_order(size, axis_order(size, [list(stride)]))


@lru_cache(maxsize=4096)
def iterator_strides(
    size: Ints, sizes: tuple[Ints, ...], strides: tuple[Ints, ...], numbers: bool
) -> Ints:
    """TensorIterator's choice: a few common cases first, then the order of the axes.

    After ``compute_fast_setup_type`` and ``reorder_dimensions`` in ATen/TensorIterator.cpp.
    """
    if not (numbers and size) and all(s == size for s in sizes):
        common = _common_strides(size, strides)
        if common is not None:
            return common
    order = axis_order(size, [expanded_strides(size, s, t) for s, t in zip(sizes, strides)])
    return strides_in_order(size, order)


def strides_in_order(size: tuple[Any, ...], order: list[int]) -> tuple[Any, ...]:
    if order == list(range(len(size)))[::-1]:
        return contiguous_strides(size)
    result: list[Any] = [0] * len(size)
    step: Any = 1
    for axis in order:
        result[axis] = step
        step *= size[axis]
    return tuple(result)


def _common_strides(
    size: tuple[Any, ...], strides: Sequence[tuple[Any, ...]]
) -> tuple[Any, ...] | None:
    """Row-major, channels-last or the operands' own; None if none fits, or symbols hide which."""
    orders = [tuple(range(len(size)))[::-1], (1, 3, 2, 0)]
    for order, result in zip(orders, (contiguous_strides, channels_last_strides)):
        found = {_runs_through(size, stride, order) for stride in strides}
        if found == {True}:
            return result(size)
        if False not in found:
            return None
        if len(size) != 4:
            break
    alike = all(same_sizes(stride, strides[0]) for stride in strides)
    return strides[0] if alike and is_dense(size, strides[0]) else None


def _runs_through(
    size: tuple[Any, ...], stride: tuple[Any, ...], axes: Sequence[int]
) -> bool | None:
    """Whether elements follow each other along these axes, innermost first; None: hard to say."""
    if holds(size, 0):
        return True
    expected: Any = 1
    for axis in axes:
        if not (type(size[axis]) is int and size[axis] == 1):
            if not same(stride[axis], expected):
                return False if is_static((stride[axis], expected)) else None
            expected = expected * size[axis]
    return True


def expanded_strides(
    size: tuple[Any, ...], own: tuple[Any, ...], stride: tuple[Any, ...]
) -> list[Any]:
    """Strides of an operand that is broadcast to ``size``."""
    extra = len(size) - len(own)
    return [0] * extra + [
        0 if _is(n, 1) and not _is(size[extra + i], 1) else step
        for i, (n, step) in enumerate(zip(own, stride))
    ]


def _is(n: Any, value: int) -> bool:
    return type(n) is int and n == value


def axis_order(size: tuple[Any, ...], operands: Sequence[Sequence[Any]]) -> list[int]:
    """Axes from the innermost out: an insertion sort whose comparison may find no difference."""
    order = list(range(len(size)))[::-1]
    for i in range(1, len(size)):
        moving = i
        for other in range(i - 1, -1, -1):
            verdict = _compare(size, operands, order[other], order[moving])
            if verdict > 0:
                order[other], order[moving] = order[moving], order[other]
                moving = other
            elif verdict < 0:
                break
    return order


def _compare(
    size: tuple[Any, ...], operands: Sequence[Sequence[Any]], inner: int, outer: int
) -> int:
    """1 to exchange two axes, -1 to leave them, 0 if no operand decides."""
    for stride in operands:
        a, b = stride[inner], stride[outer]
        if _is(a, 0) or _is(b, 0):
            continue
        if not same(a, b):
            smaller = less(a, b)
            unsure_if(smaller is None)
            return -1 if smaller else 1
        exchange = less(size[outer], size[inner])
        unsure_if(exchange is None and not same(size[outer], size[inner]))
        if exchange:
            return 1
    return 0


# Operators of one tensor; further arguments are settings of the function.
_UNARY_SAME = """
    neg abs sign sgn floor ceil trunc round clamp clamp_min clamp_max relu
"""
_UNARY_ONLY_FLOAT = """
    gelu silu leaky_relu elu mish softplus hardswish hardsigmoid threshold celu hardshrink
    softshrink frac
"""
_UNARY_FLOAT = """
    exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh
    asinh acosh atanh erf erfc erfinv sigmoid reciprocal digamma lgamma logit sinc i0
"""
_UNARY_BOOL = """
    logical_not isnan signbit isposinf isneginf
"""
_BINARY = """
    add.Tensor add.Scalar mul.Tensor mul.Scalar minimum maximum fmin fmax
    bitwise_and.Tensor bitwise_and.Scalar bitwise_or.Tensor bitwise_or.Scalar bitwise_xor.Tensor
    bitwise_xor.Scalar clamp_min.Tensor clamp_max.Tensor
"""
_BINARY_NOT_BOOL = """
    sub.Tensor sub.Scalar rsub.Tensor rsub.Scalar remainder.Tensor remainder.Scalar fmod.Tensor
    fmod.Scalar pow.Tensor_Tensor
"""
_BINARY_FLOAT = """
    div.Tensor div.Scalar atan2 xlogy.Tensor xlogy.Scalar_Other copysign.Tensor
"""
_BINARY_ONLY_FLOAT = """
    hypot logaddexp logaddexp2 nextafter
"""
_BINARY_BOOL = """
    eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor eq.Scalar ne.Scalar lt.Scalar
    le.Scalar gt.Scalar ge.Scalar logical_and logical_or logical_xor
"""


def _register() -> None:
    def unary(kind: int) -> LayoutRule:
        return lambda x, *args, **kwargs: pointwise_layout(kind, (x,))

    def binary(kind: int) -> LayoutRule:
        # a third argument is ``alpha``, a factor that leaves the layout alone
        return lambda a, b, *factor, **kwargs: pointwise_layout(kind, (a, b))

    def settings(x: torch.Tensor, *args: Any, **kwargs: Any) -> Layout:
        widens = (float, torch.SymFloat, torch.Tensor)
        if any(isinstance(a, widens) for a in (*args, *kwargs.values())):
            return pointwise_layout(_ONLY_FLOAT, (x,))
        return pointwise_layout(_NOT_BOOL, (x,))

    rule(_UNARY_SAME)(settings)
    rule(_UNARY_ONLY_FLOAT)(unary(_ONLY_FLOAT))
    rule(_UNARY_FLOAT)(unary(_TO_FLOAT))
    rule(_UNARY_BOOL)(unary(_TO_BOOL))
    rule(_BINARY)(binary(_DEFAULT))
    rule(_BINARY_NOT_BOOL)(binary(_NOT_BOOL))
    rule(_BINARY_FLOAT)(binary(_TO_FLOAT))
    rule(_BINARY_ONLY_FLOAT)(binary(_ONLY_FLOAT))
    rule(_BINARY_BOOL)(binary(_TO_BOOL))


_register()


rule("bitwise_not")(lambda x: pointwise_layout(_DEFAULT, (x,)) if x.dtype in INTEGRAL else None)
rule("isin.Tensor_Tensor isin.Tensor_Scalar")(
    lambda x, *_, **__: contiguous(x.shape, x, torch.bool)
)
rule("isinf")(lambda x: pointwise_layout(_TO_BOOL, (x,)) if x.dtype not in INTEGRAL else None)


@rule("hardtanh")
def _hardtanh(x: torch.Tensor, min_val: Any = -1, max_val: Any = 1) -> Layout | None:
    return pointwise_layout(_ONLY_FLOAT, (x,)) if is_row_major(x) else None


@rule("pow.Tensor_Scalar")
def _pow(x: torch.Tensor, exponent: Any) -> Layout:
    layout = pointwise_layout(_DEFAULT, (x,))  # the number is no operand of the kernel
    return (*layout[:2], result_dtype((x, exponent)), *layout[3:])


@rule("pow.Scalar")
def _pow_of_number(base: Any, x: torch.Tensor) -> Layout | None:
    return pointwise_layout(_DEFAULT, (base, x)) if is_row_major(x) else None


@rule("div.Tensor_mode", "div.Scalar_mode")
def _div(a: torch.Tensor, b: Any, *, rounding_mode: str | None) -> Layout:
    if rounding_mode == "floor":
        return _floor_divide(a, b, _DEFAULT)
    return pointwise_layout(_TO_FLOAT if rounding_mode is None else _DEFAULT, (a, b))


@rule("floor_divide")
def _floor_divide(a: torch.Tensor, b: Any, kind: int = _NOT_BOOL) -> Layout:
    try:
        return pointwise_layout(kind, (a, b))
    except Unsure:  # torch composes it of operators that meet the operands in other orders
        unsure_if(not isinstance(b, torch.Tensor) or torch.bool in (a.dtype, b.dtype))
        unsure_if(is_static(a.shape, b.shape))
        like = torch.sub(a, b)
    return like.shape, like.stride(), like.dtype, like.device, 0


@rule("hardtanh_backward hardsigmoid_backward hardswish_backward softplus_backward logit_backward")
def _activation_backward(grad: torch.Tensor, x: torch.Tensor, *_: Any, **__: Any) -> Layout:
    return pointwise_layout(_ONLY_FLOAT, (grad, x))  # in the order of eager's iterator


rule("elu_backward")(lambda grad, *rest: _activation_backward(grad, rest[-1]))


@rule("where.self where.ScalarSelf where.ScalarOther")
def _where(condition: torch.Tensor, a: Any, b: Any) -> Layout:
    tensors = [x for x in (condition, a, b) if isinstance(x, torch.Tensor)]
    device, dtype = result_device(tensors), result_dtype((a, b))
    size = broadcast_all(tensors)
    unsure_if(condition.dtype is not torch.bool)
    unsure_if(any(t.dim() and t.dtype != dtype for t in tensors[1:]))
    return size, pointwise_stride(tensors, size, len(tensors) < 3), dtype, device, 0


rule("addcmul", "addcdiv")(lambda x, a, b, **factor: pointwise_layout(_ONLY_FLOAT, (x, a, b)))


@rule("lerp.Scalar", "lerp.Tensor")
def _lerp(a: torch.Tensor, b: torch.Tensor, weight: Any) -> Layout:
    tensors = (a, b, weight) if isinstance(weight, torch.Tensor) else (a, b)
    unsure_if(any(t.dtype != a.dtype for t in tensors))
    return pointwise_layout(_ONLY_FLOAT, tensors)


@rule("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(x: torch.Tensor, mask: torch.Tensor, value: Any) -> Layout | None:
    if isinstance(value, torch.Tensor):
        unsure_if(value.dim() or value.dtype != x.dtype)
    else:
        unsure_if(type(value) not in (bool, int) and not x.dtype.is_floating_point)
    unsure_if(mask.dtype is not torch.bool or x.device != mask.device)
    unsure_if(not is_static(x.shape) and not (is_contiguous(x) and is_contiguous(mask)))
    size = broadcast(tuple(x.shape), tuple(mask.shape))
    return contiguous(size, x) if same_sizes(size, x.shape) else None


@rule("native_dropout")
def _native_dropout(x: torch.Tensor, p: float, train: bool | None) -> Layouts:
    unsure_if(not x.dtype.is_floating_point or not is_row_major(x) or train is False)
    unsure_if(holds(x.shape, 0))
    return [contiguous(x.shape, x), contiguous(x.shape, x, torch.bool)]


@rule("log_sigmoid_forward")
def _log_sigmoid(x: torch.Tensor) -> Layouts:
    unsure_if(not fits(x) or not (x.device.type == "cpu" or is_row_major(x)))
    return [contiguous(x.shape, x), contiguous(x.shape if x.device.type == "cpu" else (0,), x)]


@rule("_prelu_kernel")
def _prelu(x: torch.Tensor, weight: torch.Tensor) -> Layout | None:
    unsure_if(not fits(x, weight) or not is_row_major(x))
    return contiguous(x.shape, x) if same_sizes(broadcast_all((x, weight)), x.shape) else None


@rule("glu")
def _glu(x: torch.Tensor, dim: int = -1) -> Layout:
    axis = axis_of(dim, x.dim())
    unsure_if(not fits(x) or not is_row_major(x) or not x.dim() or x.shape[axis] % 2 != 0)
    size = list(x.shape)
    size[axis] //= 2
    return contiguous(size, x)
