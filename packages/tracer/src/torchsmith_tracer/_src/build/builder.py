"""``Builder``: the value of a real object that traced code met, with its guards and graph input.

``wrap(obj, source)`` is for objects that the compiled code will fetch again, ``wrap_new(obj)`` for
objects that are reached through constants only (library functions, class attributes of trusted
classes). Dispatch: exact type, then predicates in order, then a user object.

One object gives one value, however it is reached: a second source of the same object installs a
guard that the two are one.
"""

from __future__ import annotations

import collections
import enum
import math
import re
import types
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import nn
from torchsmith_guards import (
    AttrSource,
    ConstantSource,
    DictKeySource,
    Guard,
    GuardKind,
    ItemSource,
    LocalSource,
    Source,
)

from torchsmith_tracer._src.build.dynamic import FrameState
from torchsmith_tracer._src.build.tensors import wrap_tensor
from torchsmith_tracer._src.graph.provenance import user_line
from torchsmith_tracer._src.regions import marks
from torchsmith_tracer._src.torch_private import OPERATORS, storage_id
from torchsmith_tracer._src.values import torch_classes  # noqa: F401 - fills the tables
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.classes import ClassValue
from torchsmith_tracer._src.values.constants import ConstantValue
from torchsmith_tracer._src.values.containers import (
    DequeValue,
    ListValue,
    NamedTupleValue,
    RangeValue,
    SliceValue,
    TupleValue,
)
from torchsmith_tracer._src.values.contexts import wrap_context
from torchsmith_tracer._src.values.functions import (
    BoundMethodValue,
    BuiltinValue,
    FunctionValue,
)
from torchsmith_tracer._src.values.lazy import LazyValue
from torchsmith_tracer._src.values.mappings import DictValue, MappingProxyValue, SetValue
from torchsmith_tracer._src.values.modules import ModuleValue
from torchsmith_tracer._src.values.namespaces import PyModuleValue
from torchsmith_tracer._src.values.objects import EnumValue, ObjectValue
from torchsmith_tracer._src.values.opaque import OpaqueValue
from torchsmith_tracer._src.values.sizes import SizeValue
from torchsmith_tracer._src.values.symnum import SymNumValue
from torchsmith_tracer._src.values.tensor import TensorValue
from torchsmith_tracer._src.values.torch_fn import TorchCallable, is_torch_callable

if TYPE_CHECKING:
    from torchsmith_tracer._src.trace import Trace

_LITERALS = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis))
_BUILTIN_CALLABLES = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)
_TORCH_CONSTANTS = (
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.finfo,
    torch.iinfo,
)
_KEY_TYPES = (*_LITERALS, enum.Enum, type, torch.dtype, torch.device)


