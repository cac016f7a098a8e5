"""Graphs with hooks of Python's and settings of torch are compiled around them."""

import pytest
import torch
import torchsmith
from torch import nn
from torch.utils.checkpoint import checkpoint
from torchsmith_fx_backend._src import native_nodes


def retained(m, x):
    y = m(x).sin()
    y.retain_grad()
    return y, (y.exp() * x.sum()).sum()


def under_settings(m, x):
    y = m(x).sin()
    torch.set_default_dtype(torch.float64)
    with torch.backends.mkldnn.flags(enabled=False):
        z = m[0](x.detach()).exp()
    with torch.no_grad():
        torch.use_deterministic_algorithms(True, warn_only=True)
        w = (y * 2).tanh() + torch.ones(())
    torch.use_deterministic_algorithms(False)
    torch.set_default_dtype(torch.float32)
    return y, z.sum() + y.sum() + w.sum()


def hooked(m, x):
    y = m(x.tanh()) * 2
    return y, y.cos().sum()


def checkpointed(m, x):
    y = checkpoint(lambda t: hooked(m, t)[0], x, use_reentrant=False)
    return y, y.exp().sum()


@pytest.mark.parametrize("fn", [retained, under_settings, hooked, checkpointed])
@pytest.mark.parametrize("rows", [(3, 3, 3), (3, 4, 5, 3)])
@pytest.mark.filterwarnings("ignore:TF32 acceleration")
def test_values_gradients_and_hooks_are_eagers(fn, rows, monkeypatch):
    parts = []
    known = native_nodes._Later.__init__
    monkeypatch.setattr(
        native_nodes._Later, "__init__", lambda *args: (parts.append(args), known(*args))[1]
    )

    def train(run):
        torch.manual_seed(0)
        m, log, seen = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)), [], []
        if fn is not retained:
            m[2].register_full_backward_hook(lambda mod, gi, go: log.append((*gi, *go)))
        for n in rows:
            x = torch.randn(n, 4, requires_grad=True)
            y, z = run(m, x)
            z.backward()
            seen += [y, z, x.grad, *(p.grad for p in m.parameters())]
            seen += [y.grad] if y.retains_grad else []
            m.zero_grad()
        return seen, log

    torch.testing.assert_close(train(torchsmith.compile(fn)), train(fn))
    assert parts
