"""The operators ``torchsmith::kl_div`` and its backward, and the public function."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchsmith_kernels._src import check, launch
from torchsmith_kernels._src.dispatch import Op
from torchsmith_kernels._src.kl_div import reference, run
from torchsmith_kernels.errors import ArgumentTypeError, ShapeError

NAME = "kl_div"
REDUCTIONS = ("none", "batchmean", "sum", "mean")


def check_pair(name: str, input: Tensor, target: Tensor, reduction: str) -> None:
    """Raises unless these are arguments of a divergence."""
    check.choice(name, "reduction", reduction, REDUCTIONS)
    check.dtype(name, "input", input, check.FLOATING)
    check.dtype(name, "target", target, check.FLOATING)
    check.device(name, "target", target, input)
    if input.shape != target.shape:
        check.shape(name, "target", target, input.shape, "the shape of `input`")


def kernels_take(name: str, input: Tensor, target: Tensor) -> bool:
    """Whether the kernels compute this; float64 is left to plain PyTorch."""
    return (
        launch.usable(input.device, name)
        and input.numel() > 0
        and input.dtype is not torch.float64
        and target.dtype is not torch.float64
    )


def fake_result(input: Tensor, target: Tensor, reduction: str) -> Tensor:
    """An uninitialised result."""
    dtype = torch.promote_types(input.dtype, target.dtype)
    if reduction == "none":
        return torch.empty_like(target, dtype=dtype)
    return torch.empty((), dtype=dtype, device=input.device)


def lay_out(result: Tensor, target: Tensor) -> Tensor:
    """``result`` in the layout of ``fake_result``."""
    if result.dim() == 0 or result.stride() == target.stride():
        return result
    return torch.empty_like(target, dtype=result.dtype).copy_(result)


def fake_gradients(
    input: Tensor, target: Tensor, need_input: bool, need_target: bool
) -> tuple[Tensor, Tensor]:
    """Uninitialised gradients, empty ones for those that are not needed."""
    return (
        torch.empty_like(input) if need_input else input.new_empty((0,)),
        torch.empty_like(target) if need_target else target.new_empty((0,)),
    )


def gradients(
    op: str,
    grad_output: Tensor,
    input: Tensor,
    target: Tensor,
    reduction: str,
    divergence: run.Divergence,
    needed: tuple[bool, bool],
    plain: Callable[[], tuple[Tensor, Tensor]],
) -> tuple[Tensor, Tensor]:
    """Both gradients as an operator returns them, one that is not needed as an empty tensor.

    Args:
        op: the operator's name.
        grad_output: upstream gradient.
        input: first argument of the divergence.
        target: the second.
        reduction: as of ``kl_div``.
        divergence: what the kernels compute.
        needed: which of the two gradients are.
        plain: the same in plain PyTorch, where the kernels do not run.
    """
    if kernels_take(op, input, target):
        first, second = run.backward(grad_output, input, target, reduction, divergence, needed)
        return (
            input.new_empty((0,)) if first is None else first,
            target.new_empty((0,)) if second is None else second,
        )
    results = fake_gradients(input, target, *needed)
    if input.numel() > 0:
        for result, value, need in zip(results, plain(), needed, strict=True):
            if need:
                result.copy_(value)
    return results


def _forward(input: Tensor, target: Tensor, reduction: str, log_target: bool) -> Tensor:
    check_pair(NAME, input, target, reduction)
    if kernels_take(NAME, input, target):
        divergence = run.LOGARITHMS if log_target else run.PROBABILITIES
        return run.forward(input, target, reduction, divergence)
    return lay_out(reference.forward(input, target, reduction, log_target), target)


def _forward_fake(input: Tensor, target: Tensor, reduction: str, log_target: bool) -> Tensor:
    check_pair(NAME, input, target, reduction)
    return fake_result(input, target, reduction)


def _backward(
    grad_output: Tensor,
    input: Tensor,
    target: Tensor,
    reduction: str,
    log_target: bool,
    need_input: bool,
    need_target: bool,
) -> tuple[Tensor, Tensor]:
    return gradients(
        NAME, grad_output, input, target, reduction,
        run.LOGARITHMS if log_target else run.PROBABILITIES, (need_input, need_target),
        lambda: reference.backward(grad_output, input, target, reduction, log_target),
    )  # fmt: skip


def _backward_fake(
    grad_output: Tensor,
    input: Tensor,
    target: Tensor,
    reduction: str,
    log_target: bool,
    need_input: bool,
    need_target: bool,
) -> tuple[Tensor, Tensor]:
    return fake_gradients(input, target, need_input, need_target)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    input, target, ctx.reduction, ctx.log_target = inputs
    ctx.save_for_backward(input, target)


def _grad(ctx: Any, grad_output: Tensor) -> tuple[Any, ...]:
    input, target = ctx.saved_tensors
    args = (grad_output, input, target, ctx.reduction, ctx.log_target)
    need_input, need_target, *_ = ctx.needs_input_grad
    if torch.is_grad_enabled():  # create_graph=True: the same formula, differentiable
        by_input, by_target = reference.backward(*args)
    else:
        by_input, by_target = backward_op(*args, need_input, need_target)
    return by_input if need_input else None, by_target if need_target else None, None, None


backward_op = Op(
    "kl_div_backward(Tensor grad_output, Tensor input, Tensor target, str reduction, "
    "bool log_target, bool need_input, bool need_target) -> (Tensor, Tensor)",
    kernel=_backward,
    fake=_backward_fake,
)
op = Op(
    'kl_div(Tensor input, Tensor target, str reduction="mean", bool log_target=False) -> Tensor',
    kernel=_forward,
    fake=_forward_fake,
    setup_context=_setup_context,
    backward=_grad,
    autocast="float32",
)


def _legacy(size_average: bool | None, reduce: bool | None) -> str:
    """The reduction that two deprecated arguments stand for, with eager's warning."""
    if reduce is False:
        word = "none"
    elif size_average is False:
        word = "sum"
    else:
        word = "mean"
    warnings.warn(
        f"size_average and reduce args will be deprecated, please use reduction='{word}' instead.",
        stacklevel=3,
    )
    return word


