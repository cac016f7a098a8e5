"""``Builder``: the value of a real object that traced code met, with its guards and graph input.

``wrap(obj, source)`` is for objects that the compiled code will fetch again, ``wrap_new(obj)`` for
those that are the same at every call: constants of the code and what guards have fixed. Dispatch:
exact type, then predicates in order, then a user object.

One object gives one value, however it is reached: a second source of the same object installs a
guard that the two are one.
"""

from __future__ import annotations

import enum
import math
import re
import sys
import threading
import types
import weakref

# By name: the program may put other things in the module's place.
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, cast

import torch
from torch import nn
from torchsmith_guards import (
    UNCHANGED_NUMBER,
    AttrSource,
    ClosureSource,
    ContentSource,
    DefaultsSource,
    FunctionSource,
    Guard,
    GuardKind,
    ItemSource,
    LocalSource,
    NamespaceSource,
    PinnedSource,
    ResultSource,
    Source,
)

from torchsmith_tracer._src import marks
from torchsmith_tracer._src.breaks.signals import ObservedException, Unsupported
from torchsmith_tracer._src.build.arrays import guard_memory, wrap_array
from torchsmith_tracer._src.build.dynamic import FrameState, check_marks, key_of
from torchsmith_tracer._src.build.instance_dicts import guard_dicts, share_dict
from torchsmith_tracer._src.build.lists import LITERALS, is_plain_key, unless_other_keys, wrap_list
from torchsmith_tracer._src.build.stored_hash import stored_hashes
from torchsmith_tracer._src.build.tensors import wrap_tensor
from torchsmith_tracer._src.build.wrappers import wrap_descriptor
from torchsmith_tracer._src.frames.library import is_library_module, is_ours
from torchsmith_tracer._src.graph.provenance import user_line
from torchsmith_tracer._src.higher_order import (  # noqa: F401 - they fill the tables
    autograd_functions,
    control,
    gradients,
    hooks,
    native_hooks,
    transforms,
)
from torchsmith_tracer._src.torch_private import not_traced_code, storage_id
from torchsmith_tracer._src.values import (  # noqa: F401 - they fill the tables
    containers,
    numpy_calls,
    numpy_tensors,
    optimizers,
    parameters,
    random_generators,
    symbolic_calls,
    tensor_scalars,
    torch_classes,
)
from torchsmith_tracer._src.values.base import Value, slot_names
from torchsmith_tracer._src.values.builtins import registry
from torchsmith_tracer._src.values.classes import ClassValue
from torchsmith_tracer._src.values.constants import ConstantValue, is_none
from torchsmith_tracer._src.values.contexts import wrap_context
from torchsmith_tracer._src.values.functions import BoundMethodValue, BuiltinValue, FunctionValue
from torchsmith_tracer._src.values.hash_keys import IdentityKey
from torchsmith_tracer._src.values.lazy import LazyValue, realize
from torchsmith_tracer._src.values.locks import OBJECTS
from torchsmith_tracer._src.values.lookup import disguises
from torchsmith_tracer._src.values.mappings import DictValue
from torchsmith_tracer._src.values.modules import ModuleValue
from torchsmith_tracer._src.values.namespaces import PyModuleValue
from torchsmith_tracer._src.values.numpy_arrays import ArrayValue, DtypeValue, is_dtype
from torchsmith_tracer._src.values.numpy_scalars import NumpyValue, is_function, is_number_type
from torchsmith_tracer._src.values.opaque import TYPE_EXPRESSIONS, OpaqueValue
from torchsmith_tracer._src.values.python_instances import (
    EnumValue,
    ObjectValue,
    is_struct_sequence,
    storage_base,
)
from torchsmith_tracer._src.values.set_layouts import Given, element, given
from torchsmith_tracer._src.values.sets import SetValue
from torchsmith_tracer._src.values.symnum import SymNumValue
from torchsmith_tracer._src.values.tensor import TensorValue
from torchsmith_tracer._src.values.torch_fn import TorchCallable, is_torch_callable
from torchsmith_tracer._src.values.views import MappingProxyValue

if TYPE_CHECKING:
    from torchsmith_tracer._src.compilation import Compilation

