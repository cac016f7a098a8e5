"""Loop nests that are cut where their conditions change compute what they did in one."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from native_kernels import Body, check, row_major
from torchsmith_fx_backend._src.codegen.c import kernel_function
from torchsmith_fx_backend._src.loops import index as ix
from torchsmith_fx_backend._src.loops.ir import Compute, Kernel, Op
from torchsmith_fx_backend._src.loops.pieces import pieces

COMPARISONS = [Op.LT, Op.LE, Op.GT, Op.GE, Op.EQ, Op.NE]


def random_kernel(choose: random.Random) -> tuple[Kernel, list[torch.Tensor]]:
    """Conditional reads at shifted, reversed and wrapped indices, over one to three axes."""
    ranges = [choose.choice([1, 2, 5, 17, 40]) for _ in range(choose.randint(1, 3))]
    body = Body()
    total = body.literal(0.0)
    for _ in range(choose.randint(1, 4)):
        axis = choose.randrange(len(ranges))
        size, slope = ranges[axis], choose.choice([1, 1, 1, -1, 2, -3])
        line = ix.add(ix.mul(ix.const(slope), ix.var(axis)), ix.const(choose.randint(-3, size + 3)))
        if axis and choose.random() < 0.5:  # an axis that was split
            line = ix.add(line, ix.mul(ix.var(axis - 1), ix.const(choose.choice([size, 2, 1]))))
        wrapped = ix.mod(line, ix.const(choose.choice([size, 3, 2 * size])), ix_ranges(ranges))
        value = body.load(0, ix.mod(wrapped, ix.const(size)))
        limit = body.literal(choose.randint(-3, size + 3), torch.int64)
        kept = body.op(choose.choice(COMPARISONS), body.index(line), limit)
        if choose.random() < 0.3:
            other = body.op(Op.LT, body.index(ix.var(axis)), body.literal(size // 2, torch.int64))
            kept = body.op(choose.choice([Op.AND, Op.OR]), kept, other, dtype=torch.bool)
        if choose.random() < 0.3:
            kept = body.op(Op.NOT, kept, dtype=torch.bool)
        masked = body.load(0, ix.mod(line, ix.const(size)), mask=kept)
        total = body.op(Op.ADD, total, body.op(Op.WHERE, kept, value, body.op(Op.EXP, masked)))
    body.store(1, row_major(ranges), total)
    count = ix_product(ranges)
    return body.kernel(ranges), [torch.randn(max(ranges)), torch.zeros(count)]


def ix_ranges(ranges: list[int]) -> list[ix.Index]:
    return [ix.const(size) for size in ranges]


def ix_product(ranges: list[int]) -> int:
    count = 1
    for size in ranges:
        count *= size
    return count


@pytest.mark.parametrize("seed", range(12))
def test_a_cut_kernel_computes_the_same(seed: int) -> None:
    torch.manual_seed(seed)
    check(*random_kernel(random.Random(seed)))


@pytest.mark.parametrize("seed", range(40))
def test_pieces_cover_every_point_once(seed: int) -> None:
    kernel, _ = random_kernel(random.Random(100 + seed))
    parts = pieces(kernel, range(len(kernel.ranges)))
    places: list[int] = []
    for part in parts:
        store = part.body[-1]
        extents = [size.value for size in part.ranges]
        points = torch.cartesian_prod(*(torch.arange(n) for n in extents)).reshape(-1, len(extents))
        places += [ix.evaluate(store.index, point, {}) for point in points.tolist()]
    assert sorted(places) == list(range(ix_product([size.value for size in kernel.ranges])))


def rolled() -> Kernel:
    body = Body()
    at = ix.mod(ix.add(ix.var(1), ix.const(37)), ix.const(40), ix_ranges([6, 40]))
    body.store(1, row_major([6, 40]), body.load(0, ix.add(ix.mul(ix.const(40), ix.var(0)), at)))
    return body.kernel([6, 40])


def concatenated() -> Kernel:
    body = Body()
    first = body.op(Op.LT, body.index(ix.var(0)), body.literal(900, torch.int64))
    left = body.op(Op.TANH, body.load(0, ix.var(0), mask=first))
    second = body.op(Op.NOT, first, dtype=torch.bool)
    right = body.op(Op.EXP, body.load(1, ix.add(ix.var(0), ix.const(-900)), mask=second))
    body.store(2, ix.var(0), body.op(Op.WHERE, first, left, right))
    return body.kernel([1500])


def encoded() -> Kernel:
    """Thirteen parts side by side, as the encoding of positions in radiance fields."""
    body, parts = Body(), 13
    total = body.literal(0.0)
    for part in range(parts):
        low = body.op(Op.GE, body.index(ix.var(1)), body.literal(3 * part, torch.int64))
        high = body.op(Op.LT, body.index(ix.var(1)), body.literal(3 * part + 3, torch.int64))
        inside = body.op(Op.AND, low, high, dtype=torch.bool)
        at = ix.add(ix.mul(ix.const(3), ix.var(0)), ix.var(1), ix.const(-3 * part))
        scaled = body.op(Op.MUL, body.load(0, at, mask=inside), body.literal(float(part)))
        total = body.op(Op.WHERE, inside, body.op(Op.SIN, scaled), total)
    body.store(1, row_major([20, 3 * parts]), total)
    return body.kernel([20, 3 * parts])


def split() -> Kernel:
    """Coordinates, then their sines and cosines at several frequencies, along an axis that was
    split into frequencies and coordinates."""
    body = Body()
    at = ix.add(ix.mul(ix.const(3), ix.var(1)), ix.var(2))
    plain = body.op(Op.LT, body.index(at), body.literal(3, torch.int64))
    sines = body.op(Op.LT, body.index(at), body.literal(15, torch.int64))
    x = body.load(0, ix.add(ix.mul(ix.const(3), ix.var(0)), ix.var(2)))
    wave = body.op(Op.WHERE, sines, body.op(Op.SIN, x), body.op(Op.EXP, x))
    body.store(1, row_major([40, 9, 3]), body.op(Op.WHERE, plain, x, wave))
    return body.kernel([40, 9, 3])


@pytest.mark.parametrize(
    ("make", "count"), [(rolled, 2), (concatenated, 2), (encoded, 13), (split, 3)]
)
def test_nothing_is_decided_at_each_point(make, count) -> None:
    kernel = make()
    parts = pieces(kernel, range(len(kernel.ranges)))
    assert len(parts) == count
    assert sum(isinstance(n, Compute) and n.op is Op.SIN for p in parts for n in p.body) <= count
    assert not any(
        isinstance(n, Compute) and n.op in (*COMPARISONS, Op.WHERE) for p in parts for n in p.body
    )
    text = kernel_function(kernel, "k")
    assert "%" not in text and "?" not in text


SIZES = [ix.Sym(name) for name in ("s0", "s1", "s2")]


@pytest.mark.parametrize("least", [0, 1])
@pytest.mark.parametrize("turned", [False, True])
def test_parts_of_sizes_that_vary(least: int, turned: bool) -> None:
    """A nest is cut where no piece can be empty: what is done before one may rely on it."""
    sizes = [replace(size, low=least) for size in SIZES]
    body, start, whole = Body(), ix.ZERO, ix.add(*sizes)
    total = body.literal(0.0)
    for number, size in enumerate(sizes):
        at, end = body.index(ix.sub(ix.var(0), start)), body.index(size)
        inside = body.op(Op.GT, end, at) if turned else body.op(Op.LT, at, end)
        if number:
            inside = body.op(
                Op.AND, inside, body.op(Op.GE, at, body.literal(0, torch.int64)), dtype=torch.bool
            )
        value = body.op(Op.SIN, body.load(number, ix.sub(ix.var(0), start), mask=inside))
        total = body.op(Op.WHERE, inside, value, total)
        start = ix.add(start, size)
    body.store(3, ix.var(0), total)
    kernel = body.kernel(["s0"], symbols=("s0", "s1", "s2"))
    kernel = replace(kernel, ranges=(whole,))
    parts = pieces(kernel, [0])
    assert len(parts) == (3 if least else 1)
    decided = [n for p in parts for n in p.body if isinstance(n, Compute) and n.op is Op.WHERE]
    assert bool(decided) is not bool(least)
    for lengths in ([5, 1, 40], [1, 1, 1], [70, 3, 33]):
        tensors = [torch.randn(n) for n in lengths] + [torch.zeros(sum(lengths))]
        named = dict(zip(("s0", "s1", "s2"), lengths))
        found = check(kernel, tensors, named)
        assert torch.allclose(found[3], torch.cat(tensors[:3]).sin())


def test_a_kernel_with_many_conditions_stays_whole() -> None:
    body = Body()
    total = body.load(0, ix.var(0))
    for limit in range(1, 40):
        below = body.op(Op.LT, body.index(ix.var(0)), body.literal(limit, torch.int64))
        total = body.op(Op.WHERE, below, total, body.op(Op.ADD, total, body.literal(float(limit))))
    body.store(1, ix.var(0), total)
    kernel = body.kernel([50])
    assert pieces(kernel, [0]) == [kernel]
    check(kernel, [torch.randn(50), torch.zeros(50)])
