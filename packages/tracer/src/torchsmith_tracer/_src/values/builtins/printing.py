"""``print`` and ``warnings.warn``: text that is known, and tensors, are written after the graph.

They are effects like any other and keep their order, among each other and with log records. One
waits only where nobody can tell: the stream's ``write`` is C code, so nothing of the user's runs
between the effects, it is open, and it takes the text; a warning has no filter that makes it an
exception. ``flush=True`` says that the text is to be seen now, and is a break.

``warnings.catch_warnings`` is left and entered among these effects, and the filters that a program
puts in force within are put in force there. Operators warn when the graph runs, and by C++: nodes
around them put the same filters in force, without making Python forget what it has shown.
"""

from __future__ import annotations

import functools
import io
import pickle
import re
import sys
import warnings
from typing import Any

import torch
from torch.fx import has_side_effect
from torchsmith_guards import NamespaceSource

from torchsmith_tracer._src.breaks.signals import ObservedException, Unsupported
from torchsmith_tracer._src.emitter import Emitter
from torchsmith_tracer._src.facts.silence import SILENT
from torchsmith_tracer._src.frames.library import is_generated
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.addresses import VaryingText
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtins.registry import builtin, constructor
from torchsmith_tracer._src.values.constants import NONE, ConstantValue
from torchsmith_tracer._src.values.contexts import PairedContext
from torchsmith_tracer._src.values.lazy import realize
from torchsmith_tracer._src.values.lookup import lookup
from torchsmith_tracer._src.values.numpy_arrays import ArrayValue
from torchsmith_tracer._src.values.symnum import SymNumValue
from torchsmith_tracer._src.values.tensor import TensorValue
from torchsmith_tracer._src.values.twins import TwinValue

_WRITES = (io.TextIOWrapper.write, io.StringIO.write)
_BUILTIN_PRINT = print  # a program may replace it
_UNICODE = ("utf-8", "utf8", "UTF-8", None)


@builtin(print)
def _print(
    tx: Trace,
    *args: Value,
    sep: Value = NONE,
    end: Value = NONE,
    file: Value = NONE,
    flush: Value = ConstantValue(False),  # noqa: B008
) -> Value:
    between, last = (tx.interp.try_concrete(v) for v in (sep, end))
    if tx.interp.is_none(file):
        file = tx.builder.wrap_new(sys).getattr(tx, "stdout")
        if tx.interp.is_none(file):
            return NONE
    file = realize(tx, file)
    if not all(text is None or type(text) is str for text in (between, last)):
        raise Unsupported("print")
    parts = [_part(tx, realize(tx, a), n) for n, a in enumerate(args)]
    known = [str(p.value) for p in parts if isinstance(p, ConstantValue)]
    if isinstance(file.base_value(), TwinValue) and len(known) == len(parts):
        text = str(" " if between is None else between).join(known)
        text += str("\n" if last is None else last)
        tx.interp.call(file.getattr(tx, "write"), [ConstantValue(text)])
        return NONE
    if tx.interp.truth(flush):
        raise Unsupported("print")
    _check_stream(tx, file, "".join([*known, between or "", last or ""]))  # type: ignore[list-item]
    ends = (ConstantValue(between), ConstantValue(last))
    tx.journal.call_later(_write, file, *ends, *parts)
    return NONE


def _part(tx: Trace, value: Value, place: int) -> Value:
    """What is printed for an argument: nothing that later code can change."""
    if isinstance(value, SymNumValue) or (isinstance(value, ArrayValue) and value.is_scalar):
        return value
    if isinstance(value, ArrayValue):
        return tx.interp.call(value.getattr(tx, "copy"), [])
    if isinstance(value, TensorValue):
        if value.cls is not torch.Tensor or value.fake.requires_grad:
            raise Unsupported("print")  # the text names its class, or the graph's own node
        return tx.graph.call_method("clone", (value,))
    try:
        text = tx.interp.str_of(value)
    except Unsupported as e:
        raise Unsupported("print") from e
    except ObservedException:
        if place:  # what comes before it is printed
            raise Unsupported("print") from None
        raise
    if isinstance(text, VaryingText):
        if all(part.isascii() for part in text.parts if isinstance(part, str)):
            return text
    known = tx.interp.try_concrete(text)
    if not isinstance(known, str):
        raise Unsupported("print")
    return ConstantValue(str(known))


