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


@pytest.mark.parametrize("per_channel", [False, True])
def test_observers_give_their_state_its_size_in_the_first_step(per_channel, recwarn):
    """The operator sizes empty tensors that it writes; later calls are compiled for those sizes."""
    pytest.importorskip("torchsmith_fx_backend")

    def program(x, state):
        on = torch.ones(1, dtype=torch.long)
        return torch.fused_moving_avg_obs_fake_quant(
            x * 2, on, on, *state, 0.01, -8, 7, 0, per_channel, True
        )

    compiled = tracer.compile(program, backend="smith")
    sides = []
    for run in (compiled, program):
        size = 0 if per_channel else 1
        state = [torch.full((size,), value) for value in (torch.inf, -torch.inf)]
        state += [torch.ones(1), torch.zeros(1, dtype=torch.int32)]
        found = []
        for seed in range(3):
            x = torch.linspace(-1 - seed, 1, 12).view(3, 4).requires_grad_()
            result = run(x, state)
            found += [result, *torch.autograd.grad(result.sum(), x), *(t.clone() for t in state)]
        sides.append(found)
    torch.testing.assert_close(*sides)
    assert not [w for w in recwarn if "TS-T905" in str(w.message)]
