"""How much arithmetic kernels and the library's own calls are."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import fx
from torchsmith_guards import hint_of

from torchsmith_fx_backend._src.loops.ir import Compute, Kernel, Op, Reduce, Scan
from torchsmith_fx_backend._src.loops.verify import full_values

aten = torch.ops.aten

# What is no arithmetic: it moves, chooses or compares.
_FREE = frozenset({Op.CAST, Op.WHERE, Op.ISNAN, Op.ISINF, Op.AND, Op.OR, Op.XOR, Op.NOT})
_FREE |= {Op.EQ, Op.NE, Op.LT, Op.LE, Op.GT, Op.GE, Op.SHL, Op.SHR}


def kernel_arithmetic(kernel: Kernel) -> tuple[int, int]:
    """Arithmetic operations at each point of a kernel, and those at each outer point.

    A function such as ``exp`` counts as one.
    """
    # Without reductions, every value is computed at each point.
    reduces = kernel.reduce_from < len(kernel.ranges)
    full = full_values(kernel) if reduces else range(len(kernel.body))
    inner = outer = 0
    for number, node in enumerate(kernel.body):
        if isinstance(node, Compute) and node.op not in _FREE:
            count = 2 if node.op is Op.FMA else 1
            inner, outer = (inner + count, outer) if number in full else (inner, outer + count)
        elif isinstance(node, Reduce | Scan):
            inner += 1
    return inner, outer


def _shape(node: object) -> list[int]:
    if not isinstance(node, fx.Node):
        return []
    return [int(hint_of(size) or 0) for size in node.meta["val"].shape]


def call_arithmetic(node: fx.Node) -> int | None:
    """Arithmetic of a call of the library's; None for calls of which that is not known here."""
    count = _FLOPS.get(node.target)
    return None if count is None else count(node)


def _product(first: int, second: int) -> Callable[[fx.Node], int]:
    """Of matrices that are arguments at these positions."""

    def count(node: fx.Node) -> int:
        a, b = _shape(node.args[first]), _shape(node.args[second])
        if len(a) == 1 or len(b) == 1:
            return 2 * max(math.prod(a), math.prod(b))
        return 2 * math.prod(a) * b[-1]

    return count


def _convolution(node: fx.Node) -> int:
    weight = _shape(node.args[1])
    transposed = bool(node.args[6])
    places = math.prod(_shape(node.args[0] if transposed else node))
    return 2 * places * math.prod(weight[1:])


def _attention(node: fx.Node) -> int:
    query, key, value = (_shape(node.args[i]) for i in range(3))
    return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


_FLOPS: Mapping[object, Callable[[fx.Node], int]] = {
    aten.mm.default: _product(0, 1),
    aten.bmm.default: _product(0, 1),
    aten.mv.default: _product(0, 1),
    aten.dot.default: _product(0, 1),
    aten.matmul.default: _product(0, 1),
    aten.addmm.default: _product(1, 2),
    aten.baddbmm.default: _product(1, 2),
    aten.linear.default: lambda n: 2 * math.prod(_shape(n.args[0])) * _shape(n.args[1])[0],
    aten.convolution.default: _convolution,
    aten.scaled_dot_product_attention.default: _attention,
}
