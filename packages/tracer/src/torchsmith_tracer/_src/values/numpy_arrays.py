"""Arrays of NumPy: tensors in the graph that come in and go out as arrays.

An array that is found outside enters the graph as the tensor in its memory (``ArraySource``), so
writes are seen by the caller as they are in eager code; a result leaves it through ``array_from``.
What NumPy would make of an operation is asked of NumPy itself, on an array of ones or zeros with
the same layout (``sample``); ``numpy_calls`` has the functions.
"""

from __future__ import annotations

import operator
import sys
from typing import Any

import torch
from torchsmith_guards import AttrSource, GuardKind, Source, hint_of

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.emitter import Emitter
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Args, Kwargs, Value
from torchsmith_tracer._src.values.constants import ConstantValue
from torchsmith_tracer._src.values.sizes import SizeNumel
from torchsmith_tracer._src.values.symnum import known
from torchsmith_tracer._src.values.tensor import PROPERTIES, TensorValue

# Element types that torch computes with as NumPy does.
_DTYPES = {
    **{f"int{n}": getattr(torch, f"int{n}") for n in (8, 16, 32, 64)},
    **{f"float{n}": getattr(torch, f"float{n}") for n in (16, 32, 64)},
    **{f"complex{n}": getattr(torch, f"complex{n}") for n in (64, 128)},
    "bool": torch.bool,
    "uint8": torch.uint8,
}
_INTEGERS = {_DTYPES[f"int{n}"] for n in (8, 16, 32, 64)}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_UFUNCS = {
    **dict.fromkeys(("add", "matmul", "mod"), ""),
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "divide",
    "floordiv": "floor_divide",
    "pow": "power",
    "lshift": "left_shift",
    "rshift": "right_shift",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "divmod": "divmod",
    "lt": "less",
    "le": "less_equal",
    "eq": "equal",
    "ne": "not_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "neg": "negative",
    "pos": "positive",
    "invert": "invert",
    "abs": "absolute",
}


def numpy() -> Any:
    """The module; only what a program has imported is ever met."""
    return sys.modules["numpy"]


def torch_dtype(dtype: Any) -> torch.dtype | None:
    """The element type of tensors that is exactly ``dtype``, or None."""
    found = _DTYPES.get(dtype.name)
    return found if found is not None and dtype.isnative and dtype == dtype.name else None


def numpy_dtype(dtype: torch.dtype) -> Any:
    """NumPy's counterpart of an element type.

    Raises:
        Unsupported: there is none, or not one that both compute with alike.
    """
    if dtype not in _NAMES:
        raise Unsupported("numpy", what=f"an array of {dtype}", error="no such element type")
    return numpy().dtype(_NAMES[dtype])


def array_from(tensor: torch.Tensor, owner: Any = None, frozen: bool = False) -> Any:
    """The array in the memory of a graph's result.

    Args:
        tensor: the result.
        owner: the array that it is a view of, if any: one of a read-only array is read-only.
        frozen: whether it is read-only anyway.
    """
    array = tensor.detach().resolve_conj().resolve_neg().numpy()
    if frozen or (owner is not None and not owner.flags.writeable):
        array.flags.writeable = False
    return array


def scalar_from(tensor: torch.Tensor) -> Any:
    """The scalar of NumPy with the number of a graph's result."""
    return tensor.detach().resolve_conj().resolve_neg().numpy()[()]


