"""What a process imports whose graphs another one has compiled."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torchsmith_fx_backend._src.runtime.compiler import find_compiler

PROGRAM = """
import sys
import torch
from torch import fx
from torchsmith_fx_backend import smith

def imported(*names):
    package = "torchsmith_fx_backend._src."
    return sorted(m for m in sys.modules if m.startswith(tuple(package + n for n in names)))

def block(x, weight):
    normal = torch.nn.functional.layer_norm(x, (8,))
    return torch.nn.functional.gelu(torch.nn.functional.linear(normal, weight)) + x

torch.manual_seed(0)
inputs = [torch.randn(4, 8), torch.randn(8, 8)]
compiled = smith(fx.symbolic_trace(block), inputs)
assert torch.allclose(compiled(*inputs), block(*inputs), atol=1e-5)
"""
STAGES = """*"aot.joint capture.rules codegen driver loops passes schedule tuning".split()"""


def run(folder: Path, check: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + check],
        env={**os.environ, "TORCHSMITH_CACHE_DIR": str(folder)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(find_compiler() is None, reason="nothing is kept without a compiler")
def test_a_graph_from_the_cache_needs_no_stage(tmp_path):
    run(tmp_path, f"assert len(imported({STAGES})) > 50")
    run(tmp_path, f"assert imported({STAGES}) == []")
    run(tmp_path, "assert 'sympy' not in sys.modules and 'torch._dynamo' not in sys.modules")
