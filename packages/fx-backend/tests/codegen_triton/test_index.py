"""Steps, flattening and bounds of index expressions."""

from __future__ import annotations

from dataclasses import replace

from samples import Body, row_major
from torchsmith_fx_backend._src.codegen.triton.config import Config, Schedule
from torchsmith_fx_backend._src.codegen.triton.index import (
    flatten,
    is_static,
    max_offset,
    max_offset_text,
    step,
)
from torchsmith_fx_backend._src.codegen.triton.kernel import generate
from torchsmith_fx_backend._src.loops.index import Sym, add, const, floordiv, mod, mul, var

FLAT = var(9)


def test_step() -> None:
    index = add(mul(Sym("s0"), var(0)), mul(const(3), var(1)), const(7))
    assert [step(index, axis, {"s0": 5}) for axis in range(3)] == [5, 3, 0]
    assert step(floordiv(var(0), const(4)), 0, {}) is None
    assert step(mul(var(0), var(1)), 0, {}) is None


def test_dense_axes_become_the_flat_position() -> None:
    ranges = [const(16), const(256), const(196)]
    dense = row_major([16, 256, 196])
    assert flatten(dense, ranges, range(3), FLAT) == FLAT
    assert flatten(mul(const(2), dense), ranges, range(3), FLAT) == mul(const(2), FLAT)
    shifted = add(dense, const(5), var(4))
    assert flatten(shifted, ranges, range(3), FLAT) == add(FLAT, const(5), var(4))
    symbolic = [Sym("s0"), Sym("s1")]
    assert flatten(row_major(["s0", "s1"]), symbolic, range(2), FLAT) == FLAT
    ones = [const(16), const(1), const(196)]
    assert flatten(row_major([16, 1, 196]), ones, range(3), FLAT) == FLAT


def test_other_walks_stay_as_they_are() -> None:
    ranges = [const(16), const(256), const(196)]
    for index in (
        var(1),
        add(mul(const(196), var(1)), var(2)),
        add(mul(const(256), var(2)), var(1)),
        add(row_major([16, 256, 196]), mod(var(2), const(5))),
        const(3),
    ):
        assert flatten(index, ranges, range(3), FLAT) == index
    assert flatten(var(0), [const(9)], range(1), FLAT) == var(0)


def test_offset_bounds() -> None:
    body = Body()
    body.store(1, row_major([4, 10]), body.load(0, add(mul(const(-100), var(0)), const(300))))
    kernel = body.kernel([4, 10])
    assert is_static(kernel)
    assert max_offset(kernel) == 700, "a sum of absolute values"
    body = Body()
    body.store(1, row_major([4, "s0"]), body.load(0, mul(Sym("s0"), Sym("s0"), var(0))))
    kernel = body.kernel([4, "s0"], symbols=["s0"])
    assert max_offset(kernel) is None
    assert eval(max_offset_text(kernel, {"s0": "n"}), {"n": 10}) == 400


def test_products_of_extents_keep_their_parentheses() -> None:
    half = floordiv(add(Sym("s0"), const(2)), const(3))
    body = Body()
    body.store(0, add(mul(const(3), var(0)), var(1), var(2)), body.literal(1.0))
    kernel = replace(body.kernel(["s0", "s0", 2], symbols=["s0"]), ranges=(half, half, half))
    source = generate(kernel, Config(Schedule.POINTWISE, 128))
    compile(source.text, "<kernel>", "exec")
