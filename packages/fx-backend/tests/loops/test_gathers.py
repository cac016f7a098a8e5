"""Operators that read where other tensors say, against eager: values, layouts and errors."""

import math

import pytest
import torch
import torch.nn.functional as F
from loop_reader import read_kernel
from plans import check, externs, kernels, trace
from torch import fx
from torchsmith_fx_backend import Settings, compile_graph
from torchsmith_fx_backend._src.loops import index as ix
from torchsmith_fx_backend._src.loops.ir import BufferArg, Kernel, Load, Position, Store
from torchsmith_fx_backend._src.loops.verify import IllegalKernelError, verify
from torchsmith_fx_backend._src.records.kernels import print_kernel
from torchsmith_fx_backend._src.schedule import schedule_graph

STRICT = Settings(graph_cache=False, verify=True, strict=True)
X = torch.arange(4 * 5 * 6, dtype=torch.float32).reshape(4, 5, 6)
I = torch.tensor

CASES = {
    "embedding": (lambda w, j: F.embedding(j, w) * 2, X[0], I([[0, 4], [4, 1]])),
    "embedding of one": (lambda w, j: F.embedding(j, w), X[0], I(3)),
    "index_select": (lambda x, j: x.index_select(1, j) + 1, X, I([0, 4, 4])),
    "gather": (lambda x, j: x.gather(2, j) + j, X, torch.arange(40).reshape(4, 5, 2) % 6),
    "gather of fewer rows": (lambda x, j: x.gather(0, j), X, torch.zeros(1, 2, 3).long()),
    "gather of int32": (lambda x, j: x.gather(1, j), X[0], I([[5, 0]], dtype=torch.int32)),
    "take_along_dim": (lambda x, j: torch.take_along_dim(x, j, 1), X, I([[[-1]], [[2]]] * 2)),
    "leading": (lambda x, j: x[j] - 1, X, I([0, -1, -4, 0])),
    "inner": (lambda x, j: x[:, j] * 3, X, I([[0, -1], [2, 2]])),
    "neighbours": (lambda x, j, k: x[:, j, k], X, I([0, -1]), I([[1], [-6]])),
    "apart": (lambda x, j, k: x[j, :, k] * 2, X, I([0, -1]), I([1])),
    "three": (lambda x, j: x[j, j, j] + 1, X, I([0, 3, -2])),
    "a known position": (lambda x, j: x[torch.arange(3), j], X, I([2, 0, 1])),
    "a strided source": (lambda x, j: x.permute(2, 0, 1)[j] + 1, X, I([0, 5])),
    "strided positions": (lambda x, j: x[j[::2]] + 1, X, I([0, 9, 3, 9])),
    "a computed position": (lambda x, j: x[(j * 2 - 1).clamp(min=0)], X, I([0, 1, 2])),
    "its own argmax": (lambda x: x.gather(1, x.argmax(1, keepdim=True)), X[0].sin()),
    "then a reduction": (lambda x, j: x[:, j].sum(1), X, I([0, 1, 1])),
    "then a norm": (lambda w, j: F.layer_norm(F.embedding(j, w) + 1, (6,)), X[0], I([1, 0])),
    "within cat": (lambda x, j: torch.cat([x[j], x], 0) + 1, X, I([3])),
    "no positions": (lambda x, j: x[j] + 1, X, I([], dtype=torch.int64)),
    "twice": (lambda x, j: x[j][j] * 2, X, I([1, 0, 2])),
    "of a table that is computed": (lambda x, j: (x * 2 + 1)[j], X, I([1, 1, 1, 0, 2, 3])),
}


@pytest.mark.parametrize("name", CASES)
def test_against_eager(name):
    fn, *args = CASES[name]
    plan = check(fn, *args, tolerance=1e-5)
    if name != "no positions":
        assert not externs(plan), externs(plan)
    for kernel in kernels(plan):
        assert read_kernel(print_kernel(kernel)) == kernel


@pytest.mark.parametrize("name", CASES)
def test_compiled_against_eager(name):
    fn, *args = CASES[name]
    (got,) = compile_graph(_traced(fn, len(args)), args, STRICT)(*args)
    want = fn(*args)
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want)


def _traced(fn, count):
    names = ", ".join(f"x{n}" for n in range(count))
    scope = {"fn": fn}
    exec(f"def call({names}):\n    return (fn({names}),)", scope)
    return fx.symbolic_trace(scope["call"])


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.bool, torch.int64]
)
def test_dtypes(dtype):
    x = (X % 3).to(dtype)
    check(lambda x, j: x[:, j], x, I([0, -1]))
    check(lambda x, j: F.embedding(j, x[0]), x, I([0, 1]))


