"""Gradients of values that programs write where a mask is true."""

import pytest
import torch
from torchsmith_fx_backend import Settings
from torchsmith_fx_backend._src.driver import compile_training

SETTINGS = Settings(graph_cache=False, verify=True, strict=True)

pytestmark = pytest.mark.usefixtures("reference_machine")


def rows(x, v, mask):
    y = x * 2
    y[mask] = v * 3
    return y.square().sum()


def one_row(x, v, mask):
    y = x * 2
    y[mask] = v[0]
    return (y * y.detach()).sum()


def one_number(x, v, mask):
    y = x.sin()
    y[mask] = v.sum()
    return y.square().sum()


def part_of_a_view(x, v, mask):
    y = torch.zeros(2, *x.shape)
    y[1][mask] = v
    return (y * x).sum()


def columns(x, v, mask):
    y = x.t() * 1
    y[:, mask] = v.t()
    return y.square().sum()


def elements(x, v, mask):
    y = x * 2
    both = mask[:, None].expand(*x.shape)
    y[both] = v.flatten()
    return y.square().sum()


def added(x, v, mask):
    return torch.index_put(x, [mask], v, accumulate=True).square().sum()


def twice(x, v, mask):
    y = x * 2
    y[mask] = v
    y[~mask] = y[0] * 2
    return y.square().sum()


def of_one_row(x, v, mask):
    y = x * 2
    y[mask] = v[:1]
    return y.square().sum()


@pytest.mark.parametrize(
    "program",
    [rows, one_row, one_number, part_of_a_view, columns, elements, added, twice, of_one_row],
)
def test_gradients_are_eagers(program):
    def given(seed):
        torch.manual_seed(seed)
        mask = torch.zeros(7, dtype=torch.bool)
        mask[torch.randperm(7)[:4]] = True
        return torch.randn(7, 3).requires_grad_(), torch.randn(4, 3).requires_grad_(), mask

    run = compile_training(program, list(given(0)), SETTINGS)
    assert run.training is not None
    for seed in range(3):
        sides = []
        for f in (run, program):
            x, v, mask = given(seed)
            f(x, v, mask).backward()
            sides.append((x.grad, v.grad))
        torch.testing.assert_close(*sides, rtol=1e-4, atol=1e-5)
        assert [g.stride() for g in sides[0]] == [g.stride() for g in sides[1]]


def test_a_mask_that_does_not_fit_is_an_error():
    x, v = torch.randn(7, 3).requires_grad_(), torch.randn(4, 3).requires_grad_()
    mask = torch.arange(7) < 4
    run = compile_training(rows, [x, v, mask], SETTINGS)
    for f in (run, rows):
        with pytest.raises((RuntimeError, IndexError), match="shape mismatch"):
            f(x, v, torch.arange(7) < 5)
