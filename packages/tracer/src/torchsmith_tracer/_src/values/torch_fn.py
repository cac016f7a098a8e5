"""Callables of the torch namespace: graph node, folded query, or Python that is inlined.

``is_torch_callable(obj)`` is true for operators (C functions, ``torch.nn.functional``,
``torch.ops``, tensor methods taken from the class) and for queries with a handler in
``torch_queries.HANDLERS``. All other Python functions of torch are ordinary functions to the
interpreter and are inlined.
"""

from __future__ import annotations

import types

import torch
from torchsmith_guards import PinnedSource

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.emitter import Emitter
from torchsmith_tracer._src.torch_private import OPERATORS, base_tensor, c_namespaces
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Args, Kwargs, RealObject, Value
from torchsmith_tracer._src.values.constants import NONE, ConstantValue, is_none
from torchsmith_tracer._src.values.containers import SequenceValue
from torchsmith_tracer._src.values.tensor import TensorValue, are_simple, call_tensor_method

_C_FUNCTION = (types.BuiltinFunctionType, types.BuiltinMethodType)
_DESCRIPTORS = (types.MethodDescriptorType, types.WrapperDescriptorType)
_FUNCTION_MODULES = (torch.functional, torch.nn.functional, torch.special, torch.linalg, torch.fft)

# Functions of these namespaces that change or read state rather than compute, and, at the end,
# Python of torch that looks at its sizes and is traced.
_NOT_OPERATORS = set(
    (
        "manual_seed seed initial_seed set_rng_state get_rng_state set_num_threads "
        "set_num_interop_threads set_flush_denormal set_default_dtype set_default_device "
        "set_default_tensor_type set_printoptions set_float32_matmul_precision "
        "set_deterministic_debug_mode set_warn_always use_deterministic_algorithms "
        "set_anomaly_enabled set_autocast_enabled set_autocast_dtype set_autocast_cache_enabled "
        "set_autocast_cpu_enabled set_autocast_cpu_dtype set_autocast_gpu_dtype "
        "set_autocast_ipu_enabled set_autocast_ipu_dtype set_autocast_xla_enabled "
        "set_autocast_xla_dtype autocast_increment_nesting autocast_decrement_nesting "
        "clear_autocast_cache init_num_threads wait fork import_ir_module "
        "import_ir_module_from_buffer parse_ir parse_schema parse_type_comment "
        "merge_type_from_type_comment from_file frombuffer from_numpy from_dlpack to_dlpack save "
        "load compile handle_torch_function is_nonzero equal allclose "
        "affine_grid"
    ).split()
)

# A ``generator``, even None, selects overloads of these that take no symbolic sizes.
_DRAWS = (torch.rand, torch.randn, torch.randint)

_operators: dict[int, object] = {}
_tensor_methods: dict[int, str] = {}


def _load_tables() -> None:
    """Collect the operators once; ids are stable because the objects are torch's own."""
    for space in (*c_namespaces(), torch, *_FUNCTION_MODULES):
        for name in dir(space):
            if name.startswith("__") or name in _NOT_OPERATORS:
                continue
            try:
                obj = getattr(space, name)
            except (AttributeError, RuntimeError):
                continue
            if _is_operator(obj, space, name):
                _operators[id(obj)] = obj
    for cls in (torch.Tensor, base_tensor, *base_tensor.__mro__[1:-1]):
        for name, attr in vars(cls).items():
            if isinstance(attr, (*_DESCRIPTORS, types.FunctionType)):
                _tensor_methods[id(attr)] = name


def _is_operator(obj: object, space: object, name: str) -> bool:
    if isinstance(obj, _C_FUNCTION):
        module = getattr(obj, "__module__", None) or ""
        if space is not torch or module == "torch":
            return not name.startswith(("_set_", "set_autocast", "is_autocast", "get_autocast"))
        return False
    if isinstance(obj, types.FunctionType) and space in _FUNCTION_MODULES:
        return obj.__module__ in ("torch.nn.functional", "torch.functional") and (
            not name.startswith("_")
        )
    return False


def is_torch_callable(obj: object) -> bool:
    """True when calling ``obj`` is a matter of this module."""
    from torchsmith_tracer._src.values.torch_queries import find_handler

    return is_operator(obj) or method_name(obj) is not None or find_handler(obj) is not None


def is_operator(obj: object) -> bool:
    """True for callables that become a graph node."""
    if not _operators:
        _load_tables()
    return id(obj) in _operators or isinstance(obj, OPERATORS)


def method_name(obj: object) -> str | None:
    """The name of a tensor method that was taken from the class, or None."""
    if not _operators:
        _load_tables()
    return _tensor_methods.get(id(obj))


