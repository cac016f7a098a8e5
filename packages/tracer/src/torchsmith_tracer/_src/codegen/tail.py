"""How control passes from one piece of a broken function to the next without growing the stack.

A step function runs one instruction natively and then hands on to a resume function. Doing that
by a call would nest once for each iteration of a loop with a break in it, so it *returns* a
``TailCall``; ``drive``, run once per activation of a user's function, makes the calls.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, TracebackType
from typing import Any

from torchsmith_tracer._src.frames.library import is_generated


@dataclass(slots=True, eq=False)
class TailCall:
    """``entry()(*rest, *results)`` is what is to be run next. Steps have entries as constants, into
    which the garbage collector does not look: a strong one would keep everything for ever."""

    entry: Callable[[], Callable[..., object] | None]
    rest: tuple[object, ...]
    results: tuple[object, ...]

    def take(self) -> tuple[object, ...]:
        """The arguments for ``entry``, which are nobody else's from now on."""
        args = self.rest + self.results
        self.rest = self.results = ()
        return args


def drive(todo: list[Any]) -> object:
    """Run one activation to its end and return what the user's function returns. ``todo`` is its
    first step with the arguments, which are taken out: nobody else holds them."""
    step, *args = todo
    todo.clear()
    out = step(*args)
    del step, args  # nothing of the user's is held for longer than its own frame would
    try:
        while type(out) is TailCall:
            out = out.entry()(*out.take())  # type: ignore[misc]  # whoever called has its record
    except BaseException as error:
        hide_ours(error)  # frames that were given the exception to raise would keep it alive
        raise
    return out


def weakly(method: Any) -> Callable[..., object]:
    """A bound method that does not keep its object, for the constants of code."""
    owner, fn = weakref.ref(method.__self__), method.__func__
    return lambda *args: fn(owner(), *args)


def hide_ours(error: BaseException) -> None:
    """Take the frames between the user's out of a traceback that the user's handler will see. What
    they hold goes: frames of the user's still lead to them."""
    before, entry = None, error.__traceback__
    while entry is not None:
        after = entry.tb_next
        if not is_generated(entry.tb_frame.f_code):
            before = entry
        else:
            if before is None:
                error.__traceback__ = after
            else:
                before.tb_next = after
            with contextlib.suppress(RuntimeError):  # still executing
                entry.tb_frame.clear()
        entry = after


def leads_to(error: object, code: CodeType) -> bool:
    """Whether ``error`` is an exception that has come last through a frame of ``code``, or of a
    piece of it."""
    if not issubclass(type(error), BaseException):  # its ``__class__`` may be the user's code
        return False
    entry = error.__traceback__  # type: ignore[attr-defined]
    passed = None if entry is None else entry.tb_frame.f_code
    names = ("co_filename", "co_qualname", "co_firstlineno")
    return passed is not None and all(getattr(passed, n) == getattr(code, n) for n in names)


def adopt(raised: list[BaseException]) -> None:
    """Lead the tracebacks of ``raised`` to the frame that calls this: it goes on for the one that
    their first entries stand for. The list is emptied."""
    frame = sys._getframe(1)
    code = frame.f_code
    while raised:
        error = raised.pop()
        entry = error.__traceback__
        if entry is not None and entry.tb_frame is not frame and leads_to(error, code):
            place = list(entry.tb_frame.f_code.co_positions())[entry.tb_lasti // 2]
            at = [i for i, other in enumerate(code.co_positions()) if other == place]
            error.__traceback__ = TracebackType(
                entry.tb_next, frame, 2 * at[-1] if at else -1, entry.tb_lineno
            )
