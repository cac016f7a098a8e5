"""What is known of a tensor's values without its data: those of a random draw lie in a range.

``torch.rand(()) < 0.0`` is False whatever is drawn, so a branch on it needs no break. The range of
a tensor follows from the graph: where it was drawn, and what has been computed from it since. It
is asked for at a branch only, so that other draws cost nothing and symbolic numbers that a draw is
compared with are guarded only where that decides something.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from torchsmith_tracer._src.graph.fakes import in_place
from torchsmith_tracer._src.graph.known_values import values
from torchsmith_tracer._src.torch_private import (
    OPERATORS,
    FakeTensor,
    has_symbols,
    map_nodes,
    storage_id,
)
from torchsmith_tracer._src.values.symnum import decide

if TYPE_CHECKING:
    from torchsmith_tracer._src.graph.output import OutputGraph

Number = int | float


@dataclass(frozen=True, slots=True)
class Range:
    """All values are at least ``low`` and at most ``high``; ``below``: less than ``high``."""

    low: Number
    high: Number
    below: bool = False


_UNIT = Range(0, 1, below=True)
_COMPARED = {
    key: name
    for name in ("lt", "le", "gt", "ge", "eq", "ne")
    for key in (name, getattr(operator, name), getattr(torch, name))
}
_NEGATED = {"logical_not", "bitwise_not", torch.logical_not, torch.bitwise_not, operator.invert}
# Operators that pick or place elements, or of truth values combine them.
_SAME = frozenset(
    "clone detach contiguous view reshape squeeze unsqueeze flatten expand to cpu cuda".split()
)
_COMBINED = {"any", "all", torch.any, torch.all}


def truth(graph: OutputGraph, node: fx.Node) -> bool | None:
    """The truth value of a tensor of one element, where its range tells, or all its operands do."""
    if _count(node) != 1:
        return None
    found = known_range(graph, node)
    if found is None:
        exact = values(graph, node, held=True)
        return None if exact is None else bool(exact)
    if found.low == 0 == found.high:
        return False
    return True if found.low > 0 or found.high < 0 else None


def number(graph: OutputGraph, node: fx.Node, *, held: bool = True) -> Number | None:
    """The number in a tensor of one element, where its range has no other; ``held``: see
    ``values``."""
    if _count(node) != 1:
        return None
    found = known_range(graph, node)
    if found is None or found.low != found.high:
        exact = None if found else values(graph, node, held=held)
        return None if exact is None or exact.is_complex() else exact.item()
    dtype = node.meta["example_value"].dtype
    return bool(found.low) if dtype is torch.bool else found.low


# Operators that take tensors of one number for numbers, and those whose first argument is none.
_SIZED = frozenset(
    "pad view reshape expand repeat tile roll narrow unflatten unfold split chunk as_strided "
    "new_zeros new_ones new_empty new_full".split()
)
_MAKING = frozenset("zeros ones empty full rand randn arange".split())
_INDEXED = (operator.getitem, operator.setitem)


def with_numbers(
    graph: OutputGraph, target: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments with numbers in place of tensors whose number is known and taken for a size."""

    def known(node: fx.Node, held: bool = True) -> object:
        found = number(graph, node, held=held)
        return node if type(found) is not int else found

    if target in _INDEXED and isinstance(args[1], list):
        return args, kwargs  # with a tensor in it, it stands for a tuple
    if target in _INDEXED:
        key = args[1] if type(args[1]) is tuple else (args[1],)
        # The tensor itself is an index in the graph; the bounds of a slice are numbers.
        plain = functools.partial(known, held=False)
        find = [plain if isinstance(k, fx.Node) else known for k in key]
        parts = tuple([k if _has_dims(k) else map_nodes(k, f) for k, f in zip(key, find)])
        return (args[0], parts if key is args[1] else parts[0], *args[2:]), kwargs
    name = getattr(target, "__name__", target)
    if isinstance(target, OPERATORS) or not (name in _SIZED or name in _MAKING):
        return args, kwargs
    first = 0 if name in _MAKING else 1
    return args[:first] + map_nodes(args[first:], known), map_nodes(kwargs, known)


def _has_dims(part: object) -> bool:
    """Whether a part of an index is a tensor with dimensions, which the result gets."""
    fake = part.meta["example_value"] if isinstance(part, fx.Node) else None
    return isinstance(fake, torch.Tensor) and fake.dim() > 0


def known_range(graph: OutputGraph, node: fx.Node) -> Range | None:
    """The range of the values of the tensor ``node``, or None."""
    fake = node.meta.get("example_value")
    if not isinstance(fake, FakeTensor) or fake.is_complex() or graph.transforms:
        return None
    constant = fake.constant  # torch itself computes with single numbers
    if constant is not None:
        return Range(constant.item(), constant.item()) if constant.numel() == 1 else None
    target, args = node.target, node.args
    filled = target == "uniform_"
    if node.op not in ("call_function", "call_method") or not _as_made(graph, node, filled):
        return None
    if filled:
        return _uniform(node, fake.dtype)
    drawn = _DRAWS.get(target)
    if drawn is not None:
        return drawn(node, fake.dtype)
    given = args[0] if args else None
    first = given.meta["example_value"] if isinstance(given, fx.Node) else None
    if not isinstance(given, fx.Node) or not isinstance(first, torch.Tensor):
        return None
    op = _COMPARED.get(target)
    if op is not None:
        return _compared(graph, op, node)
    # ``any`` and ``all`` of nothing are not among the values.
    combined = target in _COMBINED and fake.dtype is torch.bool and _count(given)
    if combined or (target in _SAME and fake.dtype is first.dtype):
        return known_range(graph, given)
    if target in _NEGATED and first.dtype is torch.bool:
        found = known_range(graph, given)
        return None if found is None else Range(not found.high, not found.low)
    return None


