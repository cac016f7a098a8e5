"""Going through the rows chunk by chunk: logits, their gradient in place, and what follows.

Per chunk there are three matrix products, as in eager, all by cuBLAS: ``logits = x W^T + b``, then
``dx = dlogits W`` and ``dW += dlogits^T x``. Between them one kernel overwrites the logits with
their gradient. On the CPU the same steps run with plain PyTorch for the kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsmith_kernels._src import launch
from torchsmith_kernels._src.cross_entropy import run as cross_entropy
from torchsmith_kernels._src.cross_entropy.config import Config, group
from torchsmith_kernels._src.fused_linear_cross_entropy import plan, reference
from torchsmith_kernels._src.sizes import ceil_div, compute_dtype

_KERNELS = "torchsmith_kernels._src.fused_linear_cross_entropy.kernel"
gradient_kernel = launch.Kernel(_KERNELS, "gradient_kernel")
scale_kernel = launch.Kernel(_KERNELS, "scale_kernel")

SCALE_BLOCK = 4096


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that is not a tensor.

    Attributes:
        ignore_index: class of rows that do not count.
        reduction: ``mean``, ``sum`` or ``none``.
        label_smoothing: share of the loss that goes evenly to all classes.
        z_loss: factor of ``logsumexp**2``.
        softcap: soft cap of the logits, or None.
        chunk_size: rows per chunk, None for ``plan``'s choice.
        accumulate: type in which the weight's gradient is summed, None for ``plan``'s choice.
        input: whether the input's gradient is wanted.
        weight: whether the weight's gradient is wanted.
        bias: whether the bias' gradient is wanted.
    """

    ignore_index: int
    reduction: str
    label_smoothing: float
    z_loss: float
    softcap: float | None
    chunk_size: int | None
    accumulate: torch.dtype | None
    input: bool
    weight: bool
    bias: bool

    @property
    def loss(self) -> tuple[int, float, float, float | None]:
        """What makes a row's loss."""
        return self.ignore_index, self.label_smoothing, self.z_loss, self.softcap


@dataclass(slots=True)
class Sums:
    """Gradients under way; empty tensors where none is wanted."""

    input: Tensor
    weight: Tensor
    bias: Tensor


def chunk_rows(input: Tensor, weight: Tensor, settings: Settings) -> int:
    """Rows per chunk."""
    if settings.chunk_size is not None:
        return settings.chunk_size
    rows, hidden = input.shape
    classes = weight.shape[0]
    return plan.chunk_rows(rows, hidden, classes, input.dtype, settings.accumulate, settings.weight)


def new_sums(input: Tensor, weight: Tensor, settings: Settings) -> Sums:
    """Uninitialised gradients in the types in which they are summed."""
    rows = input.shape[0]
    chunks = ceil_div(rows, chunk_rows(input, weight, settings))
    dtype = plan.accumulator(input.dtype, chunks, settings.accumulate)

    def new(wanted: bool, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape if wanted else (0,), dtype=dtype, device=input.device)

    sums = Sums(
        new(settings.input, tuple(input.shape), input.dtype),
        new(settings.weight, tuple(weight.shape), dtype),
        new(settings.bias, (weight.shape[0],), compute_dtype(input.dtype)),
    )
    if rows == 0:  # no chunk will write them
        sums.weight.zero_()
        sums.bias.zero_()
    return sums


def empty_sums(like: Tensor) -> Sums:
    """Where no gradient is wanted."""
    first, second, third = (torch.empty(0, dtype=like.dtype, device=like.device) for _ in range(3))
    return Sums(first, second, third)


def _add_product(total: Tensor, a: Tensor, b: Tensor, first: bool) -> None:
    """``total = a @ b`` for the first chunk, ``total += a @ b`` for the others."""
    if total.dtype is a.dtype:
        if first:
            torch.mm(a, b, out=total)
        else:
            torch.addmm(total, a, b, out=total)
    elif a.is_cuda:
        if first:
            torch.mm(a, b, out_dtype=torch.float32, out=total)
        else:
            torch.addmm(total, a, b, out_dtype=torch.float32, out=total)
    elif first:
        total.copy_(a.to(total.dtype) @ b.to(total.dtype))
    else:
        total.addmm_(a.to(total.dtype), b.to(total.dtype))


