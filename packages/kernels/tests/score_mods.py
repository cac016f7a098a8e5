"""Changes of scores for the attention tests; Triton needs them in a file."""

from __future__ import annotations

import triton
import triton.language as tl
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


@triton.jit
def _squared(score, batch, head, q_index, k_index):
    return 0.5 * score * score


@triton.jit
def _squared_slope(score, batch, head, q_index, k_index):
    return score


@triton.jit
def _rooted(score, batch, head, q_index, k_index):
    return tl.sqrt(tl.abs(score))


@triton.jit
def _rooted_slope(score, batch, head, q_index, k_index):
    return tl.where(score > 0, 0.5, -0.5) / tl.sqrt(tl.abs(score))


curved = ScoreMod(_curved, _reference, _curved_slope)
curved_without_derivative = ScoreMod(_curved, _reference)
squared = ScoreMod(_squared, lambda score, *_: 0.5 * score * score, _squared_slope)
rooted = ScoreMod(_rooted, lambda score, *_: score.abs().sqrt(), _rooted_slope)
