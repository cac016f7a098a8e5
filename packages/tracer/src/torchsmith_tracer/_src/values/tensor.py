"""``TensorValue``: a tensor of the traced program, an fx node plus its fake tensor.

Metadata comes from the fake; everything that computes becomes a node. What would read the data
(``item``, ``bool``, ``tolist`` ...) is a graph break. In-place operators keep the value's identity:
the node of the mutated tensor is replaced, so that later uses depend on the change.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import ModuleType

import torch
from torch import fx
from torchsmith_guards import Guard, GuardKind, Source

from torchsmith_tracer._src.breaks.signals import ObservedException, Unsupported
from torchsmith_tracer._src.effects.journal import DELETED
from torchsmith_tracer._src.emitter import Emitter
from torchsmith_tracer._src.torch_private import legacy_tensor_types, no_torch_function
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.addresses import AddressedText, NumberText
from torchsmith_tracer._src.values.base import MethodOf, Value
from torchsmith_tracer._src.values.builtin_object import HasInstanceDict
from torchsmith_tracer._src.values.constants import COMPARE, NONE, UNARY, ConstantValue, dunder
from torchsmith_tracer._src.values.containers import SliceValue, TupleValue
from torchsmith_tracer._src.values.contexts import FunctionMode
from torchsmith_tracer._src.values.sizes import SizeValue, size_value
from torchsmith_tracer._src.values.symnum import SymNumValue, decide, symbolic, unroll

_OPERATORS: dict[str, Callable[..., object]] = {
    name: getattr(operator, name)
    for name in (
        "add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift "
        "iadd isub imul itruediv ifloordiv imod ipow iand ior ixor ilshift irshift"
    ).split()
}
_OPERATORS["and"] = operator.and_
_OPERATORS["or"] = operator.or_
LEGACY_TYPES = legacy_tensor_types()
_SLOT_METHODS = frozenset(
    "__getitem__ __setitem__ __len__ __iter__ __bool__ __contains__ __hash__".split()
)


class TensorValue(HasInstanceDict, Value):
    """See the module's docstring.

    Attributes:
        node: the fx node that holds the tensor now.
        fake: its fake tensor.
        real: the real tensor of a graph input, else None.
        cls: ``torch.Tensor`` or ``torch.nn.Parameter``.
        stands_for: the same tensor outside of a body that has it as an input, else None.
    """

    __slots__ = ("cls", "fake", "node", "real", "stands_for")

    def __init__(
        self,
        node: fx.Node,
        fake: torch.Tensor,
        source: Source | None = None,
        real: torch.Tensor | None = None,
    ) -> None:
        super().__init__(source)
        self.node = node
        self.fake = fake
        self.real = real
        self.cls: type = torch.Tensor if real is None else type(real)
        self.stands_for: TensorValue | None = None

    def describe(self) -> str:
        sizes = "x".join(str(n) for n in self.fake.shape) or "0-dim"
        name = f" `{self.source.expr}`" if self.source is not None else ""
        return f"tensor{name} ({sizes}, {str(self.fake.dtype).removeprefix('torch.')})"

    def as_proxy(self) -> fx.Node:
        return self.node

    def replace_node(self, tx: Trace, node: fx.Node) -> None:
        """The tensor was changed in place by ``node``; later uses depend on it."""
        old = self.node

        replaced = tx.graph.replaced

        def undo() -> None:
            self.node = old
            replaced.pop()

        tx.graph.record(undo)
        replaced.append((self, old))
        self.node = node

    # --- attributes --------------------------------------------------------------------------
    def getattr(self, tx: Trace, name: str) -> Value:
        stored = tx.journal.load_attr(self, name)
        if stored is not None and stored is not DELETED:
            return stored  # type: ignore[return-value]
        if stored is None:
            tx.world.tensor_entry(name)
            descriptor = getattr(torch.Tensor, name, None) if tx.graph.contexts else None
            if isinstance(descriptor, types.GetSetDescriptorType) and _watched(tx):
                watched: Value = _overrides().watched_property(tx, self, descriptor)
                return watched
            if (prop := PROPERTIES.get(name)) is not None:
                return prop(tx, self)
            attr = getattr(self.cls, name, None)
            if attr is not None and callable(attr):
                if name == "__torch_function__" or attr is no_torch_function:
                    raise Unsupported("tensor-attribute", what=name, tensor=self.describe())
                return TensorMethod(self, name)
            if attr is not None and name not in ("__dict__", "__doc__", "__module__"):
                raise Unsupported("tensor-attribute", what=name, tensor=self.describe())
            if (found := self.instance_get(tx, name)) is not None:  # the user has put it there
                return found
            if self.real is not None and self.source is not None:
                why = f"tensor attribute {name!r} was looked up"
                tx.guards.add(Guard(self.source, GuardKind.HASATTR, (name, False), why))
        raise self.no_attribute(tx, name)

    def instance_names(self, tx: Trace) -> list[str]:
        for name in tx.world.instance_names(self.real, self.source):
            self._may_be_in_dict(name)
        return [name for name in super().instance_names(tx) if name not in STORES]

    def instance_set(self, tx: Trace, name: str, value: Value) -> None:
        self._may_be_in_dict(name)
        super().instance_set(tx, name, value)

    def _may_be_in_dict(self, name: str) -> None:
        """An entry that the class's own attribute hides is not what a load or a store means."""
        if hasattr(torch.Tensor, name):
            what = f"__dict__, with {name!r} in it,"
            raise Unsupported("tensor-attribute", what=what, tensor=self.describe())

    def setattr(self, tx: Trace, name: str, value: Value) -> None:
        store = STORES.get(name)
        if store is not None and _watched(tx):
            raise Unsupported("tensor-attribute-store", what=name, tensor=self.describe())
        if store is not None:
            tx.world.tensor_entry(name)
            store(tx, self, value)
            return
        if hasattr(torch.Tensor, name):
            raise Unsupported("tensor-attribute-store", what=name, tensor=self.describe())
        tx.journal.store_attr(self, name, value)

    def delattr(self, tx: Trace, name: str) -> None:
        self.getattr(tx, name)
        if hasattr(torch.Tensor, name):
            raise Unsupported("tensor-attribute-store", what=name, tensor=self.describe())
        tx.journal.store_attr(self, name, DELETED)

    def size(self, tx: Trace) -> SizeValue:
        """``self.shape``."""
        return size_value(self.fake.shape, lambda d: size_node(tx, self, d))

    def size_of(self, tx: Trace, dim: int) -> Value:
        """``self.shape[dim]`` for a valid dimension."""
        n = self.fake.shape[dim]
        return ConstantValue(n) if type(n) is int else symbolic(size_node(tx, self, dim), n)

    # --- items -------------------------------------------------------------------------------
    def getitem(self, tx: Trace, key: Value) -> Value:
        simple = isinstance(key, TensorValue | SymNumValue | ConstantValue | SliceValue)
        if not simple or _watched(tx):
            return call_tensor_method(tx, self, "__getitem__", [key], {})
        return self.plain_getitem(tx, key)

    def plain_getitem(self, tx: Trace, key: Value) -> Value:
        """An item whose index holds no tensor of a subclass."""
        key = self._positions(tx, key)
        chosen, rest = self._select(tx, key)
        if chosen is not self:
            return chosen if rest is None else chosen.plain_getitem(tx, rest)
        if tx.graph.mapped and isinstance(key, TensorValue) and _is_single_index(key.fake):
            # Outside of ``torch.vmap`` such an index is a number, which only the data determines.
            return tx.graph.call_function(torch.ops.aten.index.Tensor, (self, [key]))
        if isinstance(key, TensorValue) and key.fake.dtype is torch.bool:
            items: Value | None = _masked_items().load(tx, self, key)
            if items is not None:
                return items
        return tx.graph.call_function(operator.getitem, (self, key))

    def setitem(self, tx: Trace, key: Value, value: Value) -> None:
        if not _masked_items().store(tx, self, key, value):
            call_tensor_method(tx, self, "__setitem__", [key, value], {})

    def plain_setitem(self, tx: Trace, key: Value, value: Value) -> None:
        """Set an item; neither index nor value hold a tensor of a subclass."""
        chosen, rest = self._select(tx, self._positions(tx, key))
        rest = ConstantValue(Ellipsis) if rest is None else rest
        tx.graph.call_function(operator.setitem, (chosen, rest, value))

    def _positions(self, tx: Trace, key: Value) -> Value:
        """An index with tensors in place of ranges and arrays."""
        if type(key) is not TupleValue:
            return key.as_index(tx, self.fake.device)
        parts = key.unpack(tx)
        made = [part.as_index(tx, self.fake.device) for part in parts]
        return key if all(map(operator.is_, made, parts)) else TupleValue(made)

    def _select(self, tx: Trace, key: Value) -> tuple[TensorValue, Value | None]:
        """The tensor at the symbolic numbers of an index, and what is left of the index. Python
        indexing would specialise the numbers; ``select`` keeps them symbolic."""
        items = key.unpack(tx) if type(key) is TupleValue else [key]
        if not any(map(_is_symbolic, items)):
            return self, key
        widths = [_width(item) for item in items]
        taken = sum(width or 0 for width in widths)
        chosen, dim = self, 0
        rest: list[Value] = []
        last = max(place for place, item in enumerate(items) if _is_symbolic(item))
        for place, (item, width) in enumerate(zip(items, widths)):
            if place < last and isinstance(item, ConstantValue) and item.value is None:
                # Before what follows is taken, on which the new dimension's stride depends.
                chosen = tx.graph.call_method("unsqueeze", (chosen, dim))  # type: ignore[assignment]
                item, width = SliceValue(NONE, NONE, NONE), 1
            if width is None:
                if not (isinstance(item, ConstantValue) and item.value is Ellipsis):
                    return self, key
                width = self.fake.dim() - taken
            if not _is_symbolic(item):
                rest.append(item)
                dim += width
            elif 0 <= dim < chosen.fake.dim() and _is_inside(item, chosen.fake.shape[dim]):
                chosen = tx.graph.call_method("select", (chosen, dim, item))  # type: ignore[assignment]
            else:
                return self, key  # eager's own error
        return chosen, TupleValue(rest) if rest else None

    def length(self, tx: Trace) -> Value:
        if _watched(tx):
            return call_tensor_method(tx, self, "__len__", [], {})
        if self.fake.dim() == 0:
            raise tx.interp.error(TypeError, "len() of a 0-d tensor")
        return self.size_of(tx, 0)

    def iter(self, tx: Trace) -> Value:
        if _watched(tx):
            return call_tensor_method(tx, self, "__iter__", [], {})
        if self.fake.dim() == 0:
            raise tx.interp.error(TypeError, "iteration over a 0-d tensor")
        first = self.size_of(tx, 0)
        if isinstance(first, SymNumValue):
            unroll(tx, first.sym)
            first.specialize()
        return tx.graph.call_method("unbind", (self, 0)).iter(tx)

    def reversed(self, tx: Trace) -> Value:
        """``reversed(self)``, which is a tensor."""
        if _watched(tx):
            return call_tensor_method(tx, self, "__reversed__", [], {})
        zero = ConstantValue(0)
        return tx.graph.call_method("flip", (self, zero)) if self.fake.dim() else self

    def contains(self, tx: Trace, item: Value) -> Value:
        raise Unsupported("item", what="`in` on a tensor")

    # --- numbers -----------------------------------------------------------------------------
    def binary(self, tx: Trace, op: str, other: Value, *, reflected: bool = False) -> Value | None:
        fn, other = _OPERATORS.get(op), _number_in(tx, other)
        if fn is None or not is_operand(other) or _watched(tx):
            name = dunder(op, reflected=reflected)
            return None if fn is None else self._overridden(tx, name, other)
        args = (other, self) if reflected else (self, other)
        return tx.graph.call_function(fn, args)

    def unary(self, tx: Trace, op: str) -> Value:
        if _watched(tx):
            return call_tensor_method(tx, self, f"__{op}__", [], {})
        return tx.graph.call_function(UNARY[op], (self,))

    def _overridden(self, tx: Trace, name: str, other: Value) -> Value | None:
        """An operator whose other operand may have a ``__torch_function__``."""
        overrides = _overrides()
        if not overrides.involved(tx, (other,), {}) or not hasattr(torch.Tensor, name):
            return None
        name = "eq" if name == "__eq__" else name  # which torch hands on
        result = overrides.call(tx, getattr(torch.Tensor, name), [self, other], {})
        return None if result.is_constant() and result.as_constant() is NotImplemented else result

    def richcompare(self, tx: Trace, op: str, other: Value) -> Value | None:
        other = _number_in(tx, other)
        if not is_operand(other) or _watched(tx):
            return self._overridden(tx, f"__{op}__", other)
        return tx.graph.call_function(COMPARE[op], (self, other))

    def bool(self, tx: Trace) -> bool:
        if (known := tx.graph.known_truth(self.node)) is None:
            raise Unsupported("data-dependent-branch", what=self.describe())
        return known

    def hash_key(self, tx: Trace) -> object:
        return tx.interp.identity_key(self)

    def call(self, tx: Trace, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        raise tx.interp.error(TypeError, f"{self.type_name!r} object is not callable")

    def format(self, tx: Trace, spec: str) -> Value:
        """``format(self, spec)``: text shows data, where somebody looks at it."""
        fake = self.fake
        if fake.dim() == 0 and self.cls is torch.Tensor and not _watched(tx):
            with suppress(ValueError):  # a format that numbers do not have
                format(torch.ones((), dtype=fake.dtype).item(), spec)
                return AddressedText([NumberText(self, spec)])
        raise Unsupported("item", what=f"text of a {self.describe()}")

    def call_builtin(
        self, tx: Trace, obj: object, args: Sequence[Value], kwargs: dict[str, Value]
    ) -> Value | None:
        """A Python builtin that got this tensor among its arguments, or None."""
        from torchsmith_tracer._src.values.torch_classes import tensor_builtin

        return tensor_builtin(tx, obj, args, kwargs)

    def isinstance_hook(self, tx: Trace, cls: type, whole: Value | None = None) -> object:
        """Classes of torch whose ``isinstance`` does not go by the type; None for the others.
        ``whole`` is the object that this is the tensor of, if it is not the object itself."""
        if cls is torch.nn.Buffer:
            try:
                return tx.interp.truth((whole or self).getattr(tx, "_is_buffer"))
            except ObservedException:
                return False
        if (dtype := LEGACY_TYPES.get(cls)) is not None:
            return self.fake.dtype is dtype and self.fake.device.type == "cpu"
        return None

    def reconstruct(self, cg: Emitter) -> str:
        return cg.graph_output(self)


class TensorMethod(MethodOf["TensorValue"]):
    """A method of a tensor, bound."""

    __slots__ = ()

    def python_type(self) -> type:
        return type(getattr(torch.zeros(()), self.name))

    def call(self, tx: Trace, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        return call_tensor_method(tx, self.owner, self.name, args, kwargs)

    def getattr(self, tx: Trace, name: str) -> Value:
        if name == "__name__":
            return ConstantValue(self.name)
        return self if name == "__call__" else super().getattr(tx, name)


def _is_single_index(fake: torch.Tensor) -> bool:
    kind = fake.dtype
    return (
        fake.dim() == 0
        and kind is not torch.bool
        and not (kind.is_floating_point or kind.is_complex)
    )


def _overrides() -> ModuleType:
    from torchsmith_tracer._src.values import overrides

    return overrides


def _masked_items() -> ModuleType:
    from torchsmith_tracer._src.values import masked_items

    return masked_items


def _watched(tx: Trace) -> bool:
    """Whether a torch-function mode is to be asked about what is done with tensors."""
    if not tx.graph.contexts:
        return False
    from torchsmith_tracer._src.values import function_modes

    return function_modes.watching(tx)


def _is_symbolic(item: Value) -> bool:
    return isinstance(item, SymNumValue) and isinstance(item.sym, torch.SymInt)


def _is_inside(item: Value, size: int) -> bool:
    assert isinstance(item, SymNumValue) and isinstance(item.sym, torch.SymInt)
    return decide(item.sym >= -size) is not False and decide(item.sym < size) is not False


def _width(item: Value) -> int | None:
    """How many dimensions an item of an index takes; None where that is not known."""
    if isinstance(item, TensorValue):
        return item.fake.dim() if item.fake.dtype in (torch.bool, torch.uint8) else 1
    if isinstance(item, ConstantValue) and (item.value is None or type(item.value) is bool):
        return 0
    known = isinstance(item, SliceValue | SymNumValue)
    return 1 if known or (isinstance(item, ConstantValue) and type(item.value) is int) else None


def is_operand(value: Value) -> bool:
    """True for what may stand on the other side of a tensor in an operator."""
    if isinstance(value, TensorValue | SymNumValue):
        return True
    if value.computes:
        return True
    return isinstance(value, ConstantValue) and type(value.value) in (int, float, bool, complex)


def _number_in(tx: Trace, value: Value) -> Value:
    """The number of an instance of a subclass of ``float``, say, as torch unpacks it."""
    number = value.base_value()
    if isinstance(number, ConstantValue) and isinstance(number.value, int | float):
        kind = int if isinstance(number.value, int) else float
        if type(number.value) not in (kind, bool):  # a member of an enum class
            number = ConstantValue(kind.__pos__(number.value))  # type: ignore[arg-type]
    if number is value or not is_operand(number) or isinstance(number, TensorValue):
        return value
    return value if _overrides().involved(tx, (value,), {}) else number


def size_node(tx: Trace, tensor: TensorValue, dim: int) -> fx.Node:
    """The node of a symbolic size."""
    return _symbol_node(tx, torch.ops.aten.sym_size.int, tensor.node, dim, tensor.fake.shape[dim])


def stride_node(tx: Trace, tensor: TensorValue, dim: int) -> fx.Node:
    """The node of a symbolic stride."""
    return _symbol_node(
        tx, torch.ops.aten.sym_stride.int, tensor.node, dim, tensor.fake.stride()[dim]
    )


def _symbol_node(
    tx: Trace, target: Callable[..., object], node: fx.Node, dim: int, sym: object
) -> fx.Node:
    for user in node.users:
        if user.target is target and user.args == (node, dim):
            return user
    return tx.graph.add_call("call_function", target, (node, dim), {}, sym)


_SIMPLE = {TensorValue, ConstantValue, SymNumValue}


def are_simple(tx: Trace, args: Sequence[Value], kwargs: dict[str, Value]) -> bool:
    """True when neither tensors of subclasses nor containers are among the arguments, and traced
    code has entered no torch-function mode."""
    if any(isinstance(context, FunctionMode) for context in tx.graph.contexts):
        return False
    return _SIMPLE.issuperset(map(type, args)) and _SIMPLE.issuperset(map(type, kwargs.values()))


def call_tensor_method(
    tx: Trace, tensor: TensorValue, name: str, args: Sequence[Value], kwargs: dict[str, Value]
) -> Value:
    """``tensor.name(*args, **kwargs)``."""
    from torchsmith_tracer._src.values.builtins.registry import misfit
    from torchsmith_tracer._src.values.tensor_methods import METHODS

    if not are_simple(tx, args, kwargs):
        from torchsmith_tracer._src.values import overrides

        if overrides.involved(tx, args, kwargs):
            return overrides.call(tx, getattr(torch.Tensor, name), [tensor, *args], kwargs)
    if (handler := METHODS.get(name)) is not None:
        if misfit(tx, handler, [tensor, *args], kwargs):
            raise Unsupported("opaque-call", what=f"Tensor.{name} with these arguments")
        if (result := handler(tx, tensor, *args, **kwargs)) is not None:
            return result
    if name in _SLOT_METHODS or name in _ABSTRACT:
        raise Unsupported("tensor-attribute", what=name, tensor=tensor.describe())
    return tx.graph.call_method(name, (tensor, *args), kwargs)


_ABSTRACT = {"__reduce_ex__", "__reduce__", "__setstate__", "__dir__", "__init_subclass__"}


# --- properties ------------------------------------------------------------------------------

Property = Callable[["Trace", TensorValue], Value]


def _metadata(name: str, tx: Trace, tensor: TensorValue) -> Value:
    return ConstantValue(getattr(tensor.fake, name))


def _computed(name: str, tx: Trace, tensor: TensorValue) -> Value:
    return tx.graph.call_function(getattr, (tensor, name))


def _real_first(name: str, tx: Trace, tensor: TensorValue) -> Value:
    """Facts that neither the fake of an input carries nor the guard on its metadata compares."""
    tensor = tensor.stands_for or tensor
    own = name == "retains_grad" and tensor.fake.retains_grad  # since traced code asked for it
    if own or tensor.real is None or tensor.source is None:
        return ConstantValue(getattr(tensor.fake, name))
    return tx.world.computed(tensor.real, tensor.source, name)


def _grad_fn(tx: Trace, tensor: TensorValue) -> Value:
    tensor = tensor.stands_for or tensor
    if not tensor.fake.requires_grad or (tensor.source is None and tensor.fake.is_leaf):
        return ConstantValue(None)
    if tensor.real is None or tensor.source is None or tensor.real.grad_fn is not None:
        raise Unsupported("tensor-attribute", what="grad_fn", tensor=tensor.describe())
    return tx.world.computed(tensor.real, tensor.source, "grad_fn")


def _backward_hooks(tx: Trace, tensor: TensorValue) -> Value:
    if tensor.real is None or tensor.source is None:
        return ConstantValue(None)
    return tx.world.computed(tensor.real, tensor.source, "_backward_hooks")


def _numel_bytes(tx: Trace, tensor: TensorValue) -> Value:
    n = tensor.fake.numel()
    if type(n) is int:
        return ConstantValue(n * tensor.fake.element_size())
    raise Unsupported("tensor-attribute", what="nbytes", tensor=tensor.describe())


def _class(tx: Trace, tensor: TensorValue) -> Value:
    return tx.interp.type_of(tensor)


def _user_dict(tx: Trace, tensor: TensorValue) -> Value:
    if type(tensor) is TensorValue:
        return tx.interp.instance_dict(tensor)
    raise Unsupported("tensor-attribute", what="__dict__", tensor=tensor.describe())


STORES: dict[str, Callable[[Trace, TensorValue, Value], object]] = {}
PROPERTIES: dict[str, Property] = {
    **{
        name: partial(_metadata, name)
        for name in (
            "device dtype layout ndim is_cpu is_cuda is_ipu is_meta is_mkldnn is_mps is_mtia "
            "is_nested is_quantized is_sparse is_sparse_csr is_vulkan is_xla is_xpu is_maia "
            "itemsize requires_grad names __array_priority__"
        ).split()
        if hasattr(torch.Tensor, name)
    },
    **{name: partial(_computed, name) for name in ("T", "mT", "H", "mH", "real", "imag", "data")},
    **{n: partial(_real_first, n) for n in ("is_leaf", "retains_grad", "name", "output_nr")},
    "shape": lambda tx, tensor: tensor.size(tx),
    "grad_fn": _grad_fn,
    "nbytes": _numel_bytes,
    "__class__": _class,
    "__dict__": _user_dict,
    "_backward_hooks": _backward_hooks,
}
