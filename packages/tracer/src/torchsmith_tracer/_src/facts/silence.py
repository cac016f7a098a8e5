"""The filter that keeps warnings back while tracing, and remembers them.

What operators warn of, they warn of again when the graph runs. What is computed while tracing and
known from then on does not: there, traced code has to warn in its place.
"""

from __future__ import annotations

import threading
from typing import Any

from torchsmith_tracer._src.breaks.signals import Unsupported


class Silence(threading.local):
    """Stands for the text, the module and the category of a filter: any. C asks in that order.

    Attributes:
        kept: texts, modules and categories of what this thread has kept back, one by one.
    """

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def match(self, text: str) -> bool:
        """Whether a warning of that text, or from a module of that name, is kept back."""
        self.kept.append(text)
        return True

    def since(self, before: int, what: object) -> list[tuple[str, type[Warning]]]:
        """What was kept back since so many were ``kept``; it is forgotten.

        Raises:
            Unsupported: ``what`` has warned of a line of its own, or of nobody's.
        """
        if len(self.kept) == before:
            return []
        found = self.kept[before:]
        del self.kept[before:]
        if not all(module.startswith("torchsmith_tracer.") for module in found[1::3]):
            name = getattr(what, "__qualname__", what)
            raise Unsupported("opaque-call", what=f"{name}, which warns,")
        return list(zip(found[::3], found[2::3], strict=True))


SILENCE = Silence()


class _AnyCategory(type):
    def __subclasscheck__(cls, category: type) -> bool:
        SILENCE.kept.append(category)
        return True


SILENT: Any = ("ignore", SILENCE, _AnyCategory("Any", (), {}), SILENCE, 0)
