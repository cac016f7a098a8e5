"""NumPy's numbers as constants, and the functions of NumPy that are computed while tracing.

NumPy is not imported here: nothing of it is met before the program has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.constants import BINARY, COMPARE, UNARY, ConstantValue
from torchsmith_tracer._src.values.symnum import known

_NUMBERS = frozenset(
    "bool bool_ int8 int16 int32 int64 longlong uint8 uint16 uint32 uint64 ulonglong float16 "
    "float32 float64 complex64 complex128".split()
)
_FUNCTIONS = frozenset(  # besides ufuncs
    "prod sum mean std var min max amin amax argmin argmax ptp median dot clip round around size "
    "ndim isclose allclose array_equal any all nan_to_num real imag trace average".split()
)
_MEMBERS = frozenset(  # what has no effect and makes no array
    "item tolist astype conjugate conj round real imag dtype ndim size shape itemsize nbytes "
    "is_integer as_integer_ratio bit_count hex sum prod min max mean any all".split()
)


def is_number_type(kind: type) -> bool:
    """Whether instances of ``kind`` are numbers of NumPy with a counterpart in Python."""
    return type(kind) is type and kind.__module__ == "numpy" and kind.__name__ in _NUMBERS


def is_function(obj: object) -> bool:
    """Whether ``obj`` is a function of NumPy without effects, that may be run while tracing."""
    kind = type(obj)
    if kind.__name__ not in ("ufunc", "_ArrayFunctionDispatcher") or "numpy" not in sys.modules:
        return False
    numpy = sys.modules["numpy"]
    if kind is not numpy.ufunc and kind is not type(numpy.prod):
        return False
    name = getattr(obj, "__name__", "")
    if getattr(numpy, name, None) is not obj:  # made by ``numpy.frompyfunc``, for instance
        return False
    return kind is numpy.ufunc or name in _FUNCTIONS


def compute(tx: Trace, fn: Callable[..., object], *args: object, **kwargs: object) -> Value:
    """``fn`` of known objects, where the result is a number and NumPy has nothing to say.

    Raises:
        Unsupported: the result is an array, or NumPy warns, or ``fn`` fails.
    """
    what = f"numpy function {getattr(fn, '__name__', fn)}"
    with sys.modules["numpy"].errstate(all="raise"):
        try:
            result = fn(*args, **kwargs)
        except Exception as e:  # noqa: BLE001 - running natively it raises its own
            raise Unsupported("opaque-call", what=f"{what}, which gives {e}") from None
    if not _is_plain(result):
        raise MakesArray("opaque-call", what=f"{what}, which makes an array")
    return tx.interp.const(result)


class MakesArray(Unsupported):
    """The result of a function of known numbers is an array."""


def _is_plain(result: object) -> bool:
    if type(result) is tuple:
        return all(map(_is_plain, result))
    kind = type(result)
    return kind in (bool, int, float, complex, str) or is_number_type(kind)


class NumpyValue(ConstantValue):
    """A number of NumPy: operators and methods give what NumPy gives."""

    __slots__ = ()
    computes = True

    def as_proxy(self) -> object:
        if self.value.dtype.kind not in "iuf":  # type: ignore[attr-defined]
            raise Unsupported("not-a-graph-argument", what=self.describe())
        return self.value.item()  # type: ignore[attr-defined] # what torch makes of it

    def getattr(self, tx: Trace, name: str) -> Value:
        if name in _MEMBERS or (name[:2] == "__" and name[2:8] != "array_"):
            return super().getattr(tx, name)
        raise Unsupported("opaque-attribute", what=name, object=self.describe())

    def binary(self, tx: Trace, op: str, other: Value, *, reflected: bool = False) -> Value | None:
        fn = BINARY.get(op)
        if fn is None or issubclass(other.python_type(), torch.Tensor):
            return None
        if other.computes and not isinstance(other, NumpyValue):
            return None  # an array's
        other = known(other)
        a, b = (other, self) if reflected else (self, other)
        if not isinstance(other, ConstantValue) or (
            isinstance(other.value, str | bytes) and op != "mod"
        ):
            raise self._no(tx, f"{op} of {other.describe()} and")
        return compute(tx, fn, a.as_constant(), b.as_constant())

    def unary(self, tx: Trace, op: str) -> Value:
        return compute(tx, UNARY[op], self.value)

    def richcompare(self, tx: Trace, op: str, other: Value) -> Value | None:
        if issubclass(other.python_type(), torch.Tensor):
            return None
        if other.computes and not isinstance(other, NumpyValue):
            return None
        other = known(other)
        if not isinstance(other, ConstantValue):
            raise self._no(tx, f"comparison of {other.describe()} with")
        return compute(tx, COMPARE[op], self.value, other.value)


def holds_number(value: object) -> bool:
    """Whether a number of NumPy is among the arguments of an operator, or in their lists."""
    items = value if isinstance(value, tuple | list) else getattr(value, "items", ())
    if isinstance(value, NumpyValue):
        return True
    return isinstance(items, tuple | list) and any(map(holds_number, items))
