"""Pointwise lowerings, derived from tables where operators are alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import fx

from torchsmith_fx_backend._src.capture.torch_private import without_active_modes
from torchsmith_fx_backend._src.loops.body import Point, Value
from torchsmith_fx_backend._src.loops.ir import LIBRARY, Op
from torchsmith_fx_backend._src.loops.registry import Pointwise, in_threads, lowering, register
from torchsmith_fx_backend._src.loops.sizes import is_tensor

aten = torch.ops.aten
prims = torch.ops.prims
Formula = Callable[[Value], Value]


def category(dtype: torch.dtype) -> int:
    """0 for bool, 1 for integers, 2 for floats: torch promotes by category first."""
    return 0 if dtype is torch.bool else 2 if dtype.is_floating_point else 1


def promoted(p: Point, *args: object) -> torch.dtype:
    """The dtype torch computes in for these operands: dimensioned tensors, then zero-dim tensors,
    then Python numbers, a later group counting only when its category is higher."""
    result: torch.dtype | None = None
    for group in (_dtypes_of(p, args, True), _dtypes_of(p, args, False), _number_dtypes(args)):
        for dtype in group[:1]:
            merged = dtype
            for other in group[1:]:
                merged = torch.promote_types(merged, other)
            if result is None or category(merged) > category(result):
                result = merged
    return result or torch.get_default_dtype()


def _dtypes_of(p: Point, args: tuple[object, ...], dimensioned: bool) -> list[torch.dtype]:
    infos = [p.body.graph.info(a) for a in args if isinstance(a, fx.Node) and is_tensor(a)]
    return [i.dtype for i in infos if bool(i.shape) == dimensioned]


def _number_dtypes(args: tuple[object, ...]) -> list[torch.dtype]:
    kinds: list[torch.dtype] = []
    for arg in args:
        value = arg.meta["val"] if isinstance(arg, fx.Node) else arg
        if isinstance(value, torch.Tensor):
            continue
        if isinstance(value, bool | torch.SymBool):
            kinds.append(torch.bool)
        elif isinstance(value, int | torch.SymInt):
            kinds.append(torch.int64)
        elif isinstance(value, float | torch.SymFloat):
            kinds.append(torch.get_default_dtype())
    return kinds


def _ops(name: str, *overloads: str) -> list[object]:
    packet = getattr(aten, name, None)
    found = (getattr(packet, overload, None) for overload in overloads)
    return [op for op in found if op is not None]


# ----------------------------------------------------------------------------- float functions


def _not_on_a_cpu(node: fx.Node) -> bool:
    """Where aten's vectors are faster than any loop over such a function."""
    return in_threads(node.meta["val"])


def _float_unary(
    name: str, formula: Formula, cost: int, applies: Callable[[fx.Node], bool] | None = None
) -> None:
    def emit(p: Point) -> Value:
        return formula(p.read(p.node.args[0], p.dtype))

    for op in _ops(name, "default"):
        register(op, Pointwise(emit, cost, applies=applies))


for _op in LIBRARY:
    _float_unary(_op.value, (lambda op: lambda x: x.op(op))(_op), 30, _not_on_a_cpu)
for _cost, _names in (
    (3, "reciprocal"),
    (4, "sqrt rsqrt"),
    (10, "exp exp2 log log2"),
    (12, "expm1 log1p tanh sigmoid"),
    (14, "erf"),
    (30, "sin cos"),
):
    for _name in _names.split():
        _float_unary(_name, (lambda op: lambda x: x.op(op))(Op(_name)), _cost)


_FORMULA_FLOAT: dict[str, tuple[Formula, int]] = {
    "log10": (lambda x: x.op(Op.LOG2) * math.log10(2.0), 11),
    "cosh": (lambda x: (x.op(Op.EXP) + (-x).op(Op.EXP)) * 0.5, 22),
}
for _name, (_formula, _cost) in _FORMULA_FLOAT.items():
    _float_unary(_name, _formula, _cost)


# -------------------------------------------------------------------- functions of one dtype


def _of_bits(node: fx.Node) -> bool:
    """Whether eager, too, takes the operands of an operator on bits."""
    return not node.meta["val"].dtype.is_floating_point


