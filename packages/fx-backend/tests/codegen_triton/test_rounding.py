"""Quotients are IEEE's, unless 16 bits are all that is kept of them."""

from __future__ import annotations

import pytest
import torch
from samples import Body
from torchsmith_fx_backend._src.codegen.triton.config import choose
from torchsmith_fx_backend._src.codegen.triton.kernel import generate
from torchsmith_fx_backend._src.loops.index import var
from torchsmith_fx_backend._src.loops.ir import Op, ReduceOp

HALF = torch.bfloat16


def rounded(body: Body, x: int, quotient: int) -> None:
    body.store(2, var(0), body.cast(quotient, HALF))


def scaled(body: Body, x: int, quotient: int) -> None:
    rounded(body, x, body.op(Op.NEG, body.op(Op.MUL, x, quotient)))


def kept(body: Body, x: int, quotient: int) -> None:
    body.store(2, var(0), quotient)


def both(body: Body, x: int, quotient: int) -> None:
    rounded(body, x, quotient)
    body.store(3, var(0), quotient)


def cancelled(body: Body, x: int, quotient: int) -> None:
    rounded(body, x, body.op(Op.SUB, x, quotient))


def compared(body: Body, x: int, quotient: int) -> None:
    rounded(body, x, body.op(Op.WHERE, body.op(Op.LT, x, quotient), x, x))


def of_another(body: Body, x: int, quotient: int) -> None:
    rounded(body, x, body.op(Op.DIV, quotient, x))


@pytest.mark.parametrize(
    ("store", "exact"),
    [(rounded, 0), (scaled, 0), (kept, 1), (both, 1), (cancelled, 1), (compared, 1),
     (of_another, 1)],
)  # fmt: skip
def test_which_quotients_are_exact(store, exact: int) -> None:
    body = Body()
    x, y = body.load(0, var(0)), body.load(1, var(0))
    store(body, x, body.op(Op.DIV, x, y))
    kernel = body.kernel([1024], 1)
    assert generate(kernel, choose(kernel)).text.count("ts.divide") == exact


def test_a_sum_tells_how_exact_its_terms_are() -> None:
    body = Body()
    x = body.load(0, var(0))
    total = body.reduce(ReduceOp.SUM, body.op(Op.DIV, x, body.op(Op.EXP, x)))
    body.store(1, var(0), body.cast(total, HALF))
    kernel = body.kernel([1024, 64], 1)
    assert generate(kernel, choose(kernel)).text.count("ts.divide") == 1