def test_symbolic_sizes():
    for fn in (
        lambda x, j: F.embedding(j, x[0]) * x.shape[0],
        lambda x, j: x[:, j].exp(),
        lambda x, j: x.gather(1, j.view(1, -1, 1).expand(4, -1, 6)).sum(1),
    ):
        check(fn, X / 100, I([0, 3, 3]), mode="symbolic", tolerance=1e-5)


def test_fuses_with_neighbours():
    plan = check(CASES["then a norm"][0], *CASES["then a norm"][1:], tolerance=1e-5)
    assert len(kernels(plan)) == 1
    plan = check(lambda x, j: (x[j] * 2).relu() + x[j], X, I([0, 2]))
    assert len(kernels(plan)) == 1


ERRORS = {
    "index": (lambda x, j: x[j] * 2, I([1, 4])),
    "negative index": (lambda x, j: x[j] * 2, I([1, -5])),
    "gather": (lambda x, j: x.gather(0, j.view(2, 1, 1)) * 2, I([1, -1])),
    "index_select": (lambda x, j: x.index_select(0, j) * 2, I([9, 1])),
    "embedding": (lambda x, j: F.embedding(j, x[0]) * 2, I([-1, 1])),
    "narrower": (lambda x, j: x[j][:1] * 2, I([1, 4])),
}


@pytest.mark.parametrize("name", ERRORS)
def test_positions_outside_raise_what_eager_raises(name):
    fn, positions = ERRORS[name]
    compiled = compile_graph(_traced(fn, 2), (X, positions), STRICT)
    with pytest.raises((IndexError, RuntimeError)) as theirs:
        fn(X, positions)
    for run in (compiled, lambda *a: check(fn, *a)):
        with pytest.raises(type(theirs.value)) as ours:
            run(X, positions)
        if run is compiled:
            assert str(ours.value) == str(theirs.value)
    fine = torch.zeros_like(positions)
    torch.testing.assert_close(compiled(X, fine)[0], fn(X, fine))  # a failure leaves nothing


def test_a_masked_position_is_not_checked():
    def fn(x, j):
        return torch.cat([x[:2], torch.take_along_dim(x, j.view(-1, 1, 1), 0)], 0)

    check(fn, X, I([0, 3]))


def test_inputs_are_not_written_by_a_kernel_that_fails():
    def fn(x, y, j):
        y.add_(1)
        return x[j] + y[0]

    x, y = X.clone(), X.clone()
    compiled = compile_graph(fx.symbolic_trace(fn), (x, y, I([0])), STRICT)
    with pytest.raises(IndexError):
        compiled(x, y, I([7]))
    assert torch.equal(y, X) or torch.equal(y, X + 1)


def _kernel(position, index):
    body = (Load(0, ix.var(0), torch.int64), position, Load(1, index, torch.float32))
    body += (Store(2, ix.var(0), 2),)
    args = (BufferArg(torch.int64, True, False), BufferArg(torch.float32, True, False))
    return Kernel((ix.const(3),), 1, body, (*args, BufferArg(torch.float32, False, True)), ())


def test_verify_knows_positions():
    five = ix.const(5)
    leaf = ix.Loaded(1, five, (0,))
    sizes = (ix.const(3), five, ix.const(3))
    verify(_kernel(Position(0, five), leaf), sizes)
    wrong = (
        (Position(0, ix.const(6)), leaf),  # not the extent that the index relies on
        (Position(0, five), ix.Loaded(1, five, ())),  # differs along an axis that is not named
        (Position(0, five), ix.Loaded(0, five, (0,))),  # no position
        (Position(0, five), ix.add(leaf, ix.ONE)),  # leaves the buffer
    )
    for position, index in wrong:
        with pytest.raises(IllegalKernelError):
            verify(_kernel(position, index), sizes)


def test_nothing_is_looked_up_in_an_empty_tensor():
    empty = X[:0]
    with pytest.raises(IndexError):
        empty[I([0])]
    plan = schedule_graph(trace(lambda x, j: x[j], empty, I([], dtype=torch.int64)))
    assert not kernels(plan)


