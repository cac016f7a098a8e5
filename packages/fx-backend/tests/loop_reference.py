"""Reference evaluator of the loop IR: slow, vectorised over the whole iteration space with torch.

The meaning of a kernel, for tests of the printers. Index
expressions are evaluated in the form that is printed for machines that truncate, and a numerator
that is negative against its proof raises, as does an access outside of a tensor.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torchsmith_fx_backend._src.loops.accesses import IllegalKernelError
from torchsmith_fx_backend._src.loops.index import Add, FloorDiv, Index, Loaded, Mod, Mul
from torchsmith_fx_backend._src.loops.index import evaluate as index_value
from torchsmith_fx_backend._src.loops.ir import (
    LIBRARY,
    Compute,
    Fault,
    IndexValue,
    Kernel,
    Literal,
    Load,
    Op,
    Position,
    Reduce,
    ReduceOp,
    ScalarArg,
    Scan,
    ScanOp,
    Store,
    StoreMode,
)
from torchsmith_fx_backend._src.loops.proof import settled
from torchsmith_fx_backend._src.loops.verify import verify

__all__ = ["IllegalKernelError", "evaluate", "verify"]

_COMPUTE: dict[Op, Callable[..., torch.Tensor]] = {
    Op.ADD: torch.add,
    Op.SUB: torch.sub,
    Op.MUL: torch.mul,
    Op.DIV: torch.true_divide,
    Op.FLOORDIV: lambda a, b: torch.div(a, b, rounding_mode="floor"),
    Op.TRUNCDIV: lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    Op.MOD: torch.remainder,
    Op.FMOD: torch.fmod,
    Op.NEG: torch.neg,
    Op.ABS: torch.abs,
    Op.MINIMUM: torch.minimum,
    Op.MAXIMUM: torch.maximum,
    Op.POW: torch.pow,
    Op.FMA: lambda a, b, c: a * b + c,
    Op.EXP: torch.exp,
    Op.EXP2: torch.exp2,
    Op.EXPM1: torch.expm1,
    Op.LOG: torch.log,
    Op.LOG2: torch.log2,
    Op.LOG1P: torch.log1p,
    Op.SQRT: torch.sqrt,
    Op.RSQRT: torch.rsqrt,
    Op.SIN: torch.sin,
    Op.COS: torch.cos,
    Op.TANH: torch.tanh,
    Op.ERF: torch.erf,
    **{op: getattr(torch, op.value) for op in (*LIBRARY, Op.ATAN2)},
    Op.SIGMOID: torch.sigmoid,
    Op.RECIPROCAL: torch.reciprocal,
    Op.FLOOR: torch.floor,
    Op.CEIL: torch.ceil,
    Op.TRUNC: torch.trunc,
    Op.ROUND: torch.round,
    Op.ISNAN: torch.isnan,
    Op.ISINF: torch.isinf,
    Op.AND: torch.bitwise_and,
    Op.OR: torch.bitwise_or,
    Op.XOR: torch.bitwise_xor,
    Op.NOT: torch.bitwise_not,
    Op.SHL: torch.bitwise_left_shift,
    Op.SHR: torch.bitwise_right_shift,
    Op.EQ: torch.eq,
    Op.NE: torch.ne,
    Op.LT: torch.lt,
    Op.LE: torch.le,
    Op.GT: torch.gt,
    Op.GE: torch.ge,
    Op.WHERE: torch.where,
}


def _reduce(op: ReduceOp, x: torch.Tensor, dims: list[int], dtype: torch.dtype) -> torch.Tensor:
    # Reduction axes are trailing; one flat axis makes every op, argmax included, uniform.
    shape = x.shape
    flat = x.reshape(*shape[: dims[0]], -1)
    match op:
        case ReduceOp.SUM:
            y = flat.sum(-1, dtype=dtype)
        case ReduceOp.PROD:
            y = flat.prod(-1, dtype=dtype)
        case ReduceOp.MAX:
            y = flat.amax(-1)
        case ReduceOp.MIN:
            y = flat.amin(-1)
        case ReduceOp.ANY:
            y = flat.any(-1)
        case ReduceOp.ALL:
            y = flat.all(-1)
        case ReduceOp.ARGMAX:
            y = _ordered(flat).argmax(-1)
        case ReduceOp.ARGMIN:
            y = _ordered(flat).argmin(-1)
    return y.reshape(*shape[: dims[0]], *(1 for _ in dims))


def _ordered(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.uint8) if x.dtype is torch.bool else x  # argmax takes no bool


def evaluate(
    kernel: Kernel,
    tensors: Sequence[torch.Tensor],
    symbols: Mapping[str, int | float | bool] | None = None,
) -> None:
    """Run ``kernel`` on ``tensors``; stores write into them.

    Args:
        kernel: a legal kernel (see ``verify``).
        tensors: one per ``kernel.args``, in order; index 0 is the tensor's first element, whatever
            its strides (as a raw data pointer would have it).
        symbols: values of ``kernel.symbols`` by name.
    """
    values: Mapping[str, int | float | bool] = symbols or {}
    sizes = {name: int(v) for name, v in values.items() if not isinstance(v, float)}
    shape = [int(index_value(size, (), sizes)) for size in kernel.ranges]
    if 0 in shape[: kernel.reduce_from]:
        return
    rank = len(shape)
    device = tensors[0].device if tensors else torch.device("cpu")
    grid = [
        torch.arange(n, device=device).reshape([n if i == axis else 1 for i in range(rank)])
        for axis, n in enumerate(shape)
    ]
    flats = [t.as_strided((_reach(t),), (1,)) for t in tensors]
    reduce_dims = list(range(kernel.reduce_from, rank))

    def offsets(index: Index) -> torch.Tensor:
        value = _machine_value(settled(index, kernel.ranges), grid, sizes, get)
        if isinstance(value, torch.Tensor):
            return value
        return torch.full([1] * rank, value, dtype=torch.int64, device=device)

    def inside(where: torch.Tensor, arg: int) -> torch.Tensor:
        if where.numel() and not 0 <= int(where.min()) <= int(where.max()) < len(flats[arg]):
            node = kernel.body[len(done)]
            raise IllegalKernelError(f"%{len(done)} leaves argument {arg}: {node}")
        return where

    done: list[torch.Tensor | None] = []

    def get(position: int) -> torch.Tensor:
        value = done[position]
        if value is None:
            raise IllegalKernelError(f"%{position} has no value")
        return value

    for node in kernel.body:
        result: torch.Tensor | None = None
        match node:
            case Literal(number, dtype):
                result = torch.full([1] * rank, number, dtype=dtype, device=device)
            case IndexValue(index):
                result = offsets(index)
            case ScalarArg(name, dtype):
                result = torch.full([1] * rank, values[name], dtype=dtype, device=device)
            case Load(arg, index, _, None):
                result = flats[arg][inside(offsets(index), arg)]
            case Load(arg, index, dtype, int(mask)):
                keep, where = _together(get(mask), offsets(index))
                inside(where[keep], arg)
                zero = torch.zeros((), dtype=dtype, device=device)
                if flats[arg].numel():
                    loaded = flats[arg][torch.where(keep, where, 0)]
                    result = torch.where(keep, loaded, zero)
                else:
                    result = zero.expand(keep.shape)
            case Position(value, extent, fault, wrap, mask):
                limit = int(index_value(extent, (), sizes))
                counts = None if mask is None else get(mask)
                result = _position(get(value), limit, fault, wrap, counts)
            case Compute(Op.CAST, (value,), dtype):
                result = get(value).to(dtype)
            case Compute(op, args, dtype):
                result = _COMPUTE[op](*(get(a) for a in args)).to(dtype)
            case Reduce(op, value, dtype):
                x = get(value)
                want = [max(a, b) for a, b in zip(x.shape, _reduced(shape, x, reduce_dims))]
                result = _reduce(op, x.expand(want), reduce_dims, dtype)
            case Scan(op, value):
                x = get(value)
                result = _scan(op, x.expand(shape), reduce_dims)
            case Store(arg, index, value, mode):
                where, x = _together(offsets(index), get(value))
                if mode is not StoreMode.SET:
                    where, x = where.expand(shape), x.expand(shape)
                if where.numel():
                    inside(where, arg)
                    _store(flats[arg], where.reshape(-1), x.reshape(-1), mode)
        done.append(result)


_SCANS: dict[ScanOp, Callable[[torch.Tensor], torch.Tensor]] = {
    ScanOp.SUM: lambda x: x.cumsum(-1, dtype=x.dtype),
    ScanOp.PROD: lambda x: x.cumprod(-1, dtype=x.dtype),
    ScanOp.MAX: lambda x: x.cummax(-1)[0],
    ScanOp.MIN: lambda x: x.cummin(-1)[0],
    ScanOp.ARGMAX: lambda x: x.cummax(-1)[1],
    ScanOp.ARGMIN: lambda x: x.cummin(-1)[1],
    ScanOp.LOGSUMEXP: lambda x: x.logcumsumexp(-1),
}


def _scan(op: ScanOp, x: torch.Tensor, dims: list[int]) -> torch.Tensor:
    return _SCANS[op](x.reshape(*x.shape[: dims[0]], -1)).reshape(x.shape)


_MEETING = {StoreMode.MUL: "prod", StoreMode.MAX: "amax", StoreMode.MIN: "amin"}


def _store(flat: torch.Tensor, where: torch.Tensor, x: torch.Tensor, mode: StoreMode) -> None:
    if mode in _MEETING:
        flat.scatter_reduce_(0, where, x, _MEETING[mode])
    else:
        flat.index_put_((where,), x, accumulate=mode in (StoreMode.ADD, StoreMode.SUM))


FAULTS: dict[str, type[Exception]] = {"IndexError": IndexError, "RuntimeError": RuntimeError}


def _position(
    x: torch.Tensor, size: int, fault: Fault | None, wrap: bool, keep: torch.Tensor | None
) -> torch.Tensor:
    given = x
    if wrap:
        x = torch.where(x < 0, x + size, x)
    if fault is None:
        x = x.clamp(0, size - 1)
    if keep is not None:
        x = torch.where(keep, x, 0)
        given = given.expand(x.shape)
    outside = (x < 0) | (x >= size)
    if bool(outside.any()):
        assert fault is not None
        text = fault.message.format(index=int(given[outside][0]), size=size)
        raise FAULTS[fault.error](text)
    return x


def _machine_value(
    x: Index,
    grid: Sequence[torch.Tensor],
    sizes: Mapping[str, int],
    position: Callable[[int], torch.Tensor],
) -> Any:
    """``x`` from ``settled``, as a machine computes it whose division truncates."""
    match x:
        case Loaded(value):
            return position(value)
        case Add(parts) | Mul(parts):
            values = [_machine_value(part, grid, sizes, position) for part in parts]
            return functools.reduce(operator.add if type(x) is Add else operator.mul, values)
        case FloorDiv(num, den, floored) | Mod(num, den, floored):
            a, b = (_machine_value(part, grid, sizes, position) for part in (num, den))
            if not floored and torch.as_tensor(a).numel() and int(torch.as_tensor(a).min()) < 0:
                raise IllegalKernelError(f"{num} is negative against its proof")
            return a // b if type(x) is FloorDiv else a % b
    return index_value(x, grid, sizes)


def _reach(t: torch.Tensor) -> int:
    """How many elements lie between the first and the last of ``t``, both included."""
    if t.numel() == 0:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(t.shape, t.stride()))


def _together(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    shape = [m if n == 1 else n for m, n in zip(a.shape, b.shape)]
    return a.expand(shape), b.expand(shape)


def _reduced(shape: list[int], x: torch.Tensor, dims: list[int]) -> list[int]:
    return [shape[i] if i in dims else x.shape[i] for i in range(len(shape))]
