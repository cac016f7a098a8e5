"""Generators that nobody can reach any more: their ``finally`` and ``with`` blocks run now.

CPython does that when the last reference goes. Values of the trace are referenced from all over
the tracer, so what is counted here is reachability from the traced program's frames, and only while
a generator is suspended inside a ``try`` or ``with`` block, after instructions that can drop a
reference.
"""

from __future__ import annotations

import contextlib
import types
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, takewhile
from typing import Any

from torchsmith_tracer._src.breaks.signals import ObservedException, Unsupported
from torchsmith_tracer._src.frames.frame import Frame, Handling
from torchsmith_tracer._src.frames.suspended import cleans_up, covered
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value, slot_names
from torchsmith_tracer._src.values.containers import DequeValue
from torchsmith_tracer._src.values.generators import GeneratorValue
from torchsmith_tracer._src.values.iterators import IteratorValue
from torchsmith_tracer._src.values.set_layouts import Element
from torchsmith_tracer._src.values.tracebacks import TracebackValue, can_show, frame_maker, lead_to

_NO_FOLLOW = frozenset(("source", "obj", "tx", "journal", "entry", "history"))


class Abandoned:
    """The ``suspended`` generators of one trace that may have something to clean up, with the
    number of frames that were active when they were suspended: what is held only by a builtin that
    runs frames deeper than that (``reduce(f, obj)``) is in use, though no frame refers to it."""

    def __init__(self, tx: Trace) -> None:
        self._tx = tx
        self.suspended: dict[GeneratorValue, int] = {}
        self._witness: dict[GeneratorValue, _Witness] = {}
        self._waiting: frozenset[GeneratorValue] = frozenset()  # until the one before has ended
        self.running: list[Frame] = []  # that go on after the trace
        self.raises = False  # they go on with an exception
        # Exceptions of before: their tracebacks lead to the outermost frame.
        self.caught: tuple[Value, ...] = ()
        self._below: dict[TracebackValue, tuple[Frame, ...]] = {}

    def note(self, gen: GeneratorValue) -> None:
        """``gen`` has just yielded."""
        if _pending(gen):
            self.suspended[gen] = len(self._tx.frames)

    def close(self) -> None:
        """Cut the circles of exceptions and the frames that hold them."""
        for entry in self._below:
            del entry.frame

    def passed(self, entry: TracebackValue) -> None:
        """``entry`` of a traceback has been made for the frame that runs. Once this has ended, it
        leads to its caller, and so on."""
        self._below[entry] = tuple(self._tx.frames[:-1])

    def kept(self, entry: TracebackValue) -> dict[str, Value]:
        """The variables that an entry has to hold after the trace: those of its own frame and of
        its callers that lead to suspended generators, and what shows where an exception is raised.
        """
        found: dict[str, Value] = {}
        for frame in self._led_to(entry):
            shows, ends = self.raises and frame is entry.frame, frame not in self.running
            for name, value in frame.variables().items():
                if (shows and can_show(value)) or (ends and self.holds(value)):
                    found[name if frame is entry.frame else f"{name} {len(found)}"] = value
        return found

    def _led_to(self, entry: TracebackValue) -> Iterator[Frame]:
        """The frames that an entry keeps: its own and its callers, up to one of a generator that is
        suspended, which has no caller and belongs to the generator."""
        callers = self._below.get(entry, ())[::-1]
        return takewhile(lambda frame: not frame.suspended(), (entry.frame, *callers))

    def release(
        self, dropped: Iterable[object], ending: Frame | None = None, result: Value | None = None
    ) -> None:
        """Close what cannot be reached any more, in the order in which it goes with ``dropped``,
        the values that the program has just let go of. ``ending`` is a frame that is about to
        return ``result``, or that an exception ``result`` leaves."""
        if ending is self._tx.frames[0] and self.caught:
            self._keep_with_caught(ending)
        while True:
            dead = [g for g in self.suspended if _pending(g) and not self._alive(g, ending, result)]
            if not dead:
                return
            first = dead[0]
            if len(dead) > 1:
                first = next(self._in_order(dead, dropped, ending, result), first)
            del self.suspended[first]
            waiting = self._waiting
            self._waiting = waiting.union(g for g in dead if g is not first)
            try:
                with contextlib.suppress(ObservedException):  # CPython prints and ignores it
                    first.close(self._tx)
            finally:
                self._waiting = waiting

    def _keep_with_caught(self, frame: Frame) -> None:
        """The frame that goes on where exceptions were handled lives for as long as they do."""
        held = {name: value for name, value in frame.variables().items() if self.holds(value)}
        maker = frame_maker(frame, tuple(held))
        for exc in self.caught if held else ():
            self._tx.journal.call_later(partial(lead_to, maker), exc, *held.values())

    def _in_order(
        self,
        dead: list[GeneratorValue],
        dropped: Iterable[object],
        ending: Frame | None,
        result: Value | None,
    ) -> Iterator[GeneratorValue]:
        """``dead`` as CPython ends them: an object goes with the last reference to it, and then
        what it refers to. Those in circles are left out."""
        alive: set[Value] = set()
        todo = [v for _, v in self._roots(ending, result)]
        while todo:
            value = todo.pop()
            if value not in alive:
                alive.add(value)
                todo += self._parts(value)
        held = [*_on(dropped)]
        inner = {g for other in dead for g in dead if g is not other and self._path(other, g)}
        more = [g for g in dead if g not in inner and not any(self._path(v, g) for v in held)]
        if len(more) > 1:  # a container has let go of them in an order of its own
            raise Unsupported("unsupported-slot", what="the end of several generators at once")
        held += more
        counts: Counter[Value] = Counter()
        todo = list(held)
        while todo:
            value = todo.pop()
            counts[value] += 1
            if counts[value] == 1 and value not in alive:
                todo += self._parts(value)
        todo = held[::-1]
        while todo:
            value = todo.pop()
            counts[value] -= 1
            if counts[value] == 0 and value not in alive:
                if value in dead:
                    yield value
                todo += [*self._parts(value)][::-1]

    def holds(self, value: object) -> bool:
        """Whether letting go of ``value`` may run code of a suspended generator, or show in a weak
        reference. Generators of context managers end when the context is left, whoever holds
        them."""
        if finalizes(value):
            return True
        if isinstance(value, Handling):
            value = value.exc
        return isinstance(value, Value) and any(
            self._path(value, end, contexts=False)
            for end in (*filter(_pending, self.suspended), *self._tx.interp.watched)
        )

    def _alive(self, gen: GeneratorValue, ending: Frame | None, result: Value | None) -> bool:
        witness = self._witness.get(gen)
        if witness is not None and self._still(witness, ending):
            return True
        for frame, root in self._roots(ending, result):
            if (path := self._path(root, gen)) is not None:
                self._witness[gen] = _Witness(frame, path, -1, -1)
                return True
        return witness is None and len(self._tx.frames) > self.suspended[gen]

    def _still(self, witness: _Witness, ending: Frame | None) -> bool:
        """Whether a frame reaches the generator as it did. While frames above it run and nothing
        is changed, it does; else the steps are looked at again."""
        frame, frames = witness.frame, self._tx.frames
        if frame is None or frame is ending or frame not in frames:
            return False
        changes = self._tx.journal.checkpoint()
        below = frame is not frames[-1]
        if below and (witness.ip, witness.changes) == (frame.ip, changes):
            return True
        path = witness.path
        there = any(v is path[0] for v in _within(frame, 0)) and all(
            any(v is after for v in self._parts(before)) for before, after in pairwise(path)
        )
        if there and below and not any(isinstance(v, GeneratorValue) for v in path[:-1]):
            witness.ip, witness.changes = frame.ip, changes
        return there

    def _roots(
        self, ending: Frame | None, result: Value | None
    ) -> Iterator[tuple[Frame | None, Value]]:
        frames = self._tx.frames
        yield from ((None, gen) for gen in self._waiting)
        if result is not None:
            yield None, result
        for i, frame in enumerate(frames):
            if frame is ending:
                continue
            yield from ((frame, v) for v in _within(frame, 0))
            if i + 1 < len(frames) and not frames[i + 1].entered_directly:
                yield from ((None, v) for v in _on(frame.saved))  # a builtin works on its operands
        journal = self._tx.journal
        yield from ((None, v) for v in journal.mutated if v.source is not None)
        for effect in journal.effects:
            yield from ((None, v) for v in _values(effect if isinstance(effect, tuple) else ()))
        for value, table in journal.attrs.items():
            if value.source is not None:
                yield from ((None, v) for v in _values(table.values()))

    def _parts(self, value: Value) -> Iterator[Value]:
        if isinstance(value, TracebackValue):
            yield from _within(value.inner, 0)
            for frame in self._led_to(value):
                yield from _within(frame, 0)
        else:
            yield from _parts(value)
            yield from _values(self._tx.journal.attrs.get(value, {}).values())

    def _path(self, root: Value, gen: Value, *, contexts: bool = True) -> list[Value] | None:
        """How ``root`` refers to ``gen``, step by step; None where it does not."""
        came: dict[Value, Value | None] = {root: None}
        todo = [root]
        while todo:
            value = todo.pop()
            if value is gen:
                path: list[Value] = [value]
                while (before := came[path[-1]]) is not None:
                    path.append(before)
                return path[::-1]
            cls = getattr(value, "cls", object)
            if not contexts and issubclass(cls, contextlib._GeneratorContextManager):
                continue
            for part in self._parts(value):
                if part not in came:
                    came[part] = value
                    todo.append(part)
        return None


