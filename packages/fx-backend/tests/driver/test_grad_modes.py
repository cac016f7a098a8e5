"""Graphs that switch gradients on, where the caller has them off and the other way round."""

import itertools
import operator

import pytest
import torch
from torch import fx
from torchsmith_fx_backend import smith
from torchsmith_fx_backend._src import settings


class _Told(fx.Interpreter):
    """Notes what nodes give, as tracers do."""

    def run_node(self, n):
        n.meta["example_value"] = result = super().run_node(n)
        return result


def _graph(fn):
    """``fn`` as tracers capture it: its switches of grad mode are nodes."""
    graph = fx.Graph()
    x, w = graph.placeholder("x"), graph.placeholder("w")
    results = fn(graph.call_function, x, w)
    graph.output(tuple(results))
    return fx.GraphModule({}, graph)


def _switch(call, on):
    call(torch._C._set_grad_enabled, (on,))


def one_part(call, x, w):
    a = call(torch.mul, (x, w))
    _switch(call, True)
    b = call(torch.sin, (call(torch.mul, (x, w)),))
    _switch(call, False)
    return a, b, call(torch.cos, (b,))


def views(call, x, w):
    _switch(call, True)
    b = call(torch.mul, (x, 2))
    part = call(torch.select, (b, 0, 1))
    _switch(call, False)
    return b, part, call(torch.t, (b,)), call(torch.t, (x,))


def leaf_inside(call, x, w):
    _switch(call, True)
    y = call(torch.Tensor.requires_grad_, (call(torch.Tensor.detach, (x,)),))
    loss = call(torch.sum, (call(torch.mul, (call(torch.sin, (y,)), w)),))
    grads = call(torch.autograd.grad, (loss, (y,)))
    _switch(call, False)
    return (call(torch.mul, (call(operator.getitem, (grads, 0)), 2)),)


def _outcome(run, grad, wanted):
    x = torch.arange(6.0).view(2, 3).requires_grad_(wanted)
    w = torch.full((2, 3), 2.0).requires_grad_(wanted)
    with torch.set_grad_enabled(grad):
        results = run(x, w)
    live = [r for r in results if r.requires_grad]
    if live:
        sum((r * r).sum() for r in live).backward()
    return [r.requires_grad for r in results], [r.detach() for r in results], [x.grad, w.grad]


@pytest.mark.parametrize("name", ["one_part", "views", "leaf_inside"])
@pytest.mark.parametrize(("grad", "wanted"), list(itertools.product((True, False), repeat=2)))
def test_gradients_switched_on_inside(name, grad, wanted):
    gm = _graph(globals()[name])
    examples = [torch.ones(2, 3).requires_grad_(wanted) for _ in range(2)]
    with torch.set_grad_enabled(grad):
        _Told(traced := _graph(globals()[name])).run(*examples)
    with settings.patch(graph_cache=False, strict=True), torch.set_grad_enabled(grad):
        run = smith(traced, examples)
    for called in {grad, not grad} if name == "one_part" else {grad}:
        mine, true = (_outcome(f, called, wanted) for f in (run, gm))
        assert mine[0] == true[0]
        for a, b in zip(mine[1] + mine[2], true[1] + true[2]):
            torch.testing.assert_close(a, b)


def test_what_is_differentiated_twice_runs_again_in_the_same_mode():
    fn = _graph(one_part)
    found = []
    examples = [torch.ones(2, 3).requires_grad_() for _ in range(2)]
    for make in (lambda gm: smith(gm, examples), lambda gm: gm):
        x = torch.arange(6.0).view(2, 3).requires_grad_()
        w = torch.full((2, 3), 2.0).requires_grad_()
        with settings.patch(graph_cache=False, strict=True), torch.no_grad():
            b = make(fn)(x, w)[1]
        (first,) = torch.autograd.grad(b.sum(), x, create_graph=True)
        found.append((first, *torch.autograd.grad(first.square().sum(), (x, w))))
    for mine, true in zip(*found):
        torch.testing.assert_close(mine, true)
