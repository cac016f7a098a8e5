"""Tensors of other kinds, hooks on tensors, optimizers, and operators that take functions: eager's
results and gradients, and the number of graphs."""

import copy
import warnings

import pytest
import torch
import torchsmith_tracer as tracer
from torch import nn
from torch.utils.checkpoint import checkpoint
from torchsmith_tracer.errors import FullGraphError

X = torch.arange(6.0).reshape(2, 3)


def leaf():
    return X.clone().requires_grad_()


def hooked_intermediate(a):
    b = a * 2
    b.register_hook(lambda g: g * 10)
    return b + 1


def hooked_input(a):
    a.register_hook(lambda g: g * 10)
    return a * 2 + 1


def hook_removed(a):
    handle = a.register_hook(lambda g: g * 10)
    b = a * 2
    handle.remove()
    return b + 1


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return a * 3

    @staticmethod
    def backward(ctx, g):
        (a,) = ctx.saved_tensors
        return g * a * 100


def own_backward(a):
    return Scaled.apply(a * 2) + 1


def recomputed(a):
    return checkpoint(lambda x: x.sin().cos(), a * 2, use_reentrant=False) + 1


def branches(a):
    y = a * 5
    return torch.cond(a.sum() > 0, lambda x: x + y + y, lambda x: x - y, (a,))


def nested_branches(a):
    y = a * 5

    def positive(x):
        return torch.cond(x.sum() > 3, lambda z: z + y, lambda z: z * y, (x,))

    return torch.cond(a.sum() > 0, positive, lambda x: x - y, (a,))


@pytest.mark.parametrize(
    ("fn", "graphs", "node"),
    [
        (hooked_intermediate, 2, ""),
        (hooked_input, 2, ""),
        (hook_removed, 3, ""),
        (own_backward, 1, "autograd_function"),
        (recomputed, 1, "checkpoint"),
        (branches, 1, "cond"),
        (nested_branches, 1, "cond"),
    ],
)
def test_gradients_are_eagers(fn, graphs, node, capture):
    run = tracer.compile(fn, backend=capture)
    for sign in (1, -1, 1):
        own, other = leaf() * sign, leaf() * sign
        own, other = own.detach().requires_grad_(), other.detach().requires_grad_()
        result, expected = run(own), fn(other)
        assert torch.equal(result, expected)
        result.sum().backward()
        expected.sum().backward()
        assert torch.equal(own.grad, other.grad)
    assert 1 <= capture.n <= graphs
    if node:
        names = [getattr(t, "__name__", str(t)) for t in capture.targets(0)]
        assert sum(node in name for name in names) == 1


@pytest.mark.parametrize("fn", [branches, nested_branches])
def test_each_branch_lifts_a_tensor_once(fn, capture):
    tracer.compile(fn, backend=capture)(X)
    (node,) = [n for n in capture.graphs[0].graph.nodes if "cond" in str(n.target)]
    split, operands = node.args[3], node.args[4:]
    for part in (operands[:split], operands[split:]):
        assert len(part) == len(set(part)) == 2


@pytest.mark.parametrize("what", ["effect", "break"])
def test_a_branch_must_be_captured_whole(what):
    seen = []

    def taken(x):
        if what == "effect":
            seen.append(1)
        else:
            torch._dynamo.graph_break()
        return x + 1

    def fn(a):
        return torch.cond(a.sum() > 0, taken, lambda x: x - 1, (a,))

    import torch._dynamo

    with pytest.raises(FullGraphError, match="cond" if what == "effect" else "graph_break"):
        tracer.compile(fn, fullgraph=True)(X)


def jagged(*lengths):
    rows = [torch.full((n, 3), float(n)) for n in lengths]
    return torch.nested.nested_tensor(rows, layout=torch.jagged)


def strided(*lengths):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.full((n, 3), float(n)) for n in lengths])


class Named(torch.Tensor):
    pass


@pytest.mark.parametrize(
    ("fn", "inputs"),
    [
        (lambda a: (a * 2 + 1).values(), [jagged(1, 2), jagged(3, 2, 4), jagged(2, 5)]),
        (lambda a: (a * 2).unbind()[0], [strided(1, 2), strided(2, 2)]),
        (lambda a: (a * 2).to_dense(), [X.to_sparse(), X.to_sparse()]),
        (lambda a: a * 2, [X.as_subclass(Named), X]),
        (lambda a: type(a.as_subclass(Named) * 2), [X, X]),
    ],
    ids=["jagged", "nested", "sparse", "subclass", "made a subclass"],
)
def test_tensors_of_other_kinds(fn, inputs, agree):
    for tensor in inputs:
        run = tracer.compile(fn)
        for _ in range(2):
            result, expected = run(tensor), fn(tensor)
            assert type(result) is type(expected) and repr(result) == repr(expected)


def test_an_lstm_is_one_graph(check):
    layer = nn.LSTM(3, 4)
    check(lambda a: layer(a)[0] * 2, X, graphs=1, fullgraph=True)


@pytest.mark.parametrize("used", [False, True], ids=["alone", "after the stock compiler"])
def test_a_step_of_an_optimizer_is_one_graph(used, capture):
    if used:  # which disables optimizers, for itself
        torch.compile(lambda a: a + 1, backend="eager")(X)
    own, other = nn.Parameter(X.clone()), nn.Parameter(X.clone())
    optimizer = torch.optim.SGD([own], lr=0.5)
    step = tracer.compile(lambda: optimizer.step(), backend=capture)
    for k in (1.0, 2.0, 3.0):
        own.grad = torch.full_like(own, k)
        step()
        other.data -= 0.5 * k
        assert torch.equal(own, other)
    assert capture.n == 1


def test_a_copy_of_the_graph_gives_the_same(capture):
    tracer.compile(branches, backend=capture)(X)
    assert torch.equal(copy.deepcopy(capture.graphs[0])(X)[0], branches(X))