def _same_unary(name: str, formula: Callable[[Point, Value], Value], cost: int = 1) -> None:
    def emit(p: Point) -> Value:
        return formula(p, p.read(p.node.args[0], p.dtype))

    for op in _ops(name, "default"):
        register(op, Pointwise(emit, cost, applies=_of_bits if name == "bitwise_not" else None))


def _is_float(p: Point) -> bool:
    return p.dtype.is_floating_point


def _rounding(op: Op) -> Callable[[Point, Value], Value]:
    return lambda p, x: x.rounded(p.dtype).op(op) if _is_float(p) else x


def _sign(p: Point, x: Value) -> Value:
    if p.dtype is torch.bool:
        return x
    return (x > 0).cast(x.dtype) - (x < 0).cast(x.dtype)


def _at_least(x: Value, low: Value | float) -> Value:
    """``x`` on a tie, as eager: relu keeps -0.0. ``MAXIMUM`` gives its second operand then."""
    bound = low if isinstance(low, Value) else x.body.literal(low, x.dtype)
    return bound.op(Op.MAXIMUM, x)


def _at_most(x: Value, high: Value | float) -> Value:
    bound = high if isinstance(high, Value) else x.body.literal(high, x.dtype)
    return bound.op(Op.MINIMUM, x)


_SAME: dict[str, Callable[[Point, Value], Value]] = {
    "neg": lambda p, x: -x,
    "abs": lambda p, x: x.op(Op.ABS),
    "relu": lambda p, x: _at_least(x, 0),
    "relu6": lambda p, x: _at_most(_at_least(x, 0), 6),
    "square": lambda p, x: x * x,
    "sign": _sign,
    "sgn": _sign,
    "floor": _rounding(Op.FLOOR),
    "ceil": _rounding(Op.CEIL),
    "trunc": _rounding(Op.TRUNC),
    "fix": _rounding(Op.TRUNC),
    "round": _rounding(Op.ROUND),
    "frac": lambda p, x: x - x.op(Op.TRUNC),
    "bitwise_not": lambda p, x: x.op(Op.NOT),
}
for _name, _rule in _SAME.items():
    _same_unary(_name, _rule, 2)


@lowering(aten.logical_not.default)
def logical_not(p: Point) -> Value:
    return _truth(p, p.node.args[0]).op(Op.NOT)


def _truth(p: Point, arg: object) -> Value:
    x = p.read(arg, promoted(p, arg))
    return x if x.dtype is torch.bool else x.ne(0)


def _predicate(op: object, test: Formula, of_int: bool) -> None:
    def emit(p: Point) -> Value:
        source = p.body.graph.info(p.operand()).dtype
        if not source.is_floating_point:
            return p.body.literal(of_int, torch.bool)
        return test(p.read(p.operand()).rounded(source))

    register(op, Pointwise(emit))


_predicate(aten.isnan.default, lambda x: x.test(Op.ISNAN), False)
_predicate(aten.isinf.default, lambda x: x.test(Op.ISINF), False)
_predicate(aten.isfinite.default, lambda x: (x.test(Op.ISNAN) | x.test(Op.ISINF)).op(Op.NOT), True)


# ---------------------------------------------------------------------------------- copies


@lowering(
    aten.clone.default,
    aten._to_copy.default,
    aten.contiguous.default,
    prims.convert_element_type.default,
    aten.to.dtype,
)
def copy(p: Point) -> Value:
    """A cast to low precision rounds here even when its result stays in a register.

    Programs and decompositions cast where eager rounds. Leaving the rounding out is closer to the
    exact result of one operator and yet worse for a network: values a hair off the grid (batch
    norm's with fresh statistics) then break the ties of the sums that follow to one side.
    """
    value = p.read(p.node.args[0], p.dtype)
    source: Any = p.node.args[0]
    widened = not is_tensor(source) or source.meta["val"].dtype in (torch.float32, torch.float64)
    rounds = widened or p.node.target is prims.convert_element_type.default
    return value.rounded(p.dtype) if rounds else value


@lowering(aten.copy.default, aten.fill.Tensor)
def copy_into(p: Point) -> Value:
    return p.read(p.node.args[1], p.dtype)


# ----------------------------------------------------------------------------- two operands


