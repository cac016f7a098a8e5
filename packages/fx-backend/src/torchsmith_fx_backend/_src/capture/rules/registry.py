"""The table of decompositions and the vocabulary they are written in.

A rule is a function ``rule(mode, *operator_args, **operator_kwargs)`` that calls simpler operators
through ``mode.call`` and returns what the operator returns, or ``NotImplemented`` to leave the
operator as it is. The helpers below are one call each, so that a rule reads like its formula.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torchsmith_guards import is_contiguous, layout_of, same_sizes

from torchsmith_fx_backend._src.capture.torch_private import OpOverload

aten = torch.ops.aten

Tensor = torch.Tensor
Rule = Callable[..., Any]


class Mode(Protocol):
    """What a rule needs from the recording mode."""

    def call(self, func: OpOverload, *args: Any, **kwargs: Any) -> Any:
        """Run an operator and record it."""

    def tensor(self, func: OpOverload, *args: Any, **kwargs: Any) -> Tensor:
        """``call`` of an operator that returns one tensor."""


RULES: dict[OpOverload, Rule] = {}

LOW_PRECISION = (torch.bfloat16, torch.float16)
FLOATS = (torch.float32, torch.float64, *LOW_PRECISION)


def rule(*targets: OpOverload) -> Callable[[Rule], Rule]:
    """Register a decomposition of ``targets``."""

    def register(function: Rule) -> Rule:
        for target in targets:
            if target in RULES:
                raise ValueError(f"{target} has a decomposition already")
            RULES[target] = function
        return function

    return register


def float_rule(*targets: OpOverload) -> Callable[[Rule], Rule]:
    """Register a decomposition for floating-point first arguments, computed in float32 at least
    and rounded once to the argument's type."""

    def register(function: Rule) -> Rule:
        def in_high_precision(mode: Mode, x: Tensor, *args: Any, **kwargs: Any) -> Any:
            if x.dtype not in FLOATS:
                return NotImplemented
            result = function(mode, up(mode, x), *args, **kwargs)
            return result if result is NotImplemented else to(mode, result, x.dtype)

        return rule(*targets)(in_high_precision)

    return register


def to(m: Mode, x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x`` as ``dtype``; itself when it is."""
    return x if x.dtype == dtype else m.tensor(aten._to_copy.default, x, dtype=dtype)


def up(m: Mode, x: Tensor) -> Tensor:
    """``x`` in the type that arithmetic on it happens in."""
    return to(m, x, torch.float32) if x.dtype in LOW_PRECISION else x


def _formula(op: OpOverload) -> Callable[..., Tensor]:
    return lambda m, *args: m.tensor(op, *args)


add, sub = _formula(aten.add.Tensor), _formula(aten.sub.Tensor)
mul, div = _formula(aten.mul.Tensor), _formula(aten.div.Tensor)
exp, rsqrt = _formula(aten.exp.default), _formula(aten.rsqrt.default)
where = _formula(aten.where.self)


def view(m: Mode, x: Tensor, size: Sequence[Any]) -> Tensor:
    """``x`` with another shape."""
    return m.tensor(aten.view.default, x, list(size))


def row_major(m: Mode, x: Tensor) -> Tensor:
    """``x`` itself when it is row-major, else a copy that is."""
    if is_contiguous(x):
        return x
    return m.tensor(aten.clone.default, x, memory_format=torch.contiguous_format)


def packed(m: Mode, x: Tensor) -> Tensor:
    """``row_major`` on a GPU, where eager makes such a copy and a kernel does without; ``x`` on a
    CPU, whose library walks rows of every layout faster than loops do."""
    return x if x.device.type == "cpu" else row_major(m, x)


def laid_by(m: Mode, result: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """``result`` as a pointwise kernel of eager's lays it out that reads ``first``, then ``second``
    (what a formula computes from them may meet them in another order)."""
    found = layout_of(aten.add.Tensor, (first, second), {})
    return laid(m, result, found[1]) if isinstance(found, tuple) else result


def laid(m: Mode, result: Tensor, stride: Sequence[Any]) -> Tensor:
    """``result`` with these strides."""
    if same_sizes(stride, result.stride()):
        return result
    kept = {"dtype": result.dtype, "device": result.device}
    empty = m.tensor(aten.empty_strided.default, list(result.shape), list(stride), **kept)
    return m.tensor(aten.copy.default, empty, result)


def scalar(m: Mode, value: Any, like: Tensor) -> Tensor:
    """A tensor without dimensions, of the type and device of ``like``."""
    return full(m, (), value, like.dtype, like.device)


def full(
    m: Mode, size: Sequence[Any], value: Any, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """A tensor of one repeated value."""
    return m.tensor(
        aten.full.default, list(size), value, dtype=dtype, device=device, pin_memory=False
    )


def counting(m: Mode, n: Any, device: torch.device) -> Tensor:
    """0, 1 ... up to ``n``, which is left out."""
    options = {"dtype": torch.int64, "device": device, "pin_memory": False}
    return m.tensor(aten.arange.start_step, 0, n, 1, **options)


def total(m: Mode, x: Tensor, dims: Sequence[int], keepdim: bool = True) -> Tensor:
    """Sum over ``dims``."""
    return m.tensor(aten.sum.dim_IntList, x, list(dims), keepdim)


def normalize(
    m: Mode, wide: Tensor, dims: Sequence[int], eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(x - mean) / sqrt(var + eps), the mean, and the reciprocal of the root."""
    number = count(wide, dims)
    mean = div(m, total(m, wide, dims), number)
    centred = sub(m, wide, mean)
    variance = div(m, total(m, mul(m, centred, centred), dims), number)
    scale = rsqrt(m, add(m, variance, eps))
    return mul(m, centred, scale), mean, scale


def affine(
    m: Mode, x: Tensor, weight: Tensor | None, bias: Tensor | None, size: Sequence[Any] = ()
) -> Tensor:
    """``x * weight + bias`` of those parameters that are there, in another shape if given."""
    for combine, parameter in ((mul, weight), (add, bias)):
        if parameter is not None:
            wide = up(m, parameter)
            x = combine(m, x, view(m, wide, size) if size else wide)
    return x


def count(x: Tensor, dims: Sequence[int]) -> Any:
    """Number of elements along ``dims``: an int, symbolic when a size is."""
    number: Any = 1
    for dim in dims:
        number = number * x.shape[dim]
    return number


def axes(x: Tensor, dim: Any) -> list[int]:
    """Non-negative reduction axes from a ``dim`` argument; none means all."""
    rank = x.dim()
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return list(range(rank))
    dims = dim if isinstance(dim, (list, tuple)) else [dim]
    return [d % rank if rank else 0 for d in dims]
