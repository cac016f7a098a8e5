"""Functions of torch with float arguments that vary from call to call, written out.

The C++ of these functions wants numbers where it is called. So where one is a symbol
(``torchsmith_guards.varying_floats``), they are composed of operators that take scalars, as eager
composes them; draws are recorded with the symbol as their argument, and get its value at each call.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable
from typing import Any

import torch
import torchsmith_guards as guards
from torch.nn import functional as F

from torchsmith_fx_backend._src.aot import data
from torchsmith_fx_backend._src.aot.functional import FunctionalMode
from torchsmith_fx_backend._src.capture.torch_private import below_autograd, without_active_modes

aten = torch.ops.aten
Tensor = torch.Tensor

_ALPHA = 1.7580993408473766  # of SELU, negated and scaled, as alpha dropout has it


class FloatCalls:
    """Calls of these functions in a traced program."""

    def __init__(self, mode: FunctionalMode, *, exact_draws: bool) -> None:
        """
        Args:
            mode: the recording.
            exact_draws: random numbers shall be those of eager.
        """
        self.mode = mode
        self._exact_draws = exact_draws

    def __call__(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call of ``target``, a function or the name of a method; NotImplemented
        where it takes its arguments as they are."""
        if target in _CAST and any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
            return NotImplemented
        if guards.varying_floats(target, args, kwargs):
            if target in _FORMULAS:
                return _FORMULAS[target](*args, **kwargs)
            if target in _RECORDED:
                return _RECORDED[target](self, *args, **kwargs)
        if target in _DIFFERENTIATED and torch.is_grad_enabled():
            if any(type(x) in (torch.SymFloat, torch.SymInt) for x in (*args, *kwargs.values())):
                return _DIFFERENTIATED[target](*args, **kwargs)
        return NotImplemented

    def draw(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """A draw with symbols among its arguments."""
        with without_active_modes(), self.mode.fake_mode, below_autograd(), torch.no_grad():
            return self.mode.call(func, *args, **kwargs)

    def _write(self, func: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return x.copy_(self.draw(func, torch.empty_like(x.detach()), *args, **kwargs))

    def bernoulli_(self, x: Tensor, p: Any = 0.5, **kwargs: Any) -> Tensor:
        return self._write(aten.bernoulli_.float, x, p, **kwargs)

    def uniform_(self, x: Tensor, *args: Any, generator: object = None, **named: Any) -> Tensor:
        given = {"from": 0.0, "to": 1.0} | dict(zip(("from", "to"), args)) | named
        return self._write(aten.uniform_.default, x, *given.values(), generator=generator)

    def normal_(self, x: Tensor, mean: Any = 0.0, std: Any = 1.0, **kwargs: Any) -> Tensor:
        return self._write(aten.normal_.default, x, mean, std, **kwargs)

    def exponential_(self, x: Tensor, lambd: Any = 1.0, **kwargs: Any) -> Tensor:
        return self._write(aten.exponential_.default, x, lambd, **kwargs)

    def dropout(
        self, input: Tensor, p: Any = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if not training or input.numel() == 0:
            return input
        if input.device.type == "cuda" and self._exact_draws and not inplace:
            # One kernel of eager's own draws and drops; its mask says what it has drawn.
            _, mask = self.draw(aten.native_dropout.default, input, p, True)
            return _times(input * mask, 1 / (1 - p), inplace)
        return _times(input, self._noise(input.detach(), p) / (1 - p), inplace)

    def dropout_channels(
        self,
        input: Tensor,
        p: Any = 0.5,
        training: bool = True,
        inplace: bool = False,
        *,
        rank: int = 0,
    ) -> Tensor:
        """``rank``: the number of dimensions with the one of a batch, which may be missing."""
        if not training or input.numel() == 0:
            return input
        noise = self._noise(_channels(input, 2 if rank in (0, input.dim()) else 1), p)
        return _times(input, noise / (1 - p), inplace)

    def alpha_dropout(
        self,
        input: Tensor,
        p: Any = 0.5,
        training: bool = False,
        inplace: bool = False,
        *,
        like: Callable[[Tensor], Tensor] = Tensor.detach,
    ) -> Tensor:
        if not training or input.numel() == 0:
            return input
        noise = self._noise(like(input), p)
        scale = 1.0 / ((_ALPHA * _ALPHA * p + 1) * (1 - p)) ** 0.5
        moved = (noise - 1) * (_ALPHA * scale) + _ALPHA * scale * p
        result = _times(input, noise * scale, inplace)
        return result.add_(moved) if inplace else result + moved

    def _noise(self, like: Tensor, p: Any) -> Tensor:
        noise: Tensor = self.draw(aten.bernoulli_.float, torch.empty_like(like), 1 - p)
        return noise

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: Any = 0.0,
        is_causal: bool = False,
        *,
        scale: Any = None,
        enable_gqa: bool = False,
    ) -> Any:
        """A CPU has no kernel that drops elements: eager composes it, too."""
        if not isinstance(dropout_p, torch.SymFloat) or query.device.type != "cpu":
            return NotImplemented
        if isinstance(scale, torch.SymFloat):
            query, scale = query * (scale * query.shape[-1] ** 0.5), None
        if attn_mask is not None and attn_mask.dtype is torch.bool:
            hidden = torch.zeros_like(attn_mask, dtype=query.dtype)
            attn_mask = hidden.masked_fill(~attn_mask, float("-inf"))
        given = (query, key, value, attn_mask, 0.0, is_causal, None)
        attend = aten._scaled_dot_product_attention_math.default
        _, weights = attend(*given, scale=scale, enable_gqa=enable_gqa)
        if enable_gqa:
            value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
        return self.dropout(weights, dropout_p) @ value

    def normal(self, mean: Any, std: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(mean, Tensor) or isinstance(std, Tensor):
            return torch.normal(mean, std, *args, **kwargs)
        size, *rest = args or (kwargs.pop("size"),)
        if rest or kwargs.get("out") is not None:
            return torch.normal(mean, std, size, *rest, **kwargs)
        needs_grad = kwargs.pop("requires_grad", False)
        drawn = self.draw(aten.normal.float_float, mean, std, size, **kwargs)
        return drawn.requires_grad_() if needs_grad else drawn


def _times(x: Tensor, factor: Tensor, inplace: bool) -> Tensor:
    return x.mul_(factor) if inplace else x * factor


def _channels(x: Tensor, kept: int = 2) -> Tensor:
    """A tensor without data: one element for each channel of each sample, if there are several."""
    return x.new_empty((*x.shape[:kept], *[1] * (x.dim() - kept)))


# --- losses ----------------------------------------------------------------------------------


def _reduced(
    loss: Tensor, size_average: Any = None, reduce: Any = None, reduction: str = "mean"
) -> Any:
    if size_average is not None or reduce is not None:
        return NotImplemented
    if reduction == "none":
        return loss
    return loss.mean() if reduction == "mean" else loss.sum()


def _cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: Any = 0.0,
) -> Any:
    if size_average is not None or reduce is not None:
        return NotImplemented
    dim = 0 if input.dim() == 1 else 1
    classes = input.shape[dim]
    scores = F.log_softmax(input, dim)
    weights = None
    if weight is not None:
        weights = weight.view([classes if d == dim else 1 for d in range(input.dim())])
    if input.shape == target.shape:
        target = target * (1 - label_smoothing) + label_smoothing / classes
        products = scores * target if weights is None else scores * target * weights
        loss = -products.sum(dim)
        if reduction == "mean":
            return loss.sum() / (input.numel() // classes)
        return _reduced(loss, reduction=reduction)
    hard = F.nll_loss(scores, target, weight, ignore_index=ignore_index, reduction=reduction)
    soft = -(scores if weights is None else scores * weights).sum(dim)
    ignored = target == ignore_index
    soft = soft.masked_fill(ignored, 0.0)
    if reduction == "mean":
        if weight is None:
            soft = soft.sum() / (~ignored).sum()
        else:
            known = weight.take(target.masked_fill(ignored, 0))
            soft = soft.sum() / known.masked_fill(ignored, 0.0).sum()
    else:
        soft = _reduced(soft, reduction=reduction)
    return hard * (1 - label_smoothing) + soft * (label_smoothing / classes)


def _huber_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    delta: Any = 1.0,
    weight: Tensor | None = None,
) -> Any:
    distance = (input - target).abs()
    near = 0.5 * distance * distance
    loss = torch.where(distance <= delta, near, delta * (distance - 0.5 * delta))
    return _reduced(loss if weight is None else loss * weight, reduction=reduction)


def _smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: Any = 1.0,
) -> Any:
    distance = (input - target).abs()
    near = 0.5 * distance * distance / beta
    loss = torch.where(distance < beta, near, distance - 0.5 * beta)
    return _reduced(loss, size_average, reduce, reduction)


def _margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: Any = 0, *reduction: Any, **named: Any
) -> Any:
    return _reduced((-target * (input1 - input2) + margin).clamp_min(0), *reduction, **named)


