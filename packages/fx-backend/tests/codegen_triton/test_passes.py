"""How often a looped kernel walks its rows, and what it does on which walk."""

from __future__ import annotations

from samples import Body, row_major
from torchsmith_fx_backend._src.codegen.triton.passes import plan_passes
from torchsmith_fx_backend._src.loops.index import var
from torchsmith_fx_backend._src.loops.ir import Kernel, Op, ReduceOp

HERE = row_major([4, 100])


def softmax(scale: float | None = None, in_place: bool = False) -> Kernel:
    body = Body()
    x = body.load(0, HERE)
    shifted = body.op(Op.SUB, x, body.reduce(ReduceOp.MAX, x))
    if scale is not None:
        shifted = body.op(Op.MUL, shifted, body.literal(scale))
    e = body.op(Op.EXP, shifted)
    y = body.op(Op.DIV, e, body.reduce(ReduceOp.SUM, e))
    body.store(0 if in_place else 1, HERE, y)
    return body.kernel([4, 100], 1)


def test_softmax_walks_twice_in_the_online_form() -> None:
    passes = plan_passes(softmax(), online=True)
    assert passes.count == 2
    assert passes.online == {5 - 1: (1, 0)}
    assert [number for number, _ in passes.reductions(1)] == [1, 4]
    assert passes.full_nodes(1) == [0], "only the value is needed, not its exponential"
    assert plan_passes(softmax(), online=False).count == 3


def test_a_different_exponent_is_not_online() -> None:
    passes = plan_passes(softmax(scale=2.0), online=True)
    assert passes.online == {}
    assert passes.count == 3


def test_loads_that_come_again_are_kept_in_the_cache() -> None:
    passes = plan_passes(softmax(), online=True)
    assert passes.loads_again(0, 1)
    assert not passes.loads_again(0, 2)


def test_stores_happen_as_early_as_they_may() -> None:
    def stored(arg: int) -> int:
        body = Body()
        x = body.load(0, HERE)
        doubled = body.op(Op.ADD, x, x)
        if arg == 1:
            body.store(1, HERE, doubled)
        first = body.reduce(ReduceOp.MAX, x)
        second = body.reduce(ReduceOp.SUM, body.op(Op.MUL, x, first))
        body.store(1 + arg, var(0), second)
        if arg == 0:
            body.store(0, HERE, body.op(Op.MUL, x, second))
        passes = plan_passes(body.kernel([4, 100], 1), online=True)
        (at,) = passes.store_pass.values()
        return at

    assert stored(1) == 1
    assert stored(0) == 3, "a buffer that is read keeps its contents until the last walk"


def test_in_place_softmax_stores_on_the_last_walk() -> None:
    passes = plan_passes(softmax(in_place=True), online=True)
    assert list(passes.store_pass.values()) == [passes.count] == [2]