# Attributes of torch's modules that programs change from step to step.
_SCHEDULED = frozenset({"p", "label_smoothing", "momentum", "margin", "beta", "delta"})
_VARYING = ("float64", "float32", "float16", "int64", "int32")  # numbers of NumPy
_STORAGE = (dict, list, tuple, deque, set, frozenset, int, float, str, bytes, complex)
_BUILTIN_CALLABLES = (
    types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.MethodWrapperType, types.ClassMethodDescriptorType, types.GetSetDescriptorType,
    types.MemberDescriptorType,
)  # fmt: skip
_WITH_METHODS = frozenset((
    list, dict, set, frozenset, tuple, str, bytes, deque, OrderedDict, torch.Tensor, nn.Parameter,
))  # fmt: skip
_TORCH_CONSTANTS = (
    torch.dtype, torch.device, torch.layout, torch.memory_format, torch.finfo, torch.iinfo,
    torch.nn.attention.SDPBackend,
)  # fmt: skip
Part = Literal["keys", "values", "__iter__"]


class Builder:
    """See the module's docstring.

    Attributes:
        frame_state: which sizes and numbers have varied between compiles.
        leaves: tensors that gradients are accumulated in, by the identity of their fake ones.
        inner: where the tensors inside of wrappers are, whose sizes their class marks as it likes.
        arrays: the arrays of NumPy among the inputs.
        tables: objects by the identity of their ``__dict__``.
    """

    def __init__(self, tx: Compilation, frame_state: FrameState | None = None) -> None:
        self.tx = tx
        self.frame_state = FrameState() if frame_state is None else frame_state
        self._memo: dict[int, tuple[object, Value, Source | None]] = {}
        self._made: list[Value] = []  # those of rolled back parts, too
        self._scalars: dict[Source, Value] = {}
        self.tables: dict[int, ObjectValue] = {}
        self._identified: dict[Value, None] = {}
        self._is_stock: dict[Source, bool] = {}  # modules: whether they are torch's
        self.leaves: dict[int, TensorValue] = {}
        self.inner: set[Source] = set()
        self.arrays: list[ArrayValue] = []

    # --- entry -------------------------------------------------------------------------------
    def wrap(self, obj: object, source: Source) -> Value:
        """The value of ``obj``, found at ``source``."""
        kind = type(obj)
        if kind in LITERALS:
            return self._literal(obj, source)
        if is_number_type(kind):
            return self._numpy_number(obj, source)
        entry = self._memo.get(id(obj))
        if entry is not None:
            if entry[2] != source:
                self.same_object(obj, entry[2], source)
            return entry[1]
        if kind is types.FunctionType and isinstance(source.base, NamespaceSource):
            # Facts about a global function are facts about that very object, wherever it is found.
            self.guard(source, GuardKind.ID, obj, "global function")
            source = PinnedSource(obj)
        return self._remember(obj, self._make(obj, source), source)

    def wrap_new(self, obj: object) -> Value:
        """The value of an object that is the same at every call; what it holds is guarded."""
        return ConstantValue(obj) if type(obj) in LITERALS else self.wrap(obj, PinnedSource(obj))

    def known(self, obj: object) -> Value | None:
        """The value that was made for ``obj``, if any."""
        entry = self._memo.get(id(obj))
        return None if entry is None else entry[1]

    def note_leaf(self, value: TensorValue) -> None:
        """``value`` is a leaf that requires gradients."""
        leaves, key = self.leaves, id(value.fake)
        if key not in leaves:
            leaves[key] = value
            self.tx.graph.record(lambda: leaves.__delitem__(key))

    def guard(
        self, source: Source | None, kind: GuardKind, expected: object = None, why: str = ""
    ) -> None:
        """Add a guard, with the user's line that needed it."""
        if source is None:
            return
        if kind is not GuardKind.ID or not isinstance(source, PinnedSource):
            self.tx.guards.add(Guard(source, kind, expected, why, user_line(self.tx)))

    def unroll(self, what: str, key: str, length: int) -> None:
        """See ``FrameState.unroll``."""
        self.frame_state.unroll(self.tx, what, key, length, 2)

    def _remember(self, obj: object, value: Value, source: Source) -> Value:
        memo, key = self._memo, id(obj)
        memo[key] = (obj, value, source)
        self._made.append(value)
        self.tx.graph.record(lambda: memo.__delitem__(key))
        return value

    def close(self) -> None:
        """Let go of the objects now, not when the collector comes: values refer to each other in
        circles (a function and its globals), and weak references would show who is still alive."""
        for value in self._made:
            for name in slot_names(type(value)):
                if hasattr(value, name):
                    delattr(value, name)
        vars(self).clear()

    def same_object(self, obj: object, first: Source | None, source: Source) -> None:
        """``obj`` was found at ``first`` and again at ``source``."""
        if first is None:
            return
        why = "the same object is reached in two ways"
        if isinstance(first, PinnedSource):
            self.guard(source, GuardKind.ID, obj, why)
        elif isinstance(source, PinnedSource):
            self.guard(first, GuardKind.ID, obj, why)
        else:
            self.guard(source, GuardKind.SAME_OBJECT, first, why)

    def distinct(self, a: Value, b: Value) -> None:
        """Traced code relied on two existing objects being different ones."""
        first, second = a.source, b.source
        if first is None or second is None or first == second:
            return
        pinned = isinstance(first, PinnedSource) and isinstance(second, PinnedSource)
        if not pinned:
            why = "two objects were compared by identity"
            self.guard(first, GuardKind.NOT_SAME, (second,), why)

    def identified(self, value: Value) -> None:
        """Traced code used the identity of an existing object as a key: it may be equal to no
        other such key."""
        if value not in self._identified and not isinstance(value, ConstantValue):
            self._identified[value] = None
            self.tx.graph.record(lambda: self._identified.pop(value))

    def add_aliasing_guards(self) -> None:
        """Guard that what was changed in place is reached by no other path than those seen, and
        that keys by identity are different ones. To be called once, at the end of the trace."""
        tx = self.tx
        keys: dict[type, list[Source]] = {}
        for value in self._identified:
            if value.source is not None:
                keys.setdefault(value.python_type(), []).append(value.source)
        for sources in keys.values():
            if len(sources) > 1:
                why = "these objects are keys, or looked up, by identity"
                self.guard(sources[0], GuardKind.NOT_SAME, tuple(sources[1:]), why)
        changed: set[Value] = {*tx.journal.mutated, *tx.journal.attrs}
        counted, saving = tx.graph.counted, tx.graph.saves_after_writing()
        groups: dict[object, list[Value]] = {}
        touched: set[object] = set()
        for obj, value, _ in self._memo.values():
            source = value.source
            if source is None:
                continue
            key: object
            tensor = value.base_value()
            if isinstance(tensor, TensorValue):
                at, real, fake = tensor.source, tensor.real, tensor.fake
                if at is not None and at not in self.inner and real is not None:
                    if tx.graph.shape_env is not None and tx.settings.dynamic is not False:
                        check_marks(tx.graph.shape_env, at, real)
                    if not real.is_inference() and (saving or storage_id(fake) in counted):
                        self.guard(at, GuardKind.WRITABLE, None, "it is written to or saved")
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
            tables = [
                tx.world.own_table(v.obj, v.source)
                for v in self.tables.values()
                if v in groups[key] and v.source is not None
            ]
            if len(tables) > 1:
                self.guard(tables[0], GuardKind.NOT_SAME, tuple(tables[1:]), why)
        guard_dicts(self, self._memo.values(), changed)

    def guard_memory(self) -> None:
        """Guard that arrays and what is written to are in memory of their own."""
        if self.arrays and self.tx.graph.mutated:
            values = [value for _, value, source in self._memo.values() if source is not None]
            guard_memory(
                self, [v for v in values if isinstance(v, TensorValue) and v.real is not None]
            )

    # --- numbers and other literals ----------------------------------------------------------
    def _literal(self, obj: object, source: Source) -> Value:
        known = self._scalars.get(source)
        if known is not None:
            return known
        value = self._symbolic(obj, source)
        if value is None:
            value = ConstantValue(obj, source)
            kind = GuardKind.NONE if obj is None else GuardKind.CONSTANT
            why = f"value of type {type(obj).__name__} is a constant"
            if self._may_vary(obj, source) and self.tx.settings.dynamic is not False:
                why = UNCHANGED_NUMBER
            self.guard(source, kind, obj, why)
        self._scalars[source] = value
        self.tx.graph.record(lambda: self._scalars.__delitem__(source))
        return value

    def _numpy_number(self, obj: object, source: Source) -> Value:
        """A number of NumPy: a constant until it is seen to change, then an input."""
        known = self._scalars.get(source)
        if known is not None:
            return known
        env, dynamic = self.tx.graph.shape_env, self.tx.settings.dynamic
        varies = type(obj).__name__ in _VARYING and env is not None and dynamic is not False
        varies = varies and not self._is_fixed(source) and obj == obj
        made: Value
        if varies and self.frame_state.is_dynamic_scalar(source, obj, None):
            made = wrap_array(self, obj, source)
        else:
            why = UNCHANGED_NUMBER if varies else "number of NumPy is a constant"
            self.guard(source, GuardKind.CONSTANT, obj, why)
            made = NumpyValue(obj, source)
        self._scalars[source] = made
        self.tx.graph.record(lambda: self._scalars.__delitem__(source))
        return made

    def _symbolic(self, obj: object, source: Source) -> Value | None:
        """A number as an input of the graph, when it is one that has changed."""
        env = self.tx.graph.shape_env
        if env is None or not self._may_vary(obj, source):
            return None
        assert isinstance(obj, int | float)
        dynamic = self.tx.settings.dynamic
        if dynamic is True and not _is_argument(source):
            dynamic = None  # most numbers of a program's own objects and modules never change
        if not self.frame_state.is_dynamic_scalar(source, obj, dynamic):
            return None
        symbol = env.create_symbol(obj, source, "unspecified")
        if not isinstance(symbol, torch.SymInt | torch.SymFloat):
            return None
        node = self.tx.graph.add_input(source, symbol, obj)
        return SymNumValue(node, symbol, source)

    def _may_vary(self, obj: object, source: Source) -> bool:
        """Whether a change makes ``obj`` symbolic. Some numbers stay constants: defaults of
        functions, and what torch's own modules hold (strides, epsilons), unless it is what
        programs change while they train, or traced code itself changes."""
        kind, settings = type(obj), self.tx.settings
        if kind is int:
            fixed = settings.specialize_int
        elif kind is float:
            fixed = settings.specialize_float or not math.isfinite(obj)  # type: ignore[arg-type]
        else:
            return False
        return not fixed and not self._is_fixed(source)

    def _is_fixed(self, source: Source) -> bool:
        step: Source | None = source
        if isinstance(step, AttrSource) and step.attr in _SCHEDULED:
            step = None
        while step is not None:
            if isinstance(step, DefaultsSource) or step in self._is_stock:
                fixed, known = self._is_stock.get(step, True), self.frame_state.scalars
                return fixed and known.setdefault(key_of(source), 0) is not None
            step = step.base
        return False

    # --- dispatch ----------------------------------------------------------------------------
    def _make(self, obj: object, source: Source) -> Value:
        kind = type(obj)
        if (exact := _EXACT.get(kind)) is not None:
            return exact(self, obj, source)
        if issubclass(kind, type):
            return self._class(obj, source)
        if disguises(kind) and not issubclass(kind, (torch.Tensor, nn.Module, enum.Enum)):
            return self._object(obj, source)  # ``isinstance`` below would run code of the user's
        if isinstance(obj, torch.Tensor):
            return wrap_tensor(self, obj, source)
        if kind.__name__ == "ndarray" and kind.__module__ == "numpy":
            return wrap_array(self, obj, source)
        if is_dtype(obj):
            self.guard(source, GuardKind.CONSTANT, obj, "element type")
            return DtypeValue(obj, source)
        if isinstance(obj, nn.Module):
            return self._module(obj, source)
        if isinstance(obj, enum.Enum):
            self.guard(source, GuardKind.ID, obj, "enum member")
            return EnumValue(obj, source)
        if isinstance(obj, types.ModuleType):
            self.guard(source, GuardKind.ID, obj, "module")
            self.guard(source, GuardKind.TYPE, kind, "class of a module")
            return PyModuleValue(obj, source)
        if is_torch_callable(obj):
            self.guard(source, GuardKind.ID, obj, "torch function")
            return TorchCallable(obj, source)
        if isinstance(obj, torch.Generator) and self.tx.native_nodes:
            return random_generators.existing(self.tx, obj, source)
        context = wrap_context(obj, source)
        if context is not None:
            self.guard(source, GuardKind.TYPE, kind, "context manager")
            for name in ("mode", "device", "fast_dtype", "_enabled"):
                if name in vars(obj):
                    self.wrap(vars(obj)[name], AttrSource(source, name))
            return context
        if isinstance(obj, types.BuiltinFunctionType) and type(obj.__self__) in _WITH_METHODS:
            return self._bound_builtin(obj, source)
        if isinstance(obj, types.BuiltinFunctionType) and _is_on_stack(obj.__self__, source):
            self.guard(source, GuardKind.TYPE, kind, "method of an object")
            self.guard(AttrSource(source, "__qualname__"), GuardKind.CONSTANT, obj.__qualname__)
            return OpaqueValue(obj, source)
        if isinstance(obj, _BUILTIN_CALLABLES) or is_function(obj) or numpy_calls.name_of(obj):
            self.guard(source, GuardKind.ID, obj, "builtin function")
            return BuiltinValue(obj, source)
        if isinstance(obj, tuple) and containers.is_plain_named(self.tx, kind):
            return self._named_tuple(obj, source)
        return self._object(obj, source)

    def _bound_builtin(self, obj: types.BuiltinFunctionType, source: Source) -> Value:
        """``some_list.append``: a new object at each look-up, and the same if its parts are."""
        self.guard(source, GuardKind.TYPE, type(obj), "method of a builtin object")
        self.guard(AttrSource(source, "__name__"), GuardKind.CONSTANT, obj.__name__, "its name")
        held = self.wrap(obj.__self__, AttrSource(source, "__self__"))
        kind = type(obj.__self__)
        if isinstance(held, TensorValue):
            return held.getattr(self.tx, obj.__name__)
        owner = next(base for base in kind.__mro__ if obj.__name__ in vars(base))
        return self.tx.interp.builtin_method(held, obj.__name__, owner, vars(owner)[obj.__name__])

    def _constant(self, obj: object, source: Source) -> Value:
        self.guard(source, GuardKind.CONSTANT, obj, f"{type(obj).__name__} is a constant")
        return ConstantValue(obj, source)

    def _identity(self, obj: object, source: Source) -> Value:
        self.guard(source, GuardKind.ID, obj, f"{type(obj).__name__} is a constant")
        return ConstantValue(obj, source)

    # --- containers --------------------------------------------------------------------------
    def lazy(self, obj: object, source: Source) -> LazyValue:
        """The value of an object that nothing has looked at yet."""
        return LazyValue(obj, source, self.tx)

    def items_of(self, obj: Sequence[object], source: Source) -> list[Value]:
        return [self.lazy(item, ItemSource(source, i)) for i, item in enumerate(obj)]

    def _named_tuple(self, obj: tuple[object, ...], source: Source) -> Value:
        kind = type(obj)
        self.guard(source, GuardKind.LENGTH, (kind, len(obj)), "type of a named tuple")
        return containers.NamedTupleValue(self.items_of(obj, source), kind, source)

    def _deque(self, obj: object, source: Source) -> Value:
        assert isinstance(obj, deque)
        self.guard(source, GuardKind.LENGTH, (type(obj), len(obj)), "length of a deque")
        self.wrap(obj.maxlen, AttrSource(source, "maxlen"))
        return containers.DequeValue(self.items_of(obj, source), obj.maxlen, source)

    def _dict(self, obj: object, source: Source) -> Value:
        assert isinstance(obj, dict)
        holder = self.tables.get(id(obj))
        if holder is not None:
            assert holder.source is not None
            self.same_object(obj, self.tx.world.own_table(holder.obj, holder.source), source)
            return self.tx.interp.instance_dict(holder)
        module = sys.modules.get(str(obj.get("__name__"))) if type(obj) is dict else None
        if id(obj) in self.tx.interp.namespaces or getattr(module, "__dict__", None) is obj:
            self.guard(source, GuardKind.ID, obj, "globals of a module")
            return self.tx.interp.namespace(cast("dict[str, object]", obj))
        kind = storage_base(type(obj))
        factory: Value | None = None
        if isinstance(obj, defaultdict):
            made = self.wrap(obj.default_factory, AttrSource(source, "default_factory"))
            factory = None if is_none(made) else made
        read = partial(self._table, obj, source, kind)
        found = DictValue(unless_other_keys(self, obj, source, kind, read), source, kind, factory)
        found.real = obj if type(obj) is OrderedDict else None
        return found

    def _table(
        self, obj: Mapping[object, object], source: Source, kind: type
    ) -> dict[object, tuple[Value, Value]]:
        """The entries of a mapping, values lazy, with a guard on the keys. ``kind`` is the builtin
        class whose methods read it."""
        entries = list(kind.items(obj))  # type: ignore[attr-defined]
        pairs: list[tuple[Value, Value]]
        if all(is_plain_key(k) for k, _ in entries):
            self._plain_keys(obj, source, kind, [k for k, _ in entries])
            plain = type(obj) in (dict, OrderedDict) or not isinstance(obj, dict)
            of = None if plain else dict
            pairs = [
                (self.wrap_new(k), self.lazy(v, ItemSource(source, k, of))) for k, v in entries
            ]
        else:
            # Another object may be the key next time: keys and values are found by place.
            self.guard(source, GuardKind.TYPE, type(obj), "class of a dict")
            keys = self._content([k for k, _ in entries], source, "keys", kind)
            values = self._content([v for _, v in entries], source, "values", kind)
            pairs = [(realize(self.tx, k), v) for k, v in zip(keys, values, strict=True)]
        hash_keys = self._hash_keys(obj, [k for k, _ in pairs])
        table = dict(zip(hash_keys, pairs, strict=True))
        if len(table) != len(pairs):
            raise Unsupported("opaque-call", what="a dict with keys that are equal by now")
        return table

    def _hash_keys(self, table: object, keys: Sequence[Value]) -> list[object]:
        """The hash keys of what a dict or set holds."""
        journal = self.tx.journal
        before = journal.checkpoint()
        try:
            found = [self.tx.interp.hash_key(key) for key in keys]
        except ObservedException:
            raise Unsupported("opaque-call", what="a key that has no hash by now") from None
        journal.rollback(before)  # the program asked for these hashes before, and saw the effects
        stored: dict[int, int] | None = None
        for key, hash_key in zip(keys, found, strict=True):
            if not isinstance(key, ObjectValue | ClassValue | EnumValue):
                continue
            held = key.value if isinstance(key, EnumValue) else key.obj
            if self.tx.world.fixed(type(held)):
                continue
            stored = stored_hashes(table) if stored is None else stored
            if stored is None:
                break
            by_identity = isinstance(hash_key, IdentityKey)
            number = object.__hash__(held) if by_identity else hash(hash_key)
            if stored.get(id(held)) != number:
                raise Unsupported("opaque-call", what="a key that has another hash by now")
        return found

    def _plain_keys(
        self, obj: Iterable[object], source: Source, kind: type, keys: list[object]
    ) -> None:
        """Guard the keys of a mapping or the elements of a set, in order."""
        why = "content of a set" if issubclass(kind, set | frozenset) else "keys of a dict"
        if type(obj) is kind:
            self.guard(source, GuardKind.DICT_KEYS, (type(obj), tuple(keys)), why)
        else:
            self.guard(source, GuardKind.TYPE, type(obj), why)
            order = ContentSource(source, "__iter__", kind)
            self.guard(order, GuardKind.CONSTANT, tuple(keys), why)

    def _content(
        self, items: Sequence[object], source: Source, part: Part, kind: type
    ) -> list[Value]:
        """What a container holds, found by place."""
        content = ContentSource(source, part, kind)
        self.guard(content, GuardKind.LENGTH, (tuple, len(items)), f"length of a {kind.__name__}")
        return [self.lazy(item, ItemSource(content, n)) for n, item in enumerate(items)]

    def _proxy(self, obj: object, source: Source) -> Value:
        assert isinstance(obj, types.MappingProxyType)
        table = self._table(obj, source, types.MappingProxyType)
        return MappingProxyValue(DictValue(table), source)

    def _set(self, obj: object, source: Source) -> Value:
        """The content of a set or of an instance of a subclass, in the order it is found in."""
        assert isinstance(obj, set | frozenset)
        kind = storage_base(type(obj))
        read = partial(self._elements, obj, source, kind)
        return SetValue(unless_other_keys(self, obj, source, kind, read), source, kind)

    def _elements(self, obj: set[object] | frozenset[object], source: Source, kind: type) -> Given:
        items = list(kind.__iter__(obj))  # type: ignore[attr-defined]
        if all(map(is_plain_key, items)):
            self._plain_keys(obj, source, kind, items)
            values = [self.wrap_new(x) for x in items]
        else:
            self.guard(source, GuardKind.TYPE, type(obj), "class of a set")
            content = self._content(items, source, "__iter__", kind)
            values = [realize(self.tx, v) for v in content]
        keys = self._hash_keys(obj, values)
        elements = [element(key, value) for key, value in zip(keys, values, strict=True)]
        if len(set(elements)) != len(values):
            raise Unsupported("opaque-call", what="a set with elements that are equal by now")
        return given(obj, elements)

    def _range(self, obj: object, source: Source) -> Value:
        assert isinstance(obj, range)
        self.guard(source, GuardKind.TYPE, range, "range")
        return containers.RangeValue(*self._bounds(obj, source), source)

    def _slice(self, obj: object, source: Source) -> Value:
        assert isinstance(obj, slice)
        self.guard(source, GuardKind.TYPE, slice, "slice")
        return containers.SliceValue(*self._bounds(obj, source), source)

    def _bounds(self, obj: range | slice, source: Source) -> tuple[Value, Value, Value]:
        start = self.wrap(obj.start, AttrSource(source, "start"))
        stop = self.wrap(obj.stop, AttrSource(source, "stop"))
        return start, stop, self.wrap(obj.step, AttrSource(source, "step"))

    def _original(self, obj: object, source: Source) -> Value:
        """The callable that ``obj``, compiled or scripted, stands for."""
        name = marks.original_name(obj)
        assert name is not None
        self.guard(source, GuardKind.ID, obj, "compiled function")
        return self.wrap(getattr(obj, name), AttrSource(source, name))

    # --- code --------------------------------------------------------------------------------
    def _function(self, obj: object, source: Source) -> Value:
        assert isinstance(obj, types.FunctionType)
        if marks.original_name(obj) is not None:
            return self._original(obj, source)
        if numpy_calls.name_of(obj) is not None:
            self.guard(source, GuardKind.ID, obj, "function of NumPy")
            return BuiltinValue(obj, source)
        if marks.is_disabled(obj) or is_torch_callable(obj):
            self.guard(source, GuardKind.ID, obj, "function")
        elif not is_ours(obj.__code__.co_filename):
            self.guard(source, GuardKind.CODE, obj.__code__, "code of a function")
            if not isinstance(source, PinnedSource | FunctionSource):
                globals_ = AttrSource(source, "__globals__")
                self.guard(globals_, GuardKind.ID, obj.__globals__, "globals of a function")
        if is_torch_callable(obj):
            return TorchCallable(obj, source)
        if obj.__code__ is not_traced_code and is_library_module(obj.__module__):
            if registry.find(obj) is None:  # torch keeps its own compiler away; not this one
                return self.wrap(vars(obj)["__wrapped__"], AttrSource(source, "__wrapped__"))
        if marks.is_disabled(obj):
            return OpaqueValue(obj, source)
        return FunctionValue.existing(self.tx, obj, source)

    def _method(self, obj: object, source: Source) -> Value:
        assert isinstance(obj, types.MethodType)
        if wrap_context(obj.__self__, None) is not None:
            return self._context_method(obj, source)
        self.guard(source, GuardKind.TYPE, types.MethodType, "bound method")
        func = self.wrap(obj.__func__, AttrSource(source, "__func__"))
        self_value = self.wrap(obj.__self__, AttrSource(source, "__self__"))
        return BoundMethodValue(func, self_value, source)

    def _context_method(self, obj: types.MethodType, source: Source) -> Value:
        """``__exit__`` and the like of a context manager of torch."""
        name = obj.__name__
        self.guard(source, GuardKind.TYPE, types.MethodType, "bound method")
        self.wrap(obj.__func__, AttrSource(source, "__func__"))
        context = self.wrap(obj.__self__, AttrSource(source, "__self__"))
        method = context.getattr(self.tx, name)
        method.source = source
        return method

    def _class(self, obj: object, source: Source) -> Value:
        assert isinstance(obj, type)
        self.guard(source, GuardKind.ID, obj, "class")
        value = self.tx.interp.class_value(obj)
        assert isinstance(value, ClassValue)
        return value

    def _module(self, obj: nn.Module, source: Source) -> Value:
        original = marks.original_name(obj)
        if original == marks.ORIGINAL:
            # The compiled form shares the module's instance dict: paths through it are the same.
            self.guard(source, GuardKind.TYPE, type(obj), "class of a compiled module")
            module = getattr(obj, original)
            self.guard(AttrSource(source, "__class__"), GuardKind.ID, type(module), "its own class")
            return share_dict(self, ModuleValue(module, source, obj))
        if original is not None:
            return self._original(obj, source)
        if marks.runs_natively(obj):
            self.guard(source, GuardKind.TYPE, type(obj), "module")
            return OpaqueValue(obj, source)
        self.guard(source, GuardKind.TYPE, type(obj), "class of a module")
        self._is_stock[source] = type(obj).__module__.startswith("torch.nn.")
        return share_dict(self, ModuleValue(obj, source))

    # --- objects -----------------------------------------------------------------------------
    def _object(self, obj: object, source: Source) -> Value:
        kind = type(obj)
        if kind is torch.jit.ScriptFunction and marks.original_name(obj) is not None:
            return self._original(obj, source)
        self.guard(source, GuardKind.TYPE, kind, "class of an object")
        if issubclass(kind, TYPE_EXPRESSIONS):
            self.guard(source, GuardKind.CONSTANT, obj, "type expression")
        if kind in OBJECTS or self._is_opaque(kind):
            return OBJECTS.get(kind, OpaqueValue)(obj, source)
        self.tx.interp.class_value(kind)
        storage: Value | None = None
        if not issubclass(kind, _STORAGE):
            pass
        elif isinstance(obj, dict):
            storage = self._dict(obj, source)
        elif isinstance(obj, list | tuple | deque):
            storage = self._sequence(obj, source)
        elif isinstance(obj, set | frozenset):
            storage = self._set(obj, source)
        else:
            # ``str.__str__`` and the like, since a subclass may override this and ``__eq__``.
            plain = next(getattr(t, f"__{t.__name__}__") for t in _STORAGE if issubclass(kind, t))
            storage = ConstantValue(plain(obj))
            self.guard(ResultSource(source, plain), GuardKind.CONSTANT, storage.value, "its value")
        return share_dict(self, ObjectValue(obj, source, storage))

    def _sequence(
        self, obj: list[object] | tuple[object, ...] | deque[object], source: Source
    ) -> Value:
        """The content of an instance of a user subclass of list, tuple or deque."""
        cls, kind = type(obj), storage_base(type(obj))
        content = list(kind.__iter__(obj))  # type: ignore[attr-defined]
        if cls is kind:  # else its own methods may run code, now or later
            self.guard(source, GuardKind.LENGTH, (cls, len(content)), "length of a sequence")
            items = self.items_of(content, source)
        else:
            items = self._content(content, source, "__iter__", kind)
        if isinstance(obj, deque):
            return containers.DequeValue(items, obj.maxlen, source)
        return (containers.ListValue if kind is list else containers.TupleValue)(items, source)

    def _is_opaque(self, kind: type) -> bool:
        """Objects of C types have no attributes that can be followed, except struct sequences,
        namespaces and exceptions."""
        if is_struct_sequence(kind) or issubclass(kind, BaseException | types.SimpleNamespace):
            return False
        # Runs code in each thread, or is in a table that anybody's collection changes.
        if issubclass(kind, (threading.local, weakref.finalize)):
            return kind is not threading.local
        of_statement = kind.__flags__ & (1 << 9)  # Py_TPFLAGS_HEAPTYPE
        return not of_statement or kind.__module__.partition(".")[0] == "numpy"


