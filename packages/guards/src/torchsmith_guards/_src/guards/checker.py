"""``Checker``: a guard set made executable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torchsmith_guards._src.guards.guard import Guard


@dataclass(frozen=True, slots=True)
class Failure:
    """One guard that does not hold.

    Attributes:
        guard: the guard.
        old: what the compiled code was made for.
        new: what was found instead.
        hint: how to avoid the recompile.
    """

    guard: Guard
    old: object
    new: object
    hint: str


class Checker:
    """Decides whether compiled code may run for some arguments."""

    def __init__(
        self, guards: tuple[Guard, ...], params: tuple[str, ...], bind: dict[str, object]
    ) -> None:
        self.guards = guards
        self.params = params
        self.bind = bind
        self.code = ""
        self.check: Callable[..., bool] = lambda *args: True
        self.cost_ns = 0.0
