"""``obj.__dict__``: a live dict view of an instance's attributes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.effects.journal import DELETED
from torchsmith_tracer._src.emitter import Emitter
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.constants import ConstantValue, bool_value
from torchsmith_tracer._src.values.lookup import C_DATA, lookup
from torchsmith_tracer._src.values.mappings import DictValue, Table
from torchsmith_tracer._src.values.python_instances import ObjectValue


class InstanceDictValue(DictValue):
    """The content is computed from the instance at each access; stores go to the instance."""

    __slots__ = ()
    tx: Trace
    instance: ObjectValue  # or another value that ``HasInstanceDict``

    def __init__(self, tx: Trace, instance: Any) -> None:
        self.tx = tx
        self.instance = instance
        super().__init__()

    def detach(self) -> None:
        """Keep the present content: the instance is about to get another ``__dict__``."""
        table = self.table
        self.tx.journal.record(lambda: setattr(self, "__class__", InstanceDictValue))
        self.__class__ = DictValue  # type: ignore[assignment]
        self.fill(table)

    @property
    def table(self) -> Table:
        """All attributes."""
        tx, instance = self.tx, self.instance
        out: Table = {}
        for name in instance.instance_names(tx):
            if (value := instance.instance_get(tx, name)) is not None:
                out[name] = (ConstantValue(name), value)
        return out

    @table.setter
    def table(self, table: Table) -> None:
        pass  # the base class's __init__ stores an empty table

    def get(self, tx: Trace, key: Value) -> Value | None:
        return self.get_str(tx, self._name(key))

    def _name(self, key: Value) -> str:
        if not isinstance(name := key.as_constant(), str):
            raise Unsupported("unsupported-slot", what=f"{name!r} as a key of {self.describe()}")
        return name

    def _own(self, tx: Trace, name: str) -> str:
        """The name of an entry that a store of that attribute would change, too."""
        found = lookup(tx, self.instance.python_type(), name)
        if found is not None and isinstance(found.attr, C_DATA):
            raise Unsupported("unsupported-slot", what=f"a __dict__ and {name!r}, which is outside")
        return name

    def get_str(self, tx: Trace, key: str) -> Value | None:
        if tx.journal.load_attr(self.instance, key) is not None:
            self._own(tx, key)
        if (value := self.instance.instance_get(tx, key)) is None:
            self.instance.guard_missing(tx, key)
        return value

    def store(self, tx: Trace, hkey: object, key: Value, value: Value) -> None:
        name, stored = self._name(key), tx.journal.load_attr(self.instance, self._name(key))
        # What ``functools`` has copied as an attribute it copies as an entry, too.
        if not isinstance(stored, Value) or not tx.interp.is_same(stored, value):
            self._own(tx, name)
        self.instance.instance_set(tx, name, value)

    def remove(self, tx: Trace, key: Value) -> Value | None:
        if (value := self.get(tx, key)) is not None:
            tx.journal.store_attr(self.instance, self._own(tx, self._name(key)), DELETED)
        return value

    def take(self, tx: Trace, hkey: object) -> Value:
        found = self.remove(tx, self.table[hkey][0])
        assert found is not None
        return found

    def replace(self, tx: Trace, table: Table, gone: Iterable[object] = ()) -> None:
        for name in self.instance.instance_names(tx):
            if name not in table:
                tx.journal.store_attr(self.instance, name, DELETED)
        for key, value in table.values():
            self.put(tx, key, value)

    def contains(self, tx: Trace, item: Value) -> Value:
        return bool_value(self.get(tx, item) is not None)

    def reconstruct(self, cg: Emitter) -> str:
        return cg.attr(self.instance, "__dict__")

    def reconstruct_fill(self, cg: Emitter) -> None:
        pass  # the instance brings its content
