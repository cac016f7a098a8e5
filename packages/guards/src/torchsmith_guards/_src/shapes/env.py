"""``ShapeEnv``: the symbols of one trace, what is assumed about them, and what must be guarded.

Static first: a condition that follows from the bounds of its symbols, or from guards that exist
already, is answered without a new guard. Otherwise it is answered for the sizes of this call (the
hints) and recorded. Sizes 0 and 1 never become symbols; equal sizes share one.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch

from torchsmith_guards._src.guards.guard import Guard, GuardKind
from torchsmith_guards._src.guards.shape_relation import BRANCH, EQUAL, ITSELF, RANGE, ShapeRelation
from torchsmith_guards._src.shapes import expr as ex
from torchsmith_guards._src.shapes import relation as rel
from torchsmith_guards._src.shapes.nodes import INF, Bound, Const, Number, Symbol, SymExpr
from torchsmith_guards._src.shapes.protocol import TorchProtocol
from torchsmith_guards._src.shapes.ranges import bounds, only_solution, refine
from torchsmith_guards._src.shapes.relation import Relation, SymCondition
from torchsmith_guards._src.shapes.sym_node import SymNode
from torchsmith_guards._src.sources.sources import SHAPES, Source, TensorPropertySource
from torchsmith_guards.errors import DataDependentError

SymbolKind = Literal["dynamic", "stride", "unspecified", "unbacked"]
_K = TypeVar("_K")
_V = TypeVar("_V")
Where = Callable[[], str | None]
# Torch's constructors have no types.
_sym_int: Callable[[SymNode], torch.SymInt] = torch.SymInt
_sym_float: Callable[[SymNode], torch.SymFloat] = torch.SymFloat


@dataclass(frozen=True, slots=True)
class ShapeGuard:
    """A recorded condition and the user's line that branched on it, when known."""

    condition: SymCondition
    user_line: str | None