def _is_argument(source: Source) -> bool:
    """True for arguments of the entry function, elements of containers among them, and what it
    closes over."""
    while isinstance(source, ItemSource):
        source = source.base
    if isinstance(source, ClosureSource):
        source = source.base
    return isinstance(source, LocalSource | FunctionSource)


def _is_on_stack(owner: object, source: Source) -> bool:
    """Whether a graph break left a method of ``owner``, made for the call, on the stack."""
    held = isinstance(owner, types.ModuleType | type | None)
    return isinstance(source, LocalSource) and source.name.startswith("___s") and not held


Maker = Callable[[Builder, object, Source], Value]

_EXACT: dict[type, Maker] = {
    **dict.fromkeys((list, tuple, torch.Size), wrap_list),
    deque: Builder._deque,
    **dict.fromkeys(weakref.ProxyTypes, Builder._object),  # ``isinstance`` would ask the referent
    dict: Builder._dict,
    OrderedDict: Builder._dict,
    defaultdict: Builder._dict,
    types.MappingProxyType: Builder._proxy,
    set: Builder._set,
    frozenset: Builder._set,
    range: Builder._range,
    slice: Builder._slice,
    types.FunctionType: Builder._function,
    types.MethodType: Builder._method,
    types.CodeType: Builder._identity,
    type(NotImplemented): Builder._identity,
    **dict.fromkeys((staticmethod, classmethod), wrap_descriptor),
    re.Pattern: Builder._identity,
    torch.Tensor: wrap_tensor,
    nn.Parameter: wrap_tensor,
    **dict.fromkeys(_TORCH_CONSTANTS, Builder._constant),
}
