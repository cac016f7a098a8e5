"""What a first training call leaves undone: code of the captured graph, copies of other graphs."""

import pytest
import torch
from torch import fx
from torchsmith_fx_backend import smith
from torchsmith_fx_backend._src.aot import joint
from torchsmith_fx_backend._src.capture.recorder import LazyGraphModule, copy_node


class Written(LazyGraphModule):
    """Writes its code when its ``forward`` is read, as graphs of tracers do, and counts that."""

    times = 0

    @property
    def forward(self):
        self.times += 1
        self._refresh()  # gives its class the method
        return self.forward


def step(call, method, weight, x):
    """A product that a backward pass goes through, and a write to ``x`` before."""
    return (call(torch.sum, (call(torch.mul, (weight, method("add_", (x, 1)))),)),)


def alone(call, method, weight, x):
    """The step of an optimizer: nothing of it has a history."""
    call(torch._C._set_grad_enabled, (False,))
    method("addcmul_", (weight, x, x))
    total = call(torch.sum, (x,))
    call(torch._C._set_grad_enabled, (True,))
    return (total,)


def _captured(fn):
    graph = fx.Graph()
    weight, x = graph.placeholder("weight"), graph.placeholder("x")
    graph.output(tuple(fn(graph.call_function, graph.call_method, weight, x)))
    return Written({}, graph)


def _call(run, n):
    weight, x = torch.full((n,), 2.0, requires_grad=True), torch.arange(float(n))
    results = run(weight, x)
    if results[0].requires_grad:
        results[0].backward()
    return *results, weight, x, weight.grad


@pytest.mark.parametrize("fn", [step, alone])
def test_the_captured_graph_has_no_code_until_a_call_is_unlike_the_first(fn):
    gm, eager = _captured(fn), _captured(fn)
    compiled = smith(gm, [torch.ones(4, requires_grad=True), torch.ones(4)])
    for _ in range(2):
        torch.testing.assert_close(_call(compiled, 4), _call(eager, 4))
    assert not gm.times
    weight, x = torch.ones(4), torch.arange(4.0)
    again = weight.clone(), x.clone()
    torch.testing.assert_close(compiled(weight, x), eager(*again))
    torch.testing.assert_close((weight, x), again)
    assert gm.times == 1


def test_a_graph_without_a_backward_pass_is_not_copied(monkeypatch):
    copies = []

    def counted(graph, node, *rest):
        copies.append(node)
        return copy_node(graph, node, *rest)

    monkeypatch.setattr(joint, "copy_node", counted)
    smith(_captured(alone), [torch.ones(4, requires_grad=True), torch.ones(4)])
    assert not copies
    smith(_captured(step), [torch.ones(4, requires_grad=True), torch.ones(4)])
    assert copies