class ArrayValue(Value):
    """An array, or a scalar of NumPy whose number the graph computes.

    Attributes:
        tensor: the tensor in its memory.
        cls: ``numpy.ndarray`` or the class of the scalar.
        real: the array itself if it existed before the trace.
        owner: the existing array whose memory it is in, if any.
        frozen: whether traced code made it read-only.
    """

    __slots__ = ("cls", "frozen", "owner", "real", "tensor")
    computes = True

    def __init__(
        self,
        tensor: TensorValue,
        cls: type | None = None,
        *,
        source: Source | None = None,
        real: Any = None,
        owner: ArrayValue | None = None,
        frozen: bool = False,
    ) -> None:
        super().__init__(source)
        self.tensor = tensor
        self.cls = numpy().ndarray if cls is None else cls
        self.real = real
        self.owner = owner
        self.frozen = frozen
        numpy_dtype(tensor.fake.dtype)

    @property
    def root(self) -> ArrayValue | None:
        """The existing array whose memory it is in, which may be itself."""
        return self if self.real is not None else self.owner

    @property
    def is_scalar(self) -> bool:
        """Whether it is a scalar of NumPy, which is no array."""
        return self.cls is not numpy().ndarray

    def describe(self) -> str:
        return self.tensor.describe().replace(
            "tensor", "NumPy scalar" if self.is_scalar else "NumPy array", 1
        )

    def sample(self) -> Any:
        """An array of this layout and element type: ones, or zeros of integers, which are valid
        as indices."""
        np, fake = numpy(), self.tensor.fake
        dtype = numpy_dtype(fake.dtype)
        size, stride = ([_hint(n) for n in part] for part in (fake.shape, fake.stride()))
        extent = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if all(size) else 0
        memory = np.ndarray(extent, dtype)  # by methods: a program may replace functions
        memory.fill(dtype.kind in "fc")
        strides = [s * dtype.itemsize for s in stride]
        array = np.ndarray(size, dtype, memory, 0, strides)
        return array[()] if self.is_scalar else array

    # --- attributes ----------------------------------------------------------------------------
    def getattr(self, tx: Trace, name: str) -> Value:
        from torchsmith_tracer._src.values import numpy_methods

        fake = self.tensor.fake
        size = self.tensor.size(tx)
        match name:
            case "shape":
                return tx.interp.tuple(size.items)
            case "size":
                return SizeNumel(size, "numel").call(tx, (), {})
            case "ndim":
                return ConstantValue(fake.dim())
            case "dtype":
                return DtypeValue(numpy_dtype(fake.dtype))
            case "itemsize":
                return ConstantValue(fake.element_size())
            case "nbytes":
                count = SizeNumel(size, "numel").call(tx, (), {})
                return tx.interp.binary("mul", count, ConstantValue(fake.element_size()))
            case "strides" if all(type(n) is int for n in fake.stride()):
                width = fake.element_size()
                steps = () if self.is_scalar else fake.stride()
                return tx.interp.const(tuple(n * width for n in steps))
            case "__class__":
                return tx.interp.type_of(self)
            case "T" | "real" | "imag":
                return numpy_methods.attribute(tx, self, name)
        if name in numpy_methods.METHODS:
            return numpy_methods.ArrayMethod(self, name)
        if not hasattr(self.cls, name):
            kind = f"{self.cls.__module__}.{self.cls.__name__}"
            message = f"{kind!r} object has no attribute {name!r}"
            raise tx.interp.error(AttributeError, message, name=name, obj=self)
        raise Unsupported("opaque-attribute", what=name, object=self.describe())

    # --- items ---------------------------------------------------------------------------------
    def as_index(self, tx: Trace, device: torch.device) -> Value:
        """The numbers or the truth values in it; torch rounds others, and bytes it warns of."""
        fake = self.tensor.fake
        if not fake.dim() or (fake.dtype is not torch.bool and fake.dtype not in _INTEGERS):
            return self
        wanted = torch.bool if fake.dtype is torch.bool else torch.int64
        if fake.dtype is wanted and fake.device == device:
            return self.tensor
        where = ConstantValue(device), ConstantValue(wanted)
        return tx.graph.call_method("to", (self.tensor, *where))

    def getitem(self, tx: Trace, key: Value) -> Value:
        from torchsmith_tracer._src.values import numpy_methods

        return numpy_methods.getitem(tx, self, key)

    def setitem(self, tx: Trace, key: Value, value: Value) -> None:
        from torchsmith_tracer._src.values import numpy_methods

        numpy_methods.setitem(tx, self, key, value)

    def length(self, tx: Trace) -> Value:
        if self.tensor.fake.dim() == 0:
            what = (
                f"object of type {self.cls.__name__!r} has no len()"
                if self.is_scalar
                else "len() of unsized object"
            )
            raise tx.interp.error(TypeError, what)
        return self.tensor.size_of(tx, 0)

    def iter(self, tx: Trace) -> Value:
        if self.tensor.fake.dim() == 0:
            raise Unsupported("op-failed", what="iteration", error="over a 0-d array")
        count = known(self.length(tx))
        items = [self.getitem(tx, ConstantValue(i)) for i in range(int(count.as_constant()))]  # type: ignore[call-overload]
        return tx.interp.iterator(items, self)

    # --- numbers -------------------------------------------------------------------------------
    def binary(self, tx: Trace, op: str, other: Value, *, reflected: bool = False) -> Value | None:
        from torchsmith_tracer._src.values import numpy_calls, numpy_methods

        if issubclass(other.python_type(), torch.Tensor):
            what = f"an operator of {self.describe()} and {other.describe()}"
            raise Unsupported("numpy", what=what, error="one becomes the other's kind")
        if op[0] == "i" and op[1:] in (*_UFUNCS, "and_", "or_") and op != "invert":
            if self.is_scalar:
                return None
            return numpy_methods.in_place(tx, self, op, _ufunc(op[1:]), other)
        args = [other, self] if reflected else [self, other]
        return numpy_calls.apply(tx, op, _ufunc(op), args)

    def unary(self, tx: Trace, op: str) -> Value:
        from torchsmith_tracer._src.values import numpy_calls

        return numpy_calls.apply(tx, op, _ufunc(op), [self])

    def richcompare(self, tx: Trace, op: str, other: Value) -> Value | None:
        return self.binary(tx, op, other)

    def bool(self, tx: Trace) -> bool:
        raise Unsupported("data-dependent-branch", what=self.describe())

    def hash_key(self, tx: Trace) -> object:
        if self.is_scalar:
            raise Unsupported("item", what=f"hash() of a {self.describe()}")
        raise tx.interp.error(TypeError, "unhashable type: 'numpy.ndarray'")

    def format(self, tx: Trace, spec: str) -> Value:
        """``format(self, spec)``: text shows data."""
        raise Unsupported("item", what=f"text of a {self.describe()}")

    def text(self, tx: Trace, name: str) -> Value:
        """``str(self)``, ``repr(self)``."""
        return self.format(tx, "")

    def call_builtin(self, tx: Trace, obj: object, args: Args, kwargs: Kwargs) -> Value | None:
        """A Python builtin that got this array among its arguments, or None."""
        return self.unary(tx, "abs") if obj is abs or obj is operator.abs else None

    # --- memory --------------------------------------------------------------------------------
    def written(self, tx: Trace) -> None:
        """Traced code is about to write here.

        Raises:
            Unsupported: the array is read-only, which NumPy says itself.
        """
        writeable = not self.frozen
        owner = self.root
        if owner is not None and owner.source is not None:
            flags = AttrSource(AttrSource(owner.source, "flags"), "writeable")
            writeable = writeable and bool(owner.real.flags.writeable)
            why = "an array is written to"
            tx.builder.guard(flags, GuardKind.CONSTANT, bool(owner.real.flags.writeable), why)
        if not writeable:
            raise Unsupported("op-failed", what="a write", error="the array is read-only")

    def reconstruct(self, cg: Emitter) -> str:
        output = cg.graph_output(self.tensor)
        if self.is_scalar:
            return cg.call(scalar_from, output)
        if self.owner is None and not self.frozen:
            return cg.call(array_from, output)
        owner = "None" if self.owner is None or self.owner.source is None else self.owner
        return cg.call(array_from, output, owner, cg.const(self.frozen))


