"""``ShapeRelation``: what a guard of kind ``SHAPE`` expects."""

from __future__ import annotations

from dataclasses import dataclass

from torchsmith_guards._src.shapes.nodes import Const, Symbol
from torchsmith_guards._src.shapes.relation import Relation, SymCondition
from torchsmith_guards._src.sources.sources import Source

# Why a relation is guarded.
BRANCH, ITSELF = "branch on sizes", "the program needs the number itself"
EQUAL, RANGE = "equal sizes", "sizes 0 and 1 have their own code"


@dataclass(frozen=True, slots=True)
class ShapeRelation:
    """A condition over symbols, and where the number of each symbol is found.

    Attributes:
        condition: the relation.
        bindings: ``(symbol name, source of an int, float, or tensor property)``.
    """

    condition: SymCondition
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
