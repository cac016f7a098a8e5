"""Printed Triton kernels give eager's values and signs on special values."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "loops"))
sys.path.insert(0, str(Path(__file__).parents[2] / "schedule"))

import plans
import pytest
import torch
from samples import DEVICE, run_source
from special_values import differences, programs
from torchsmith_fx_backend._src.capture.make_fx import make_fx
from torchsmith_fx_backend._src.codegen.triton.config import choose
from torchsmith_fx_backend._src.codegen.triton.kernel import generate
from torchsmith_fx_backend._src.driver import functional_graph
from torchsmith_fx_backend._src.schedule import schedule_graph

# Eager's answers are those of the CPU, and the interpreter flushes denormals of bfloat16.
pytestmark = pytest.mark.skipif(DEVICE.type != "cpu", reason="compares with eager on the CPU")


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64], ids=str
)
def test_special_values_as_in_eager(dtype, tmp_path, monkeypatch):
    def run(kernel, tensors, symbols):
        source = generate(kernel, choose(kernel, symbols), wide=False, origins=())
        run_source(source, tensors, symbols, tmp_path)

    monkeypatch.setattr(plans, "evaluate", run)
    for label, functions, inputs in programs(dtype, denormals=dtype is not torch.bfloat16):
        program = lambda *args: tuple(f(*args) for f in functions.values())
        with torch.no_grad():
            want = program(*inputs)
            graph = functional_graph(make_fx(program)(*inputs), list(inputs))
            got = plans.run_plan(schedule_graph(graph.module), list(inputs))
        for name, mine, theirs in zip(functions, got, want):
            if name == "trunc_divide" and dtype is torch.bfloat16:
                continue  # the interpreter cuts a quotient off where a cast rounds it to bfloat16
            where = differences(theirs, mine)
            first = tuple(where[0].tolist()) if len(where) else None
            assert first is None, (label, name, first, theirs[first], mine[first])
