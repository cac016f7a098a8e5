"""Iteration, unpacking, and updates of dicts from what can be iterated."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from torchsmith_tracer._src.breaks.signals import ObservedException
from torchsmith_tracer._src.values.abstract.part import Part
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.constants import FALSE, TRUE, ConstantValue
from torchsmith_tracer._src.values.containers import SequenceValue
from torchsmith_tracer._src.values.iterators import IteratorValue, RangeIterator
from torchsmith_tracer._src.values.lookup import in_python, lookup
from torchsmith_tracer._src.values.mappings import DictValue
from torchsmith_tracer._src.values.views import MappingProxyValue


class Iteration(Part):
    """Iterators, unpacking, and updating dicts from what can be iterated."""

    def contains_by_iteration(self, container: Value, item: Value) -> Value:
        """``item in container`` for containers without ``__contains__``."""
        for value in self.each(container, "argument of type {!r} is not iterable"):
            if self.interp.equal(value, item):
                return TRUE
        return FALSE

    def namespace_get(self, space: Value, name: str) -> Value | None:
        """A name of a class body's namespace, or None."""
        if isinstance(space, DictValue):
            return space.get_str(self.tx, name)
        try:
            return space.getitem(self.tx, ConstantValue(name))
        except ObservedException as e:
            if self.interp.exception_matches(e.exc, KeyError):
                return None
            raise

    def item_or_end(self, obj: Value, index: int) -> Value | None:
        """``obj[index]``, or None for IndexError and StopIteration."""
        try:
            return obj.getitem(self.tx, ConstantValue(index))
        except ObservedException as e:
            if self.interp.exception_matches(e.exc, (IndexError, StopIteration)):
                return None
            raise

    def check_iterator(self, value: Value) -> Value:
        """The result of a user's ``__iter__``, checked."""
        if lookup(self.tx, value.python_type(), "__next__") is None:
            message = f"iter() returned non-iterator of type {value.type_name!r}"
            raise self.interp.error(TypeError, message)
        return value

    def step(self, it: Value) -> Value | None:
        """``next(it)``, or None at the end."""
        try:
            return it.step(self.tx) if isinstance(it, IteratorValue) else it.next(self.tx)
        except ObservedException as e:
            if self.interp.exception_matches(e.exc, StopIteration):
                return None
            raise

    def unpack(self, value: Value, message: str = "{!r} object is not iterable") -> list[Value]:
        """``list(value)`` as host list of values."""
        if isinstance(value, SequenceValue):
            return value.unpack(self.tx)
        return list(self.each(value, message))

    def each(self, value: Value, message: str = "{!r} object is not iterable") -> Iterator[Value]:
        """The items of ``value``, each asked for when the one before has been used, as C code does
        that fills a container: an exception of the iterator, or of the use, leaves the rest.
        ``message`` is for what is not iterable; ``{}`` is its type."""
        if not self.is_iterable(value):
            raise self.interp.error(TypeError, message.format(value.type_name))
        it = value.iter(self.tx)
        if isinstance(it, RangeIterator) and it is not value:
            return map(ConstantValue, it.range)
        return iter(lambda: self.step(it), None)

    def is_iterable(self, value: Value) -> bool:
        """Whether ``iter(value)`` has a chance."""
        cls = value.python_type()
        for name in ("__iter__", "__getitem__"):
            found = lookup(self.tx, cls, name)
            if found is not None and found.attr is not None:
                return True
        return isinstance(value, IteratorValue)

    def unpack_exactly(self, value: Value, count: int) -> list[Value]:
        """The items of ``a, b = value``."""
        found = self.each(value, "cannot unpack non-iterable {} object")
        items = list(islice(found, count))
        if len(items) == count and next(found, None) is not None:
            raise self.interp.error(ValueError, f"too many values to unpack (expected {count})")
        if len(items) < count:
            message = f"not enough values to unpack (expected {count}, got {len(items)})"
            raise self.interp.error(ValueError, message)
        return items

    def is_mapping(self, value: Value) -> bool:
        """Whether ``value`` has ``keys`` (what ``**value`` requires)."""
        value = value.base_value()
        if isinstance(value, DictValue | MappingProxyValue):
            return True
        return lookup(self.tx, value.python_type(), "keys") is not None

    def dict_update(self, target: DictValue, source: Value, *, pairs: bool = True) -> None:
        """``target.update(source)``: a mapping, or an iterable of pairs."""
        base = source.base_value()
        # C code uses the methods of a subclass that customises iteration.
        own, cls = base is not source, source.python_type()
        if isinstance(base, DictValue) and not (
            own and in_python(lookup(self.tx, cls, "__iter__"))
        ):
            size = len(base.table)
            for hkey, (key, value) in list(base.table.items()):
                target.store(self.tx, hkey, key, value)
                if type(base) is DictValue and len(base.table) != size:
                    raise self.interp.error(RuntimeError, "dict mutated during update")
        elif self.is_mapping(source):
            for key in self.each(self.interp.call(source.getattr(self.tx, "keys"), [])):
                target.put(self.tx, key, source.getitem(self.tx, key))
        else:
            for i, item in enumerate(self.each(source)):
                if not self.is_iterable(item):
                    message = (
                        f"cannot convert dictionary update sequence element #{i} to a sequence"
                    )
                    raise self.interp.error(TypeError, message)
                parts = self.unpack(item)
                if len(parts) != 2:
                    message = (
                        f"dictionary update sequence element #{i} has length {len(parts)}; "
                        "2 is required"
                    )
                    raise self.interp.error(ValueError, message)
                target.put(self.tx, parts[0], parts[1])

    def merge_keywords(self, function: Value, target: DictValue, source: Value) -> None:
        """``f(**target, **source)``."""
        name = self.interp.function_text(function)
        if not self.is_mapping(source):
            message = f"{name} argument after ** must be a mapping, not {source.type_name}"
            raise self.interp.error(TypeError, message)
        new = DictValue()
        self.dict_update(new, source)
        for hkey, (key, value) in new.table.items():
            if hkey in target.table:
                message = f"{name} got multiple values for keyword argument {hkey!r}"
                raise self.interp.error(TypeError, message)
            target.put(self.tx, key, value)
