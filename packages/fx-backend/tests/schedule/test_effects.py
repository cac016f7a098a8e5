"""Random numbers keep their order; operators that write keep theirs among readers."""

import pytest
import torch
from plans import graph_of, run_plan, trace
from torch import fx
from torch._subclasses import FakeTensorMode
from torchsmith_fx_backend._src.schedule import schedule_graph

X = torch.randn(4, 8)


def test_random_draws_keep_their_order():
    def fn(x):
        a = torch.rand_like(x)
        b = torch.randn_like(x.sum(0, keepdim=True))
        c = torch.bernoulli(x.sigmoid())
        return b * 2, a + c, c - b

    gm = trace(fn, X)
    torch.manual_seed(3)
    want = fn(X)
    torch.manual_seed(3)
    got = run_plan(schedule_graph(gm), [X])
    for mine, theirs in zip(got, want):
        torch.testing.assert_close(mine, theirs)


def test_unused_draw_still_advances_the_generator():
    graph = fx.Graph()
    x = graph.placeholder("x")
    unused = graph.call_function(torch.ops.aten.rand_like.default, (x,))
    used = graph.call_function(torch.ops.aten.rand_like.default, (x,))
    graph.output((used,))
    fake = FakeTensorMode().from_tensor(X)
    for node in (x, unused, used):
        node.meta["val"] = fake
    plan = schedule_graph(fx.GraphModule(torch.nn.Module(), graph))
    torch.manual_seed(1)
    torch.rand_like(X)
    want = torch.rand_like(X)
    torch.manual_seed(1)
    (got,) = run_plan(plan, [X])
    assert torch.equal(got, want)


def test_a_written_temporary_is_read_before_and_after():
    """A graph that still holds a write (an operator without functional form)."""
    graph = fx.Graph()
    mode = FakeTensorMode()
    fake = mode.from_tensor(X)
    x = graph.placeholder("x")
    temporary = graph.call_function(torch.ops.aten.exp.default, (x,))
    before = graph.call_function(torch.ops.aten.neg.default, (temporary,))
    graph.call_function(torch.ops.aten.cumsum_.default, (temporary, 1))
    after = graph.call_function(torch.ops.aten.sin.default, (temporary,))
    graph.output((before, after))
    for node in graph.nodes:
        node.meta["val"] = fake
    plan = schedule_graph(fx.GraphModule(torch.nn.Module(), graph))
    got_before, got_after = run_plan(plan, [X])
    torch.testing.assert_close(got_before, -X.exp())
    torch.testing.assert_close(got_after, X.exp().cumsum(1).sin())


def test_an_input_is_written_in_another_dtype_than_it_is_computed_in():
    x, y = torch.full((5,), 2.0, dtype=torch.bfloat16), torch.arange(5)
    gm = trace(lambda a, b: a.pow_(b), x.clone(), y)
    (got,) = run_plan(schedule_graph(gm, check=True), [x, y])
    assert got.tolist() == x.tolist() == [1.0, 2.0, 4.0, 8.0, 16.0]


@pytest.mark.parametrize("exponent", [-1, -2])
def test_integers_to_negative_powers_raise(exponent):
    gm = graph_of(torch.ops.aten.pow.Tensor_Scalar, torch.tensor([1, 2]), exponent)
    with pytest.raises(RuntimeError, match="negative integer powers"):
        run_plan(schedule_graph(gm), [torch.tensor([1, 2])])
