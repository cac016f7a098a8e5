"""One SSA node to one C expression: dtypes, literals, loads, stores and the scalar operations.

A value of dtype bfloat16 or float16 is held as its 16 bits (``uint16_t``) and a bool as ``_Bool``;
all other dtypes map to the C type of the same width. Arithmetic on 16-bit floats, should it occur,
is done in float32 and rounded after each operation.
"""

from __future__ import annotations

import math
import re
import struct

import torch

from torchsmith_fx_backend._src.loops.ir import (
    INFIX,
    Compute,
    Kernel,
    Literal,
    Node,
    Op,
    Reduce,
    ReduceOp,
)
from torchsmith_fx_backend._src.loops.verify import COMPARISONS, uses

HALF = {torch.bfloat16: "bf16", torch.float16: "f16"}
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_TYPES: dict[torch.dtype, str] = {
    torch.float32: "float",
    torch.float64: "double",
    torch.bool: "_Bool",
    **dict.fromkeys(HALF, "uint16_t"),
    **{dtype: f"{str(dtype).removeprefix('torch.')}_t" for dtype in _INTEGERS},
}

_PLAIN_SYMBOL = re.compile(r"[su]\d+")


def value_type(dtype: torch.dtype) -> str:
    """The C type that holds an SSA value of ``dtype``."""
    return _TYPES[dtype]


def cell_type(dtype: torch.dtype) -> str:
    """The C type of an element in memory."""
    return "uint8_t" if dtype is torch.bool else _TYPES[dtype]


def symbol_name(name: str) -> str:
    """The C parameter of size symbol or scalar ``name``; never one of the emitter's own names."""
    return name if _PLAIN_SYMBOL.fullmatch(name) else f"sym_{name}"


def literal(value: float | int | bool, dtype: torch.dtype) -> str:
    """``value`` as a C constant of ``dtype``."""
    if dtype is torch.bool:
        return "1" if value else "0"
    if dtype in HALF:
        bits = torch.tensor(value, dtype=dtype).view(torch.int16).item()
        return f"{int(bits) & 0xFFFF:#06x}"
    if dtype is torch.float32:
        return _float32(float(value))
    if dtype is torch.float64:
        number = float(value)
        if math.isnan(number):
            return '__builtin_nan("")'
        if math.isinf(number):
            return "__builtin_inf()" if number > 0 else "-__builtin_inf()"
        return repr(number)
    number = int(value)
    if number == -(2**63):
        return "INT64_MIN"
    return f"INT64_C({number})" if dtype is torch.int64 and abs(number) >= 2**31 else str(number)


def _float32(value: float) -> str:
    if math.isnan(value):
        return '__builtin_nanf("")'
    try:
        rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        rounded = math.copysign(math.inf, value)
    if math.isinf(rounded):
        return "__builtin_inff()" if rounded > 0 else "-__builtin_inff()"
    text = f"{rounded:.9g}"
    for digits in range(1, 9):
        short = f"{rounded:.{digits}g}"
        if struct.unpack("f", struct.pack("f", float(short)))[0] == rounded:
            text = short
            break
    return text + ("f" if any(c in text for c in ".en") else ".0f")


def from_cell(text: str, dtype: torch.dtype) -> str:
    """The value that a memory cell holds."""
    return f"{text} != 0" if dtype is torch.bool else text


# libm functions, but those that are ours: in both precisions, or in single precision only
_OWN_DOUBLE = frozenset(
    {
        *(Op.EXP, Op.EXP2, Op.EXPM1, Op.LOG, Op.LOG2, Op.LOG1P),
        *(Op.SIN, Op.COS, Op.TANH, Op.ERF, Op.SIGMOID),
    }
)
_OWN = {op: f"ts_{op.value}" for op in (*_OWN_DOUBLE, Op.POW)} | {Op.FMOD: "ts_fmod_f32"}
_LIBM = {
    **{op: op.value for op in (Op.SQRT, Op.FLOOR, Op.CEIL, Op.TRUNC, Op.FMOD, Op.POW)},
    Op.ROUND: "rint",
    Op.ABS: "fabs",
}
_OF_FLOATS: dict[Op, str] = {
    Op.MINIMUM: "ts_minimum_{width}({0}, {1})",
    Op.MAXIMUM: "ts_maximum_{width}({0}, {1})",
    Op.FMA: "{fma}({0}, {1}, {2})",
    Op.RSQRT: "{one} / __builtin_sqrt{f}({0})",
    Op.RECIPROCAL: "{one} / {0}",
    Op.TRUNCDIV: "__builtin_trunc{f}({0} / {1})",
    Op.FLOORDIV: "ts_floordiv_{width}({0}, {1})",
    Op.MOD: "ts_rem_{width}({0}, {1})",
    Op.ISNAN: "{0} != {0}",
    Op.ISINF: "__builtin_fabs{f}({0}) == __builtin_inf{f}()",
}
_SINGLE = {"width": "f32", "f": "f", "one": "1.0f", "fma": "TS_FMA"}
_DOUBLE = {"width": "f64", "f": "", "one": "1.0", "fma": "TS_FMAD"}
_OF_INTEGERS: dict[Op, str] = {
    Op.TRUNCDIV: "({ctype})ts_truncdiv({0}, {1})",
    Op.FMOD: "({ctype})ts_fmod({0}, {1})",
    Op.FLOORDIV: "({ctype})ts_floordiv({0}, {1})",
    Op.MOD: "({ctype})ts_rem({0}, {1})",
    Op.POW: "({ctype})ts_ipow({0}, {1})",
    Op.MINIMUM: "{0} < {1} ? {0} : {1}",
    Op.MAXIMUM: "{0} > {1} ? {0} : {1}",
    Op.SHL: "(uint64_t){1} < {bits} ? ({ctype})((uint64_t){0} << ({1} & 63)) : 0",
    Op.SHR: "({ctype})({0} >> ((uint64_t){1} < {bits} ? {1} : {most}))",
    **dict.fromkeys((Op.ISNAN, Op.ISINF), "0"),
    **dict.fromkeys((Op.FLOOR, Op.CEIL, Op.TRUNC, Op.ROUND), "{0}"),
}

