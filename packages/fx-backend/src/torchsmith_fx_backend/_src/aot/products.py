"""Gradients of products and of running products, as eager has them where no factor is zero."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Hook = Callable[[Sequence[Any], Sequence[Any]], tuple[Any, ...] | None]


def hook_product(
    function: Any, lie_as: Callable[..., Any], *, _saved_self: Any, _saved_result: Any
) -> None:
    """Replace the gradient that the autograd node ``function`` of a product gives.

    Args:
        lie_as: of a tensor, the gradients and what they are for: the gradients laid out as it.
    """
    x, result = _saved_self.detach(), _saved_result.detach()
    if type(function).__name__.startswith("Cumprod"):
        function.register_hook(_running(_dim(function), x, result))
    else:
        function.register_hook(_whole(function, lie_as, x, result))


def _dim(function: Any) -> int:
    dim = getattr(function, "_saved_dim", 0)
    return int(dim - ((dim >> 63) << 64))  # it is shown without its sign


def _whole(
    function: Any, lie_as: Callable[..., Any], x: torch.Tensor, result: torch.Tensor
) -> Hook:
    """The gradient laid out as a quotient."""
    dim = _dim(function)
    inner = result.dim() < x.dim() and hasattr(function, "_saved_dim")

    def hook(grads: Sequence[Any], given: Sequence[Any]) -> tuple[Any, ...] | None:
        if given[0] is None:
            return None
        pair = [t.unsqueeze(dim) if inner else t for t in (given[0], result)]
        laid_out: tuple[Any, ...] | None = lie_as(pair[0] * (pair[1] / x), grads, given)
        return laid_out

    return hook


def _running(dim: int, x: torch.Tensor, result: torch.Tensor) -> Hook:
    """The gradient of ``cumprod`` in a few scans. Where zeros may be, torch computes it factor by
    factor: a graph of as many parts as there are, since only data tell."""

    def hook(grads: Sequence[Any], given: Sequence[Any]) -> tuple[Any, ...] | None:
        if given[0] is None or grads[0] is None or x.dim() == 0 or x.shape[dim] in (0, 1):
            return None
        grad = given[0].to(x.dtype)
        zero = x == 0
        zeros = zero.cumsum(dim)
        before, between = zeros == 0, zeros == 1  # no zero so far, one
        later = (result.conj() * grad).where(before, 0).flip(dim).cumsum(dim).flip(dim)
        quotient = later / x.conj().where(before, 1)
        # At the first zero: the product before it, times all products that begin behind it.
        behind = x.where(between & ~zero, 1).cumprod(dim)
        total = (grad * behind.conj()).where(between, 0).sum(dim, keepdim=True)
        one = torch.ones_like(result.narrow(dim, 0, 1))
        ahead = torch.cat((one, result.narrow(dim, 0, x.shape[dim] - 1)), dim)
        found = quotient.where(before, (ahead.conj() * total).where(between & zero, 0))
        return (found.to(grads[0].dtype),)

    return hook
