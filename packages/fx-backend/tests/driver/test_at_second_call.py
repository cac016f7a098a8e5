"""A graph that is likely called once runs as it was captured, and is compiled when it is called
again."""

import pytest
import torch
from torch import fx
from torchsmith_fx_backend import smith
from torchsmith_fx_backend._src.at_second_call import AtSecondCall
from torchsmith_fx_backend._src.runtime.progress import written_before


def graph(body, *inputs, undoes="self.state"):
    gm = fx.symbolic_trace(body)
    for node, example in zip(gm.graph.find_nodes(op="placeholder"), inputs):
        node.meta["example_value"] = example
    gm.meta["undoes"] = undoes
    return gm


@pytest.mark.parametrize("needs_grad", [False, True])
def test_it_is_compiled_at_the_second_call(needs_grad):
    def body(x, y):
        return (torch.sin(x) * 2 + torch.cos(y)).sum(1)

    def inputs(seed):
        torch.manual_seed(seed)
        return [torch.randn(4, 5, requires_grad=needs_grad) for _ in range(2)]

    compiled = smith(graph(body, *inputs(0)), inputs(0))
    assert isinstance(compiled, AtSecondCall)
    for call in range(4):
        assert bool(getattr(compiled, "kernels", ())) == (call > 1)
        mine, eager = inputs(call), inputs(call)
        found, expected = compiled(*mine), body(*eager)
        torch.testing.assert_close(found, expected)
        if needs_grad:
            found.sum().backward()
            expected.sum().backward()
            for a, b in zip(mine, eager):
                torch.testing.assert_close(a.grad, b.grad)


def test_it_is_compiled_at_once_without_such_a_word():
    gm = graph(lambda x: torch.sin(x) + 1, torch.ones(3), undoes=None)
    assert smith(gm, [torch.ones(3)]).kernels


def test_writes_are_done_once():
    def body(x, y):
        x.add_(y)
        return x * 2

    compiled = smith(graph(body), [torch.ones(3), torch.ones(3)])
    x = torch.ones(3)
    for call in range(3):
        found = compiled(x, torch.ones(3))
        assert torch.equal(x, torch.full((3,), call + 2.0))
        assert torch.equal(found, x * 2)


def test_what_a_failing_call_has_written_is_told():
    def fails(x):
        raise RuntimeError("out of memory")

    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    graph.call_method("add_", (x, y))
    graph.output((graph.call_function(fails, (y,)),))
    module = fx.GraphModule({}, graph)
    module.meta["undoes"] = "self.state"
    given = [torch.ones(3), torch.ones(3)]
    with pytest.raises(RuntimeError, match="out of memory") as caught:
        smith(module, given)(*given)
    (written,) = written_before(caught.value)
    assert written is given[0]