class Builder:
    """See the module's docstring.

    Attributes:
        constants: objects without a source that generated code must be able to reach, by the
            name of their ``ConstantSource``; they belong into the body's namespace.
        frame_state: which sizes and numbers have varied between compiles.
    """

    def __init__(self, tx: Trace, frame_state: FrameState | None = None) -> None:
        self.tx = tx
        self.frame_state = FrameState() if frame_state is None else frame_state
        self.constants: dict[str, object] = {}
        self._memo: dict[int, tuple[object, Value]] = {}
        self._scalars: dict[Source, Value] = {}
        self._constant_names: dict[int, ConstantSource] = {}

    # --- entry -------------------------------------------------------------------------------
    def wrap(self, obj: object, source: Source) -> Value:
        """The value of ``obj``, found at ``source``."""
        kind = type(obj)
        if kind in _LITERALS:
            return self._literal(obj, source)
        entry = self._memo.get(id(obj))
        if entry is not None:
            value = entry[1]
            self._same_object(value, source)
            return value
        return self._remember(obj, self._make(obj, source))

    def wrap_new(self, obj: object) -> Value:
        """The value of an object that is reached through constants only; no guards."""
        kind = type(obj)
        if kind in _LITERALS:
            return ConstantValue(obj)
        entry = self._memo.get(id(obj))
        if entry is not None:
            return entry[1]
        if kind is types.FunctionType or isinstance(obj, _IMMUTABLE):
            return self._remember(obj, self._make(obj, None))
        return self._remember(obj, self._make(obj, self.constant_source(obj)))

    def known(self, obj: object) -> Value | None:
        """The value that was made for ``obj``, if any."""
        entry = self._memo.get(id(obj))
        return None if entry is None else entry[1]

    def constant_source(self, obj: object) -> ConstantSource:
        """A source for an object that no path from the arguments leads to."""
        source = self._constant_names.get(id(obj))
        if source is None:
            source = ConstantSource(f"K{len(self._constant_names)}")
            self._constant_names[id(obj)] = source
            self.constants[source.name] = obj
        return source

    def guard(
        self, source: Source | None, kind: GuardKind, expected: object = None, why: str = ""
    ) -> None:
        """Add a guard, with the user's line that needed it."""
        if source is not None and source.guardable:
            self.tx.guards.add(Guard(source, kind, expected, why, user_line(self.tx)))

    def _remember(self, obj: object, value: Value) -> Value:
        memo, key = self._memo, id(obj)
        memo[key] = (obj, value)
        self.tx.graph.record(lambda: memo.__delitem__(key))
        return value

    def _same_object(self, value: Value, source: Source) -> None:
        """``value`` was found again, at ``source``."""
        first = value.source
        if first is None or first == source or not source.guardable:
            return
        if first.guardable:
            why = "the same object is reached in two ways"
            self.guard(source, GuardKind.SAME_OBJECT, first, why)
        else:
            self.guard(source, GuardKind.ID, self._memo_object(value), "the same object")

    def _memo_object(self, value: Value) -> object:
        for obj, known in self._memo.values():
            if known is value:
                return obj
        return None

    def distinct(self, a: Value, b: Value) -> None:
        """Traced code relied on two existing objects being different ones."""
        first, second = a.source, b.source
        if first is None or second is None or first == second:
            return
        if first.guardable and second.guardable:
            why = "two objects were compared by identity"
            self.guard(first, GuardKind.NOT_SAME, (second,), why)

    def add_aliasing_guards(self) -> None:
        """Guard that what was changed in place is reached by no other path than those seen. To
        be called once, at the end of the trace."""
        tx = self.tx
        changed: set[Value] = {*tx.journal.mutated, *tx.journal.attrs}
        groups: dict[object, list[Value]] = {}
        touched: set[object] = set()
        for obj, value in self._memo.values():
            source = value.source
            if source is None or not source.guardable:
                continue
            key: object
            if isinstance(value, TensorValue):
                fake = value.fake
                key = (type(obj), fake.dtype, fake.device, fake.dim())
                hit = storage_id(fake) in tx.graph.mutated or value in changed
            else:
                key, hit = type(obj), value in changed
            groups.setdefault(key, []).append(value)
            if hit:
                touched.add(key)
        for key in touched:
            sources = [v.source for v in groups[key] if v.source is not None]
            if len(sources) > 1:
                why = "one of these is changed in place"
                self.guard(sources[0], GuardKind.NOT_SAME, tuple(sources[1:]), why)

    # --- numbers and other literals ----------------------------------------------------------
    def _literal(self, obj: object, source: Source) -> Value:
        known = self._scalars.get(source)
        if known is not None:
            return known
        value: Value | None = None
        if type(obj) is int and _is_argument(source):
            value = self._symbolic(obj, source)
        elif type(obj) is float and _is_argument(source) and math.isfinite(obj):
            if not self.tx.settings.specialize_float:
                value = self._symbolic(obj, source)
        if value is None:
            value = ConstantValue(obj, source)
            kind = GuardKind.NONE if obj is None else GuardKind.CONSTANT
            self.guard(source, kind, obj, f"value of type {type(obj).__name__} is a constant")
        self._scalars[source] = value
        self.tx.graph.record(lambda: self._scalars.__delitem__(source))
        return value

    def _symbolic(self, obj: int | float, source: Source) -> Value | None:
        env = self.tx.graph.shape_env
        if env is None or not self.frame_state.is_dynamic_scalar(
            source, obj, self.tx.settings.dynamic
        ):
            return None
        if type(obj) is int and obj in (0, 1):
            return None
        symbol = env.create_symbol(obj, source, "unspecified")
        if not isinstance(symbol, torch.SymInt | torch.SymFloat):
            return None
        node = self.tx.graph.add_input(source, symbol, obj)
        return SymNumValue(node, symbol, source)

    # --- dispatch ----------------------------------------------------------------------------
    def _make(self, obj: object, source: Source | None) -> Value:
        kind = type(obj)
        exact = _EXACT.get(kind)
        if exact is not None:
            return exact(self, obj, source)
        if isinstance(obj, torch.Tensor):
            return wrap_tensor(self, obj, source)
        if isinstance(obj, nn.Module):
            return self._module(obj, source)
        if isinstance(obj, type):
            return self._class(obj, source)
        if isinstance(obj, enum.Enum):
            self.guard(source, GuardKind.ID, obj, "enum member")
            return EnumValue(obj, source)
        if isinstance(obj, types.ModuleType):
            if not self._trusted(source):
                self.guard(source, GuardKind.ID, obj, "module")
            return PyModuleValue(obj, source)
        if is_torch_callable(obj):
            if not self._trusted(source):
                self.guard(source, GuardKind.ID, obj, "torch function")
            return TorchCallable(obj, source)
        context = wrap_context(obj, source)
        if context is not None:
            self.guard(source, GuardKind.TYPE, kind, "context manager")
            if source is not None:
                for name in ("mode", "device", "fast_dtype", "_enabled"):
                    if name in vars(obj):
                        self.wrap(vars(obj)[name], AttrSource(source, name))
            return context
        if isinstance(obj, _BUILTIN_CALLABLES):
            if not self._trusted(source):
                self.guard(source, GuardKind.ID, obj, "builtin function")
            return BuiltinValue(obj, source)
        if isinstance(obj, tuple) and hasattr(kind, "_fields") and _is_named_tuple(kind):
            return self._named_tuple(obj, source)
        return self._object(obj, source)

    def _trusted(self, source: Source | None) -> bool:
        """True for names in modules that are trusted not to be rebound."""
        if source is None:
            return True
        root = source.root
        module = getattr(root, "module", None)
        return isinstance(module, str) and self.tx.interp.trusted_module(module)

    def _constant(self, obj: object, source: Source | None) -> Value:
        self.guard(source, GuardKind.CONSTANT, obj, f"{type(obj).__name__} is a constant")
        return ConstantValue(obj, source)

    def _identity(self, obj: object, source: Source | None) -> Value:
        self.guard(source, GuardKind.ID, obj, f"{type(obj).__name__} is a constant")
        return ConstantValue(obj, source)

    # --- containers --------------------------------------------------------------------------
    def _items(self, obj: collections.abc.Sequence[object], source: Source | None) -> list[Value]:
        if source is None:
            return [self.wrap_new(item) for item in obj]
        return [LazyValue(ItemSource(source, i), item) for i, item in enumerate(obj)]

    def _list(self, obj: object, source: Source | None) -> Value:
        assert isinstance(obj, list)
        self.guard(source, GuardKind.LENGTH, (list, len(obj)), "length of a list")
        return ListValue(self._items(obj, source), source)

    def _tuple(self, obj: object, source: Source | None) -> Value:
        assert isinstance(obj, tuple)
        self.guard(source, GuardKind.LENGTH, (tuple, len(obj)), "length of a tuple")
        return TupleValue(self._items(obj, source), source)

    def _size(self, obj: object, source: Source | None) -> Value:
        assert isinstance(obj, torch.Size)
        self.guard(source, GuardKind.CONSTANT, obj, "torch.Size is a constant")
        return SizeValue([ConstantValue(n) for n in obj], source)

    def _named_tuple(self, obj: tuple[object, ...], source: Source | None) -> Value:
        kind = type(obj)
        self.guard(source, GuardKind.LENGTH, (kind, len(obj)), "type of a named tuple")
        return NamedTupleValue(self._items(obj, source), kind, source)

    def _deque(self, obj: object, source: Source | None) -> Value:
        assert isinstance(obj, collections.deque)
        self.guard(source, GuardKind.LENGTH, (type(obj), len(obj)), "length of a deque")
        if source is not None:
            self.wrap(obj.maxlen, AttrSource(source, "maxlen"))
        return DequeValue(self._items(obj, source), obj.maxlen, source)

    def _dict(self, obj: object, source: Source | None) -> Value:
        assert isinstance(obj, dict)
        kind = type(obj)
        factory: Value | None = None
        if isinstance(obj, collections.defaultdict) and obj.default_factory is not None:
            factory = (
                self.wrap_new(obj.default_factory)
                if source is None
                else self.wrap(obj.default_factory, AttrSource(source, "default_factory"))
            )
        return DictValue(self._table(obj, source, kind), source, kind, factory)

    def _table(
        self, obj: Mapping[object, object], source: Source | None, kind: type
    ) -> dict[object, tuple[Value, Value]]:
        """The entries of a mapping, values lazy, with a guard on the keys."""
        plain = all(isinstance(k, _KEY_TYPES) or _is_literal_tuple(k) for k in obj)
        if plain:
            self.guard(source, GuardKind.DICT_KEYS, (kind, tuple(obj)), "keys of a dict")
        else:
            self.guard(source, GuardKind.LENGTH, (kind, len(obj)), "length of a dict")
        table: dict[object, tuple[Value, Value]] = {}
        for n, (key, item) in enumerate(obj.items()):
            if plain or source is None:
                key_value = self.wrap_new(key)
            else:
                key_value = self.wrap(key, DictKeySource(source, n))
            entry: Value
            if source is None:
                entry = self.wrap_new(item)
            elif plain:
                entry = LazyValue(ItemSource(source, key), item)
            else:
                # Another object may sit at this place next time: go through the n-th key.
                values = _nth_value(source, n)
                entry = LazyValue(values, item)
            table[self.tx.interp.hash_key(key_value)] = (key_value, entry)
        return table

    def _proxy(self, obj: object, source: Source | None) -> Value:
        assert isinstance(obj, types.MappingProxyType)
        table = self._table(obj, source, types.MappingProxyType)
        return MappingProxyValue(DictValue(table), source)

    def _set(self, obj: object, source: Source | None) -> Value:
        assert isinstance(obj, set | frozenset)
        kind = type(obj)
        if source is not None and not all(isinstance(x, _KEY_TYPES) for x in obj):
            self.guard(source, GuardKind.TYPE, kind, "set of objects")
            return OpaqueValue(obj, source)
        if source is not None:
            self.guard(source, GuardKind.CONSTANT, kind(obj), "content of a set")
        values = [self.wrap_new(x) for x in obj]
        table = {self.tx.interp.hash_key(v): v for v in values}
        return SetValue(table, source, kind)

    def _range(self, obj: object, source: Source | None) -> Value:
        assert isinstance(obj, range)
        self.guard(source, GuardKind.CONSTANT, obj, "range is a constant")
        start, stop, step = (ConstantValue(x) for x in (obj.start, obj.stop, obj.step))
        return RangeValue(start, stop, step, source)

    def _slice(self, obj: object, source: Source | None) -> Value:
        assert isinstance(obj, slice)
        if source is None:
            start, stop, step = (self.wrap_new(x) for x in (obj.start, obj.stop, obj.step))
        else:
            self.guard(source, GuardKind.TYPE, slice, "slice")
            start = self.wrap(obj.start, AttrSource(source, "start"))
            stop = self.wrap(obj.stop, AttrSource(source, "stop"))
            step = self.wrap(obj.step, AttrSource(source, "step"))
        return SliceValue(start, stop, step, source)

    # --- code --------------------------------------------------------------------------------
    def _function(self, obj: object, source: Source | None) -> Value:
        assert isinstance(obj, types.FunctionType)
        original = marks.original_of(obj)
        if original is not None:
            if source is None:
                return self.wrap_new(original)
            return self.wrap(original, AttrSource(source, marks.ORIGINAL))
        if not self._trusted(source):
            if marks.is_disabled(obj) or is_torch_callable(obj):
                self.guard(source, GuardKind.ID, obj, "function")
            else:
                self.guard(source, GuardKind.CODE, obj.__code__, "code of a function")
        if is_torch_callable(obj):
            return TorchCallable(obj, source)
        if marks.is_disabled(obj):
            return OpaqueValue(obj, source)
        return FunctionValue.existing(self.tx, obj, source)

    def _method(self, obj: object, source: Source | None) -> Value:
        assert isinstance(obj, types.MethodType)
        if wrap_context(obj.__self__, None) is not None:
            return self._context_method(obj, source)
        if source is None:
            func, self_value = self.wrap_new(obj.__func__), self.wrap_new(obj.__self__)
        else:
            self.guard(source, GuardKind.TYPE, types.MethodType, "bound method")
            func = self.wrap(obj.__func__, AttrSource(source, "__func__"))
            self_value = self.wrap(obj.__self__, AttrSource(source, "__self__"))
        return BoundMethodValue(func, self_value, source)

    def _context_method(self, obj: types.MethodType, source: Source | None) -> Value:
        """``__exit__`` and the like of a context manager of torch."""
        name = obj.__name__
        if source is None:
            return self.wrap_new(obj.__self__).getattr(self.tx, name)
        self.guard(source, GuardKind.TYPE, types.MethodType, "bound method")
        self.wrap(obj.__func__, AttrSource(source, "__func__"))
        context = self.wrap(obj.__self__, AttrSource(source, "__self__"))
        method = context.getattr(self.tx, name)
        method.source = source
        return method

    def _class(self, obj: type, source: Source | None) -> Value:
        if not self._trusted(source):
            self.guard(source, GuardKind.ID, obj, "class")
        value = self.tx.interp.class_value(obj, source)
        assert isinstance(value, ClassValue)
        return value

    def _module(self, obj: nn.Module, source: Source | None) -> Value:
        original = marks.original_of(obj)
        if isinstance(original, nn.Module):
            # The compiled form shares the module's instance dict: paths through it are the same.
            self.guard(source, GuardKind.TYPE, type(obj), "class of a compiled module")
            return ModuleValue(original, source)
        if isinstance(obj, torch.jit.ScriptModule):
            self.guard(source, GuardKind.TYPE, type(obj), "module")
            return OpaqueValue(obj, source)
        self.guard(source, GuardKind.TYPE, type(obj), "class of a module")
        return ModuleValue(obj, source)

    # --- objects -----------------------------------------------------------------------------
    def _object(self, obj: object, source: Source | None) -> Value:
        kind = type(obj)
        self.guard(source, GuardKind.TYPE, kind, "class of an object")
        if self._is_opaque(kind):
            return OpaqueValue(obj, source)
        self.tx.interp.class_value(kind)
        storage: Value | None = None
        if isinstance(obj, dict):
            table = self._table_of_subclass(obj, source)
            storage = DictValue(table, source, _storage_class(kind))
        elif isinstance(obj, list):
            self.guard(source, GuardKind.LENGTH, (kind, len(obj)), "length of a list")
            storage = ListValue(self._items(list(list.__iter__(obj)), source), source)
        elif isinstance(obj, tuple):
            self.guard(source, GuardKind.LENGTH, (kind, len(obj)), "length of a tuple")
            storage = TupleValue(self._items(tuple(tuple.__iter__(obj)), source), source)
        elif isinstance(obj, int | float | str | bytes | complex):
            self.guard(source, GuardKind.CONSTANT, obj, "constant of a subclass")
            base = next(t for t in (int, float, str, bytes, complex) if isinstance(obj, t))
            storage = ConstantValue(base(obj))  # type: ignore[arg-type]
        return ObjectValue(obj, source, storage)

    def _table_of_subclass(
        self, obj: dict[object, object], source: Source | None
    ) -> dict[object, tuple[Value, Value]]:
        plain = dict(dict.items(obj))
        if not all(isinstance(k, _KEY_TYPES) for k in plain):
            return self._table(plain, source, type(obj))
        self.guard(source, GuardKind.DICT_KEYS, (type(obj), tuple(plain)), "keys of a dict")
        return {
            k: (
                self.wrap_new(k),
                self.wrap_new(v) if source is None else LazyValue(ItemSource(source, k), v),
            )
            for k, v in plain.items()
        }

    def _is_opaque(self, kind: type) -> bool:
        """Objects of C types have no attributes that can be followed."""
        if kind.__flags__ & (1 << 9):  # Py_TPFLAGS_HEAPTYPE: made by a class statement
            return kind.__module__.partition(".")[0] in ("numpy",)
        return True


