"""Exception instances of the traced program."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torchsmith_tracer._src.effects.journal import DELETED
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.constants import NONE, ConstantValue
from torchsmith_tracer._src.values.containers import TupleValue
from torchsmith_tracer._src.values.lookup import C_DATA
from torchsmith_tracer._src.values.python_instances import NewObjectValue

if TYPE_CHECKING:
    from torchsmith_tracer._src.codegen.emitter import Emitter
    from torchsmith_tracer._src.effects.journal import Journal
    from torchsmith_tracer._src.frames.frame import Frame
    from torchsmith_tracer._src.trace import Trace

_KEYWORDS = {"name", "obj", "path", "name_from"}


class ExceptionValue(NewObjectValue):
    """An exception made while tracing, of a builtin or user class.

    Attributes:
        args: the constructor's positional arguments.
        cause, context: what ``__cause__`` and ``__context__`` give.
        host: the real exception when the traced program's operation raised one on the host.
    """

    __slots__ = ("args", "cause", "context", "fields", "frames", "host", "suppress", "where")

    def __init__(
        self,
        journal: Journal,
        cls: type,
        args: list[Value],
        cls_value: Value | None = None,
        fields: dict[str, Value] | None = None,
    ) -> None:
        super().__init__(journal, cls, cls_value)
        self.args = TupleValue(args)
        self.cause: Value = NONE
        self.context: Value = NONE
        self.suppress = False
        self.fields: dict[str, Value] = fields or {}
        self.host: BaseException | None = None
        self.frames: list[Frame] = []  # those that it left, while something in them is of interest
        self.where: tuple[str, int] | None = None  # file and line that raised it

    def describe(self) -> str:
        parts = [repr(v.value) for v in self.args.items if isinstance(v, ConstantValue)]
        return f"{self.cls.__name__}({', '.join(parts)})"

    def message(self) -> str:
        """``str`` of the exception, as far as it is known."""
        values = [v.value for v in self.args.items if isinstance(v, ConstantValue)]
        if len(values) != len(self.args.items):
            return self.describe()
        if issubclass(self.cls, KeyError) and len(values) == 1:
            return repr(values[0])
        return "" if not values else str(values[0] if len(values) == 1 else tuple(values))

    def slot_get(self, tx: Trace, name: str, descriptor: object) -> Value:
        stored = tx.journal.load_attr(self, name)
        if isinstance(stored, Value):
            return stored
        value = self._field(name)
        if value is not None and stored is not DELETED:
            return value
        if name in ("__dict__", "__weakref__") or isinstance(descriptor, C_DATA[1]):
            return super().slot_get(tx, name, descriptor)
        return NONE

    def _field(self, name: str) -> Value | None:
        if name == "args":
            return self.args
        if name == "__cause__":
            return self.cause
        if name == "__context__":
            return self.context
        if name == "__suppress_context__":
            return ConstantValue(self.suppress)
        if name == "__traceback__":
            return NONE
        if name in self.fields:
            return self.fields[name]
        items = self.args.items
        if name == "value" and issubclass(self.cls, StopIteration):
            return items[0] if items else NONE
        if name == "code" and issubclass(self.cls, SystemExit):
            return (items[0] if len(items) == 1 else self.args) if items else NONE
        if name == "msg" and issubclass(self.cls, ImportError):
            return items[0] if len(items) == 1 else NONE
        if issubclass(self.cls, OSError) and 2 <= len(items) <= 5:
            order = {"errno": 0, "strerror": 1, "filename": 2, "filename2": 4}
            i = order.get(name, 9)
            return items[i] if i < len(items) else NONE
        if issubclass(self.cls, UnicodeDecodeError | UnicodeEncodeError):
            order = {"encoding": 0, "object": 1, "start": 2, "end": 3, "reason": 4}
            return items[order[name]] if name in order else None
        if name in _KEYWORDS:
            return NONE
        return None

    def slot_set(self, tx: Trace, name: str, value: Value) -> None:
        """Store into one of the C-level fields."""
        if name == "args":
            old_args = self.args
            tx.journal.record(lambda: setattr(self, "args", old_args))
            self.args = TupleValue(tx.interp.unpack(value))
        elif name in ("__cause__", "__context__", "__suppress_context__"):
            self._remember(tx)
            if name == "__context__":
                self.context = value
            elif name == "__cause__":
                self.cause, self.suppress = value, True
            else:
                self.suppress = tx.interp.truth(value)
        elif name != "__traceback__":
            tx.journal.store_attr(self, name, value)

    def _remember(self, tx: Trace) -> None:
        old = (self.cause, self.context, self.suppress)

        def undo() -> None:
            self.cause, self.context, self.suppress = old

        tx.journal.record(undo)

    def reconstruct(self, cg: Emitter) -> None:
        cg.load_callable(_make_exception, "make_exception")
        self.load_class(cg)
        cg.load(self.args)
        for name, value in self.fields.items():
            cg.load_const(name)
            cg.load(value)
        cg.build_map(len(self.fields))
        cg.call(3)

    def reconstruct_fill(self, cg: Emitter) -> None:
        super().reconstruct_fill(cg)
        for name, value in (("__cause__", self.cause), ("__context__", self.context)):
            if value is not NONE:
                cg.load(value)
                cg.load(self)
                cg.store_attr(name)
        if self.suppress:
            cg.load_const(True)
            cg.load(self)
            cg.store_attr("__suppress_context__")


def _make_exception(
    cls: type[BaseException], args: tuple[object, ...], fields: dict[str, object]
) -> BaseException:
    exc = cls.__new__(cls, *args)
    initialize: Callable[..., None] | None = vars(cls).get("__init__")
    if initialize is not None and not hasattr(initialize, "__code__"):
        initialize(exc, *args)
    exc.args = args
    for name, value in fields.items():
        object.__setattr__(exc, name, value)
    return exc
