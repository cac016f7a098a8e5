"""``ShapeRelation``: what a guard of kind ``SHAPE`` expects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torchsmith_guards._src.shapes.nodes import Const, Number, Symbol
from torchsmith_guards._src.shapes.relation import Relation, SymCondition
from torchsmith_guards._src.sources.sources import Source

# Why a relation is guarded.
BRANCH, ITSELF = "branch on sizes", "the program needs the number itself"
EQUAL, RANGE = "equal sizes", "sizes 0 and 1 have their own code"


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """A condition that only a function can tell: its keywords are the names of the symbols."""

    fn: Callable[..., bool]
    free_symbols: frozenset[Symbol]

    def evaluate(self, values: Mapping[str, Number]) -> bool:
        """What the function says of given values of the symbols."""
        return self.fn(**{n: values[n] for n in sorted(s.name for s in self.free_symbols)})

    def text(self, names: Mapping[str, str] | None = None, fn: str | None = None) -> str:
        """Python source, where the function is called ``fn``."""
        known = names or {}
        values = [f"{n}={known.get(n, n)}" for n in sorted(s.name for s in self.free_symbols)]
        return f"{fn or self.fn.__qualname__}({', '.join(values)})"


@dataclass(frozen=True, slots=True)
class ShapeRelation:
    """A condition over symbols, and where the number of each symbol is found.

    Attributes:
        condition: the relation.
        bindings: ``(symbol name, source of an int, float, or tensor property)``.
    """

    condition: SymCondition | Question
    bindings: tuple[tuple[str, Source], ...]

    def text(self) -> str:
        """The condition as Python over source expressions."""
        return self.condition.text({name: source.expr for name, source in self.bindings})

    def constant(self) -> Const | None:
        """The number that a symbol has to be, where that is what the condition says."""
        match self.condition:
            case Relation("==", Symbol(), Const() as n) | Relation("==", Const() as n, Symbol()):
                return n
        return None

    def __repr__(self) -> str:
        return self.text()