def _hinge_embedding_loss(
    input: Tensor, target: Tensor, margin: Any = 1.0, *reduction: Any, **named: Any
) -> Any:
    zero = input.new_zeros(())
    far = torch.where(target == 1, zero, (margin - input).clamp_min(0))
    near = torch.where(target == -1, zero, input)
    return _reduced(far + near, *reduction, **named)


def _triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: Any = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    *reduction: Any,
    **named: Any,
) -> Any:
    near = F.pairwise_distance(anchor, positive, p, eps)
    far = F.pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = torch.minimum(far, F.pairwise_distance(positive, negative, p, eps))
    return _reduced((margin + near - far).clamp_min(0), *reduction, **named)


def _cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: Any = 0, *reduction: Any, **named: Any
) -> Any:
    dim, eps = target.dim(), 1e-12
    product = (input1 * input2).sum(dim)
    squares = ((input1 * input1).sum(dim) + eps) * ((input2 * input2).sum(dim) + eps)
    cosine = product / squares.sqrt()
    zero = cosine.new_zeros(())
    near = torch.where(target == 1, 1 - cosine, zero)
    far = torch.where(target == -1, (cosine - margin).clamp_min(0), zero)
    return _reduced(near + far, *reduction, **named)


# --- images and normalizations ----------------------------------------------------------------


