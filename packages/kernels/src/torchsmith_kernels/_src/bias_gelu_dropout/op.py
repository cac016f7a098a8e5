"""The operators ``torchsmith::bias_gelu_dropout`` and its backward, and the public function."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchsmith_kernels._src import check, launch
from torchsmith_kernels._src.bias_gelu_dropout import reference, run
from torchsmith_kernels._src.dispatch import Op
from torchsmith_kernels._src.gated.reference import Kind
from torchsmith_kernels._src.pointwise import random
from torchsmith_kernels._src.sizes import new_like
from torchsmith_kernels.errors import ShapeError

NAME = "bias_gelu_dropout"
KINDS: dict[str, Kind] = {"none": "gelu", "tanh": "gelu_tanh"}


def _checked(input: Tensor, bias: Tensor, approximate: str) -> Kind:
    check.dtype(NAME, "input", input, check.FLOATING)
    if bias.dtype != input.dtype:
        check.dtype(NAME, "bias", bias, (input.dtype,))
    check.device(NAME, "bias", bias, input)
    if input.dim() == 0:
        raise ShapeError(
            op=NAME, argument="input", given=(), accepted="it must have at least one dimension"
        )
    if bias.dim() != 1 or bias.shape[0] != input.shape[-1]:
        check.shape(NAME, "bias", bias, input.shape[-1:], "the last dimension of `input`")
    if approximate not in KINDS:
        check.choice(NAME, "approximate", approximate, tuple(KINDS))
    return KINDS[approximate]


def _forward(
    input: Tensor,
    bias: Tensor,
    p: float,
    seed: Tensor | None,
    key: int,
    offset: int,
    approximate: str,
) -> Tensor:
    kind = _checked(input, bias, approximate)
    if launch.usable(input.device, NAME):
        return run.forward(input, bias, p, (seed, key, offset), kind)
    result = reference.forward(input, bias, p, (seed, key, offset), kind)
    return torch.empty_like(input).copy_(result)


def _forward_fake(
    input: Tensor,
    bias: Tensor,
    p: float,
    seed: Tensor | None,
    key: int,
    offset: int,
    approximate: str,
) -> Tensor:
    _checked(input, bias, approximate)
    return torch.empty_like(input)


def _backward(
    grad_output: Tensor,
    input: Tensor,
    bias: Tensor,
    p: float,
    seed: Tensor | None,
    key: int,
    offset: int,
    approximate: str,
) -> tuple[Tensor, Tensor]:
    kind = _checked(input, bias, approximate)
    stream = seed, key, offset
    if launch.usable(input.device, NAME):
        return run.backward(grad_output, input, bias, p, stream, kind)
    dx, dbias = reference.backward(grad_output, input, bias, p, stream, kind)
    return dx.contiguous(), dbias


def _backward_fake(
    grad_output: Tensor,
    input: Tensor,
    bias: Tensor,
    p: float,
    seed: Tensor | None,
    key: int,
    offset: int,
    approximate: str,
) -> tuple[Tensor, Tensor]:
    return new_like(input, input.shape), new_like(bias, bias.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    input, bias, ctx.p, seed, ctx.key, ctx.offset, ctx.approximate = inputs
    ctx.save_for_backward(input, bias, seed)


def _grad(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
    input, bias, seed = ctx.saved_tensors
    if torch.is_grad_enabled():  # create_graph=True: the same formula, differentiable
        stream, kind = (seed, ctx.key, ctx.offset), KINDS[ctx.approximate]
        dx, dbias = reference.backward(grad_output, input, bias, ctx.p, stream, kind)
    else:
        dx, dbias = backward_op(
            grad_output, input, bias, ctx.p, seed, ctx.key, ctx.offset, ctx.approximate
        )
    return dx, dbias, None, None, None, None, None


backward_op = Op(
    "bias_gelu_dropout_backward(Tensor grad_output, Tensor input, Tensor bias, float p, "
    "Tensor? seed, int key, int offset, str approximate) -> (Tensor, Tensor)",
    kernel=_backward,
    fake=_backward_fake,
)
op = Op(
    "bias_gelu_dropout(Tensor input, Tensor bias, float p, Tensor? seed, int key, int offset, "
    "str approximate) -> Tensor",
    kernel=_forward,
    fake=_forward_fake,
    setup_context=_setup_context,
    backward=_grad,
)


def bias_gelu_dropout(
    input: Tensor,
    bias: Tensor,
    p: float = 0.5,
    training: bool = True,
    approximate: str = "none",
) -> Tensor:
    """``dropout(gelu(input + bias, approximate), p, training)`` in one pass.

    The elementwise part of a feed-forward layer's first half, as in Megatron-LM (Shoeybi et al.,
    2019, https://arxiv.org/abs/1909.08053). ``approximate="none"`` is ``gelu(x) = x * Phi(x)`` with
    the normal distribution function, ``"tanh"`` is
    ``0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))``. Random numbers are drawn as by
    ``torchsmith_kernels.dropout``; see there.

    Low precision is computed in float32 and rounded once. Given the random stream, deterministic:
    the gradient of ``bias`` is summed in a fixed order, without atomics. Memory: the result;
    backward keeps ``input``, ``bias`` and 16 bytes, computes the mask again, and takes float32
    partial sums of the bias gradient, at most 2 MiB or so.

    Args:
        input: floating point tensor of shape ``(..., features)``.
        bias: tensor of shape ``(features,)``, of the same dtype and device.
        p: probability of an element to be zeroed, from 0 to 1.
        training: whether to drop anything.
        approximate: ``"none"`` or ``"tanh"``.

    Returns:
        A tensor of ``input``'s shape, dtype and layout.

    Raises:
        ArgumentTypeError: ``input`` or ``bias`` is not a tensor, ``p`` not a number, ``training``
            not a bool, or ``approximate`` another word.
        ArgumentValueError: ``p`` is not a probability (a ``ValueError``, as in torch).
        DtypeError: ``input`` is not floating point, or ``bias`` has another dtype.
        DeviceError: ``bias`` is on another device.
        ShapeError: ``bias`` does not have the size of ``input``'s last dimension.
    """
    check.is_tensor(NAME, "input", input)
    check.is_tensor(NAME, "bias", bias)
    p = random.checked(NAME, p)
    check.is_flag(NAME, "training", training)
    if not isinstance(approximate, str):
        check.choice(NAME, "approximate", approximate, tuple(KINDS))
    if not training or p == 0:
        p, stream = 0.0, random.NONE
    else:
        stream = random.draw(input.device)
    result: Tensor = op(input, bias, p, *stream, approximate)
    return result
