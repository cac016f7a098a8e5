"""Constants, errors, identity and truth: what all value classes need from the interpreter."""

from __future__ import annotations

import enum
import re
import types
import warnings

# By name: the program may put other things in the module's place.
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from torchsmith_guards import NamespaceSource, PinnedSource, is_interruption

from torchsmith_tracer._src.breaks.signals import (
    BreakAt,
    InternalError,
    ObservedException,
    Unsupported,
)
from torchsmith_tracer._src.facts.silence import SILENCE
from torchsmith_tracer._src.facts.world import is_single
from torchsmith_tracer._src.values import hash_keys, mappings
from torchsmith_tracer._src.values.abstract.part import Part
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtin_object import PlainObject
from torchsmith_tracer._src.values.classes import ClassValue
from torchsmith_tracer._src.values.constants import FALSE, NONE, TRUE, ConstantValue, bool_value
from torchsmith_tracer._src.values.containers import (
    DequeValue,
    ListValue,
    NamedTupleValue,
    RangeValue,
    SliceValue,
    TupleValue,
    is_plain_named,
)
from torchsmith_tracer._src.values.exceptions import (
    FIELDS,
    ExceptionValue,
    builtin_base,
    compute,
    set_context,
)
from torchsmith_tracer._src.values.functions import CellValue
from torchsmith_tracer._src.values.instance_dict import InstanceDictValue
from torchsmith_tracer._src.values.namespaces import NamespaceValue
from torchsmith_tracer._src.values.numpy_scalars import NumpyValue, is_number_type
from torchsmith_tracer._src.values.python_instances import EnumValue, ObjectValue
from torchsmith_tracer._src.values.set_layouts import given
from torchsmith_tracer._src.values.sets import SetValue, element_of
from torchsmith_tracer._src.values.symnum import SymNumValue

if TYPE_CHECKING:
    from torchsmith_guards import Source

from torchsmith_tracer._src.trace import Trace

_PLAIN_SET = frozenset(hash_keys.PLAIN)


T = TypeVar("T")
Pair = tuple[Value, Value]
Globals = dict[str, object]
Known = tuple[list[object], dict[str, object]]


class Unknown:
    """The result of ``try_concrete`` for what is not known."""

    def __repr__(self) -> str:
        return "UNKNOWN"


Keywords = dict[str, Value]