def kl_div(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    """Kullback-Leibler divergence (1951), as ``torch.nn.functional.kl_div``.

    The sum over all elements of ``target * (log(target) - input)``, where a target of zero
    contributes nothing; with ``log_target`` of ``exp(target) * (target - input)``. Computed in
    float32 and rounded once (float64 in float64, by plain PyTorch). Under autocast the result is
    float32. Deterministic: programs add up fixed shares of the elements, and one adds up theirs in
    order. Memory: the result and a few KiB; backward keeps ``input`` and ``target`` and writes the
    gradients that are needed in one pass. Tensors of different layouts may be copied.

    Args:
        input: logarithms of probabilities, floating point, of any shape.
        target: probabilities, or with ``log_target`` their logarithms; broadcast with ``input``.
        size_average: deprecated, see ``reduction``.
        reduce: deprecated; giving one of the two overrides ``reduction``.
        reduction: ``none``, ``sum``, ``mean`` (over elements, with eager's warning that this is
            not the divergence) or ``batchmean`` (the sum divided by ``input.shape[0]``).
        log_target: whether ``target`` holds logarithms.

    Returns:
        A scalar, or with ``none`` a tensor of the broadcast shape.

    Raises:
        ArgumentTypeError: an argument has the wrong type, or ``reduction`` is not one of these.
        DtypeError: ``input`` or ``target`` is not floating point.
        DeviceError: ``target`` is on another device.
        ShapeError: the shapes cannot be broadcast together.
    """
    check.is_tensor(NAME, "input", input)
    check.is_tensor(NAME, "target", target)
    if not isinstance(log_target, int):  # bools are
        raise ArgumentTypeError(
            op=NAME,
            argument="log_target",
            given=f"of type {type(log_target).__name__}",
            accepted="it must be a bool",
        )
    if size_average is not None or reduce is not None:
        word = _legacy(size_average, reduce)
        result = _reduced(input, target, word, log_target)
        # Eager divides all the same.
        return result / input.shape[0] if reduction == "batchmean" and input.dim() else result
    if reduction == "mean" and not torch.compiler.is_compiling():
        warnings.warn(
            "reduction: 'mean' divides the total loss by both the batch size and the support size."
            "'batchmean' divides only by the batch size, and aligns with the KL div math "
            "definition.'mean' will be changed to behave the same as 'batchmean' in the next major "
            "release.",
            stacklevel=2,
        )
    return _reduced(input, target, reduction, log_target)


def _reduced(input: Tensor, target: Tensor, reduction: str, log_target: bool) -> Tensor:
    """The operator's result for shapes that may have to be broadcast."""
    if input.shape == target.shape:
        result: Tensor = op(input, target, reduction, log_target)
        return result
    check.choice(NAME, "reduction", reduction, REDUCTIONS)
    check.dtype(NAME, "input", input, check.FLOATING)
    check.dtype(NAME, "target", target, check.FLOATING)
    try:
        shapes = input.shape, target.shape
        shape = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    except RuntimeError:
        raise ShapeError(
            op=NAME,
            argument="target",
            given=tuple(target.shape),
            accepted=f"it must be broadcastable with the shape of `input`, {tuple(input.shape)}",
        ) from None
    # torch.result_type, which torch.compile cannot trace: a tensor with dimensions decides alone.
    dtype = torch.promote_types(input.dtype, target.dtype)
    if not (input.dim() and target.dim()):
        dtype = input.dtype if input.dim() else target.dtype
    pair = (input.to(dtype).expand(shape), target.to(dtype).expand(shape))
    if reduction == "batchmean":
        result = op(*pair, "sum", log_target)
        return result / input.shape[0] if input.dim() > 0 else result
    result = op(*pair, reduction, log_target)
    return result
