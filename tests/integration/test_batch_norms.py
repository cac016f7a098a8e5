"""Batch and instance norm in training: values, gradients, statistics and versions of eager."""

import copy

import pytest
import torch
import torchsmith
from torch import nn

NETS = {
    "rows": lambda: (nn.BatchNorm1d(6), (7, 6)),
    "sequences": lambda: (nn.Sequential(nn.BatchNorm1d(6), nn.ReLU()), (3, 6, 5)),
    "images": lambda: (nn.Sequential(nn.SiLU(), nn.BatchNorm2d(3), nn.PReLU(3)), (2, 3, 9, 8)),
    "volumes": lambda: (nn.BatchNorm3d(4, momentum=0.3), (2, 4, 3, 5, 6)),
    "no parameters": lambda: (nn.BatchNorm2d(4, affine=False, eps=0.1), (3, 4, 2, 2)),
    "no statistics": lambda: (nn.BatchNorm2d(4, track_running_stats=False), (3, 4, 4, 2)),
    "of each image": lambda: (nn.InstanceNorm3d(3, affine=True), (2, 3, 4, 5, 4)),
    "statistics of each": lambda: (nn.InstanceNorm2d(3, track_running_stats=True), (2, 3, 4, 5)),
    "many channels": lambda: (nn.BatchNorm1d(300), (2, 300)),
    "one channel": lambda: (nn.BatchNorm2d(1, momentum=1.0), (2, 1, 300, 300)),
    "in double": lambda: (nn.BatchNorm2d(3).double(), (2, 3, 4, 4)),
    "rows of one": lambda: (nn.Sequential(nn.BatchNorm2d(3), nn.Flatten()), (1, 3, 1, 2)),
}


def step(call, net, x, exponent):
    """What a training step gives and leaves behind."""
    x = x.clone().requires_grad_()
    y = call(x)
    net.zero_grad()
    (y.pow(exponent) * torch.linspace(-1, 1, y.numel()).to(y).view(y.shape)).sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in net.parameters()), *net.buffers()]


@pytest.mark.parametrize("name", NETS)
def test_loops_compute_what_eager_does(name):
    torch.manual_seed(1)
    net, shape = NETS[name]()
    exact, ours = copy.deepcopy(net).double(), copy.deepcopy(net)
    compiled = torchsmith.compile(ours, fullgraph=True)
    before = [[t._version for t in m.buffers()] for m in (ours, net)]
    for number in range(3):
        x = torch.randn(shape, dtype=torch.float64) * (1 + number) + 30 * number
        kind = next((p.dtype for p in net.parameters()), torch.float32)
        found = step(compiled, ours, x.to(kind), 2 + number % 2)
        eagers = step(net, net, x.to(kind), 2 + number % 2)
        for got, wanted, true in zip(found, eagers, step(exact, exact, x, 2 + number % 2)):
            assert got.dtype == wanted.dtype and got.stride() == wanted.stride()
            slack = 1e-6 * true.abs().max() + 2 * (wanted.double() - true).abs().max()
            assert (got.double() - true).abs().max() <= slack * (1 + 20 * number)
    after = [[t._version for t in m.buffers()] for m in (ours, net)]
    counts = [[b - a for a, b in zip(*pair)] for pair in zip(before, after)]
    assert counts[0] == counts[1]


def test_one_value_per_channel_is_refused_as_by_eager():
    net = nn.BatchNorm1d(3)
    for call in (net, torchsmith.compile(net)):
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            call(torch.randn(1, 3))


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("dynamic", [None, True])
def test_cumulative_statistics_are_written_uncounted(dynamic, gradients):
    """A factor that varies with each call: eager's kernel writes statistics without counting it,
    so that what a backward pass has saved of them may be read."""
    results = []
    for compile in (lambda m: m, lambda m: torchsmith.compile(m, dynamic=dynamic)):
        torch.manual_seed(0)
        norm = torch.nn.BatchNorm1d(3, momentum=None)
        run = compile(norm)
        seen = []
        for n in (4, 4, 5, 6):
            x = torch.randn(n, 3, requires_grad=gradients)
            norm.eval()
            before = run(x)
            norm.train()
            versions = norm.running_mean._version, norm.running_var._version
            after = run(x)
            if gradients:
                (before * after).sum().backward()
            versions = (
                norm.running_mean._version - versions[0],
                norm.running_var._version - versions[1],
            )
            state = [t.clone() for t in norm.buffers()]
            seen.append((before, after, x.grad, *state, versions))
        results.append(seen)
    for ours, eager in zip(*results, strict=True):
        assert ours[-1] == eager[-1] == (0, 0)
        torch.testing.assert_close(ours[:-1], eager[:-1])