def _resample(shift: float, linear: bool, input: Tensor, output_size: Any, *more: Any) -> Any:
    """An image at points that are ``shift`` of a point further, one dimension after the other."""
    corners, scales = more[: 2 - input.dim()], more[2 - input.dim() :]
    plain = input.is_floating_point() and input.is_contiguous() and input.device.type == "cpu"
    if not plain or any(corners) or None in scales:
        return NotImplemented
    single = torch.promote_types(input.dtype, torch.float32)
    x = input.to(single) if linear else input
    # At some sizes the kernels leave the scale out.
    doubled = not shift and input.dim() == 4
    copied = linear or doubled
    for dim in range(input.dim() - 1, 1, -1):
        out, size, scale = output_size[dim - 2], x.shape[dim], scales[dim - input.dim()]
        if copied and out == size:
            continue
        scale = 2.0 if doubled and out == 2 * size else scale
        step = torch.full((), 1 / scale, dtype=single)
        place = (torch.arange(out) + shift) * step
        place = (place - shift).clamp_min(0) if linear else place
        low = place.long()
        weight = (place - low).view([-1 if d == dim else 1 for d in range(x.dim())])
        below = x.index_select(dim, low.clamp_max(size - 1))
        above = x.index_select(dim, (low + 1).clamp_max(size - 1)) if linear else below
        x = (1 - weight) * below + weight * above if linear else below
    return x.to(input.dtype, copy=x is input)


def _normalization(norm: Callable[..., Tensor]) -> Callable[..., Any]:
    """A norm with an ``eps`` is one with 1 in its place of what is divided by its root."""
    names = list(inspect.signature(norm).parameters)

    def call(input: Tensor, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names[1:], args)) | kwargs
        kept = [given.get(name) for name in ("running_mean", "running_var")]
        if input.dtype not in (torch.float32, torch.float64) or kept != [None, None]:
            return NotImplemented
        return norm(input * given.pop("eps") ** -0.5, **given, eps=1.0)

    return call


# --- others ----------------------------------------------------------------------------------


def _batch_norm(
    calls: FloatCalls,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: Any = 0.1,
    eps: Any = 1e-5,
) -> Any:
    if not training or guards.holds(input.shape, 0):  # which leaves the statistics as they are
        return F.batch_norm(input, running_mean, running_var, weight, bias, training, 0.1, eps)
    with torch.no_grad():
        wide = input.detach()
        if running_mean is not None and wide.dtype != running_mean.dtype:
            wide = wide.to(running_mean.dtype)
        dims = [0, *range(2, input.dim())]
        for running, measure in ((running_mean, wide.mean), (running_var, wide.var)):
            if running is not None:  # eager's kernel writes without counting it, as through data
                written = data.read(calls.mode, running)
                written.mul_(1 - momentum).add_(momentum * measure(dims))
    norm = _normalization(F.batch_norm) if isinstance(eps, torch.SymFloat) else F.batch_norm
    return norm(input, None, None, weight, bias, True, 0.1, eps)


