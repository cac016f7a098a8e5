"""Values of nodes that are computed from constants alone, at compile time and on the CPU.

Only operators in ``_RULES`` count: their results are exact, hence equal on every device. A value is
held with one element along each dimension in which it is known to repeat, so that a mask of
[batch, 1, query, key] takes at most query x key elements.

Attributes of the module are no constants: a caller may write them between two calls, and a graph
from the cache runs with attributes of other values.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torchsmith_fx_backend._src.capture.torch_private import OpOverload, without_active_modes

aten = torch.ops.aten

LARGEST = 2**24  # elements of one value
TOTAL = 2**26  # elements of all values of a graph
_COMPARED = 2**12  # up to this many elements, looking for repetition is cheaper than missing it


@dataclass(frozen=True, slots=True)
class Constant:
    """The values of a tensor.

    Attributes:
        kept: a tensor of as many dimensions, on the CPU; its size is 1 where the values repeat.
        shape: the sizes of the tensor itself.
    """

    kept: torch.Tensor
    shape: tuple[int, ...]

    def along(self, dims: Iterable[int]) -> torch.Tensor:
        """``kept`` in full size along ``dims``."""
        size = list(self.kept.shape)
        for dim in dims:
            size[dim] = self.shape[dim]
        return self.kept.expand(size)

    def repeats(self, dim: int) -> bool:
        """Whether only one of several equal parts along ``dim`` is kept."""
        return self.kept.shape[dim] != self.shape[dim]


Values = Mapping[fx.Node, Constant]
Rule = Callable[[fx.Node, Values], torch.Tensor]


class _NotConstantError(Exception):
    """A value is not constant, not exact on every device, or too large."""


class Constants:
    """Evaluates nodes of one graph, each at most once."""

    def __init__(self) -> None:
        self._known: dict[fx.Node, Constant] = {}
        self._refused: set[fx.Node] = set()
        self._spent = 0

    def of(self, node: fx.Node) -> Constant | None:
        """The values of ``node``; None unless they are constant and cheap to get."""
        if node in self._known:
            return self._known[node]
        try:
            needed = self._needed(node)
            with without_active_modes(), torch.no_grad():
                for each in needed:
                    self._known[each] = self._evaluate(each)
        except _NotConstantError:
            self._refused.add(node)
            return None
        return self._known[node]

    def _needed(self, node: fx.Node) -> list[fx.Node]:
        """What has to be evaluated for ``node``, in an order in which it can be."""
        found: set[fx.Node] = set()
        stack = [node]
        while stack:
            current = stack.pop()
            if current in found or current in self._known:
                continue
            if current in self._refused or not _has_rule(current):
                raise _NotConstantError
            found.add(current)
            if current.target not in _FILLS:
                stack.extend(current.all_input_nodes)
        return sorted(found)

    def _evaluate(self, node: fx.Node) -> Constant:
        value = node.meta["val"]
        try:
            kept = _RULES[node.target](node, self._known)
        except (IndexError, RuntimeError) as error:
            # The program fails here too. It shall do so when it runs, as in eager.
            raise _NotConstantError from error
        if kept.dtype != value.dtype:
            raise _NotConstantError
        kept = _collapse(kept)
        self._spent += kept.numel()
        if self._spent > TOTAL:
            raise _NotConstantError
        return Constant(kept, tuple(value.shape))


def _has_rule(node: fx.Node) -> bool:
    """Whether a rule covers this call, and its sizes are known and not zero."""
    value = node.meta.get("val")
    return (
        node.op == "call_function"
        and node.target in _RULES
        and isinstance(value, torch.Tensor)
        and all(type(n) is int and n > 0 for n in value.shape)
    )


def _collapse(kept: torch.Tensor) -> torch.Tensor:
    """``kept`` less repetition that is cheap to see."""
    if kept.numel() == 1:
        return kept
    one = (0,) * kept.dim()
    if kept.dtype is torch.bool:
        uniform = bool(kept.all()) if kept[one] else not kept.any()
    else:
        uniform = kept.numel() <= _COMPARED and bool((kept == kept[one]).all())
    return kept[one].reshape([1] * kept.dim()) if uniform else kept


# ------------------------------------------------------------------------------------- helpers


def _operand(node: fx.Node, number: int, values: Values) -> Constant:
    source = node.args[number]
    if not isinstance(source, fx.Node):
        raise _NotConstantError
    return values[source]


def _argument(node: fx.Node, number: int, default: Any) -> Any:
    return node.args[number] if len(node.args) > number else default


def _check_size(shape: Iterable[int]) -> None:
    if math.prod(shape) > LARGEST:
        raise _NotConstantError


def _joint_sizes(tensors: list[torch.Tensor]) -> list[int]:
    """The sizes after broadcasting, last dimension first."""
    shapes = (reversed(tensor.shape) for tensor in tensors)
    return [max(sizes) for sizes in itertools.zip_longest(*shapes, fillvalue=1)]


def _ones(count: int) -> list[int]:
    return [1] * count


# --------------------------------------------------------------------------------------- rules


def _fill(number: int | None = None, *, value: int = 0) -> Rule:
    """One value everywhere: the argument at ``number``, or ``value``."""

    def rule(node: fx.Node, values: Values) -> torch.Tensor:
        result = node.meta["val"]
        filled: Any = value if number is None else node.args[number]
        if type(filled) not in (bool, int, float):
            raise _NotConstantError
        return torch.full(_ones(result.dim()), filled, dtype=result.dtype, device="cpu")

    return rule


def _arange(node: fx.Node, values: Values) -> torch.Tensor:
    result = node.meta["val"]
    if not all(type(arg) is int for arg in node.args):
        raise _NotConstantError
    _check_size(result.shape)
    bounds: Any = node.args
    return torch.arange(*bounds, dtype=result.dtype, device="cpu")


def _cast(node: fx.Node, values: Values) -> torch.Tensor:
    kept, dtype = _operand(node, 0, values).kept, node.meta["val"].dtype
    if kept.dtype.is_floating_point and not (dtype.is_floating_point or dtype is torch.bool):
        raise _NotConstantError  # devices differ in what they make of infinities
    return kept.to(dtype)


def _pointwise(node: fx.Node, values: Values) -> torch.Tensor:
    operands = [values[each].kept for each in node.all_input_nodes]
    _check_size(_joint_sizes(operands))
    target: Any = node.target
    args: Any = fx.node.map_arg(node.args, lambda each: values[each].kept)
    kwargs: Any = fx.node.map_arg(node.kwargs, lambda each: values[each].kept)
    return target(*args, **kwargs)  # type: ignore[no-any-return]


def _arithmetic(node: fx.Node, values: Values) -> torch.Tensor:
    scaled = "alpha" in node.kwargs or len(node.args) > 2
    if scaled and node.meta["val"].dtype.is_floating_point:
        raise _NotConstantError  # with alpha, devices may round once or twice
    return _pointwise(node, values)


def _integral(node: fx.Node, values: Values) -> torch.Tensor:
    if node.meta["val"].dtype.is_floating_point:
        raise _NotConstantError
    return _pointwise(node, values)


def _axes(node: fx.Node, values: Values) -> torch.Tensor:
    """Transposition and new dimensions do to the kept elements what they do to all."""
    target: Any = node.target
    return target(_operand(node, 0, values).kept, *node.args[1:])  # type: ignore[no-any-return]


def _expand(node: fx.Node, values: Values) -> torch.Tensor:
    kept = _operand(node, 0, values).kept
    return kept.reshape(_ones(node.meta["val"].dim() - kept.dim()) + list(kept.shape))


def _squeeze(node: fx.Node, values: Values) -> torch.Tensor:
    kept = _operand(node, 0, values).kept
    dim: Any = node.args[1]
    return kept if node.meta["val"].dim() == kept.dim() else kept.squeeze(dim)


def _slice(node: fx.Node, values: Values) -> torch.Tensor:
    operand = _operand(node, 0, values)
    dim = _argument(node, 1, 0)
    if operand.repeats(dim):
        return operand.kept
    return aten.slice.Tensor(operand.kept, *node.args[1:])  # type: ignore[no-any-return]


def _select(node: fx.Node, values: Values) -> torch.Tensor:
    operand = _operand(node, 0, values)
    dim: Any = node.args[1]
    index: Any = 0 if operand.repeats(dim) else node.args[2]
    return operand.kept.select(dim, index)


def _cumsum(node: fx.Node, values: Values) -> torch.Tensor:
    operand = _operand(node, 0, values)
    dim: Any = node.args[1]
    if operand.kept.dim() == 0 or node.meta["val"].dtype.is_floating_point:
        raise _NotConstantError  # the order of a sum of floats depends on the device
    whole = operand.along([dim])
    _check_size(whole.shape)
    return whole.cumsum(dim, dtype=node.meta["val"].dtype)


def _cat(node: fx.Node, values: Values) -> torch.Tensor:
    tensors: Any = node.args[0]
    dim = _argument(node, 1, 0)
    parts = [values[each].along([dim]) for each in tensors]
    size = [max(sizes) for sizes in zip(*(part.shape for part in parts), strict=True)]
    _check_size(node.meta["val"].shape)
    for number, part in enumerate(parts):
        size[dim] = part.shape[dim]
        parts[number] = part.expand(size)
    return torch.cat(parts, dim)


def _index(node: fx.Node, values: Values) -> torch.Tensor:
    """Integer indices of leading dimensions. Where the tensor repeats, they do not matter."""
    operand = _operand(node, 0, values)
    nodes: Any = node.args[1]
    if any(each is None for each in nodes):
        raise _NotConstantError
    indices = [values[each].kept for each in nodes]
    for dim, index in enumerate(indices):
        length = operand.shape[dim]
        if index.dtype not in (torch.int64, torch.int32):
            raise _NotConstantError
        if int(index.min()) < -length or int(index.max()) >= length:
            raise _NotConstantError
        if operand.repeats(dim):
            indices[dim] = torch.zeros(_ones(index.dim()), dtype=torch.int64, device="cpu")
    _check_size((*_joint_sizes(indices), *operand.kept.shape[len(indices) :]))
    return operand.kept[tuple(indices)]


def _reshape(node: fx.Node, values: Values) -> torch.Tensor:
    operand, shape = _operand(node, 0, values), node.meta["val"].shape
    if operand.kept.numel() == 1:
        return operand.kept.reshape(_ones(len(shape)))
    _check_size(shape)
    return operand.kept.expand(operand.shape).reshape(shape)


_FILLS: dict[Any, Rule] = {  # their tensor operands give sizes only
    aten.full.default: _fill(1),
    aten.full_like.default: _fill(1),
    aten.new_full.default: _fill(2),
    aten.scalar_tensor.default: _fill(0),
    aten.zeros.default: _fill(value=0),
    aten.zeros_like.default: _fill(value=0),
    aten.new_zeros.default: _fill(value=0),
    aten.ones.default: _fill(value=1),
    aten.ones_like.default: _fill(value=1),
    aten.new_ones.default: _fill(value=1),
}


def _each(rule: Rule, *targets: OpOverload) -> dict[Any, Rule]:
    return dict.fromkeys(targets, rule)


_RULES: dict[Any, Rule] = {
    **_FILLS,
    **_each(_arange, aten.arange.start_step, aten.arange.start, aten.arange.default),
    **_each(
        lambda node, values: _operand(node, 0, values).kept,
        *(aten.clone.default, aten.detach.default, aten.alias.default),
    ),
    **_each(_cast, aten._to_copy.default),
    **_each(_arithmetic, aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar),
    **_each(_arithmetic, aten.rsub.Tensor, aten.rsub.Scalar),
    **_each(_integral, aten.floor_divide.default, aten.remainder.Tensor, aten.remainder.Scalar),
    **_each(_integral, aten.div.Tensor_mode, aten.div.Scalar_mode),
    **_each(
        _pointwise,
        *(aten.mul.Tensor, aten.mul.Scalar, aten.neg.default, aten.abs.default),
        *(aten.minimum.default, aten.maximum.default, aten.where.self),
        *(aten.masked_fill.Scalar, aten.masked_fill.Tensor),
        *(aten.eq.Tensor, aten.eq.Scalar, aten.ne.Tensor, aten.ne.Scalar),
        *(aten.lt.Tensor, aten.lt.Scalar, aten.le.Tensor, aten.le.Scalar),
        *(aten.gt.Tensor, aten.gt.Scalar, aten.ge.Tensor, aten.ge.Scalar),
        *(aten.logical_and.default, aten.logical_or.default, aten.logical_xor.default),
        *(aten.logical_not.default, aten.bitwise_not.default),
        *(aten.bitwise_and.Tensor, aten.bitwise_and.Scalar, aten.bitwise_or.Tensor),
        *(aten.bitwise_or.Scalar, aten.bitwise_xor.Tensor, aten.bitwise_xor.Scalar),
    ),
    **_each(
        _axes, aten.unsqueeze.default, aten.transpose.int, aten.permute.default, aten.t.default
    ),
    **_each(_expand, aten.expand.default),
    **_each(_squeeze, aten.squeeze.dim),
    **_each(_slice, aten.slice.Tensor),
    **_each(_select, aten.select.int),
    **_each(_cumsum, aten.cumsum.default),
    **_each(_cat, aten.cat.default),
    **_each(_index, aten.index.Tensor),
    **_each(_reshape, aten.view.default, aten._unsafe_view.default, aten.reshape.default),
}
