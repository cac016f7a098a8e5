"""Exception instances of the traced program.

The fields of the builtin classes (``OSError.errno``, ``StopIteration.value`` ...) are what the
class's own constructor makes of the arguments: it is called with the values themselves.
"""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Mapping, Sequence

from torchsmith_tracer._src.effects.journal import DELETED, Journal
from torchsmith_tracer._src.emitter import Emitter
from torchsmith_tracer._src.frames.frame import Frame
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtin_object import METHOD_TYPES
from torchsmith_tracer._src.values.constants import NONE, ConstantValue, bool_value
from torchsmith_tracer._src.values.containers import ListValue, TupleValue
from torchsmith_tracer._src.values.lookup import C_DATA, lookup
from torchsmith_tracer._src.values.python_instances import NewObjectValue, ObjectValue
from torchsmith_tracer._src.values.tracebacks import TracebackValue

_LINKS = ("__cause__", "__context__")
UNDELETABLE = frozenset(("args", "__traceback__", *_LINKS))
_COMMON = frozenset(("__dict__", "__suppress_context__", *UNDELETABLE))


BUILTIN_EXCEPTIONS = frozenset(
    obj
    for obj in vars(builtins).values()
    if isinstance(obj, type) and issubclass(obj, BaseException)
)


def builtin_base(cls: type) -> type[BaseException]:
    """The builtin class that lays out the instances of an exception class."""
    return next(base for base in cls.__mro__ if base in BUILTIN_EXCEPTIONS)


class ExceptionValue(NewObjectValue):
    """An exception made while tracing, of a builtin or user class.

    Attributes:
        args: what ``args`` gives.
        made_with: the positional arguments of ``__new__``.
        fields: those of the builtin class, but ``args``.
        cause, context, suppress, traceback: what ``__cause__`` ... give.
        was_raised: whether it was raised while the program handled nothing itself, so that what is
            handled where the compiled function is called is its context.
    """

    # As they are let go of.
    __slots__ = tuple("args fields made_with traceback cause context suppress was_raised".split())

    def __init__(
        self,
        journal: Journal,
        cls: type,
        args: Sequence[Value],
        cls_value: Value | None = None,
        fields: Mapping[str, Value] | None = None,
    ) -> None:
        super().__init__(journal, cls, cls_value)
        self.made_with = tuple(args)
        self.args = TupleValue(args)
        self.cause: Value = NONE
        self.context: Value = NONE
        self.suppress = False
        self.traceback: Value = NONE
        self.was_raised = False
        self.fields: Mapping[str, Value] = fields or {}

    def describe(self) -> str:
        parts = [repr(v.value) for v in self.args.items if isinstance(v, ConstantValue)]
        return f"{self.cls.__name__}({', '.join(parts)})"

    # --- fields ------------------------------------------------------------------------------
    def slot_get(self, tx: Trace, name: str, descriptor: object) -> Value:
        if name == "__context__" and self.was_raised and self.context is NONE:
            return tx.world.handled_outside()
        if name == "__suppress_context__":
            return bool_value(self.suppress)
        if name in UNDELETABLE:
            return getattr(self, name.strip("_"))  # type: ignore[no-any-return]
        stored = tx.journal.load_attr(self, name)
        if isinstance(stored, Value):
            return stored
        if stored is not DELETED and name in self.fields:
            return self.fields[name]
        if name in ("__class__", "__dict__", "__weakref__") or isinstance(descriptor, C_DATA[1]):
            return super().slot_get(tx, name, descriptor)
        return NONE

    def slot_set(self, tx: Trace, name: str, value: Value) -> None:
        """Store into one of the C-level fields."""
        if name == "__suppress_context__":
            self._change(tx, suppress=tx.interp.truth(value))
        elif name == "args":
            self._change(tx, args=TupleValue(tx.interp.unpack(value)))
        elif name == "__cause__":
            self._change(tx, cause=value, suppress=True)
        elif name in UNDELETABLE:
            raised = self.was_raised and name != "__context__"
            self._change(tx, **{name.strip("_"): value}, was_raised=raised)
        else:
            tx.journal.store_attr(self, name, value)

    def _change(self, tx: Trace, **new: object) -> None:
        for name, value in new.items():
            tx.journal.assign(self, name, value)

    def initialize(self, tx: Trace, args: Sequence[Value], kwargs: Mapping[str, Value]) -> None:
        """``__init__`` of the builtin class."""
        base = builtin_base(self.cls)
        _, found, fields = compute(tx, self.cls, self.made_with, {}, (args, kwargs))
        self._change(tx, args=found, fields=fields)
        stored = tx.journal.attrs.get(self, {})
        for name in [n for n in stored if n in FIELDS[base]]:
            tx.journal.store_attr(self, name, fields.get(name, NONE))

    def real(self, tx: Trace) -> BaseException:
        """A real exception of the builtin class with the same fields, for its ``__str__``."""
        exc = make_exception(builtin_base(self.cls), builtin_base(self.cls), (), {})
        exc.args = tuple(tx.interp.concrete(v) for v in self.args.items)
        for name in FIELDS[builtin_base(self.cls)]:
            stored = tx.journal.load_attr(self, name)
            value = stored if isinstance(stored, Value) else self.fields.get(name)
            if value is not None and not tx.interp.is_none(value):
                setattr(exc, name, tx.interp.concrete(value))
        return exc

    # --- generated code ----------------------------------------------------------------------
    def reconstruct(self, cg: Emitter) -> str:
        fields = {name: v for name, v in self.fields.items() if v is not NONE}
        pairs = [(cg.const(name), value) for name, value in fields.items()]
        base = cg.bound(builtin_base(self.cls))
        return cg.call(make_exception, base, self.class_expr(cg), self.args, cg.dict_of(pairs))

    def reconstruct_fill(self, cg: Emitter) -> None:
        super().reconstruct_fill(cg)
        links = (self.cause, self.context, self.traceback)
        for name, value in zip((*_LINKS, "__traceback__"), links, strict=True):
            if value is not NONE:
                cg.set_attr(self, name, value)
        if self.was_raised and self.context is NONE:
            cg.effect(_set_outer_context, self)
        if self.suppress or self.cause is not NONE:  # a cause has set it
            cg.set_attr(self, "__suppress_context__", str(self.suppress))


