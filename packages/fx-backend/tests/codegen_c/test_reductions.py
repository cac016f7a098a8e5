"""Every reduction, every schedule: values, special values, accuracy, determinism."""

from __future__ import annotations

import math

import pytest
import torch
from native_kernels import Body, check, i64, row_major, run
from torchsmith_fx_backend._src.codegen.c import kernel_function
from torchsmith_fx_backend._src.loops.index import Index, add, const, mul, var
from torchsmith_fx_backend._src.loops.ir import Kernel, Op, ReduceOp

NUMERIC = [ReduceOp.SUM, ReduceOp.PROD, ReduceOp.MAX, ReduceOp.MIN]
POSITIONS = [ReduceOp.ARGMAX, ReduceOp.ARGMIN]
DTYPES = [torch.float32, torch.float64, torch.int64, torch.int32, torch.int16, torch.uint8]

# name -> iteration space, first reduction axis, index of the operand
SPACES: dict[str, tuple[list[int | str], int, Index]] = {
    "rows": ([5, 37], 1, row_major([5, 37])),
    "columns": ([70, 33], 1, add(var(0), mul(var(1), const(70)))),
    "middle": ([3, 40, 11], 2, add(mul(var(0), const(440)), var(1), mul(var(2), const(40)))),
    "two axes": ([4, 6, 9], 1, row_major([4, 6, 9])),
    "apart": ([7, 3, 16], 1, add(mul(var(0), const(16)), mul(var(1), const(112)), var(2))),
    "permuted": ([4, 8, 6], 1, add(mul(var(0), const(48)), var(1), mul(var(2), const(8)))),
    "short rows": ([200, 3], 1, row_major([200, 3])),
    "all": ([200000], 0, var(0)),
    "all of two": ([300, 700], 0, add(var(0), mul(var(1), const(300)))),
    "symbolic": (["s0", "s1"], 1, row_major(["s0", "s1"])),
}
SYMBOLS = {"s0": 6, "s1": 45}


def reduction(space: str, ops: list[ReduceOp], dtype: torch.dtype) -> Kernel:
    ranges, start, index = SPACES[space]
    body = Body()
    value = body.load(0, index, dtype)
    for number, op in enumerate(ops):
        body.store(number + 1, row_major(ranges[:start]), body.reduce(op, value))
    return body.kernel(ranges, start, [r for r in ranges if isinstance(r, str)])


def extents(space: str) -> tuple[int, int]:
    ranges, start, _ = SPACES[space]
    numbers = [SYMBOLS[r] if isinstance(r, str) else r for r in ranges]
    return math.prod(numbers), math.prod(numbers[:start])


def operand(space: str, dtype: torch.dtype) -> torch.Tensor:
    total, _ = extents(space)
    generator = torch.Generator().manual_seed(3)
    if dtype.is_floating_point:
        return torch.randn(total, generator=generator, dtype=dtype) * 0.2 + 1
    return torch.randint(0, 9, (total,), generator=generator).to(dtype)


def symbols(space: str) -> dict[str, int]:
    return SYMBOLS if space == "symbolic" else {}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("space", SPACES)
def test_all_reductions(space: str, dtype: torch.dtype) -> None:
    x = operand(space, dtype)
    _, outer = extents(space)
    ops = [*NUMERIC, *POSITIONS]
    if space in ("all", "all of two"):
        ops.remove(ReduceOp.PROD)
    outputs = [torch.zeros(outer, dtype=i64 if op in POSITIONS else dtype) for op in ops]
    check(reduction(space, ops, dtype), [x, *outputs], symbols(space), rtol=3e-5, atol=1e-5)


@pytest.mark.parametrize("space", SPACES)
def test_vectorised_reductions(space: str) -> None:
    """Without positions among them, so that loops keep their vector lanes."""
    x = operand(space, torch.float32)
    _, outer = extents(space)
    ops = [ReduceOp.SUM, ReduceOp.MAX, ReduceOp.MIN]
    outputs = [torch.zeros(outer) for _ in ops]
    check(reduction(space, ops, torch.float32), [x, *outputs], symbols(space))


