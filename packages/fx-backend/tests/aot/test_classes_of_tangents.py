"""Tensors of a class of its own that come to a backward pass: their memory is elsewhere."""

import pytest
import torch
from torch import fx
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_map_only
from torchsmith_fx_backend import Settings
from torchsmith_fx_backend._src.driver import compile_training

STRICT = Settings(graph_cache=False, verify=True, strict=True)


class Awaited(torch.Tensor):
    """What a collective gives: operators on it wait, and give plain tensors."""

    @staticmethod
    def __new__(cls, inner):
        size, stride = inner.size(), inner.stride()
        return torch.Tensor._make_wrapper_subclass(cls, size, strides=stride, dtype=inner.dtype)

    def __init__(self, content):
        self.content = content

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args, kwargs = tree_map_only(Awaited, lambda t: t.content, (args, kwargs or {}))
        return func(*args, **kwargs)


class Stays(Awaited):
    """Operators on it give such tensors."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        found = super().__torch_dispatch__(func, types, args, kwargs)
        return tree_map_only(torch.Tensor, Stays, found)


class Arrives(torch.autograd.Function):
    """Its tangent, twice, as ``make`` makes it."""

    @staticmethod
    def forward(ctx, x, make):
        ctx.make = make
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return ctx.make(grad * 2), None


KINDS = {"awaited": Awaited, "stays": Stays}
PROGRAMS = {
    "one result": lambda x, w: ((x @ w).sin(),),
    "two": lambda x, w: (x.exp(), (x @ w).tanh() * 2),
    "turned": lambda x, w: ((x @ w.t()).relu().t(),),
    "draws": lambda x, w: (torch.dropout(x @ w, 0.5, True).sin(),),
}


def inputs():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(n, 4, generator=generator).requires_grad_() for n in (3, 4)]


def gradients(run, x, w, make):
    torch.manual_seed(1)
    total = sum(Arrives.apply(result, make).sum() for result in run(x, w))
    return torch.autograd.grad(total, (x, w))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_tangents(name, kind):
    x, w = inputs()
    settings = Settings(graph_cache=False, verify=True, strict=True, rng="eager")
    run = compile_training(fx.symbolic_trace(PROGRAMS[name]), (x, w), settings)
    if name == "draws" and kind == "stays":
        with pytest.raises(RuntimeError, match="it draws random numbers"):
            gradients(run, x, w, KINDS[kind])
        return
    wanted = gradients(PROGRAMS[name], x, w, KINDS[kind])
    for _ in range(2):
        found = gradients(run, x, w, KINDS[kind])
        for ours, theirs in zip(found, wanted, strict=True):
            assert type(ours) is type(theirs)
            torch.testing.assert_close(*(getattr(t, "content", t) for t in (ours, theirs)))


def test_tangents_of_two_passes():
    x, w = inputs()
    found = []
    for run in (compile_training(fx.symbolic_trace(PROGRAMS["two"]), (x, w), STRICT), None):
        y, z = (run or PROGRAMS["two"])(x, w)
        g = torch.ones_like(y)
        first = torch.autograd.grad([y, z], (x, w), [Awaited(g), g], create_graph=True)
        found.append([*first, *torch.autograd.grad(sum(t.square().sum() for t in first), (x, w))])
    torch.testing.assert_close(*found)


def test_what_hooks_on_saved_tensors_give_back():
    x, w = inputs()
    run = compile_training(fx.symbolic_trace(PROGRAMS["two"]), (x, w), STRICT)
    wanted = torch.autograd.grad(sum(y.sum() for y in PROGRAMS["two"](x, w)), (x, w))
    with saved_tensors_hooks(torch.clone, Awaited):
        total = sum(y.sum() for y in run(x, w))
    torch.testing.assert_close(torch.autograd.grad(total, (x, w)), wanted)
    with saved_tensors_hooks(torch.clone, Stays):
        total = sum(y.sum() for y in run(x, w))
    with pytest.raises(RuntimeError, match="came out of its hooks as a Stays"):
        total.backward()
