"""Symbolic numbers: sizes, int arguments that vary, and what is computed from them.

Arithmetic stays symbolic and goes into the graph; a comparison is decided with the number of this
call and recorded as a guard; whatever needs the number itself specialises on it.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torchsmith_guards import Add, Const, Source, Symbol, SymExpr, expr_of
from torchsmith_guards.errors import DataDependentError

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.emitter import Emitter
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.addresses import number_text
from torchsmith_tracer._src.values.base import MethodOf, Value
from torchsmith_tracer._src.values.constants import COMPARE, ConstantValue

Number = int | float | bool
Symbolic = torch.SymInt | torch.SymFloat | torch.SymBool

_BINARY: dict[str, Callable[..., object]] = {
    name: getattr(operator, name)
    for name in "add sub mul truediv floordiv mod pow and_ or_ lshift rshift xor".split()
}
_CONVERSIONS = ("__int__", "__index__", "__trunc__", "__float__", "__floor__", "__ceil__")


class SymNumValue(Value):
    """A number that may differ between calls of the compiled code.

    Attributes:
        node: the fx node that computes it.
        sym: the symbolic number; its node knows the number of this call.
    """

    __slots__ = ("node", "sym")

    def __init__(self, node: fx.Node, sym: Symbolic, source: Source | None = None) -> None:
        super().__init__(source)
        self.node = node
        self.sym = sym

    def python_type(self) -> type:
        if isinstance(self.sym, torch.SymInt):
            return int
        return float if isinstance(self.sym, torch.SymFloat) else bool

    def describe(self) -> str:
        return f"the symbolic {self.type_name} {self.sym}"

    def as_proxy(self) -> fx.Node:
        return self.node

    def specialize(self) -> Number:
        """The number of this call; a guard records that the compiled code relies on it."""
        try:
            return self.python_type()(self.sym)  # type: ignore[no-any-return]
        except DataDependentError:
            raise Unsupported("item", what=self.describe()) from None

    def as_constant(self) -> object:
        return self.specialize()

    def constant(self) -> ConstantValue:
        """The specialised number as a value."""
        return ConstantValue(self.specialize())

    # --- numbers -----------------------------------------------------------------------------
    def binary(self, tx: Trace, op: str, other: Value, *, reflected: bool = False) -> Value | None:
        if (other_sym := _number(other)) is None:
            return None
        if (fn := _BINARY.get(op)) is None:
            if op.startswith("i") and op[1:] in _BINARY and not reflected:
                return None  # numbers have no in-place operators
            return self.constant().binary(tx, op, known(other), reflected=reflected)
        if isinstance(other_sym, int | float):
            other = ConstantValue(other_sym)  # True is 1
        pair: tuple[Value, Value] = (other, self) if reflected else (self, other)
        left, right = (other_sym, self.sym) if reflected else (self.sym, other_sym)
        truths = [isinstance(n, torch.SymBool) for n in (left, right)]
        unknown = all(truths) and op in ("and_", "or_") and decide(self.sym) is None
        if unknown or (not any(truths) and _is_defined(tx, op, left, right)):
            return combine(tx, fn, pair, fn(left, right))
        return self.constant().binary(tx, op, known(other), reflected=reflected)

    def unary(self, tx: Trace, op: str) -> Value:
        if op == "pos" and not isinstance(self.sym, torch.SymBool):
            return self
        if op == "neg" and not isinstance(self.sym, torch.SymBool):
            negate: Callable[..., object] = operator.neg
            return combine(tx, negate, (self,), negate(self.sym))
        if op == "invert" and isinstance(self.sym, torch.SymInt):
            return self.unary(tx, "neg").binary(tx, "sub", ConstantValue(1)) or self
        return self.constant().unary(tx, op)

    def richcompare(self, tx: Trace, op: str, other: Value) -> Value | None:
        if (other_sym := _number(other)) is None:
            return None
        if isinstance(self.sym, torch.SymBool) is not isinstance(other_sym, torch.SymBool):
            return self.constant().richcompare(tx, op, known(other))
        result = COMPARE[op](self.sym, other_sym)
        if (truth := decide(result)) is None:
            return combine(tx, COMPARE[op], (self, other), result)
        return ConstantValue(truth)

    def bool(self, tx: Trace) -> bool:
        known = decide(self.sym if isinstance(self.sym, torch.SymBool) else self.sym != 0)
        if known is None:
            raise Unsupported("data-dependent-branch", what=self.describe())
        return known

    def logical_not(self, tx: Trace) -> Value:
        """``not self``."""
        if isinstance(self.sym, torch.SymBool) and decide(self.sym) is None:
            negate: Callable[..., object] = torch.sym_not
            return combine(tx, negate, (self,), negate(self.sym))
        return ConstantValue(not self.bool(tx))

    def hash_key(self, tx: Trace) -> object:
        return self.specialize()

    def getattr(self, tx: Trace, name: str) -> Value:
        if name in ("real", "numerator") and not isinstance(self.sym, torch.SymBool):
            return self
        if name in ("imag", "denominator") and isinstance(self.sym, torch.SymInt):
            return ConstantValue(0 if name == "imag" else 1)
        if name in _CONVERSIONS:
            return SymConversion(self, name)
        if name == "bit_length" and isinstance(self.sym, torch.SymInt):
            return SymBits(self, name)
        return self.constant().getattr(tx, name)

    # --- conversions used by builtins --------------------------------------------------------
    def to_int(self, tx: Trace) -> Value:
        """``int(self)``."""
        if isinstance(self.sym, torch.SymInt):
            return self
        if isinstance(self.sym, torch.SymFloat):
            truncate: Callable[..., object] = torch.sym_int
            return combine(tx, truncate, (self,), truncate(self.sym))
        return ConstantValue(int(self.specialize()))

    def to_float(self, tx: Trace) -> Value:
        """``float(self)``."""
        if isinstance(self.sym, torch.SymFloat):
            return self
        if isinstance(self.sym, torch.SymInt):
            convert: Callable[..., object] = torch.sym_float
            return combine(tx, convert, (self,), convert(self.sym))
        return ConstantValue(float(self.specialize()))

    def text(self, tx: Trace, name: str) -> Value:
        """``str`` and ``repr``."""
        return self.format(tx, "")

    def format(self, tx: Trace, spec: str, write: Callable[..., str] = format) -> Value:
        """``write(self, spec)``, which need not be known while tracing."""
        if isinstance(self.sym, torch.SymBool) or self.sym.node.hint is None or spec.endswith("c"):
            return tx.interp.fold(write, self.specialize(), spec)
        return number_text(tx, self, spec, write)

    def call_builtin(
        self, tx: Trace, obj: object, args: Sequence[Value], kwargs: dict[str, Value]
    ) -> Value | None:
        """A Python builtin that got this number among its arguments, or None."""
        from torchsmith_tracer._src.values.torch_classes import number_builtin

        return number_builtin(tx, obj, args, kwargs)

    def reconstruct(self, cg: Emitter) -> str:
        return cg.graph_output(self)


class SymConversion(MethodOf["SymNumValue"]):
    """``n.__int__`` and the like of a symbolic number."""

    __slots__ = ()
    cls = type((1).__int__)

    def call(self, tx: Trace, args: object, kwargs: object) -> Value:
        if self.name == "__float__":
            return self.owner.to_float(tx)
        if self.name in ("__floor__", "__ceil__") and isinstance(self.owner.sym, torch.SymFloat):
            fn: Callable[..., object] = math.floor if self.name == "__floor__" else math.ceil
            return combine(tx, fn, (self.owner,), fn(self.owner.sym))
        return self.owner.to_int(tx)


class SymBits(MethodOf["SymNumValue"]):
    """``n.bit_length`` of a symbolic int: one version for all ints of that length."""

    __slots__ = ()
    cls = type((1).bit_length)

    def call(self, tx: Trace, args: object, kwargs: object) -> Value:
        number: Any = self.owner.sym
        bits = int(number.node.hint or self.owner.specialize()).bit_length()
        size = number if decide(number >= 0) else -number
        if decide(size < 2**bits) and decide(size >= 2**bits // 2):
            return ConstantValue(bits)
        return ConstantValue(int(self.owner.specialize()).bit_length())


def found_at(tx: Trace, value: SymNumValue) -> tuple[Source, int] | None:
    """Where the int is found that ``value`` is, and what is added to that; None for others."""
    env, offset = tx.graph.shape_env, 0
    if env is None or not isinstance(value.sym, torch.SymInt):
        return None
    expr: SymExpr = env.simplify(expr_of(value.sym))
    match expr.parts():
        case [term, Const(value=int(offset))] if isinstance(expr, Add):
            expr = term
    source = env.bindings.get(expr.name) if isinstance(expr, Symbol) else None
    return None if source is None else (source, offset)


def unroll(tx: Trace, number: object) -> None:
    """What comes next needs ``number`` itself, as the length of something that is unrolled."""
    env = tx.graph.shape_env
    if isinstance(number, torch.SymInt) and env is not None and number.node.hint is not None:
        names = {name: source.expr for name, source in env.bindings.items()}
        key = env.simplify(expr_of(number)).text(names)
        tx.builder.unroll(f"a loop of `{key}` steps", key, number.node.hint)


def symbolic(node: fx.Node, number: object) -> SymNumValue:
    """The value of a symbolic size; torch's own annotations call these plain ints."""
    assert isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool)
    return SymNumValue(node, number)


