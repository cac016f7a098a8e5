"""Functions of NumPy on arrays of the graph.

NumPy says what comes out: the function is run on samples (``ArrayValue.sample``), which gives the
result's class, element type, shape, strides and whose memory it is in, or the user's error. Torch
says how: universal functions by a table, with the operands cast as NumPy resolves them; the others
as torch's own NumPy layer composes them, each operator of which becomes a node. What then differs
is put right (``_conform``) or is a break. The values alone rest on the tests of the tables.
"""

from __future__ import annotations

import functools
import operator
import os
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torchsmith_guards import hint_of

from torchsmith_tracer._src.breaks.signals import ObservedException, Unsupported
from torchsmith_tracer._src.torch_private import FakeTensor, numpy_layer
from torchsmith_tracer._src.torch_private import storage_id as storage_of
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Args, Kwargs, Value
from torchsmith_tracer._src.values.constants import NONE, ConstantValue
from torchsmith_tracer._src.values.containers import SequenceValue, SliceValue
from torchsmith_tracer._src.values.lazy import realize
from torchsmith_tracer._src.values.numpy_arrays import ArrayValue, alias, numpy, torch_dtype
from torchsmith_tracer._src.values.symnum import SymNumValue
from torchsmith_tracer._src.values.tensor import PROPERTIES, TensorValue, call_tensor_method
from torchsmith_tracer._src.values.torch_fn import call_torch, method_name

Call = Callable[["Trace", list[Value], dict[str, Value]], Value]

# --- tables ------------------------------------------------------------------------------------

# Universal functions that are a function of torch; ``name=other`` where that is called otherwise.
_UFUNCS = {
    name: other or name
    for name, _, other in (
        entry.partition("=")
        for entry in (
            "add subtract multiply divide=true_divide floor_divide remainder power=pow fmod "
            "arctan2 hypot logaddexp maximum minimum fmax fmin copysign nextafter "
            "bitwise_and bitwise_or bitwise_xor left_shift=bitwise_left_shift "
            "right_shift=bitwise_right_shift gcd lcm equal=eq not_equal=ne less=lt less_equal=le "
            "greater=gt greater_equal=ge logical_and logical_or logical_xor logical_not matmul "
            "float_power=pow negative positive invert=bitwise_not absolute=abs fabs=abs sign "
            "rint=round floor ceil trunc sqrt square reciprocal exp exp2 expm1 log log2 log10 "
            "log1p sin cos tan arcsin arccos arctan sinh cosh tanh arcsinh arccosh arctanh "
            "deg2rad rad2deg degrees=rad2deg radians=deg2rad isnan isinf isfinite signbit "
            "conjugate=conj_physical"
        ).split()
    )
}
# Functions that torch's layer composes from operators.
_COMPOSED = frozenset(
    "zeros ones full zeros_like ones_like full_like empty empty_like arange linspace eye identity "
    "tri tril triu diag diagflat indices meshgrid reshape transpose swapaxes moveaxis rollaxis "
    "expand_dims squeeze ravel concatenate stack vstack hstack dstack column_stack split "
    "array_split hsplit vsplit dsplit tile repeat roll broadcast_to broadcast_arrays atleast_1d "
    "atleast_2d atleast_3d flip fliplr flipud rot90 sum prod mean std var min max amin amax any "
    "all argmin argmax cumsum cumprod count_nonzero trace dot inner outer vdot tensordot einsum "
    "kron where clip take take_along_axis diff sort nan_to_num real imag diagonal copy "
    "isclose round around ascontiguousarray vander average ptp cross gradient convolve "
    "correlate sinc isneginf isposinf linalg.norm linalg.det "
    "linalg.matrix_power fft.fft fft.ifft fft.rfft fft.irfft fft.fft2 fft.ifft2 fft.fftn "
    "fft.ifftn fft.rfft2 fft.irfft2 fft.rfftn fft.irfftn fft.hfft fft.ihfft fft.fftshift "
    "fft.ifftshift".split()
)
# Those that compute in the element type of the result.
_IN_RESULT_TYPE = frozenset("sum prod mean std var cumsum cumprod trace average".split())
_OF_METADATA = frozenset("ndim size shape".split())
_SAFE_WITH_SCALARS = frozenset("add subtract multiply divide".split())

_found: dict[int, tuple[object, str]] = {}


