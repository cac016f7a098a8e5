"""The public function ``cross_entropy``, which takes all forms of input that eager takes."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import _reduction as legacy

from torchsmith_kernels._src import check, private
from torchsmith_kernels._src.cross_entropy import reference
from torchsmith_kernels._src.cross_entropy.op import NAME, op
from torchsmith_kernels.errors import ArgumentTypeError, ArgumentValueError, ShapeError

REDUCTIONS = ("none", "mean", "sum")
INDEX_DTYPES = (torch.int64, torch.int32, torch.uint8)


def check_settings(
    name: str,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    z_loss: float,
    softcap: float | None,
) -> None:
    """Raises for settings that no loss can be computed with."""
    check.choice(name, "reduction", reduction, REDUCTIONS)
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, (int, torch.SymInt)):
        raise ArgumentTypeError(
            op=name,
            argument="ignore_index",
            given=f"of type {type(ignore_index).__name__}",
            accepted="it must be an int",
        )
    plain = type(label_smoothing) is float and type(z_loss) is float and softcap is None
    if plain and label_smoothing == 0.0 and z_loss == 0.0:
        return
    check.is_number(name, "label_smoothing", label_smoothing)
    if not 0.0 <= label_smoothing <= 1.0:
        raise ArgumentValueError(
            op=name,
            argument="label_smoothing",
            given=repr(label_smoothing),
            accepted="it must be between 0 and 1",
        )
    check.is_number(name, "z_loss", z_loss)
    check.is_number(name, "softcap", softcap, optional=True)
    if softcap is not None and not 0 < softcap < math.inf:
        raise ArgumentValueError(
            op=name,
            argument="softcap",
            given=repr(softcap),
            accepted="it must be positive and finite, or None",
        )


def check_weight(name: str, argument: str, weight: Tensor | None, input: Tensor, n: int) -> None:
    """Raises unless ``weight`` is None or has a floating point value per class."""
    check.is_tensor(name, argument, weight, optional=True)
    if weight is not None:
        check.dtype(name, argument, weight, check.FLOATING)
        check.device(name, argument, weight, input)
        check.shape(name, argument, weight, (n,), "one value per class")


def comparable(target: Tensor, ignore_index: int) -> Tensor:
    """Classes of a type that holds ``ignore_index`` too, which would otherwise wrap around."""
    if target.dtype is torch.uint8 or not -(2**31) <= ignore_index < 2**31:
        return target.long()
    return target


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    z_loss: float = 0.0,
    softcap: float | None = None,
) -> Tensor:
    r"""Cross entropy between logits and classes, as ``torch.nn.functional.cross_entropy``.

    With logits ``x`` of a row (after the soft cap), its class ``t``, class weights ``w`` (1 by
    default), ``C`` classes, smoothing ``s`` and ``log p = x - logsumexp(x)``::

        loss = -(1 - s) * w[t] * log p[t] - s / C * sum(w * log p) + z_loss * logsumexp(x) ** 2

    Rows whose class is ``ignore_index`` have loss and gradient 0, whatever their logits are. The
    mean is over the sum of ``w[t]`` of the other rows, NaN when there are none.

    Computed in float32 and rounded once; forward reads the logits once, backward reads them once
    and writes the gradient. Deterministic: rows are summed in a fixed order. Memory: backward keeps
    the logits and three float32 numbers per row. Logits of more than two dimensions are permuted,
    which copies them. Not differentiable with respect to ``weight`` and class indices; class
    probabilities are computed by plain PyTorch and differentiable. Under autocast the result is
    float32. The maximum and sum are kept online (Milakov and Gimelshein, 2018,
    https://arxiv.org/abs/1805.02867); z-loss is that of PaLM (https://arxiv.org/abs/2204.02311),
    the soft cap that of Gemma 2 (https://arxiv.org/abs/2408.00118).

    Args:
        input: logits ``[C]``, ``[N, C]`` or ``[N, C, d1, ...]``, floating point.
        target: classes ``[]``, ``[N]`` or ``[N, d1, ...]``, int64, int32 or uint8; or class
            probabilities of ``input``'s shape. A class outside of ``[0, C)`` that is not
            ``ignore_index`` is an IndexError on the CPU; on a GPU nothing is read for it and the
            loss and the row's gradient are NaN.
        weight: class weights ``[C]``, floating point.
        size_average: deprecated in PyTorch, see ``reduction``.
        ignore_index: class of rows that do not count; not for probabilities.
        reduce: deprecated in PyTorch, see ``reduction``.
        reduction: ``mean``, ``sum`` or ``none``.
        label_smoothing: share of the loss that goes evenly to all classes, from 0 to 1.
        z_loss: factor of ``logsumexp ** 2``, which keeps logits from drifting.
        softcap: logits become ``softcap * tanh(input / softcap)`` first.

    Returns:
        A scalar, or losses of the target's shape for ``none``; of ``input``'s dtype.

    Raises:
        ArgumentTypeError: an argument has the wrong type.
        ArgumentValueError: ``label_smoothing`` or ``softcap`` is out of range.
        DtypeError: ``input``, ``weight`` or ``target`` has a dtype that is not accepted.
        ShapeError: shapes do not fit together.
        DeviceError: tensors are on different devices.
    """
    check.is_tensor(NAME, "input", input)
    check.is_tensor(NAME, "target", target)
    check.dtype(NAME, "input", input, check.FLOATING)
    check.device(NAME, "target", target, input)
    if size_average is not None or reduce is not None:
        reduction = legacy.legacy_get_string(size_average, reduce)
    check_settings(NAME, ignore_index, reduction, label_smoothing, z_loss, softcap)
    dims = input.dim()
    if dims == 0:
        raise ShapeError(
            op=NAME, argument="input", given=(), accepted="it must have a dimension of classes"
        )
    axis = 0 if dims == 1 else 1
    classes = input.shape[axis]
    check_weight(NAME, "weight", weight, input, classes)
    dtype = torch.float32 if autocast_enabled(input) else input.dtype
    if target.is_floating_point():
        check.shape(NAME, "target", target, input.shape, "the shape of `input`, as probabilities")
        loss = reference.probabilities(
            input, target, weight, reduction, label_smoothing, z_loss, softcap
        )
        return loss.to(dtype)
    check.dtype(NAME, "target", target, INDEX_DTYPES)
    shape = input.shape[:1] if dims == 2 else input.shape[:axis] + input.shape[axis + 1 :]
    check.shape(NAME, "target", target, shape, "the shape of `input` without its classes")
    if dims == 1:
        input = input.unsqueeze(0)
    elif dims > 2:
        input = input.movedim(1, -1).reshape(target.numel(), classes)
    if dims != 2:
        target = target.reshape(-1)
    target = comparable(target, ignore_index)
    loss, _ = op(
        input, target, weight, ignore_index, reduction, label_smoothing, z_loss, softcap, dtype
    )
    result: Tensor = loss
    return result.reshape(shape) if reduction == "none" and dims != 2 else result


def autocast_enabled(input: Tensor) -> bool:
    """Whether autocast would compute a loss of ``input`` in float32."""
    if not private.autocast_anywhere() or input.dtype is torch.float64:
        return False
    kind = input.device.type
    return kind != "meta" and torch.is_autocast_enabled(kind)
