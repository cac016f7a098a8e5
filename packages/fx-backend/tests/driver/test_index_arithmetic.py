"""Quotients and remainders of indices that go below zero: eager's elements, none from outside."""

import pytest
import torch
import torch.nn.functional as F
import torchsmith_guards as guards
from torch import fx
from torchsmith_fx_backend import smith

CASES = {
    "flip of a merged transpose": (lambda a: a.t().reshape(-1).flip(0) + 1, (4, 6)),
    "flip of repeats": (lambda a: a.repeat_interleave(2).flip(0) * 2, (7,)),
    "flip of a merged expand": (lambda a: a[:, None].expand(-1, 3).reshape(-1).flip(0) * 2, (5,)),
    "roll": (lambda a: a.roll(2, 0) * 2, (5, 2)),
    "roll of a flip": (lambda a: a.reshape(-1).roll(-5).flip(0).view(-1, 2) * 2, (6, 4)),
    "padded window": (lambda a: F.pad(a, [3, 2]).unfold(1, 3, 2).flip(1) + 1, (4, 6)),
}


@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("name", CASES)
def test_indices_below_zero(name, symbolic):
    fn, shape = CASES[name]
    x = torch.randn(shape)
    example = x
    if symbolic:
        fake = guards.FakeMode(guards.ShapeEnv())
        example = fake.fakeify(x, guards.LocalSource("x"), set(range(len(shape))))
    with torch.no_grad():
        compiled = smith(fx.symbolic_trace(fn), [example], verify=True, graph_cache=False)
        assert compiled.kernels
        assert torch.equal(compiled(x), fn(x))


TRUTHS = {
    "gather": lambda a: a.gather(1, (a > 0).long()),
    "gather of two": lambda a: a.gather(1, ((a > 0) & (a < 1)).long()),
    "gather of a choice": lambda a: a.gather(1, torch.where(a > 0, 1, 0)),
    "gather of what is less": lambda a: a.gather(1, 2 - torch.where(a > 0, 2, 1)),
    "gather backwards": lambda a: a.gather(1, -(a > 0).long() % 16),
    "take": lambda a: a.take((a > 0).long()),
    "index": lambda a: a[0][(a > 0).long()],
    "index in turn": lambda a: a[0][a[1][(a > 0).long()].gt(0).long()],
    "embedding": lambda a: F.embedding((a > 0).long(), a[:, :1]),
    "both": lambda a: a[(a > 0).long(), (a < 0.5).long()],
    "scatter": lambda a: torch.zeros_like(a).scatter(1, (a > 0).long(), 1.0),
    "scatter_add": lambda a: torch.zeros_like(a).scatter_add(1, (a > 0).long(), a.round()),
    "index_add": lambda a: torch.zeros_like(a).index_add(1, (a[0] > 0).long(), a.round()),
    "sum of those": lambda a: a.round().gather(1, (a > 0).long()).sum(1),
}


@pytest.mark.parametrize("name", TRUTHS)
def test_truths_as_indices(name):
    """Compilers may take an address that a comparison gives apart from other addresses."""
    fn = TRUTHS[name]
    x = torch.randn(6, 16)
    x = x.index_put((torch.arange(6), torch.zeros(6, dtype=torch.long)), torch.arange(6.0) + 2)
    with torch.no_grad():
        compiled = smith(fx.symbolic_trace(fn), [x], verify=True, graph_cache=False)
        assert compiled.kernels
        assert torch.equal(compiled(x), fn(x))