def _check_stream(tx: Trace, file: Value, text: str) -> None:
    stream, source = getattr(file, "obj", None), file.source
    write = lookup(tx, type(stream), "write")
    own = getattr(stream, "__dict__", {})
    if source is None or write is None or write.attr not in _WRITES or "write" in own:
        raise Unsupported("print")
    if tx.interp.truth(tx.world.computed(stream, source, "closed")):
        raise Unsupported("print")
    if not text.isascii():
        encoding = tx.interp.concrete(tx.world.computed(stream, source, "encoding"))
        if encoding not in _UNICODE or any("\ud800" <= c <= "\udfff" for c in text):
            raise Unsupported("print")


def _write(file: Any, sep: str | None, end: str | None, *parts: object) -> None:
    _BUILTIN_PRINT(*parts, sep=sep, end=end, file=file)


# --- warnings ------------------------------------------------------------------------------------

Filter = tuple[str, re.Pattern[str] | None, type[Warning], re.Pattern[str] | None, int]
_shown = warnings.showwarning


def _can_wait(text: str, category: type[Warning], module: str, line: int) -> bool:
    """Whether no filter makes the warning an exception, and no function of the user's shows it."""
    if warnings.showwarning is not _shown and warnings.showwarning is not _ORIGINAL:
        return False
    own = [entry for entry in warnings.filters if entry is not SILENT]
    action = _action(own, text, category, module, line)  # type: ignore[arg-type]
    return (action or vars(warnings).get("defaultaction")) != "error"


def recorded() -> list[warnings.WarningMessage] | None:
    """What ``warnings.catch_warnings(record=True)`` has given to whoever looks at warnings now."""
    shown: Any = vars(warnings).get("_showwarnmsg_impl")
    return getattr(shown, "__self__", None)


def _action(
    filters: list[Filter], text: str, category: type[Warning], module: str, line: int
) -> str | None:
    """What the first filter for a warning does with it."""
    for action, message, kind, where, number in filters:
        if (
            issubclass(category, kind)
            and (message is None or message.match(text))
            and (where is None or where.match(module))
            and number in (0, line)
        ):
            return action
    return None


_ORIGINAL = vars(warnings).get("_showwarning_orig")


@builtin(warnings.warn)
def _warn(
    tx: Trace,
    message: Value,
    category: Value = NONE,
    stacklevel: Value = ConstantValue(1),  # noqa: B008
    source: Value = NONE,
    **others: Value,
) -> Value:
    text, level = tx.interp.try_concrete(message), tx.interp.try_index(stacklevel)
    # Code of ours stands for that of C, and so does that of ``pickle``.
    codes = [(frame.info.code, frame) for frame in tx.frames]
    frames = [f for c, f in codes if not is_generated(c) and c.co_filename != pickle.__file__]
    kind = UserWarning if tx.interp.is_none(category) else getattr(category, "obj", None)
    if (
        type(text) is not str
        or not (isinstance(kind, type) and issubclass(kind, Warning))
        or not (level is not None and 0 < level <= len(frames))
        or others
        or not tx.interp.is_none(source)
        or any(map(_of_warnings, (*tx.journal.attrs, *tx.journal.mutated)))
    ):
        raise Unsupported("opaque-call", what="warnings.warn")
    frame = frames[-level]
    space = frame.globals.obj
    warning = text, kind, _module(space), frame.line
    if _action([f for c in _caught(tx)[::-1] for f in c.filters or ()], *warning) != "ignore":
        if not tx.interp.truth(tx.world.query(_can_wait, *warning)):
            raise Unsupported("opaque-call", what="warnings.warn")
        record = tx.world.query(recorded)
        if not tx.interp.is_none(record):
            tx.journal.mutated.setdefault(record)  # and no other list that was read is it
    place = (frame.info.code.co_filename, frame.line, space)
    tx.journal.call_later(_show, *map(ConstantValue, (text, kind, *place)))
    return NONE


