"""The pause of Python's cyclic collector during a compile."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Collector:
    """Python's cyclic collector while any thread traces or compiles. That only adds objects, which
    each full collection would walk again: a third of the time of a long trace, a fifth of that of
    a joint graph, and more than linear."""

    def __init__(self) -> None:
        self._compiles = 0
        self._enabled = False
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._forked)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No automatic collections inside."""
        with self._lock:
            if not self._compiles:
                self._enabled = gc.isenabled()
                gc.disable()
            self._compiles += 1
        try:
            yield
        finally:
            with self._lock:
                # A child forked inside has none of its parent's compiles.
                self._compiles = max(self._compiles - 1, 0)
                if not self._compiles and self._enabled:
                    gc.enable()

    def settle(self) -> None:
        """At the end of a compile: the pass over young objects, which is due by now. It frees what
        a compile leaves in cycles, most of what it makes, and what stays is old from now on; left
        alone, that pass falls into one of the compiled program's next calls."""
        if not self._compiles and gc.isenabled():
            gc.collect(1)

    def _forked(self) -> None:
        self._lock = threading.Lock()
        if self._compiles and self._enabled:
            gc.enable()
        self._compiles = 0


collector = Collector()
"""The one of this process."""