def name_of(obj: object) -> str | None:
    """The name of a function of NumPy that has a form in the graph, or None."""
    if "numpy" not in sys.modules:
        return None
    np = numpy()
    if not _found:
        for name in (*_UFUNCS, *_COMPOSED, *_OF_METADATA, *_SPECIAL):
            fn = functools.reduce(
                lambda place, part: getattr(place, part, None), name.split("."), np
            )
            if _is_numpys(np, fn):
                _found[id(fn)] = (fn, fn.__name__ if isinstance(fn, np.ufunc) else name)
    entry = _found.get(id(obj))
    return None if entry is None else entry[1]


def _is_numpys(np: Any, fn: Any) -> bool:
    """Whether what goes by a name of NumPy's is its own, and nothing put in its place."""
    if isinstance(fn, types.FunctionType):
        return fn.__code__.co_filename.startswith(os.path.dirname(np.__file__) + os.sep)
    kinds = (np.ufunc, types.BuiltinFunctionType, type(np.linspace))
    return isinstance(fn, kinds) and str(getattr(fn, "__module__", "numpy")).startswith("numpy")


# --- calls -------------------------------------------------------------------------------------


def call(tx: Trace, fn: Any, args: Args, kwargs: Kwargs) -> Value:
    """``fn(*args, **kwargs)`` for a function of NumPy."""
    name = name_of(fn)
    if name is None:
        raise Unsupported("opaque-call", what=f"numpy.{getattr(fn, '__name__', fn)}")
    args = [read(tx, a) for a in args]
    kwargs = {k: read(tx, v) for k, v in kwargs.items()}
    if name in _OF_METADATA and len(args) == 1 and isinstance(args[0], ArrayValue) and not kwargs:
        return args[0].getattr(tx, name)
    special = _SPECIAL.get(name)
    if special is not None:
        return special(tx, args, kwargs)
    return Asked(tx, name, fn, args, kwargs).answer()


def apply(tx: Trace, op: str, fn: Any, args: Sequence[Value]) -> Value:
    """An operator of Python's, which comes down to the universal function ``fn``."""
    run = getattr(operator, op, None) or getattr(operator, f"{op}_", None) or divmod
    asked = Asked(tx, fn.__name__, run, [read(tx, a) for a in args], {})
    asked.fn = fn
    return asked.answer()


def read(tx: Trace, value: Value) -> Value:
    value = realize(tx, value)
    if isinstance(value, SequenceValue):
        return value.like([read(tx, v) for v in value.unpack(tx)])
    return value


def refused(name: str, error: object) -> Unsupported:
    """The break at a call that tensors have no exact form of."""
    return Unsupported("numpy", what=f"numpy.{name}", error=str(error))


def ask(name: str, fn: Any, *args: object, **kwargs: object) -> Any:
    """What NumPy gives; where it refuses, the program is to meet its error."""
    try:
        return fn(*args, **kwargs)
    except Exception as e:
        text = f"{type(e).__name__}: {e}"
        raise Unsupported("op-failed", what=f"numpy.{name}", error=text, cause=e) from e