# Operations with a cheaper form, and the test of operands that rules it out.
NEAR = {
    (op, dtype): (f"ts_{op.value}_near{suffix}", f"ts_far_{kind}{suffix}")
    for ops, kind in (((Op.SIN, Op.COS), "turn"), ((Op.FMOD, Op.MOD, Op.FLOORDIV), "quotient"))
    for op in ops
    for dtype, suffix in ((torch.float32, ""), (torch.float64, "_f64"))
}

# Rough time per element in units of one add; what a schedule weighs recomputation with.
_BY_COST: dict[int, tuple[Op, ...]] = {
    4: (Op.DIV, Op.RECIPROCAL),
    5: (Op.SQRT,),
    8: (Op.RSQRT,),
    10: (Op.EXP2,),
    12: (Op.EXP,),
    14: (Op.EXPM1, Op.LOG, Op.LOG2),
    16: (Op.SIGMOID,),
    20: (Op.LOG1P, Op.TANH, Op.TRUNCDIV),
    24: (Op.ERF, Op.SIN, Op.COS),
    30: (Op.FLOORDIV, Op.MOD, Op.FMOD),
    50: (Op.POW,),
}
COST = {op: cost for cost, ops in _BY_COST.items() for op in ops}


# gcc makes ``truncf`` of a conversion to integers and back, which keeps -0.0, NaN and what is out
# of range. It cannot where an operation that it knows nothing about is between the two.
UNKNOWN_ZERO = "unknown_zero"
_TRUNCATED = (torch.int32, torch.int64)


def _was_floating(node: Compute, kernel: Kernel) -> bool:
    before = kernel.body[node.args[0]]
    if not isinstance(before, Compute) or before.op is not Op.CAST:
        return False
    return dtype_of(kernel, before.args[0]).is_floating_point


def _is_below_peak(node: Node, kernel: Kernel) -> bool:
    """Whether a value is the exponential of how far another one is below the largest of its row."""
    body = kernel.body
    x = body[node.args[0]] if isinstance(node, Compute) and node.op is Op.EXP else None
    if not isinstance(x, Compute) or x.op is not Op.SUB or x.dtype is not torch.float32:
        return False
    return body[x.args[1]] == Reduce(ReduceOp.MAX, x.args[0], x.dtype)


def _meets_one(node: Compute, kernel: Kernel) -> bool:
    """Whether a value is only ever added to one, which its smallest digits are lost beside."""
    at, one = kernel.body.index(node), Literal(1.0, node.dtype)
    readers = [n for n in kernel.body if at in uses(n)]
    sums = [n for n in readers if isinstance(n, Compute) and n.op is Op.ADD]
    return sums == readers and all(one in [kernel.body[a] for a in n.args] for n in sums)


def compute(node: Compute, operands: list[str], kernel: Kernel) -> str:
    """The C expression of ``node`` over the C names of its operands.

    Args:
        node: the operation.
        operands: a name or constant for each of ``node.args``.
        kernel: where the operands' nodes are looked up for their dtype.
    """
    source = dtype_of(kernel, node.args[-1])
    if node.op is Op.CAST:
        x = operands[0]
        if source in _TRUNCATED and node.dtype.is_floating_point and _was_floating(node, kernel):
            x = f"({x} | {UNKNOWN_ZERO})"
        return _cast(x, source, node.dtype)
    if node.op is Op.WHERE:
        condition, then, other = operands
        return f"{condition} ? {then} : {other}"
    if node.op is Op.EXP and _is_below_peak(node, kernel):
        return f"ts_exp_down({operands[0]})"
    if node.op is Op.ERF and node.dtype is torch.float32 and _meets_one(node, kernel):
        return f"ts_erf_beside_one({operands[0]})"
    if node.op is Op.DIV and _is_below_peak(kernel.body[node.args[0]], kernel):
        # The sum of a row with a one has an ordinary reciprocal, which is the same for all of it.
        if kernel.body[node.args[1]] == Reduce(ReduceOp.SUM, node.args[0], node.dtype):
            return f"{operands[0]} * (1.0f / {operands[1]})"
    return _widened(node.op, operands, source, node.dtype)


