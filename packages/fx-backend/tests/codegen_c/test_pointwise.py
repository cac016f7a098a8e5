"""Pointwise schedules: vector axis, tiles, chunks, masks, layouts."""

from __future__ import annotations

import pytest
import torch
from native_kernels import Body, check, i64, row_major, run
from torchsmith_fx_backend._src.codegen.c import kernel_function
from torchsmith_fx_backend._src.loops.index import (
    Index,
    add,
    const,
    floordiv,
    mod,
    mul,
    var,
)
from torchsmith_fx_backend._src.loops.ir import Kernel, Op


def copy(ranges: list[int], source: Index, dtype: torch.dtype = torch.float32) -> Kernel:
    body = Body()
    body.store(1, row_major(ranges), body.load(0, source, dtype))
    return body.kernel(ranges)


@pytest.mark.parametrize("shape", [(1, 1), (33, 31), (32, 64), (500, 300), (3, 700), (700, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.bfloat16, torch.float64])
def test_transposed_copy(shape: tuple[int, int], dtype: torch.dtype) -> None:
    rows, columns = shape
    kernel = copy([rows, columns], add(var(0), mul(var(1), const(rows))), dtype)
    x = torch.arange(rows * columns).to(dtype)
    check(kernel, [x, torch.zeros_like(x)])


def test_large_transpose_is_tiled() -> None:
    text = kernel_function(copy([256, 256], add(var(0), mul(var(1), const(256)))), "k")
    assert "b0 += 32" in text
    assert "b1 += 32" in text


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0), (0, 2, 1), (2, 0, 1)])
def test_permuted_inputs(order: tuple[int, ...]) -> None:
    ranges = [6, 35, 20]
    body = Body()
    left = body.load(0, row_major(ranges, order))
    right = body.load(1, row_major(ranges))
    body.store(2, row_major(ranges), body.op(Op.ADD, left, right))
    size = 6 * 35 * 20
    check(body.kernel(ranges), [torch.randn(size), torch.randn(size), torch.zeros(size)])


def test_scalar_kernel() -> None:
    body = Body()
    body.store(1, const(0), body.op(Op.EXP, body.load(0, const(0))))
    check(body.kernel([]), [torch.randn(1), torch.zeros(1)])


def test_broadcasts() -> None:
    ranges = [9, 8, 40]
    body = Body()
    total = body.op(Op.ADD, body.load(0, var(2)), body.load(1, var(1)))
    total = body.op(Op.ADD, total, body.load(2, const(0)))
    body.store(3, row_major(ranges), total)
    inputs = [torch.randn(40), torch.randn(8), torch.randn(1), torch.zeros(9 * 8 * 40)]
    check(body.kernel(ranges), inputs)


def test_division_and_modulo_of_axes() -> None:
    """A flattened space over a buffer whose rows are permuted blocks."""
    index = add(
        mul(mod(var(0), const(8)), const(15)),
        mul(floordiv(var(0), const(40)), const(120)),
        mod(floordiv(var(0), const(8)), const(5)),
    )
    body = Body()
    body.store(1, var(0), body.load(0, index))
    check(body.kernel([40 * 6]), [torch.randn(120 * 6 + 200), torch.zeros(240)])


@pytest.mark.parametrize("extent", [7, 300000])
def test_masked_loads_touch_nothing_outside(extent: int) -> None:
    """Padding by two on the left: the pointer arithmetic would leave the buffer."""
    body = Body()
    inside = body.op(Op.GE, body.index(var(0)), body.literal(2, i64))
    value = body.load(0, add(var(0), const(-2)), torch.float32, inside)
    body.store(1, var(0), value)
    check(body.kernel([extent + 2]), [torch.randn(extent), torch.ones(extent + 2)])


@pytest.mark.parametrize("sizes", [(1, 400000), (3, 90000), (300, 900), (0, 5), (5, 0)])
def test_sizes_known_at_launch(sizes: tuple[int, int]) -> None:
    body = Body()
    total = body.op(Op.MUL, body.load(0, row_major(["s0", "s1"])), body.load(1, var(1)))
    body.store(2, row_major(["s0", "s1"]), total)
    kernel = body.kernel(["s0", "s1"], symbols=("s0", "s1"))
    count = sizes[0] * sizes[1]
    check(
        kernel,
        [torch.randn(count), torch.randn(max(sizes[1], 1)), torch.zeros(count)],
        {"s0": sizes[0], "s1": sizes[1]},
    )


def test_in_place_update() -> None:
    body = Body()
    body.store(0, var(0), body.op(Op.TANH, body.load(0, var(0))))
    check(body.kernel([200000]), [torch.randn(200000)])


def test_unaligned_pointers() -> None:
    body = Body()
    body.store(1, var(0), body.op(Op.NEG, body.load(0, var(0))))
    kernel = body.kernel([1000])
    x, y = torch.randn(1003), torch.zeros(1005)
    run(kernel, [x[3:], y[5:]])
    assert torch.equal(y[5:], -x[3:])
    assert torch.equal(y[:5], torch.zeros(5))


def test_origins_become_comments_that_cannot_end_early() -> None:
    text = kernel_function(copy([4], var(0)), "k", ("y = x /* a */ + 1",))
    assert text.startswith("/* y = x /* a * / + 1 */\n")


def test_symbol_names_cannot_clash_with_loop_variables() -> None:
    body = Body()
    body.store(1, var(0), body.op(Op.MUL, body.load(0, var(0)), body.scalar("i0", torch.float32)))
    kernel = body.kernel(["a0"], symbols=("a0", "i0"))
    check(kernel, [torch.randn(9), torch.zeros(9)], {"a0": 9, "i0": 2.5})
