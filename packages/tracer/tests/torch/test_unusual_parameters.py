"""Modules whose parameters and buffers are more than plain tensors."""

import torch
import torchsmith_tracer
from torch import nn
from torch.nn.utils import parametrizations, parametrize

X = torch.arange(6.0).reshape(2, 3)


class Symmetric(nn.Module):
    def forward(self, w):
        return w.triu() + w.triu(1).T


class Tagged(torch.Tensor):
    pass


class AsTagged(nn.Module):
    def forward(self, w):
        return w.as_subclass(Tagged)


class Buffers(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = nn.Buffer(torch.ones(3))
        self.left_out = nn.Buffer(torch.ones(3), persistent=False)

    def forward(self, x):
        self.kept.add_(1)
        return x + self.kept * self.left_out, isinstance(self.kept, nn.Buffer)


def linear(*hooks, unsafe=False):
    torch.manual_seed(0)
    layer = nn.Linear(3, 3)
    for hook in hooks:
        parametrize.register_parametrization(layer, "weight", hook, unsafe=unsafe)
    return layer


def agree(make, capture, calls=2, graphs=1):
    """The module that ``make`` gives, compiled against eager, with gradients."""
    ours, theirs = make(), make()
    compiled = torchsmith_tracer.compile(ours, backend=capture, fullgraph=graphs == 1)
    for _ in range(calls):
        torch.manual_seed(1)
        a = compiled(X)
        torch.manual_seed(1)
        b = theirs(X)
        assert repr(a) == repr(b)
        result = b[0] if isinstance(b, tuple) else b
        if result.requires_grad:
            (a[0] if isinstance(a, tuple) else a).sum().backward()
            result.sum().backward()
            for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
                torch.testing.assert_close(p.grad, q.grad)
    assert repr(ours.state_dict()) == repr(theirs.state_dict())
    return ours, compiled


def test_parametrized_weights(capture):
    layer, compiled = agree(lambda: linear(Symmetric()), capture)
    parametrize.remove_parametrizations(layer, "weight")
    torch.testing.assert_close(compiled(X), layer(X))


def test_a_parametrization_that_gives_a_subclass(capture):
    agree(lambda: linear(Symmetric(), AsTagged(), unsafe=True), capture)


def test_weight_norms(capture):
    agree(lambda: parametrizations.weight_norm(linear()), capture)
    agree(lambda: parametrizations.orthogonal(linear()).eval(), capture, graphs=2)


def test_buffers(capture):
    agree(Buffers, capture)


def test_lazy_modules_are_captured_once_they_have_shapes(capture):
    def make():
        torch.manual_seed(0)
        return nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2))

    ours, compiled = agree(make, capture, calls=1, graphs=2)
    assert type(ours[0]) is nn.Linear
    before = capture.n
    for _ in range(2):
        assert torch.equal(compiled(X), ours(X))
    assert capture.n == before + 1
