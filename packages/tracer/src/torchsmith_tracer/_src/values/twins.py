"""Objects of C classes made by traced code, played by instances of Python classes that are traced.

A *twin* is a Python class that behaves as a C class does. ``type()`` and ``isinstance`` see the C
class; every method comes from the twin and is traced like the user's own code. In generated code
the object is made again by the twin's ``rebuild(cls, *state)``.
"""

from __future__ import annotations

from typing import Any, cast

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.emitter import Emitter
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Args, Kwargs, Value
from torchsmith_tracer._src.values.lazy import realize
from torchsmith_tracer._src.values.mappings import DictValue
from torchsmith_tracer._src.values.python_instances import NewObjectValue, defines_new

TWINS: dict[tuple[str, str], Any] = {}  # by module and name: a module may be loaded more than once


def twin(module: str, *names: str) -> Any:
    """Register a twin for the C classes ``names`` of ``module``."""

    def register(cls: type) -> type:
        for name in names:
            TWINS[_public(module), name] = cls
        return cls

    return register


def twin_of(cls: type) -> Any:
    """The twin class of a C class, or None."""
    twin = TWINS.get((_public(cls.__module__), cls.__qualname__))
    if twin is not None and (defines_new(cls) or "__new__" not in cls.__dict__):
        return twin
    return None


def _public(module: str) -> str:
    # Which of the two a C class names differs between Pythons: ``_collections`` or ``collections``.
    return module.removeprefix("_")


class TwinValue(NewObjectValue):
    """An object of the C class ``real``, or the C part of an object of a subclass (``owner``).

    Attributes:
        state: the attributes that ``twin.state`` names; they are not the program's to see.
    """

    __slots__ = ("owner", "real", "state")

    def __init__(self, tx: Trace, real: type) -> None:
        super().__init__(tx.journal, twin_of(real), tx.interp.class_value(real))
        self.real = real
        self.owner: NewObjectValue | None = None
        self.state: dict[str, Value] = {}

    def python_type(self) -> type:
        return self.real

    def describe(self) -> str:
        return f"new object of class {self.real.__name__}"

    def _in_twin(self, name: str) -> bool:
        return name in self.cls.state  # type: ignore[attr-defined]

    def instance_get(self, tx: Trace, name: str) -> Value | None:
        if self._in_twin(name):
            return self.state.get(name)
        return super().instance_get(tx, name)

    def instance_set(self, tx: Trace, name: str, value: Value) -> None:
        if self._in_twin(name):
            tx.journal.assign(self, "state", {**self.state, name: value})
        else:
            super().instance_set(tx, name, value)

    def call_target(
        self, tx: Trace, args: Args, kwargs: Kwargs
    ) -> tuple[Value, Args, Kwargs] | None:
        """What a twin passes calls on to; another call is not one of user code."""
        names = getattr(self.cls, "forwards", None)
        if names is None:
            return None
        function, first, keywords = (self.state[name] for name in names)
        more: dict[str, Value] = {}
        for key, value in cast("DictValue", keywords).table.items():
            if not isinstance(key, str):
                return None
            more[key] = realize(tx, value[1])
        return function, [*tx.interp.unpack(first), *args], {**more, **kwargs}

    def call(self, tx: Trace, args: Args, kwargs: Kwargs) -> Value:
        method = self.special_method(tx, "__call__")
        return super().call(tx, args, kwargs) if method is None else method.call(tx, args, kwargs)

    def has_dict(self) -> bool:
        return self.real.__dictoffset__ != 0

    def played(self, method: Value) -> Any:
        """The method of the C class that one of the twin stands for; None for another."""
        name = getattr(method, "name", "")
        own = getattr(self.cls, name, None)
        same = own is not None and getattr(own, "__code__", None) is getattr(method, "code", None)
        return getattr(self.real, name) if same else None

    def reconstruct(self, cg: Emitter) -> str:
        return self.rebuild(cg, self)

    def rebuild(self, cg: Emitter, as_class_of: NewObjectValue) -> str:
        """The object, of the class of ``as_class_of``."""
        function = getattr(self.cls, "rebuild", None)
        if function is None:
            raise Unsupported("cannot-rebuild", what=self.describe())
        state = [self.state[name] for name in self.cls.state]  # type: ignore[attr-defined]
        return cg.call_of(cg.bound(function, "rebuild"), [as_class_of.class_expr(cg), *state])
