"""Graphs with symbolic sizes: one plan for all sizes."""

import pytest
import torch
import torch.nn.functional as F
from plans import kernels, run_plan, trace
from torchsmith_fx_backend._src.loops import index as ix
from torchsmith_fx_backend._src.schedule import schedule_graph
from torchsmith_fx_backend._src.schedule.plan import BindSymbol


def attention(q, mask):
    b, s, h = q.shape
    x = q.view(b, s, 4, h // 4).transpose(1, 2)
    scores = (x @ x.transpose(2, 3)) / 2.0 + mask
    y = F.softmax(scores, -1) @ x
    return y.transpose(1, 2).reshape(b, s, h) + q


CASES = {
    "pointwise": (lambda x: x * 2 + x.shape[0], [(5, 7)], 1),
    "softmax": (lambda x: F.softmax(x * 0.5, -1), [(3, 5, 7)], 1),
    "merge": (lambda x: (x.exp().view(-1, x.shape[-1]) * 2).sum(-1), [(3, 5, 7)], 1),
    "split": (lambda x: (x.view(x.shape[0], 2, -1).exp() + 1).flatten(1), [(3, 8)], 1),
    "cat": (lambda x, y: torch.cat([x * 2, y], 0).relu(), [(3, 4), (6, 4)], 1),
    "slice": (lambda x: x[:, 1:] - x[:, :-1], [(3, 6)], 1),
    "norm": (
        lambda x: (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True) + 1e-5),
        [(4, 6)],
        1,
    ),
    "arange": (lambda x: x + torch.arange(x.shape[1]), [(4, 6)], 1),
    "attention": (attention, [(2, 6, 8), (6, 6)], None),
}


@pytest.mark.parametrize("name", CASES)
def test_one_plan_for_other_sizes(name):
    fn, shapes, count = CASES[name]
    example = [torch.randn(s) for s in shapes]
    plan = schedule_graph(trace(fn, *example, mode="symbolic"))
    if count is not None:
        assert len(kernels(plan)) == count
    for grow in (0, 1, 3):
        sizes = [tuple(n + 2 * grow if n not in (4, 8, 2) else n for n in s) for s in shapes]
        args = [torch.randn(s) for s in sizes]
        (got,) = run_plan(plan, args)
        want = fn(*args)
        assert got.shape == want.shape and got.stride() == want.stride()
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_symbols_are_bound_once_from_inputs():
    plan = schedule_graph(
        trace(lambda x, y: x + y, torch.randn(5, 7), torch.randn(5, 7), mode="symbolic")
    )
    bound = [s.symbol for s in plan.steps if isinstance(s, BindSymbol)]
    assert len(bound) == len(set(bound)) > 0
    (kernel,) = kernels(plan)
    assert set(kernel.symbols) <= set(bound)


def test_size_results_are_expressions():
    def fn(x):
        return x + 1, x.shape[0] * 2

    plan = schedule_graph(trace(fn, torch.randn(5, 7), mode="symbolic"))
    assert isinstance(plan.outputs[1], ix.Index)
    _, size = run_plan(plan, [torch.randn(9, 7)])
    assert size == 18


def test_contiguous_symbolic_space_is_one_axis():
    (kernel,) = kernels(
        schedule_graph(trace(lambda x: x.exp() + 1, torch.randn(5, 7, 9), mode="symbolic"))
    )
    assert len(kernel.ranges) == 1


def test_an_input_may_be_called_like_a_symbol():
    gm = trace(lambda x, y: (x + y).sum(), torch.randn(5, 7), torch.randn(5, 7), mode="symbolic")
    symbols = [s.symbol for s in schedule_graph(gm).steps if isinstance(s, BindSymbol)]
    holders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    assert len(symbols) == 2
    for holder, symbol in zip(holders, symbols, strict=True):
        holder.name = holder.target = symbol
    plan = schedule_graph(gm)
    args = torch.randn(3, 4), torch.randn(3, 4)
    (got,) = run_plan(plan, args)
    torch.testing.assert_close(got, (args[0] + args[1]).sum())
