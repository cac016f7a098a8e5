"""What is particular to ``LayerNorm``; ``layer_norm`` itself is tested in ``test_row_norm.py``."""

from __future__ import annotations

import kernel_testing as kt
import pytest
import torch
from torchsmith_kernels import LayerNorm, layer_norm


@kt.devices
def test_module_shares_checkpoints_with_torch(device: str) -> None:
    ours = LayerNorm((4, 8), eps=1e-3, device=device)
    theirs = torch.nn.LayerNorm((4, 8), eps=1e-3, device=device)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter)
    ours.load_state_dict(theirs.state_dict())
    x = kt.make(3, 4, 8, device=device)
    kt.same(ours(x), theirs(x))
    assert isinstance(ours, torch.nn.LayerNorm)
    assert LayerNorm(8, elementwise_affine=False)(x).shape == x.shape
    assert LayerNorm(8, bias=False, device=device)(x).shape == x.shape


@kt.devices
@pytest.mark.parametrize("width", [3000, 9000])
def test_rows_far_from_zero_lose_no_digits(width: int, device: str) -> None:
    """A variance from sums of squares would be all rounding error here."""
    x = kt.make(4, width, device=device) + 1000
    x[1, :1000] += 50  # the beginning is not like the rest
    x[2, 0] = 0
    weight = kt.make(width, device=device)
    grad = kt.make(4, width, device=device)
    leaves = [x.requires_grad_(), weight.requires_grad_()]
    doubles = [t.detach().double().cpu().requires_grad_() for t in leaves]
    y, want = (layer_norm(a, (width,), b) for a, b in (leaves, doubles))
    assert kt.error(y.detach().cpu(), want.detach()) < 1e-4
    found = torch.autograd.grad(y, leaves, grad)
    wanted = torch.autograd.grad(want, doubles, grad.double().cpu())
    for ours, theirs in zip(found, wanted, strict=True):
        assert kt.error(ours.cpu(), theirs) < 1e-3
