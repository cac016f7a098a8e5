"""A first call imports nothing that takes longer than compiling a small model."""

import subprocess
import sys

import pytest

HEAVY = (
    "sympy",
    "networkx",
    "torch.onnx",
    "torch.distributed.tensor",
    "torch.fx.experimental.symbolic_shapes",
    "torch._dynamo",
    "torch._inductor",
)
PROGRAM = """
import sys
import torch
import torch.nn.functional as F
from torch import nn

loaded = {{name for name in {heavy} if name in sys.modules}}
import torchsmith

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.norm = nn.Embedding(9, 8), nn.LayerNorm(8)
        self.inner, self.drop = nn.Linear(8, 24), nn.Dropout(0.1)

    def forward(self, tokens):
        q, k, v = self.inner(self.norm(self.words(tokens))).view(2, 3, 3, 8).unbind(2)
        return (self.drop((q @ k.transpose(1, 2)).softmax(-1)) @ v).mean()

class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.batch = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.deep, self.group = nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(4, 16)
        self.join, self.leave = nn.Conv2d(24, 8, 3, padding=1), nn.Conv2d(8, 5, 1)

    def forward(self, x):
        fine = F.silu(self.batch(self.enter(x)))
        coarse = F.silu(self.group(self.deep(F.max_pool2d(fine, 2))))
        coarse = F.interpolate(coarse, scale_factor=2.0)
        y = self.leave(F.silu(self.join(torch.cat([fine, coarse], 1))))
        classes = torch.zeros(2, 8, 8, dtype=torch.long)
        return F.mse_loss(y, torch.ones(2, 5, 8, 8)) + F.cross_entropy(y, classes)

class Mixture(nn.Module):  # each kind of view twice, since the second is made in another way
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(8, 12) for _ in range(3))

    def forward(self, x):
        heads = [f(x.sum((1, 2))).view(-1, 3, 4) for f in (self.first, self.second, self.third)]
        rows = [h.transpose(1, 2)[:, 1:].unsqueeze(1).expand(-1, 2, -1, -1) for h in heads]
        halves = [part.flatten(1) for row in rows for part in row.chunk(2, -1)]
        return torch.cat(halves + [h.detach().select(1, 0) for h in heads], -1).logsumexp(-1).mean()

class Layers(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

class Perceptron(Layers):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(192, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 4))

    def forward(self, x):
        y, target = self.layers(x), torch.zeros(2, dtype=torch.long)
        sure = F.binary_cross_entropy_with_logits(y, torch.ones(2, 4))
        return F.cross_entropy(y, target, label_smoothing=0.1) + sure + F.huber_loss(y, y.detach())

class Decoder(Layers):
    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 8, 3, stride=2, groups=1),
            nn.ReflectionPad2d(1),
            nn.PReLU(),
            nn.ConvTranspose2d(8, 8, 2, 2),
            nn.InstanceNorm2d(8),
            nn.AvgPool2d(2),
            nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.PixelShuffle(2),
            nn.AdaptiveAvgPool2d(3),
            nn.Flatten(),
            nn.Linear(18, 4),
            nn.GLU(),
            nn.LogSoftmax(-1),
        )

    def forward(self, x):
        y, target = self.layers(x), torch.zeros(2, dtype=torch.long)
        return F.kl_div(y, torch.ones(2, 2)) + F.nll_loss(y, target) + F.smooth_l1_loss(y, -y)

class Classifier(Layers):
    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 8, 3),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3),
            nn.BatchNorm2d(8, affine=False),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.to(memory_format=torch.channels_last)

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.layers(x.contiguous(memory_format=torch.channels_last)).float().sum()

class Scores(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = (nn.Parameter(torch.randn(256, 192)) for _ in range(2))

    def forward(self, x):
        left, right = (self.left + x.view(2, 192).sum(0))[:, None], self.right[None]
        return (left * right).sum(-1).relu().mean()

model = {model}()
compiled = torchsmith.compile(model, fullgraph=True)
x = torch.zeros(2, 3, dtype=torch.long) if {model} is Attention else torch.randn(2, 3, 8, 8)
if {training}:
    compiled(x).backward()
    assert all(p.grad is not None for p in model.parameters())
else:
    with torch.no_grad():
        compiled(x)
found = [name for name in {heavy} if name in sys.modules and name not in loaded]
assert not found, found
"""


MODELS = ["Attention", "UNet", "Mixture", "Perceptron", "Decoder", "Classifier", "Scores"]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("training", [False, True])
def test_a_first_call_imports_no_large_packages(model, training, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHSMITH_CACHE_DIR", str(tmp_path))
    program = PROGRAM.format(heavy=HEAVY, model=model, training=training)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
