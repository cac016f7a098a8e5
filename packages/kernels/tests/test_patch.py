"""What ``patch`` refuses; the models themselves are tested where transformers is installed."""

from __future__ import annotations

import pytest
import torch
from torchsmith_kernels import ArgumentTypeError, PatchError, patch


def test_errors_name_the_argument() -> None:
    with pytest.raises(ArgumentTypeError, match="`model` is of type int; it must be a torch.nn"):
        patch(3)
    with pytest.raises(ArgumentTypeError, match=r"`ops` is \['gelu'\]; accepted are rms_norm"):
        patch(torch.nn.Linear(2, 2), ["gelu"])
    with pytest.raises(ArgumentTypeError, match="`ops` is 'rms_norm'"):
        patch(torch.nn.Linear(2, 2), "rms_norm")
    with pytest.raises(ArgumentTypeError, match="`ops` is None; accepted are rms_norm"):
        patch(torch.nn.Linear(2, 2), None)


def test_a_model_of_another_kind_is_refused() -> None:
    class LlamaRMSNorm(torch.nn.Module):
        """Has the name, but is not transformers' class."""

    with pytest.raises(PatchError, match=r"TS-K007\] patch: LlamaRMSNorm has no module that"):
        patch(LlamaRMSNorm())