def _pad(input: Tensor, pad: Any, mode: str = "constant", value: Any = None) -> Tensor:
    if mode != "constant":
        return F.pad(input, pad, mode, value)
    return torch.constant_pad_nd(input, pad, value)


def _quantile(input: Tensor, q: Any, *args: Any, **kwargs: Any) -> Tensor:
    place = torch.full((), q, dtype=input.dtype, device=input.device)
    return torch.quantile(input, place, *args, **kwargs)


# --- whose gradients want to know the number ---------------------------------------------------


def _tensor(number: Any, like: Tensor) -> Tensor:
    """A tensor of ``number`` that does not change the type of what is computed with ``like``."""
    floating = like.dtype if like.is_floating_point() else torch.get_default_dtype()
    dtype = torch.promote_types(floating, torch.float32)
    return torch.full((), number, dtype=dtype, device=like.device)


def _pow(x: Any, y: Any) -> Any:
    if any(isinstance(v, Tensor) and not v.is_floating_point() for v in (x, y)):
        return NotImplemented
    if isinstance(x, Tensor) and not isinstance(y, Tensor):
        y = _tensor(y, x)
    elif isinstance(y, Tensor) and not isinstance(x, Tensor):
        x = _tensor(x, y)
    else:
        return NotImplemented
    return torch.pow(x, y)


def _lerp(input: Tensor, end: Tensor, weight: Any) -> Any:
    weights = _tensor(weight, input)
    return torch.lerp(input, end, weights) if weights.dtype == input.dtype else NotImplemented


def _celu(input: Tensor, alpha: Any = 1.0, inplace: bool = False) -> Any:
    if inplace:
        return NotImplemented
    # Beyond zero, where the other side is taken, its gradient must not overflow.
    return torch.where(input > 0, input, torch.expm1(input.clamp_max(0) / alpha) * alpha)


_DIFFERENTIATED: dict[Any, Callable[..., Any]] = {
    operator.pow: _pow,
    torch.pow: _pow,
    "pow": _pow,
    torch.lerp: _lerp,
    "lerp": _lerp,
    F.celu: _celu,
}
_FORMULAS: dict[Any, Callable[..., Any]] = {
    F.cross_entropy: _cross_entropy,
    F.huber_loss: _huber_loss,
    F.smooth_l1_loss: _smooth_l1_loss,
    F.margin_ranking_loss: _margin_ranking_loss,
    F.hinge_embedding_loss: _hinge_embedding_loss,
    F.triplet_margin_loss: _triplet_margin_loss,
    F.cosine_embedding_loss: _cosine_embedding_loss,
    F.pad: _pad,
    **{f: _normalization(f) for f in (F.layer_norm, F.rms_norm, F.group_norm, F.instance_norm)},
    torch.quantile: _quantile,
    "quantile": _quantile,
}
for _rank, _linear in enumerate(("linear1d", "bilinear2d", "trilinear3d"), 1):
    for _name, _shift in (
        (f"upsample_nearest{_rank}d", 0.0),
        (f"_upsample_nearest_exact{_rank}d", 0.5),
        (f"upsample_{_linear}", 0.5),
    ):
        _given = functools.partial(_resample, _shift, _linear in _name)
        _FORMULAS[getattr(aten, _name).default] = _given
# What autocast computes in float32, as operators of these names.
_CAST = frozenset({*_FORMULAS, F.scaled_dot_product_attention}) - {F.cross_entropy, F.pad}
_RECORDED: dict[Any, Callable[..., Any]] = {
    F.batch_norm: _batch_norm,
    F.scaled_dot_product_attention: FloatCalls.attention,
    F.dropout: FloatCalls.dropout,
    F.dropout1d: functools.partial(FloatCalls.dropout_channels, rank=3),
    F.dropout2d: FloatCalls.dropout_channels,
    F.dropout3d: functools.partial(FloatCalls.dropout_channels, rank=5),
    F.alpha_dropout: FloatCalls.alpha_dropout,
    F.feature_alpha_dropout: functools.partial(FloatCalls.alpha_dropout, like=_channels),
    "bernoulli_": FloatCalls.bernoulli_,
    "uniform_": FloatCalls.uniform_,
    "normal_": FloatCalls.normal_,
    "exponential_": FloatCalls.exponential_,
    torch.normal: FloatCalls.normal,
}
