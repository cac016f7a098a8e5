"""A pointwise change of the scores that is compiled into the kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, cast

import torch
from torch import Tensor

#: ``(score, batch, head, q_index, k_index) -> score`` on broadcastable tensors.
Reference = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]

_known: dict[str, ScoreMod] = {}
_numbers = count()


@dataclass(frozen=True)
class ScoreMod:
    """A change of the attention scores, as Triton code and as its twin in PyTorch.

    All functions take ``(score, batch, head, q_index, k_index)``: the scaled score after softcap,
    ALiBi and mask, and the integers that say where it is; the indices broadcast against the score,
    and in packed batches count from the start of the sequence. Make one at import time, not per
    call: each keeps its compiled kernels for the life of the process.

    Attributes:
        kernel: a ``@triton.jit`` function that returns the new score; inlined into the kernels.
        reference: the same with PyTorch operations; runs where kernels do not, and for second
            derivatives. It must be differentiable in ``score``.
        derivative: a ``@triton.jit`` function that returns the derivative of the new score by the
            old one. Without it, backward takes the slow way through ``reference``, which stores all
            scores.
        name: a unique name, made up.
    """

    kernel: Any
    reference: Reference
    derivative: Any = None
    name: str = field(init=False)

    def __post_init__(self) -> None:
        """Registers the change, since operators can take only its name."""
        label = getattr(self.reference, "__name__", "score_mod").strip("<>")
        object.__setattr__(self, "name", f"{label}:{next(_numbers)}")
        _known[self.name] = self

    def slope(
        self, score: Tensor, batch: Tensor, head: Tensor, q_index: Tensor, k_index: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The new score and its derivative by the old one, both differentiable."""
        new, pull = cast(Any, torch.func.vjp)(
            lambda s: self.reference(s, batch, head, q_index, k_index).expand(s.shape), score
        )
        return new, pull(torch.ones_like(new))[0]


def find(name: str) -> ScoreMod | None:
    """The change of that name; None for the empty name."""
    return _known[name] if name else None
