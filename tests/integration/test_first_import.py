"""A first call imports nothing that takes longer than compiling a small model."""

import subprocess
import sys

import pytest

HEAVY = ("sympy", "torch.onnx", "torch.distributed.tensor", "torch._dynamo", "torch._inductor")
PROGRAM = """
import sys
import torch
from torch import nn

loaded = {{name for name in {heavy} if name in sys.modules}}
import torchsmith

class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.norm = nn.Embedding(9, 8), nn.LayerNorm(8)
        self.inner, self.drop = nn.Linear(8, 24), nn.Dropout(0.1)

    def forward(self, tokens):
        q, k, v = self.inner(self.norm(self.words(tokens))).view(2, 3, 3, 8).unbind(2)
        return (self.drop((q @ k.transpose(1, 2)).softmax(-1)) @ v).mean()

model = Small()
compiled = torchsmith.compile(model, fullgraph=True)
tokens = torch.zeros(2, 3, dtype=torch.long)
if {training}:
    compiled(tokens).backward()
    assert all(p.grad is not None for p in model.parameters())
else:
    with torch.no_grad():
        compiled(tokens)
found = [name for name in {heavy} if name in sys.modules and name not in loaded]
assert not found, found
"""


@pytest.mark.parametrize("training", [False, True])
def test_a_first_call_imports_no_large_packages(training, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHSMITH_CACHE_DIR", str(tmp_path))
    program = PROGRAM.format(heavy=HEAVY, training=training)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
