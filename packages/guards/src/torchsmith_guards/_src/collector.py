"""The pause of Python's cyclic collector during a compile."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from operator import methodcaller


class _Pause:
    """What each compile within one pause holds."""

    __slots__ = ("__weakref__", "end")

    def __init__(self) -> None:
        self.end = _End(self, methodcaller("resume"))


class _End(weakref.ref[_Pause]):
    """Looks at a pause. Called back at its end, which happens in no line of Python code, so that
    no exception of a signal's handler can come between."""

    resume = staticmethod(gc.enable)


class Collector:
    """Python's cyclic collector while any thread traces or compiles. That only adds objects, which
    each full collection would walk again: a third of the time of a long trace, a fifth of that of
    a joint graph, and more than linear."""

    def __init__(self) -> None:
        self._end: _End | None = None
        os.register_at_fork(after_in_child=self._forked)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No automatic collections inside."""
        pause = self._join()
        try:
            yield
        finally:
            del pause

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """``paused``, and before collections resume the pass over young objects, which is due by
        then. It frees what a compile leaves in cycles, most of what it makes, and what stays is
        old from now on; left alone, that pass falls into one of the compiled program's next calls,
        and after a pass of its own there would be two."""
        outermost = self._current() is None and gc.isenabled()
        with self.paused():
            yield
            if outermost:
                gc.collect(1)

    def _current(self) -> _Pause | None:
        return None if self._end is None else self._end()

    def _join(self) -> _Pause | None:
        """The present pause, or a new one; none where collections are off anyway. Two threads that
        begin at once have one each, and the first to end resumes them: early, but not too late."""
        pause = self._current()
        if pause is None and gc.isenabled():
            pause = _Pause()
            self._end = pause.end
            gc.disable()
        return pause

    def _forked(self) -> None:
        """A child has none of its parent's compiles."""
        if self._current() is not None:
            gc.enable()
        self._end = None


collector = Collector()
"""The one of this process."""
