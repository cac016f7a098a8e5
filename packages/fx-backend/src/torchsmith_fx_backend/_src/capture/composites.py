"""Composite operators at symbolic sizes, where torch's definition in C++ reads sizes as numbers.

A size that is read as a number is a constant from then on: the graph would fit one batch size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torchsmith_fx_backend._src.capture.torch_private import (
    OpOverload,
    python_definition,
    run_composite_kernel,
)

aten = torch.ops.aten
_sym_int: Callable[[Any], Any] = torch.sym_int


def run_composite(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
    """The result of a composite operator, by the operators that it is defined by."""
    if op is aten.one_hot.default and _checks_classes(*args):
        return _one_hot(*args)
    if (op in _UPSAMPLE or op in _PYTHON) and _symbolic(args):
        define = _UPSAMPLE.get(op) or python_definition(op)
        return define(*args, **kwargs)
    return run_composite_kernel(op, args, kwargs)


def _checks_classes(index: torch.Tensor, classes: int = -1) -> bool:
    return index.device.type == "cpu" and index.dtype is torch.int64 and classes > 0


def _one_hot(index: torch.Tensor, classes: int) -> torch.Tensor:
    """As eager does it: a class out of range is an error, where comparing would find no class."""
    zeros = torch.zeros((*index.shape, classes), dtype=torch.int64, device=index.device)
    return zeros.scatter(-1, index.unsqueeze(-1), 1)


def _symbolic(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return any(type(size) is not int for size in value.shape)
    return isinstance(value, (tuple, list)) and any(map(_symbolic, value))


def _upsample(resample: OpOverload) -> Callable[..., torch.Tensor]:
    def by_factors(
        x: torch.Tensor, size: Any, *more: Any, scale_factors: Sequence[float] | None = None
    ) -> torch.Tensor:
        *align, factors = more if scale_factors is None else (*more, scale_factors)
        if factors is None:
            return resample(x, size, *align, *[None] * (x.dim() - 2))  # type: ignore[no-any-return]
        if not size:
            size = [_sym_int(n * f) for n, f in zip(x.shape[2:], factors)]
        return resample(x, size, *align, *factors)  # type: ignore[no-any-return]

    return by_factors


_UPSAMPLE: dict[OpOverload, Callable[..., Any]] = {
    **{
        getattr(aten, f"{kind}{rank}d").vec: _upsample(getattr(aten, f"{kind}{rank}d").default)
        for kind, rank in (
            ("upsample_nearest", 1),
            ("upsample_nearest", 2),
            ("upsample_nearest", 3),
            ("_upsample_nearest_exact", 1),
            ("_upsample_nearest_exact", 2),
            ("_upsample_nearest_exact", 3),
            ("upsample_linear", 1),
            ("upsample_bilinear", 2),
            ("upsample_trilinear", 3),
            ("upsample_bicubic", 2),
        )
    },
    aten._upsample_bilinear2d_aa.vec: _upsample(aten._upsample_bilinear2d_aa.default),
    aten._upsample_bicubic2d_aa.vec: _upsample(aten._upsample_bicubic2d_aa.default),
}
# Torch's own definitions in Python.
_PYTHON = frozenset(
    {
        aten.lstm.input,
        aten.gru.input,
        aten.rnn_tanh.input,
        aten.rnn_relu.input,
        aten.stft.center,
        aten.istft.default,
        aten.unsafe_chunk.default,
    }
)