_ROUNDINGS = (torch.sym_int, math.floor, math.ceil, round)


def combine(
    tx: Trace, fn: Callable[..., object], operands: tuple[Value, ...], result: object
) -> Value:
    """The value of ``fn(*operands)`` whose symbolic result is ``result``; a result that turned
    out to be known needs no node."""
    if isinstance(result, torch.SymInt | torch.SymFloat | torch.SymBool):
        limited: Any = result if fn is operator.pow else None
        most = sys.float_info.max
        if fn in _ROUNDINGS:
            limited, most = _number(operands[0]), 2.0**62  # what tensors can take
        try:
            result.node.hint  # noqa: B018 - is it computable?
            if isinstance(limited, torch.SymFloat):
                finite = abs(limited) <= most  # type: ignore[arg-type]
                if (decide(finite) or assume(tx, finite)) is not True:
                    raise OverflowError
        except (ArithmeticError, ValueError):
            return tx.interp.fold(fn, *[v.as_constant() for v in operands])
        args = tuple(v.as_proxy() for v in operands)
        node = tx.graph.add_call("call_function", fn, args, {}, result)
        return SymNumValue(node, result)
    return ConstantValue(result)


def _number(value: Value) -> Symbolic | Number | None:
    value = value.base_value()
    if isinstance(value, SymNumValue):
        return value.sym
    if isinstance(value, ConstantValue) and type(value.value) in (int, float):
        return value.value  # type: ignore[return-value]
    if isinstance(value, ConstantValue) and type(value.value) is bool:
        return int(value.value)
    return None


