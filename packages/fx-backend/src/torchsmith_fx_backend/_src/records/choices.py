"""What measuring one kernel gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchsmith_fx_backend._src.codegen.triton.config import Config


@dataclass(frozen=True, slots=True)
class Choice:
    """The configuration of one kernel, or why the table's stays unmeasured.

    Attributes:
        config: what won; None where nothing was measured.
        seconds: what a launch with it took.
        table: the configuration that the table names.
        table_seconds: what a launch with that took; None where it does not run.
        measured, failed: how many configurations ran, and how many did not compile or run.
        reason: why nothing was measured.
    """

    config: Config | None = None
    seconds: float | None = None
    table: Config | None = None
    table_seconds: float | None = None
    measured: int = 0
    failed: int = 0
    reason: str = ""

    @property
    def other(self) -> Config | None:
        """What to use instead of the table's configuration."""
        return None if self.config == self.table else self.config

    def __str__(self) -> str:
        if self.seconds is None:
            return f"not measured: {self.reason}"
        of = f"{self.measured} measured" + (f", {self.failed} failed" if self.failed else "")
        told = f"{self.config}: {self.seconds * 1e6:.1f} us"
        if self.other is None:
            return f"{told}, as the table says; {of}"
        if self.table_seconds is None:
            return f"{told}; the table's {self.table} does not run; {of}"
        gain = self.table_seconds / self.seconds
        return f"{told}, {gain:.2f}x as fast as the table's {self.table}; {of}"

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        kept = {name: getattr(self, name) for name in self.__slots__}
        return {**kept, **{name: kept[name] and kept[name].to_json() for name in _CONFIGS}}

    @staticmethod
    def from_json(kept: Mapping[str, Any]) -> Choice:
        """What ``to_json`` gave."""
        configs = {name: kept[name] and Config.from_json(kept[name]) for name in _CONFIGS}
        return Choice(**{**kept, **configs})


_CONFIGS = ("config", "table")
