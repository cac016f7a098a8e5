"""``World``: the one way in which a trace reads objects that exist outside of it.

Every method returns what it found *and records the guard* that makes it a fact for the compiled
code, presence and absence alike. A value comes from one of three places:

* *sourced*: a path from the arguments leads to it (``AttrSource``, ``ItemSource`` ...), or other
  guards fix which object it is (``PinnedSource``): its own content is guarded from there on;
* *born*: made by traced code; it has no source, and nothing outside can change it;
* *trusted*: what cannot change (immutable types of C, this package's own code).

Facts about a class are guarded once per class and name, whatever the number of its instances.
"""

from __future__ import annotations

import functools
import sys
import threading
import types
from abc import ABCMeta
from collections.abc import Callable, Mapping
from enum import Enum, EnumMeta
from typing import TYPE_CHECKING, Any

import torch
from torchsmith_guards import (
    AttrSource,
    CallSource,
    ClassDictSource,
    DefaultsSource,
    GuardKind,
    ItemSource,
    PinnedSource,
    ResultSource,
    class_dict,
    class_mro,
)

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.facts.silence import SILENCE
from torchsmith_tracer._src.frames.library import is_library, is_ours
from torchsmith_tracer._src.torch_private import base_tensor

if TYPE_CHECKING:
    from torchsmith_guards import Source

    from torchsmith_tracer._src.trace import Trace
    from torchsmith_tracer._src.values.base import Value
    from torchsmith_tracer._src.values.constants import ConstantValue


ABSENT = object()  # what is found where nothing is
_IMMUTABLE_TYPE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE
# Sets, here and elsewhere: ``in`` a tuple of classes would ask ``__eq__`` of metaclasses.
_LITERALS = frozenset((bool, int, float, complex, str, bytes, type(None), type(Ellipsis)))
_NUMBERS = frozenset((int, float))
_MADE_AGAIN = frozenset((int, float, complex, str, bytes))
# Compared by content where they are used: which object holds the content says nothing.
_BY_CONTENT = frozenset((list, tuple, dict, set, frozenset))

# What tensors had when this was imported: what is there in its place now is the user's.
_TENSOR_CLASSES = {cls: dict(class_dict(cls)) for cls in (torch.Tensor, base_tensor)}


def own_dict(obj: object) -> object:
    """``obj.__dict__``, whatever the class makes of that name. A partial gets none from being
    asked: one that has a dict would not merge with a partial that is made of it."""
    if issubclass(type(obj), functools.partial):
        return functools.partial.__reduce__(obj)[2][3] or types.MappingProxyType({})
    if type(obj) is threading.local:
        return obj.__dict__  # that of this thread
    return object.__getattribute__(obj, "__dict__")


def _asked(fn: Callable[..., Any], *args: object) -> Any:
    """``fn(*args)``, which each check asks again: one that warns would warn each time."""
    before = len(SILENCE.kept)
    found = fn(*args)
    if SILENCE.since(before, fn):
        raise Unsupported("opaque-call", what=f"{fn!r}, which warns,")
    return found


def is_single(value: object) -> bool:
    """Whether equal constants of this content are always one object."""
    return type(value) not in _MADE_AGAIN or (type(value) is int and -6 < value < 257)


def _listed_members(cls: EnumMeta) -> str:
    return ",".join(cls._member_names_)


