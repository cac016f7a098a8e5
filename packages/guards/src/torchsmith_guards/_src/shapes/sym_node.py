"""``SymNode``: the object inside ``torch.SymInt``, ``torch.SymFloat`` and ``torch.SymBool``.

Torch (Python and C++) calls its methods by name. Arithmetic builds expressions; ``guard_*`` methods
decide by asking the ``ShapeEnv``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from torchsmith_guards._src.shapes import expr as ex
from torchsmith_guards._src.shapes import nodes
from torchsmith_guards._src.shapes import relation as rel
from torchsmith_guards._src.shapes.nodes import Const, Number, SymExpr
from torchsmith_guards._src.shapes.relation import SymCondition
from torchsmith_guards._src.shapes.sympy_bridge import to_sympy
from torchsmith_guards.errors import SymbolicTypeError

if TYPE_CHECKING:
    from torchsmith_guards._src.shapes.env import ShapeEnv

_ONE = ex.const(1)


Method = Callable[["SymNode", "SymNode"], "SymNode"]


def _arithmetic(integer: Any, floating: Any) -> Method:
    def method(self: SymNode, other: SymNode) -> SymNode:
        left, right = self.value, other.value
        if left.is_float or right.is_float:
            return self._wrap(ex.call(floating, left, right))
        return self._wrap(integer(left, right))

    return method


def _call(name: str) -> Method:
    return lambda self, other: self._wrap(ex.call(name, self.value, other.value))


def _junction(op: Literal["and", "or"]) -> Method:
    return lambda self, other: self._wrap(rel.join(op, self.condition, other.condition))


def _function(name: str) -> Callable[[SymNode], SymNode]:
    """A method for a function of ``math``."""
    return lambda node: node._wrap(ex.call(name, node.value))


def _rounding(function: str) -> Callable[[SymNode], SymNode]:
    return lambda self: self._to_int(function)


def _comparison(op: Any) -> Method:
    return lambda self, other: self._compare(op, other)


def _in_order(test: Any, order: tuple[int, ...]) -> Any:
    def method(self: SymNode, sizes: Sequence[SymNode], strides: Sequence[SymNode]) -> Any:
        fits = len(sizes) == len(order)
        return getattr(self, test)(sizes, strides, order) if fits else self._wrap(False)

    return method


class SymNode:
    """A symbolic number or truth value of a ``ShapeEnv``.

    Attributes:
        shape_env: the environment that decides about it.
        content: an expression, a condition, or a plain bool.
        pytype: ``int``, ``float`` or ``bool``.
    """

    __slots__ = ("content", "pytype", "shape_env")

    def __init__(self, shape_env: ShapeEnv, content: SymExpr | SymCondition | bool) -> None:
        self.shape_env = shape_env
        self.content = content
        if isinstance(content, SymExpr):
            self.pytype: type = float if content.is_float else int
        else:
            self.pytype = bool

    # --- what it is ------------------------------------------------------------------------

    @property
    def value(self) -> SymExpr:
        """The expression of a number."""
        if not isinstance(self.content, SymExpr):
            raise SymbolicTypeError(operation="arithmetic", operands="a truth value")
        return self.content

    @property
    def condition(self) -> SymCondition | bool:
        """The condition of a truth value."""
        if isinstance(self.content, SymExpr):
            raise SymbolicTypeError(operation="logic", operands="a number")
        return self.content

    @property
    def expr(self) -> Any:
        """For torch, which expects sympy: numbers are converted, conditions go out as they are
        (torch only hands them back to ``_maybe_evaluate_static``)."""
        return to_sympy(self.content) if isinstance(self.content, SymExpr) else self.content

    @property
    def hint(self) -> Number | bool | None:
        """The value at this call; None when it depends on data."""
        if isinstance(self.content, bool):
            return self.content
        return self.shape_env.hint_of(self.content)

    _hint = hint

    @property
    def constant(self) -> Number | bool | None:
        """The value of a literal, else None."""
        if isinstance(self.content, Const):
            return self.content.value
        return self.content if isinstance(self.content, bool) else None

    @property
    def fx_node(self) -> None:
        """Torch's translation validation asks; there is none."""
        return None

    def is_int(self) -> bool:
        return self.pytype is int

    def is_float(self) -> bool:
        return self.pytype is float

    def is_bool(self) -> bool:
        return self.pytype is bool

    def is_nested_int(self) -> bool:
        return False

    def nested_int(self) -> None:
        return None

    nested_int_coeff = nested_int

    def is_constant(self) -> bool:
        return self.constant is not None

    def is_symbolic(self) -> bool:
        return True

    def has_hint(self) -> bool:
        return self.hint is not None

    def require_hint(self, fallback: Number | None = None) -> Number | bool | None:
        found = self.hint
        return fallback if found is None else found

    def maybe_as_int(self) -> int | None:
        known = self.constant
        return known if type(known) is int else None

    def maybe_as_float(self) -> float | None:
        known = self.constant
        return known if isinstance(known, float) else None

    def maybe_as_bool(self) -> bool | None:
        return self.content if isinstance(self.content, bool) else None

    constant_int = maybe_as_int
    constant_bool = maybe_as_bool

    def clone(self) -> SymNode:
        return self

    def with_shape_env(self, shape_env: ShapeEnv) -> SymNode:
        return SymNode(shape_env, self.content)

    def str(self) -> Any:
        return repr(self.content)

    _graph_repr = __repr__ = str

    # --- literals --------------------------------------------------------------------------

    def _wrap(self, content: SymExpr | SymCondition | bool) -> SymNode:
        return SymNode(self.shape_env, content)

    def wrap_int(self, number: int) -> SymNode:
        return self._wrap(ex.const(int(number)))

    def wrap_float(self, number: float) -> SymNode:
        return self._wrap(ex.const(float(number)))

    def wrap_bool(self, truth: bool) -> SymNode:
        return self._wrap(bool(truth))

    # --- decisions -------------------------------------------------------------------------

    def specialise(self) -> Any:
        """The value at this call, guarded."""
        if isinstance(self.content, SymExpr):
            return self.shape_env.evaluate_number(self.content)
        return self.shape_env.evaluate_condition(self.content)

    def evaluate(self, size_oblivious: bool = False) -> Any:
        return self.specialise()

    int_ = bool_ = specialise

    def guard_int(self, file: Any, line: int) -> Any:
        return self.specialise()

    guard_float = guard_bool = guard_int

    def expect_true(self, file: Any, line: int) -> bool:
        return self.shape_env.require(self.condition)

    def expect_size(self, file: Any, line: int) -> bool:
        return self.shape_env.require(rel.relate(">=", self.value, ex.const(0)))

    def guard_size_oblivious(self, file: Any, line: int) -> bool:
        return self.shape_env.evaluate_condition(self.condition)

    def guard_or_false(self, file: Any, line: int) -> bool:
        return self.shape_env.evaluate_condition(self.condition, False)

    def guard_or_true(self, file: Any, line: int) -> bool:
        return self.shape_env.evaluate_condition(self.condition, True)

    def statically_known_true(self, file: Any, line: int) -> bool:
        return self.shape_env.static_truth(self.condition) is True

    # --- arithmetic ------------------------------------------------------------------------

    add = _arithmetic(ex.add, "float_add")
    sub = _arithmetic(ex.sub, "float_sub")
    mul = _arithmetic(ex.mul, "float_mul")
    mod = _arithmetic(ex.mod, "float_mod")
    floordiv = int_floordiv = _arithmetic(ex.floordiv, "float_floordiv")
    sym_min = _arithmetic(ex.minimum, "float_min")
    sym_max = _arithmetic(ex.maximum, "float_max")

    truediv = int_truediv = float_truediv = _call("truediv")
    float_pow = _call("float_pow")
    lshift, rshift = _call("lshift"), _call("rshift")

    def pow(self, other: SymNode) -> SymNode:
        if self.value.is_float or other.value.is_float:
            return self.float_pow(other)
        return self.pow_by_natural(other)

    def pow_by_natural(self, other: SymNode) -> SymNode:
        exponent = other.value
        if isinstance(exponent, Const) and 0 <= exponent.value <= 8:
            return self._wrap(ex.mul(*[self.value] * int(exponent.value)))
        return self._wrap(ex.call("int_pow", self.value, exponent))

    def neg(self) -> SymNode:
        if self.value.is_float:
            return self._wrap(ex.call("float_neg", self.value))
        return self._wrap(ex.neg(self.value))

    def pos(self) -> SymNode:
        return self

    def abs(self) -> SymNode:
        if self.value.is_float:
            return self._wrap(ex.call("float_abs", self.value))
        return self._wrap(ex.maximum(self.value, ex.neg(self.value)))

    floor = _rounding("floor")
    ceil = _rounding("ceil")
    trunc = sym_int = _rounding("trunc")

    def _to_int(self, function: Any) -> SymNode:
        if not self.value.is_float:
            return self
        return self._wrap(_integer_quotient(function, self.value))

    def round(self, ndigits: int | None = None) -> SymNode:
        if not self.value.is_float:
            return self
        if ndigits is None:
            return self._wrap(ex.call("round_to_int", self.value))
        return self._wrap(ex.call("round_digits", self.value, ex.const(ndigits)))

    def sym_float(self) -> SymNode:
        return self if self.value.is_float else self._wrap(ex.call("float", self.value))

    sym_sqrt, sym_log2 = _function("sqrt"), _function("log2")
    sym_cos, sym_sin, sym_tan = _function("cos"), _function("sin"), _function("tan")
    sym_cosh, sym_sinh, sym_tanh = _function("cosh"), _function("sinh"), _function("tanh")
    sym_acos, sym_asin, sym_atan = _function("acos"), _function("asin"), _function("atan")

    def is_integer(self) -> SymNode:
        whole = ex.call("float", ex.call("floor", self.value))
        return self._wrap(rel.relate("==", self.value, whole))

    def sym_sum(self, args: Sequence[SymNode]) -> SymNode:
        return self._wrap(ex.add(*(a.value for a in args)))

    # --- comparison and logic --------------------------------------------------------------

    def _compare(self, op: Any, other: SymNode) -> SymNode:
        if self.is_bool() and other.is_bool():
            return self._wrap(_same_truth(op, self.condition, other.condition))
        return self._wrap(rel.relate(op, self.value, other.value))

    eq = _comparison("==")
    ne = _comparison("!=")
    lt = _comparison("<")
    le = _comparison("<=")
    gt = _comparison(">")
    ge = _comparison(">=")

    sym_and, sym_or = _junction("and"), _junction("or")
    _bitand, _bitor, bitwise_xor = _call("bitand"), _call("bitor"), _call("bitxor")

    def and_(self, other: SymNode) -> SymNode:
        return self.sym_and(other) if self.is_bool() else self._bitand(other)

    def or_(self, other: SymNode) -> SymNode:
        return self.sym_or(other) if self.is_bool() else self._bitor(other)

    bitwise_and = and_
    bitwise_or = or_

    def sym_not(self) -> SymNode:
        return self._wrap(rel.invert(self.condition))

    def sym_ite(self, then: SymNode, other: SymNode) -> SymNode:
        holds = None if self.hint is not None else rel.indicator(self.condition)
        if holds is None or not (then.is_int() and other.is_int()):
            return then if self.bool_() else other
        holds = self.shape_env.named(holds)  # by a name, so that expressions stay short
        return self._wrap(ex.add(other.value, ex.mul(holds, ex.sub(then.value, other.value))))

    # --- layouts ---------------------------------------------------------------------------

    def is_contiguous(self, sizes: Sequence[SymNode], strides: Sequence[SymNode]) -> SymNode:
        return self._dense(sizes, strides, range(len(sizes) - 1, -1, -1))

    is_channels_last_contiguous_2d = _in_order("_dense", (1, 3, 2, 0))
    is_channels_last_contiguous_3d = _in_order("_dense", (1, 4, 3, 2, 0))
    is_channels_last_strides_2d = _in_order("_channels_last", (1, 3, 2, 0))
    is_channels_last_strides_3d = _in_order("_channels_last", (1, 4, 3, 2, 0))

    def is_non_overlapping_and_dense(
        self, sizes: Sequence[SymNode], strides: Sequence[SymNode]
    ) -> SymNode:
        # Dense means: dense in the order of the strides. That order is taken from the hints; the
        # condition then says for which other sizes it holds.
        keys = [_hint_or_largest(node) for node in strides]
        order = sorted(range(len(sizes)), key=lambda d: (keys[d], -d))
        return self._dense(sizes, strides, order)

    def is_non_overlapping_and_dense_indicator(
        self, sizes: Sequence[SymNode], strides: Sequence[SymNode]
    ) -> SymNode:
        return self.wrap_int(int(self.is_non_overlapping_and_dense(sizes, strides).bool_()))

    def _dense(
        self, sizes: Sequence[SymNode], strides: Sequence[SymNode], order: Sequence[int]
    ) -> SymNode:
        """Every stride is the product of the sizes before it in ``order``; size 1 is free."""
        expected: SymExpr = _ONE
        parts: list[SymCondition | bool] = []
        for dim in order:
            size, stride = sizes[dim].value, strides[dim].value
            parts.append(
                rel.join("or", rel.relate("==", stride, expected), rel.relate("==", size, _ONE))
            )
            expected = ex.mul(expected, size)
        empty = rel.relate("==", expected, ex.const(0))
        return self._wrap(rel.join("or", rel.join("and", *parts), empty))

    def _channels_last(
        self, sizes: Sequence[SymNode], strides: Sequence[SymNode], order: Sequence[int]
    ) -> SymNode:
        """Strides grow in ``order``, as torch's own test for channels-last strides has it."""
        least: SymExpr = ex.const(0)
        first = strides[order[0]].value
        parts: list[SymCondition | bool] = [rel.relate("!=", first, ex.const(0))]
        for dim in order:
            size, stride = sizes[dim].value, strides[dim].value
            parts.append(rel.relate("!=", size, ex.const(0)))
            parts.append(rel.relate("<=", least, stride))
            if dim == 0:
                parts.append(rel.relate("!=", least, first))
            least = ex.mul(stride, ex.maximum(size, _ONE))
        return self._wrap(rel.join("and", *parts))