def _cannot_raise(node: fx.Node) -> bool:
    """Whether a division has no zero to complain about: aten raises for integers, a loop cannot."""
    divisor = node.args[1]
    fixed = isinstance(divisor, int | float) and divisor != 0
    return fixed or node.meta["val"].dtype.is_floating_point


def _binary(
    name: str,
    formula: Callable[[Point, Value, Value], Value],
    cost: int = 1,
    applies: Callable[[fx.Node], bool] | None = None,
) -> None:
    """Both operands in the result's dtype; ``alpha`` scales the second."""

    def emit(p: Point) -> Value:
        x = p.read(p.node.args[0], p.dtype)
        y = p.read(p.node.args[1], p.dtype)
        alpha = p.arg(2, "alpha", 1)
        if alpha != 1:
            if _is_float(p) and name in ("add", "sub"):  # aten rounds once
                scale = p.read(alpha, p.dtype)
                return y.op(Op.FMA, -scale if name == "sub" else scale, x)
            y = y * p.read(alpha, p.dtype)
        return formula(p, x, y)

    for op in _ops(name, "Tensor", "Scalar", "default"):
        register(op, Pointwise(emit, cost, applies=applies))


def _arithmetic(op: Op) -> Callable[[Point, Value, Value], Value]:
    return lambda p, x, y: x.op(op, y)


def _fmax(low: bool) -> Callable[[Point, Value, Value], Value]:
    def formula(p: Point, x: Value, y: Value) -> Value:
        best = y.op(Op.MINIMUM if low else Op.MAXIMUM, x)
        if not _is_float(p):
            return best
        return x.test(Op.ISNAN).where(y, y.test(Op.ISNAN).where(x, best))

    return formula


_BINARY: dict[str, tuple[Callable[[Point, Value, Value], Value], int]] = {
    "add": (lambda p, x, y: x + y, 1),
    "sub": (lambda p, x, y: x - y, 1),
    "mul": (lambda p, x, y: x * y, 1),
    "maximum": (_arithmetic(Op.MAXIMUM), 1),
    "minimum": (_arithmetic(Op.MINIMUM), 1),
    "fmax": (_fmax(False), 4),
    "fmin": (_fmax(True), 4),
    "remainder": (_arithmetic(Op.MOD), 4),
    "fmod": (_arithmetic(Op.FMOD), 4),
    "bitwise_and": (_arithmetic(Op.AND), 1),
    "bitwise_or": (_arithmetic(Op.OR), 1),
    "bitwise_xor": (_arithmetic(Op.XOR), 1),
    "bitwise_left_shift": (_arithmetic(Op.SHL), 1),
    "bitwise_right_shift": (_arithmetic(Op.SHR), 1),
    "__and__": (_arithmetic(Op.AND), 1),
    "__or__": (_arithmetic(Op.OR), 1),
    "__xor__": (_arithmetic(Op.XOR), 1),
}
for _name, (_binary_formula, _cost) in _BINARY.items():
    _taken = _of_bits if _name.startswith(("bitwise", "__")) else None
    _binary(
        _name, _binary_formula, _cost, _cannot_raise if _name in ("remainder", "fmod") else _taken
    )
_binary("atan2", _arithmetic(Op.ATAN2), 40, _not_on_a_cpu)


