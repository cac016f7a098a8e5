"""One scalar operation of the loop IR as a Triton expression."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import assert_never

import torch

from torchsmith_fx_backend._src.loops.ir import INFIX, Literal, Op, ReduceOp

TYPES: dict[torch.dtype, str] = {
    torch.bool: "tl.int1",
    torch.uint8: "tl.uint8",
    torch.int8: "tl.int8",
    torch.int16: "tl.int16",
    torch.int32: "tl.int32",
    torch.int64: "tl.int64",
    torch.float16: "tl.float16",
    torch.bfloat16: "tl.bfloat16",
    torch.float32: "tl.float32",
    torch.float64: "tl.float64",
}

SIGNATURES: dict[torch.dtype, str] = {
    torch.bool: "i1",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
}

_BITS = {torch.uint8: 8, torch.int8: 8, torch.int16: 16, torch.int32: 32, torch.int64: 64}

_INFIX: dict[Op, str] = {
    op: sign for op, sign in INFIX.items() if op is not Op.DIV
}  # which rounds here

_FUNCTIONS = {
    Op.EXP: "ts.exp",
    Op.EXP2: "ts.exp2",
    Op.EXPM1: "ts.expm1",
    Op.LOG: "ts.log",
    Op.LOG2: "ts.log2",
    Op.LOG1P: "ts.log1p",
    Op.SQRT: "ts.square_root",
    Op.RSQRT: "ts.rsqrt",
    Op.SIN: "ts.sin",
    Op.COS: "ts.cos",
    Op.TANH: "ts.tanh",
    Op.ERF: "ts.erf",
    Op.SIGMOID: "ts.sigmoid",
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


def scalar_text(node: Literal) -> str:
    """A typed zero-dimensional constant."""
    return typed_constant(node.value, node.dtype)


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
    low = target in (torch.float16, torch.bfloat16)
    if low and source not in (torch.float32, torch.float16, torch.bfloat16):
        return f"{value}.to(tl.float32).to({TYPES[target]})"
    if low and source in (torch.float16, torch.bfloat16):
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
    match op:
        case Op.DIV:
            return f"ts.divide({args[0]}, {args[1]})"
        case Op.FLOORDIV:
            return f"ts.floor_divide_{'float' if floating else 'int'}({args[0]}, {args[1]})"
        case Op.TRUNCDIV:
            if floating:
                return f"ts.trunc(ts.divide({args[0]}, {args[1]}))"
            return f"{args[0]} // {args[1]}"
        case Op.MOD:
            return f"ts.modulo_{'float' if floating else 'int'}({args[0]}, {args[1]})"
        case Op.FMOD:
            if floating:
                return f"ts.fmod({args[0]}, {args[1]})"
            return f"{args[0]} % {args[1]}"
        case Op.NEG:
            return f"-{args[0]}"
        case Op.ABS:
            return f"tl.abs({args[0]})"
        case Op.MINIMUM:
            return f"ts.minimum({args[0]}, {args[1]})"
        case Op.MAXIMUM:
            return f"ts.maximum({args[0]}, {args[1]})"
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
            return f"ts.shift_left({args[0]}, {args[1]}, {_BITS[source]})"
        case Op.SHR:
            return f"ts.shift_right({args[0]}, {args[1]}, {_BITS[source]})"
        case Op.WHERE:
            return f"tl.where({args[0]}, {args[1]}, {args[2]})"
        case Op.CAST:
            return cast_text(args[0], source, target)
        case _:
            raise TypeError(f"no Triton text for {op}")


_REDUCERS = {
    ReduceOp.SUM: "ts.reduce_sum",
    ReduceOp.PROD: "ts.reduce_prod",
    ReduceOp.MAX: "ts.reduce_max",
    ReduceOp.MIN: "ts.reduce_min",
    ReduceOp.ANY: "ts.reduce_any",
    ReduceOp.ALL: "ts.reduce_all",
}


def reduce_text(op: ReduceOp, value: str) -> str:
    """Reduction of a two-dimensional block over axis 1 (not for the arg reductions)."""
    return f"{_REDUCERS[op]}({value})"


def accumulate_text(op: ReduceOp, running: str, value: str) -> str:
    """One step of a lane-wise accumulation (not for the arg reductions)."""
    match op:
        case ReduceOp.SUM:
            return f"{running} + {value}"
        case ReduceOp.PROD:
            return f"{running} * {value}"
        case ReduceOp.MAX:
            return f"ts.maximum({running}, {value})"
        case ReduceOp.MIN:
            return f"ts.minimum({running}, {value})"
        case ReduceOp.ANY:
            return f"{running} | {value}"
        case ReduceOp.ALL:
            return f"{running} & {value}"
        case ReduceOp.ARGMAX | ReduceOp.ARGMIN:
            raise TypeError("arg reductions accumulate a pair; see kernel.py")
        case _:
            assert_never(op)


def identity(op: ReduceOp, dtype: torch.dtype) -> float | int | bool:
    """The value that leaves a reduction of ``dtype`` unchanged."""
    match op:
        case ReduceOp.SUM:
            return 0.0 if dtype.is_floating_point else 0
        case ReduceOp.PROD:
            return 1.0 if dtype.is_floating_point else 1
        case ReduceOp.MAX | ReduceOp.ARGMAX:
            if dtype is torch.bool:
                return False
            return -math.inf if dtype.is_floating_point else int(torch.iinfo(dtype).min)
        case ReduceOp.MIN | ReduceOp.ARGMIN:
            if dtype is torch.bool:
                return True
            return math.inf if dtype.is_floating_point else int(torch.iinfo(dtype).max)
        case ReduceOp.ANY:
            return False
        case ReduceOp.ALL:
            return True
        case _:
            assert_never(op)