class TorchCallable(RealObject):
    """An operator or query of torch."""

    __slots__ = ()

    def is_constant(self) -> bool:
        return True

    def as_constant(self) -> object:
        return self.obj

    def as_proxy(self) -> object:
        return self.obj

    def describe(self) -> str:
        return name_of(self.obj)

    def call(self, tx: Trace, args: Args, kwargs: Kwargs) -> Value:
        return call_torch(tx, self.obj, args, kwargs)

    def getattr(self, tx: Trace, name: str) -> Value:
        if name == "__call__":
            return self
        if name == "__class__":
            return tx.interp.type_of(self)
        found = tx.world.attribute(self.obj, self.source or PinnedSource(self.obj), name)
        if found is None:
            raise self.no_attribute(tx, name)
        return found

    def richcompare(self, tx: Trace, op: str, other: Value) -> Value | None:
        if op in ("eq", "ne") and isinstance(other, TorchCallable):
            return ConstantValue((self.obj is other.obj) == (op == "eq"))
        return None

    def hash_key(self, tx: Trace) -> object:
        return self.obj

    def reconstruct(self, cg: Emitter) -> str:
        return cg.bound(self.obj, getattr(self.obj, "__name__", "op"))


def call_torch(tx: Trace, obj: object, args: Args, kwargs: Kwargs) -> Value:
    """Call a torch callable on values.

    Raises:
        Unsupported: it would read data, change state, or has no fake implementation.
    """
    from torchsmith_tracer._src.values.torch_queries import find_handler

    handler = find_handler(obj)
    if not are_simple(tx, args, kwargs):
        from torchsmith_tracer._src.values import function_modes, overrides

        if overrides.involved(tx, args, kwargs) or function_modes.places(tx, obj):
            return overrides.call(tx, obj, args, kwargs)  # type: ignore[arg-type]
    if handler is not None:
        if (result := handler(tx, args, kwargs)) is not None:
            return result
    if (name := method_name(obj)) is not None:
        return _unbound_method(tx, name, args, kwargs)
    if not is_operator(obj):
        raise Unsupported("opaque-call", what=name_of(obj))
    if not is_none(kwargs.get("out", NONE)):
        return _with_out(tx, obj, args, kwargs)
    if obj in _DRAWS and is_none(kwargs.get("generator", NONE)):
        kwargs = {name: value for name, value in kwargs.items() if name != "generator"}
    return tx.graph.call_function(obj, args, kwargs)  # type: ignore[arg-type]


def _with_out(tx: Trace, obj: object, args: Args, kwargs: Kwargs) -> Value:
    """A call that writes to its argument ``out``, one tensor or a tuple of them."""
    out = kwargs["out"]
    several = isinstance(out, SequenceValue)
    outs = tx.interp.unpack(out) if several else [out]
    layouts = []
    for tensor in outs:
        if not isinstance(tensor, TensorValue):
            raise Unsupported("out-argument", what=name_of(obj))
        fake = tensor.fake
        layouts.append((fake.size(), fake.stride(), fake.storage_offset()))
    result = tx.graph.call_function(obj, args, kwargs)  # type: ignore[arg-type]
    for tensor, layout in zip(outs, layouts, strict=True):
        assert isinstance(tensor, TensorValue)
        if tensor.source is not None and tensor.fake.size() != layout[0]:
            tensor.fake.as_strided_(*layout)  # an existing tensor is not resized by a graph
            raise Unsupported("out-argument", what=name_of(obj))
    if several and isinstance(result, SequenceValue):
        result.items[:] = outs
    return result


def _unbound_method(tx: Trace, name: str, args: Args, kwargs: Kwargs) -> Value:
    """``torch.Tensor.name(x, ...)``."""
    if args and isinstance(args[0], TensorValue):
        return call_tensor_method(tx, args[0], name, list(args[1:]), kwargs)
    raise Unsupported("opaque-call", what=f"torch.Tensor.{name} without a tensor")


def name_of(obj: object) -> str:
    """A callable of torch as the user calls it; tensor methods come as plain names."""
    if isinstance(obj, str):
        return f"Tensor.{obj}"
    if isinstance(obj, OPERATORS):
        return f"torch.ops.{str(obj).replace('::', '.')}"
    module = getattr(obj, "__module__", None) or "torch"
    name = getattr(obj, "__qualname__", None) or getattr(obj, "__name__", repr(obj))
    text = f"{module}.{name}".replace("_VariableFunctionsClass.", "")
    return text.removeprefix("_").replace("torch._C._nn.", "torch.nn.functional.")