def make_exception(
    base: type[BaseException],
    cls: type[BaseException],
    args: tuple[object, ...],
    fields: dict[str, object],
) -> BaseException:
    """An exception of ``cls`` whose C part is as given; no code of the user's is run."""
    first = (fields.pop(name) for name in ("message", "exceptions"))
    exc: BaseException = base.__new__(cls, *(first if issubclass(base, BaseExceptionGroup) else ()))
    exc.args = args
    for name, value in fields.items():
        object.__setattr__(exc, name, value)
    return exc


def _set_outer_context(exc: BaseException) -> None:
    handled = sys.exception()
    if handled is not None and handled is not exc:
        exc.__context__ = handled


# --- fields of builtin classes -------------------------------------------------------------------


# Names of the C-level fields of each builtin class, without those that all exceptions have.
FIELDS: dict[type, frozenset[str]] = {
    base: frozenset(
        name
        for b in base.__mro__[:-1]
        for name, attr in vars(b).items()
        if isinstance(attr, C_DATA) and name not in _COMMON
    )
    for base in BUILTIN_EXCEPTIONS
}
Call = tuple[Sequence[Value], Mapping[str, Value]]


def compute(
    tx: Trace, cls: type, args: Sequence[Value], kwargs: Mapping[str, Value], init: Call | None
) -> tuple[type, TupleValue, dict[str, Value]]:
    """The class, ``args`` and the fields of ``cls.__new__(cls, *args)``, after ``__init__`` (None:
    the program's own runs later), as the builtin class makes them of the values."""
    base = builtin_base(cls)
    real: dict[int, Value] = {}

    def model(value: Value) -> object:
        base_value = value.base_value()
        obj: object = value
        if isinstance(value, ConstantValue):
            obj = value.value
        elif type(base_value) is TupleValue:
            obj = tuple(map(model, base_value.items))
        elif issubclass(base, BaseExceptionGroup) and isinstance(base_value, ListValue):
            obj = list(map(model, base_value.items))
        elif issubclass(base, BaseExceptionGroup) and issubclass(
            value.python_type(), BaseException
        ):
            obj = Exception() if issubclass(value.python_type(), Exception) else BaseException()
        real[id(obj)] = value
        kept.append(obj)
        return obj

    def value_of(obj: object) -> Value:
        known = obj if isinstance(obj, Value) else real.get(id(obj))
        if known is None and type(obj) is tuple:
            return TupleValue([value_of(item) for item in obj])
        return tx.interp.const(obj) if known is None else known

    kept: list[object] = []  # the identities stay theirs
    # Where the program has an ``__init__`` but no ``__new__``, the one of C leaves all to it.
    methods = [lookup(tx, cls, name) for name in ("__init__", "__new__")]
    in_c = [found is not None and isinstance(found.attr, METHOD_TYPES) for found in methods]
    space = {"__init__": _no_init} if in_c == [False, True] else {}
    group = issubclass(base, BaseExceptionGroup) and issubclass(cls, Exception)
    bases = (base, Exception) if group and not issubclass(base, Exception) else (base,)
    own: type[BaseException] = type(cls.__name__, bases, space)
    like = base if cls is base else own
    named = {name: model(v) for name, v in kwargs.items()}
    exc = tx.interp.hosted(like.__new__, like, *map(model, args), **named)
    if init is not None:
        named = {name: model(v) for name, v in init[1].items()}
        tx.interp.hosted(base.__init__, exc, *map(model, init[0]), **named)
    fields = {}
    for name in FIELDS[base]:
        found = getattr(exc, name, _ABSENT)
        if found is not _ABSENT:
            fields[name] = value_of(found)
    kind = cls if type(exc) is like else type(exc)
    made = TupleValue([value_of(a) for a in exc.args])
    real.clear()  # the two functions above refer to themselves, and to these
    kept.clear()
    return kind, made, fields