def _add_gradients(
    sums: Sums, start: int, d_logits: Tensor, input: Tensor, weight: Tensor, settings: Settings
) -> None:
    """What a chunk's gradient of logits means for the input, weight and bias."""
    if settings.input:
        torch.mm(d_logits, weight, out=sums.input[start : start + len(d_logits)])
    if settings.weight:
        _add_product(sums.weight, d_logits.t(), input, start == 0)
    if settings.bias:
        part = d_logits.sum(0, dtype=sums.bias.dtype)
        if start == 0:
            sums.bias.copy_(part)
        else:
            sums.bias.add_(part)


def _logits_buffer(rows: int, classes: int, like: Tensor) -> Tensor:
    """Room for a chunk; rows start at multiples of 16, which all kernels like."""
    padded = ceil_div(classes, 16) * 16
    # oneDNN's AMX products of bfloat16 read past the ends of rows, where a NaN would spread.
    new = torch.zeros if like.is_cpu and padded != classes else torch.empty
    buffer = new((rows, padded), dtype=like.dtype, device=like.device)
    return buffer if padded == classes else buffer[:, :classes]


def _compute_logits(out: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if bias is None:
        return torch.mm(input, weight.t(), out=out)
    return torch.addmm(bias, input, weight.t(), out=out)


def forward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    class_weight: Tensor | None,
    settings: Settings,
    dtype: torch.dtype,
    kernels: bool,
    config: Config | None = None,
) -> tuple[Tensor, Tensor, Sums]:
    """The loss, rows' statistics as ``cross_entropy`` saves them, and unscaled gradients.

    Gradients are those of the loss (with kernels, for a mean: times a power of two, see
    ``gradient_kernel``); without a reduction there are none yet.
    """
    rows = input.shape[0]
    device = input.device
    reduction = settings.reduction
    wanted = settings.input or settings.weight or settings.bias
    wanted = wanted and reduction != "none"
    compute = compute_dtype(input.dtype)
    size = cross_entropy.saved_size(rows, reduction)
    saved = torch.empty(size, dtype=torch.float32, device=device)
    losses, losses_offset = saved, rows
    if reduction == "none" or not kernels:
        kind = dtype if kernels else compute
        losses, losses_offset = torch.empty(rows, dtype=kind, device=device), 0
    sums = new_sums(input, weight, settings) if wanted else empty_sums(input)
    weights_sum = upstream = None
    if kernels:
        class_weight = cross_entropy.plain_weight(class_weight)
        weights_sum = cross_entropy.weight_sum(class_weight, settings.label_smoothing)
        if reduction == "mean" and wanted:
            cross_entropy.reduce(
                saved, target, class_weight, saved, None, rows, len(weight),
                settings.ignore_index, reduction,
            )  # fmt: skip
    else:
        saved[rows:] = 0
        upstream = torch.ones((), dtype=compute, device=device)
        if reduction == "mean":
            upstream /= reference.divisor(target, class_weight, settings.ignore_index, compute)
    step = max(chunk_rows(input, weight, settings), 1)
    buffer = _logits_buffer(min(step, rows), len(weight), input)
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        x = input if step >= rows else input[start:stop]
        logits = buffer if stop - start == len(buffer) else buffer[: stop - start]
        _compute_logits(logits, x, weight, bias)
        if upstream is not None:
            labels = target[start:stop]
            found, lse, gradient = reference.chunk_gradient(
                logits, labels, class_weight, upstream, settings.loss
            )
            losses[start:stop], saved[start:stop] = found, lse
            if wanted:
                logits.copy_(gradient)
        elif wanted:
            gradient_chunk(
                logits, target, class_weight, weights_sum, saved, start, rows, settings, config
            )
        else:
            cross_entropy.rows_forward(
                logits, logits.stride(0), target, class_weight, weights_sum, losses, saved,
                losses_offset, start, settings.loss, config,
            )  # fmt: skip
        if wanted:
            _add_gradients(sums, start, logits, x, weight, settings)
    del buffer
    loss = _reduced(losses, saved, target, class_weight, len(weight), settings, dtype, kernels)
    return loss, saved, sums


