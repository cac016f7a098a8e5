"""Each pass does its one thing, and never changes what a program computes or what aliases what."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "aot"))

import pytest
import torch
from corpus import CASES, tolerance
from differential import capture, check
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torchsmith_fx_backend._src.passes import (
    PASSES,
    CommonSubexpressions,
    DeadCode,
    FoldConstants,
    NoOps,
    RedundantCasts,
)
from torchsmith_fx_backend._src.passes.base import insert, run_passes, verify

aten = torch.ops.aten


def targets(fn, *inputs, passes):
    graph = capture(fn, inputs).module.graph
    run_passes(graph, passes, check=True)
    return [n.target for n in graph.nodes if n.op == "call_function"]


@pytest.mark.parametrize("name", CASES)
def test_all_passes_keep_the_program(name):
    fn, *inputs = CASES[name]

    def transform(module):
        run_passes(module.graph, PASSES, check=True)
        module.recompile()

    check(fn, *inputs, transform=transform, **tolerance(inputs))


def test_dead_code_goes_and_random_draws_stay():
    def fn(a):
        a.sin()
        torch.rand(3)
        return a + 1

    kept = targets(fn, torch.randn(3), passes=[DeadCode()])
    assert kept == [aten.rand.default, aten.add.Tensor]


def test_equal_calls_merge():
    fn = lambda a: a.sin() * a.sin() + (a + 1) * (a + 1.0)
    kept = targets(fn, torch.randn(3), passes=[CommonSubexpressions()])
    assert kept.count(aten.sin.default) == 1
    assert kept.count(aten.add.Tensor) == 3  # a + 1 and a + 1.0 are different calls


def test_equal_outputs_stay_two_tensors():
    kept = targets(lambda a: (a + 1, a + 1), torch.randn(3), passes=[CommonSubexpressions()])
    assert kept.count(aten.add.Tensor) == 2


def test_random_draws_do_not_merge():
    fn = lambda a: torch.rand(3) - torch.rand(3)
    kept = targets(fn, torch.randn(3), passes=[CommonSubexpressions()])
    assert kept.count(aten.rand.default) == 2


def test_inner_clone_goes_and_returned_clone_of_input_stays():
    x = torch.randn(3, 4)
    assert targets(lambda a: a.clone() + 1, x, passes=[NoOps()]) == [aten.add.Tensor]
    assert targets(lambda a: a.clone(), x, passes=[NoOps()]) == [aten.clone.default]
    assert targets(lambda a: (a + 1).clone(), x, passes=[NoOps()]) == [aten.add.Tensor]
    kept = targets(lambda a: (lambda b: (b, b.clone()))(a + 1), x, passes=[NoOps()])
    assert kept == [aten.add.Tensor, aten.clone.default]


def test_clone_that_changes_strides_stays():
    fn = lambda a: a.t().contiguous().view(-1) * 2
    assert aten.clone.default in targets(fn, torch.randn(3, 4), passes=[NoOps()])


def test_view_that_changes_nothing_goes_unless_returned():
    x = torch.randn(3, 4)
    fn = lambda a: a.view(3, 4).expand(3, 4).detach()[:] + 1
    assert targets(fn, x, passes=[NoOps()]) == [aten.add.Tensor]
    assert targets(lambda a: a.view(3, 4), x, passes=[NoOps()]) == [aten.view.default]
    assert targets(lambda a: a.t().t() + 1, x, passes=[NoOps()]).count(aten.t.default) == 1
    kept = targets(lambda a: a[:2][1:].t().t() + a[1:][:1].view(-1), x, passes=[NoOps()])
    assert kept.count(aten.slice.Tensor) == 4
    assert kept.count(aten.t.default) == 1
    moved = targets(lambda a: a.view(-1).as_strided((3, 4), (4, 1), 0) + 1, x, passes=[NoOps()])
    assert aten.as_strided.default in moved


def test_swap_through_clones_survives():
    def fn(a, b):
        c = a.clone()
        a.copy_(b)
        b.copy_(c)

    kept = targets(fn, torch.randn(3), torch.randn(3), passes=[NoOps()])
    assert kept.count(aten.clone.default) == 2


def test_up_and_down_cast_goes():
    x = torch.randn(4).bfloat16()
    passes = [RedundantCasts(), DeadCode()]
    assert targets(lambda a: a.float().bfloat16() + 1, x, passes=passes) == [aten.add.Tensor]
    kept = targets(lambda a: a.float().double() + 1, x, passes=passes)
    assert kept == [aten._to_copy.default, aten.add.Tensor]
    lossy = targets(lambda a: a.half().float() + 1, torch.randn(4), passes=passes)
    assert lossy.count(aten._to_copy.default) == 2


def test_arithmetic_on_constants_folds():
    fn = lambda a: a * (torch.full((3,), 2.0) * 3 + 1)
    graph = capture(fn, (torch.randn(3),)).module.graph
    run_passes(graph, [FoldConstants(), DeadCode()], check=True)
    full, mul = (n for n in graph.nodes if n.op == "call_function")
    assert full.target is aten.full.default and full.args == ([3], 7.0)
    assert mul.target is aten.mul.Tensor


def test_folding_keeps_types():
    fn = lambda a: a + torch.full((3,), 7) / 2
    graph = capture(fn, (torch.randn(3),)).module.graph
    run_passes(graph, [FoldConstants(), DeadCode()], check=True)
    full = next(n for n in graph.nodes if n.op == "call_function")
    assert full.args == ([3], 3.5)
    assert full.kwargs["dtype"] is torch.float32


def test_verifier_names_the_offending_node():
    graph = capture(lambda a: a + 1, (torch.randn(3),)).module.graph
    node = next(n for n in graph.nodes if n.op == "call_function")
    node.target = aten.add_.Tensor
    with pytest.raises(ValueError, match="writes: .*add"):
        verify(graph)


def test_metadata_is_that_of_the_graph_where_autocast_is_on():
    """A graph has the casts of its own program in it, and is compiled within that program."""
    with FakeTensorMode() as mode:
        half, single = (mode.from_tensor(torch.ones(3, 3, dtype=d)) for d in (torch.bfloat16, None))
    graph = fx.Graph()
    nodes = [graph.placeholder("half"), graph.placeholder("single")]
    for node, value in zip(nodes, (half, single)):
        node.meta["val"] = value
    with torch.autocast("cpu", torch.bfloat16):
        assert insert(graph, aten.prod.default, nodes[0]).meta["val"].dtype is torch.bfloat16
        assert insert(graph, aten.mm.default, nodes[1], nodes[1]).meta["val"].dtype is torch.float32
