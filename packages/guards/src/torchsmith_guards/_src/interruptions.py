"""Exceptions that say nothing of the code that they come up in: what handlers of signals raise,
and the end of the process for a compile in a daemon thread."""

from __future__ import annotations

import _thread
import atexit
import inspect
import opcode
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

_SIGNALS = tuple(signal.valid_signals())
_RAISE = opcode.opmap["RAISE_VARARGS"]
_PATIENCE = 5.0  # seconds that a signal or the end waits for a place where it does no harm

_Handler = Callable[[int, FrameType | None], object]


class _Deferral:
    """Signals that arrive during a compile, which wait for ``deliver``. Python would call their
    handlers between any two instructions, and what they raise would come out of the middle of a
    context that torch is entering, a finalizer, or C++ that cannot pass it on."""

    def __init__(self) -> None:
        self.handlers: dict[int, _Handler] = {}
        self.waiting: dict[int, threading.Timer] = {}
        self.over = False

    def begin(self) -> None:
        """Take the place of the handlers that are Python's."""
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler):
                before = getattr(handler, "__self__", None)
                known = before.handlers[number] if type(before) is _Deferral else handler
                self.handlers[number] = known
                signal.signal(number, self.note)

    def end(self) -> None:
        """Put them back. Where one that is back raises, the others are still called from here."""
        self.over = True
        for number, handler in self.handlers.items():
            if signal.getsignal(number) == self.note:
                signal.signal(number, handler)

    def note(self, number: int, frame: FrameType | None) -> None:
        """A signal arrives. It waits, but not where one like it does already."""
        if self.over or number in self.waiting:
            if reminder := self.waiting.pop(number, None):
                reminder.cancel()
            self.handlers[number](number, frame)
            return
        reminder = threading.Timer(_PATIENCE, _thread.interrupt_main, (number,))
        reminder.daemon = True
        self.waiting[number] = reminder
        try:
            reminder.start()
        except RuntimeError:  # no thread can be started
            self.note(number, frame)

    def deliver(self) -> None:
        """Call the handlers of what waits."""
        while self.waiting and threading.current_thread() is threading.main_thread():
            number = next(iter(self.waiting))
            self.waiting.pop(number).cancel()
            self.handlers[number](number, sys._getframe())


class _Compiles:
    """Compiles under way, which others wait for. When the interpreter ends it stops daemon threads
    where they next ask for the GIL, and within torch's C++ that is an abort of the process. And a
    forked process has what other threads are importing only by half, locked for good."""

    def __init__(self) -> None:
        self.over = False
        atexit.register(self.end)
        os.register_at_fork(before=self.wait, after_in_child=self.forked)
        self.forked()

    def forked(self) -> None:
        """Only the thread that has forked is there, the main one from now on."""
        self.threads: list[threading.Thread] = []
        self.changed = threading.Condition()

    @contextmanager
    def compile(self) -> Iterator[None]:
        thread = threading.current_thread()
        with self.changed:
            self.threads.append(thread)
        try:
            self.deliver()
            yield
        finally:
            with self.changed:
                if thread in self.threads:  # not after a fork within
                    self.threads.remove(thread)
                self.changed.notify_all()
            if self.over and thread.daemon and thread not in self.threads:
                time.sleep(_PATIENCE)  # its frames hold what C++ frees, which asks for the GIL

    def deliver(self) -> None:
        if self.over and threading.current_thread().daemon:
            sys.exit()

    def wait(self) -> None:
        """Until other threads compile nothing, or for long enough."""
        own = threading.current_thread()
        with self.changed:
            self.changed.wait_for(lambda: all(t is own for t in self.threads), _PATIENCE)

    def end(self) -> None:
        self.over = True
        self.wait()


_current: _Deferral | None = None
_compiles = _Compiles()


@contextmanager
def deferred() -> Iterator[None]:
    """Around a compile: handlers of signals are called where ``deliver`` is, and at the end. In a
    daemon thread it ends there when the interpreter does."""
    global _current
    if _current is not None or threading.current_thread() is not threading.main_thread():
        with _compiles.compile():
            yield
        return
    found = _Deferral()
    try:
        _current = found
        found.begin()
        with _compiles.compile():
            yield
    finally:
        _current = None
        try:
            found.end()
        finally:
            found.deliver()


def deliver() -> None:
    """A place within a compile where an exception leaves nothing half done: call the handlers of
    the signals that have arrived.

    Raises:
        BaseException: what a handler raises; ``SystemExit`` in a daemon thread of a process that
            ends.
    """
    if _compiles.over:
        _compiles.deliver()
    if _current is not None and _current.waiting:
        _current.deliver()


def is_interruption(error: BaseException, *callees: object) -> bool:
    """Whether ``error``, which the caller has caught, comes from a handler of a signal, which
    Python calls wherever the main thread happens to be, or from ``callees``; or is no ``Exception``
    and not raised by a statement, as what C's own handler and other threads raise."""
    place = last = error.__traceback__ and error.__traceback__.tb_next
    callees = (_Deferral.deliver, *map(signal.getsignal, _SIGNALS), *callees)
    found = [inspect.unwrap(getattr(f, "__func__", f)) for f in callees if callable(f)]
    codes = [getattr(f, "__code__", None) or _code_of_call(f) for f in found]
    while place is not None and place.tb_frame.f_code not in codes:
        last, place = place, place.tb_next
    return place is not None or not (isinstance(error, Exception) or _is_raised(last))


def _is_raised(last: TracebackType | None) -> bool:
    """Whether a statement of the frame where a traceback ends has raised the exception."""
    return last is not None and last.tb_frame.f_code.co_code[last.tb_lasti] == _RAISE


def _code_of_call(instance: object) -> object:
    return getattr(getattr(type(instance), "__call__", None), "__code__", None)  # noqa: B004
