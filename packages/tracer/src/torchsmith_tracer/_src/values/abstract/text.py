"""``str``, ``repr``, ``ascii`` and ``format`` of values."""

from __future__ import annotations

import operator
import re
from collections import OrderedDict, defaultdict, deque
from typing import TYPE_CHECKING

from torchsmith_guards import GuardKind

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.values.abstract.part import Part
from torchsmith_tracer._src.values.addresses import at_address, directed, joined
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtins import registry
from torchsmith_tracer._src.values.classes import ClassValue, DescriptorValue
from torchsmith_tracer._src.values.constants import ConstantValue
from torchsmith_tracer._src.values.containers import ListValue, SequenceValue, TupleValue
from torchsmith_tracer._src.values.functions import BoundMethodValue, BuiltinValue, FunctionValue
from torchsmith_tracer._src.values.generators import GeneratorValue
from torchsmith_tracer._src.values.lookup import in_python, lookup
from torchsmith_tracer._src.values.mappings import DictValue
from torchsmith_tracer._src.values.python_instances import ObjectValue, is_struct_sequence
from torchsmith_tracer._src.values.sets import SetValue
from torchsmith_tracer._src.values.symnum import SymNumValue
from torchsmith_tracer._src.values.twins import TwinValue

if TYPE_CHECKING:
    from torchsmith_tracer._src.trace import Trace


