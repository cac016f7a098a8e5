"""One scalar operation of the loop IR as a Triton expression."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from torchsmith_fx_backend._src.loops.ir import INFIX, Op, ReduceOp

_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)
_FLOATS = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
}
TYPES: dict[torch.dtype, str] = {
    torch.bool: "tl.int1",
    **{t: f"tl.{str(t).removeprefix('torch.')}" for t in (torch.uint8, *_INTEGERS, *_FLOATS)},
}
SIGNATURES: dict[torch.dtype, str] = {
    torch.bool: "i1",
    torch.uint8: "u8",
    **{t: f"i{8 * t.itemsize}" for t in _INTEGERS},
    **_FLOATS,
}

# But for division, which rounds here.
_INFIX: dict[Op, str] = {op: sign for op, sign in INFIX.items() if op is not Op.DIV}

_FUNCTIONS = {
    **{op: f"ts.{op.value}" for op in (Op.EXP, Op.EXP2, Op.EXPM1, Op.LOG, Op.LOG2, Op.LOG1P)},
    **{op: f"ts.{op.value}" for op in (Op.RSQRT, Op.SIN, Op.COS, Op.TANH, Op.ERF, Op.SIGMOID)},
    Op.SQRT: "ts.square_root",
}
_ROUNDINGS = {
    Op.FLOOR: "tl.floor",
    Op.CEIL: "tl.ceil",
    Op.TRUNC: "ts.trunc",
    Op.ROUND: "ts.nearbyint",
}

INLINE = frozenset(_INFIX)  # operations whose Python literal operand takes the other's dtype


def literal_text(value: float | int | bool) -> str:
    """A Python literal, spelled so that Triton's compiler accepts it."""
    if isinstance(value, bool | int):
        return repr(value)
    if math.isnan(value):
        return 'float("nan")'
    if math.isinf(value):
        return 'float("inf")' if value > 0 else 'float("-inf")'
    return repr(value)


def typed_constant(value: float | int | bool, dtype: torch.dtype) -> str:
    """``tl.full([], value, dtype)``."""
    if dtype.is_floating_point:
        value = float(value)
    elif dtype is not torch.bool:
        value = int(value)
    return f"tl.full([], {literal_text(value)}, {TYPES[dtype]})"


def cast_text(value: str, source: torch.dtype, target: torch.dtype) -> str:
    """``Tensor.to``: truncating, through the intermediate types that aten goes through."""
    if source == target:
        return value
    if target is torch.bool:
        return f"({value} != 0)"
    if source.is_floating_point and not target.is_floating_point:
        # aten converts to a wide integer first, so small types wrap instead of saturating.
        wide = "tl.int64" if target in (torch.uint8, torch.int64) else "tl.int32"
        through = f"{value}.to({wide})"
        return through if TYPES[target] == wide else f"{through}.to({TYPES[target]})"
    if target in (torch.float16, torch.bfloat16) and source is not torch.float32:
        return f"{value}.to(tl.float32).to({TYPES[target]})"
    return f"{value}.to({TYPES[target]})"


def compute_text(op: Op, args: Sequence[str], source: torch.dtype, target: torch.dtype) -> str:
    """The expression for ``op``.

    Args:
        op: the operation.
        args: operand texts: names, or bare literals for operations in ``INLINE``.
        source: dtype of the first operand (of the second for ``WHERE``).
        target: dtype of the result.

    Returns:
        Triton source text of the value.
    """
    if (sign := _INFIX.get(op)) is not None:
        return f"{args[0]} {sign} {args[1]}"
    if (function := _FUNCTIONS.get(op)) is not None:
        return f"{function}({args[0]})"
    floating = source.is_floating_point
    kind = "float" if floating else "int"
    match op:
        case Op.DIV:
            return f"ts.divide({args[0]}, {args[1]})"
        case Op.FLOORDIV:
            return f"ts.floor_divide_{kind}({args[0]}, {args[1]})"
        case Op.TRUNCDIV:
            if floating:
                return f"ts.trunc(ts.divide({args[0]}, {args[1]}))"
            return f"{args[0]} // {args[1]}"
        case Op.MOD:
            return f"ts.modulo_{kind}({args[0]}, {args[1]})"
        case Op.FMOD:
            if floating:
                return f"ts.fmod({args[0]}, {args[1]})"
            return f"{args[0]} % {args[1]}"
        case Op.NEG:
            return f"-{args[0]}"
        case Op.ABS:
            return f"tl.abs({args[0]})"
        case Op.MINIMUM | Op.MAXIMUM:
            return f"ts.{op.value}({args[0]}, {args[1]})"
        case Op.POW:
            if floating:
                return f"ts.power({args[0]}, {args[1]})"
            return f"ts.power_int({args[0]}, {args[1]})"
        case Op.FMA:
            return f"{args[0]} * {args[1]} + {args[2]}"
        case Op.RECIPROCAL:
            return f"ts.divide({typed_constant(1.0, target)}, {args[0]})"
        case Op.FLOOR | Op.CEIL | Op.TRUNC | Op.ROUND:
            return f"{_ROUNDINGS[op]}({args[0]})" if floating else args[0]
        case Op.ISNAN:
            return f"{args[0]} != {args[0]}"
        case Op.ISINF:
            return f'tl.abs({args[0]}) == float("inf")'
        case Op.NOT:
            if source is torch.bool:
                return f"{args[0]} == 0"
            return f"{args[0]} ^ 255" if source is torch.uint8 else f"~{args[0]}"
        case Op.SHL:
            return f"ts.shift_left({args[0]}, {args[1]}, {8 * source.itemsize})"
        case Op.SHR:
            return f"ts.shift_right({args[0]}, {args[1]}, {8 * source.itemsize})"
        case Op.WHERE:
            return f"tl.where({args[0]}, {args[1]}, {args[2]})"
        case Op.CAST:
            return cast_text(args[0], source, target)
        case _:
            raise TypeError(f"no Triton text for {op}")


def reduce_text(op: ReduceOp, value: str) -> str:
    """Reduction of a two-dimensional block over axis 1 (not for the arg reductions)."""
    return f"ts.reduce_{op.value}({value})"


_ACCUMULATE = {
    ReduceOp.SUM: "{} + {}",
    ReduceOp.PROD: "{} * {}",
    ReduceOp.ANY: "{} | {}",
    ReduceOp.ALL: "{} & {}",
    ReduceOp.MAX: "ts.maximum({}, {})",
    ReduceOp.MIN: "ts.minimum({}, {})",
}


def accumulate_text(op: ReduceOp, running: str, value: str) -> str:
    """One step of a lane-wise accumulation (not for the arg reductions)."""
    return _ACCUMULATE[op].format(running, value)