def _hint_or_largest(node: SymNode) -> Number:
    found = node.hint
    return math.inf if found is None else found


def _integer_quotient(function: str, value: SymExpr) -> SymExpr:
    """``floor(a / b)`` of ints is ``a // b``, and ``ceil`` likewise; no detour over floats."""
    if isinstance(value, nodes.Call) and value.name == "float":
        return value.args[0]
    if isinstance(value, nodes.Call) and value.name == "truediv":
        num, den = (_strip_float(a) for a in value.args)
        whole = not (num.is_float or den.is_float)
        if whole and den.lo > 0 and function == "ceil":
            return ex.neg(ex.floordiv(ex.neg(num), den))
        if whole and den.lo > 0 and (function == "floor" or num.lo >= 0):
            return ex.floordiv(num, den)
    return ex.call(function, value)


def _strip_float(value: SymExpr) -> SymExpr:
    if isinstance(value, nodes.Call) and value.name == "float":
        return value.args[0]
    if isinstance(value, Const) and isinstance(value.value, float) and value.value.is_integer():
        return ex.const(int(value.value))
    return value


def _same_truth(
    op: str, left: SymCondition | bool, right: SymCondition | bool
) -> SymCondition | bool:
    both = rel.join("and", left, right)
    neither = rel.join("and", rel.invert(left), rel.invert(right))
    same = rel.join("or", both, neither)
    return same if op == "==" else rel.invert(same)
