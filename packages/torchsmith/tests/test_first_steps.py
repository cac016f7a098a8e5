"""First calls that change what they were compiled for: they run as captured, and what they would
need is compiled once somebody puts the old state back."""

import torch
import torchsmith
from torch import nn


class Cached(nn.Module):
    """Fills its cache at the first call."""

    def __init__(self):
        super().__init__()
        self.cache = None
        self.weight = nn.Parameter(torch.linspace(0.0, 1.0, 4))

    def forward(self, x):
        if self.cache is None:
            self.cache = torch.sin(x.detach()) * 2 + 1
        return torch.tanh(x * self.weight + self.cache) * self.cache


def test_a_cache_that_is_emptied_between_calls():
    module, eager = Cached(), Cached()
    compiled = torchsmith.compile(module)
    counts = []
    for call in range(6):
        x = torch.linspace(0.0, call + 1.0, 4)
        found, expected = compiled(x), eager(x)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(module.cache, eager.cache)
        found.sum().backward()
        expected.sum().backward()
        torch.testing.assert_close(module.weight.grad, eager.weight.grad)
        counts.append(torchsmith.metrics().graphs[-1].graph_id)
        if call in (2, 3):
            module.cache = eager.cache = None
    # Captured; the version with a cache, and its backward; that again; the first one, compiled at
    # its second call; the second one again.
    assert counts[0] < counts[1] == counts[2] < counts[3] == counts[4] == counts[5]


def test_explain_shows_what_would_be_compiled():
    module = Cached()
    found = torchsmith.explain(module)(torch.ones(4))
    assert "Kernels: k_" in str(found)
