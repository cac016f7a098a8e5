"""How control passes from one piece of a broken function to the next without growing the stack.

A step function runs one instruction natively and then hands on to a resume function. Doing that
by a call would nest once for each iteration of a loop with a break in it, so it *returns* a
``TailCall``; ``drive``, run once per activation of a user's function, makes the calls.
"""

from __future__ import annotations

from collections.abc import Callable

from torchsmith_tracer._src.frames.library import is_generated


class TailCall:
    """``entry(*rest, *results)`` is what is to be run next."""

    __slots__ = ("entry", "rest", "results")

    def __init__(
        self, entry: Callable[..., object], rest: tuple[object, ...], results: tuple[object, ...]
    ) -> None:
        self.entry = entry
        self.rest = rest
        self.results = results

    def take(self) -> tuple[object, ...]:
        """The arguments for ``entry``, which are nobody else's from now on."""
        args = (*self.rest, *self.results)
        self.rest = self.results = ()
        return args


def drive(step: Callable[..., object], *args: object) -> object:
    """Run one activation to its end and return what the user's function returns."""
    out = step(*args)
    del args  # nothing of the user's is held for longer than its own frame would
    try:
        while type(out) is TailCall:
            out = out.entry(*out.take())
    except BaseException as error:
        hide_ours(error)  # frames that were given the exception to raise would keep it alive
        raise
    return out


def hide_ours(error: BaseException) -> None:
    """Take the frames between the user's out of a traceback that the user's handler will see."""
    before, entry = None, error.__traceback__
    while entry is not None:
        if not is_generated(entry.tb_frame.f_code):
            before = entry
        elif before is None:
            error.__traceback__ = entry.tb_next
        else:
            before.tb_next = entry.tb_next
        entry = entry.tb_next