class DtypeValue(ConstantValue):
    """An element type of NumPy."""

    __slots__ = ()

    def getattr(self, tx: Trace, name: str) -> Value:
        if name == "type":
            return tx.interp.const(self.value.type)  # type: ignore[attr-defined]
        if name in ("name", "kind", "itemsize", "char", "num", "str", "isnative", "alignment"):
            return ConstantValue(getattr(self.value, name))
        if name == "__class__":
            return tx.interp.type_of(self)
        raise Unsupported("opaque-attribute", what=name, object=f"dtype {self.value}")

    def richcompare(self, tx: Trace, op: str, other: Value) -> Value | None:
        host = tx.interp.try_concrete(other)
        if op not in ("eq", "ne") or host is tx.interp.UNKNOWN:
            return None
        return tx.interp.fold(getattr(operator, op), self.value, host)


def is_dtype(obj: object) -> bool:
    """Whether ``obj`` is an element type of NumPy that tensors have, too."""
    module = sys.modules.get("numpy")
    return module is not None and isinstance(obj, module.dtype) and torch_dtype(obj) is not None


def alias(tx: Trace, tensor: TensorValue) -> TensorValue:
    """Another tensor in the memory of ``tensor``, with a version counter of its own."""
    made = PROPERTIES["data"](tx, tensor)
    assert isinstance(made, TensorValue)
    return made


def _hint(n: object) -> int:
    found = hint_of(n)
    if found is None:
        raise Unsupported("numpy", what="an array", error="its size depends on the data")
    return int(found)


def _ufunc(op: str) -> Any:
    return getattr(numpy(), _UFUNCS.get(op.rstrip("_")) or op)
