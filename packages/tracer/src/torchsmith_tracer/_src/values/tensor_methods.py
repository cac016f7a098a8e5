"""Tensor methods that are not plain operators: metadata queries, data reads, slots by name.

A handler ``fn(tx, tensor, *args, **kwargs)`` gives the result, or None to become an ordinary node
of the graph.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torchsmith_guards import same_sizes

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtins.registry import F, Implementation, adder
from torchsmith_tracer._src.values.constants import NONE, ConstantValue
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

METHODS: dict[str, Implementation] = {}


def method(*names: str) -> Callable[[F], F]:
    """Register a handler; a name used twice is an error."""
    return adder(*[(METHODS, name) for name in names])


def _known_dim(tensor: TensorValue, value: Value) -> int | None:
    """A dimension that is asked for, from the front; None if it is not valid."""
    dim, rank = value.as_constant(), tensor.fake.dim()
    return dim % rank if type(dim) is int and -rank <= dim < rank else None


@method("size")
def _size(tx: Trace, tensor: TensorValue, /, dim: Value = NONE) -> Value | None:
    if tx.interp.is_none(dim):
        return tensor.size(tx)
    place = _known_dim(tensor, dim)
    return None if place is None else tensor.size_of(tx, place)


@method("stride")
def _stride(tx: Trace, tensor: TensorValue, /, dim: Value = NONE) -> Value | None:
    strides = tensor.fake.stride()
    if not tx.interp.is_none(dim):
        place = _known_dim(tensor, dim)
        if place is None:
            return None
        n = strides[place]
        return ConstantValue(n) if type(n) is int else symbolic(stride_node(tx, tensor, place), n)
    whole = size_value(torch.Size(strides), lambda d: stride_node(tx, tensor, d))
    return tx.interp.tuple(whole.items)


@method("numel", "nelement")
def _numel(tx: Trace, tensor: TensorValue, /) -> Value:
    return SizeNumel(tensor.size(tx), "numel").call(tx, (), {})


@method("storage_offset")
def _storage_offset(tx: Trace, tensor: TensorValue, /) -> Value:
    """Within an input it is counted from there, where another call may begin elsewhere."""
    offset, base = tensor.fake.storage_offset(), tx.graph.base_of(tensor.fake)
    real, source = base or (tensor.real, tensor.source)
    if type(offset) is not int or not isinstance(real, torch.Tensor | None):
        raise Unsupported("tensor-attribute", what="storage_offset", tensor=tensor.describe())
    if real is None or source is None:
        return ConstantValue(offset)
    start = tx.world.computed(real, source, "storage_offset", called=True)
    return tx.interp.binary("add", start, ConstantValue(offset - real.storage_offset()))


def _fold(name: str) -> Implementation:
    """A query about metadata, answered by the fake."""

    def query(tx: Trace, tensor: TensorValue, /, *args: Value, **kwargs: Value) -> Value:
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


def _real_first(name: str) -> Implementation:
    """A query that the guard on an input's metadata does not answer."""

    def query(tx: Trace, tensor: TensorValue, /) -> Value:
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
def _type(
    tx: Trace, tensor: TensorValue, /, dtype: Value = NONE, non_blocking: Value = NONE
) -> Value:
    if not tx.interp.is_none(dtype):
        kind = dtype.as_constant()
        wanted = _LEGACY.get(kind, kind)
        if not isinstance(wanted, torch.dtype):
            raise Unsupported("opaque-call", what=f"Tensor.type({kind})")
        return tx.graph.call_method("to", (tensor, ConstantValue(wanted)))
    fake = tensor.fake
    place = "" if fake.device.type == "cpu" else f"{fake.device.type}."
    return ConstantValue(f"torch.{place}{_TYPE_NAMES[fake.dtype]}Tensor")