def _reduced(
    losses: Tensor,
    saved: Tensor,
    target: Tensor,
    class_weight: Tensor | None,
    classes: int,
    settings: Settings,
    dtype: torch.dtype,
    kernels: bool,
) -> Tensor:
    reduction = settings.reduction
    if reduction == "none":
        return losses.to(dtype)
    if kernels:
        loss = torch.empty((), dtype=dtype, device=losses.device)
        cross_entropy.reduce(
            saved, target, class_weight, saved, loss, len(target), classes,
            settings.ignore_index, reduction,
        )  # fmt: skip
        return loss
    loss = losses.sum()
    if reduction == "mean":
        loss = loss / reference.divisor(target, class_weight, settings.ignore_index, losses.dtype)
    return loss.to(dtype)


def gradient_chunk(
    logits: Tensor,
    target: Tensor,
    class_weight: Tensor | None,
    weights_sum: Tensor | None,
    saved: Tensor,
    start: int,
    rows: int,
    settings: Settings,
    config: Config | None,
) -> None:
    """Overwrites a chunk of logits, which begins at row ``start``, with its gradient."""
    count, width = logits.shape
    block, warps, stages = cross_entropy.fitting("gradient", logits, count, width, config)
    gradient_kernel(
        (count, 1, 1),
        (
            logits, target, class_weight, weights_sum, saved, start, rows,
            logits.stride(0), target.stride(0), width, settings.ignore_index,
            float(settings.label_smoothing), float(settings.z_loss),
            float(settings.softcap or 0.0),
        ),
        {
            "MEAN": settings.reduction == "mean",
            "SMOOTHING": settings.label_smoothing != 0,
            "SOFTCAP": settings.softcap is not None,
            "BLOCK": block,
            "GROUP": group(logits.dtype),
            "STAGES": stages,
        },
        warps,
    )  # fmt: skip


def scale(
    grad_output: Tensor,
    saved: Tensor,
    value: Tensor,
    mean: bool,
    dtype: torch.dtype,
    kernels: bool,
    inplace: bool = False,
) -> Tensor:
    """A gradient of ``forward`` times that of the loss, in its final type.

    With ``inplace`` it overwrites ``value`` if that has the type.
    """
    result = value
    if not inplace or value.dtype is not dtype:
        result = torch.empty(value.shape, dtype=dtype, device=value.device)
    if not kernels:
        return result.copy_(value.to(compute_dtype(dtype)) * grad_output)
    count = value.numel()
    scale_kernel(
        (ceil_div(count, SCALE_BLOCK), 1, 1),
        (value, result, grad_output, saved, saved.numel() // 3 * 2, count),
        {"MEAN": mean, "BLOCK": SCALE_BLOCK},
        8,
    )
    return result


def rows_backward(
    grad_output: Tensor,
    saved: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    class_weight: Tensor | None,
    settings: Settings,
    kernels: bool,
) -> Sums:
    """Gradients where each row's loss has its own; recomputes the logits chunk by chunk."""
    rows = input.shape[0]
    sums = new_sums(input, weight, settings)
    step = max(chunk_rows(input, weight, settings), 1)
    buffer = _logits_buffer(min(step, rows), len(weight), input)
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        x, labels, upstream = input[start:stop], target[start:stop], grad_output[start:stop]
        logits = _compute_logits(buffer[: stop - start], x, weight, bias)
        if kernels:
            cross_entropy.backward(
                upstream, logits, labels, class_weight, saved, settings.ignore_index, "none",
                settings.label_smoothing, settings.z_loss, settings.softcap, inplace=True,
                first_row=start,
            )  # fmt: skip
        else:
            found = reference.chunk_gradient(logits, labels, class_weight, upstream, settings.loss)
            logits.copy_(found[2])
        _add_gradients(sums, start, logits, x, weight, settings)
    return sums
