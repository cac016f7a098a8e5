"""``FakeMode``: binds real tensors to fake ones, static or with symbols of our ``ShapeEnv``."""

from __future__ import annotations

import weakref
from collections.abc import Collection

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from torchsmith_guards._src.sources.sources import Source
from torchsmith_guards.errors import UnsupportedTensorError


class FakeMode:
    """Makes fake tensors and runs operators on them.

    Attributes:
        mode: context manager; operators called inside compute metadata only.
    """

    def __init__(self, shape_env: object | None = None) -> None:
        self.shape_env = shape_env
        self.mode = FakeTensorMode()
        self._memo: dict[int, tuple[weakref.ref[torch.Tensor], FakeTensor]] = {}

    def fakeify(
        self,
        tensor: torch.Tensor,
        source: Source | None = None,
        dynamic_dims: Collection[int] | None = None,
    ) -> FakeTensor:
        """The fake tensor of a real one; the same one again for the same tensor."""
        if isinstance(tensor, FakeTensor):
            return tensor
        known = self._memo.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return known[1]
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or (
            tensor.layout is not torch.strided
        ):
            raise UnsupportedTensorError(what=f"{type(tensor).__name__} of {tensor.layout}")
        fake = self._static(tensor)
        self._memo[id(tensor)] = (weakref.ref(tensor), fake)
        return fake

    def _static(self, tensor: torch.Tensor) -> FakeTensor:
        device = tensor.device
        meta = torch.empty_strided(
            tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta"
        )
        fake = FakeTensor(self.mode, meta, device)
        if type(tensor) is torch.nn.Parameter:
            with self.mode:
                param = torch.nn.Parameter(fake, requires_grad=tensor.requires_grad)
            assert isinstance(param, FakeTensor)
            return param
        if tensor.requires_grad:
            fake.requires_grad_()
        return fake