_TYPE_NAMES = {d: cls.__name__.removesuffix("Tensor") for cls, d in LEGACY_TYPES.items()}
_LEGACY: dict[object, torch.dtype] = {f"torch.{n}Tensor": d for d, n in _TYPE_NAMES.items()}
_LEGACY.update(LEGACY_TYPES.items())
_TYPE_NAMES |= {torch.complex64: "ComplexFloat", torch.complex128: "ComplexDouble"}


def _refused(kind: str, details: Callable[[TensorValue], dict[str, str]]) -> Implementation:
    def refuse(tx: Trace, tensor: TensorValue, /, *args: Value, **kwargs: Value) -> Value:
        raise Unsupported(kind, **details(tensor))

    return refuse


def _reads_data(name: str) -> Implementation:
    return _refused("item", lambda tensor: {"what": f"{name}() of a {tensor.describe()}"})


def _scalar(name: str, convert: type | None) -> Implementation:
    """The one number in a tensor, in the graph where the settings say so."""

    def read(tx: Trace, tensor: TensorValue, /) -> Value:
        found = tx.graph.known_number(tensor.node)
        if found is not None:
            number: Value = ConstantValue(found)
        elif not tx.settings.capture_scalar_outputs or tensor.fake.is_complex():
            checked = read_number(tx, tensor, convert)
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


@method("__index__")
def _index(tx: Trace, tensor: TensorValue, /) -> Value:
    whole = not (tensor.fake.is_floating_point() or tensor.fake.is_complex())
    if (known := tx.graph.known_number(tensor.node) if whole else None) is None:
        raise Unsupported("item", what=f"__index__() of a {tensor.describe()}")
    return ConstantValue(int(known))


@method("tolist")
def _tolist(tx: Trace, tensor: TensorValue, /) -> Value:
    if (exact := tx.graph.known_values(tensor.node)) is not None:
        return _listed(exact.tolist())
    sizes = tensor.fake.shape
    known = all(type(n) is int for n in sizes) and tensor.fake.numel() <= _LONGEST_LIST
    if not tx.settings.capture_scalar_outputs or not known or tensor.fake.is_complex():
        raise Unsupported("item", what=f"tolist() of a {tensor.describe()}")
    if not sizes:
        return tx.graph.call_method("item", (tensor,))
    rows = tx.interp.unpack(tx.graph.call_method("unbind", (tensor, ConstantValue(0))))
    return ListValue([call_tensor_method(tx, row, "tolist", (), {}) for row in rows])  # type: ignore[arg-type]


def _listed(found: object) -> Value:
    return ListValue([*map(_listed, found)]) if type(found) is list else ConstantValue(found)


for _name in (
    "__array__ __complex__ __bool__ __nonzero__ __long__ __format__ __repr__ "
    "__str__ __contains__ equal allclose is_nonzero data_ptr"
).split():
    method(_name)(_reads_data(_name))


def _opaque(name: str) -> Implementation:
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
def _new_layout(tx: Trace, tensor: TensorValue, /, *args: Value, **kwargs: Value) -> None:
    """What changes the tensor object itself, not its content: only for those of the trace."""
    if tensor.source is not None:
        raise Unsupported("tensor-attribute", what="a new layout", tensor=tensor.describe())


@method("new")
def _new(tx: Trace, tensor: TensorValue, /, *args: Value, **kwargs: Value) -> Value | None:
    """A size in a graph is a tuple, which would be data here."""
    if len(args) != 1 or not isinstance(args[0], SizeValue):
        return None
    return tx.graph.call_method("new_empty", (tensor, args[0]), kwargs)


def _set_data(tx: Trace, tensor: TensorValue, value: Value) -> None:
    # What others have got of it is stored to them after the graph, as it is by then.
    stores = [e for e in tx.journal.effects if isinstance(e, tuple) and e[0] is setattr]
    if not isinstance(value, TensorValue) or any(e[-1] is tensor for e in stores):
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


method("__len__")(lambda tx, tensor, /: tensor.length(tx))
method("__iter__")(lambda tx, tensor, /: tensor.iter(tx))