@pytest.mark.parametrize("space", SPACES)
def test_any_and_all(space: str) -> None:
    total, outer = extents(space)
    for density in (0.0, 0.02, 0.98, 1.0):
        x = torch.rand(total, generator=torch.Generator().manual_seed(5)) < density
        outputs = [torch.zeros(outer, dtype=torch.bool) for _ in range(2)]
        kernel = reduction(space, [ReduceOp.ANY, ReduceOp.ALL], torch.bool)
        check(kernel, [x, *outputs], symbols(space))


@pytest.mark.parametrize("space", ["rows", "columns", "all"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nan_wins_and_infinities_count(space: str, dtype: torch.dtype) -> None:
    x = operand(space, dtype)
    x[7], x[11], x[12] = math.inf, -math.inf, math.nan
    x[len(x) // 2] = math.nan
    _, outer = extents(space)
    ops = [ReduceOp.MAX, ReduceOp.MIN, ReduceOp.SUM, *POSITIONS]
    outputs = [torch.zeros(outer, dtype=i64 if op in POSITIONS else dtype) for op in ops]
    check(reduction(space, ops, dtype), [x, *outputs], rtol=1e-4)
    ops = [ReduceOp.MAX, ReduceOp.MIN, ReduceOp.SUM]
    check(reduction(space, ops, dtype), [x, *(torch.zeros(outer, dtype=dtype) for _ in ops)],
          rtol=1e-4)  # fmt: skip


@pytest.mark.parametrize("space", ["rows", "columns", "all"])
def test_first_of_equals(space: str) -> None:
    x = torch.zeros(extents(space)[0])
    x[::3] = 4.0
    x[1::3] = -4.0
    outputs = [torch.full((extents(space)[1],), -7) for _ in POSITIONS]
    check(reduction(space, POSITIONS, torch.float32), [x, *outputs])


@pytest.mark.parametrize("width", [1, 5, 16, 17, 40, 64, 65, 255, 256, 257, 400])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool], ids=str)
def test_first_of_equals_in_rows_of_any_length(width: int, dtype: torch.dtype) -> None:
    """Values that repeat, in lanes that are joined at the end of a row; and NaN in every fifth."""
    generator = torch.Generator().manual_seed(width)
    x = torch.randint(0, 4, (20, width), generator=generator).to(dtype)
    if dtype.is_floating_point:
        x[::5, width // 2 :: 7] = math.nan
    body = Body()
    value = body.load(0, row_major([20, width]), dtype)
    for number, op in enumerate((*POSITIONS, ReduceOp.SUM)[: 2 + dtype.is_floating_point]):
        body.store(number + 1, row_major([20]), body.reduce(op, value))
    outputs = [torch.full((20,), -7) for _ in POSITIONS]
    sums = [torch.zeros(20, dtype=dtype)] if dtype.is_floating_point else []
    check(body.kernel([20, width], 1), [x.flatten(), *outputs, *sums])


@pytest.mark.parametrize("space", ["rows", "columns", "middle", "all", "all of two"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.uint8], ids=str)
def test_places_of_the_least_possible_values(space: str, dtype: torch.dtype) -> None:
    """Rows of nothing but the value that a search starts with, and rows with one other."""
    limits = (-math.inf, math.inf)
    if not dtype.is_floating_point:
        limits = (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    total, outer = extents(space)
    for value in limits:
        for other in (None, 0, total // 2, total - 1):
            x = torch.full((total,), value, dtype=dtype)
            if other is not None:
                x[other] = 1
            outputs = [torch.full((outer,), -7) for _ in POSITIONS]
            check(reduction(space, POSITIONS, dtype), [x, *outputs])


@pytest.mark.parametrize("op", [*NUMERIC, ReduceOp.ANY, ReduceOp.ALL], ids=lambda op: op.value)
def test_nothing_to_reduce_gives_the_identity(op: ReduceOp) -> None:
    dtype = torch.bool if op in (ReduceOp.ANY, ReduceOp.ALL) else torch.float32
    body = Body()
    value = body.reduce(op, body.load(0, row_major(["s0", "s1"]), dtype))
    body.store(1, var(0), value)
    kernel = body.kernel(["s0", "s1"], 1, ("s0", "s1"))
    got = torch.full((4,), 7).to(dtype)
    run(kernel, [torch.zeros(0, dtype=dtype), got], {"s0": 4, "s1": 0})
    identity = {
        ReduceOp.SUM: 0.0,
        ReduceOp.PROD: 1.0,
        ReduceOp.MAX: -math.inf,
        ReduceOp.MIN: math.inf,
        ReduceOp.ANY: False,
        ReduceOp.ALL: True,
    }[op]
    assert got.tolist() == [identity] * 4


def test_no_rows_touch_nothing() -> None:
    body = Body()
    value = body.reduce(ReduceOp.SUM, body.load(0, row_major(["s0", "s1"])))
    body.store(1, var(0), value)
    got = torch.full((1,), 7.0)
    run(body.kernel(["s0", "s1"], 1, ("s0", "s1")), [torch.zeros(0), got], {"s0": 0, "s1": 5})
    assert got.tolist() == [7.0]


@pytest.mark.parametrize("space", ["rows", "columns", "all"])
def test_sums_are_as_accurate_as_eager(space: str) -> None:
    """Cancelling sums over many orders of magnitude, against float64."""
    sizes: dict[str, tuple[list[int], int, Index, int]] = {
        "rows": ([16, 20000], 1, row_major([16, 20000]), 1),
        "columns": ([128, 4000], 1, add(var(0), mul(var(1), const(128))), 0),
        "all": ([1000000], 0, var(0), 0),
    }
    ranges, start, index, dim = sizes[space]
    body = Body()
    body.store(1, row_major(ranges[:start]), body.reduce(ReduceOp.SUM, body.load(0, index)))
    kernel = body.kernel(ranges, start)
    x = torch.randn(math.prod(ranges), generator=torch.Generator().manual_seed(0)) * 100
    shape = [ranges[0], -1] if space == "rows" else [-1, ranges[0] if start else 1]
    got = torch.zeros(math.prod(ranges[:start]))
    run(kernel, [x, got])
    exact = x.double().reshape(shape).sum(dim)
    eager = x.reshape(shape).sum(dim)
    # Eager's sums have as many parts as the machine's vectors have lanes.
    assert (got - exact).abs().max() <= 2 * (eager - exact).abs().max() + 1e-7


@pytest.mark.parametrize("size", [1, 63, 64, 65, 4095, 4096, 4097, 200_001])
def test_parts_of_one_row_take_in_each_element_once(size: int) -> None:
    """Parts begin where cache lines do; some are empty in a short row."""
    body = Body()
    value = body.load(0, var(0), i64)
    body.store(1, const(0), body.reduce(ReduceOp.SUM, value))
    body.store(2, const(0), body.reduce(ReduceOp.ARGMAX, value))
    kernel = body.kernel(["s0"], 0, ["s0"])
    text = kernel_function(kernel, "k")
    assert "/ 4096 * 64" in text
    x, total, last = torch.arange(size), torch.zeros(1, dtype=i64), torch.zeros(1, dtype=i64)
    run(kernel, [x, total, last], {"s0": size})
    assert total.item() == size * (size - 1) // 2 and last.item() == size - 1


def softmax(rows: int | str, columns: int | str, dtype: torch.dtype, axis: int = 1) -> Kernel:
    body = Body()
    ranges = [rows, columns]
    symbolic = [r for r in ranges if isinstance(r, str)]
    index = row_major(ranges) if axis == 1 else add(var(0), mul(var(1), const(int(rows))))
    x = body.load(0, index, dtype)
    wide = body.cast(x, torch.float32) if dtype in (torch.bfloat16, torch.float16) else x
    shifted = body.op(Op.SUB, wide, body.reduce(ReduceOp.MAX, wide))
    power = body.op(Op.EXP, shifted)
    result = body.op(Op.DIV, power, body.reduce(ReduceOp.SUM, power))
    body.store(1, index, body.cast(result, dtype) if wide != x else result)
    return body.kernel(ranges, 1, symbolic)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_softmax(dtype: torch.dtype, axis: int) -> None:
    x = (torch.randn(96 * 130, dtype=torch.float64) * 5).to(dtype)
    check(softmax(96, 130, dtype, axis), [x, torch.zeros_like(x)])


def test_softmax_computes_each_exponential_once() -> None:
    text = kernel_function(softmax(8, 64, torch.float32), "k")
    assert text.count("ts_exp_down(") == 1


@pytest.mark.parametrize("columns", [7, 5000, 70000])
def test_softmax_with_sizes_known_at_launch(columns: int) -> None:
    x = torch.randn(12 * columns) * 3
    check(softmax("s0", "s1", torch.float32), [x, torch.zeros_like(x)], {"s0": 12, "s1": columns})


def test_softmax_with_rows_larger_than_the_stack() -> None:
    x = torch.randn(5 * 60000)
    check(softmax(5, 60000, torch.float32), [x, torch.zeros_like(x)])


def test_softmax_of_one_long_row_in_parallel_parts() -> None:
    x = torch.randn(200000)
    kernel = softmax(1, 200000, torch.float32)
    assert "part" in kernel_function(kernel, "k")
    check(kernel, [x, torch.zeros_like(x)])


@pytest.mark.parametrize("axis", [0, 1])
def test_layer_norm_with_affine_and_low_precision(axis: int) -> None:
    rows, columns = 40, 66
    body = Body()
    index = row_major([rows, columns]) if axis == 1 else add(var(0), mul(var(1), const(rows)))
    x = body.cast(body.load(0, index, torch.bfloat16), torch.float32)
    scale = body.literal(1 / columns)
    mean = body.op(Op.MUL, body.reduce(ReduceOp.SUM, x), scale)
    centred = body.op(Op.SUB, x, mean)
    squares = body.reduce(ReduceOp.SUM, body.op(Op.MUL, centred, centred))
    variance = body.op(Op.ADD, body.op(Op.MUL, squares, scale), body.literal(1e-5))
    normal = body.op(Op.MUL, centred, body.op(Op.RSQRT, variance))
    weighted = body.op(Op.MUL, normal, body.load(1, var(1)))
    body.store(2, index, body.cast(weighted, torch.bfloat16))
    body.store(3, var(0), mean)
    kernel = body.kernel([rows, columns], 1)
    x_ = torch.randn(rows * columns).bfloat16()
    check(kernel, [x_, torch.randn(columns), torch.zeros_like(x_), torch.zeros(rows)])


@pytest.mark.parametrize("size", [64, 100000])
def test_in_place_normalisation(size: int) -> None:
    """Each element is read again, by the pass that overwrites it."""
    body = Body()
    index = row_major([3, size])
    x = body.load(0, index)
    centred = body.op(Op.SUB, x, body.reduce(ReduceOp.MAX, x))
    spread = body.reduce(ReduceOp.MIN, centred)
    body.store(0, index, body.op(Op.MUL, centred, spread))
    body.store(1, var(0), spread)
    check(body.kernel([3, size], 1), [torch.randn(3 * size), torch.zeros(3)])


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    kernel = reduction("all", [ReduceOp.SUM], torch.float32)
    x = operand("all", torch.float32)
    threads = torch.get_num_threads()
    found = set()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            got = torch.zeros(1)
            run(kernel, [x, got])
            found.add(got.item())
    finally:
        torch.set_num_threads(threads)
    assert len(found) == 1


def test_reduction_of_an_outer_value_counts_every_point() -> None:
    body = Body()
    value = body.reduce(ReduceOp.SUM, body.load(0, var(0)))
    body.store(1, var(0), value)
    x = torch.arange(5.0)
    (_, got) = check(body.kernel([5, 8], 1), [x, torch.zeros(5)])
    assert torch.equal(got, x * 8)
