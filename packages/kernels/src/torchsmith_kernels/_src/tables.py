"""Which tile sizes a kernel runs with: tuned here, measured and shipped, or derived.

The first source that knows a case wins: what ``tune()`` stored on this machine, what was measured
and ships beside the op (``sm_90.json`` in the op's folder, same format), and what the op derives
from the sizes alone, which is **not measured**.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from torchsmith_kernels._src import store


class Case(Protocol):
    """What a configuration is chosen by; hashable. Similar sizes should share a key."""

    def key(self) -> str:
        """The case's name in stored tables, such as ``forward/4096/bfloat16``."""
        ...


CaseT = TypeVar("CaseT", bound=Case)
ConfigT = TypeVar("ConfigT")
ValueT = TypeVar("ValueT")

_FOLDER = Path(__file__).parent
_tables: list[Table[Any, Any]] = []
_remembered: list[Remembered[Any]] = []


@cache
def shipped(op: str, capability: int) -> store.Table:
    """The measured entries that come with the package for one op and compute capability."""
    path = _FOLDER / op / f"sm_{capability}.json"
    if not path.exists():
        return {}
    entries: store.Table = json.loads(path.read_text())["entries"]
    return entries


class Table(Generic[CaseT, ConfigT]):
    """All configurations of one op.

    ``ConfigT`` is a frozen dataclass of ints, bools and None.
    """

    def __init__(
        self,
        op: str,
        config: type[ConfigT],
        derive: Callable[[CaseT], ConfigT],
        accepts: Callable[[CaseT, ConfigT], bool] = lambda case, config: True,
    ) -> None:
        """Describes the configurations of ``op``.

        Args:
            op: the op's name, also that of its folder.
            config: the configuration's dataclass.
            derive: the configuration that follows from a case alone.
            accepts: whether the kernels run a case with a configuration of a stored table.
        """
        self.op, self.config, self.derive, self.accepts = op, config, derive, accepts
        self._chosen: dict[tuple[CaseT, int], tuple[ConfigT, str]] = {}
        _tables.append(self)

    def choose(self, case: CaseT, capability: int) -> ConfigT:
        """The configuration of ``case`` on a chip of ``capability`` (``10 * major + minor``)."""
        return self.explain(case, capability)[0]

    def explain(self, case: CaseT, capability: int) -> tuple[ConfigT, str]:
        """The configuration and where it is from: ``tuned``, ``measured`` or ``derived``."""
        known = self._chosen.get((case, capability))
        if known is None:
            known = self._chosen[case, capability] = self._find(case, capability)
        return known

    def _find(self, case: CaseT, capability: int) -> tuple[ConfigT, str]:
        key = case.key()
        for source, table in (
            ("tuned", store.tuned_table(self.op, capability)),
            ("measured", shipped(self.op, capability)),
        ):
            config = self.read(table.get(key, {}).get("config"))
            if config is not None and self.accepts(case, config):
                return config, source
        return self.derive(case), "derived"

    def read(self, stored: object) -> ConfigT | None:
        """A stored configuration, or None when it is not one."""
        if not isinstance(stored, dict):
            return None
        types = {field.name: str(field.type) for field in fields(self.config)}  # type: ignore[arg-type]
        for name, value in stored.items():
            missing = value is None and "None" in types.get(name, "")
            if name not in types or not (missing or isinstance(value, int)):
                return None
        try:
            return self.config(**stored)
        except TypeError:
            return None


class Remembered(dict[object, ValueT]):
    """What was worked out with the configurations, such as a whole launch, by what it depends on.

    Forgotten with them, and when there is too much of it: sizes may never repeat. Read it as a
    dictionary, write it by ``keep``.
    """

    def __init__(self, most: int = 4096) -> None:
        super().__init__()
        self._most = most
        _remembered.append(self)

    def keep(self, key: object, value: ValueT) -> None:
        """Remembers ``value``; forgets all others first when there are too many."""
        if len(self) >= self._most:
            self.clear()
        self[key] = value


def forget() -> None:
    """Chooses anew, after a stored table has changed."""
    for table in _tables:
        table._chosen.clear()
    for known in _remembered:
        known.clear()
