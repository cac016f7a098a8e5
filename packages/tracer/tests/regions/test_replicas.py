"""Replicas that ``DataParallel`` makes of a compiled module at each call have parameters of their
own, and the module stays as it is."""

import pytest
import torch
from torch import nn
from torchsmith_tracer import compile


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
        self.register_buffer("shift", torch.ones(2))
        self.factor = 2.0

    def forward(self, x):
        return self.inner(x) * self.factor + self.shift


def replica_of(network, times):
    """What ``torch.nn.parallel.replicate`` makes, on one device, of parameters times a number."""
    modules = list(network.modules())
    copies = {module: module._replicate_for_data_parallel() for module in modules}
    for module, copied in copies.items():
        for name, child in module._modules.items():
            setattr(copied, name, copies[child])
        for name, parameter in module._parameters.items():
            setattr(copied, name, parameter * times)
        for name, buffer in module._buffers.items():
            setattr(copied, name, buffer + times)
    return copies[network]


@pytest.mark.parametrize("whole", [True, False])
def test_replicas(whole):
    torch.manual_seed(0)
    module, x, found = Scaled(), torch.ones(3, 4), []
    for called in (module, compile(module) if whole else module):
        if called is module and found:
            module.inner = compile(module.inner)
        own = module.__dict__
        results = [replica_of(called, times)(x) for times in (1, 2, 5)]
        torch.stack(results).square().sum().backward()
        assert module.__dict__ is own and [*module._parameters] == []
        assert len(list(called.parameters())) == 4
        found.append([*results, *(p.grad for p in module.parameters())])
        module.zero_grad()
        found[-1].append(called(x))
    for want, got in zip(*found, strict=True):
        torch.testing.assert_close(got, want)


def test_another_dict():
    module = nn.Linear(2, 2)
    compiled, other = compile(module), nn.Linear(2, 2)
    compiled.__dict__ = other.__dict__
    x = torch.ones(1, 2)
    torch.testing.assert_close(compiled(x), other(x))
    assert module.weight is other.weight is compiled.weight