def _no_init(self: object, *args: object, **kwargs: object) -> None:
    """In place of the program's own ``__init__``."""


_ABSENT = object()


# --- raising -----------------------------------------------------------------------------------


def _link(tx: Trace, exc: Value, name: str) -> Value:
    if isinstance(exc, ExceptionValue):
        return getattr(exc, name.strip("_"))  # type: ignore[no-any-return]
    return exc.getattr(tx, name)


def set_context(tx: Trace, exc: Value, handled: Value | None = None) -> None:
    """``exc`` is raised: what is being handled becomes its context, without making a circle."""
    if (handled := handled or tx.interp.handled) is None:
        if isinstance(exc, ExceptionValue):
            if not exc.was_raised:
                exc._change(tx, was_raised=True)
            return
        handled = tx.world.handled_outside()  # of another exception, which has a context already
    if tx.interp.is_none(handled) or tx.interp.is_same(exc, handled):
        return
    seen: list[Value] = []
    link = handled
    while link not in seen:
        seen.append(link)
        context = _link(tx, link, "__context__")
        if tx.interp.is_none(context):
            break
        if tx.interp.is_same(context, exc):
            store(tx, link, "__context__", NONE)
            break
        link = context
    store(tx, exc, "__context__", handled)


def leaving_generator(tx: Trace, exc: Value) -> Value:
    """What leaves a generator that ``exc`` is raised in: for StopIteration a RuntimeError."""
    if not tx.interp.exception_matches(exc, StopIteration):
        return exc
    error = tx.interp.error(RuntimeError, "generator raised StopIteration").exc
    assert isinstance(error, ExceptionValue)
    error.slot_set(tx, "__cause__", exc)
    error.slot_set(tx, "__context__", exc)
    return error


def store(tx: Trace, exc: Value, name: str, value: Value) -> None:
    """Store into a field that all exceptions have."""
    if isinstance(exc, ExceptionValue):
        exc.slot_set(tx, name, value)
        return
    tx.journal.store_attr(exc, name, value)
    if name == "__cause__":  # where the stores are replayed, it comes last
        tx.journal.store_attr(exc, "__suppress_context__", bool_value(True))


def set_field(tx: Trace, exc: ObjectValue, name: str, value: Value) -> None:
    """``exc.name = value`` for a C-level field, checked."""
    kind = value.python_type()
    if issubclass(exc.cls, BaseExceptionGroup) and name in FIELDS[BaseExceptionGroup]:
        raise tx.interp.error(AttributeError, "readonly attribute")
    if name in _LINKS and not issubclass(kind, BaseException | None):
        text = f"exception {name.strip('_')} must be None or derive from BaseException"
        raise tx.interp.error(TypeError, text)
    if name == "__traceback__" and not issubclass(kind, types.TracebackType | None):
        raise tx.interp.error(TypeError, "__traceback__ must be a traceback or None")
    store(tx, exc, name, value)


def note_frame(tx: Trace, exc: Value, frame: Frame) -> TracebackValue | None:
    """``exc`` is raised in ``frame``, or passes it: the new entry of its traceback."""
    if frame.globals.own:
        return None
    entry = TracebackValue(frame, _link(tx, exc, "__traceback__"))
    store(tx, exc, "__traceback__", entry)
    return entry