def combined(op: Op, x: list[str], dtype: torch.dtype) -> str:
    """The C expression of an infix operation, or of an extreme, on cells of ``dtype``."""
    return _widened(op, x, dtype, dtype)


def _widened(op: Op, x: list[str], source: torch.dtype, target: torch.dtype) -> str:
    """``op`` on values of ``source``, those of low precision in float32."""
    if source not in HALF:
        return _apply(op, x, source)
    wide = [f"ts_{HALF[source]}_to_f32({part})" for part in x]
    text = _apply(op, wide, torch.float32)
    return f"ts_f32_to_{HALF[source]}({text})" if target in HALF else text


def dtype_of(kernel: Kernel, position: int) -> torch.dtype:
    """The dtype of SSA value ``position``."""
    node = kernel.body[position]
    dtype = getattr(node, "dtype", None)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"%{position} is a store and has no value")
    return dtype


def _apply(op: Op, x: list[str], dtype: torch.dtype) -> str:
    if op in INFIX:
        text = f"{x[0]} {INFIX[op]} {x[1]}"
        if op in COMPARISONS or dtype.is_floating_point:
            return text
        return _wrap(text, dtype) if op in (Op.ADD, Op.SUB, Op.MUL) else text
    return _float(op, x, dtype) if dtype.is_floating_point else _integer(op, x, dtype)


def _wrap(text: str, dtype: torch.dtype) -> str:
    # C computes narrow integers as int; aten wraps in their own width.
    if dtype in (torch.int32, torch.int64):
        return text
    return f"({value_type(dtype)})({text})"


def _float(op: Op, x: list[str], dtype: torch.dtype) -> str:
    names = _SINGLE if dtype is torch.float32 else _DOUBLE
    if names is _SINGLE and op in _OWN:
        return f"{_OWN[op]}({', '.join(x)})"
    if names is _DOUBLE and op in _OWN_DOUBLE:
        return f"ts_{op.value}_f64({x[0]})"
    if op in _LIBM:
        return f"__builtin_{_LIBM[op]}{names['f']}({', '.join(x)})"
    if op is Op.NEG:
        return f"-{x[0]}" if not x[0].startswith("-") else f"-({x[0]})"
    if (text := _OF_FLOATS.get(op)) is None:
        raise TypeError(f"{op} is not defined for {dtype}")
    return text.format(*x, **names)


def _integer(op: Op, x: list[str], dtype: torch.dtype) -> str:
    match op:
        case Op.NEG:
            return _wrap(f"-({x[0]})", dtype)
        case Op.ABS:
            if dtype in (torch.uint8, torch.bool):
                return x[0]
            return _wrap(f"{x[0]} < 0 ? -{x[0]} : {x[0]}", dtype)
        case Op.NOT:
            return f"!{x[0]}" if dtype is torch.bool else _wrap(f"~{x[0]}", dtype)
        case Op.FMA:
            return _wrap(f"{x[0]} * {x[1]} + {x[2]}", dtype)
    if (text := _OF_INTEGERS.get(op)) is None:
        raise TypeError(f"{op} is not defined for {dtype}")
    bits = 8 * dtype.itemsize
    return text.format(*x, ctype=value_type(dtype), bits=bits, most=bits - 1)


def _cast(x: str, source: torch.dtype, target: torch.dtype) -> str:
    if source is target:
        return x
    if source in HALF:
        return _cast(f"ts_{HALF[source]}_to_f32({x})", torch.float32, target)
    if target in HALF:
        return f"ts_f32_to_{HALF[target]}({_cast(x, source, torch.float32)})"
    if target is torch.bool:
        return f"{x} != 0"
    if source is torch.bool and target.is_floating_point:
        # gcc knows no vectors for a conversion of what a comparison gives
        return f"({_atom(x)} ? {literal(1, target)} : {literal(0, target)})"
    if source is torch.int64 and target.is_floating_point:
        return f"ts_i64_to_f{8 * target.itemsize}({x})"
    if source.is_floating_point and not target.is_floating_point:
        # Out of range values take the path that aten's own casts take, then wrap.
        step = "int64_t" if target in (torch.int64, torch.uint8) else "int32_t"
        text = f"({step}){_atom(x)}"
        return text if step == value_type(target) else f"({value_type(target)}){text}"
    return f"({value_type(target)}){_atom(x)}"


def _atom(x: str) -> str:
    return x if x.replace("_", "").isalnum() or x.endswith(")") else f"({x})"
