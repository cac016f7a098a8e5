"""Each rule of the loop IR is checked, and a legal kernel passes."""

import pytest
import torch
from loop_reader import read_kernel
from loop_reference import evaluate
from torchsmith_fx_backend._src.loops import index as ix
from torchsmith_fx_backend._src.loops.ir import (
    BufferArg,
    Compute,
    IndexValue,
    Kernel,
    Literal,
    Load,
    Op,
    Reduce,
    ReduceOp,
    Store,
)
from torchsmith_fx_backend._src.loops.verify import (
    IllegalKernelError,
    full_values,
    reduce_levels,
    verify,
)
from torchsmith_fx_backend._src.records.kernels import print_kernel

F, B, BF = torch.float32, torch.bool, torch.bfloat16
c, i, j = ix.const, ix.var(0), ix.var(1)
ROW = ix.add(ix.mul(c(16), i), j)


def softmax(dtype=F):
    body = [Load(0, ROW, dtype)]
    x = 0
    if dtype is not F:
        body.append(Compute(Op.CAST, (0,), F))
        x = 1
    body += [
        Reduce(ReduceOp.MAX, x, F),
        Compute(Op.SUB, (x, x + 1), F),
        Compute(Op.EXP, (x + 2,), F),
        Reduce(ReduceOp.SUM, x + 3, F),
        Compute(Op.DIV, (x + 3, x + 4), F),
    ]
    if dtype is not F:
        body.append(Compute(Op.CAST, (len(body) - 1,), dtype))
    body.append(Store(1, ROW, len(body) - 1))
    args = (BufferArg(dtype, True, False), BufferArg(dtype, False, True))
    return Kernel((c(4), c(16)), 1, tuple(body), args, ())


@pytest.mark.parametrize("dtype", [F, BF])
def test_legal_kernel_runs(dtype):
    kernel = softmax(dtype)
    verify(kernel)
    x, y = torch.randn(4, 16).to(dtype), torch.empty(4, 16, dtype=dtype)
    evaluate(kernel, [x, y])
    torch.testing.assert_close(y, x.softmax(-1))


def test_full_and_levels():
    kernel = softmax()
    assert full_values(kernel) == [True, False, True, True, False, True, True]
    assert reduce_levels(kernel.body) == [0, 1, 1, 1, 2, 2, 2]


def test_print_and_read_back():
    for kernel in (softmax(), softmax(BF)):
        assert read_kernel(print_kernel(kernel)) == kernel
    text = print_kernel(softmax())
    assert "v1 = reduce_max(v0)" in text
    assert "store(a1, 16 * i0 + i1, v5)" in text


def kernel(
    body,
    args=((F, True, False, False), (F, False, True, False)),
    ranges=(4, 16),
    start=1,
    symbols=(),
):
    buffers = tuple(BufferArg(*a) for a in args)
    return Kernel(tuple(map(c, ranges)), start, tuple(body), buffers, symbols)


X = Load(0, ROW, F)
ILLEGAL = {
    "operand is not defined": [X, Compute(Op.NEG, (1,), F), Store(1, ROW, 1)],
    "operands differ in dtype": [
        X,
        Literal(1, torch.int64),
        Compute(Op.ADD, (0, 1), F),
        Store(1, ROW, 2),
    ],
    "result is not bool": [X, Compute(Op.LT, (0, 0), F), Store(1, ROW, 1)],
    "result dtype": [X, Compute(Op.NEG, (0,), torch.float64), Store(1, ROW, 0)],
    "store dtype": [X, Compute(Op.LT, (0, 0), B), Store(1, ROW, 1)],
    "load dtype": [Load(0, ROW, BF), Store(1, ROW, 0)],
    "axis that does not exist": [Load(0, ix.var(2), F), Store(1, ROW, 0)],
    "symbol that is not an argument": [Load(0, ix.Sym("s0"), F), Store(1, ROW, 0)],
    "wrong number of operands": [X, Compute(Op.ADD, (0,), F), Store(1, ROW, 1)],
    "arithmetic in low precision": [
        X,
        Compute(Op.CAST, (0,), BF),
        Compute(Op.NEG, (1,), BF),
        Compute(Op.CAST, (2,), F),
        Store(1, ROW, 3),
    ],
    "reduction in low precision": [
        X,
        Compute(Op.CAST, (0,), BF),
        Reduce(ReduceOp.SUM, 1, BF),
        Compute(Op.CAST, (2,), F),
        Store(1, ROW, 3),
    ],
    "mask is not bool": [X, Load(0, ROW, F, 0), Store(1, ROW, 1)],
    "index values are int64": [IndexValue(i, torch.int32), X, Store(1, ROW, 1)],
    "any/all take bool": [X, Reduce(ReduceOp.ANY, 0, F), Store(1, ROW, 1)],
    "wrong written flag": [X],
    "wrong read flag": [Literal(1.0, F), Store(1, ROW, 0)],
}


@pytest.mark.parametrize("rule", ILLEGAL)
def test_rule(rule):
    with pytest.raises(IllegalKernelError, match=rule):
        verify(kernel(ILLEGAL[rule]))


def test_no_reduction_axis():
    with pytest.raises(IllegalKernelError, match="no reduction axis"):
        verify(kernel([X, Reduce(ReduceOp.SUM, 0, F), Store(1, ROW, 1)], start=2))


def test_in_place_at_another_index():
    body = [X, Store(0, ix.add(ROW, c(1)), 0)]
    with pytest.raises(IllegalKernelError, match="another index"):
        verify(kernel(body, args=((F, True, True, True),)))
    with pytest.raises(IllegalKernelError, match="not in place"):
        verify(kernel([X, Store(0, ROW, 0)], args=((F, True, True, False),)))
    verify(kernel([X, Store(0, ROW, 0)], args=((F, True, True, True),)))


def test_in_place_before_the_last_pass():
    # Pass one overwrites the row that pass two reads again.
    body = [
        X,
        Compute(Op.NEG, (0,), F),
        Store(0, ROW, 1),
        Reduce(ReduceOp.MAX, 0, F),
        Compute(Op.SUB, (0, 3), F),
        Store(1, ROW, 4),
    ]
    args = ((F, True, True, True), (F, False, True, False))
    with pytest.raises(IllegalKernelError, match="last pass"):
        verify(kernel(body, args=args))


def test_in_place_in_the_last_pass_before_a_value_of_the_row():
    body = [
        X,
        Compute(Op.NEG, (0,), F),
        Store(0, ROW, 1),
        Reduce(ReduceOp.MAX, 1, F),
        Compute(Op.EXP, (3,), F),
        Store(1, ix.var(0), 4),
    ]
    verify(kernel(body, args=((F, True, True, True), (F, False, True, False))))


def test_literals_compare_by_text():
    assert Literal(0.0, F) != Literal(-0.0, F)
    assert Literal(float("nan"), F) == Literal(float("nan"), F)
    assert len({Literal(0.0, F), Literal(-0.0, F), Literal(0.0, F)}) == 2