def _count(node: object) -> int | None:
    """How many elements a tensor has, where that is known."""
    fake = node.meta["example_value"] if isinstance(node, fx.Node) else None
    return fake.numel() if isinstance(fake, torch.Tensor) and not has_symbols(fake) else None


def _as_made(graph: OutputGraph, node: fx.Node, filled: bool) -> bool:
    """Whether nothing writes to the memory of a result but, if ``filled``, the call itself."""
    storage = storage_id(node.meta["example_value"])
    if graph.written.count(storage) > filled:
        return False
    if not filled:
        return True
    if any(user.target is setattr or in_place(user.target) for user in node.users):
        return False  # it may be in other memory now
    inputs = (entry.fake for entry in graph.inputs)
    return not any(isinstance(x, torch.Tensor) and storage_id(x) == storage for x in inputs)


# --- draws -------------------------------------------------------------------------------------


def _unit(node: fx.Node, dtype: torch.dtype) -> Range | None:
    return _UNIT if "out" not in node.kwargs and dtype.is_floating_point else None


def _uniform(node: fx.Node, dtype: torch.dtype) -> Range | None:
    """``x.uniform_(a, b)``: its bounds are rounded, and so is the sum that may reach ``b``."""
    given: dict[str, Any] = dict(zip(("from", "to"), node.args[1:]), **node.kwargs)
    low, high = given.get("from", 0), given.get("to", 1)
    if (low, high) == (0, 1):
        return _UNIT
    if not all(type(bound) in (int, float) for bound in (low, high)) or low == high:
        return None
    return Range(min(low, _rounded(low, dtype)), max(high, _rounded(high, dtype)))


def _integers(node: fx.Node, dtype: torch.dtype) -> Range | None:
    """``torch.randint([low,] high, size)``."""
    bounds = [n for n in node.args if type(n) is int]
    odd = dtype.is_floating_point or dtype is torch.bool
    if odd or not node.kwargs.keys() <= {"dtype", "device"}:
        return None
    low, high = [0, *bounds][-2:] if bounds else (0, 0)
    return Range(low, high - 1) if low < high and node.args[0] == bounds[0] else None


_DRAWS: dict[object, Callable[[fx.Node, torch.dtype], Range | None]] = {
    torch.rand: _unit,
    torch.rand_like: _unit,
    torch.randint: _integers,
}


# --- comparisons -------------------------------------------------------------------------------


def _compared(graph: OutputGraph, op: str, node: fx.Node) -> Range | None:
    """What a comparison with a number gives."""
    tensor, number = node.args if len(node.args) == 2 else (None, None)
    if not isinstance(tensor, fx.Node) or node.kwargs:
        return None
    found = known_range(graph, tensor)
    if found is None:
        return None
    dtype = tensor.meta["example_value"].dtype
    answer: bool | None = None
    if isinstance(number, fx.Node):
        number = number.meta["example_value"]
        if isinstance(number, torch.SymFloat) and dtype.is_floating_point:
            answer = _decided(op, found, number)
    elif type(number) in (int, float):
        answer = _of_number(op, found, number, dtype)  # type: ignore[arg-type]
    return None if answer is None else Range(answer, answer)


def _of_number(op: str, found: Range, number: Number, dtype: torch.dtype) -> bool | None:
    """The same for a number of the program, which the operator may round to the tensor's type."""
    if not dtype.is_floating_point:
        inside = type(number) is int and number == _rounded(number, dtype)
        return _strictly(op, found, number) if inside else None
    if number != number:
        return op == "ne"
    answer = _strictly(op, found, number)
    return answer if _strictly(op, found, _rounded(number, dtype)) is answer else None


def _rounded(number: Number, dtype: torch.dtype) -> Number:
    if dtype.is_floating_point:
        return torch.tensor(number, dtype=torch.float64, device="cpu").to(dtype).item()
    limits = torch.iinfo(dtype)
    return min(max(number, limits.min), limits.max)


def _strictly(op: str, found: Range, number: Number) -> bool | None:
    answer = _decided(op, found, number)
    if answer is not None:
        return answer
    if number < found.low or number > found.high:
        outcomes = {"eq": False, "ne": True}
        less = found.high < number
        outcomes |= {"lt": less, "le": less, "gt": not less, "ge": not less}
        return outcomes[op]
    if found.low == found.high == number and op in ("eq", "ne"):
        return op == "eq"
    return None


def _decided(op: str, found: Range, number: Any) -> bool | None:
    """What follows from comparisons that hold for the rounded number, too: with the bounds
    themselves, which every type has."""
    if op in ("ge", "gt"):
        opposite = _decided("lt" if op == "ge" else "le", found, number)
        return None if opposite is None else not opposite
    if op == "lt" and decide(number <= found.low):
        return False
    if (op == "le" or found.below) and decide(number >= found.high):
        return {"lt": True, "le": True, "eq": False, "ne": True}[op]
    return None
