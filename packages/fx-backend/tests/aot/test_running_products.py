"""Gradients of running products, with and without zeros among the factors."""

import pytest
import torch
from torch import fx
from torchsmith_fx_backend import Settings
from torchsmith_fx_backend._src.driver import compile_training

STRICT = Settings(graph_cache=False, verify=True, strict=True)
SHAPES = [((7,), 0), ((3, 5), 1), ((4, 3), 0), ((2, 3, 6), -2), ((2, 1), 1), ((), 0), ((3, 0), 1)]


def step(run, x, tangent):
    x = x.clone().requires_grad_()
    run(x).backward(tangent)
    return x.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("zeros", [(), (0,), (2,), (1, 3), (0, 1, 2)])
@pytest.mark.parametrize("shape,dim", SHAPES)
def test_gradients(shape, dim, zeros, dtype):
    def program(x):
        return (x * 1).cumprod(dim).sin()

    x, tangent = torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype)
    for place in zeros:
        if x.numel() > 5:
            x.view(-1)[place] = 0
            x.view(-1)[-1 - place] = 0
    found = step(
        compile_training(fx.symbolic_trace(program), [x.requires_grad_()], STRICT), x, tangent
    )
    wanted = step(program, x, tangent)
    torch.testing.assert_close(found, wanted, check_stride=True)


def test_kernels_do_not_grow_with_the_number_of_factors():
    counts = []
    for length in (4, 32):
        x = torch.rand(3, length, requires_grad=True)
        run = compile_training(fx.symbolic_trace(lambda x: x.cumprod(1).sin()), [x], STRICT)
        run(x).sum().backward()
        ((half, _),) = run.training.backwards.values()
        counts.append(len(half.kernels))
    assert counts[1] <= counts[0]
