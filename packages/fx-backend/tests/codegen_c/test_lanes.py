"""Which axis is the inner loop, and which inner loops ask for vectors."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torchsmith_fx_backend import compile_graph

LOOP = re.compile(
    r"#pragma omp (?:parallel for )?simd[^\n]*\n *for \(int64_t (\w+) = [^\n]*\n(.*?)\n *\}", re.S
)


def vector_loops(program, x):
    """(axis, body) of each loop that asks for vectors, in kernels whose results are right."""
    with torch.no_grad():
        compiled = compile_graph(fx.symbolic_trace(program), [x])
        torch.testing.assert_close(compiled(x), program(x))
    return [loop for _, source in compiled.kernels for loop in LOOP.findall(source)]


@pytest.mark.parametrize("width", [8, 16, 30, 112])
def test_images_are_walked_along_their_rows(width):
    loops = vector_loops(lambda x: F.max_pool2d(x, 3, 2, 1), torch.randn(2, 3, width, width))
    inner = [axis for axis, body in loops if f"2 * {axis}" in body]
    assert 2 * len(inner) > len(loops)  # a border may be a column


def test_several_far_loads_of_one_table_are_no_vectors():
    """gcc would take them for columns and spend seconds on it."""
    for far, near in ((1024, False), (8, True)):
        loops = vector_loops(lambda x: x[:, 0] + x[:, 1] + x[:, 2] * x[:, 3], torch.randn(500, far))
        assert bool(loops) is near
