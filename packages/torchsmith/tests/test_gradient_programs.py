"""Programs with gradients that eager and compiled code must agree about, over several calls."""

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torchsmith


@pytest.mark.parametrize("wanted", [False, True])
def test_tangents_of_forward_differentiation_go_through(wanted):
    def function(x):
        return x.sin() * 2

    compiled = torchsmith.compile(function)
    x = torch.ones(3, requires_grad=wanted)
    for inside in (False, True, False, True):
        if not inside:
            torch.testing.assert_close(compiled(x), function(x))
            continue
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, torch.full((3,), 2.0))
            got, want = (forward_ad.unpack_dual(f(dual)) for f in (compiled, function))
            torch.testing.assert_close(got.primal, want.primal)
            torch.testing.assert_close(got.tangent, want.tangent)
            assert compiled(dual).requires_grad is wanted


def made_leaf(x):
    y = x.detach().view(2, 2).requires_grad_()
    return y, y * 2


def made_parameter(x):
    y = torch.full((2,), 3.0, requires_grad=True)
    return y, (x[:2] * y).sum()


@pytest.mark.parametrize("function", [made_leaf, made_parameter])
def test_leaves_that_a_program_makes(function):
    compiled = torchsmith.compile(function)
    for _ in range(2):
        sides = []
        for each in (function, compiled):
            y, result = each(torch.ones(4))
            result.sum().backward()
            sides.append((y.is_leaf, y.requires_grad, y.grad.tolist(), result.requires_grad))
        assert sides[0] == sides[1]


def copied(b, x):
    b.copy_(x * 2)
    return b.sin()


def put(b, x):
    b.index_copy_(0, torch.tensor([2, 0]), x[:2])
    return x * 3


def added(b, x):
    b[1:] += x[1:]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("function", [copied, put, added])
def test_what_gets_a_history_in_the_graph_is_compiled_as_it_came(function, dynamic, caplog):
    torchsmith.reset()
    torchsmith.clear_metrics()
    compiled = torchsmith.compile(function, dynamic=dynamic)
    with caplog.at_level("INFO", "torchsmith.backend"):
        for _ in range(2):
            sides = []
            for each in (function, compiled):
                b, x = torch.ones(4), torch.arange(4.0, requires_grad=True)
                made = each(b, x)
                (b * b + (0 if made is None else made)).sum().backward()
                sides.append([b.detach(), x.grad])
            torch.testing.assert_close(*sides)
    assert not caplog.records
    assert {graph.kind for graph in torchsmith.metrics().graphs} == {"forward", "backward"}