class World:
    """See the module's docstring. ``born`` holds the stand-ins of classes that traced code makes:
    they are no part of the world."""

    def __init__(self, tx: Trace) -> None:
        self.tx = tx
        self.born: set[type] = set()
        self._entries: dict[tuple[type, str], object] = {}
        self._mros: dict[type, tuple[type, ...]] = {}
        self._tensor_names: set[str] = set()
        self._defaults: dict[tuple[object, object], Value | None] = {}
        self.absent: set[tuple[Value, str]] = set()  # attributes known not to be an object's own
        self._noted: set[tuple[object, ...]] = set()
        self._handled = sys.exception()

    def forget(self) -> None:
        """Guards were rolled back: what was read must be read again."""
        self._entries.clear()
        self._mros.clear()
        self._tensor_names.clear()
        self._defaults.clear()
        self.absent.clear()
        self._noted.clear()

    def note(self, *fact: object) -> bool:
        """Whether a fact is new, whose guards the caller is about to add."""
        if fact in self._noted:
            return False
        self._noted.add(fact)
        return True

    # --- classes -----------------------------------------------------------------------------
    def fixed(self, cls: type) -> bool:
        """Whether nothing about a class can change: it is immutable, or this trace's own."""
        ours = str(cls.__module__).startswith("torchsmith_tracer.")
        return ours or bool(cls.__flags__ & _IMMUTABLE_TYPE) or cls in self.born

    def mro(self, cls: type) -> tuple[type, ...]:
        """The method resolution order of a class, which assigning ``__bases__`` changes."""
        found = self._mros.get(cls)
        if found is None:
            found = self._mros[cls] = class_mro(cls)
            if not self.fixed(cls):
                source = ResultSource(PinnedSource(cls), class_mro)
                self._guard(source, GuardKind.ID, found, "bases of a class")
        return found

    def metaclass(self, cls: type) -> type:
        """``type(cls)``, which assigning ``__class__`` changes."""
        if not self.fixed(cls):
            self._guard(PinnedSource(cls), GuardKind.TYPE, type(cls), "class of a class")
        return type(cls)

    def is_subclass(self, cls: type, other: type) -> bool:
        """``issubclass(cls, other)``, where ``other`` has no check of the user's."""
        if other in self.mro(cls):
            return True
        # A protocol that is one of instances only refuses.
        found = self.tx.interp.hosted(issubclass, cls, other)
        # What an abstract class has accepted it accepts for ever; what not may be registered.
        if not found and isinstance(other, ABCMeta) and not self.born & {cls, other}:
            self.query(issubclass, cls, other)
        return found

    def class_names(self, cls: type) -> list[str]:
        """The names in ``vars(cls)``, in order."""
        names = tuple(class_dict(cls))
        if not self.fixed(cls):
            expected = (types.MappingProxyType, names)
            why = "names in a class were listed"
            self._guard(ClassDictSource(cls), GuardKind.DICT_KEYS, expected, why)
        return list(names)

    def class_entry(self, cls: type, name: str) -> object:
        """``vars(cls)[name]`` or ``ABSENT``; base classes are not asked."""
        table = class_dict(cls)
        found = table.get(name, ABSENT)
        key = (cls, name)
        if key not in self._entries and not self.fixed(cls):
            self._entries[key] = found
            if found is ABSENT:
                why = f"class attribute {name!r} was looked up"
                expected = (name, False)
                self._guard(ClassDictSource(cls), GuardKind.DICT_CONTAINS, expected, why)
            else:
                self._same(found, ItemSource(ClassDictSource(cls), name))
        return found

    def class_attribute(self, cls: type, name: str, attr: object) -> Value:
        """The value of an entry that ``class_entry`` has found."""
        kind = type(attr)
        if not self.fixed(cls) and (kind in _LITERALS or kind in _BY_CONTENT):
            return self.tx.builder.wrap(attr, ItemSource(ClassDictSource(cls), name))
        return self.tx.builder.wrap_new(attr)

    def tensor_entry(self, name: str) -> None:
        """``name`` of tensors is torch's own; what was put in its place runs natively."""
        if name in self._tensor_names:
            return
        tables = _TENSOR_CLASSES.values()
        own = next((table[name] for table in tables if name in table), None)
        for cls, original in _TENSOR_CLASSES.items():
            found = self.class_entry(cls, name)
            if found is not ABSENT or name in original:
                users = isinstance(found, types.FunctionType) and not is_library(found.__code__)
                if users or found is not own:  # it may have been put back by assignment
                    raise Unsupported(
                        "opaque-call", what=f"torch.Tensor.{name}, which was replaced"
                    )
                break
        self._tensor_names.add(name)

    def _same(self, obj: object, source: Source) -> None:
        """What is at ``source`` is ``obj``, or equal to it where it is a literal. Content of
        containers and numbers are guarded where they are used (``class_attribute``)."""
        kind = type(obj)
        if kind in _LITERALS - _NUMBERS:
            self._guard(source, GuardKind.CONSTANT, obj, "class attribute")
        elif kind in _BY_CONTENT | _NUMBERS:
            self._guard(source, GuardKind.TYPE, kind, "class attribute")
        else:
            self._guard(source, GuardKind.ID, obj, "class attribute")

    # --- attributes and entries --------------------------------------------------------------
    def attribute(self, obj: object, source: Source, name: str) -> Value | None:
        """``obj.name`` as native code computes it, or None when there is no such attribute. For
        C types and modules, whose lookup runs no code that could be traced."""
        try:
            found = _asked(getattr, obj, name)
        except AttributeError:
            self._guard(source, GuardKind.HASATTR, (name, False), "attribute was looked up")
            return None
        return self.tx.builder.wrap(found, AttrSource(source, name))

    def instance_dict(self, obj: object) -> Mapping[str, object] | None:
        """``obj.__dict__`` for reads through ``instance_entry``, without running user code."""
        if issubclass(type(obj), type):
            return type.__getattribute__(obj, "__dict__")  # type: ignore[no-any-return]
        try:
            found = own_dict(obj)
        except Exception:  # noqa: BLE001 - a property of that name may do anything
            return None
        return found if isinstance(found, dict | types.MappingProxyType) else None

    def instance_names(self, obj: object, source: Source | None) -> tuple[str, ...]:
        """The names in ``obj.__dict__``, in order; none for an object that does not exist yet."""
        table = None if source is None else self.instance_dict(obj)
        if source is None or table is None:
            return ()
        names = tuple(table)
        if not all(isinstance(name, str) for name in names):
            raise Unsupported("unsupported-slot", what="a __dict__ of other keys than names")
        why = "attributes of an object were listed"
        place = self.own_table(obj, source)
        self._guard(place, GuardKind.DICT_KEYS, (type(table), names), why)
        return names

    def own_table(self, obj: object, source: Source) -> Source:
        """The path to ``obj.__dict__``, which runs no code of the object's class."""
        tables = map(class_dict, class_mro(type(obj)))
        asked = any(isinstance(t.get("__getattribute__"), types.FunctionType) for t in tables)
        asked = asked or issubclass(type(obj), functools.partial)
        return ResultSource(source, own_dict) if asked else AttrSource(source, "__dict__")

    def instance_entry(
        self, obj: object, source: Source, name: str, place: Source | None = None
    ) -> Value | None:
        """``obj.__dict__[name]``, or None when the dict lacks it; absence is guarded by the caller
        (``no_entry``) where it matters. ``place``: the path to it, if not ``source.name``."""
        table = self.instance_dict(obj)
        if table is None or name not in table:
            return None
        return self.tx.builder.wrap(table[name], place or AttrSource(source, name))

    def no_entry(self, obj: object, source: Source, name: str, why: str) -> None:
        """``obj.__dict__`` lacks ``name``."""
        self.missing(self.own_table(obj, source), name, why)

    def computed(self, obj: object, source: Source, name: str, *, called: bool = False) -> Value:
        """``obj.name`` (or ``obj.name()``), which is there and which C code computes."""
        found = _asked(getattr, obj, name)
        source = AttrSource(source, name)
        if called:
            return self.tx.builder.wrap(_asked(found), CallSource(source))
        return self.tx.builder.wrap(found, source)

    def identity(self, obj: object, source: Source) -> int:
        """``id(obj)`` as a number. The object itself is not kept by the guard."""
        self._guard(ResultSource(source, id), GuardKind.CONSTANT, id(obj), "id() of an object")
        return id(obj)

    def one_object(self, a: ConstantValue, b: ConstantValue) -> bool:
        """``a is b`` for constants: equal ones may be one object at this call, two at the next."""
        same = a.value is b.value
        equal = type(a.value) is type(b.value) and (same or a.value == b.value)
        if equal and not is_single(a.value) and a.source != b.source:
            first, second = (v.source or PinnedSource(v.value) for v in (a, b))
            kind = GuardKind.SAME_OBJECT if same else GuardKind.NOT_SAME
            why = "equal constants were compared by identity"
            self._guard(first, kind, second if same else (second,), why)
        return same

    def item(self, table: dict[object, object], source: Source, key: object) -> Value | None:
        """``table[key]`` for a literal key, or None when it is not there."""
        if key not in table:
            self.missing(source, key, f"{key!r} was looked up")
            return None
        return self.tx.builder.wrap(table[key], ItemSource(source, key))

    def missing(self, source: Source, name: object, why: str) -> None:
        """The dict at ``source`` lacks ``name``."""
        self._guard(source, GuardKind.DICT_CONTAINS, (name, False), why)

    # --- functions ---------------------------------------------------------------------------
    def default(
        self, fn: types.FunctionType, source: Source | None, which: int | str
    ) -> Value | None:
        """A default of a function, or None: positional (counted from the end: -1 is the last
        parameter's) or keyword-only."""
        if (fn, which) not in self._defaults:
            self._defaults[fn, which] = self._default(fn, source, which)
        return self._defaults[fn, which]

    def _default(
        self, fn: types.FunctionType, source: Source | None, which: int | str
    ) -> Value | None:
        assert source is not None, "an existing function has a source"
        name = "__defaults__" if isinstance(which, int) else "__kwdefaults__"
        table, place = getattr(fn, name), AttrSource(source, name)
        there = which in (range(-len(table or ()), 0) if isinstance(which, int) else table or ())
        found = table[which] if there else ABSENT
        if is_ours(fn.__code__.co_filename):
            pass
        elif isinstance(table, dict) and not there:
            self.missing(place, which, "defaults of a function")
        elif isinstance(table, dict) or (
            found is not ABSENT and not isinstance(source, PinnedSource)
        ):
            return self.tx.builder.wrap(found, DefaultsSource(source, which))
        else:  # the tuple never changes: one guard for all defaults of a function
            self._guard(place, GuardKind.ID, table, "defaults of a function")
        return self.tx.builder.wrap_new(found) if there else None

    def signature(self, fn: types.FunctionType, source: Source) -> None:
        """All that ``inspect.signature(fn)`` reads is a fact."""
        why = "signature of a function"
        for name in ("__code__", "__defaults__"):
            self._guard(AttrSource(source, name), GuardKind.ID, getattr(fn, name), why)
        for name in ("__kwdefaults__", "__annotations__"):
            table, place = getattr(fn, name), AttrSource(source, name)
            if table is None:
                self._guard(place, GuardKind.ID, None, why)
            else:
                self._guard(place, GuardKind.DICT_KEYS, (dict, tuple(table)), why)
                for key, item in table.items():
                    self._guard(ItemSource(place, key), GuardKind.ID, item, why)
        if self.attribute(fn, source, "__signature__") is not None:
            raise Unsupported("opaque-call", what="inspect.signature of what has its own")
        wrapped, place = getattr(fn, "__wrapped__", None), AttrSource(source, "__wrapped__")
        if isinstance(wrapped, types.FunctionType):
            self._guard(place, GuardKind.ID, wrapped, why)
            self.signature(wrapped, place)
        elif self.attribute(fn, source, "__wrapped__") is not None:
            raise Unsupported("opaque-call", what="inspect.signature of a wrapper of an object")

    def class_table(self, cls: type, owner: type, name: str) -> list[tuple[object, Source]]:
        """The values of the dict ``name`` of a class, which ``owner`` in its MRO holds, each with
        its source; the keys are a fact."""
        table = class_dict(owner)[name]
        assert isinstance(table, dict)
        place = ItemSource(ClassDictSource(owner), name)
        if not self.fixed(owner):
            expected = (type(table), tuple(table))
            self._guard(place, GuardKind.DICT_KEYS, expected, f"{name} of {cls.__name__}")
        return [(item, ItemSource(place, key)) for key, item in table.items()]

    def enum_members(self, cls: EnumMeta) -> dict[str, Enum]:
        """The members of an enum class by name, in order, as its two tables have them."""
        self.query(_listed_members, cls)
        for member, source in self.class_table(cls, cls, "_member_map_"):
            self._guard(source, GuardKind.ID, member, "member of an enum class")
        return dict(cls._member_map_)

    def enum_value(self, cls: EnumMeta, value: object) -> None:
        """What the enum class ``cls`` has for a value is a fact, or that it has nothing."""
        table, name = cls._value2member_map_, "_value2member_map_"
        place = ItemSource(ClassDictSource(cls), name)
        try:
            member = table.get(value)
        except TypeError:  # cannot be hashed: the members are compared one by one
            self.enum_members(cls)
            return
        if member is not None:
            self._guard(ItemSource(place, value), GuardKind.ID, member, "value of an enum class")
        elif type(value) is not cls:
            self.missing(place, value, "value of an enum class")

    # --- the process -------------------------------------------------------------------------
    def query(self, fn: Callable[..., object], *args: object) -> Value:
        """``fn(*args)`` for a cheap question about the state of the process without any effect. It
        is asked again at each check. Its exceptions are the caller's."""
        return self.tx.builder.wrap(_asked(fn, *args), CallSource(PinnedSource(fn), args))

    def handled_outside(self) -> Value:
        """The exception that was being handled where the compiled function was called, or None."""
        return self.tx.builder.wrap(self._handled, CallSource(PinnedSource(sys.exception)))

    def _guard(self, source: Source, kind: GuardKind, expected: object, why: str) -> None:
        self.tx.builder.guard(source, kind, expected, why)