class Basics(Part):
    """Constants, errors, identity and truth; namespaces, classes and cells by identity."""

    UNKNOWN = Unknown()

    def __init__(self, tx: Trace) -> None:
        super().__init__(tx)
        self.namespaces: dict[int, NamespaceValue] = {}
        self._classes: dict[type, ClassValue] = {}
        self._consts: dict[int, tuple[object, Value]] = {}
        self._cells: dict[int, CellValue] = {}

    def const(self, obj: object) -> Value:
        """The value of a host object that a traced operation produced."""
        kind = type(obj)
        if kind is bool:
            return TRUE if obj else FALSE
        if obj is None:
            return NONE
        if kind in _PLAIN_SET or kind is types.CodeType:
            return ConstantValue(obj)
        if kind is tuple:
            return TupleValue([self.const(x) for x in obj])  # type: ignore[attr-defined]
        if kind is list:
            return ListValue([self.const(x) for x in obj])  # type: ignore[attr-defined]
        if kind is dict or kind is OrderedDict:
            assert isinstance(obj, dict)
            pairs = [(self.const(k), self.const(v)) for k, v in obj.items()]
            result = self.dict_of(pairs)
            result.cls = kind
            return result
        if kind is set or kind is frozenset:
            assert isinstance(obj, set | frozenset)
            items = [self.const(x) for x in obj]
            elements = [element_of(self.tx, item) for item in items]
            return SetValue(given(obj, elements), None, kind)
        if kind is deque:
            assert isinstance(obj, deque)
            return DequeValue([self.const(x) for x in obj], obj.maxlen)
        if kind is slice:
            assert isinstance(obj, slice)
            return SliceValue(self.const(obj.start), self.const(obj.stop), self.const(obj.step))
        if kind is range:
            assert isinstance(obj, range)
            return RangeValue.of(obj)
        if isinstance(obj, enum.Enum):
            return EnumValue(obj)
        if isinstance(obj, type):
            return self.class_value(obj)
        if isinstance(obj, tuple) and is_plain_named(self.tx, kind):
            return NamedTupleValue([self.const(x) for x in obj], kind)
        if isinstance(obj, Value):
            return obj
        if is_number_type(kind):
            return NumpyValue(obj)
        return ConstantValue(obj) if kind is re.Match else self.tx.builder.wrap_new(obj)

    def code_const(self, obj: object) -> Value:
        """The value of a constant of a code object; the same object gives the same value."""
        if (entry := self._consts.get(id(obj))) is None:
            entry = self._consts[id(obj)] = (obj, self.const(obj))
        return entry[1]

    def dict(self, items: Mapping[str, Value]) -> mappings.DictValue:
        """A new dict with string keys."""
        return mappings.DictValue({k: (ConstantValue(k), v) for k, v in items.items()})

    def dict_of(self, pairs: Iterable[Pair]) -> mappings.DictValue:
        """A new dict; later pairs replace the values of earlier equal keys."""
        made = mappings.DictValue()
        for key, value in pairs:
            hkey = self.hash_key(key)
            (held, _), new = mappings.claim(made, hkey, (key, value))
            if not new:
                with hash_keys.comparing_none():
                    made.table[hash_keys.held_key(hkey)] = held, value
        return made

    def namespace(self, obj: Globals) -> NamespaceValue:
        """The namespace of a globals dict; the first one asked for is the entry function's."""
        if (space := self.namespaces.get(id(obj))) is None:
            module: str | None = None
            if self.namespaces:
                module = str(obj.get("__name__", "sys.modules"))
                taken = {s.module for s in self.namespaces.values()}
                while module in taken:
                    module += "'"
            space = NamespaceValue(obj, module, NamespaceSource(module))
            self.namespaces[id(obj)] = space
        return space

    def cell(
        self,
        obj: types.CellType,
        source: Source | None = None,
        contents_source: Source | None = None,
    ) -> CellValue:
        """The value of a real cell; functions that share a cell share its value."""
        if (cell := self._cells.get(id(obj))) is None:
            cell = CellValue(None, obj, source, contents_source)
            self._cells[id(obj)] = cell
        elif cell.source is None and source is not None:
            cell.source, cell.contents_source = source, contents_source
        return cell

    def class_value(self, cls: type) -> ClassValue:
        """The value of a class; the same for each request."""
        if (value := self._classes.get(cls)) is None:
            source = None if cls in self.tx.world.born else PinnedSource(cls)
            value = self._classes[cls] = ClassValue(cls, source)
        return value

    def try_concrete(self, value: Value) -> object:
        """The host object of a value that is known through and through, or ``UNKNOWN``. Mutable
        containers are copied."""
        if isinstance(value, ConstantValue):
            return value.value
        try:
            return self.concrete(value)
        except Unsupported:
            return self.UNKNOWN

    def keywords(self, mapping: Value) -> Keywords:
        """The content of a dict as keywords of a call; TypeError where a key is no string."""
        table = mapping.base_value()
        if not isinstance(table, mappings.DictValue):
            raise Unsupported("not-constant", what=mapping.describe())
        found: Keywords = {}
        for key, value in zip(table.keys(), table.values(self.tx), strict=True):
            name = self.concrete(key)
            if not isinstance(name, str):
                raise self.error(TypeError, "keywords must be strings")
            found[name] = value
        return found

    def known(self, args: Iterable[Value], kwargs: Mapping[str, Value]) -> Known | None:
        """Host objects of call arguments, or None when one is not known."""
        hosts = [self.try_concrete(a) for a in args]
        named = {k: self.try_concrete(v) for k, v in kwargs.items()}
        if any(h is self.UNKNOWN for h in hosts) or any(h is self.UNKNOWN for h in named.values()):
            return None
        return hosts, named

    def concrete(self, value: Value) -> object:
        """Like ``try_concrete``; a value that is not known is a break."""
        return value.as_constant()

    def hosted(self, fn: Callable[..., T], *args: object, **kwargs: object) -> T:
        """What ``fn`` returns on the host; its exception becomes one of the traced program."""
        before = len(SILENCE.kept)
        try:
            found = fn(*args, **kwargs)
        except (Unsupported, ObservedException, BreakAt, InternalError, RecursionError):
            raise
        except Exception as e:
            if is_interruption(e):
                raise
            self._warn(SILENCE.since(before, fn))
            raise self.host_error(e) from None
        self._warn(SILENCE.since(before, fn))
        return found

    def _warn(self, found: Iterable[tuple[str, type[Warning]]]) -> None:
        """Warn where the traced program does now."""
        for text, kind in found:
            args = ConstantValue(text), self.class_value(kind)
            self.tx.builder.wrap_new(warnings.warn).call(self.tx, args, {})

    def fold(self, fn: Callable[..., object], *args: object, **kwargs: object) -> Value:
        """The value of what ``fn`` returns on the host."""
        return self.const(self.hosted(fn, *args, **kwargs))

    def being_handled(self) -> Value:
        """``sys.exception()``."""
        return self.interp.handled or self.tx.world.handled_outside()

    def error(self, cls: type[BaseException], *args: object, **fields: object) -> ObservedException:
        """An exception of a builtin class, to be raised by the caller."""
        return self.error_with(cls, [self.const(a) for a in args], fields)

    def error_with(
        self, cls: type[BaseException], args: list[Value], fields: Globals | None = None
    ) -> ObservedException:
        """The same with values as arguments."""
        table = {k: v if isinstance(v, Value) else self.const(v) for k, v in (fields or {}).items()}
        exc = ExceptionValue(self.tx.journal, cls, args)
        if FIELDS[builtin_base(cls)]:
            _, exc.args, exc.fields = compute(self.tx, cls, args, table, (args, table))
        set_context(self.tx, exc)
        return ObservedException(exc)

    def host_error(self, exc: BaseException) -> ObservedException:
        """The traced program's version of an exception that a host operation raised."""
        args = [arg if isinstance(arg, Value) else self.const(arg) for arg in exc.args]
        cls = type(exc)
        found = ((name, getattr(exc, name, None)) for name in FIELDS[builtin_base(cls)])
        table = {n: v if isinstance(v, Value) else self.const(v) for n, v in found}
        value = ExceptionValue(self.tx.journal, cls, args, None, table)
        set_context(self.tx, value)
        return ObservedException(value)

    def is_same(self, a: Value, b: Value) -> bool:
        """``a is b``."""
        if a is b:
            return True
        if isinstance(a, ConstantValue) and isinstance(b, ConstantValue):
            return self.tx.world.one_object(a, b)
        if isinstance(a, ClassValue) and isinstance(b, ClassValue):
            return a.obj is b.obj
        if isinstance(a, InstanceDictValue) and isinstance(b, InstanceDictValue):
            owner = self.tx.journal.owner
            return self.is_same(owner(a.instance), owner(b.instance))
        if isinstance(a, SymNumValue) or isinstance(b, SymNumValue):
            kinds = {a.python_type(), b.python_type()}
            sourced = a.source is not None and b.source is not None
            if len(kinds) != 1 or (float in kinds and not sourced):
                return False
            number, other = a.as_constant(), b.as_constant()
            if sourced and number == other and not is_single(number):
                raise Unsupported("not-constant", what="whether two equal numbers are one object")
            return is_single(number) and number is other  # what is computed is a new object
        for attr in ("obj", "fn"):
            mine = getattr(a, attr, None)
            if mine is not None and type(a) is type(b) and not isinstance(a, CellValue):
                if mine is getattr(b, attr):
                    return True
                self.tx.builder.distinct(a, b)
                return False
        if isinstance(a, TupleValue) and isinstance(b, TupleValue) and type(a) is type(b):
            if not a.items and not b.items:
                return True
        self.tx.builder.distinct(a, b)
        return False

    def identity_key(self, value: Value) -> object:
        """Hash-table key by identity."""
        if value.source is not None:
            self.tx.builder.identified(value)
        obj = getattr(value, "obj", None)
        if obj is not None and isinstance(value, ObjectValue | ClassValue):
            return hash_keys.IdentityKey(obj)
        if type(value) is ConstantValue:
            return type(value.value), value.hash_key(self.tx)
        if isinstance(value, ConstantValue):  # a member of an enum class
            return hash_keys.IdentityKey(value.value)
        return hash_keys.IdentityKey(value)

    def user_key(self, value: Value) -> object:
        """Hash-table key by the value's own ``__hash__`` and ``__eq__``."""
        return hash_keys.UserKey(self.tx, value)

    def hash_key(self, value: Value) -> object:
        """Hash-table key; TypeError for unhashable values."""
        if type(value) is ConstantValue:
            self._pin_nan(value)
            return value.value
        return value.hash_key(self.tx)

    def _pin_nan(self, value: ConstantValue) -> None:
        """A NaN equals nothing but, in containers, itself: there it counts which one it is."""
        number = value.value
        if type(number) is float and number != number and value.source is not None:
            self.tx.world.identity(number, value.source)

    def truth(self, value: Value) -> bool:
        """``bool(value)``."""
        return value.bool(self.tx)

    def keeps_truth(self, value: Value) -> bool:
        """Whether converting to bool may be left to the following jump: the value is a tensor or a
        symbolic number, or a bool already."""
        if isinstance(value, ConstantValue):
            return type(value.value) is bool
        return not isinstance(value, PlainObject)

    def negate(self, value: Value) -> Value:
        """``not value``."""
        if (negated := getattr(value, "logical_not", None)) is not None:
            result: Value = negated(self.tx)
            return result
        return bool_value(not self.truth(value))