SCORES = torch.randn(6, 10)
TARGETS = I([1, 3, 3, 9, 0, 3])
LOSSES = {
    "mean": (lambda x, t: F.nll_loss(x, t), SCORES, TARGETS),
    "sum": (lambda x, t: F.nll_loss(x, t, reduction="sum"), SCORES, TARGETS),
    "ignored": (lambda x, t: F.nll_loss(x, t, ignore_index=3), SCORES, TARGETS),
    "all ignored": (lambda x, t: F.nll_loss(x, t * 0, ignore_index=0), SCORES, TARGETS),
    "ignored outside": (lambda x, t: F.nll_loss(x, t - 1, ignore_index=-1), SCORES, TARGETS),
    "weights": (lambda x, t: F.nll_loss(x, t, torch.arange(10).float()), SCORES, TARGETS),
    "one": (lambda x, t: F.nll_loss(x[0], t[0]), SCORES, TARGETS),
    "pictures": (
        lambda x, t: F.nll_loss(x, t),
        torch.randn(2, 3, 4, 5),
        torch.ones(2, 4, 5).long(),
    ),
    "bfloat16": (lambda x, t: F.nll_loss(x, t), SCORES.bfloat16(), TARGETS),
    "of each": (
        lambda x, t: F.nll_loss(x, t, torch.arange(10).float(), ignore_index=3, reduction="none"),
        SCORES,
        TARGETS,
    ),
    "of one": (lambda x, t: F.nll_loss(x[0], t[0], reduction="none") * 2, SCORES, TARGETS),
    "of each pixel": (
        lambda x, t: F.nll_loss(x.mT, t, ignore_index=2, reduction="none").relu(),
        torch.randn(2, 3, 4, 5),
        torch.arange(40).view(2, 5, 4) % 3,
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name):
    fn, *args = LOSSES[name]
    assert not externs(check(fn, *args, tolerance=1e-5))


def test_a_target_outside_raises_what_eager_raises():
    compiled = compile_graph(_traced(F.nll_loss, 2), (SCORES, TARGETS), STRICT)
    with pytest.raises(IndexError, match=r"Target 10 is out of bounds\."):
        compiled(SCORES, TARGETS + 1)


CHANCES, HITS = torch.rand(7, 33), torch.rand(7, 33)
CHANCES[0, :2], CHANCES[1, 2] = torch.tensor([0.0, 1.0]), 1e-30
# name -> (options, dtype, whether it is a loop)
CHECKED = {
    "mean": ({}, torch.float32, True),
    "sum": ({"reduction": "sum"}, torch.float32, True),
    "double": ({}, torch.float64, True),
    "each": ({"reduction": "none"}, torch.float32, False),
    "weights": ({"weight": HITS + 1}, torch.float32, False),
}


@pytest.mark.parametrize("name", CHECKED)
@pytest.mark.parametrize("size", [(7, 33), (1, 1), (4, 0)], ids=str)
def test_binary_cross_entropy(name, size):
    options, dtype, loop = CHECKED[name]
    if "weight" in options:
        options = {"weight": options["weight"][: size[0], : size[1]]}
    x, y = (t[: size[0], : size[1]].to(dtype).contiguous() for t in (CHANCES, HITS))
    fn = _traced(lambda x, y: F.binary_cross_entropy(x.sigmoid() * 0 + x, y, **options) * 2, 2)
    compiled = compile_graph(fn, (x, y), STRICT)
    torch.testing.assert_close(compiled(x, y), fn(x, y), equal_nan=True)
    called = "aten.binary_cross_entropy" in compiled.source.replace("# aten", "")
    assert called != (loop and x.numel() > 0)
    for wrong in (1.5, -0.1, math.nan) if x.numel() else ():
        x[-1, -1] = wrong
        with pytest.raises(RuntimeError, match="^all elements of input should be between 0 and 1$"):
            compiled(x, y)
        x[-1, -1] = 0.5
        torch.testing.assert_close(compiled(x, y), fn(x, y))
        right, y[-1, -1] = y[-1, -1].item(), wrong
        with pytest.raises(RuntimeError, match="^all elements of target should be between 0 and"):
            compiled(x, y)
        y[-1, -1] = right


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_cross_entropy_stores_no_row(dtype, reduction):
    def loss(x, t):
        return F.cross_entropy(x.float(), t, reduction=reduction)

    scores, targets = torch.randn(64, 1000).to(dtype), torch.arange(64)
    compiled = compile_graph(_traced(loss, 2), (scores, targets), STRICT)
    (got,) = compiled(scores, targets)
    torch.testing.assert_close(got, loss(scores, targets))
    assert "(64, 1000)" not in compiled.source
