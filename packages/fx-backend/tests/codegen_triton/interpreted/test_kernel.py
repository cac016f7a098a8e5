"""Printed kernels against the reference evaluator: every schedule, mask and index form."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from samples import REDUCTION_CONFIGS, Body, check, f32, f64, i64, row_major
from torchsmith_fx_backend._src.codegen.triton.config import Config, Schedule, choose
from torchsmith_fx_backend._src.loops.index import (
    Sym,
    add,
    const,
    floordiv,
    mod,
    mul,
    sub,
    var,
)
from torchsmith_fx_backend._src.loops.ir import Kernel, Op, ReduceOp

schedules = pytest.mark.parametrize("schedule", list(REDUCTION_CONFIGS))
widths = pytest.mark.parametrize("wide", [False, True], ids=["int32", "int64"])

VALUE_REDUCTIONS = [ReduceOp.SUM, ReduceOp.PROD, ReduceOp.MAX, ReduceOp.MIN]
ARG_REDUCTIONS = [ReduceOp.ARGMAX, ReduceOp.ARGMIN]


def reduction(op: ReduceOp, dtype: torch.dtype, rows: int, cols: int) -> Kernel:
    body = Body()
    value = body.load(0, row_major([rows, cols]), dtype)
    body.store(1, var(0), body.reduce(op, value))
    return body.kernel([rows, cols], 1)


# -- pointwise -----------------------------------------------------------------------------------


@widths
@pytest.mark.parametrize("shape", [(1,), (7,), (1000,), (3, 5), (2, 1, 9), (1, 1), ()], ids=str)
def test_pointwise_shapes(shape: tuple[int, ...], wide: bool, tmp_path: Path) -> None:
    body = Body()
    here = row_major(shape)
    body.store(1, here, body.op(Op.EXP, body.load(0, here)))
    n = math.prod(shape)
    check(body.kernel(shape), [torch.randn(n), torch.zeros(n)], tmp_path, wide=wide)


def test_low_precision_goes_through_float32(tmp_path: Path) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        body = Body()
        x = body.cast(body.load(0, var(0), dtype), f32)
        y = body.cast(body.load(1, var(0), dtype), f32)
        body.store(2, var(0), body.cast(body.op(Op.ADD, body.op(Op.MUL, x, y), x), dtype))
        inputs = [
            torch.randn(300).to(dtype),
            torch.randn(300).to(dtype),
            torch.zeros(300, dtype=dtype),
        ]
        check(body.kernel([300]), inputs, tmp_path)


def test_broadcast_strided_and_flipped_loads(tmp_path: Path) -> None:
    body = Body()
    bias = body.load(0, var(1))
    scalar = body.load(1, const(2))
    column = body.load(2, mul(const(4), var(0)))
    flipped = body.load(3, sub(const(29), row_major([5, 6])))
    total = body.op(Op.ADD, body.op(Op.ADD, bias, scalar), body.op(Op.MUL, column, flipped))
    body.store(4, row_major([5, 6]), total)
    tensors = [torch.randn(6), torch.randn(3), torch.randn(20), torch.randn(30), torch.zeros(30)]
    check(body.kernel([5, 6]), tensors, tmp_path)


def test_floordiv_and_mod_indices(tmp_path: Path) -> None:
    # repeat_interleave of rows and a wrap-around read, as views of views produce.
    body = Body()
    flat = row_major([4, 10])
    a = body.load(0, floordiv(flat, const(3)))
    b = body.load(1, mod(flat, const(7)))
    body.store(2, flat, body.op(Op.ADD, a, b))
    check(body.kernel([4, 10]), [torch.randn(14), torch.randn(7), torch.zeros(40)], tmp_path)


@widths
def test_index_values(wide: bool, tmp_path: Path) -> None:
    body = Body()
    position = body.index(add(mul(const(3), var(0)), var(1)))
    fixed = body.index(const(5))
    body.store(0, row_major([4, 6]), body.op(Op.ADD, position, fixed))
    check(body.kernel([4, 6]), [torch.zeros(24, dtype=i64)], tmp_path, wide=wide)


def test_masked_load_reads_only_where_true(tmp_path: Path) -> None:
    # A padded row: the load index is out of range exactly where the mask is false.
    body = Body()
    keep = body.op(Op.LT, body.index(var(1)), body.literal(3, i64))
    value = body.load(0, add(mul(const(3), var(0)), var(1)), mask=keep)
    one = body.load(1, const(0), mask=keep)
    body.store(2, row_major([4, 8]), body.op(Op.ADD, value, one))
    check(body.kernel([4, 8]), [torch.randn(12), torch.ones(1), torch.full((32,), 9.0)], tmp_path)


def test_in_place_and_two_outputs(tmp_path: Path) -> None:
    body = Body()
    x = body.load(0, var(0))
    body.store(0, var(0), body.op(Op.MUL, x, x))
    body.store(1, var(0), body.op(Op.NEG, x))
    check(body.kernel([50]), [torch.randn(50), torch.zeros(50)], tmp_path)


def test_store_of_a_constant(tmp_path: Path) -> None:
    body = Body()
    body.store(0, row_major([3, 4]), body.literal(2.5))
    check(body.kernel([3, 4]), [torch.zeros(12)], tmp_path)


@pytest.mark.parametrize("rest", [1, 3])
def test_transpose_tile(rest: int, tmp_path: Path) -> None:
    shape = (rest, 20, 33)
    body = Body()
    # Reads [rest, 33, 20] transposed, adds a row vector and a value per matrix.
    transposed = body.load(0, add(mul(const(660), var(0)), mul(const(20), var(2)), var(1)))
    row = body.load(1, var(2))
    matrix = body.load(2, var(0))
    total = body.op(Op.ADD, body.op(Op.ADD, transposed, row), matrix)
    body.store(3, row_major(shape), total)
    kernel = body.kernel(shape)
    assert choose(kernel).schedule is Schedule.TILE
    tensors = [torch.randn(rest * 660), torch.randn(33), torch.randn(rest), torch.zeros(rest * 660)]
    for config in (None, Config(Schedule.TILE, 16, 8, 1)):
        check(kernel, tensors, tmp_path, config=config)


@widths
def test_dynamic_pointwise(wide: bool, tmp_path: Path) -> None:
    body = Body()
    here = add(mul(Sym("s0"), var(0)), var(1))
    position = body.cast(body.index(here), f32)
    body.store(1, here, body.op(Op.ADD, body.load(0, here), position))
    kernel = body.kernel([4, "s0"], symbols=["s0"])
    for size in (1, 2, 17, 300):
        check(
            kernel,
            [torch.randn(4 * size), torch.zeros(4 * size)],
            tmp_path,
            symbols={"s0": size},
            wide=wide,
        )


def test_dynamic_tile(tmp_path: Path) -> None:
    body = Body()
    source = add(mul(Sym("s0"), var(1)), var(0))
    body.store(1, add(mul(Sym("s1"), var(0)), var(1)), body.load(0, source))
    kernel = body.kernel(["s0", "s1"], symbols=["s0", "s1"])
    config = Config(Schedule.TILE, 16, 16, 0)
    for s0, s1 in ((9, 21), (32, 16)):
        check(
            kernel,
            [torch.randn(s0 * s1), torch.zeros(s0 * s1)],
            tmp_path,
            symbols={"s0": s0, "s1": s1},
            config=config,
        )


# -- reductions ----------------------------------------------------------------------------------


@widths
@schedules
@pytest.mark.parametrize("op", VALUE_REDUCTIONS + ARG_REDUCTIONS, ids=lambda op: op.value)
@pytest.mark.parametrize("cols", [1, 12, 64, 50])
def test_reductions(op: ReduceOp, schedule: str, cols: int, wide: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    out = torch.zeros(3, dtype=i64 if op in ARG_REDUCTIONS else f32)
    check(
        reduction(op, f32, 3, cols),
        [torch.randn(3 * cols), out],
        tmp_path,
        config=REDUCTION_CONFIGS[schedule],
        wide=wide,
    )


@schedules
@pytest.mark.parametrize("op", VALUE_REDUCTIONS + ARG_REDUCTIONS, ids=lambda op: op.value)
def test_reductions_of_nan_and_infinity(op: ReduceOp, schedule: str, tmp_path: Path) -> None:
    x = torch.randn(6, 50)
    x[0, 7], x[0, 9] = math.nan, math.nan
    x[1, 30] = math.inf
    x[2, 49] = -math.inf
    x[3] = -math.inf
    x[4] = math.inf
    x[5, 3], x[5, 4] = math.inf, math.nan
    out = torch.zeros(6, dtype=i64 if op in ARG_REDUCTIONS else f32)
    check(
        reduction(op, f32, 6, 50),
        [x.reshape(-1), out],
        tmp_path,
        config=REDUCTION_CONFIGS[schedule],
    )


@schedules
@pytest.mark.parametrize("op", ARG_REDUCTIONS, ids=lambda op: op.value)
def test_arg_reductions_take_the_first_of_equals(
    op: ReduceOp, schedule: str, tmp_path: Path
) -> None:
    x = torch.randint(0, 3, (5, 50)).float()
    x[0] = 1.0
    check(
        reduction(op, f32, 5, 50),
        [x.reshape(-1), torch.zeros(5, dtype=i64)],
        tmp_path,
        config=REDUCTION_CONFIGS[schedule],
    )


@schedules
@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, i64, torch.uint8, f64], ids=str)
@pytest.mark.parametrize("op", VALUE_REDUCTIONS + ARG_REDUCTIONS, ids=lambda op: op.value)
def test_reductions_of_other_dtypes(
    op: ReduceOp, dtype: torch.dtype, schedule: str, tmp_path: Path
) -> None:
    x = (torch.rand(3, 50) * 20 + 1).to(dtype)
    out = torch.zeros(3, dtype=i64 if op in ARG_REDUCTIONS else dtype)
    check(
        reduction(op, dtype, 3, 50),
        [x.reshape(-1), out],
        tmp_path,
        config=REDUCTION_CONFIGS[schedule],
    )


@schedules
@pytest.mark.parametrize("op", [ReduceOp.ANY, ReduceOp.ALL], ids=lambda op: op.value)
def test_logical_reductions(op: ReduceOp, schedule: str, tmp_path: Path) -> None:
    x = torch.zeros(4, 50, dtype=torch.bool)
    x[1], x[2, 49], x[3, :49] = True, True, True
    check(
        reduction(op, torch.bool, 4, 50),
        [x.reshape(-1), torch.zeros(4, dtype=torch.bool)],
        tmp_path,
        config=REDUCTION_CONFIGS[schedule],
    )


@schedules
def test_full_reduction_and_scalar_epilogue(schedule: str, tmp_path: Path) -> None:
    body = Body()
    total = body.reduce(ReduceOp.SUM, body.load(0, var(0)))
    body.store(1, const(0), body.op(Op.DIV, total, body.literal(50.0)))
    config = REDUCTION_CONFIGS[schedule]
    check(body.kernel([50], 0), [torch.randn(50), torch.zeros(1)], tmp_path, config=config)


@schedules
def test_column_reduction(schedule: str, tmp_path: Path) -> None:
    body = Body()
    total = body.reduce(ReduceOp.SUM, body.load(0, add(mul(const(7), var(1)), var(0))))
    body.store(1, var(0), body.op(Op.ADD, total, body.load(2, var(0))))
    check(
        body.kernel([7, 50], 1),
        [torch.randn(350), torch.zeros(7), torch.randn(7)],
        tmp_path,
        config=REDUCTION_CONFIGS[schedule],
    )


@schedules
def test_two_reduction_axes_around_an_outer_one(schedule: str, tmp_path: Path) -> None:
    # Batch-norm statistics: reduce [N, C, L] over N and L, positions of the maximum included.
    body = Body()
    index = add(mul(const(15), var(1)), mul(const(5), var(0)), var(2))
    x = body.load(0, index)
    body.store(1, var(0), body.reduce(ReduceOp.SUM, x))
    body.store(2, var(0), body.reduce(ReduceOp.ARGMAX, x))
    check(
        body.kernel([3, 8, 5], 1),
        [torch.randn(120), torch.zeros(3), torch.zeros(3, dtype=i64)],
        tmp_path,
        config=REDUCTION_CONFIGS[schedule],
    )


def softmax(rows: int | str, cols: int | str, dtype: torch.dtype = f32) -> Kernel:
    body = Body()
    here = row_major([rows, cols])
    x = body.cast(body.load(0, here, dtype), f32) if dtype is not f32 else body.load(0, here)
    shifted = body.op(Op.SUB, x, body.reduce(ReduceOp.MAX, x))
    e = body.op(Op.EXP, shifted)
    y = body.op(Op.DIV, e, body.reduce(ReduceOp.SUM, e))
    body.store(1, here, body.cast(y, dtype) if dtype is not f32 else y)
    names = [s for s in (rows, cols) if isinstance(s, str)]
    return body.kernel([rows, cols], 1, symbols=names)


@widths
@pytest.mark.parametrize("schedule", ["persistent", "looped"])
@pytest.mark.parametrize("dtype", [f32, torch.bfloat16], ids=str)
def test_softmax(schedule: str, dtype: torch.dtype, wide: bool, tmp_path: Path) -> None:
    x = torch.randn(6, 50) * 4
    x[1, 3] = math.nan
    x[2] = -math.inf
    x[3, 5] = math.inf
    x[4, :20] = -math.inf
    source = check(
        softmax(6, 50, dtype),
        [x.reshape(-1).to(dtype), torch.zeros(300, dtype=dtype)],
        tmp_path,
        config=REDUCTION_CONFIGS[schedule],
        wide=wide,
    )
    if schedule == "looped":
        assert source.text.count("for step in") == 2, "maximum and sum share one walk"


def test_softmax_with_unknown_sizes(tmp_path: Path) -> None:
    kernel = softmax("s0", "s1")
    config = choose(kernel, {"s0": 4, "s1": 40})
    assert config.schedule is Schedule.LOOPED
    for rows, cols in ((4, 40), (1, 1), (3, 200)):
        check(
            kernel,
            [torch.randn(rows * cols), torch.zeros(rows * cols)],
            tmp_path,
            symbols={"s0": rows, "s1": cols},
            config=config,
        )


def layer_norm(rows: int, cols: int) -> Kernel:
    body = Body()
    here = row_major([rows, cols])
    x = body.load(0, here)
    count = body.literal(float(cols))
    mean = body.op(Op.DIV, body.reduce(ReduceOp.SUM, x), count)
    centred = body.op(Op.SUB, x, mean)
    var_sum = body.reduce(ReduceOp.SUM, body.op(Op.MUL, centred, centred))
    spread = body.op(Op.ADD, body.op(Op.DIV, var_sum, count), body.literal(1e-5))
    rstd = body.op(Op.RSQRT, spread)
    body.store(3, var(0), rstd)
    scaled = body.op(Op.MUL, body.op(Op.MUL, centred, rstd), body.load(1, var(1)))
    body.store(4, here, body.op(Op.ADD, scaled, body.load(2, var(1))))
    return body.kernel([rows, cols], 1)


@pytest.mark.parametrize("schedule", ["persistent", "looped"])
def test_layer_norm(schedule: str, tmp_path: Path) -> None:
    tensors = [torch.randn(150), torch.randn(50), torch.randn(50), torch.zeros(3), torch.zeros(150)]
    check(layer_norm(3, 50), tensors, tmp_path, config=REDUCTION_CONFIGS[schedule])


@pytest.mark.parametrize("schedule", ["persistent", "looped"])
def test_in_place_softmax_reads_old_values_in_every_pass(schedule: str, tmp_path: Path) -> None:
    body = Body()
    here = row_major([4, 50])
    x = body.load(0, here)
    e = body.op(Op.EXP, body.op(Op.SUB, x, body.reduce(ReduceOp.MAX, x)))
    # A second, different sum keeps the kernel off the one-pass form.
    square = body.reduce(ReduceOp.SUM, body.op(Op.MUL, e, e))
    body.store(1, var(0), square)
    body.store(0, here, body.op(Op.MUL, e, square))
    check(
        body.kernel([4, 50], 1),
        [torch.randn(200), torch.zeros(4)],
        tmp_path,
        config=REDUCTION_CONFIGS[schedule],
    )


@schedules
def test_full_store_next_to_a_reduction(schedule: str, tmp_path: Path) -> None:
    body = Body()
    here = row_major([4, 50])
    doubled = body.op(Op.ADD, body.load(0, here), body.load(1, var(0)))
    body.store(3, here, doubled)
    body.store(2, var(0), body.reduce(ReduceOp.SUM, doubled))
    check(
        body.kernel([4, 50], 1),
        [torch.randn(200), torch.randn(4), torch.zeros(4), torch.zeros(200)],
        tmp_path,
        config=REDUCTION_CONFIGS[schedule],
    )


@schedules
def test_reduction_of_an_outer_value_counts_every_point(schedule: str, tmp_path: Path) -> None:
    body = Body()
    body.store(1, var(0), body.reduce(ReduceOp.SUM, body.load(0, var(0))))
    body.store(2, var(0), body.reduce(ReduceOp.SUM, body.literal(2.0)))
    check(
        body.kernel([4, 50], 1),
        [torch.randn(4), torch.zeros(4), torch.zeros(4)],
        tmp_path,
        config=REDUCTION_CONFIGS[schedule],
    )


@pytest.mark.parametrize("schedule", ["persistent", "looped"])
def test_outer_value_stored_at_each_point(schedule: str, tmp_path: Path) -> None:
    body = Body()
    best = body.reduce(ReduceOp.MAX, body.load(0, row_major([4, 50])))
    body.store(1, row_major([4, 50]), best)
    check(
        body.kernel([4, 50], 1),
        [torch.randn(200), torch.zeros(200)],
        tmp_path,
        config=REDUCTION_CONFIGS[schedule],
    )


@schedules
def test_masked_load_in_a_reduction(schedule: str, tmp_path: Path) -> None:
    body = Body()
    keep = body.op(Op.LT, body.index(var(1)), body.index(var(0)))
    value = body.load(0, sub(row_major([4, 50]), const(0)), mask=keep)
    body.store(1, var(0), body.reduce(ReduceOp.SUM, value))
    check(
        body.kernel([4, 50], 1),
        [torch.randn(200), torch.zeros(4)],
        tmp_path,
        config=REDUCTION_CONFIGS[schedule],
    )


def test_chosen_configurations_are_right_too(tmp_path: Path) -> None:
    cases = [
        (reduction(ReduceOp.SUM, f32, 2, 30000), [torch.randn(60000), torch.zeros(2)]),
        (reduction(ReduceOp.MAX, f32, 600, 3), [torch.randn(1800), torch.zeros(600)]),
        (softmax(3, 100), [torch.randn(300), torch.zeros(300)]),
    ]
    for kernel, tensors in cases:
        check(kernel, tensors, tmp_path, rtol=1e-4, atol=1e-3)


def test_empty_reduction_gives_the_identity(tmp_path: Path) -> None:
    for op, want in ((ReduceOp.SUM, 0.0), (ReduceOp.PROD, 1.0)):
        body = Body()
        body.store(1, var(0), body.reduce(op, body.load(0, var(0))))
        kernel = body.kernel([3, 0], 1)
        out = torch.full((3,), 5.0)
        source = check(kernel, [torch.randn(3), out], tmp_path)
        assert source.config.schedule is not Schedule.SPLIT
        assert want in (0.0, 1.0)


def test_double_precision_softmax_is_not_rounded(tmp_path: Path) -> None:
    body = Body()
    here = row_major([3, 50])
    x = body.load(0, here, f64)
    e = body.op(Op.EXP, body.op(Op.SUB, x, body.reduce(ReduceOp.MAX, x)))
    body.store(1, here, body.op(Op.DIV, e, body.reduce(ReduceOp.SUM, e)))
    for config in (REDUCTION_CONFIGS["persistent"], REDUCTION_CONFIGS["looped"]):
        check(
            body.kernel([3, 50], 1),
            [torch.randn(150, dtype=f64), torch.zeros(150, dtype=f64)],
            tmp_path,
            config=config,
            rtol=1e-14,
            atol=1e-15,
        )
