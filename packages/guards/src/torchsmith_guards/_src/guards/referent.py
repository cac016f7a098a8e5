"""``Referent``: what an identity guard compares an argument with, without keeping it alive."""

from __future__ import annotations

import weakref
from dataclasses import replace

from torchsmith_guards._src.guards.guard import Guard, GuardKind
from torchsmith_guards._src.sources.sources import FunctionSource, LocalSource, own_name


class Referent(weakref.ref[object]):
    """A weak reference that can say what it referred to after that has died."""

    __slots__ = ("text",)
    text: str

    def __init__(self, obj: object) -> None:
        super().__init__(obj)  # type: ignore[call-arg]  # missing in its stub
        self.text = f"{type(obj).__name__} {own_name(obj, '__qualname__')}".rstrip()

    def shown(self) -> object:
        """The object, or text about it when it is gone."""
        found = self()
        return self.text if found is None else found


def weakly(guard: Guard, made: dict[int, Referent]) -> Guard:
    """``guard`` without a strong reference to an argument, or to what is reached through one. An
    object that cannot be referred to weakly stays as it is. ``made``: one referent per object."""
    if guard.kind is not GuardKind.ID or guard.expected is None:
        return guard
    if not isinstance(guard.source.root, LocalSource | FunctionSource):
        return guard
    try:
        key = id(guard.expected)
        if key not in made:
            made[key] = Referent(guard.expected)
        return replace(guard, expected=made[key])
    except TypeError:  # no ``__weakref__``
        return guard
