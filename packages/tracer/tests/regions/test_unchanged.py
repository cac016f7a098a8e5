"""Compiled models whose unchanged guards are answered by one native call equal eager, whatever
changes between calls."""

import sys

import pytest
import torch
import torchsmith_tracer as ts
from torch import nn
from torchsmith_guards._src.guards import checker
from torchsmith_guards._src.unchanged import native

FACTOR = 2.0


class Block(nn.Module):
    offset = 1.0

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scales = [0.5, 2.0]

    def forward(self, x):
        return self.linear(x) * self.scales[1] * FACTOR + self.offset


def set_global(value):
    globals()["FACTOR"] = value


CHANGES = {
    "a list": lambda net: net[3].scales.__setitem__(1, 3.0),
    "an instance attribute over a class's": lambda net: setattr(net[2], "offset", 5.0),
    "a class attribute": lambda net: setattr(Block, "offset", 7.0),
    "a global": lambda net: set_global(4.0),
    "a module": lambda net: net.__setitem__(1, nn.Identity()),
    "a module, removed": lambda net: net.__delitem__(4),
    "a hook": lambda net: net[0].register_forward_hook(lambda m, i, o: o + 1),
    "a method": lambda net: setattr(net[0], "forward", lambda x: x * 3),
    "a class's method": lambda net: setattr(Block, "forward", lambda self, x: x - self.offset),
    "data": lambda net: setattr(net[5].linear.weight, "data", torch.ones(4, 4).t()),
    "a state dict": lambda net: net.load_state_dict(
        {k: v * 2 for k, v in net.state_dict().items()}
    ),
    "requires_grad": lambda net: net[5].linear.weight.requires_grad_(False),
    "dtype": lambda net: net.to(torch.float64),
    "a parameter": lambda net: setattr(net[1].linear, "bias", None),
}


@pytest.fixture(params=["native", "generated"])
def checks(request, monkeypatch):
    if request.param == "generated":
        monkeypatch.setattr(checker, "worth_watching", lambda guards: False)
    elif sys.version_info >= (3, 14):
        pytest.skip("this Python does not stamp its dicts")
    else:
        native.library()
        assert native.shared.settled.wait(60), native.shared.problem
    yield request.param
    set_global(2.0)


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_between_calls_is_seen(checks, change, monkeypatch):
    for name in ("offset", "forward"):
        monkeypatch.setattr(Block, name, vars(Block)[name])
    net = nn.Sequential(*[Block() for _ in range(6)])
    compiled = ts.compile(net)
    x = torch.ones(2, 4)
    for _ in range(5):
        assert torch.equal(compiled(x), net(x))
    CHANGES[change](net)
    x = x.to(next(net.parameters()).dtype)
    for _ in range(5):
        expected, found = net(x), compiled(x)
        assert torch.equal(found, expected)
        assert found.requires_grad == expected.requires_grad
