"""Sizes that vary where torch asks for plain numbers: two versions for all, eager's results."""

import pytest
import torch
import torch.nn.functional as F
import torchsmith
import torchsmith_fx_backend
from torch import nn

FILTERS = nn.ModuleList(nn.Conv1d(3, 4, k) for k in (2, 3, 4))


def filters(x):
    found = [conv(x[:, :, 0]).relu() for conv in FILTERS]
    return torch.cat([F.max_pool1d(y, y.size(2)).squeeze(2) for y in found], 1)


def padded_to_power(x):
    size = 1 << (x.shape[2] - 1).bit_length()
    return F.pad(x, (0, 0, 0, size - x.shape[2]))


ONE_WINDOW = {
    "max_pool1d": lambda x: F.max_pool1d(x.flatten(1, 2), x.size(3)),
    "max_pool1d of rows": lambda x: torch.max_pool1d(x.flatten(0, 2), kernel_size=x.size(3)),
    "max_pool2d": lambda x: F.max_pool2d(x, x.shape[2:]),
    "max_pool2d of equal values": lambda x: F.max_pool2d(x.clamp(-0.1, 0.1), list(x.shape[2:])),
    "max_pool3d": lambda x: F.max_pool3d(x[None], x.shape[1:]),
    "avg_pool1d": lambda x: F.avg_pool1d(x.flatten(1, 2), x.size(3)),
    "avg_pool2d": lambda x: F.avg_pool2d(x, (x.shape[2], x.shape[3]), ceil_mode=True),
    "avg_pool3d": lambda x: F.avg_pool3d(x[None], x.shape[1:]),
    "avg_pool2d of halves": lambda x: F.avg_pool2d(x.bfloat16(), x.size()[2:]).float(),
    "filters": filters,
}
STEPS = {
    "linspace": lambda x: torch.linspace(0, 1, x.shape[3]) * x,
    "linspace down": lambda x: torch.linspace(start=3, end=-1.5, steps=x.shape[2] + 1).mean() * x,
    "linspace of centres": lambda x: torch.linspace(0.5, x.shape[3] - 0.5, x.shape[3]) * x,
    "linspace of doubles": lambda x: torch.linspace(-1, 1, x.shape[3], dtype=torch.float64) * x,
    "round": lambda x: x[:, :, : round(x.shape[2] * 0.6)] * round(x.shape[3] / 7, 2),
}
SHAPES = {
    "grid": lambda x: F.affine_grid(
        torch.ones(2, 2, 3) * x.mean(), (2, 3, *x.shape[2:]), align_corners=False
    ),
    "grid to the corners": lambda x: F.affine_grid(
        torch.ones(2, 2, 3) + x.mean(), [2, 1, *x.shape[2:]], True
    ),
    "grid of doubles": lambda x: F.affine_grid(
        torch.ones(2, 2, 3) * x.double().mean(), (2, 3, 4, x.size(3)), True
    ),
    "grid of a block": lambda x: F.affine_grid(
        torch.ones(2, 3, 4) * x.mean(), (2, 1, *x.shape[2:], 3), False
    ),
    "broadcast shapes": lambda x: (
        x[0, 0, 0].expand(torch.broadcast_shapes(x.shape[3:], (4, 1, 1), 1))
        + len(torch.broadcast_shapes())
    ),
    "normal": lambda x: torch.distributions.MultivariateNormal(
        x.mean(3)[0, :, :, None] * torch.ones(4), scale_tril=torch.eye(4)
    ).log_prob(x.mean(2)[1, :, :1, None] * torch.ones(4)),
}
OTHERS = {
    "another window": lambda x: F.max_pool2d(x, (x.shape[2], 1)),
    "half a window": lambda x: F.avg_pool2d(x, x.shape[2] // 2),
    "padding": lambda x: F.max_pool2d(x, x.shape[2:], padding=1),
    "divisor": lambda x: F.avg_pool2d(x, x.shape[2:], divisor_override=3),
    "places": lambda x: F.max_pool2d(x, x.shape[2:], return_indices=True)[1] + x.mean(),
    "channels last": lambda x: F.avg_pool2d(x.to(memory_format=torch.channels_last), x.shape[2:]),
    "too many": lambda x: F.max_pool2d(x, (x.shape[2],) * 3),
    "linspace of ints": lambda x: (
        torch.linspace(0, 10, x.shape[2], dtype=torch.int64) * x[0, 0, 0, 0]
    ),
    "linspace of one": lambda x: torch.linspace(2, 3, x.shape[2] - 4) + x[0, 0, 0, 0],
    "linspace of tensors": lambda x: torch.linspace(x.detach().mean(), 1, x.shape[2]) + x.mean(),
    "no grid": lambda x: F.affine_grid(
        torch.ones(2, 2, 3) * x.mean(), (2, 3, x.shape[2] - 5, 2), False
    ),
    "another grid": lambda x: F.affine_grid(
        torch.ones(2, 3, 4) * x.mean(), (2, 3, *x.shape[2:]), False
    ),
    "shapes that differ": lambda x: x * len(torch.broadcast_shapes(x.shape[2:], x.shape[3:] * 2)),
    "less than none": lambda x: x * len(torch.broadcast_shapes((-1,), x.shape[2:])),
    "linspace of less than none": lambda x: torch.linspace(0, 1, x.shape[2] - 7) + x[0, 0, 0, 0],
}


BITS = {
    "power of two": padded_to_power,
    "bits": lambda x: x * x.shape[2].bit_length() - (-x.shape[3]).bit_length(),
}


def run(fn, x):
    """The result and the gradient, or the error's type."""
    x = x.clone().requires_grad_()
    try:
        y = fn(x)
    except (RuntimeError, ValueError) as error:
        return type(error)
    return y.detach(), torch.autograd.grad(y.cos().sum(), x)[0]


def count_versions(fn, dynamic):
    """Compare with eager at several sizes; the number of compiled graphs."""
    made = []

    def backend(gm, inputs, **options):
        made.append(gm)
        return torchsmith_fx_backend.smith(gm, inputs, **options)

    backend.modes = torchsmith_fx_backend.smith.modes
    compiled = torchsmith.compile(fn, backend=backend, dynamic=dynamic)
    for n in (5, 6, 7, 9, 11, 15):
        x = torch.randn(2, 3, n, n + 1)
        found, wanted = run(compiled, x), run(fn, x)
        if isinstance(wanted, type):
            assert found is wanted
        else:
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4, check_stride=True)
    return len(made)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", [*ONE_WINDOW, *STEPS, *SHAPES])
