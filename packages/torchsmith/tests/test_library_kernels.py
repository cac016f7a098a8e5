"""Operators of ``torchsmith_kernels`` inside compiled code; on a CPU by their plain formulas."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import torchsmith
from torchsmith_fx_backend import smith
from torchsmith_fx_backend._src import switches
from torchsmith_fx_backend._src.passes.templates import LibraryKernels
from torchsmith_kernels import attention_template

HALF = torch.bfloat16


class Capped(torch.nn.Module):
    """Attention with a cap on its scores, written out as models do that."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(32, 64)
        self.outer = torch.nn.Linear(32, 32)

    def forward(self, x, mask):
        shape = (*x.shape[:2], 4, 8)
        query, key = (part.view(shape).transpose(1, 2) for part in self.inner(x).chunk(2, -1))
        scores = torch.matmul(query, key.transpose(2, 3)) * 8**-0.5
        scores = torch.tanh(scores / 5.0) * 5.0
        weights = torch.softmax(scores + mask, dim=-1, dtype=torch.float32).to(query.dtype)
        return self.outer(torch.matmul(weights, key).transpose(1, 2).reshape(x.shape))


@pytest.mark.parametrize("option", ["measured", "all"])
def test_attention_of_the_library_in_a_compiled_model(option, monkeypatch):
    template = replace(attention_template, matches=lambda call: True)
    library = LibraryKernels(device="cpu", templates=lambda: (template,))
    passes = [library if p.name == library.name else p for p in switches.PASSES]
    monkeypatch.setattr(switches, "PASSES", tuple(passes))
    torch.manual_seed(0)
    model = Capped().to(HALF).eval()
    x = torch.randn(2, 6, 32).to(HALF)
    mask = torch.full((6, 6), torch.finfo(HALF).min, dtype=HALF).triu(1)
    sources = []

    def backend(gm, inputs):
        graph = smith(gm, inputs, kernels=option, graph_cache=False)
        sources.append(graph.source)
        return graph

    with torch.no_grad():
        got = torchsmith.compile(model, backend=backend)(x, mask)
        torch.testing.assert_close(got, model(x, mask), rtol=3e-2, atol=3e-2)
    (source,) = sources
    assert ("torchsmith.attention" in source) == (option == "all")
    if option == "all":  # another process needs the operator, too, and nothing told it where from
        subprocess.run([sys.executable, "-c", source], check=True, timeout=120)
