"""What is particular to ``rms_norm`` and ``RMSNorm``; the rest is in ``test_row_norm.py``."""

from __future__ import annotations

import warnings

import kernel_testing as kt
import pytest
import torch
import torch.nn.functional as F
from torchsmith_kernels import RMSNorm, rms_norm


@kt.devices
@kt.dtypes
def test_missing_eps_is_that_of_the_computing_type(dtype: torch.dtype, device: str) -> None:
    x = torch.full((2, 8), 1e-4, dtype=dtype, device=device)
    kt.same(rms_norm(x, (8,)), F.rms_norm(x, (8,)), rtol=2 * kt.ROUNDOFF[dtype])


@kt.devices
def test_module_shares_checkpoints_with_torch(device: str) -> None:
    ours = RMSNorm(32, eps=1e-5, device=device)
    theirs = torch.nn.RMSNorm(32, eps=1e-5, device=device)
    torch.nn.init.normal_(theirs.weight)
    ours.load_state_dict(theirs.state_dict())
    x = kt.make(4, 32, device=device)
    kt.same(ours(x), theirs(x))
    assert isinstance(ours, torch.nn.RMSNorm)
    assert RMSNorm(32, elementwise_affine=False)(x).shape == x.shape


@kt.without_interpreter
def test_the_reference_on_a_cpu_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rms_norm(torch.randn(2, 8), (8,))


def test_double_backward_equals_eagers() -> None:
    x = kt.make(3, 5, dtype=torch.float64).requires_grad_()
    weight = kt.make(5, dtype=torch.float64)

    def second(function: object) -> torch.Tensor:
        y = function(x, (5,), weight, 1e-3)  # type: ignore[operator]
        (first,) = torch.autograd.grad(y.pow(2).sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]

    kt.same(second(rms_norm), second(F.rms_norm), rtol=1e-9)


@pytest.mark.parametrize("eps", [1e-6, 0])
def test_eps_may_be_an_integer(eps: float) -> None:
    x = kt.make(3, 5)
    kt.same(rms_norm(x, [5], None, eps), F.rms_norm(x, (5,), None, eps))
