"""The filter that keeps warnings back while tracing, and tells that there was one.

What operators warn of, they warn of again when the graph runs. What is computed while tracing and
known from then on does not: there, a warning is a break (``Silence.unbroken``), and the program
gives it.
"""

from __future__ import annotations

import threading
from typing import Any

from torchsmith_tracer._src.breaks.signals import Unsupported


class Silence(threading.local):
    """Stands for the text of a filter: any. ``count`` is how many warnings it has kept back."""

    count = 0

    def match(self, text: str) -> bool:
        """Whether a warning of that text is kept back."""
        self.count += 1
        return True

    def unbroken(self, before: int, what: object) -> None:
        """Nothing was kept back since ``count`` was ``before``.

        Raises:
            Unsupported: ``what`` has warned.
        """
        if self.count != before:
            name = getattr(what, "__qualname__", what)
            raise Unsupported("opaque-call", what=f"{name}, which warns,")


SILENCE = Silence()
SILENT: Any = ("ignore", SILENCE, Warning, None, 0)
