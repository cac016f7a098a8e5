"""Changes of scores for the attention tests; Triton needs them in a file."""

from __future__ import annotations

import triton
import triton.language as tl  # noqa: F401 - the interpreter looks for it
from torch import Tensor
from torchsmith_kernels import ScoreMod


@triton.jit
def _curved(score, batch, head, q_index, k_index):
    return score + 0.1 * score * score / (1 + head) - 0.01 * (q_index + k_index) * batch


@triton.jit
def _curved_slope(score, batch, head, q_index, k_index):
    return 1 + 0.2 * score / (1 + head)


def _reference(
    score: Tensor, batch: Tensor, head: Tensor, q_index: Tensor, k_index: Tensor
) -> Tensor:
    return score + 0.1 * score * score / (1 + head) - 0.01 * (q_index + k_index) * batch


curved = ScoreMod(_curved, _reference, _curved_slope)
curved_without_derivative = ScoreMod(_curved, _reference)