@dataclass(slots=True)
class _Witness:
    """``frame`` (None: something else) holds the first value of ``path``, each refers to the next,
    and the last is the generator: so at instruction ``ip`` after so many ``changes``."""

    frame: Frame | None
    path: list[Value]
    ip: int
    changes: int


def finalizes(value: object, depth: int = 6) -> bool:
    """Whether dropping an iterator may run code of a suspended generator."""
    if isinstance(value, GeneratorValue):
        if (frame := value.frame) is None:
            return False
        return cleans_up(frame.info.code) or any(
            depth and finalizes(v, depth - 1) for v in (*frame.locals.values(), *_on(frame.stack))
        )
    if isinstance(value, IteratorValue):
        return any(depth and finalizes(part, depth - 1) for part in _parts(value))
    obj = getattr(value, "obj", None)
    return type(obj) is types.GeneratorType and cleans_up(obj.gi_code)


def _pending(gen: GeneratorValue) -> bool:
    frame = gen.frame
    if frame is None or not gen.started or gen.running:
        return False
    return covered(frame.info, frame.ip - 1)


def _values(items: Iterable[object]) -> Iterator[Value]:
    return (v for v in items if isinstance(v, Value))


def _on(stack: Iterable[object]) -> Iterator[Value]:
    for item in stack:
        if isinstance(item, Value):
            yield item
        elif isinstance(item, Handling):
            yield from _values((item.exc, item.previous))


def _parts(value: Value) -> Iterator[Value]:
    """The values that ``value`` refers to, in the order in which it lets go of them."""
    unread = getattr(value, "growing", None)
    yield from unread.tail if unread else ()
    for name in slot_names(type(value)):
        if name not in _NO_FOLLOW and not (unread and name == "items"):
            part: Any = getattr(value, name, None)
            forward = name == "items" and isinstance(value, DequeValue)
            yield from _within(part[::-1] if forward else part, 3)


def _within(part: object, depth: int) -> Iterator[Value]:
    if isinstance(part, Element):
        part = part.value
    if isinstance(part, Value):
        yield part
    elif isinstance(part, Frame):
        yield from (*part.variables().values(), *_on(part.stack))
    elif depth and isinstance(part, list | tuple):
        for item in reversed(part):
            yield from _within(item, depth - 1)
    elif depth and isinstance(part, set | dict):
        for item in part.values() if isinstance(part, dict) else part:
            yield from _within(item, depth - 1)
