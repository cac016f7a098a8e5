"""The operators of fused linear cross entropy: rows are ``[rows, hidden]``.

Forward computes the gradients as well, up to the factor that only backward knows. Without a
reduction each row has a factor of its own, and backward computes the logits once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchsmith_kernels._src import launch
from torchsmith_kernels._src.cross_entropy.run import saved_size
from torchsmith_kernels._src.dispatch import Op
from torchsmith_kernels._src.fused_linear_cross_entropy import reference, run

NAME = "fused_linear_cross_entropy"


def _with_kernels(device: torch.device, dtype: torch.dtype, classes: int) -> bool:
    return dtype is not torch.float64 and classes > 0 and launch.usable(device, NAME)


def _forward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    class_weight: Tensor | None,
    dtype: torch.dtype | None,
    *settings: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    kernels = _with_kernels(input.device, input.dtype, weight.shape[0])
    dtype = dtype or input.dtype
    with torch.no_grad():
        loss, saved, sums = run.forward(
            input, weight, bias, target, class_weight, run.Settings(*settings), dtype, kernels
        )
    return loss, saved, sums.input, sums.weight, sums.bias


def _forward_fake(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    class_weight: Tensor | None,
    dtype: torch.dtype | None,
    *settings: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    options = run.Settings(*settings)
    rows = input.shape[0]
    none = options.reduction == "none"
    loss = torch.empty((rows,) if none else (), dtype=dtype or input.dtype, device=input.device)
    size = saved_size(rows, options.reduction)
    saved = torch.empty(size, dtype=torch.float32, device=input.device)
    sums = run.empty_sums(input) if none else run.new_sums(input, weight, options)
    return loss, saved, sums.input, sums.weight, sums.bias


def _scale(
    grad_output: Tensor,
    saved: Tensor,
    d_input: Tensor,
    d_weight: Tensor,
    d_bias: Tensor,
    mean: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    kernels = _with_kernels(saved.device, dtype, 1)
    scaled = [
        run.scale(grad_output, saved, value, mean, dtype, kernels)
        for value in (d_input, d_weight, d_bias)
    ]
    return scaled[0], scaled[1], scaled[2]


def _scale_fake(
    grad_output: Tensor,
    saved: Tensor,
    d_input: Tensor,
    d_weight: Tensor,
    d_bias: Tensor,
    mean: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.empty_like(d_input, dtype=dtype),
        torch.empty_like(d_weight, dtype=dtype),
        torch.empty_like(d_bias, dtype=dtype),
    )


def _rows(
    grad_output: Tensor,
    saved: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    class_weight: Tensor | None,
    *settings: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    kernels = _with_kernels(input.device, input.dtype, weight.shape[0])
    sums = run.rows_backward(
        grad_output, saved, input, weight, bias, target, class_weight, run.Settings(*settings),
        kernels,
    )  # fmt: skip
    return sums.input, sums.weight.to(weight.dtype), sums.bias.to(weight.dtype)


def _rows_fake(
    grad_output: Tensor,
    saved: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    class_weight: Tensor | None,
    *settings: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    sums = run.new_sums(input, weight, run.Settings(*settings))
    return sums.input, sums.weight.to(weight.dtype), sums.bias.to(weight.dtype)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    input, weight, bias, target, class_weight, _, *settings = inputs
    _, saved, *sums = output
    ctx.mark_non_differentiable(saved, *sums)
    ctx.set_materialize_grads(False)
    ctx.settings = tuple(settings)
    ctx.save_for_backward(input, weight, bias, target, class_weight, saved)
    # Not saved with the others: the first backward takes them, and overwrites what nobody sees.
    ctx.sums, ctx.reuse = sums, getattr(ctx, "outputs_are_private", False)


def _grad(ctx: Any, grad_output: Tensor | None, *_: object) -> tuple[Tensor | None, ...]:
    nothing = (None,) * 13
    if grad_output is None:
        return (None, None, None, *nothing)
    input, weight, bias, target, class_weight, saved = ctx.saved_tensors
    options = run.Settings(*ctx.settings)
    wanted = ctx.needs_input_grad[:3]
    computed = (options.input, options.weight, options.bias)
    missing = any(want and not have for want, have in zip(wanted, computed, strict=True))
    found: Sequence[Tensor]
    if torch.is_grad_enabled() or missing:  # create_graph=True: the same formula, differentiable
        found = reference.backward(
            grad_output, input, weight, bias, target, class_weight, options.ignore_index,
            options.reduction, options.label_smoothing, options.z_loss, options.softcap,
        )  # fmt: skip
    elif options.reduction == "none":
        found = rows_op(
            grad_output, saved, input, weight, bias, target, class_weight, *ctx.settings
        )
    else:
        sums, ctx.sums = ctx.sums, None
        if sums is None:  # a second backward through a retained graph
            tensors = (input, weight, bias, target, class_weight)
            sums = list(op(*tensors, None, *ctx.settings)[2:])
        mean = options.reduction == "mean"
        if not ctx.reuse or Op.watched(grad_output, *sums):
            found = scale_op(grad_output, saved, *sums, mean, weight.dtype)
        else:
            found = _scale_owned(grad_output, saved, sums, mean, weight.dtype)
    return (
        found[0] if wanted[0] else None,
        found[1] if wanted[1] else None,
        found[2] if wanted[2] else None,
        *nothing,
    )


def _scale_owned(
    grad_output: Tensor, saved: Tensor, sums: list[Tensor], mean: bool, dtype: torch.dtype
) -> list[Tensor]:
    """``_scale`` in place where types allow, freeing each sum before the next is scaled."""
    kernels = _with_kernels(saved.device, dtype, 1)
    found = []
    while sums:
        found.append(run.scale(grad_output, saved, sums.pop(0), mean, dtype, kernels, True))
    return found


_SETTINGS = (
    "int ignore_index, str reduction, float label_smoothing, float z_loss, float? softcap, "
    "int? chunk_size, ScalarType? accumulate, bool d_input, bool d_weight, bool d_bias"
)
_TENSORS = "Tensor input, Tensor weight, Tensor? bias, Tensor target, Tensor? class_weight"

scale_op = Op(
    "fused_linear_cross_entropy_backward(Tensor grad_output, Tensor saved, Tensor d_input, "
    "Tensor d_weight, Tensor d_bias, bool mean, ScalarType dtype) -> (Tensor, Tensor, Tensor)",
    kernel=_scale,
    fake=_scale_fake,
)
rows_op = Op(
    f"fused_linear_cross_entropy_rows_backward(Tensor grad_output, Tensor saved, {_TENSORS}, "
    f"{_SETTINGS}) -> (Tensor, Tensor, Tensor)",
    kernel=_rows,
    fake=_rows_fake,
)
op = Op(
    f"fused_linear_cross_entropy({_TENSORS}, ScalarType? dtype, {_SETTINGS}) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    kernel=_forward,
    fake=_forward_fake,
    setup_context=_setup_context,
    backward=_grad,
)