@lowering(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(p: Point) -> Value:
    x, y = p.read(p.node.args[0], p.dtype), p.read(p.node.args[1], p.dtype)
    alpha = p.arg(2, "alpha", 1)
    if alpha == 1:
        return y - x
    scale = p.read(alpha, p.dtype)
    return x.op(Op.FMA, -scale, y) if _is_float(p) else y - x * scale


@lowering(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor, cost=3)
def div(p: Point) -> Value:
    return p.read(p.node.args[0], p.dtype) / p.read(p.node.args[1], p.dtype)


@lowering(
    aten.div.Tensor_mode,
    aten.div.Scalar_mode,
    aten.floor_divide.default,
    cost=4,
    applies=_cannot_raise,
)
def div_mode(p: Point) -> Value:
    x, y = p.read(p.node.args[0], p.dtype), p.read(p.node.args[1], p.dtype)
    mode = "floor" if p.node.target is aten.floor_divide.default else p.arg(2, "rounding_mode")
    if mode is None:
        return x / y
    if mode == "floor":
        return x.op(Op.FLOORDIV, y)
    return (x / y).rounded(p.dtype).op(Op.TRUNC) if _is_float(p) else x.op(Op.TRUNCDIV, y)


def _compare(name: str, op: Op) -> None:
    def emit(p: Point) -> Value:
        a, b = p.node.args[:2]
        dtype = promoted(p, a, b)
        x, y = p.read(a, dtype), p.read(b, dtype)
        return x.rounded(dtype).test(op, y.rounded(dtype))

    for target in _ops(name, "Tensor", "Scalar"):
        register(target, Pointwise(emit))


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _compare(_name, Op(_name))


def _logical(name: str, op: Op) -> None:
    def emit(p: Point) -> Value:
        return _truth(p, p.node.args[0]).op(op, _truth(p, p.node.args[1]))

    for target in _ops(name, "default"):
        register(target, Pointwise(emit))


for _name, _op in (("and", Op.AND), ("or", Op.OR), ("xor", Op.XOR)):
    _logical(f"logical_{_name}", _op)


# -------------------------------------------------------------------------------------- pow


def _power(p: Point, x: Value, exponent: float) -> Value | None:
    """The cases in which aten multiplies (or takes a root) instead of calling ``pow``; and those of
    two-byte numbers for which the products of floats are as exact."""
    if exponent == 2:
        return x * x
    if exponent == 3:
        return x * x * x
    if exponent == 1:
        return x
    if not _is_float(p):
        return None
    if 3 < exponent <= 16 and exponent % 1 == 0 and p.node.meta["val"].dtype.itemsize == 2:
        half = _power(p, x, exponent // 2)
        assert half is not None
        return half * half * x if exponent % 2 else half * half
    special: dict[float, Formula] = {
        0.5: lambda v: v.op(Op.SQRT),
        -0.5: lambda v: v.op(Op.RSQRT),
        -1.0: lambda v: v.op(Op.RECIPROCAL),
        -2.0: lambda v: (v * v).op(Op.RECIPROCAL),
    }
    formula = special.get(float(exponent))
    return None if formula is None else formula(x)


def _cheap_exponent(node: fx.Node) -> bool:
    return node.args[1] in (1, 2, 3) and not isinstance(node.args[1], bool)


def _int_pow_ok(node: fx.Node) -> bool:
    """Integer powers other than small ones stay with aten: negative exponents raise there.
    Half-precision roots on a CPU do, too: alone among the dtypes, they are powers there."""
    value = node.meta["val"]
    if value.dtype is torch.float16 and value.device.type == "cpu":
        return node.args[1] not in (0.5, -0.5)
    return bool(value.dtype.is_floating_point) or _cheap_exponent(node)


@lowering(aten.pow.Tensor_Scalar, cost=3, applies=_int_pow_ok)
def pow_scalar(p: Point) -> Value:
    x = p.read(p.node.args[0], p.dtype)
    exponent = p.node.args[1]
    if isinstance(exponent, (int, float)):
        easy = _power(p, x, exponent)
        if easy is not None:
            return easy
    return x.op(Op.POW, p.read(exponent, p.dtype))


@lowering(aten.pow.Tensor_Tensor, aten.pow.Scalar, cost=20, applies=_int_pow_ok)
def pow_tensor(p: Point) -> Value:
    return p.read(p.node.args[0], p.dtype).op(Op.POW, p.read(p.node.args[1], p.dtype))


def _is_outer(node: fx.Node) -> bool:
    """Whether a product is of columns by rows, as gradients of weights at batch 1 are."""
    value, inner = node.meta["val"], node.args[0].meta["val"].shape[-1]  # type: ignore[union-attr]
    plain = value.device.type == "cpu" and category(value.dtype) == 2
    return plain and type(inner) is int and inner == 1


@lowering(aten.mm.default, aten.bmm.default, applies=_is_outer)
def outer_product(p: Point) -> Value:
    return p.read(p.node.args[0], p.dtype) * p.read(p.node.args[1], p.dtype)


# ------------------------------------------------------------------------- where and clamp


@lowering(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
def where(p: Point) -> Value:
    condition = p.read(p.node.args[0])
    if condition.dtype is not torch.bool:
        condition = condition.ne(0)
    return condition.where(p.element(p.node.args[1]), p.element(p.node.args[2]))


@lowering(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(p: Point) -> Value:
    return p.read(p.node.args[1]).where(p.element(p.node.args[2]), p.element(p.node.args[0]))


_CLAMP = aten.clamp.default


@lru_cache
def _overlooks_nan() -> bool:
    """Whether torch's kernel on a CPU takes a bound that is NaN for none, as that of 2.11 does."""
    with without_active_modes():
        return bool(_CLAMP(torch.ones(1), math.nan) == 1)


@lowering(
    _CLAMP,
    aten.clamp.Tensor,
    aten.clamp_min.default,
    aten.clamp_min.Tensor,
    aten.clamp_max.default,
    aten.clamp_max.Tensor,
)
def clamp(p: Point) -> Value:
    x = p.read(p.node.args[0], p.dtype)
    low, high = p.arg(1, "min"), p.arg(2, "max")
    if p.node.target in (aten.clamp_max.default, aten.clamp_max.Tensor):
        low, high = None, p.arg(1, "max")
    alone = high if low is None else low if high is None else None
    on_cpu = p.body.graph.info(p.node).device.type == "cpu"
    if alone != alone and (not on_cpu or (p.node.target is _CLAMP and _overlooks_nan())):
        return x  # a GPU's maximum of a number and NaN is the number (with two bounds: NaN)
    if low is not None:
        x = _at_least(x, p.element(low))
    if high is not None:
        x = _at_most(x, p.element(high))
    return x


@lowering(aten.nan_to_num.default, cost=4)
def nan_to_num(p: Point) -> Value:
    x = p.read(p.node.args[0], p.dtype)
    if not _is_float(p):
        return x
    limits = torch.finfo(p.dtype)
    nan, high, low = p.arg(1, "nan"), p.arg(2, "posinf"), p.arg(3, "neginf")
    high = limits.max if high is None else high
    low = limits.min if low is None else low
    y = x.eq(math.inf).where(p.read(high, p.dtype), x)
    y = x.eq(-math.inf).where(p.read(low, p.dtype), y)
    return x.test(Op.ISNAN).where(p.read(0.0 if nan is None else nan, p.dtype), y)


def _in_float(node: fx.Node) -> bool:
    return bool(node.meta["val"].dtype.is_floating_point)


@lowering(aten.logaddexp.default, aten.logaddexp2.default, cost=26, applies=_in_float)
def log_of_sum(p: Point) -> Value:
    a, b = (p.read(arg, p.dtype) for arg in p.node.args[:2])
    binary = p.node.target is aten.logaddexp2.default
    share = (-(a - b).op(Op.ABS)).op(Op.EXP2 if binary else Op.EXP).op(Op.LOG1P)
    total = b.op(Op.MAXIMUM, a) + (share * (1 / math.log(2.0)) if binary else share)
    return (a.eq(b) & a.test(Op.ISINF)).where(a, total)


# ------------------------------------------------------------------------------ activations


@lowering(aten.celu.default, cost=14)
def celu(p: Point) -> Value:
    x, alpha = p.read(p.node.args[0], p.dtype), p.arg(1, "alpha", 1.0)
    if isinstance(alpha, (int, float)):
        return (x > 0).where(x, (x * (1.0 / alpha)).op(Op.EXPM1) * float(alpha))
    scale = p.read(alpha, p.dtype)
    return (x > 0).where(x, (x * (p.read(1.0, p.dtype) / scale)).op(Op.EXPM1) * scale)


# ---------------------------------------------------------------------------- three operands


@lowering(aten.addcmul.default, aten.addcdiv.default, cost=4)
def addcmul(p: Point) -> Value:
    x, a, b = (p.read(arg, p.dtype) for arg in p.node.args[:3])
    value = p.read(p.arg(3, "value", 1), p.dtype)
    if p.node.target is aten.addcdiv.default:
        return x + value * (a / b)
    return x + value * a * b


@lowering(aten.lerp.Scalar, aten.lerp.Tensor, cost=5)
def lerp(p: Point) -> Value:
    a, b, weight = (p.read(arg, p.dtype) for arg in p.node.args[:3])
    # As aten: whichever end is nearer is the base, so that weights 0 and 1 are exact.
    near = a + weight * (b - a)
    far = b - (b - a) * (1 - weight)
    return (weight.op(Op.ABS) < 0.5).where(near, far)
