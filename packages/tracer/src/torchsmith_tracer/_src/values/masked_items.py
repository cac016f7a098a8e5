"""``x[mask]`` where the number of its elements does not matter.

``x[mask] = y[mask]`` and ``x[mask] += 1`` load as many elements as the mask has, which depends on
the data, and store them where they came from: that is ``torch.where`` for the whole of ``x``. And a
mask that is made of constants, such as ``~torch.eye(n, dtype=torch.bool)``, has a known number.
"""

from __future__ import annotations

import math
import operator

import torch
from torchsmith_guards import same_sizes

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.emitter import Emitter
from torchsmith_tracer._src.frames.frame import Frame
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.constants import COMPARE, ConstantValue
from torchsmith_tracer._src.values.tensor import TensorValue

_NEAR = 20  # instructions between a load and the store that it is for
_ARITHMETIC = {name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv")}
_ITEMS = object()


class MaskedItems(Value):
    """``dense[mask]``, on its way to where ``_is_stored`` found that it goes."""

    __slots__ = ("dense", "mask")
    cls = torch.Tensor

    def __init__(self, dense: TensorValue, mask: TensorValue) -> None:
        super().__init__(None)
        self.dense = dense
        self.mask = mask

    def describe(self) -> str:
        return f"the elements of a {self.dense.describe()} that a mask has"

    def refusal(self) -> Unsupported:
        return Unsupported("data-dependent-op", what="an index", error=self.describe())

    def binary(self, tx: Trace, op: str, other: Value, *, reflected: bool = False) -> Value | None:
        fn = _ARITHMETIC.get(op) or _ARITHMETIC.get(op.removeprefix("i"))
        if isinstance(other, MaskedItems):
            right: Value = other.dense
            fits = _same_mask(self.mask, other.mask)
        else:
            right = other
            fits = not isinstance(other, TensorValue) or not other.fake.dim()
        if fn is None or not fits or not self._is_safe(op, right):
            raise self.refusal()
        args = (right, self.dense) if reflected else (self.dense, right)
        result = tx.graph.call_function(fn, args)
        assert isinstance(result, TensorValue)
        if op not in _ARITHMETIC and result.fake.dtype is not self.dense.fake.dtype:
            raise self.refusal()  # in place, which eager refuses
        return MaskedItems(result, self.mask)

    def _is_safe(self, op: str, right: Value) -> bool:
        """Whether elements that the mask does not have leave no trace: the gradient of each is zero
        times that of the operator, which must be finite."""
        needed = torch.is_grad_enabled() and self.dense.fake.requires_grad
        if type(right) is TensorValue:
            needed = needed or (torch.is_grad_enabled() and right.fake.requires_grad)
            return not needed or op.endswith(("add", "sub"))
        number = right.value if isinstance(right, ConstantValue) else None
        if type(number) not in (int, float, bool):
            return False
        return not needed or (math.isfinite(number) and number != 0)  # type: ignore[arg-type]

    def reconstruct(self, cg: Emitter) -> str:
        return cg.call(operator.getitem, self.dense, self.mask)


def load(tx: Trace, tensor: TensorValue, mask: TensorValue) -> Value | None:
    """``tensor[mask]`` for a mask of truth values, if it needs not be known how many it has."""
    sizes, dims = tensor.fake.shape, mask.fake.dim()
    if tx.graph.transforms or not dims or not same_sizes(sizes[:dims], mask.fake.shape):
        return None
    if (exact := tx.graph.known_values(mask.node)) is not None:
        count = ConstantValue(int(exact.sum()))
        places = tx.graph.call_function(torch.nonzero_static, (mask,), {"size": count})
        columns = tx.interp.unpack(tx.graph.call_method("unbind", (places, ConstantValue(1))))
        return tx.graph.call_function(operator.getitem, (tensor, tx.interp.tuple(columns)))
    found = type(tensor) is type(mask) is TensorValue and _is_stored(tx.frames[-1])
    return MaskedItems(tensor, mask) if found else None


def store(tx: Trace, tensor: TensorValue, key: Value, items: Value) -> bool:
    """``tensor[key] = items``, if these are of a mask."""
    if not isinstance(items, MaskedItems):
        return False
    dense, mask = items.dense, items.mask
    x, y = tensor.fake, dense.fake
    if not isinstance(key, TensorValue) or not _same_mask(key, mask):
        raise items.refusal()
    if x.dtype is not y.dtype or x.device != y.device or not same_sizes(x.shape, y.shape):
        raise items.refusal()
    for _ in range(x.dim() - mask.fake.dim()):
        mask = tx.graph.call_method("unsqueeze", (mask, ConstantValue(-1)))  # type: ignore[assignment]
    merged = tx.graph.call_function(torch.where, (mask, dense, tensor))
    tx.graph.call_method("copy_", (tensor, merged))
    return True


def _same_mask(a: TensorValue, b: TensorValue) -> bool:
    """Whether two masks are one, or one comparison that is made twice: a node stands for its tensor
    as it was then."""
    x, y = a.node, b.node
    compared = x.target in COMPARE.values() and x.target is y.target and x.args == y.args
    return x is y or compared


def _is_stored(frame: Frame) -> bool:
    """Whether the items that the current instruction loads go, as they are or through arithmetic,
    to the items of a tensor, and nothing is called meanwhile."""
    code, at = frame.info.instructions, frame.ip
    if code[at].opname != "BINARY_SUBSCR":
        return False
    stack: list[object] = [*frame.stack, _ITEMS]
    for ins in code[at + 1 : at + _NEAR]:
        if ins.opname in ("LOAD_FAST", "LOAD_CONST"):
            stack.append(frame.locals.get(str(ins.argval)) if ins.opname == "LOAD_FAST" else None)
        elif ins.opname == "COPY":
            stack.append(stack[-ins.arg])
        elif ins.opname == "SWAP":
            stack[-1], stack[-ins.arg] = stack[-ins.arg], stack[-1]
        elif ins.opname in ("BINARY_OP", "BINARY_SUBSCR", "COMPARE_OP"):
            right, left = stack.pop(), stack.pop()
            derived = right is _ITEMS or left is _ITEMS
            if derived and ins.opname != "BINARY_OP":
                return False
            stack.append(_ITEMS if derived else None)
        elif ins.opname == "STORE_SUBSCR":
            _key, place, value = stack.pop(), stack.pop(), stack.pop()
            return value is _ITEMS and type(place) is TensorValue and _ITEMS not in stack
        else:
            return False
    return False