def _nth_value(source: Source, n: int) -> Source:
    return DictKeySource(AttrSource(source, "values()"), n)


def _storage_class(kind: type) -> type:
    for base in (collections.OrderedDict, collections.defaultdict):
        if issubclass(kind, base):
            return base
    return dict


def _is_argument(source: Source) -> bool:
    """True for arguments of the entry function and elements of containers among them."""
    while isinstance(source, ItemSource):
        source = source.base
    return isinstance(source, LocalSource)


def _is_named_tuple(kind: type) -> bool:
    return tuple in kind.__bases__


def _is_literal_tuple(key: object) -> bool:
    return type(key) is tuple and all(type(k) in _LITERALS or _is_literal_tuple(k) for k in key)


Maker = Callable[[Builder, object, Source | None], Value]

_EXACT: dict[type, Maker] = {
    list: Builder._list,
    tuple: Builder._tuple,
    torch.Size: Builder._size,
    collections.deque: Builder._deque,
    dict: Builder._dict,
    collections.OrderedDict: Builder._dict,
    collections.defaultdict: Builder._dict,
    types.MappingProxyType: Builder._proxy,
    set: Builder._set,
    frozenset: Builder._set,
    range: Builder._range,
    slice: Builder._slice,
    types.FunctionType: Builder._function,
    types.MethodType: Builder._method,
    types.CodeType: Builder._identity,
    re.Pattern: Builder._identity,
    torch.Tensor: wrap_tensor,
    nn.Parameter: wrap_tensor,
    **dict.fromkeys(_TORCH_CONSTANTS, Builder._constant),
}
_IMMUTABLE = (
    types.BuiltinFunctionType,
    types.ModuleType,
    type,
    enum.Enum,
    tuple,
    frozenset,
    range,
    slice,
    types.CodeType,
    re.Pattern,
    *_BUILTIN_CALLABLES,
    *_TORCH_CONSTANTS,
    *OPERATORS,
)
