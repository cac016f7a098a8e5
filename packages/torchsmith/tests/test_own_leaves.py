"""Graphs that make a tensor of the program, or one that they return, require a gradient."""

import pytest
import torch
import torchsmith

layer = torch.nn.Linear(3, 3).double()


def forces(pos):
    with torch.enable_grad():
        own = pos.detach().requires_grad_(True)
        energy = layer(own).square().sum()
        print(end="")  # not a part of a graph
        (force,) = torch.autograd.grad(energy.exp(), own, create_graph=True)
    return energy, force


def offset(pos):
    own = torch.zeros(4, 3, dtype=torch.double, requires_grad=True)
    return (pos + own).exp() * 2, own


def parameter(pos):
    own = torch.nn.Parameter(pos.detach() * 2)
    return (pos.detach() * own).exp() * 2, own


def switched(pos):
    own = (pos * 2).detach()
    own.requires_grad_()
    return own[0], (own * layer(own)).sum(), own


def argument(pos):
    return (layer(pos.requires_grad_()) * pos).sum(), pos.exp()


def forces_of_argument(pos):
    first = pos * 2
    pos.requires_grad_(True)
    energy = layer(pos + first).tanh().sum()
    return energy, *torch.autograd.grad(energy, pos, create_graph=True)


def hooked(pos):
    own = pos.detach().clone().requires_grad_()
    own.register_hook(lambda grad: grad * 3)
    return own, (own * pos).sum()


def test_a_hook_on_it_is_its_own():
    compiled = torchsmith.compile(hooked)
    for _ in range(3):
        pos = torch.randn(4, 3)
        own, total = compiled(pos)
        (total + own.sum()).backward()
        torch.testing.assert_close(own.grad, 3 * (pos + 1))


@pytest.mark.parametrize("fn", [forces, offset, parameter, switched, argument, forces_of_argument])
def test_gradients_reach_it_and_go_no_further(fn):
    torchsmith.clear_metrics()
    compiled = torchsmith.compile(fn, options={"strict": True})
    for seed in range(3):
        pos = torch.randn(4, 3, dtype=torch.double, generator=torch.manual_seed(seed))
        sides = []
        for run in (compiled, fn):
            pos.requires_grad_(seed == 2)
            results = run(pos)
            sum(x.sum() for x in results).backward()
            looks = [(x.requires_grad, x.is_leaf) for x in results]
            grads = [x.grad for x in (*results, layer.weight, pos) if x.is_leaf]
            sides.append((looks, [x.detach() for x in results], grads))
            layer.zero_grad()
            pos.grad = None
        assert sides[0][0] == sides[1][0]
        torch.testing.assert_close(sides[0][1:], sides[1][1:])
    failed = [g.failure for g in torchsmith.metrics().graphs]
    assert failed and "OwnLeafError" not in failed
