"""Copies of what a graph call may change before it fails."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch

from torchsmith_tracer._src.torch_private import set_version, version_of


class Undo:
    """Copies of what a graph call may change before it fails."""

    __slots__ = ("attributes", "filters", "generators", "random", "tensors")

    def __init__(
        self,
        random: bool,
        touched: Sequence[torch.Tensor],
        changed: Sequence[torch.Tensor | torch.Generator],
    ) -> None:
        self.filters = warnings.filters
        tensors = [t for t in changed if isinstance(t, torch.Tensor)]
        self.generators = [(g, g.get_state()) for g in changed if isinstance(g, torch.Generator)]
        self.attributes = [(t, t.grad, t.data) for t in touched]
        self.random = torch.get_rng_state() if random else None
        self.tensors = [(t, t.grad_fn, version_of(t), t.detach().clone()) for t in tensors]

    def restore(self) -> bool:
        """Put everything back; False where a tensor's history has changed, which cannot be."""
        if self.random is not None:
            torch.set_rng_state(self.random)
        for generator, state in self.generators:
            generator.set_state(state)
        for touched, grad, data in self.attributes:
            touched.data = data
            touched.grad = grad
        for tensor, history, version, content in self.tensors:
            if tensor.grad_fn is not history:
                return False
            tensor.data.copy_(content)
            set_version(tensor, version)
        return True
