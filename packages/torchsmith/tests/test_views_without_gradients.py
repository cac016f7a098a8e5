"""Results that are views taken under ``no_grad`` of what needs a gradient: leaves that need one,
as eager's, to which gradients come where the program computes with them."""

import pytest
import torch
import torchsmith


def of_an_input(x):
    with torch.no_grad():
        v = x[:, 0]
    return v, (x * 2).sum()


def of_a_result(x):
    y = x * 2
    with torch.no_grad():
        v = y[:, 0].unsqueeze(0)
    return v, y


def of_what_is_no_result(x):
    y = x * 2
    with torch.no_grad():
        v = y[1:]
    return v, y.sum()


def of_a_view(x):
    v = x[1:]
    with torch.no_grad():
        u = v.t()
    return u, v * 2


def several(x):
    with torch.no_grad():
        v, w = x.chunk(2, 1)
        u = x.expand(2, *x.shape)
    return v, w, u, x.cos()


def detached(x):
    with torch.no_grad():
        v = x.view(-1)
    return v, v.detach(), x.sum()


def computed_with(x):
    with torch.no_grad():
        v = x[1:]
    return (v * 3).sum(), v, x * 2


def nothing_else(x):
    with torch.no_grad():
        v = x[1:]
    return (v * 3).sum(), v


def not_returned(x):
    with torch.no_grad():
        v = x[1:]
    return ((v * 3).sum(),)


def viewed_with_a_gradient(x):
    with torch.no_grad():
        v = x[1:]
    u = v.t()
    return u, (u * 2).sum(), v


def made(x):
    return x[1:].detach().requires_grad_(), x.sum()


def written_by_the_way(x):
    v = x.data
    v.mul_(2)
    with torch.no_grad():
        u = x.view(-1)
        v.mul_(2)
        w = u + 1
    return w, (x * 3).sum()


IN_KERNELS = [
    of_an_input,
    of_a_result,
    of_what_is_no_result,
    of_a_view,
    several,
    detached,
    written_by_the_way,
]
OTHERS = [computed_with, nothing_else, not_returned, viewed_with_a_gradient, made]


def seen(fn, columns, leaf):
    """Results, what autograd knows of them, and every gradient after a pass through each."""
    torch.manual_seed(columns)
    x = torch.randn(4, columns, requires_grad=True)
    results = fn(x if leaf else x * 1)
    known = [(r.requires_grad, r.is_leaf, r.grad_fn is None, r._is_view()) for r in results]
    for result in results:
        if result.requires_grad:
            result.square().sum().backward(retain_graph=True)
    leaves = [x, *(r for r in results if r.is_leaf)]
    return known, [*results, *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("leaf", [True, False])
@pytest.mark.parametrize("fn", [*IN_KERNELS, *OTHERS], ids=lambda fn: fn.__name__)
def test_they_are_eagers(fn, leaf, dynamic):
    compiled = torchsmith.compile(fn, dynamic=dynamic)
    for columns in (6, 6, 8, 10):
        known, tensors = seen(compiled, columns, leaf)
        expected, true = seen(fn, columns, leaf)
        assert known == expected
        assert [t is None for t in tensors] == [t is None for t in true]
        for mine, right in zip(tensors, true, strict=True):
            if right is not None:
                torch.testing.assert_close(mine, right)


@pytest.mark.parametrize("fn", IN_KERNELS, ids=lambda fn: fn.__name__)
def test_their_graphs_are_compiled(fn):
    x = torch.randn(4, 6, requires_grad=True)
    assert torchsmith.explain(fn)(x).kernels, "it runs operator by operator"
