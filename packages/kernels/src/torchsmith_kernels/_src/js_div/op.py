"""The operators ``torchsmith::js_div`` and its backward, and the public function."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchsmith_kernels._src import check
from torchsmith_kernels._src.dispatch import Op
from torchsmith_kernels._src.js_div import reference
from torchsmith_kernels._src.kl_div import run
from torchsmith_kernels._src.kl_div.op import (
    check_pair,
    fake_gradients,
    fake_result,
    gradients,
    kernels_take,
    lay_out,
)
from torchsmith_kernels.errors import ArgumentValueError

NAME = "js_div"


def _check(input: Tensor, target: Tensor, beta: float, reduction: str) -> None:
    check_pair(NAME, input, target, reduction)
    if not 0 <= beta <= 1:
        raise ArgumentValueError(
            op=NAME, argument="beta", given=beta, accepted="it must be from 0 to 1"
        )


def _forward(input: Tensor, target: Tensor, beta: float, reduction: str) -> Tensor:
    _check(input, target, beta, reduction)
    if kernels_take(NAME, input, target):
        return run.forward(input, target, reduction, run.mixture(beta))
    return lay_out(reference.forward(input, target, beta, reduction), target)


def _forward_fake(input: Tensor, target: Tensor, beta: float, reduction: str) -> Tensor:
    _check(input, target, beta, reduction)
    return fake_result(input, target, reduction)


def _backward(
    grad_output: Tensor,
    input: Tensor,
    target: Tensor,
    beta: float,
    reduction: str,
    need_input: bool,
    need_target: bool,
) -> tuple[Tensor, Tensor]:
    return gradients(
        NAME, grad_output, input, target, reduction, run.mixture(beta), (need_input, need_target),
        lambda: reference.backward(grad_output, input, target, beta, reduction),
    )  # fmt: skip


def _backward_fake(
    grad_output: Tensor,
    input: Tensor,
    target: Tensor,
    beta: float,
    reduction: str,
    need_input: bool,
    need_target: bool,
) -> tuple[Tensor, Tensor]:
    return fake_gradients(input, target, need_input, need_target)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    input, target, ctx.beta, ctx.reduction = inputs
    ctx.save_for_backward(input, target)


def _grad(ctx: Any, grad_output: Tensor) -> tuple[Any, ...]:
    input, target = ctx.saved_tensors
    args = (grad_output, input, target, ctx.beta, ctx.reduction)
    need_input, need_target, *_ = ctx.needs_input_grad
    if torch.is_grad_enabled():  # create_graph=True: the same formula, differentiable
        by_input, by_target = reference.backward(*args)
    else:
        by_input, by_target = backward_op(*args, need_input, need_target)
    return by_input if need_input else None, by_target if need_target else None, None, None


backward_op = Op(
    "js_div_backward(Tensor grad_output, Tensor input, Tensor target, float beta, str reduction, "
    "bool need_input, bool need_target) -> (Tensor, Tensor)",
    kernel=_backward,
    fake=_backward_fake,
)
op = Op(
    'js_div(Tensor input, Tensor target, float beta=0.5, str reduction="batchmean") -> Tensor',
    kernel=_forward,
    fake=_forward_fake,
    setup_context=_setup_context,
    backward=_grad,
    autocast="float32",
)


def js_div(
    input: Tensor, target: Tensor, beta: float = 0.5, reduction: str = "batchmean"
) -> Tensor:
    """Generalized Jensen-Shannon divergence of distributions given by their logarithms.

    With ``p = exp(target)``, ``q = exp(input)`` and ``m = beta * p + (1 - beta) * q`` it is
    ``beta * KL(p || m) + (1 - beta) * KL(q || m)``, the sum over all elements of
    ``beta * p * (log(p) - log(m)) + (1 - beta) * q * (log(q) - log(m))`` (Lin, 1991; as a loss for
    distillation Agarwal et al., 2024, https://arxiv.org/abs/2306.13649). ``beta=0.5`` is the
    symmetric one. It vanishes at 0 and 1; there, what it tends to when divided by ``beta`` or by
    ``1 - beta`` is computed, as is usual: ``KL(p || q)`` (forward) for 0, ``KL(q || p)`` (reverse)
    for 1. A probability of zero (minus infinity) contributes nothing to its own part.

    Computed in float32 and rounded once (float64 in float64, by plain PyTorch), without forming
    ``m``. Under autocast the result is float32. Deterministic. Memory: the result and a few KiB;
    backward keeps ``input`` and ``target`` and writes the gradients that are needed in one pass.

    Args:
        input: logarithms of probabilities (in distillation the student's), of any shape.
        target: the same for the other distribution (the teacher's), of ``input``'s shape.
        beta: weight of the target, from 0 to 1.
        reduction: ``none``, ``sum``, ``mean`` (over elements) or ``batchmean`` (the sum divided by
            ``input.shape[0]``).

    Returns:
        A scalar, or with ``none`` a tensor of ``input``'s shape.

    Raises:
        ArgumentTypeError: an argument has the wrong type, or ``reduction`` is not one of these.
        ArgumentValueError: ``beta`` is not from 0 to 1.
        DtypeError: ``input`` or ``target`` is not floating point.
        DeviceError: ``target`` is on another device.
        ShapeError: ``target`` has another shape than ``input``.
    """
    check.is_tensor(NAME, "input", input)
    check.is_tensor(NAME, "target", target)
    check.is_number(NAME, "beta", beta)
    result: Tensor = op(input, target, float(beta), reduction)
    return result
