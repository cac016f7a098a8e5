"""What is particular to ``LayerNorm``; ``layer_norm`` itself is tested in ``test_row_norm.py``."""

from __future__ import annotations

import kernel_testing as kt
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
def test_rows_far_from_zero_lose_no_digits(device: str) -> None:
    """A variance from sums of squares would be all rounding error here."""
    x = kt.make(4, 3000, device=device) + 1000
    want = layer_norm(x.double().cpu(), (3000,))
    assert kt.error(layer_norm(x, (3000,)).cpu(), want) < 1e-4
