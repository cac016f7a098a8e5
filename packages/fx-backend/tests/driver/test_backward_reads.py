"""Kernels that read memory from its end to its start beside reads in order."""

import pytest
import torch
from torch import fx
from torchsmith_fx_backend import Settings
from torchsmith_fx_backend._src.backend import compile_graph


def expanded_copy_and_flip(x):
    wide = x.unsqueeze(1).expand([-1, 3])
    return wide.flatten(0, 1), wide.flip([-1, -2])


def scaled_copies(x):
    wide = x.unsqueeze(1).expand([-1, 5])
    return wide + 0, wide.flip([0]) + 0


def both_in_one(x):
    wide = x.unsqueeze(1).expand([-1, 2])
    return (wide * wide.flip([0]),)


def rolled_beside(x):
    wide = x.unsqueeze(1).expand([-1, 3])
    return wide.roll(1, 0), wide.flip([0]), wide.clone()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int16, torch.int64])
@pytest.mark.parametrize("size", [2, 4, 9])
@pytest.mark.parametrize(
    "program", [expanded_copy_and_flip, scaled_copies, both_in_one, rolled_beside]
)
def test_values_written_by_such_a_kernel(program, size, dtype):
    compiled = compile_graph(
        fx.symbolic_trace(program), [torch.zeros(size, dtype=dtype)], Settings(graph_cache=False)
    )
    for first in (1, 7):
        x = torch.arange(first, first + size).to(dtype)
        for ours, eager in zip(compiled(x), program(x), strict=True):
            assert torch.equal(ours, eager)