class ShapeEnv(TorchProtocol):
    """Owner of all symbols of one trace.

    Attributes:
        guards: conditions that the program branched on, in order.
        runtime_asserts: conditions on data-dependent symbols, to be checked when they are known.
        bindings: for every symbol with a source: where its number is found.
        hints: number of each backed symbol at this call.
        definitions: what symbols stand for that have been made by ``named``.
        parts: what has been found of slices, for rules of their layout.
        where: gives the user's current ``file:line``; set by the tracer.
        history: tells sizes apart that are equal by chance: only those of which it says the same
            share a symbol; set by the tracer.
    """

    def __init__(self, where: Where | None = None) -> None:
        super().__init__()
        self.where: Where = where or (lambda: None)
        self.history: Callable[[Source], Hashable] = lambda source: None
        self.hints: dict[str, Number] = {}
        self.bindings: dict[str, Source] = {}
        self.runtime_asserts: list[ShapeGuard] = []
        self._symbols: dict[str, Symbol] = {}
        self._counts: dict[str, int] = {}
        self._by_source: dict[Source, Symbol] = {}
        self._by_size: dict[Hashable, Symbol] = {}
        self._tracked: list[tuple[Source, SymExpr]] = []
        self._guards: dict[SymCondition, ShapeGuard] = {}
        self._ranges: dict[Symbol, tuple[Bound, Bound]] = {}
        self._replacements: dict[Symbol, SymExpr] = {}
        self.definitions: dict[Symbol, SymExpr] = {}
        self._defined: dict[SymExpr, Symbol] = {}
        self.parts: dict[Hashable, tuple[Any, Any, Any]] = {}
        self.log: list[Callable[[], object]] = []
        self._frozen = 0

    # --- symbols ---------------------------------------------------------------------------

    def create_symbol(
        self, hint: Number | None, source: Source | None, kind: SymbolKind = "dynamic"
    ) -> torch.SymInt | torch.SymFloat | Number:
        """A symbolic number.

        Args:
            hint: its value at this call; None only for ``unbacked``.
            source: where the value is found; None only for ``unbacked``.
            kind: ``dynamic`` for sizes (equal ones share a symbol), ``stride`` for strides above 1,
                ``unspecified`` for ints and floats of the program, of which nothing is assumed,
                ``unbacked`` for numbers that depend on tensor contents.

        Returns:
            A ``torch.SymInt`` (``SymFloat`` for a float hint) whose node is ours. Sizes 0 and 1
            come back as they are: they are specialised, and the caller guards their value.
        """
        if kind == "unbacked":
            return self.create_unbacked()
        assert hint is not None and source is not None, "only unbacked symbols have no source"
        if isinstance(hint, float):
            return _sym_float(SymNode(self, self._new("zf", hint, source, -INF, INF)))
        known = self._by_source.get(source)
        if kind == "dynamic" and hint in (0, 1):
            return hint
        alike = (hint, self.history(source)) if kind == "dynamic" else None
        if known is None and kind == "dynamic":
            known = self._by_size.get(alike)
            if known is not None:
                self._bind(source, known)
                self.track(source, known)
        if known is None:
            known = self._new("s", hint, source, -INF if kind == "unspecified" else 2, INF)
            if kind == "dynamic":
                self._set(self._by_size, alike, known)
        return _sym_int(SymNode(self, known))

    def create_unbacked(self, *, size: bool = False) -> torch.SymInt:
        """A number that only the data determines; ``size`` says that it is not negative."""
        return _sym_int(SymNode(self, self._new("u", None, None, 0 if size else -INF, INF)))

    def unbacked_size(self, source: Source) -> torch.SymInt:
        """The size at ``source``, of which nothing is assumed."""
        return _sym_int(SymNode(self, self._new("u", None, source, 0, INF)))

    def bound_size(self, source: Source, lo: int | None, hi: int | None) -> None:
        """Guard that the size at ``source``, if it is a symbol, is in ``lo .. hi``."""
        symbol = self._by_source.get(source)
        if symbol is not None and lo is not None:
            self._record(rel.relate("<=", ex.const(lo), symbol))
        if symbol is not None and hi is not None:
            self._record(rel.relate("<=", symbol, ex.const(hi)))

    def size_of(self, expr: SymExpr) -> torch.SymInt | int:
        """A size or place that is computed from data, which is not negative."""
        found = self.named(expr)
        return int(found.value) if isinstance(found, Const) else _sym_int(SymNode(self, found))

    def named(self, expr: SymExpr) -> SymExpr:
        """What has no plain form, or might be negative for all that its parts tell, gets a symbol
        of its own, the same for the same expression."""
        if isinstance(expr, Symbol) or (expr.lo >= 0 and ex.is_plain(expr)):
            return expr
        known = self._defined.get(expr)
        if known is None:
            known = self._new("u", None, None, max(expr.lo, 0), expr.hi)
            self._set(self._defined, expr, known)
            self._set(self.definitions, known, expr)
        return known

    def know_part(self, key: Hashable, found: tuple[Any, Any, Any]) -> None:
        """Add to ``parts``."""
        self._set(self.parts, key, found)

    def create_unbacked_float(self) -> torch.SymFloat:
        """A float that only the data determines."""
        return _sym_float(SymNode(self, self._new("uf", None, None, -INF, INF, floating=True)))

    def bound_unbacked(self, name: str, lo: int, hi: int | None) -> None:
        """State that the data-dependent number ``name`` is in ``lo .. hi``, as its operator knows;
        no check is needed."""
        number = self._symbols.get(name)
        if number is not None and name not in self.hints:
            self._learn(rel.relate("<=", ex.const(lo), number))
            if hi is not None:
                self._learn(rel.relate("<=", number, ex.const(hi)))

    def track(self, source: Source, value: SymExpr | torch.SymInt) -> None:
        """State that the number at ``source`` equals ``value``; becomes a guard."""
        expr = value.node.value if isinstance(value, torch.SymInt) else value
        self._tracked.append((source, expr))
        self.log.append(self._tracked.pop)

    @property
    def has_symbols(self) -> bool:
        """True once a symbol exists."""
        return bool(self._symbols)

    @property
    def has_unbacked(self) -> bool:
        """True once a number exists that only the data determines."""
        return bool(self._counts.get("u"))

    def symbol_of(self, source: Source) -> Symbol | None:
        """The symbol bound to ``source``, if there is one."""
        return self._by_source.get(source)

    def _new(
        self,
        prefix: str,
        hint: Number | None,
        source: Source | None,
        lo: Bound,
        hi: Bound,
        *,
        floating: bool = False,
    ) -> Symbol:
        number = self._counts.get(prefix, 0)
        self._counts[prefix] = number + 1
        self.log.append(lambda: self._counts.__setitem__(prefix, number))
        name = f"{prefix}{number}"
        made = ex.symbol(name, lo, hi, floating=floating or isinstance(hint, float))
        self._set(self._symbols, name, made)
        if hint is not None:
            self._set(self.hints, name, hint)
        if source is not None:
            self._set(self.bindings, name, source)
            self._bind(source, made)
        return made

    def _bind(self, source: Source, symbol: Symbol) -> None:
        self._set(self._by_source, source, symbol)

    def _set(self, table: dict[_K, _V], key: _K, value: _V) -> None:
        """Set an entry so that ``rollback`` can restore what was there."""
        if key in table:
            old = table[key]
            self.log.append(lambda: table.__setitem__(key, old))
        else:
            self.log.append(lambda: table.pop(key))
        table[key] = value

    # --- decisions -------------------------------------------------------------------------

    @property
    def guards(self) -> list[ShapeGuard]:
        return list(self._guards.values())

    def simplify(self, expr: SymExpr) -> SymExpr:
        """``expr`` with symbols replaced that guards have made equal to something."""
        if not self._replacements or expr.free_symbols.isdisjoint(self._replacements):
            return expr
        return self.simplify(ex.substitute(expr, self._replacements))

    def hint_of(self, value: SymExpr | SymCondition) -> Number | bool | None:
        """The value at this call, or None when it depends on tensor contents."""
        if any(s.name not in self.hints for s in value.free_symbols):
            return None
        return value.evaluate(self.hints)

    def static_truth(self, condition: SymCondition | bool) -> bool | None:
        """The truth if it holds for all sizes that the guards so far allow, else None."""
        if isinstance(condition, bool):
            return condition
        if condition in self._guards:
            return True
        opposite = rel.invert(condition)
        if isinstance(opposite, bool):
            return not opposite
        if opposite in self._guards:
            return False
        if isinstance(condition, rel.Junction):
            return self._static_junction(condition)
        if isinstance(condition, rel.Inverted):
            inner = self.static_truth(condition.part)
            return None if inner is None else not inner
        if not isinstance(condition, Relation):
            return None
        left, right = self.simplify(condition.left), self.simplify(condition.right)
        if left is not condition.left or right is not condition.right:
            return self.static_truth(rel.relate(condition.op, left, right))
        if self._ranges:  # bounds from birth were used when the relation was built
            lo, hi = bounds(ex.sub(right, left), self._ranges)
            if condition.op == "<=" and (lo >= 0 or hi < 0):
                return lo >= 0
            if condition.op != "<=" and (lo > 0 or hi < 0 or lo == hi):
                return (condition.op == "==") is (lo == hi == 0)
        if condition.free_symbols.isdisjoint(self.definitions):
            return None
        # One step only: expressions of what others are made of grow without end.
        left, right = (ex.substitute(side, self.definitions) for side in (left, right))
        found = rel.relate(condition.op, left, right)
        return found if isinstance(found, bool) else None

    def _static_junction(self, condition: rel.Junction) -> bool | None:
        decisive = condition.op == "or"
        truths = [self.static_truth(part) for part in condition.parts]
        if decisive in truths:
            return decisive
        return None if None in truths else not decisive

    def evaluate_condition(
        self, condition: SymCondition | bool, fallback: bool | None = None
    ) -> bool:
        """Decide a branch: statically if possible, else by the hints, recording a guard.

        Args:
            condition: what the program asks.
            fallback: answer for a data-dependent condition that nothing decides.

        Raises:
            DataDependentError: the condition depends on tensor contents and has no fallback.
        """
        known = self.static_truth(condition)
        if known is not None:
            return known
        assert not isinstance(condition, bool), "a bool is its own static truth"
        truth = self.hint_of(condition)
        if truth is None:
            if fallback is None:
                raise self._data_dependent(condition)
            return fallback
        self._record(condition if truth else rel.invert(condition))
        return bool(truth)

    def evaluate_number(self, expr: SymExpr) -> Number:
        """The value at this call; the program is specialised on it by a guard.

        Raises:
            DataDependentError: it depends on tensor contents.
        """
        simple = self.simplify(expr)
        if isinstance(simple, Const):
            return simple.value
        value = self.hint_of(simple)
        if value is None:
            raise self._data_dependent(simple)
        if value != value:
            self._record(rel.relate("!=", simple, simple))  # as only NaN is
            return value
        self._record(rel.relate("==", simple, ex.const(value)))
        if value == 0 and isinstance(value, float):
            sign = ex.call("float_sign", simple)
            self._record(rel.relate("==", sign, ex.const(math.copysign(1.0, value))))
        return value

    def require(self, condition: SymCondition | bool) -> bool:
        """``torch._check``: the condition holds, or the program raises. Facts about data become
        runtime asserts; they count as known from here on."""
        known = self.static_truth(condition)
        if known is not None:
            return known
        assert not isinstance(condition, bool), "a bool is its own static truth"
        if self.hint_of(condition) is not None:
            return self.evaluate_condition(condition)
        self.runtime_asserts.append(ShapeGuard(rel.as_relation(condition), self.where()))
        self.log.append(self.runtime_asserts.pop)
        self._learn(condition)
        return True

    def _data_dependent(self, value: SymExpr | SymCondition) -> DataDependentError:
        names = sorted(s.name for s in value.free_symbols if s.name not in self.hints)
        return DataDependentError(expr=value.text(), symbols=", ".join(names))

    def _record(self, condition: SymCondition | bool) -> None:
        if isinstance(condition, bool) or self._frozen or condition in self._guards:
            return
        self._set(self._guards, condition, ShapeGuard(condition, self.where()))
        self._learn(condition)

    def _learn(self, condition: SymCondition | bool) -> None:
        """Use a fact for later static answers."""
        if isinstance(condition, rel.Junction) and condition.op == "and":
            for part in condition.parts:
                self._learn(part)
        if not isinstance(condition, Relation):
            return
        if condition.op == "==":
            for one, other in (
                (condition.left, condition.right),
                (condition.right, condition.left),
            ):
                if self.hint_of(one) is not None and self.hint_of(other) is None:
                    continue  # an input tells it, sooner than data does
                if isinstance(one, Symbol) and one not in self.simplify(other).free_symbols:
                    if one not in self._replacements:
                        self._set(self._replacements, one, other)
                    break
            else:
                alone = only_solution(condition, self._ranges, self.hints)
                if alone is not None and alone[0] not in self._replacements:
                    self._set(self._replacements, alone[0], ex.const(alone[1]))
        refined = refine(condition, self._ranges)
        if refined is not None:
            self._set(self._ranges, refined[0], refined[1])

    # --- guards ----------------------------------------------------------------------------

    def shape_guards(self) -> list[Guard]:
        """The guards that make the trace valid for other sizes: types and ranges of bound
        symbols, equalities between sources, and every recorded condition."""
        found: list[Guard] = []
        for name, source in self.bindings.items():
            symbol = self._symbols[name]
            if not isinstance(source, TensorPropertySource):
                number = float if symbol.floating else int
                found.append(Guard(source, GuardKind.TYPE, number, "symbolic number"))
            if symbol.lo > -INF:
                found += self._guard(Relation("<=", ex.const(symbol.lo), symbol), RANGE, None)
            if symbol.hi < INF:
                found += self._guard(Relation("<=", symbol, ex.const(symbol.hi)), RANGE, None)
        for source, expr in self._tracked:
            found.append(self._equality(source, expr))
        for guard in self._guards.values():
            found += self._guard(guard.condition, BRANCH, guard.user_line)
        return found

    def _guard(self, condition: SymCondition, why: str, user_line: str | None) -> list[Guard]:
        names = sorted(s.name for s in condition.free_symbols)
        if any(n not in self.bindings for n in names):
            return []  # about data: checked by a runtime assert
        bound = tuple((n, self.bindings[n]) for n in names)
        relation = ShapeRelation(condition, bound)
        if why is BRANCH and relation.constant() is not None:
            why = ITSELF
        return [Guard(SHAPES, GuardKind.SHAPE, relation, why, user_line)]

    def _equality(self, source: Source, expr: SymExpr) -> Guard:
        here = ex.symbol("value")
        names = sorted(s.name for s in expr.free_symbols)
        bound = (("value", source), *((n, self.bindings[n]) for n in names))
        condition = Relation("==", here, expr)
        return Guard(SHAPES, GuardKind.SHAPE, ShapeRelation(condition, bound), EQUAL)

    # --- rollback --------------------------------------------------------------------------

    def checkpoint(self) -> int:
        """A mark for ``rollback``."""
        return len(self.log)

    def rollback(self, mark: int) -> None:
        """Forget symbols and guards made since ``mark``."""
        while len(self.log) > mark:
            self.log.pop()()

    def close(self) -> None:
        """The trace is over: nothing is undone any more, and no line of it can be asked for."""
        self.log.clear()
        self.where = lambda: None

    @property
    def suppressed(self) -> bool:
        """True inside ``suppress_guards``."""
        return self._frozen > 0

    def on_rollback(self, undo: Callable[[], object]) -> None:
        """Have ``undo`` called when the trace is rolled back to before this point."""
        self.log.append(undo)

    @contextlib.contextmanager
    def suppress_guards(self) -> Iterator[None]:
        """Inside, branches on sizes are answered by hints and record nothing; for code that only
        looks (printing, debugging)."""
        self._frozen += 1
        try:
            yield
        finally:
            self._frozen -= 1