class Texts(Part):
    """``str``, ``repr`` and ``format``."""

    def __init__(self, tx: Trace) -> None:
        super().__init__(tx)
        self._printing: set[int] = set()  # containers, where they hold themselves

    def convert(self, value: Value, how: str) -> Value:
        """``str``, ``repr`` or ``ascii`` of a value."""
        if how == "str":
            return self.str_of(value)
        text = self.repr_of(value)
        if how == "repr":
            return text
        known = str(self.interp.concrete(text))
        return ConstantValue(known.encode("ascii", "backslashreplace").decode())

    def str_of(self, value: Value) -> Value:
        """``str(value)``."""
        return self._text(value, "__str__")

    def repr_of(self, value: Value) -> Value:
        """``repr(value)``."""
        return self._text(value, "__repr__")

    def _text(self, value: Value, name: str) -> Value:
        if type(value) is ConstantValue:
            return self.interp.fold(str if name == "__str__" else repr, value.value)
        cls = value.python_type()
        found = lookup(self.tx, cls, name)
        base = value.base_value()
        if isinstance(base, TwinValue):
            found = lookup(self.tx, base.cls, name) if not in_python(found) else found
        if in_python(found) and isinstance(value, ObjectValue | ConstantValue):
            result = self.interp.call_special(value, name)
            assert result is not None
            if not issubclass(result.python_type(), str):
                message = f"{name} returned non-string (type {result.type_name})"
                raise self.interp.error(TypeError, message)
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
        text = "" if spec is None else self.interp.concrete(spec)
        if not isinstance(text, str):
            raise self.interp.error(TypeError, "format() argument 2 must be str")
        if type(value) is ConstantValue:
            return self.interp.fold(format, value.value, text)
        found = lookup(self.tx, value.python_type(), "__format__")
        if in_python(found) and isinstance(value, ObjectValue | ConstantValue):
            made = self.interp.call_special(value, "__format__", ConstantValue(text))
            assert made is not None
            if not issubclass(made.python_type(), str):
                message = f"__format__ must return a str, not {made.type_name}"
                raise self.interp.error(TypeError, message)
            return made
        if (own := getattr(value, "format", None)) is not None:
            result: Value = own(self.tx, text)
            return result
        asks_str = not text and isinstance(value, ObjectValue)  # as the builtin types' do
        if found is not None and found.owner is not object and not asks_str:
            known = self.interp.try_concrete(value)
            if known is not self.interp.UNKNOWN:
                return self.interp.fold(format, known, text)
        if text:
            message = f"unsupported format string passed to {value.type_name}.__format__"
            raise self.interp.error(TypeError, message)
        return self.str_of(value)

    def default_text(self, value: Value, name: str) -> Value:
        """``str``/``repr`` of builtin containers and plain objects."""
        base = value.base_value()
        cls = value.python_type()
        if isinstance(base, TupleValue) and is_struct_sequence(cls):
            fields: tuple[str, ...] = cls.__match_args__  # type: ignore[attr-defined]
            parts = zip(fields, base.unpack(self.tx), strict=True)
            named: list[list[str | Value]] = [[f"{k}=", self.repr_of(v)] for k, v in parts]
            return _listed(f"{cls.__module__}.{cls.__qualname__}(", named, ")")
        if isinstance(base, TupleValue | ListValue | DictValue | SetValue):
            if (text := self._container_text(base, cls)) is not None:
                return text
        if (own := getattr(value, "text", None)) is not None:
            result: Value = own(self.tx, name)
            return result
        known = self.interp.try_concrete(value)
        if known is not self.interp.UNKNOWN:
            if isinstance(known, _NAMED) and type(known) is not cls:  # known are only its items
                before = (known.default_factory,) if hasattr(known, "default_factory") else ()
                after = (known.maxlen,) if hasattr(known, "maxlen") else ()
                known = type(cls.__name__, (type(known),), {})(*before, known, *after)
            return self.interp.fold(str if name == "__str__" else repr, known)
        stores = self.tx.journal.stores(value)
        if isinstance(value, FunctionValue | BuiltinValue) and value.obj is not None and not stores:
            if value.source is not None:  # the text has its address
                why = "the text of a function"
                self.tx.builder.guard(value.source, GuardKind.ID, value.obj, why)
            return self.interp.fold(repr, value.obj)
        if isinstance(value, FunctionValue):
            return at_address(f"<function {value.qualname} at ", value)
        if isinstance(value, GeneratorValue):
            return at_address(f"<generator object {value.fn.qualname} at ", value)
        if isinstance(value, ClassValue) and type(value.obj).__repr__ is type.__repr__:
            return self.interp.fold(repr, value.obj)
        if isinstance(value, BoundMethodValue) and isinstance(value.func, FunctionValue):
            return _listed(
                f"<bound method {value.func.qualname} of ", [[self.repr_of(value.self_value)]], ">"
            )
        if isinstance(value, DescriptorValue) and value.cls is not property:
            func = self.repr_of(value.parts["__func__"])
            return _listed(f"<{value.cls.__name__}(", [[func]], ")>")
        if getattr(cls, "__repr__", None) is object.__repr__:
            module = "" if cls.__module__ == "builtins" else f"{cls.__module__}."
            return at_address(f"<{module}{cls.__qualname__} object at ", value)
        raise Unsupported("not-constant", what=f"the text of {value.describe()}")

    def _container_text(self, value: Value, cls: type) -> Value | None:
        """``cls``: that of the object whose builtin part ``value`` is."""
        if id(value) in self._printing:
            if isinstance(value, SetValue):
                return ConstantValue(f"{cls.__name__}(...)")
            left, right = _BRACKETS.get(type(value), ("{", "}"))
            return ConstantValue(f"{left}...{right}")
        self._printing.add(id(value))
        try:
            shown: list[list[str | Value]]
            if isinstance(value, DictValue):
                if value.cls is not dict:
                    return None
                pairs = zip(value.keys(), value.values(self.tx), strict=True)
                shown = [[self.repr_of(k), ": ", self.repr_of(v)] for k, v in pairs]
                return _listed("{", shown, "}")
            if isinstance(value, SetValue):
                if len(value.table) != 1:  # the order is that of hashes
                    return None
                shown = [[self.repr_of(v)] for v in value.items]
                left, right = ("{", "}") if cls is set else (f"{cls.__name__}({{", "})")
                return _listed(left, shown, right)
            assert isinstance(value, SequenceValue)
            if type(value) not in _BRACKETS:
                return None
            shown = [[self.repr_of(v)] for v in value.in_turn(self.tx)]
            left, right = _BRACKETS[type(value)]
            one = len(shown) == 1 and type(value) is TupleValue
            return _listed(left, shown, "," + right if one else right)
        finally:
            self._printing.discard(id(value))

    def percent(self, template: str, operand: Value) -> Value:
        """``template % operand`` where the texts of the operand are not all known."""
        base = operand.base_value()
        if "%" in _PERCENT.sub("", template):
            return self.interp.fold(operator.mod, template, self.interp.concrete(operand))
        kind = operand.python_type()
        mapping = lookup(self.tx, kind, "__getitem__") and not issubclass(kind, tuple | str)
        values = iter(base.unpack(self.tx) if isinstance(base, TupleValue) else [operand])
        out: list[Value] = []
        end = 0
        for found in _PERCENT.finditer(template):
            name, shape, how, sign = found.groups()
            out.append(ConstantValue(template[end : found.start()] + (sign or "")))
            end = found.end()
            if sign:
                continue
            value: Value | None
            if name is not None and not mapping:
                raise self.interp.error(TypeError, "format requires a mapping")
            if name is not None:
                value, values = operand.getitem(self.tx, ConstantValue(name)), iter(())
            elif (value := next(values, None)) is None:
                raise self.interp.error(TypeError, "not enough arguments for format string")
            whole = isinstance(value, SymNumValue) and value.python_type() is int
            # No text may be empty, nor raise for another number: ``%.0s``, ``%d`` of infinity.
            writes = "." not in shape if how in _HOW else whole or how not in "diuoxX"
            if isinstance(value, SymNumValue) and writes:
                out.append(value.format(self.tx, f"%{shape}{how}", directed))
                continue
            if how in _HOW:
                value, how = self.convert(value, _HOW[how]), "s"
            if shape or how != "s":
                value = self.interp.fold(directed, self.interp.concrete(value), f"%{shape}{how}")
            out.append(value)
        out.append(ConstantValue(template[end:]))
        if next(values, None) is not None and not mapping:
            message = "not all arguments converted during string formatting"
            raise self.interp.error(TypeError, message)
        return joined(out)

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


_BRACKETS: dict[type, tuple[str, str]] = {ListValue: ("[", "]"), TupleValue: ("(", ")")}
_NAMED = (set, frozenset, deque, OrderedDict, defaultdict)
_PERCENT = re.compile(r"%(?:\((\w*)\))?(?:([-+ #0]*\d*(?:\.\d+)?)([sradiuoxXeEfFgG])|(%))")
_HOW = {"s": "str", "r": "repr", "a": "ascii"}


def _listed(left: str, items: list[list[str | Value]], right: str) -> Value:
    """The items, each in pieces, between brackets and with commas."""
    out: list[str | Value] = [left]
    for i, item in enumerate(items):
        out += [", ", *item] if i else item
    out.append(right)
    return joined(ConstantValue(p) if isinstance(p, str) else p for p in out)
