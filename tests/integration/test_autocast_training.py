"""Training under autocast on a CPU, where layers take mixed types: gradients are eager's."""

import copy

import pytest
import torch
import torch.nn.functional as F
import torchsmith
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x):
        parts = self.qkv(self.norm(x)).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*parts)
        return x + self.out(y.transpose(1, 2).flatten(2))


class Patches(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.cut, self.norm, self.head = nn.Conv2d(3, 16, 4, 4), norm, nn.Linear(16, 5)

    def forward(self, x):
        y = self.cut(x)
        if isinstance(self.norm, nn.LayerNorm):
            return self.head(self.norm(y.flatten(2).transpose(1, 2)))
        return self.head(F.gelu(self.norm(y)).mean((2, 3)))


def image():
    return torch.randn(2, 3, 8, 8)


def text():
    return torch.randn(2, 6, 16)


MODELS = {
    "layer norm of a transposed convolution": (lambda: Patches(nn.LayerNorm(16)), image),
    "group norm": (lambda: Patches(nn.GroupNorm(4, 16)), image),
    "batch norm": (lambda: Patches(nn.BatchNorm2d(16)), image),
    "layer norm without parameters": (
        lambda: Patches(nn.LayerNorm(16, elementwise_affine=False)),
        image,
    ),
    "layer norm without bias": (lambda: Patches(nn.LayerNorm(16, bias=False)), image),
    "attention": (Attention, text),
    "two layers": (lambda: nn.Sequential(Attention(), Attention()), text),
    "normed product": (
        lambda: nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4)),
        text,
    ),
    "embedding and loss": (lambda: nn.Sequential(nn.Linear(16, 9), nn.LogSoftmax(-1)), text),
}


def gradients(model, call, x):
    with torch.autocast("cpu", torch.bfloat16):
        y = call(x)
    loss = y.float().square().mean()
    loss.backward()
    return y, [p.grad for p in model.parameters()], [p.grad.dtype for p in model.parameters()]


@pytest.mark.parametrize("name", MODELS)
def test_gradients_under_autocast_are_eagers(name):
    make, given = MODELS[name]
    torch.manual_seed(0)
    model = make()
    exact = copy.deepcopy(model).double()
    twin, x = copy.deepcopy(model), given()
    compiled = torchsmith.compile(model)
    for step in range(2):
        ours, theirs = gradients(model, compiled, x), gradients(twin, twin, x)
        assert (ours[0].dtype, ours[2]) == (theirs[0].dtype, theirs[2])
        exact(x.double()).square().mean().backward()
        for mine, eagers, true in zip(ours[1], theirs[1], exact.parameters(), strict=True):
            error, usual = ((g.double() - true.grad).norm() for g in (mine, eagers))
            assert error <= 2 * usual + 1e-2 * true.grad.norm() + 1e-6, step
        for module in (model, twin, exact):
            module.zero_grad()
        x = given()
