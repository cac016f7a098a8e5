"""Tensor methods that are not plain operators: metadata queries, data reads, slots by name.

A handler gives the result, or None to become an ordinary graph node.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torchsmith_guards import same_sizes

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.constants import ConstantValue
from torchsmith_tracer._src.values.containers import ListValue
from torchsmith_tracer._src.values.read_numbers import read_number
from torchsmith_tracer._src.values.sizes import SizeNumel, SizeValue, size_value
from torchsmith_tracer._src.values.symnum import symbolic
from torchsmith_tracer._src.values.tensor import (
    LEGACY_TYPES,
    STORES,
    TensorValue,
    call_tensor_method,
    stride_node,
)

Args = list[Value]
Kwargs = dict[str, Value]
Handler = Callable[["Trace", TensorValue, Args, Kwargs], Value | None]

METHODS: dict[str, Handler] = {}


def method(*names: str) -> Callable[[Handler], Handler]:
    """Register a handler; a name used twice is an error."""

    def add(handler: Handler) -> Handler:
        for name in names:
            if name in METHODS:
                raise ValueError(f"tensor method {name} has a handler already")
            METHODS[name] = handler
        return handler

    return add


def _dim_argument(tensor: TensorValue, args: Args, kwargs: Kwargs) -> int | bool | None:
    """The dimension asked for; None: all; False: not a valid known dimension."""
    value = args[0] if args else kwargs.get("dim")
    if value is None or (isinstance(value, ConstantValue) and value.value is None):
        return None
    dim = value.as_constant()
    rank = tensor.fake.dim()
    if type(dim) is not int or not -rank <= dim < rank:
        return False
    return dim % rank


@method("size")
def _size(tx: Trace, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value | None:
    dim = _dim_argument(tensor, args, kwargs)
    if dim is None:
        return tensor.size(tx)
    return None if dim is False else tensor.size_of(tx, dim)


@method("stride")
def _stride(tx: Trace, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value | None:
    dim = _dim_argument(tensor, args, kwargs)
    if dim is False:
        return None
    strides = tensor.fake.stride()
    if dim is not None:
        n = strides[dim]
        return ConstantValue(n) if type(n) is int else symbolic(stride_node(tx, tensor, dim), n)
    whole = size_value(tx.graph, torch.Size(strides), lambda d: stride_node(tx, tensor, d))
    return tx.interp.tuple(whole.items)


@method("numel", "nelement")
def _numel(tx: Trace, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value | None:
    return SizeNumel(tensor.size(tx), "numel").call(tx, (), {})


@method("storage_offset")
def _storage_offset(tx: Trace, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value | None:
    offset = tensor.fake.storage_offset()
    if tensor.real is not None or type(offset) is not int:
        raise Unsupported("tensor-attribute", what="storage_offset", tensor=tensor.describe())
    return ConstantValue(offset)


def _fold(name: str) -> Handler:
    """A query about metadata, answered by the fake."""

    def query(tx: Trace, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value | None:
        values = [_metadata_argument(a) for a in args]
        named = {k: _metadata_argument(v) for k, v in kwargs.items()}
        result = getattr(tensor.fake, name)(*values, **named)
        if isinstance(result, torch.SymBool):
            result = bool(result)
        return ConstantValue(result)

    return query


def _metadata_argument(value: Value) -> object:
    return value.fake if isinstance(value, TensorValue) else value.as_constant()


for _name in (
    "dim ndimension element_size is_contiguous is_floating_point is_complex is_signed get_device "
    "is_conj is_neg is_same_size is_coalesced has_names is_distributed"
).split():
    if hasattr(torch.Tensor, _name):
        method(_name)(_fold(_name))


def _real_first(name: str) -> Handler:
    """A query that the guard on an input's metadata does not answer."""

    def query(tx: Trace, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value | None:
        if tensor.real is not None and tensor.source is not None:
            return tx.world.computed(tensor.real, tensor.source, name, called=True)
        if name == "_is_view":
            tx.graph.need_history()
        elif (base := tx.graph.base_of(tensor.fake)) is not None:  # a view is what its base is
            return tx.world.computed(*base, name, called=True)
        return ConstantValue(getattr(tensor.fake, name)())

    return query


for _name in ("is_inference", "_is_view"):
    method(_name)(_real_first(_name))


@method("type")
def _type(tx: Trace, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value | None:
    wanted = args[0] if args else kwargs.get("dtype")
    if wanted is not None:
        kind = wanted.as_constant()
        dtype = _LEGACY.get(kind, kind)
        if isinstance(dtype, type | str):
            raise Unsupported("opaque-call", what=f"Tensor.type({kind})")
        return tx.graph.call_method("to", (tensor, ConstantValue(dtype)))
    fake = tensor.fake
    place = "" if fake.device.type == "cpu" else f"{fake.device.type}."
    return ConstantValue(f"torch.{place}{_TYPE_NAMES[fake.dtype]}Tensor")


_TYPE_NAMES = {d: cls.__name__.removesuffix("Tensor") for cls, d in LEGACY_TYPES.items()}
_LEGACY: dict[object, torch.dtype] = {f"torch.{n}Tensor": d for d, n in _TYPE_NAMES.items()}
_LEGACY.update(LEGACY_TYPES.items())
_TYPE_NAMES |= {torch.complex64: "ComplexFloat", torch.complex128: "ComplexDouble"}


def _refused(kind: str, details: Callable[[TensorValue], dict[str, str]]) -> Handler:
    def refuse(tx: Trace, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value | None:
        raise Unsupported(kind, **details(tensor))

    return refuse


def _reads_data(name: str) -> Handler:
    return _refused("item", lambda tensor: {"what": f"{name}() of a {tensor.describe()}"})


def _scalar(name: str, convert: type | None) -> Handler:
    """The one number in a tensor, in the graph where the settings say so."""

    def read(tx: Trace, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value | None:
        found = tx.graph.known_number(tensor.node)
        if found is not None and not (args or kwargs):
            number: Value = ConstantValue(found)
        elif not tx.settings.capture_scalar_outputs or args or kwargs or tensor.fake.is_complex():
            checked = None if args or kwargs else read_number(tx, tensor, convert)
            if checked is None:
                raise Unsupported("item", what=f"{name}() of a {tensor.describe()}")
            return checked
        else:
            number = tx.graph.call_method("item", (tensor,))
        return number if convert is None else tx.interp.call(tx.interp.const(convert), [number], {})

    return read


for _name, _kind in (("item", None), ("__int__", int), ("__float__", float)):
    method(_name)(_scalar(_name, _kind))
_LONGEST_LIST = 64


@method("tolist")
def _tolist(tx: Trace, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value | None:
    sizes = tensor.fake.shape
    known = all(type(n) is int for n in sizes) and tensor.fake.numel() <= _LONGEST_LIST
    if not tx.settings.capture_scalar_outputs or not known or tensor.fake.is_complex():
        raise Unsupported("item", what=f"tolist() of a {tensor.describe()}")
    if not sizes:
        return tx.graph.call_method("item", (tensor,))
    rows = tx.interp.unpack(tx.graph.call_method("unbind", (tensor, ConstantValue(0))))
    return ListValue([call_tensor_method(tx, row, "tolist", (), {}) for row in rows])  # type: ignore[arg-type]


for _name in (
    "__array__ __complex__ __index__ __bool__ __nonzero__ __long__ __format__ __repr__ "
    "__str__ __contains__ equal allclose is_nonzero data_ptr"
).split():
    method(_name)(_reads_data(_name))


def _opaque(name: str) -> Handler:
    return _refused("tensor-attribute", lambda x: {"what": name, "tensor": x.describe()})


for _name in (
    "storage is_shared is_pinned is_set_to "
    "untyped_storage _typed_storage share_memory_ apply_ map_ map2_ __deepcopy__ "
    "__dlpack__ __dlpack_device__ __reversed__ rename_ rename "
    "sparse_resize_ sparse_resize_and_clear_ module_load reinforce "
    "to_sparse to_sparse_coo to_sparse_csr to_sparse_csc to_sparse_bsr to_sparse_bsc to_mkldnn"
).split():
    if _name not in METHODS:
        method(_name)(_opaque(_name))


@method(
    *"set_ resize_ resize_as_ detach_ t_ transpose_ unsqueeze_ squeeze_ swapaxes_ swapdims_ "
    "as_strided_".split()
)
def _new_layout(tx: Trace, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value | None:
    """What changes the tensor object itself, not its content: only for those of the trace."""
    if tensor.source is not None:
        raise Unsupported("tensor-attribute", what="a new layout", tensor=tensor.describe())
    return None


@method("new")
def _new(tx: Trace, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value | None:
    """A size in a graph is a tuple, which would be data here."""
    if len(args) != 1 or not isinstance(args[0], SizeValue):
        return None
    return tx.graph.call_method("new_empty", (tensor, args[0]), kwargs)


def _set_data(tx: Trace, tensor: TensorValue, value: Value) -> None:
    """``tensor.data = value``."""
    if not isinstance(value, TensorValue):
        raise Unsupported("tensor-attribute-store", what="data", tensor=tensor.describe())
    fake = tensor.fake
    before = fake.data
    same = fake.dtype is value.fake.dtype and same_sizes(fake.shape, value.fake.shape)
    if not (same and same_sizes(fake.stride(), value.fake.stride())):
        tx.graph.note_data(fake, before)
    tx.graph.call_function(setattr, (tensor, "data", value))
    if (constant := getattr(fake, "constant", None)) is not None:
        fake.constant = None  # type: ignore[attr-defined]
        tx.graph.record(lambda: setattr(fake, "constant", constant))
    tx.graph.record(lambda: setattr(fake, "data", before))
    if tensor.source is not None:
        tx.graph.note_attributes([tensor.source])
        tx.journal.call_later(setattr, tensor, ConstantValue("data"), value)


STORES["data"] = _set_data


method("__len__")(lambda tx, tensor, args, kwargs: tensor.length(tx))
method("__iter__")(lambda tx, tensor, args, kwargs: tensor.iter(tx))
