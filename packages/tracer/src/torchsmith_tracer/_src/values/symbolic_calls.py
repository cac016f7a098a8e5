"""Functions that take plain numbers, or look at sizes in C++, where these are symbolic: the same by
operators that keep symbols. The functions without documentation are traced, not run."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torchsmith_guards import hint_of

from torchsmith_tracer._src.torch_private import FakeTensor, pad_sequence
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Args, Kwargs, Value
from torchsmith_tracer._src.values.constants import NONE, ConstantValue
from torchsmith_tracer._src.values.containers import ListValue, TupleValue
from torchsmith_tracer._src.values.lazy import realize
from torchsmith_tracer._src.values.sizes import SizeValue
from torchsmith_tracer._src.values.symnum import SymNumValue, decide
from torchsmith_tracer._src.values.tensor import TensorValue
from torchsmith_tracer._src.values.tensor_methods import method
from torchsmith_tracer._src.values.torch_queries import Handler, fold, register


def _numbers(value: Value) -> list[object]:
    """The symbolic numbers of a value: itself, or sizes."""
    if isinstance(value, SymNumValue):
        return [value.sym]
    if isinstance(value, SizeValue):
        return [n.sym for n in value.items if isinstance(n, SymNumValue)]
    sizes = value.fake.shape if isinstance(value, TensorValue) else ()
    return [n for n in sizes if type(n) is not int]


def _traced(fn: Callable[..., object], otherwise: Handler | None = None) -> Handler:
    """``fn`` in place of a function of torch whose arguments have symbols. Numbers that only the
    data determines are left to torch: ``fn`` branches on them."""

    def call(tx: Trace, args: Args, kwargs: Kwargs) -> Value | None:
        given = [realize(tx, value) for value in (*args, *kwargs.values())]
        numbers = [number for value in given for number in _numbers(value)]
        if numbers and all(hint_of(number) is not None for number in numbers):
            return tx.builder.wrap_new(fn).call(tx, args, kwargs)
        return otherwise and otherwise(tx, args, kwargs)

    return call


def _one_hot(tensor: Any, num_classes: Any = -1) -> object:
    if tensor.dtype is not torch.int64 or num_classes < 1:
        return torch.ops.aten.one_hot.default(tensor, num_classes)
    empty = torch.zeros((*tensor.shape, num_classes), dtype=torch.int64, device=tensor.device)
    return empty.scatter_(-1, tensor.unsqueeze(-1), 1)


def _take_along_dim(input: Any, indices: Any, dim: Any = None) -> object:
    if dim is None:
        input, indices, dim = input.reshape(-1), indices.reshape(-1), 0
    n = input.dim()
    if indices.dtype is not torch.int64 or indices.dim() != n or not -n <= dim < n:
        return torch.ops.aten.take_along_dim.default(input, indices, dim)  # eager's own error
    shape = [a if b == 1 else b for a, b in zip(input.shape, indices.shape, strict=True)]
    shape[dim] = -1
    return input.expand(shape).gather(dim, indices.expand(shape))


def _kron(input: Any, other: Any) -> object:
    n = max(input.dim(), other.dim())
    a = (1,) * (n - input.dim()) + tuple(input.shape)
    b = (1,) * (n - other.dim()) + tuple(other.shape)
    left = input.reshape([k for size in a for k in (size, 1)])
    right = other.reshape([k for size in b for k in (1, size)])
    return (left * right).reshape([p * q for p, q in zip(a, b, strict=True)])


def _broadcast_shapes(*shapes: Any) -> object:
    rows = [(n,) if isinstance(n, int) else n for n in shapes]
    common: list[Any] = [1] * max(map(len, rows))
    for row in rows:
        for i in range(-len(row), 0):
            if common[i] == 1 and row[i] >= 0:
                common[i] = row[i]
            elif row[i] not in (1, common[i]):
                plain = [[int(n) for n in row] for row in rows]
                return torch.broadcast_shapes(*plain)  # type: ignore[no-untyped-call]
    return torch.Size(common)


def _linspace(start: Any, end: Any, steps: Any, *, dtype: Any = None, device: Any = None) -> object:
    kind = torch.get_default_dtype() if dtype is None else dtype
    if steps < 2 or kind not in (torch.float32, torch.float64):
        return torch.ops.aten.linspace.default(start, end, steps, dtype=dtype, device=device)
    first = torch.scalar_tensor(start, dtype=kind, device=device)
    last = torch.scalar_tensor(end, dtype=kind, device=device)
    step, i = (last - first) / (steps - 1), torch.arange(steps, dtype=kind, device=device)
    return torch.where(i < steps // 2, first + step * i, last - step * (steps - 1 - i))


def _logspace(
    start: Any, end: Any, steps: Any, base: Any = 10.0, *, dtype: Any = None, device: Any = None
) -> object:
    kind = torch.get_default_dtype() if dtype is None else dtype
    if steps < 2 or kind not in (torch.float32, torch.float64):
        return torch.ops.aten.logspace.default(start, end, steps, base, dtype=dtype, device=device)
    return torch.pow(
        base, torch.linspace(start, end, steps, dtype=kind, device=device).double()
    ).to(kind)


def _spaced(fn: Callable[..., object], *names: str) -> Handler:
    """``torch.linspace`` or its like between plain numbers, with a symbolic number of steps."""

    def call(tx: Trace, args: Args, kwargs: Kwargs) -> Value | None:
        given = dict(zip(names, args)) | kwargs
        numbers = [realize(tx, given[name]) for name in names if name in given]
        plain = given.keys() <= {*names, "dtype", "device"} and len(args) <= len(names)
        plain = plain and all(n.python_type() in (int, float) for n in numbers)
        if len(numbers) < 3 or not plain or not _numbers(numbers[2]):
            return None
        kind = {name: v for name, v in given.items() if name in ("dtype", "device")}
        return _traced(fn)(tx, numbers, kind)

    return call


def _window(name: str, shape: Callable[[Any, Any], object]) -> Handler:
    """``torch.hann_window`` or its like: ``shape`` of positions, and the last one."""

    def window(
        window_length: Any, periodic: Any = True, *, dtype: Any = None, device: Any = None
    ) -> object:
        kind = torch.get_default_dtype() if dtype is None else dtype
        if window_length < 2 or kind not in (torch.float32, torch.float64):
            return getattr(torch.ops.aten, name).periodic(
                window_length, periodic, dtype=dtype, device=device
            )
        last = window_length if periodic else window_length - 1
        return shape(torch.arange(window_length, dtype=kind, device=device), last)

    def call(tx: Trace, args: Args, kwargs: Kwargs) -> Value | None:
        usual = kwargs.keys() <= {"window_length", "periodic", "dtype", "device"} and len(args) <= 2
        return _traced(window)(tx, args, kwargs) if usual else None

    return call


def _cosines(*factors: float) -> Callable[[Any, Any], object]:
    def shape(i: Any, last: Any) -> object:
        found = (i * (2 * math.pi / last)).cos() * factors[1] + factors[0]
        return found + (i * (4 * math.pi / last)).cos() * factors[2] if factors[2:] else found

    return shape


def _triangle(i: Any, last: Any) -> object:
    slope = i * 2 / last
    return torch.where(i <= last // 2, slope, 2 - slope)


def _fill_diagonal(tensor: Any, fill_value: Any, wrap: Any = False) -> object:
    if tensor.dim() != 2 or wrap:
        return torch.ops.aten.fill_diagonal_.default(tensor, fill_value, wrap)
    tensor.diagonal().fill_(fill_value)
    return tensor


def _largest(image: Any, rank: int) -> object:
    found = image.flatten(-rank).max(-1).values
    return found.reshape((*found.shape, *[1] * rank))


def _mean(image: Any, rank: int) -> object:
    return image.mean(tuple(range(-rank, 0)), keepdim=True)


def _pooling(rank: int, reduce: Callable[..., object], *more: str) -> Handler:
    """Pooling by one window as large as the image, whose size is a symbol: torch takes sizes of
    windows as plain numbers, so that each has its own version, as other windows have here. Images
    in another order of memory are left to it, too: so is the result."""
    parameters = ("input", "kernel_size", "stride", "padding", *more)

    def call(tx: Trace, args: Args, kwargs: Kwargs) -> Value | None:
        given = {k: realize(tx, v) for k, v in {**dict(zip(parameters, args)), **kwargs}.items()}
        image, window = given.pop("input", NONE), given.pop("kernel_size", NONE)
        sizes = [realize(tx, n) for n in tx.interp.unpack(window)] if _is_list(window) else [window]
        if not isinstance(image, TensorValue) or not any(map(_numbers, sizes)):
            return None
        if len(sizes) not in (1, rank) or not given.keys() <= _USUAL.keys():
            return None
        stride, fake = given.pop("stride", NONE), image.fake
        if not (tx.interp.is_none(stride) or (_is_list(stride) and not tx.interp.unpack(stride))):
            return None
        if any(tx.interp.concrete(v) not in _USUAL[name] for name, v in given.items()):
            return None
        if fake.dim() - rank not in (1, 2) or not fake.dtype.is_floating_point or 0 in fake.shape:
            return None
        extents = zip(sizes * (rank // len(sizes)), fake.shape[-rank:], strict=True)
        whole = [decide((_numbers(n) or [n.as_constant()])[0] == size) for n, size in extents]
        if not all(whole) or not fake.is_contiguous():
            return None
        return tx.builder.wrap_new(reduce).call(tx, [image, ConstantValue(rank)], {})

    return call


def _pad_sequence(
    sequences: Any, batch_first: Any = False, padding_value: Any = 0.0, padding_side: Any = "right"
) -> object:
    longest = max([len(x) for x in sequences])
    rows = []
    for x in sequences:
        ends = (0, longest - len(x)) if padding_side == "right" else (longest - len(x), 0)
        rows.append(torch.constant_pad_nd(x, (0, 0) * (x.dim() - 1) + ends, padding_value))
    return torch.stack(rows, 0 if batch_first else 1)


def _padded(tx: Trace, args: Args, kwargs: Kwargs) -> Value | None:
    """Sequences whose lengths are symbols: torch asks which of them is the longest."""
    rows = [realize(tx, row) for row in tx.interp.unpack(args[0])] if _is_list(args[0]) else []
    if not any(map(_numbers, rows)) or not all(isinstance(row, TensorValue) for row in rows):
        return None
    fakes = [row.fake for row in rows if isinstance(row, TensorValue)]
    rests = {(x.dtype, x.device, *(str(n) for n in x.shape[1:])) for x in fakes}
    if len(rests) > 1 or not all(x.dim() for x in fakes):
        return None  # converted, or refused
    return tx.builder.wrap_new(_pad_sequence).call(tx, args, kwargs)


def _interpolate(input: Any, scale_factor: Any, resample: Any, *corners: Any) -> object:
    several = isinstance(scale_factor, list | tuple)
    given = scale_factor if several else [scale_factor] * (input.dim() - 2)
    factors = [float(factor) for factor in given]
    sizes = [math.floor(n * f) for n, f in zip(input.shape[2:], factors, strict=True)]
    return resample(input, sizes, *corners, *factors)


_LINEAR = ("linear", "bilinear", "trilinear")
_NEAREST = {"nearest": "upsample_nearest", "nearest-exact": "_upsample_nearest_exact"}


def _resampled(tx: Trace, args: Args, kwargs: Kwargs) -> Value | None:
    """Images resampled by a factor that is a symbol, on which their sizes depend."""
    names = ("input", "size", "scale_factor", "mode", "align_corners")
    given = {k: realize(tx, v) for k, v in {**dict(zip(names, args)), **kwargs}.items()}
    image, factor = given.pop("input", NONE), given.pop("scale_factor", NONE)
    factors = [realize(tx, n) for n in tx.interp.unpack(factor)] if _is_list(factor) else [factor]
    if not any(map(_numbers, factors)) or not isinstance(image, TensorValue):
        return None
    options = {name: tx.interp.concrete(value) for name, value in given.items()}
    rank, mode = image.fake.dim() - 2, str(options.pop("mode", "nearest"))
    linear = mode in _LINEAR[rank - 1 : rank]
    nearest = mode in _NEAREST and options.get("align_corners") is None
    if any(options.values()) or len(factors) not in (1, rank) or not (linear or nearest):
        return None
    name = f"upsample_{mode}{rank}d" if linear else f"{_NEAREST[mode]}{rank}d"
    more = [ConstantValue(False)] * linear  # the corners of both are not at the same place
    resample = tx.builder.wrap_new(getattr(torch.ops.aten, name).default)
    return tx.builder.wrap_new(_interpolate).call(tx, [image, factor, resample, *more], {})


_USUAL: dict[str, tuple[object, ...]] = {
    "padding": (0, (0,), (0, 0), (0, 0, 0)),
    "dilation": (1, (1,), (1, 1), (1, 1, 1)),
    "ceil_mode": (False, True),
    "return_indices": (False,),
    "count_include_pad": (False, True),
    "divisor_override": (None,),
}


def _is_list(value: Value) -> bool:
    return isinstance(value, TupleValue | ListValue)


def _nested(parts: Any, dtype: torch.dtype, device: Any) -> torch.Tensor:
    if isinstance(parts, list | tuple):
        return torch.stack([_nested(part, dtype, device) for part in parts])
    if isinstance(parts, torch.Tensor):
        return torch.empty((), dtype=dtype, device=device).copy_(parts)
    return torch.scalar_tensor(parts, dtype=dtype, device=device)


def _leaves(tx: Trace, data: Value) -> tuple[list[int], list[Value]]:
    """The shape of nested lists, of -1 where it is not one, and what they hold."""
    if not _is_list(data):
        return [], [data]
    found = [_leaves(tx, realize(tx, part)) for part in tx.interp.unpack(data)]
    shape = found[0][0] if found and all(s == found[0][0] for s, _ in found) else [-1]
    return [len(found), *shape], [leaf for _, leaves in found for leaf in leaves]


def tensor_of_numbers(
    tx: Trace, data: Value, dtype: Value = NONE, device: Value = NONE
) -> Value | None:
    """``torch.tensor`` of a number, or of nested lists or tuples of numbers, with a symbol or a
    tensor among them."""
    shape, leaves = _leaves(tx, data)
    tensors = [n.fake for n in leaves if isinstance(n, TensorValue)]
    kinds = {n.python_type() for n in leaves if not isinstance(n, TensorValue)}
    varies = any(isinstance(n, SymNumValue) for n in leaves) or (shape and tensors)
    if -1 in shape or not varies or not kinds <= {int, float}:
        return None
    if any(t.dim() or t.requires_grad or type(t) is not FakeTensor for t in tensors):
        return None
    if tx.interp.is_none(dtype):
        dtypes = {int: torch.int64, float: torch.get_default_dtype()}
        found = [t.dtype for t in tensors] + [dtypes[kind] for kind in kinds]
        dtype = ConstantValue(functools.reduce(torch.promote_types, found))
    to: Any = dtype.as_constant()
    if not all(torch.can_cast(t.dtype, to) for t in tensors):
        return None
    return tx.builder.wrap_new(_nested).call(tx, [data, dtype, device], {})


def _lists_as_tensors(tx: Trace, key: Value) -> Value:
    """An index whose lists of numbers are tensors, where a symbol is among them."""
    if type(key) is TupleValue:
        return TupleValue([_lists_as_tensors(tx, realize(tx, item)) for item in key.items])
    if type(key) is not ListValue:
        return key
    numbers = {realize(tx, item).python_type() for item in tx.interp.unpack(key)} <= {int, float}
    return (tensor_of_numbers(tx, key) if numbers else None) or key


@method("new_tensor")
def _new_tensor(tx: Trace, tensor: TensorValue, data: Value, /, **kwargs: Value) -> Value | None:
    given = {name: value for name, value in kwargs.items() if not tx.interp.is_none(value)}
    if given.keys() - {"dtype", "device"}:
        return None
    of = {"dtype": tensor.fake.dtype, "device": tensor.fake.device}
    own = {name: given.get(name) or tx.builder.wrap_new(kind) for name, kind in of.items()}
    return tensor_of_numbers(tx, realize(tx, data), **own)


@method("__getitem__")
def _getitem(tx: Trace, tensor: TensorValue, key: Value, /) -> Value:
    return tensor.plain_getitem(tx, _lists_as_tensors(tx, key))


@method("__setitem__")
def _setitem(tx: Trace, tensor: TensorValue, key: Value, value: Value, /) -> Value:
    tensor.plain_setitem(tx, _lists_as_tensors(tx, key), value)
    return NONE


def _as_method(handler: Handler, tx: Trace, /, *args: Value, **kwargs: Value) -> Value | None:
    return handler(tx, args, kwargs)


register(torch.nn.functional.one_hot, _traced(_one_hot))
for _name, _fn in (("take_along_dim", _take_along_dim), ("kron", _kron)):
    _handler = _traced(_fn)
    method(_name)(functools.partial(_as_method, _handler))
    register(getattr(torch, _name), _handler)
method("fill_diagonal_")(functools.partial(_as_method, _traced(_fill_diagonal)))
register(torch.broadcast_shapes, _traced(_broadcast_shapes, fold(torch.broadcast_shapes)))
register(torch.linspace, _spaced(_linspace, "start", "end", "steps"))
register(torch.logspace, _spaced(_logspace, "start", "end", "steps", "base"))
for _name, _shape in (
    ("hann_window", _cosines(0.5, -0.5)),
    ("hamming_window", _cosines(0.54, -0.46)),
    ("blackman_window", _cosines(0.42, -0.5, 0.08)),
    ("bartlett_window", _triangle),
):
    register(getattr(torch, _name), _window(_name, _shape))
register(pad_sequence, _padded)
register(torch.nn.functional.interpolate, _resampled)
_functional = torch.nn.functional
for _rank, _max, _usual_max, _avg in (
    (1, torch.max_pool1d, _functional.max_pool1d, torch.avg_pool1d),
    (2, torch.max_pool2d, _functional.max_pool2d, _functional.avg_pool2d),
    (3, torch.max_pool3d, _functional.max_pool3d, _functional.avg_pool3d),
):
    for _pool in (_max, _usual_max):
        register(_pool, _pooling(_rank, _largest, "dilation", "ceil_mode", "return_indices"))
    register(_avg, _pooling(_rank, _mean, "ceil_mode", "count_include_pad", "divisor_override"))
