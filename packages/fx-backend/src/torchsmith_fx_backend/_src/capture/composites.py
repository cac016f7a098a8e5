"""Composite operators at symbolic sizes, where torch's definition in C++ reads sizes as numbers.

A size that is read as a number is a constant from then on: the graph would fit one batch size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torchsmith_guards import is_contiguous

from torchsmith_fx_backend._src.capture.ops import op_info
from torchsmith_fx_backend._src.capture.recurrent import layer
from torchsmith_fx_backend._src.capture.torch_private import (
    OpOverload,
    has_mkldnn,
    python_definition,
    pytree,
    run_composite_kernel,
)
from torchsmith_fx_backend._src.captured import is_symbolic

aten = torch.ops.aten
_sym_int: Callable[[Any], Any] = torch.sym_int


def run_composite(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
    """The result of a composite operator, by the operators that it is defined by."""
    if op is aten.one_hot.default:
        if _checks_classes(*args, **kwargs):
            return _one_hot(*args, **kwargs)
        if not is_contiguous(args[0]):  # others compare, and would keep its order: eager's scatters
            args = (args[0].clone(memory_format=torch.contiguous_format), *args[1:])
    if op is aten.affine_grid_generator.default:
        return _affine_grid(*args, **kwargs)
    if (op in _UPSAMPLE or op in _PYTHON) and _symbolic(args):
        if op in _RECURRENT.values():
            return _recurrent(op, *args, **kwargs)
        return (_UPSAMPLE.get(op) or python_definition(op))(*args, **kwargs)
    return run_composite_kernel(op, args, kwargs)


def above_autograd(target: object, args: Sequence[Any]) -> OpOverload | None:
    """The operator of a call that autograd, or the Python dispatcher, would take as torch defines
    it for fake tensors: of one-hot codes, of ``torch.lstm`` and its like at symbolic sizes."""
    if target in (torch.nn.functional.one_hot, aten.one_hot.default):
        return aten.one_hot.default if args else None
    if target in (torch.nn.functional.affine_grid, torch.affine_grid_generator):
        return aten.affine_grid_generator.default
    op = _RECURRENT.get(target)
    return op if len(args) > 3 and type(args[3]) is bool and _symbolic(args) else None


def _checks_classes(index: torch.Tensor, num_classes: int = -1) -> bool:
    return index.device.type == "cpu" and index.dtype is torch.int64 and num_classes > 0


def _one_hot(index: torch.Tensor, num_classes: int) -> torch.Tensor:
    """As eager does it: a class out of range is an error, where comparing would find no class."""
    zeros = torch.zeros((*index.shape, num_classes), dtype=torch.int64, device=index.device)
    return zeros.scatter(-1, index.unsqueeze(-1), 1)


def _affine_grid(theta: torch.Tensor, size: Sequence[Any], align_corners: Any = None) -> Any:
    return _AffineGrid.apply(theta, size, bool(align_corners))  # type: ignore[no-untyped-call]


class _AffineGrid(torch.autograd.Function):
    """As eager does it, by operators that autocast sees and whose gradients take symbols; it saves
    nothing."""

    generate_vmap_rule = True

    @staticmethod
    def forward(theta: torch.Tensor, size: Sequence[Any], align_corners: bool) -> Any:
        points = _grid(theta, size, align_corners).bmm(theta.mT)
        return aten._unsafe_view.default(points, (size[0], *size[2:], len(size) - 2))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.given = inputs[1:]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        size = ctx.given[0]
        points = grad.reshape(size[0], -1, len(size) - 2)
        return _grid(grad, *ctx.given).mT.bmm(points).mT, None, None


def _grid(like: torch.Tensor, size: Sequence[Any], align_corners: bool) -> torch.Tensor:
    """The points of a grid with a 1 each, as many times as there are images."""
    rank, sides = len(size) - 2, []
    for axis, n in enumerate(size[2:]):
        side = _from_minus_one(n, like)
        side = side if align_corners else side * (n - 1) / n
        sides.append(side.view([-1 if i == axis else 1 for i in range(rank)]).expand(*size[2:]))
    base = torch.stack([*reversed(sides), torch.ones_like(sides[0])], -1)
    return base.view(1, -1, rank + 1).expand(size[0], -1, -1)


def _from_minus_one(n: Any, like: torch.Tensor) -> torch.Tensor:
    """To 1 in ``n`` steps: ``torch.linspace``, which takes plain numbers."""
    if type(n) is int or n < 2 or like.dtype not in (torch.float32, torch.float64):
        ends = (-1, 1) if n > 1 else (0, 0)
        return torch.linspace(*ends, n, dtype=like.dtype, device=like.device)
    i = torch.arange(n, dtype=like.dtype, device=like.device)
    step = like.new_full((), 2) / (n - 1)
    return torch.where(i < n // 2, step * i - 1, 1 - step * (n - 1 - i))


def _symbolic(values: Sequence[object]) -> bool:
    return any(map(is_symbolic, pytree.tree_leaves(values)))


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
    getattr(aten, name).vec: _upsample(getattr(aten, name).default)
    for name in (
        "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d "
        "_upsample_nearest_exact2d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d "
        "upsample_trilinear3d upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa"
    ).split()
}


def _recurrent(
    op: OpOverload,
    x: torch.Tensor,
    hidden: Any,
    params: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """A recurrent network layer by layer: torch's definition leaves dropout between them out."""
    x = x.transpose(0, 1) if batch_first else x
    several = isinstance(hidden, (tuple, list))
    places, part = 2 if bidirectional else 1, len(params) // num_layers
    define = python_definition(op)
    kind = op_info(op).name.removeprefix("rnn_")
    walked = _is_walked(kind, x, hidden, params, part)
    finals = []
    for i in range(num_layers):
        state = [h.narrow(0, i * places, places) for h in (hidden if several else [hidden])]
        own = params[i * part : (i + 1) * part]
        x = torch.dropout(x, dropout, train) if i else x
        if walked:
            x, *final = layer(kind, x, state, own, both=bidirectional)
        else:
            given = (x, state if several else state[0], own, has_biases, 1, 0.0, train)
            x, *final = define(*given, bidirectional, False)  # type: ignore[misc]
            # Some versions of the definition add a dimension.
            final = [a.reshape(h.shape) if a.dim() > 3 else a for a, h in zip(final, state)]
        finals.append(final)
    last = (torch.cat(parts) if num_layers > 1 else parts[0] for parts in zip(*finals))
    return (x.transpose(0, 1) if batch_first else x, *last)


def _is_walked(
    kind: str, x: torch.Tensor, hidden: Any, params: Sequence[torch.Tensor], part: int
) -> bool:
    """Whether the layers are operators that take any length."""
    casts = torch.is_autocast_enabled("cpu")
    if x.device.type != "cpu" or (casts and kind != "lstm"):
        return False
    if kind != "lstm":
        return x.dtype.is_floating_point
    taken = casts or all(t.dtype is x.dtype for t in (*hidden, *params))
    return taken and has_mkldnn(x.dtype) and part not in (3, 5, 6, 10)  # which have projections


_RECURRENT: dict[object, OpOverload] = {
    torch.lstm: aten.lstm.input,
    torch.gru: aten.gru.input,
    torch.rnn_tanh: aten.rnn_tanh.input,
    torch.rnn_relu: aten.rnn_relu.input,
}
# Torch's own definitions in Python.
_PYTHON = frozenset(
    {*_RECURRENT.values(), aten.stft.center, aten.istft.default, aten.unsafe_chunk.default}
)
