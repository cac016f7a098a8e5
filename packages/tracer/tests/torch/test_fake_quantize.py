"""Rounding as quantization-aware training does it: one graph, forward and backward."""

import pytest
import torch
import torchsmith_tracer as tracer

ZEROS = torch.zeros(3, dtype=torch.int32)
PROGRAMS = {
    "tensor": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -8, 7),
    "tensor, settings in tensors": lambda x: torch.fake_quantize_per_tensor_affine(
        x, x.detach().abs().amax() / 8, ZEROS[0], -8, 7
    ),
    "channels": lambda x: torch.fake_quantize_per_channel_affine(
        x, x.detach().abs().amax(0) / 8, ZEROS, 1, -8, 7
    ),
}


@pytest.mark.parametrize("backend", ["eager", "smith"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_rounding_and_its_gradient(name, backend):
    if backend == "smith":
        pytest.importorskip("torchsmith_fx_backend")

    def program(x):
        return (PROGRAMS[name](x * 2) * x).sum(1)

    compiled = tracer.compile(program, backend=backend, fullgraph=True)
    for rows, transposed in ((4, False), (4, False), (5, False), (4, True)):
        sides = []
        for run in (compiled, program):
            x = torch.linspace(-1, 1, rows * 3)
            x = (x.view(3, rows).T if transposed else x.view(rows, 3)).detach().requires_grad_()
            found = run(x)
            sides.append((found, torch.autograd.grad(found.sum(), x)))
        torch.testing.assert_close(*sides, check_stride=True)


def test_settings_out_of_range_raise_as_in_eager():
    def program(x):
        return torch.fake_quantize_per_tensor_affine(x, 0.1, 300, -8, 7) + 1

    compiled = tracer.compile(program, backend="eager")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="zero_point"):
            compiled(torch.ones(3))
