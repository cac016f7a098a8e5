"""``GuardSet``: the guards of one trace, without duplicates, with rollback."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

from torchsmith_guards._src.guards.checker import Checker
from torchsmith_guards._src.guards.guard import Guard


class GuardSet:
    """Guards in the order in which they were first added."""

    def __init__(self, guards: Iterable[Guard] = ()) -> None:
        self.log: dict[Hashable, Guard] = {}
        for guard in guards:
            self.add(guard)

    def add(self, guard: Guard) -> None:
        """Keep ``guard`` unless an equal one is there."""
        self.log.setdefault(guard.key(), guard)

    def checkpoint(self) -> int:
        """A mark for ``rollback``."""
        return len(self.log)

    def rollback(self, mark: int) -> None:
        """Forget the guards added since ``mark``."""
        while len(self.log) > mark:
            self.log.popitem()

    def compile(self, params: Sequence[str], bind: Mapping[str, object] | None = None) -> Checker:
        """Generate the checker of this set.

        Args:
            params: parameter names of the checker, in order; ``LocalSource`` names among them
                are arguments, all others must be in ``bind``.
            bind: objects for the remaining roots: ``F`` (entry function), ``G`` (its globals),
                ``M`` (module name to namespace dict), and local names.

        Returns:
            The checker; guards added to the set later do not change it.

        Raises:
            UnguardableSourceError: a guard's root is neither a parameter nor bound.
        """
        return Checker(tuple(self.log.values()), tuple(params), dict(bind or {}))

    def __iter__(self) -> Iterator[Guard]:
        return iter(self.log.values())

    def __len__(self) -> int:
        return len(self.log)

    def __contains__(self, guard: Guard) -> bool:
        return guard.key() in self.log

    def __str__(self) -> str:
        return "\n".join(f"{g.kind.value:>16}  {g.source.expr}  {g.expected!r}" for g in self)