def decide(condition: object) -> bool | None:
    """The truth of a condition, guarded; None when only the data determines it."""
    try:
        return bool(condition)
    except DataDependentError:
        return None


def _is_defined(tx: Trace, op: str, left: Symbolic | Number, right: Symbolic | Number) -> bool:
    """Whether an operation gives a number of the kind that its operands say; asking guards it, or
    asserts it where only the data knows."""
    condition: object = True
    floats = any(isinstance(n, torch.SymFloat | float) for n in (left, right))
    if floats and op in ("and_", "or_", "xor", "lshift", "rshift"):
        return False
    if floats and op == "floordiv":
        return False  # torch rounds the quotient, Python does not, and zeros have signs
    if op in ("truediv", "floordiv", "mod"):
        condition = right != 0
    elif op == "pow":
        # Else the result is complex, or a float, or an error.
        condition = left > 0 if floats else right >= 0  # type: ignore[operator]
    elif op in ("lshift", "rshift"):
        condition = right >= 0  # type: ignore[operator]
    if (known := decide(condition)) is None:
        assume(tx, condition)
    return known is not False


def assume(tx: Trace, condition: object) -> bool:
    """Rely on a condition: guarded, or checked when the graph runs where only the data knows."""
    assert isinstance(condition, torch.SymBool)
    env = tx.graph.shape_env
    assert env is not None
    holds: bool = env.require(condition.node.condition)
    tx.graph.emit_asserts()
    return holds


def known(value: Value) -> Value:
    """``value`` with a symbolic number specialised."""
    return value.constant() if isinstance(value, SymNumValue) else value