def _module(space: dict[str, Any]) -> str:
    return str(space.get("__name__") or "<string>")


@builtin(warnings.warn_explicit)
def _warn_explicit(tx: Trace, *args: Value, **kwargs: Value) -> Value:
    raise Unsupported("opaque-call", what="warnings.warn_explicit")


def _of_warnings(value: Value) -> bool:
    """Whether traced code has changed what the module of warnings holds."""
    start = value.source
    while start is not None and not isinstance(start.base, NamespaceSource | None):
        start = start.base
    return start is not None and "warnings" in start.expr


def _show(text: str, kind: type[Warning], file: str, line: int, space: dict[str, Any]) -> None:
    """``warnings.warn`` for a caller that is known already."""
    registry = space.setdefault("__warningregistry__", {})
    warnings.warn_explicit(text, kind, file, line, _module(space), registry)


@has_side_effect
def enter_filters() -> list[Filter]:
    """Put equal filters in force, which may be changed; returns those of before."""
    before: Any = warnings.filters
    if not any(entry is SILENT for entry in before):  # nothing is shown while tracing
        warnings.filters = before[:]
    return before  # type: ignore[no-any-return]


@has_side_effect
def add_filter(entry: Filter) -> None:
    """Put a filter before all others."""
    warnings.filters.insert(0, entry)  # type: ignore[attr-defined]


@has_side_effect
def exit_filters(before: list[Filter]) -> None:
    """Put the filters of before in force again."""
    warnings.filters = before


class CaughtWarnings(PairedContext):
    """``warnings.catch_warnings()``.

    Attributes:
        filters: those that the program has put in force within, newest first; None before it is
            entered, which it is once.
    """

    __slots__ = ("filters",)
    made_by = warnings.catch_warnings
    entry = staticmethod(enter_filters)
    end = staticmethod(exit_filters)

    def __init__(self) -> None:
        super().__init__(warnings.catch_warnings)
        self.filters: tuple[Filter, ...] | None = None

    def arguments(self) -> tuple[object, ...]:
        return ()

    def enter(self, tx: Trace) -> None:
        if self.filters is not None:
            raise Unsupported("opaque-call", what="entering warnings.catch_warnings twice")
        super().enter(tx)
        tx.journal.assign(self, "filters", ())
        tx.journal.call_later(warnings.catch_warnings.__enter__, self)

    def exit(self, tx: Trace) -> None:
        super().exit(tx)
        tx.journal.call_later(warnings.catch_warnings.__exit__, self)

    def reenter(self, cg: Emitter) -> None:
        """Nothing: it was entered among the effects."""


def _caught(tx: Trace) -> list[CaughtWarnings]:
    return [c for c in tx.graph.contexts if isinstance(c, CaughtWarnings)]


@constructor(warnings.catch_warnings)
def _catch_warnings(tx: Trace, **given: Value) -> Value:
    if given:
        raise Unsupported("opaque-call", what="warnings.catch_warnings with arguments")
    return CaughtWarnings()


_put: Any = vars(warnings)["_add_filter"]


@builtin(_put)
def _add_filter(tx: Trace, *item: Value, append: Value) -> Value:
    """What ``simplefilter`` and ``filterwarnings`` end with."""
    entry: Any = tuple([tx.interp.concrete(part) for part in item])
    caught = _caught(tx)
    if not caught or entry[0] == "error" or tx.interp.truth(append):
        raise Unsupported("opaque-call", what="a change of the filters of warnings")
    tx.graph.add_call("call_function", add_filter, (tx.graph.add_module(entry),), {}, None)
    tx.journal.assign(caught[-1], "filters", (entry, *(caught[-1].filters or ())))
    tx.journal.call_later(functools.partial(_put, append=False), *map(ConstantValue, entry))
    return NONE
