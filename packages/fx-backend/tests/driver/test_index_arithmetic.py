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
