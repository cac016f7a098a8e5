"""The Triton kernels of gated activations: one tile per program, both gradients in one pass."""

from __future__ import annotations

import triton.language as tl

from torchsmith_kernels._src.jit import jit
from torchsmith_kernels._src.pointwise.kernel import activation, at, place, wide


@jit
def forward_kernel(
    gate: tl.tensor,
    up: tl.tensor,
    y: tl.tensor,
    rows: tl.tensor,
    width: tl.tensor,
    gate_stride: tl.tensor,
    up_stride: tl.tensor,
    FLAT: tl.constexpr,
    HEIGHT: tl.constexpr,
    COLUMNS: tl.constexpr,
    KIND: tl.constexpr,
) -> None:
    """``y = activation(gate) * up``."""
    bits: tl.constexpr = gate.dtype.element_ty.primitive_bitwidth
    row, column, down, along, keep = place(rows, width, FLAT, HEIGHT, COLUMNS)
    g = wide(tl.load(at(gate, gate_stride, row, column, down, along, HEIGHT), keep))
    u = wide(tl.load(at(up, up_stride, row, column, down, along, HEIGHT), keep))
    value, _ = activation(g, KIND, bits == 16)
    result = (value * u).to(y.dtype.element_ty)
    tl.store(at(y, width, row, column, down, along, HEIGHT), result, keep)


@jit
def backward_kernel(
    grad: tl.tensor,
    gate: tl.tensor,
    up: tl.tensor,
    dgate: tl.tensor,
    dup: tl.tensor,
    rows: tl.tensor,
    width: tl.tensor,
    grad_stride: tl.tensor,
    gate_stride: tl.tensor,
    up_stride: tl.tensor,
    FLAT: tl.constexpr,
    HEIGHT: tl.constexpr,
    COLUMNS: tl.constexpr,
    KIND: tl.constexpr,
) -> None:
    """``dgate = grad * up * activation'(gate)`` and ``dup = grad * activation(gate)``."""
    bits: tl.constexpr = gate.dtype.element_ty.primitive_bitwidth
    row, column, down, along, keep = place(rows, width, FLAT, HEIGHT, COLUMNS)
    dy = wide(tl.load(at(grad, grad_stride, row, column, down, along, HEIGHT), keep))
    g = wide(tl.load(at(gate, gate_stride, row, column, down, along, HEIGHT), keep))
    u = wide(tl.load(at(up, up_stride, row, column, down, along, HEIGHT), keep))
    value, slope = activation(g, KIND, bits == 16)
    first = (dy * u * slope).to(dgate.dtype.element_ty)
    second = (dy * value).to(dup.dtype.element_ty)
    tl.store(at(dgate, width, row, column, down, along, HEIGHT), first, keep)
    tl.store(at(dup, width, row, column, down, along, HEIGHT), second, keep)
