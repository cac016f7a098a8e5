"""``ShapeRelation``: what a guard of kind ``SHAPE`` expects."""

from __future__ import annotations

from dataclasses import dataclass

from torchsmith_guards._src.shapes.relation import SymCondition
from torchsmith_guards._src.sources.sources import Source


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

    def __repr__(self) -> str:
        return self.text()
