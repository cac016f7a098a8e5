"""Which schedule and tiles kernels get, and when a reduction may be split."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from samples import Body, f32, row_major
from torchsmith_fx_backend._src.codegen.triton.config import (
    ACCUMULATED,
    PERSISTENT_LIMIT,
    Schedule,
    can_split,
    choose,
)
from torchsmith_fx_backend._src.loops.index import Sym, add, const, floordiv, mul, var
from torchsmith_fx_backend._src.loops.ir import Kernel, Op, ReduceOp


def row_sum(rows: int | str, cols: int | str) -> Kernel:
    body = Body()
    body.store(1, var(0), body.reduce(ReduceOp.SUM, body.load(0, row_major([rows, cols]))))
    return body.kernel([rows, cols], 1, symbols=[s for s in (rows, cols) if isinstance(s, str)])


def column_sum(rows: int, cols: int) -> Kernel:
    body = Body()
    index = add(mul(const(cols), var(1)), var(0))
    body.store(1, var(0), body.reduce(ReduceOp.SUM, body.load(0, index)))
    return body.kernel([cols, rows], 1)


@pytest.mark.parametrize(
    ("kernel", "schedule"),
    [
        (row_sum(4096, 1024), Schedule.PERSISTENT),
        (row_sum(4096, PERSISTENT_LIMIT), Schedule.PERSISTENT),
        (row_sum(4096, PERSISTENT_LIMIT + 1), Schedule.LOOPED),
        (row_sum(8, 1_000_000), Schedule.SPLIT),
        (row_sum("s0", "s1"), Schedule.LOOPED),
        (row_sum("s0", 1024), Schedule.PERSISTENT),
        (column_sum(100_000, 768), Schedule.SPLIT),
        (column_sum(100, 100_000), Schedule.LOOPED),
        (column_sum(3072, 768), Schedule.LOOPED),
        (column_sum(3072, 64), Schedule.SPLIT),
    ],
    ids=["row", "longest row", "long row", "few long rows", "unknown", "unknown rows",
         "tall columns", "short columns",
         "a matrix", "few columns"],
)  # fmt: skip
def test_schedules(kernel: Kernel, schedule: Schedule) -> None:
    assert choose(kernel, {"s0": 4096, "s1": 1024}).schedule is schedule


@pytest.mark.parametrize("outer", [True, False])
def test_sizes_that_have_points_at_few_values_only(outer: bool) -> None:
    """``96 // (96 // n)`` is a division by zero at what an unknown size is taken to be."""
    size = floordiv(const(96), floordiv(const(96), Sym("s0")))
    body = Body()
    index = add(mul(size, var(0)), var(1))
    body.store(1, var(0), body.reduce(ReduceOp.SUM, body.load(0, index)))
    extents = [floordiv(const(96), Sym("s0")), size][:: 1 if outer else -1]
    kernel = body.kernel(["s0", "s0"], 1, symbols=["s0"])
    for ranges in (tuple(extents), (const(0), Sym("s0"))):
        config = choose(replace(kernel, ranges=ranges))
        assert config.x_block and config.r_block


def test_powers_of_two_and_bounded_tiles() -> None:
    for rows in (1, 3, 1000, 100_000):
        for cols in (1, 7, 100, 4096, 16384, 300_000):
            for kernel in (row_sum(rows, cols), column_sum(rows, cols)):
                config = choose(kernel)
                for size in (config.x_block, config.r_block, config.num_warps):
                    assert size & (size - 1) == 0
                per_thread = config.x_block * config.r_block / (32 * config.num_warps)
                assert per_thread <= 32, "too many registers"
                assert config.splits <= 1024
                if config.schedule is Schedule.PERSISTENT:
                    assert config.r_block >= cols


@pytest.mark.parametrize("again", [False, True])
def test_few_terms_that_lie_apart_are_walked_by_each_lane(again: bool) -> None:
    def kernel(terms: int, sums: int) -> Kernel:
        body = Body()
        index = add(mul(const(sums), var(1)), var(0))
        value = body.load(0, index)
        if again:
            body.store(1, index, body.op(Op.SUB, value, body.reduce(ReduceOp.MAX, value)))
        else:
            body.store(1, var(0), body.reduce(ReduceOp.SUM, value))
        return body.kernel([sums, terms], 1)

    for terms in (2, 3, 8):
        for sums in (64, 5000, 1 << 20):
            assert choose(kernel(terms, sums)).r_block == 1
    assert choose(kernel(2, 1 << 20)).x_block > choose(kernel(2, 5000)).x_block
    assert choose(kernel(100, 1 << 20)).r_block == 1 or again
    assert choose(kernel(100, 64)).r_block > 1  # few programs share the work of a sum


def test_terms_that_also_lie_side_by_side_are_taken_several_at_once() -> None:
    body = Body()
    across = [body.load(arg, add(mul(const(1 << 18), var(1)), var(0))) for arg in range(2)]
    along = body.load(2, add(mul(const(64), var(0)), var(1)))
    terms = body.op(Op.ADD, body.op(Op.MUL, across[0], across[1]), along)
    body.store(3, var(0), body.reduce(ReduceOp.SUM, terms))
    config = choose(body.kernel([1 << 18, 64], 1))
    assert config.x_block >= 32
    assert config.r_block >= 32


