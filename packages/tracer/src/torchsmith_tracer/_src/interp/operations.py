"""CPython's abstract object protocol over values: operators, comparison, iteration, conversion."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, cast

from torchsmith_guards import GuardKind

from torchsmith_tracer._src.breaks.signals import ObservedException, Unsupported
from torchsmith_tracer._src.interp.services import Services
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtin_object import METHOD_TYPES
from torchsmith_tracer._src.values.builtins import registry
from torchsmith_tracer._src.values.classes import ClassValue
from torchsmith_tracer._src.values.constants import (
    COMPARE,
    FALSE,
    TRUE,
    ConstantValue,
    bool_value,
)
from torchsmith_tracer._src.values.containers import (
    ListValue,
    SequenceValue,
    TupleValue,
)
from torchsmith_tracer._src.values.functions import BoundMethodValue, BuiltinValue, FunctionValue
from torchsmith_tracer._src.values.iterators import (
    DictIterator,
    GetitemIterator,
    ItemsIterator,
    IteratorValue,
    RangeIterator,
    SequenceIterator,
)
from torchsmith_tracer._src.values.lookup import Found, lookup
from torchsmith_tracer._src.values.mappings import DictValue, MappingProxyValue
from torchsmith_tracer._src.values.objects import ObjectValue, dunder
from torchsmith_tracer._src.values.twins import TwinValue

_NAMES = "add sub mul truediv floordiv mod matmul lshift rshift and_ or_ xor divmod".split()
_SIGNS = dict(zip(_NAMES, "+ - * / // % @ << >> & | ^ divmod()".split(), strict=True))
_SIGNS["pow"] = "** or pow()"
_COMPARE_SIGNS = {"lt": "<", "le": "<=", "eq": "==", "ne": "!=", "gt": ">", "ge": ">="}
_SWAPPED = {"lt": "gt", "le": "ge", "eq": "eq", "ne": "ne", "gt": "lt", "ge": "le"}
_INPLACE = {"i" + name.rstrip("_"): name for name in _SIGNS}


class Operations(Services):
    """Operators and protocols."""

    # --- operators ---------------------------------------------------------------------------
    def binary(self, op: str, a: Value, b: Value) -> Value:
        """``a op b`` with reflected operands; ``op`` as in ``Value.binary``."""
        result = self._binary(op, a, b)
        if result is None:
            raise self._operand_error(op, a, b)
        return result

    def _binary(self, op: str, a: Value, b: Value) -> Value | None:
        tx = self.tx
        if type(a) is ConstantValue and type(b) is ConstantValue:
            return a.binary(tx, op, b)
        left, right = a.python_type(), b.python_type()
        if right is not left and issubclass(right, left) and self._reflects(op, left, right):
            result = b.binary(tx, op, a, reflected=True)
            if result is not None:
                return result
            return a.binary(tx, op, b)
        result = a.binary(tx, op, b)
        if result is None and (left is not right or not isinstance(b, ObjectValue)):
            result = b.binary(tx, op, a, reflected=True)
        return result

    def _reflects(self, op: str, left: type, right: type) -> bool:
        """Whether subclass ``right`` overrides the reflected method of ``left``."""
        name = dunder(op, reflected=True)
        mine, theirs = lookup(self.tx, right, name), lookup(self.tx, left, name)
        if mine is None:
            return False
        return theirs is None or mine.attr is not theirs.attr

    def inplace(self, op: str, a: Value, b: Value) -> Value:
        """``a op= b``; ``op`` with a leading i (``iadd``)."""
        result = a.binary(self.tx, op, b)
        if result is not None:
            return result
        plain = _INPLACE[op]
        result = self._binary(plain, a, b)
        if result is None:
            raise self._operand_error(plain, a, b, inplace=True)
        return result

    def _operand_error(
        self, op: str, a: Value, b: Value, *, inplace: bool = False
    ) -> ObservedException:
        x, y = a.python_type().__name__, b.python_type().__name__
        base = a.base_value()
        if op == "add":
            if isinstance(base, SequenceValue) and not inplace:
                text = f'can only concatenate {x} (not "{y}") to {x}'
                return self.error(TypeError, text)
            if isinstance(base, ConstantValue) and isinstance(base.value, str | bytes):
                if isinstance(base.value, str):
                    return self.error(TypeError, f'can only concatenate str (not "{y}") to str')
                return self.error(TypeError, f"can't concat {y} to bytes")
        if op == "mul":
            for seq, other in ((base, y), (b.base_value(), x)):
                is_text = isinstance(seq, ConstantValue) and isinstance(seq.value, str | bytes)
                if isinstance(seq, SequenceValue) or is_text:
                    message = f"can't multiply sequence by non-int of type {other!r}"
                    return self.error(TypeError, message)
        sign = _SIGNS[op]
        if inplace:
            sign = "**=" if op == "pow" else sign + "="
        message = f"unsupported operand type(s) for {sign}: {x!r} and {y!r}"
        return self.error(TypeError, message)

    def compare(self, op: str, a: Value, b: Value) -> Value:
        """``a op b`` for ``lt le eq ne gt ge``."""
        tx = self.tx
        if type(a) is ConstantValue and type(b) is ConstantValue:
            return self.fold(COMPARE[op], a.value, b.value)
        left, right = a.python_type(), b.python_type()
        swapped = _SWAPPED[op]
        tried = False
        if right is not left and issubclass(right, left):
            found = lookup(tx, right, f"__{swapped}__")
            if found is not None and found.owner is not object:
                tried = True
                result = b.richcompare(tx, swapped, a)
                if result is not None:
                    return result
        result = a.richcompare(tx, op, b)
        if result is None and not tried:
            result = b.richcompare(tx, swapped, a)
        if result is not None:
            return result
        if op == "eq":
            return bool_value(self.is_same(a, b))
        if op == "ne":
            return bool_value(not self.is_same(a, b))
        x, y = left.__name__, right.__name__
        message = f"{_COMPARE_SIGNS[op]!r} not supported between instances of {x!r} and {y!r}"
        raise self.error(TypeError, message)

    def equal(self, a: Value, b: Value) -> bool:
        """Identity or ``bool(a == b)``: how containers compare elements."""
        return self.is_same(a, b) or self.truth(self.compare("eq", a, b))

    def hash_of(self, value: Value) -> int:
        """``hash(value)`` as a number."""
        if isinstance(value, ObjectValue):
            found = lookup(self.tx, value.cls, "__hash__")
            if found is not None and found.attr is not None and found.owner is not object:
                method = value.method(self.tx, "__hash__")
                assert method is not None
                if not isinstance(found.attr, METHOD_TYPES):
                    result = self.call(method, [])
                    number = self.try_concrete(result)
                    if not isinstance(number, int):
                        message = "__hash__ method should return an integer"
                        raise self.error(TypeError, message)
                    return hash(number)
        return hash(self.hash_key(value))

    # --- items -------------------------------------------------------------------------------
    def getitem(self, container: Value, key: Value) -> Value:
        """``container[key]``."""
        return container.getitem(self.tx, key)

    def setitem(self, container: Value, key: Value, value: Value) -> None:
        """``container[key] = value``."""
        container.setitem(self.tx, key, value)

    def length(self, value: Value) -> Value:
        """``len(value)``."""
        return value.length(self.tx)

    def contains_by_iteration(self, container: Value, item: Value) -> Value:
        """``item in container`` for containers without ``__contains__``."""
        it = container.iter(self.tx)
        while (value := self.step(it)) is not None:
            if self.equal(value, item):
                return TRUE
        return FALSE

    def namespace_get(self, space: Value, name: str) -> Value | None:
        """A name of a class body's namespace, or None."""
        if isinstance(space, DictValue):
            return space.get_str(self.tx, name)
        try:
            return space.getitem(self.tx, ConstantValue(name))
        except ObservedException as e:
            if self.exception_matches(e.exc, KeyError):
                return None
            raise

    # --- numbers -----------------------------------------------------------------------------
    def try_index(self, value: Value) -> int | None:
        """``operator.index`` as a known int, or None when the value is not an integer."""
        if isinstance(value, ConstantValue):
            real = value.value
            if type(real) is int:
                return real
            return operator.index(cast(Any, real)) if hasattr(real, "__index__") else None
        if isinstance(value, ObjectValue):
            method = value.method(self.tx, "__index__")
            if method is None:
                return None
            result = self.try_concrete(self.call(method, []))
            if not isinstance(result, int):
                message = f"__index__ returned non-int (type {type(result).__name__})"
                raise self.error(TypeError, message)
            return result
        if issubclass(value.python_type(), int):
            known = self.try_concrete(value)
            return int(known) if isinstance(known, int) else None
        if hasattr(value.python_type(), "__index__"):
            known = self.concrete(self.call(value.getattr(self.tx, "__index__"), []))
            return known if isinstance(known, int) else None
        return None

    def index(self, value: Value) -> int:
        """``operator.index`` as a known int; TypeError when the value is not an integer."""
        number = self.try_index(value)
        if number is None:
            name = value.python_type().__name__
            raise self.error(TypeError, f"{name!r} object cannot be interpreted as an integer")
        return number

    def check_length(self, value: Value) -> Value:
        """The result of a user's ``__len__``, checked."""
        number = self.index(value)
        if number < 0:
            raise self.error(ValueError, "__len__() should return >= 0")
        return ConstantValue(number)

    def check_bool(self, value: Value) -> bool:
        """The result of a user's ``__bool__``, checked."""
        known = self.try_concrete(value)
        if isinstance(known, bool):
            return known
        if issubclass(value.python_type(), bool):
            return value.bool(self.tx)
        name = value.python_type().__name__
        raise self.error(TypeError, f"__bool__ should return bool, returned {name}")

    # --- iteration ---------------------------------------------------------------------------
    def iterator(self, items: Sequence[Value], owner: Value | None = None) -> ItemsIterator:
        """An iterator over known items of ``owner``."""
        return ItemsIterator(items, owner)

    def sequence_iterator(self, sequence: SequenceValue) -> SequenceIterator:
        """``iter(sequence)``."""
        return SequenceIterator(sequence)

    def range_iterator(self, host: range) -> RangeIterator:
        """``iter(range)``."""
        return RangeIterator(host)

    def dict_iterator(self, mapping: DictValue, part: str) -> DictIterator:
        """Iterator over keys, values or items."""
        return DictIterator(mapping, part)

    def getitem_iterator(self, obj: Value) -> GetitemIterator:
        """Iterator of the old sequence protocol."""
        return GetitemIterator(obj)

    def item_or_end(self, obj: Value, index: int) -> Value | None:
        """``obj[index]``, or None for IndexError and StopIteration."""
        try:
            return obj.getitem(self.tx, ConstantValue(index))
        except ObservedException as e:
            if self.exception_matches(e.exc, (IndexError, StopIteration)):
                return None
            raise

    def check_iterator(self, value: Value) -> Value:
        """The result of a user's ``__iter__``, checked."""
        if isinstance(value, ObjectValue) and lookup(self.tx, value.cls, "__next__") is None:
            name = value.cls.__name__
            raise self.error(TypeError, f"iter() returned non-iterator of type {name!r}")
        if isinstance(value, ConstantValue | SequenceValue | DictValue | FunctionValue):
            name = value.python_type().__name__
            raise self.error(TypeError, f"iter() returned non-iterator of type {name!r}")
        return value

    def iter(self, value: Value) -> Value:
        """``iter(value)``."""
        return value.iter(self.tx)

    def step(self, it: Value) -> Value | None:
        """``next(it)``, or None at the end."""
        if isinstance(it, IteratorValue):
            return it.step(self.tx)
        try:
            return it.next(self.tx)
        except ObservedException as e:
            if self.exception_matches(e.exc, StopIteration):
                return None
            raise

    def unpack(self, value: Value) -> list[Value]:
        """``list(value)`` as host list of values."""
        if isinstance(value, SequenceValue):
            return value.unpack(self.tx)
        it = value.iter(self.tx)
        if isinstance(it, RangeIterator):
            items: list[Value] = [ConstantValue(i) for i in it.range[it.index :]]
            it.move(self.tx, len(it.range))
            return items
        out: list[Value] = []
        while (item := self.step(it)) is not None:
            out.append(item)
        return out

    def unpack_for(self, value: Value, message: str) -> list[Value]:
        """``unpack`` with another message for what is not iterable; ``{}`` is its type."""
        if not isinstance(value, SequenceValue) and not self.is_iterable(value):
            name = value.python_type().__name__
            raise self.error(TypeError, message.format(name))
        return self.unpack(value)

    def is_iterable(self, value: Value) -> bool:
        """Whether ``iter(value)`` has a chance."""
        cls = value.python_type()
        if isinstance(value, ClassValue):
            return lookup(self.tx, cls, "__iter__") is not None
        for name in ("__iter__", "__getitem__"):
            found = lookup(self.tx, cls, name)
            if found is not None and found.attr is not None:
                return True
        return isinstance(value, IteratorValue)

    def unpack_exactly(self, value: Value, count: int) -> list[Value]:
        """The items of ``a, b = value``."""
        if isinstance(value, SequenceValue):
            items = value.unpack(self.tx)
            if len(items) > count:
                shown = f", got {len(items)}" if self._shows_count(value) else ""
                message = f"too many values to unpack (expected {count}{shown})"
                raise self.error(ValueError, message)
        else:
            if not self.is_iterable(value):
                name = value.python_type().__name__
                raise self.error(TypeError, f"cannot unpack non-iterable {name} object")
            it = value.iter(self.tx)
            items = []
            while len(items) < count and (item := self.step(it)) is not None:
                items.append(item)
            if len(items) == count and self.step(it) is not None:
                message = f"too many values to unpack (expected {count})"
                raise self.error(ValueError, message)
        if len(items) < count:
            message = f"not enough values to unpack (expected {count}, got {len(items)})"
            raise self.error(ValueError, message)
        return items

    def _shows_count(self, value: Value) -> bool:
        return False  # from 3.14 on for lists, tuples and dicts

    # --- mappings ----------------------------------------------------------------------------
    def is_mapping(self, value: Value) -> bool:
        """Whether ``value`` has ``keys`` (what ``**value`` requires)."""
        value = value.base_value()
        if isinstance(value, DictValue | MappingProxyValue):
            return True
        return lookup(self.tx, value.python_type(), "keys") is not None

    def dict_update(self, target: DictValue, source: Value, *, pairs: bool = True) -> None:
        """``target.update(source)``: a mapping, or an iterable of pairs."""
        base = source.base_value()
        if isinstance(base, DictValue) and (base is source or not self._overrides_items(source)):
            for key, value in list(base.table.values()):
                target.put(self.tx, key, value)
        elif self.is_mapping(source):
            for key in self.unpack(self.call(source.getattr(self.tx, "keys"), [])):
                target.put(self.tx, key, source.getitem(self.tx, key))
        else:
            for i, item in enumerate(self.unpack_for(source, "{!r} object is not iterable")):
                if not self.is_iterable(item):
                    message = (
                        f"cannot convert dictionary update sequence element #{i} to a sequence"
                    )
                    raise self.error(TypeError, message)
                parts = self.unpack(item)
                if len(parts) != 2:
                    message = (
                        f"dictionary update sequence element #{i} has length {len(parts)}; "
                        "2 is required"
                    )
                    raise self.error(ValueError, message)
                target.put(self.tx, parts[0], parts[1])

    def _overrides_items(self, value: Value) -> bool:
        """Whether a dict subclass customises iteration, so that C code would use its methods."""
        found = lookup(self.tx, value.python_type(), "__iter__")
        return found is not None and not isinstance(found.attr, METHOD_TYPES)

    def merge_keywords(self, function: Value, target: DictValue, source: Value) -> None:
        """``f(**target, **source)``."""
        name = self.function_text(function)
        if not self.is_mapping(source):
            kind = source.python_type().__name__
            message = f"{name} argument after ** must be a mapping, not {kind}"
            raise self.error(TypeError, message)
        new = DictValue()
        self.dict_update(new, source)
        for hkey, (key, value) in new.table.items():
            if hkey in target.table:
                message = f"{name} got multiple values for keyword argument {hkey!r}"
                raise self.error(TypeError, message)
            target.put(self.tx, key, value)

    def function_text(self, function: Value) -> str:
        """How CPython names a callable in argument errors."""
        if isinstance(function, BoundMethodValue):
            function = function.func
        if isinstance(function, FunctionValue):
            module = function.globals.obj.get("__name__")
            text = f"{module}.{function.qualname}()"
            return text if module != "builtins" else f"{function.qualname}()"
        if isinstance(function, ClassValue):
            cls = function.obj
            prefix = "" if cls.__module__ == "builtins" else f"{cls.__module__}."
            return f"{prefix}{cls.__qualname__}()"
        return function.describe()

    # --- text --------------------------------------------------------------------------------
    def convert(self, value: Value, how: str) -> Value:
        """``str``, ``repr`` or ``ascii`` of a value."""
        if how == "str":
            return self.str_of(value)
        text = self.repr_of(value)
        return text if how == "repr" else self.fold(ascii, _Text(self.concrete(text)))

    def str_of(self, value: Value) -> Value:
        """``str(value)``."""
        return self._text(value, "__str__")

    def repr_of(self, value: Value) -> Value:
        """``repr(value)``."""
        return self._text(value, "__repr__")

    def _text(self, value: Value, name: str) -> Value:
        if type(value) is ConstantValue:
            return self.fold(str if name == "__str__" else repr, value.value)
        cls = value.python_type()
        found = lookup(self.tx, cls, name)
        base = value.base_value()
        if isinstance(base, TwinValue):
            found = lookup(self.tx, base.cls, name) if _in_c(found) else found
        custom = found is not None and not isinstance(found.attr, METHOD_TYPES)
        if custom and isinstance(value, ObjectValue | ConstantValue):
            method = self.special_method(value, name)
            assert method is not None
            result = self.call(method, [])
            if not issubclass(result.python_type(), str):
                kind = result.python_type().__name__
                message = f"{name} returned non-string (type {kind})"
                raise self.error(TypeError, message)
            return result
        if found is not None:
            handler = registry.find_method(found.owner, value.base_value(), name)
            text = None if handler is None else handler(self.tx, value)
            if text is not None:
                return text
            if name == "__str__" and found.owner is object:
                return self._text(value, "__repr__")
        return self.default_text(value, name)

    def format(self, value: Value, spec: Value | None) -> Value:
        """``format(value, spec)``."""
        text = "" if spec is None else self.concrete(spec)
        if not isinstance(text, str):
            raise self.error(TypeError, "format() argument 2 must be str")
        if type(value) is ConstantValue:
            return self.fold(format, value.value, text)
        found = lookup(self.tx, value.python_type(), "__format__")
        if (
            found is not None
            and not isinstance(found.attr, METHOD_TYPES)
            and isinstance(value, ObjectValue | ConstantValue)
        ):
            method = self.special_method(value, "__format__")
            assert method is not None
            return self.call(method, [ConstantValue(text)])
        own = getattr(value, "format", None)
        if own is not None:
            result: Value = own(self.tx, text)
            return result
        if found is not None and found.owner is not object:
            known = self.try_concrete(value)
            if known is not self.UNKNOWN:
                return self.fold(format, known, text)
        if text:
            name = value.python_type().__name__
            message = f"unsupported format string passed to {name}.__format__"
            raise self.error(TypeError, message)
        return self.str_of(value)

    def default_text(self, value: Value, name: str) -> Value:
        """``str``/``repr`` of builtin containers and plain objects."""
        base = value.base_value()
        if isinstance(base, TupleValue | ListValue | DictValue):
            text = self._container_text(base)
            if text is not None:
                return ConstantValue(text)
        own = getattr(value, "text", None)
        if own is not None:
            result: Value = own(self.tx, name)
            return result
        known = self.try_concrete(value)
        if known is not self.UNKNOWN:
            return self.fold(str if name == "__str__" else repr, known)
        if isinstance(value, FunctionValue | BuiltinValue) and value.obj is not None:
            if value.source is not None:  # the text has its address
                why = "the text of a function"
                self.tx.builder.guard(value.source, GuardKind.ID, value.obj, why)
            return self.fold(repr, value.obj)
        raise Unsupported("not-constant", what=f"the text of {value.describe()}")

    def _container_text(self, value: Value) -> str | None:
        if id(value) in self._printing:
            return "[...]" if isinstance(value, ListValue) else "{...}"
        self._printing.add(id(value))
        try:
            if isinstance(value, DictValue):
                if value.cls is not dict:
                    return None
                pairs = zip(value.keys(), value.values(self.tx), strict=True)
                inner = ", ".join(f"{self._shown(k)}: {self._shown(v)}" for k, v in pairs)
                return "{" + inner + "}"
            assert isinstance(value, SequenceValue)
            if type(value) not in (TupleValue, ListValue):
                return None
            parts = [self._shown(v) for v in value.unpack(self.tx)]
            if isinstance(value, ListValue):
                return f"[{', '.join(parts)}]"
            return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"
        finally:
            self._printing.discard(id(value))

    def _shown(self, value: Value) -> str:
        return str(self.concrete(self.repr_of(value)))

    @property
    def _printing(self) -> set[int]:
        if not hasattr(self, "_printing_ids"):
            self._printing_ids: set[int] = set()
        return self._printing_ids

    # --- provided by the following layers ------------------------------------------------------
    def call(
        self, fn: Value, args: Sequence[Value], kwargs: dict[str, Value] | None = None
    ) -> Value:
        """``fn(*args, **kwargs)``."""
        return fn.call(self.tx, args, kwargs or {})

    def special_method(self, value: Value, name: str) -> Value | None:
        """A dunder method looked up on the type, bound; None when absent."""
        raise NotImplementedError(name)

    def exception_matches(
        self, exc: Value, kinds: type[BaseException] | tuple[type[BaseException], ...]
    ) -> bool:
        """``isinstance(exc, kinds)``."""
        return issubclass(exc.python_type(), kinds)


def _in_c(found: Found | None) -> bool:
    return found is None or isinstance(found.attr, METHOD_TYPES)


class _Text:
    """Lends ``ascii`` a ready-made repr."""

    def __init__(self, text: object) -> None:
        self.text = str(text)

    def __repr__(self) -> str:
        return self.text