def test_sizes_need_no_version_each(name, dynamic):
    assert count_versions({**ONE_WINDOW, **STEPS, **SHAPES}[name], dynamic) == (
        2 if dynamic is None else 1
    )


@pytest.mark.parametrize("name", BITS)
def test_a_version_serves_all_sizes_of_as_many_bits(name):
    assert count_versions(BITS[name], True) == (4 if name == "bits" else 2)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", OTHERS)
def test_other_numbers_give_what_eager_gives(name, dynamic):
    assert count_versions(OTHERS[name], dynamic) <= 6


@pytest.mark.parametrize("digits", [(), (None,), (2,), (-1,)])
def test_rounding_is_done_at_each_call(digits):
    def fn(x, v):
        return x * round(v, *digits), round(v, *digits)

    compiled = torchsmith.compile(fn, dynamic=True)
    x = torch.randn(3)
    for v in (0.5, 1.5, 2.5, -0.5, 2.675, 17.125, 0.49999999999999994, -1e15):
        (got, number), (want, exact) = compiled(x, v), fn(x, v)
        torch.testing.assert_close(got, want)
        assert number == exact and type(number) is type(exact)
    if not digits or digits == (None,):
        for v in (float("inf"), float("nan")):
            with pytest.raises((OverflowError, ValueError)):
                compiled(x, v)