@pytest.mark.parametrize("rows", [288, 2304])
def test_sums_of_what_is_laid_out_anew_go_in_tiles(rows: int) -> None:
    body = Body()
    value = body.load(0, row_major([rows, 100_000]))
    body.store(1, add(mul(const(rows), var(1)), var(0)), value)
    body.store(2, var(0), body.reduce(ReduceOp.SUM, value))
    config = choose(body.kernel([rows, 100_000], 1))
    assert config.schedule is Schedule.SPLIT
    assert min(config.x_block, config.r_block) >= 32


def test_columns_are_read_along_the_contiguous_axis() -> None:
    config = choose(column_sum(100_000, 768))
    assert config.x_block >= 32
    assert choose(row_sum(4096, 100_000)).x_block == 1


def test_transposes_get_tiles_and_plain_copies_do_not() -> None:
    def copy(index_of: object) -> Kernel:
        body = Body()
        body.store(1, row_major([512, 512]), body.load(0, index_of))  # type: ignore[arg-type]
        return body.kernel([512, 512])

    assert choose(copy(add(mul(const(512), var(1)), var(0)))).schedule is Schedule.TILE
    assert choose(copy(row_major([512, 512]))).schedule is Schedule.POINTWISE
    assert choose(copy(mul(const(3), var(1)))).schedule is Schedule.POINTWISE


def test_small_pointwise_kernels_use_small_blocks() -> None:
    def exp(n: int) -> Kernel:
        body = Body()
        body.store(1, var(0), body.op(Op.EXP, body.load(0, var(0))))
        return body.kernel([n])

    assert choose(exp(2**24)).x_block == 1024
    assert choose(exp(1000)).x_block == 128


def test_only_independent_reductions_can_be_split() -> None:
    assert can_split(row_sum(4, 100))
    body = Body()
    x = body.load(0, row_major([4, 100]))
    centred = body.op(Op.SUB, x, body.reduce(ReduceOp.MAX, x))
    body.store(1, var(0), body.reduce(ReduceOp.SUM, centred))
    assert not can_split(body.kernel([4, 100], 1)), "one reduction depends on another"
    body = Body()
    x = body.load(0, row_major([4, 100]))
    body.store(1, row_major([4, 100]), body.op(Op.SUB, x, body.reduce(ReduceOp.MAX, x)))
    assert not can_split(body.kernel([4, 100], 1)), "a full value depends on a reduction"
    body = Body()
    x = body.cast(body.load(0, row_major([4, 100]), torch.bfloat16), f32)
    total = body.reduce(ReduceOp.SUM, x)
    body.store(1, var(0), body.op(Op.DIV, total, body.reduce(ReduceOp.MAX, x)))
    assert can_split(body.kernel([4, 100], 1)), "what follows is outer"


def test_small_tables_do_not_decide_how_elements_are_walked() -> None:
    def scaled(table: int) -> Kernel:
        """``[table, 512, 64]`` times a table of ``[64, 512]`` that is read across."""
        body = Body()
        x = body.load(0, row_major([table, 512, 64]))
        y = body.load(1, add(mul(const(512), var(2)), var(1)))
        body.store(2, row_major([table, 512, 64]), body.op(Op.MUL, x, y))
        return body.kernel([table, 512, 64])

    assert choose(scaled(1)).schedule is Schedule.TILE
    assert choose(scaled(64)).schedule is Schedule.POINTWISE


def crossed(columns: int, tensors: int, rows: int = 8192) -> Kernel:
    """Sums over rows of one tensor that lies so, others too, and one that lies across."""
    body = Body()
    total = body.load(0, add(mul(const(rows), var(1)), var(0)))
    for number in range(1, tensors):
        other = body.load(number, row_major([rows, columns]))
        total = body.op(Op.ADD, total, other)
    body.store(tensors, var(0), body.reduce(ReduceOp.SUM, total))
    return body.kernel([rows, columns], 1)


def test_rows_that_are_also_read_across_come_several_to_a_program() -> None:
    assert choose(crossed(768, 3)).schedule is Schedule.PERSISTENT
    assert choose(crossed(768, 3)).x_block >= 4
    for columns in (128, 200, 256, 500, 1024):
        config = choose(crossed(columns, 3))
        assert config.x_block * config.r_block <= 32 * 32 * config.num_warps, "too many registers"
    for kernel in (crossed(768, 9), crossed(4096, 3)):
        assert choose(kernel).schedule is Schedule.LOOPED
        assert choose(kernel).x_block >= 8
    assert choose(crossed(768, 3, rows=256)).x_block == 1  # one row each fills the chip no more
    assert choose(crossed(768, 1)).x_block >= 32  # nothing lies along the rows


def test_sums_of_few_terms_share_a_program() -> None:
    config = choose(column_sum(2, 1_000_000))
    assert config.x_block * config.r_block >= 512


@pytest.mark.parametrize("count", [1, 4, 20, 81, 300])
@pytest.mark.parametrize("across", [False, True])
def test_accumulators_of_many_reductions_fit_into_registers(count: int, across: bool) -> None:
    rows, cols = (57344, 64) if across else (512, 100_000)
    body = Body()
    for number in range(count):
        inside = add(mul(const(rows), var(1)), var(0)) if across else row_major([rows, cols])
        body.store(count + number, var(0), body.reduce(ReduceOp.SUM, body.load(number, inside)))
    config = choose(body.kernel([rows, cols], 1))
    lanes, threads = config.x_block * config.r_block, 32 * config.num_warps
    assert config.schedule in (Schedule.LOOPED, Schedule.SPLIT)
    assert lanes >= threads
    assert count * lanes // threads <= max(ACCUMULATED, count)