class Asked:
    """One call, of which NumPy has been asked what comes out.

    Attributes:
        samples: stand-ins of the array arguments, by identity of these.
        expected: what NumPy gave for them.
        generic: whether ``fn`` takes arrays of torch's layer as well: a method, an attribute.
    """

    def __init__(
        self, tx: Trace, name: str, fn: Any, args: Args, kwargs: Kwargs, generic: bool = False
    ) -> None:
        self.tx, self.name, self.fn, self.args, self.kwargs = tx, name, fn, args, kwargs
        self.generic = generic
        self.samples: dict[int, tuple[ArrayValue, Any]] = {}
        hosts = [self.host(a) for a in args]
        named = {k: self.host(v) for k, v in kwargs.items()}
        state = numpy().geterr()
        if set(state.values()) - {"ignore", "warn"}:
            raise refused(name, "numpy.seterr asks for errors of floating point")
        with numpy().errstate(all="ignore"):
            self.expected = ask(name, fn, *hosts, **named)

    def host(self, value: Value) -> Any:
        """The sample of an argument."""
        if isinstance(value, ArrayValue):
            if id(value) not in self.samples:
                self.samples[id(value)] = (value, value.sample())
            return self.samples[id(value)][1]
        if isinstance(value, SequenceValue):
            kind = value.python_type()
            items = [self.host(v) for v in value.items]
            return tuple(items) if issubclass(kind, tuple) else items
        if isinstance(value, SymNumValue):
            return value.as_constant()
        if isinstance(value, SliceValue):
            return slice(*map(self.host, value.items))
        if isinstance(value, TensorValue):
            raise refused(self.name, f"{value.describe()} among arrays")
        return self.tx.interp.concrete(value)

    def answer(self) -> Value:
        """The call's value."""
        if isinstance(self.fn, numpy().ufunc):
            found = _universal(self)
        else:
            found = self._composed()
        return self.conform(found)

    def _composed(self) -> Value:
        tx, layer = self.tx, numpy_layer()
        args = list(self.args)
        if self.name in _IN_RESULT_TYPE and isinstance(args[0], ArrayValue):
            result, fake = torch_dtype(self.expected.dtype), args[0].tensor.fake
            if result is None or (fake.is_complex() and not result.is_complex):
                raise refused(self.name, f"{fake.dtype} gives {self.expected.dtype}")
            if fake.dtype is torch.float16 and self.name.startswith("cum"):
                raise refused(self.name, "each step is rounded")
            if not fake.dtype.is_floating_point:
                args[0] = _cast(tx, args[0], result)
        if self.name == "where" and len(args) == 3:
            args[1:] = [_as_result(self, a) for a in args[1:]]
        if self.name == "outer":
            args = [call(tx, numpy().ravel, [a], {}) for a in args]
        fn = self.fn if self.generic else operator.attrgetter(self.name)(layer)
        found = _Recorder(tx).run(self.name, fn, args, self.kwargs)
        given = args[0].tensor.fake.dtype if isinstance(args[0], ArrayValue) else None
        if self.name.startswith("fft.") and given in (torch.float32, torch.complex64):
            assert isinstance(found, TensorValue)  # the layer computes in 64 bits
            found = cast_to(tx, found, torch_dtype(self.expected.dtype) or found.fake.dtype)
        return found

    # --- putting right -------------------------------------------------------------------------
    def conform(self, found: Value, expected: Any = None) -> Value:
        """The value with the result's class, element type, layout and memory."""
        tx = self.tx
        expected = self.expected if expected is None else expected
        if isinstance(expected, tuple | list):
            items = tx.interp.unpack(found)
            if len(items) != len(expected):
                raise refused(self.name, "another number of results")
            parts = [self.conform(v, e) for v, e in zip(items, expected, strict=True)]
            made = tx.interp.tuple(parts)
            return made if type(expected) is tuple else tx.interp.const(list(parts))
        np = numpy()
        if not isinstance(expected, np.ndarray | np.generic):
            raise refused(self.name, f"it gives an object of type {type(expected).__name__}")
        for value, sample in self.samples.values():
            if expected is sample:
                return value
        if not isinstance(found, TensorValue):
            raise refused(self.name, "the result is no tensor")
        dtype = torch_dtype(expected.dtype)
        if dtype is None:
            raise refused(self.name, f"the result is of {expected.dtype}")
        owner = self._owner(expected)
        if owner is not None:
            tensor = self._view(found, expected, *owner)
            frozen = owner[0].frozen or (owner[1].flags.writeable and not expected.flags.writeable)
            return ArrayValue(tensor, owner=owner[0].root, frozen=frozen)
        if found.fake.dtype is not dtype:
            raise refused(self.name, f"tensors give {found.fake.dtype}, not {expected.dtype}")
        tensor = self._fresh(found, expected)
        if not isinstance(expected, np.ndarray):
            return ArrayValue(tensor, type(expected))
        return ArrayValue(tensor, frozen=not expected.flags.writeable)

    def _owner(self, expected: Any) -> tuple[ArrayValue, Any] | None:
        """The argument that the result is a view of."""
        np = numpy()
        if not isinstance(expected, np.ndarray) or not expected.size:
            return None
        for value, sample in self.samples.values():
            if isinstance(sample, np.ndarray) and np.may_share_memory(sample, expected):
                return value, sample
        return None

    def _view(
        self, found: TensorValue, expected: Any, owner: ArrayValue, sample: Any
    ) -> TensorValue:
        base, width = owner.tensor.fake, expected.dtype.itemsize
        start = expected.ctypes.data - sample.ctypes.data
        if expected.dtype != sample.dtype:
            same = found.fake.dtype is torch_dtype(expected.dtype)
            if (
                same
                and storage_of(found.fake) == storage_of(base)
                and self._strides(found, expected)
            ):
                return found  # the real or imaginary part
            raise refused(self.name, "a view with other elements")
        offset = base.storage_offset() + start // width
        if (
            storage_of(found.fake) == storage_of(base)
            and found.fake.storage_offset() == offset
            and self._shape(found, expected)
            and self._strides(found, expected)
        ):
            return found
        strides = [n // width for n in expected.strides]
        if min(strides, default=0) < 0 or start % width:
            raise refused(self.name, "a view that goes backwards")
        if any(type(n) is not int for n in (*base.shape, *base.stride(), offset)):
            raise refused(self.name, "a view of an array whose sizes vary")
        args = [owner.tensor, *(self.tx.interp.const(tuple(x)) for x in (expected.shape, strides))]
        made = call_tensor_method(
            self.tx, owner.tensor, "as_strided", [*args[1:], ConstantValue(offset)], {}
        )
        assert isinstance(made, TensorValue)
        return made

    def _fresh(self, found: TensorValue, expected: Any) -> TensorValue:
        tx = self.tx
        if not self._shape(found, expected):
            raise refused(self.name, f"another shape {tuple(found.fake.shape)}")
        mine = {storage_of(v.tensor.fake) for v, _ in self.samples.values()}
        if storage_of(found.fake) in mine:
            found = method_node(tx, found, "clone")
        if expected.ndim and not self._strides(found, expected):
            if not expected.flags.forc:
                raise refused(self.name, "a result in an unusual layout")
            # Stored with the axes in another order.
            order = sorted(range(expected.ndim), key=lambda d: (-expected.strides[d], d))
            back = [order.index(d) for d in range(expected.ndim)]
            found = method_node(tx, found, "permute", *order)
            found = method_node(tx, method_node(tx, found, "contiguous"), "permute", *back)
            if not self._strides(found, expected):
                raise refused(self.name, "a result in an unusual layout")
        return found

    def _shape(self, found: TensorValue, expected: Any) -> bool:
        return [_number(n) for n in found.fake.shape] == list(expected.shape)

    def _strides(self, found: TensorValue, expected: Any) -> bool:
        steps = zip(found.fake.stride(), expected.strides, expected.shape, strict=True)
        width = expected.dtype.itemsize
        return not expected.size or all(_number(a) * width == b for a, b, n in steps if n > 1)


def _number(n: Any) -> int:
    found = hint_of(n)
    return -1 if found is None else int(found)


def method_node(tx: Trace, tensor: TensorValue, name: str, *args: object) -> TensorValue:
    made = tx.graph.call_method(name, (tensor, *map(tx.interp.const, args)))
    assert isinstance(made, TensorValue)
    return made


def cast_to(tx: Trace, tensor: TensorValue, dtype: torch.dtype) -> TensorValue:
    return tensor if tensor.fake.dtype is dtype else method_node(tx, tensor, "to", dtype)


def _cast(tx: Trace, array: ArrayValue, dtype: torch.dtype) -> ArrayValue:
    return ArrayValue(cast_to(tx, array.tensor, dtype))


def _as_result(asked: Asked, value: Value) -> Value:
    """An argument in the element type of the result."""
    dtype = torch_dtype(asked.expected.dtype)
    if dtype is None or isinstance(value, SequenceValue):
        return value
    if isinstance(value, ArrayValue):
        return _cast(asked.tx, value, dtype)
    made = full(asked.tx, plain(value), dtype)
    assert isinstance(made, TensorValue)
    return ArrayValue(made)


# --- universal functions -----------------------------------------------------------------------


def _universal(asked: Asked) -> Value:
    """A universal function on operands cast as NumPy resolves them."""
    tx, fn, name = asked.tx, asked.fn, asked.name
    operands = list(asked.args)
    if asked.kwargs or len(operands) != fn.nin or name not in _UFUNCS:
        raise refused(name, "keyword arguments, or an array for the result")
    operands = [asarray(tx, v) if isinstance(v, SequenceValue) else v for v in operands]
    kinds = [_operand_type(asked, v) for v in operands]
    resolved = fn.resolve_dtypes((*kinds, *[None] * fn.nout))
    dtypes = [torch_dtype(d) for d in resolved]
    if None in dtypes or fn.nout != 1:
        raise refused(name, f"it computes in {', '.join(str(d) for d in resolved)}")
    _check_integers(name, resolved[0], operands)
    target = getattr(torch, _UFUNCS[name])
    if dtypes[0] is torch.bool and name in ("positive", "matmul", "negative"):
        raise refused(name, "of truth values")
    if resolved[0].kind == "c" and name not in _COMPLEX:
        raise refused(name, "of complex numbers")
    scalars = name in _SAFE_WITH_SCALARS and any(
        isinstance(v, ArrayValue) and v.tensor.fake.dim() for v in operands
    )
    nodes: list[Value] = []
    for value, dtype in zip(operands, dtypes, strict=False):
        assert dtype is not None
        host = value.as_constant() if value.is_constant() else None
        if type(host) is int and not dtype.is_floating_point and not _fits(host, dtype):
            raise refused(name, f"{host} among numbers of {dtype}")
        if isinstance(value, ArrayValue):
            nodes.append(cast_to(tx, value.tensor, dtype))
        elif scalars and dtype in (torch.float32, torch.float64, torch.int64):
            nodes.append(plain(value))
        else:
            nodes.append(full(tx, plain(value), dtype))
    result = tx.graph.call_function(target, nodes)
    fixed = _FIXED.get(name)
    if fixed is not None and resolved[-1].kind == "f":
        result = tx.builder.wrap_new(fixed).call(tx, [result, *nodes], {})
    out = dtypes[-1]
    assert out is not None
    return cast_to(tx, result, out) if isinstance(result, TensorValue) else result


def _sign(result: Any, a: Any) -> object:
    return torch.where(a.isnan(), a, result)


def _remainder(result: Any, a: Any, b: Any) -> object:
    b = b if isinstance(b, torch.Tensor) else torch.full((), b, dtype=result.dtype)
    return torch.where(result == 0, torch.copysign(result, b), result)


# What torch's functions make otherwise of NaN and of the sign of zero; traced, not run.
_FIXED: dict[str, Callable[..., object]] = {"sign": _sign, "remainder": _remainder}
# Torch multiplies by one to add and subtract, which NaN and infinite parts do not survive.
_COMPLEX = frozenset(
    "multiply divide equal not_equal negative positive square sqrt exp sin cos "
    "tan sinh cosh tanh absolute conjugate reciprocal matmul isnan isinf isfinite log".split()
)


def full(tx: Trace, number: Value, dtype: torch.dtype) -> Value:
    """A tensor without dimensions with a number."""
    return tx.graph.call_function(torch.full, (tx.interp.const(()), number), {"dtype": dtype})


def plain(value: Value) -> Value:
    """A number as Python has it."""
    host = value.as_constant() if not isinstance(value, SymNumValue) else None
    return value if host is None else ConstantValue(getattr(host, "item", lambda: host)())


def _operand_type(asked: Asked, value: Value) -> Any:
    np = numpy()
    host = asked.host(value)
    if isinstance(host, np.ndarray | np.generic):
        return host.dtype
    if type(host) is bool:
        return np.dtype(bool)
    if type(host) in (int, float, complex):
        return type(host)
    raise refused(asked.name, f"{value.describe()} as an operand")


def _fits(number: int, dtype: torch.dtype) -> bool:
    if dtype is torch.bool or dtype.is_complex:
        return True
    limits = torch.iinfo(dtype)
    return limits.min <= number <= limits.max


def _check_integers(name: str, dtype: Any, operands: Sequence[Value]) -> None:
    """Integers that torch fails on, or gives other results for, are left to NumPy."""
    if dtype.kind not in "iub" or name not in _INTEGER_LIMITS:
        return
    last = operands[-1]
    host = last.as_constant() if last.is_constant() else None
    if host is None or not _INTEGER_LIMITS[name](host, dtype):
        raise refused(name, "of integers, by a number that is not known or not usual")


_INTEGER_LIMITS: dict[str, Callable[[Any, Any], bool]] = {
    **dict.fromkeys(("floor_divide", "remainder", "fmod"), lambda n, d: n not in (0, -1)),
    "power": lambda n, d: n >= 0,
    **dict.fromkeys(("left_shift", "right_shift"), lambda n, d: 0 <= n < 8 * d.itemsize),
    **dict.fromkeys(("reciprocal", "sqrt"), lambda n, d: False),
}


# --- functions that torch composes ---------------------------------------------------------------


class _Recorder(TorchFunctionMode):
    """Runs a function of torch's NumPy layer on the fakes; each operator becomes a node."""

    def __init__(self, tx: Trace) -> None:
        super().__init__()
        self.tx = tx
        self.values: dict[int, tuple[torch.Tensor, TensorValue]] = {}

    def run(self, name: str, fn: Callable[..., Any], args: Args, kwargs: Kwargs) -> Value:
        """The value of ``fn``'s result."""
        hosts = [self.lower(a) for a in args]
        named = {k: self.lower(v) for k, v in kwargs.items()}
        if name == "reshape" and len(hosts) == 2 and type(hosts[1]) is int:
            hosts[1] = (hosts[1],)
        try:
            with self:
                result = fn(*hosts, **named)
        except (Unsupported, ObservedException):
            raise
        except Exception as e:
            raise refused(name, f"{type(e).__name__}: {e}") from e
        return self._lift_result(name, result)

    def lower(self, value: Value) -> Any:
        """An argument as the layer takes it."""
        if isinstance(value, ArrayValue):
            return numpy_layer().ndarray(self._keep(value.tensor))
        if isinstance(value, SequenceValue):
            items = [self.lower(v) for v in value.items]
            return tuple(items) if issubclass(value.python_type(), tuple) else items
        if isinstance(value, SymNumValue):
            return value.as_constant()
        host = self.tx.interp.concrete(value)
        np = numpy()
        if isinstance(host, np.dtype) or (isinstance(host, type) and issubclass(host, np.generic)):
            return numpy_layer().dtype(np.dtype(host).name)
        return host.item() if isinstance(host, np.generic) else host

    def _keep(self, value: TensorValue) -> torch.Tensor:
        self.values[id(value.fake)] = (value.fake, value)
        return value.fake

    def _lift_result(self, name: str, result: Any) -> Value:
        if isinstance(result, tuple | list):
            return self.tx.interp.tuple([self._lift_result(name, part) for part in result])
        tensor = getattr(result, "tensor", result)
        if not isinstance(tensor, torch.Tensor) or id(tensor) not in self.values:
            raise refused(name, "the result is no tensor of the graph")
        return self.values[id(tensor)][1]

    def __torch_function__(
        self, func: Any, types: object, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name == "__get__":
            attribute = func.__self__.__name__
            if attribute not in ("T", "mT", "H", "mH", "real", "imag"):
                return func(*args)
            return self._give(PROPERTIES[attribute](self.tx, self._lift(args[0])))  # type: ignore[arg-type]
        values = [self._lift(a) for a in args]
        named = {k: self._lift(v) for k, v in (kwargs or {}).items()}
        if (
            func is torch.as_tensor
            and "dtype" not in named
            and not isinstance(values[0], TensorValue)
        ):
            named["dtype"] = ConstantValue(func(*args).dtype)  # by the layer's default, not torch's
        method = method_name(func)
        if method is not None and isinstance(values[0], TensorValue):
            return self._give(call_tensor_method(self.tx, values[0], method, values[1:], named))
        return self._give(call_torch(self.tx, func, values, named))

    def _lift(self, host: Any) -> Value:
        if isinstance(host, FakeTensor):
            entry = self.values.get(id(host))
            if entry is None:
                raise refused("function", "a tensor that is not in the graph")
            return entry[1]
        if isinstance(host, torch.SymInt | torch.SymFloat | torch.SymBool):
            return self._size(host)
        if type(host) is tuple or type(host) is list or isinstance(host, torch.Size):
            parts = [self._lift(part) for part in host]
            made = self.tx.interp.tuple(parts)
            return made if type(host) is not list else self.tx.interp.const(parts)
        return self.tx.interp.const(host)

    def _size(self, sym: Any) -> Value:
        """A symbolic size of one of the tensors; any other number is specialised."""
        for fake, value in list(self.values.values()):
            for dim, n in enumerate(fake.shape):
                if n is sym or getattr(n, "node", None) is sym.node:
                    return value.size_of(self.tx, dim)
        return ConstantValue(int(sym))

    def _give(self, value: Value) -> Any:
        if isinstance(value, TensorValue):
            return self._keep(value)
        if isinstance(value, SequenceValue):
            items = [self._give(v) for v in value.unpack(self.tx)]
            kind = value.python_type()
            return kind(items) if kind.__module__ == "torch.return_types" else items
        if isinstance(value, SymNumValue):
            return value.sym
        return self.tx.interp.concrete(value)


# --- arrays from other things ------------------------------------------------------------------


def asarray(tx: Trace, value: Value, dtype: Value = NONE) -> ArrayValue:
    """``numpy.array(value, dtype)`` of a nest of numbers, or of arrays of one shape."""
    if isinstance(value, ArrayValue):
        made: Value = value
    elif isinstance(value, TensorValue):
        made = from_tensor(tx, value)
    elif any(isinstance(v, ArrayValue) for v in _leaves(value)):
        if not isinstance(value, SequenceValue):
            raise refused("array", "of such a nest")
        parts = [asarray(tx, v) for v in value.items]
        made = call(tx, numpy().stack, [tx.interp.const(parts)], {})
    else:
        if any(isinstance(v, SymNumValue) for v in _leaves(value)):
            raise refused("array", "of numbers that vary")
        host = tx.interp.concrete(value)
        known = None if tx.interp.is_none(dtype) else tx.interp.concrete(dtype)
        array = ask("array", numpy().array, host, dtype=known)
        kind = torch_dtype(array.dtype)
        if kind is None:
            raise refused("array", f"of {array.dtype}")
        content = tx.interp.const(array.tolist())
        tensor = tx.graph.call_function(torch.tensor, (content,), {"dtype": kind})
        assert isinstance(tensor, TensorValue)
        if list(tensor.fake.shape) != list(array.shape):
            tensor = method_node(tx, tensor, "reshape", *array.shape)
        return ArrayValue(tensor)
    assert isinstance(made, ArrayValue)
    if not tx.interp.is_none(dtype):
        wanted = torch_dtype(numpy().dtype(tx.interp.concrete(dtype)))
        if wanted is None:
            raise refused("array", f"of {tx.interp.concrete(dtype)}")
        if made.tensor.fake.dtype is not wanted:
            check_cast(made.tensor.fake.dtype, wanted)
            return ArrayValue(cast_to(tx, made.tensor, wanted))
    return made


def _leaves(value: Value) -> list[Value]:
    if isinstance(value, SequenceValue):
        return [leaf for item in value.items for leaf in _leaves(item)]
    return [value]


def check_cast(old: torch.dtype, new: torch.dtype) -> None:
    """Casts whose result is undefined outside of the range, or has no meaning."""
    if (old.is_floating_point and not new.is_floating_point and not new.is_complex) or (
        old.is_complex and not new.is_complex
    ):
        if new not in (torch.bool, torch.int32, torch.int64):
            raise refused("ndarray.astype", f"{old} to {new}")
        if old.is_complex:
            raise refused("ndarray.astype", f"{old} to {new}")


def from_tensor(tx: Trace, tensor: TensorValue) -> ArrayValue:
    """``tensor.numpy()``."""
    fake = tensor.fake
    error = ""
    if fake.requires_grad:
        error = "Can't call numpy() on Tensor that requires grad."
    elif fake.device.type != "cpu":
        error = f"can't convert {fake.device} device type tensor to numpy."
    elif fake.is_conj() or fake.is_neg():
        error = "Can't call numpy() on Tensor that has conjugate or negative bit set."
    if error:
        raise Unsupported("op-failed", what="Tensor.numpy", error=error)
    return ArrayValue(alias(tx, tensor))


def _array(tx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``numpy.array(x, dtype)``: a copy."""
    if len(args) not in (1, 2) or kwargs.keys() - {"dtype", "copy"}:
        raise refused("array", "these arguments")
    copy = kwargs.get("copy")
    if copy is not None and tx.interp.try_concrete(copy) is not True:
        raise refused("array", "copy=False")
    dtype = kwargs.get("dtype", args[1] if len(args) > 1 else NONE)
    made = asarray(tx, args[0], dtype)
    given = args[0]
    shares = isinstance(given, ArrayValue) and made.tensor is given.tensor
    return copied(tx, made) if shares or isinstance(given, TensorValue) else made


def _asarray(tx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) not in (1, 2) or kwargs.keys() - {"dtype"}:
        raise refused("asarray", "these arguments")
    made = asarray(tx, args[0], kwargs.get("dtype", args[1] if len(args) > 1 else NONE))
    return copied(tx, made) if made is args[0] and made.is_scalar else made


def copied(tx: Trace, array: ArrayValue) -> Value:
    """``numpy.array(array)``."""
    asked = Asked(tx, "array", numpy().array, [array], {})
    return asked.conform(method_node(tx, array.tensor, "clone"))


_SPECIAL: dict[str, Call] = {"array": _array, "asarray": _asarray}
