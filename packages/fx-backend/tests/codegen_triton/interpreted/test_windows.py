"""Printed Triton kernels that read windows give eager's values."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "schedule"))

import plans
import pytest
import torch
from samples import DEVICE, run_source
from torchsmith_fx_backend._src.codegen.triton.config import choose
from torchsmith_fx_backend._src.codegen.triton.kernel import generate
from windows import PROGRAMS, in_threads, inputs

pytestmark = pytest.mark.skipif(DEVICE.type != "cpu", reason="compares with eager on the CPU")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_windows(name, dtype, tmp_path, monkeypatch):
    def run(kernel, tensors, symbols):
        source = generate(kernel, choose(kernel, symbols), wide=False, origins=())
        run_source(source, tensors, symbols, tmp_path)

    monkeypatch.setattr(plans, "evaluate", run)
    in_threads(monkeypatch)
    plan = plans.check(PROGRAMS[name][0], *inputs(name, dtype))
    assert not plans.externs(plan)
