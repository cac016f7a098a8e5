"""``nn.Module`` instances that exist already.

Attribute access short-cuts ``Module.__getattr__`` and ``Module.__setattr__``: parameters, buffers
and submodules are read from the module's tables, one graph input or value at a time. A call
without hooks comes down to ``forward``; with hooks ``Module._call_impl`` is traced itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence
from torchsmith_guards import Guard, GuardKind, Source

from torchsmith_tracer._src import marks, torch_private
from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.effects.journal import DELETED
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.constants import ConstantValue
from torchsmith_tracer._src.values.lookup import bind, hides_entry, is_data_descriptor, lookup
from torchsmith_tracer._src.values.mappings import DictValue
from torchsmith_tracer._src.values.python_instances import ObjectValue
from torchsmith_tracer._src.values.tensor import TensorValue

_TABLES = ("_parameters", "_buffers", "_modules")
_CONTAINERS = re.compile(r"\._(?:modules|parameters|buffers)\['([^']*)'\]")


class ModuleValue(ObjectValue):
    """See the module's docstring. ``path`` names the module in the user's terms."""

    __slots__ = ("path", "real")

    def __init__(
        self, obj: nn.Module, source: Source | None = None, real: nn.Module | None = None
    ) -> None:
        super().__init__(obj, source)
        self.real = real  # its compiled form, where that is what is there
        expr = type(obj).__name__ if source is None else source.expr
        self.path = _CONTAINERS.sub(r".\1", expr)

    def describe(self) -> str:
        return f"module {self.path} ({self.cls.__name__})"

    # --- attributes --------------------------------------------------------------------------
    def getattr(self, tx: Trace, name: str) -> Value:
        found = lookup(tx, self.cls, name)
        hides = found is not None and hides_entry(tx, found.attr)
        if hides or self._custom_getattribute(tx):
            return super().getattr(tx, name)
        if (value := self.instance_get(tx, name)) is not None:
            return value
        if found is not None:
            self.guard_missing(tx, name)
            return bind(tx, found, self, tx.interp.type_of(self), name)
        hook = lookup(tx, self.cls, "__getattr__")
        if hook is None or hook.attr is not torch_private.module_getattr:
            return super().getattr(tx, name)
        self.guard_missing(tx, name)
        for table in _TABLES:
            if (value := self.table_get(tx, table, name)) is not None:
                return value
        raise self.no_attribute(tx, name)

    def _custom_getattribute(self, tx: Trace) -> bool:
        getter = lookup(tx, self.cls, "__getattribute__")
        return getter is not None and getter.owner is not object

    def _registers(self, tx: Trace, table: str, name: str) -> bool:
        """Whether a table of the real module has a name; guarded where it has not."""
        assert self.obj is not None
        if (entries := self.obj.__dict__.get(table)) is None:
            self.guard_missing(tx, table)
        elif not entries:
            why = f"{name!r} was looked up"
            tx.guards.add(Guard(self.entry_source(tx, table), GuardKind.EMPTY, None, why))
        elif name not in entries:
            tx.world.missing(self.entry_source(tx, table), name, f"{name!r} was looked up")
        return entries is not None and name in entries

    def table_get(self, tx: Trace, table: str, name: str) -> Value | None:
        """An entry of ``_parameters``, ``_buffers`` or ``_modules``, or None."""
        value, changed = self.changed_table(tx, table)
        if changed:
            return None if value is None else value.get_str(tx, name)
        if not self._registers(tx, table, name):
            return None
        assert self.obj is not None
        return tx.world.item(self.obj.__dict__[table], self.entry_source(tx, table), name)

    def changed_table(self, tx: Trace, table: str) -> tuple[DictValue | None, bool]:
        """The table as a value and True, if traced code has changed or replaced it."""
        stored = tx.journal.load_attr(self, table)
        if stored is DELETED:
            return None, True
        if stored is not None:
            return (stored if isinstance(stored, DictValue) else None), True
        assert self.obj is not None
        known = _changed(tx, self.obj.__dict__.get(table))
        return known, known is not None

    def _has(self, tx: Trace, table: str, name: str) -> bool:
        """Whether a table has a name by now; guarded where traced code has not changed it."""
        value, changed = self.changed_table(tx, table)
        if changed:
            return value is not None and value.get_str(tx, name) is not None
        return self._registers(tx, table, name)

    def setattr(self, tx: Trace, name: str, value: Value) -> None:
        hook = lookup(tx, self.cls, "__setattr__")
        found = lookup(tx, self.cls, name)
        if (
            hook is None
            or hook.attr is not torch_private.module_setattr
            or (found is not None and is_data_descriptor(tx, found.attr))
        ):
            super().setattr(tx, name, value)
            return
        table = self._owner_table(tx, name, value)
        if table == "":  # a name is registered, or not allowed: torch's own code decides
            super().setattr(tx, name, value)
            return
        if table is None:
            self.instance_set(tx, name, value)
            return
        entries = self.instance_get(tx, table)
        if not isinstance(entries, DictValue):
            raise Unsupported("module-attribute-store", what=name, module=self.describe())
        entries.put(tx, ConstantValue(name), value)

    def _owner_table(self, tx: Trace, name: str, value: Value) -> str | None:
        """The table that ``Module.__setattr__`` would store into, None for the instance dict, an
        empty name for what is more than a store."""
        kind = value.python_type()
        known = [t for t in _TABLES if self._has(tx, t, name)]
        if issubclass(kind, nn.Parameter) or issubclass(kind, nn.Module):
            table = "_parameters" if issubclass(kind, nn.Parameter) else "_modules"
            return table if known == [table] else ""
        if isinstance(value, TensorValue) and value.isinstance_hook(tx, nn.Buffer):
            return ""
        if not known:
            return None
        if known == ["_buffers"] or kind is type(None):
            if issubclass(kind, torch.Tensor) or kind is type(None):
                return known[0]
        return ""

    def delattr(self, tx: Trace, name: str) -> None:
        hook = lookup(tx, self.cls, "__delattr__")
        stock = hook is not None and hook.attr is torch_private.module_delattr
        if not stock or any(self._has(tx, t, name) for t in _TABLES):
            super().delattr(tx, name)
        else:
            self.generic_delattr(tx, name)

    # --- calls -------------------------------------------------------------------------------
    def call_target(
        self, tx: Trace, args: Sequence[Value], kwargs: dict[str, Value]
    ) -> tuple[Value, Sequence[Value], dict[str, Value]] | None:
        if marks.runs_natively(self.obj) or marks.has_old_hooks(self.obj):
            what = f"{self.describe()}{marks.why_disabled(self.obj)}"
            raise Unsupported("opaque-call", what=what)
        if args and isinstance(self.obj, nn.RNNBase):
            if issubclass(args[0].python_type(), PackedSequence):
                error = "how many rows each step has is in a tensor"
                what = f"{self.describe()} on a packed sequence"
                raise Unsupported("data-dependent-op", what=what, error=error)
        for name, stock in (
            ("__call__", torch_private.module_call),
            ("_call_impl", torch_private.module_call_impl),
        ):
            found = lookup(tx, self.cls, name)
            if found is None or found.attr is not stock:
                return super().call_target(tx, args, kwargs)
        if self._own_call(tx):
            return super().call_target(tx, args, kwargs)
        if self._without_hooks(tx):
            return self.getattr(tx, "forward"), args, kwargs
        return self.getattr(tx, "_call_impl"), args, kwargs

    def _own_call(self, tx: Trace) -> bool:
        """Whether the instance has a ``_call_impl`` of its own, or was compiled in place by other
        means than torch's, which changes no value; guarded."""
        impl, compiled = (self.instance_get(tx, n) for n in ("_call_impl", "_compiled_call_impl"))
        if impl is None and compiled is None:
            self.guard_missing(tx, "_call_impl")
            self.guard_missing(tx, "_compiled_call_impl")
            return False
        return impl is not None or not marks.compiled_by_torch(getattr(compiled, "fn", None))

    def _without_hooks(self, tx: Trace) -> bool:
        """True when nothing but ``forward`` runs; guarded."""
        assert self.obj is not None
        attrs = self.obj.__dict__
        changed = tx.journal.stores(self)
        # Without gradients backward hooks do nothing; the grad mode is guarded.
        hooks = (
            torch_private.MODULE_HOOKS if torch.is_grad_enabled() else torch_private.FORWARD_HOOKS
        )
        for name in hooks:
            if attrs.get(name) or name in changed or self.changed_table(tx, name)[1]:
                return False
        everywhere = [torch_private.module_globals[name] for name in torch_private.GLOBAL_HOOKS]
        if any(everywhere) or any(_changed(tx, entries) is not None for entries in everywhere):
            return False
        why = "modules without hooks are entered directly"
        if self.source is not None and tx.world.note(self, hooks):
            for name in hooks:
                tx.guards.add(Guard(self.entry_source(tx, name), GuardKind.EMPTY, None, why))
        if tx.world.note(torch_private.GLOBAL_HOOKS):
            space = tx.interp.namespace(torch_private.module_globals)
            for name in torch_private.GLOBAL_HOOKS:
                tx.guards.add(Guard(space.variable(name), GuardKind.EMPTY, None, why))
        return True


def _changed(tx: Trace, entries: object) -> DictValue | None:
    """A dict as a value, if traced code has changed it."""
    known = tx.builder.known(entries)
    return known if isinstance(known, DictValue) and known in tx.journal.mutated else None
