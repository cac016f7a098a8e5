"""Random legal kernels: compiled C against the reference evaluator."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native_kernels import Body, check, i64, row_major
from torchsmith_fx_backend._src.loops.index import (
    Index,
    add,
    const,
    evaluate,
    floordiv,
    mod,
    mul,
    var,
)
from torchsmith_fx_backend._src.loops.ir import BufferArg, Kernel, Op, ReduceOp, Store
from torchsmith_fx_backend._src.loops.verify import full_values

SIZES = st.sampled_from([1, 2, 3, 4, 6, 8, 12, 17, 40, 64, 100])
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16, i64])
# Smooth and bounded, so that a last-place difference stays one.
SMOOTH = [Op.TANH, Op.SIGMOID, Op.SIN, Op.COS, Op.ERF, Op.NEG, Op.ABS]
BINARY = [Op.ADD, Op.SUB, Op.MUL, Op.MINIMUM, Op.MAXIMUM]
MAX_POINTS = 60_000


@st.composite
def kernels(draw: st.DrawFn) -> tuple[Kernel, list[torch.Tensor], dict[str, int]]:
    ranges = draw(st.lists(SIZES, min_size=1, max_size=4))
    while math.prod(ranges) > MAX_POINTS:
        ranges[ranges.index(max(ranges))] = 2
    reduced = draw(st.integers(0, len(ranges)))
    start = len(ranges) - reduced
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    symbolic: list[int | str] = list(ranges)
    symbols: dict[str, int] = {}
    for axis in draw(st.sets(st.integers(0, len(ranges) - 1), max_size=2)):
        symbolic[axis] = f"s{axis}"
        symbols[f"s{axis}"] = ranges[axis]
    body = Body()
    tensors: list[torch.Tensor] = []
    floats: list[int] = []  # float32 values
    raw: list[int] = []  # float32 values that no arithmetic has touched

    def place(axes: list[int]) -> Index:
        """An offset over ``axes``, in a random order, sometimes with a divided axis."""
        order = draw(st.permutations(axes))
        total: Index = const(draw(st.sampled_from([0, 0, 3])))
        step: Index = const(1)
        for axis in reversed(order):
            part: Index = var(axis)
            kind = draw(st.sampled_from(["plain", "plain", "plain", "div", "mod", "swap"]))
            divisor = const(draw(st.sampled_from([2, 3, 4])))
            if kind == "div":
                part = floordiv(part, divisor)
            elif kind == "mod":
                part = mod(part, divisor)
            elif kind == "swap":
                part = add(mul(mod(part, divisor), const(ranges[axis])), floordiv(part, divisor))
            total = add(total, mul(part, step))
            step = mul(step, const(ranges[axis] * (4 if kind == "swap" else 1)))
        return total

    for _ in range(draw(st.integers(1, 3))):
        axes = sorted(draw(st.sets(st.integers(0, len(ranges) - 1))))
        dtype = draw(DTYPES)
        index = place(axes)
        size = _largest(index, ranges) + 1
        if dtype is i64:
            tensor = torch.randint(-9, 9, (size,), generator=generator)
        else:
            tensor = torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)
        mask = None
        if draw(st.booleans()):
            axis = draw(st.integers(0, len(ranges) - 1))
            limit = body.literal(draw(st.integers(0, 12)), i64)
            mask = body.op(Op.LT, body.index(var(axis)), limit)
        value = body.load(len(tensors), index, dtype, mask)
        tensors.append(tensor)
        value = value if dtype is torch.float32 else body.cast(value, torch.float32)
        floats.append(value)
        raw.append(value)
    outputs: list[int] = []
    for _ in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(["unary", "binary", "where", "reduce", "literal", "index"]))
        pick = st.sampled_from(floats)
        if kind == "unary":
            floats.append(body.op(draw(st.sampled_from(SMOOTH)), draw(pick)))
        elif kind == "binary":
            value = body.op(draw(st.sampled_from(BINARY)), draw(pick), draw(pick))
            floats.append(body.op(Op.TANH, value))
        elif kind == "where":
            condition = body.op(Op.GT, draw(st.sampled_from(raw)), body.literal(0.25))
            floats.append(body.op(Op.WHERE, condition, draw(pick), draw(pick)))
        elif kind == "literal":
            floats.append(body.literal(draw(st.sampled_from([0.0, 1.0, -0.5, 3.25]))))
        elif kind == "index":
            axis = draw(st.integers(0, len(ranges) - 1))
            floats.append(body.cast(body.index(var(axis)), torch.float32))
            raw.append(floats[-1])
        elif reduced:
            op = draw(st.sampled_from([*ReduceOp]))
            if op in (ReduceOp.ANY, ReduceOp.ALL):
                flag = body.op(Op.GT, draw(st.sampled_from(raw)), body.literal(0.5))
                floats.append(body.cast(body.reduce(op, flag), torch.float32))
            elif op in (ReduceOp.ARGMAX, ReduceOp.ARGMIN):
                outputs.append(body.reduce(op, draw(st.sampled_from(raw))))
            else:
                mean = 1.0 / math.prod(ranges[start:]) if op is ReduceOp.SUM else 1.0
                operand = draw(pick)
                if op is ReduceOp.PROD:  # near one, so that long products stay finite
                    small = body.op(Op.MUL, body.op(Op.TANH, operand), body.literal(1e-3))
                    operand = body.op(Op.ADD, small, body.literal(1.0))
                total = body.op(Op.MUL, body.reduce(op, operand), body.literal(mean))
                floats.append(body.op(Op.TANH, total))
    outputs.append(floats[-1])
    outputs.append(draw(st.sampled_from(floats)))
    probe = Kernel(
        tuple(const(r) for r in ranges), start, tuple(body.nodes),
        tuple(BufferArg(t.dtype, True, False) for t in tensors), (),
    )  # fmt: skip
    full = full_values(probe)
    for value in outputs:
        axes = list(range(len(ranges) if full[value] else start))
        out_dtype = body.dtypes[value]
        if out_dtype is torch.float32 and draw(st.booleans()):
            out_dtype = torch.bfloat16
        stored = value if out_dtype is body.dtypes[value] else body.cast(value, out_dtype)
        body.store(len(tensors), row_major(symbolic, axes), stored)
        tensors.append(torch.zeros(max(1, math.prod(ranges[a] for a in axes)), dtype=out_dtype))
    return body.kernel(symbolic, start, sorted(symbols)), tensors, symbols


def _largest(index: Index, ranges: list[int]) -> int:
    grid = torch.meshgrid(*(torch.arange(r) for r in ranges), indexing="ij")
    return int(torch.as_tensor(evaluate(index, grid, {})).max())


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(kernels())
def test_random_kernels(case: tuple[Kernel, list[torch.Tensor], dict[str, int]]) -> None:
    kernel, tensors, symbols = case
    check(kernel, tensors, symbols, rtol=2e-5, atol=2e-5)


def test_the_check_sees_a_wrong_store() -> None:
    """The comparison itself: a kernel whose output is off by one element must not pass."""
    body = Body()
    body.store(1, var(0), body.load(0, var(0)))
    kernel = body.kernel([8])
    shifted = Kernel(
        kernel.ranges, 1, (kernel.body[0], Store(1, mod(add(var(0), const(1)), const(8)), 0)),
        kernel.args, (),
    )  # fmt: skip
    x = torch.arange(8.0)
    (_, right) = check(kernel, [x, torch.zeros(8)])
    (_, wrong) = check(shifted, [x, torch.zeros(8)])
    with pytest.raises(AssertionError):
        torch.testing.assert_close(right, wrong)
