"""One scalar operation of the loop IR as a Triton expression."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from torchsmith_fx_backend._src.loops.ir import INFIX, LIBRARY, Op

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
_OWN = (Op.EXP, Op.EXP2, Op.EXPM1, Op.LOG, Op.LOG2, Op.LOG1P, Op.RSQRT, Op.SIN, Op.COS, Op.TANH)
_TEXTS: dict[Op, str] = {
    **{op: f"{{0}} {sign} {{1}}" for op, sign in _INFIX.items()},
    **{op: f"ts.{op.value}({{0}})" for op in (*_OWN, *LIBRARY, Op.ERF, Op.SIGMOID)},
    **{op: f"ts.{op.value}({{0}}, {{1}})" for op in (Op.MINIMUM, Op.MAXIMUM, Op.ATAN2)},
    Op.SQRT: "ts.square_root({0})",
    Op.DIV: "ts.divide({0}, {1})",
    Op.ABS: "tl.abs({0})",
    Op.FMA: "{0} * {1} + {2}",
    Op.ISNAN: "{0} != {0}",
    Op.ISINF: 'tl.abs({0}) == float("inf")',
    Op.SHL: "ts.shift_left({0}, {1}, {bits})",
    Op.SHR: "ts.shift_right({0}, {1}, {bits})",
    Op.WHERE: "tl.where({0}, {1}, {2})",
}
_OF_FLOATS: dict[Op, str] = {
    Op.NEG: "{0} * -1.0",  # triton before 3.9 takes -x for 0 - x
    Op.FLOORDIV: "ts.floor_divide_float({0}, {1})",
    Op.TRUNCDIV: "ts.trunc(ts.divide({0}, {1}))",
    Op.MOD: "ts.modulo_float({0}, {1})",
    Op.FMOD: "ts.fmod({0}, {1})",
    Op.POW: "ts.power({0}, {1})",
    Op.FLOOR: "tl.floor({0})",
    Op.CEIL: "tl.ceil({0})",
    Op.TRUNC: "ts.trunc({0})",
    Op.ROUND: "ts.nearbyint({0})",
}
_OF_INTEGERS: dict[Op, str] = {
    Op.NEG: "-{0}",
    Op.FLOORDIV: "ts.floor_divide_int({0}, {1})",
    Op.TRUNCDIV: "{0} // {1}",
    Op.MOD: "ts.modulo_int({0}, {1})",
    Op.FMOD: "{0} % {1}",
    Op.POW: "ts.power_int({0}, {1})",
    Op.NOT: "~{0}",
    **dict.fromkeys((Op.FLOOR, Op.CEIL, Op.TRUNC, Op.ROUND), "{0}"),
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


def is_negative_zero(value: float | int | bool) -> bool:
    """Whether it is -0.0, whose sign triton before 3.9 drops where it is a literal."""
    return value == 0 and math.copysign(1, value) < 0


def typed_constant(value: float | int | bool, dtype: torch.dtype) -> str:
    """``tl.full([], value, dtype)``."""
    if is_negative_zero(value):
        return f"{typed_constant(0.0, dtype)} * -1.0"
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


def compute_text(
    op: Op, args: Sequence[str], source: torch.dtype, target: torch.dtype, exact: bool = True
) -> str:
    """The expression for ``op``.

    Args:
        op: the operation.
        args: operand texts: names, or bare literals for operations in ``INLINE``.
        source: dtype of the first operand (of the second for ``WHERE``).
        target: dtype of the result.
        exact: whether a quotient shall be rounded as by IEEE's division, which takes a slow path
            where either number is zero or far from one: half of the time of a masked softmax.

    Returns:
        Triton source text of the value.
    """
    if not exact and op is Op.DIV:
        return f"{args[0]} / {args[1]}"
    if op is Op.CAST:
        return cast_text(args[0], source, target)
    if op is Op.RECIPROCAL:
        return f"ts.divide({typed_constant(1.0, target)}, {args[0]})"
    if op is Op.NOT and source in (torch.bool, torch.uint8):
        return f"{args[0]} == 0" if source is torch.bool else f"{args[0]} ^ 255"
    by_kind = _OF_FLOATS if source.is_floating_point else _OF_INTEGERS
    if (text := _TEXTS.get(op) or by_kind.get(op)) is None:
        raise TypeError(f"no Triton text for {op}")
    return text.format(*args, bits=8 * source.itemsize)
