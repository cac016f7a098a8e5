"""The operator ``torchsmith::dropout``, which is its own backward, and the public function."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchsmith_kernels._src import check, launch
from torchsmith_kernels._src.dispatch import Op
from torchsmith_kernels._src.dropout import reference, run
from torchsmith_kernels._src.pointwise import random

NAME = "dropout"


def _forward(input: Tensor, p: float, seed: Tensor | None, key: int, offset: int) -> Tensor:
    check.dtype(NAME, "input", input, check.FLOATING)
    if launch.usable(input.device, NAME):
        return run.dropout(input, p, (seed, key, offset))
    return reference.dropout(input, p, (seed, key, offset))


def _fake(input: Tensor, p: float, seed: Tensor | None, key: int, offset: int) -> Tensor:
    check.dtype(NAME, "input", input, check.FLOATING)
    return torch.empty_like(input)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, ctx.p, seed, ctx.key, ctx.offset = inputs
    ctx.strides = output.stride()
    ctx.save_for_backward(seed)


def _grad(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
    (seed,) = ctx.saved_tensors
    if grad_output.stride() != ctx.strides:  # random words follow the order of memory
        # Made of the gradient, which may stand for a batch of them.
        moved = grad_output.new_empty_strided(grad_output.shape, ctx.strides)
        grad_output = moved.copy_(grad_output)
    return op(grad_output, ctx.p, seed, ctx.key, ctx.offset), None, None, None, None


op = Op(
    "dropout(Tensor input, float p, Tensor? seed, int key, int offset) -> Tensor",
    kernel=_forward,
    fake=_fake,
    setup_context=_setup_context,
    backward=_grad,
)


def dropout(input: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Sets random elements to zero with probability ``p`` and multiplies the others by 1 / (1 - p).

    Srivastava et al., 2014, "Dropout: a simple way to prevent neural networks from overfitting".
    With ``p == 0`` or ``training=False`` the result is ``input`` itself.

    The random numbers are those of Philox 4x32-10 (Salmon et al., 2011), one call for eight
    elements. Each call takes a stream of its own from the device's default generator: on a GPU the
    generator's seed and offset, read and advanced on the host without a kernel; under
    ``torch.compile``, tracing and CUDA graph capture 126 bits drawn on the device, so that each
    replay has a new mask. ``torch.manual_seed`` therefore makes calls repeat and
    ``torch.utils.checkpoint`` recomputes the same mask, but masks are **not** those of
    ``torch.nn.functional.dropout`` under the same seed, and compiled code has others than eager
    code. Elements are dropped with ``p`` rounded to a multiple of 2**-16, or of 2**-32 where the
    former would be wrong by more than a thousandth of ``p`` or ``1 - p``.

    Given the stream, the result is deterministic. Memory: the result; backward keeps 16 bytes and
    computes the mask again. Dropped infinities and NaN become NaN, as in torch.

    Args:
        input: floating point tensor of any shape.
        p: probability of an element to be zeroed, from 0 to 1.
        training: whether to drop anything.

    Returns:
        A tensor of ``input``'s shape, dtype and layout.

    Raises:
        ArgumentTypeError: ``input`` is not a tensor, ``p`` not a number or ``training`` not a bool.
        ArgumentValueError: ``p`` is not a probability (a ``ValueError``, as in torch).
        DtypeError: ``input`` is not floating point.
    """
    check.is_tensor(NAME, "input", input)
    p = random.checked(NAME, p)
    check.is_flag(NAME, "training", training)
    if not training or p == 0:
        return input
    result: Tensor = op(input, p, *random.draw(input.device))
    return result
