"""The operators ``torchsmith::flash_attention`` and its backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchsmith_kernels._src import launch
from torchsmith_kernels._src.dispatch import Op
from torchsmith_kernels._src.flash_attention import (
    plans,
    reference,
    run_backward,
    run_forward,
    run_hopper,
)
from torchsmith_kernels._src.flash_attention.call import MAX_HEAD_DIM, SCHEMA, Call
from torchsmith_kernels._src.flash_attention.checks import check_call
from torchsmith_kernels._src.sizes import new_like

NAME = "flash_attention"
ARGUMENTS = len(Call._fields)


def _lse_dtype(call: Call) -> torch.dtype:
    return torch.float64 if call.query.dtype is torch.float64 else torch.float32


def _usable(call: Call) -> bool:
    return (
        launch.usable(call.query.device, NAME)
        and call.query.dtype is not torch.float64
        and 0 < call.query.shape[-1] <= MAX_HEAD_DIM
        and call.heads > 0
    )


def _laid_out(result: Tensor, like: Tensor) -> Tensor:
    """``result`` with the strides of ``torch.empty_like(like)``, as the fake kernels say."""
    if result.stride() == like.stride():
        return result
    new = torch.empty_like(like)
    return result if result.stride() == new.stride() else new.copy_(result)


def _forward(*args: Any) -> tuple[Tensor, Tensor]:
    call = Call(*args)
    key = plans.key_of(call)
    plan = plans.plans.get(key)
    if plan is not None:
        return plan(*call[:3])
    check_call(call)
    if _usable(call):
        run = run_hopper.forward if run_hopper.fits(call) else run_forward.forward
        output, lse = run(call)
        if key is not None:
            plans.keep(key, call, output, lse)
        return _laid_out(output, call.query), lse
    output, lse = reference.forward(call)
    return torch.empty_like(call.query).copy_(output), lse.clone()


def _forward_fake(*args: Any) -> tuple[Tensor, Tensor]:
    call = Call(*args)
    check_call(call)
    return torch.empty_like(call.query), new_like(call.query, call.lse_shape(), _lse_dtype(call))


def _backward(
    grad_output: Tensor,
    grad_lse: Tensor | None,
    output: Tensor,
    lse: Tensor,
    bias_grad: bool,
    *args: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    call = Call(*args)
    mod = call.mod
    if _usable(call) and run_hopper.fits(call):
        grads = run_hopper.backward(call, grad_output, grad_lse, output, lse)
        return *grads, call.query.new_empty(0)
    if _usable(call) and (mod is None or mod.derivative is not None):
        dquery, dkey, dvalue, dbias = run_backward.backward(
            call, grad_output, grad_lse, output, lse, bias_grad
        )
    else:
        with torch.no_grad():
            dquery, dkey, dvalue, dbias = reference.backward(call, grad_output, grad_lse, bias_grad)
    return (
        _laid_out(dquery, call.query),
        _laid_out(dkey, call.key),
        _laid_out(dvalue, call.value),
        call.query.new_empty(0) if dbias is None else dbias.contiguous(),
    )


def _backward_fake(
    grad_output: Tensor,
    grad_lse: Tensor | None,
    output: Tensor,
    lse: Tensor,
    bias_grad: bool,
    *args: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    call = Call(*args)
    dbias = call.query.new_empty(0)
    if bias_grad and call.attn_mask is not None:
        dbias = new_like(call.attn_mask, call.attn_mask.shape)
    return (
        torch.empty_like(call.query),
        torch.empty_like(call.key),
        torch.empty_like(call.value),
        dbias,
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    call = Call(*inputs)
    ctx.save_for_backward(*output, *call[:8])
    ctx.rest = call[8:]
    ctx.set_materialize_grads(False)


def _grad(ctx: Any, grad_output: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
    output, lse, *tensors = ctx.saved_tensors
    call = Call(*tensors, *ctx.rest)
    none = (None,) * ARGUMENTS
    if grad_output is None and grad_lse is None:
        return none
    if grad_output is None:
        grad_output = torch.zeros_like(output)
    bias_grad = bool(ctx.needs_input_grad[3])
    if torch.is_grad_enabled():  # create_graph=True: the same formula, differentiable
        found = reference.backward(call, grad_output, grad_lse, bias_grad)
    else:
        found = backward_op(grad_output, grad_lse, output, lse, bias_grad, *call)
    return (*found[:3], found[3] if bias_grad else None, *none[4:])


backward_op = Op(
    "flash_attention_backward(Tensor grad_output, Tensor? grad_lse, Tensor output, Tensor lse, "
    f"bool bias_grad, {SCHEMA}) -> (Tensor, Tensor, Tensor, Tensor)",
    kernel=_backward,
    fake=_backward_fake,
)
op = Op(
    f"flash_attention({SCHEMA}) -> (Tensor, Tensor)",
    kernel=_forward,
    fake=_forward_fake,
    setup_context=_setup_context,
    backward=_grad,
    autocast="lower",
    exempt=("alibi_slopes",),
)
