"""Tensors of subclasses through the tracer and the backend together."""

import pytest
import torch
import torchsmith
from torch import nn
from torch.utils import _pytree as pytree


class Tagged(torch.Tensor):
    """Results have the tag of the first argument."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(result, Tagged) and args:
            result.tag = getattr(args[0], "tag", None)
        return result


class Two(torch.Tensor):
    """Two tensors of one shape; every operator runs on both."""

    @staticmethod
    def __new__(cls, a, b, size=None, stride=None):
        return torch.Tensor._make_wrapper_subclass(
            cls, a.shape if size is None else size, dtype=a.dtype, requires_grad=a.requires_grad
        )

    def __init__(self, a, b, size=None, stride=None):
        self.a, self.b = a, b

    def __tensor_flatten__(self):
        return ["a", "b"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Two(inner["a"], inner["b"], size, stride)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def on(part):
            picked = pytree.tree_map_only(Two, lambda x: getattr(x, part), (args, kwargs or {}))
            return func(*picked[0], **picked[1])

        return Two(on("a"), on("b"))


def tagged(n):
    x = torch.arange(3.0 * n).reshape(n, 3).as_subclass(Tagged)
    x.tag = "t"
    return x


def two(n):
    return Two(torch.ones(n, 3), torch.arange(3.0 * n).reshape(n, 3))


def jagged(n):
    return torch.nested.nested_tensor([torch.ones(n, 3), torch.ones(2, 3)], layout=torch.jagged)


def plain_parts(x):
    with torch._C.DisableTorchFunctionSubclass():
        if isinstance(x, Two):
            return [*plain_parts(x.a), *plain_parts(x.b)]
        if x.is_nested:
            return [x._values.detach(), x._offsets]
        return [x.detach().as_subclass(torch.Tensor)]


def agree(ours, theirs):
    assert type(ours) is type(theirs)
    assert getattr(ours, "tag", None) == getattr(theirs, "tag", None)
    for a, b in zip(plain_parts(ours), plain_parts(theirs), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("backend", ["eager", "smith"])
@pytest.mark.parametrize("make", [tagged, two, jagged])
def test_a_model(make, backend):
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3))

    def fn(x):
        return (model(x) * 2 + x).sum(-1)

    compiled = torchsmith.compile(fn, backend=backend)
    for n in (3, 4, 5, 3):
        x = make(n)
        with torch.no_grad():
            agree(compiled(x), fn(x))
        agree(compiled(x), fn(x))


@pytest.mark.parametrize("backend", ["eager", "smith"])
@pytest.mark.parametrize("make", [tagged, two])
def test_gradients(make, backend):
    weight = torch.nn.Parameter(make(3))

    def loss(x, w):
        return ((nn.functional.linear(x, w) + 1) ** 2).sum()

    compiled = torchsmith.compile(loss, backend=backend)
    for _ in range(2):
        grads = []
        for fn in (compiled, loss):
            weight.grad = None
            x = make(2).requires_grad_()
            fn(x, weight).backward()
            grads.append((x.grad, weight.grad))
        for ours, theirs in zip(*grads, strict=True):
            agree(ours, theirs)


@pytest.mark.parametrize("backend", ["eager", "smith"])
def test_made_inside(backend):
    compiled = torchsmith.compile(
        lambda x: (x.as_subclass(Tagged) + 1, Two(x, x) * 2), backend=backend
    )
    x = torch.arange(4.0)
    for ours, theirs in zip(compiled(x), (x.as_subclass(Tagged) + 1, Two(x, x) * 2), strict=True):
        agree(ours, theirs)
