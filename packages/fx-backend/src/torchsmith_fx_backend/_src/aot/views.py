"""Views as data: one step from a tensor to a view of it, how to redo it, how to write through it.

A tensor that shares storage with another is described by the base tensor and a chain of steps.
After a write, readers replay the chain on the base's new value; a write through a view goes back
up the chain with each step's inverse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import fx

from torchsmith_fx_backend._src.capture.torch_private import OpOverload
from torchsmith_fx_backend.errors import UnsupportedError

aten = torch.ops.aten


# Views whose elements differ from those in memory; a bit of the tensor says so.
LAZY = frozenset({aten._conj.default, aten._neg_view.default})


@dataclass(frozen=True, slots=True)
class Step:
    """``target(tensor, *args, **kwargs)``; symbolic sizes in ``args`` are graph nodes.

    With ``index``, the step is that item of the list which ``target`` returns; results of the same
    ``group`` are items of one list. Autograd does not count writes after a step that is not
    ``counted``.
    """

    target: OpOverload
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    index: int | None = None
    counted: bool = True
    group: str = ""


# ``.data``: autograd does not count what is written through it.
UNCOUNTED = Step(aten.detach.default, (), (), counted=False)


class NodeBuilder(Protocol):
    """What an inverse needs: apply an operator to graph nodes."""

    def apply(self, target: OpOverload, args: Sequence[Any], **kwargs: Any) -> fx.Node:
        """Add the call and return its node."""


# (builder, value before the step, new value of the view, step) -> new value before the step
Inverse = Callable[[NodeBuilder, fx.Node, fx.Node, Step], fx.Node]

INVERSES: dict[OpOverload, Inverse] = {}


def _inverse(*targets: OpOverload) -> Callable[[Inverse], Inverse]:
    def register(function: Inverse) -> Inverse:
        for target in targets:
            if target in INVERSES:
                raise ValueError(f"{target} has an inverse already")
            INVERSES[target] = function
        return function

    return register


def scatter(builder: NodeBuilder, before: fx.Node, new: fx.Node, step: Step) -> fx.Node:
    """The value of the whole after its part ``step`` became ``new``.

    Raises:
        UnsupportedError: the step has no inverse.
    """
    inverse = INVERSES.get(step.target)
    if inverse is None:
        raise UnsupportedError(what=f"a write through a view made by {step.target}")
    return inverse(builder, before, new, step)


@_inverse(
    aten.view.default,
    aten._unsafe_view.default,
    aten._reshape_alias.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.expand.default,
)
def _reshape(b: NodeBuilder, before: fx.Node, new: fx.Node, step: Step) -> fx.Node:
    old, value = before.meta["val"], new.meta["val"]
    if old.numel() != value.numel():
        raise UnsupportedError(what="a write through an expanded tensor")
    size = list(old.shape)
    return b.apply(aten.reshape.default, (new, size))


@_inverse(aten.alias.default, aten.detach.default, aten.lift_fresh.default)
def _identity(b: NodeBuilder, before: fx.Node, new: fx.Node, step: Step) -> fx.Node:
    return new


# What undoes a step, with the step's own arguments.
_OPPOSITE = {
    aten.t.default: aten.t.default,
    aten.transpose.int: aten.transpose.int,
    aten._conj.default: aten.conj_physical.default,
    aten._neg_view.default: aten.neg.default,
    aten.view_as_real.default: aten.view_as_complex.default,
    aten.view_as_complex.default: aten.view_as_real.default,
}


@_inverse(*_OPPOSITE)
def _undo(b: NodeBuilder, before: fx.Node, new: fx.Node, step: Step) -> fx.Node:
    return b.apply(_OPPOSITE[step.target], (new, *step.args))


@_inverse(aten.permute.default)
def _permute(b: NodeBuilder, before: fx.Node, new: fx.Node, step: Step) -> fx.Node:
    dims = [d % len(step.args[0]) for d in step.args[0]]
    return b.apply(aten.permute.default, (new, [dims.index(i) for i in range(len(dims))]))


# What puts a part where the step has taken it from.
_SCATTERS = {
    aten.slice.Tensor: aten.slice_scatter.default,
    aten.select.int: aten.select_scatter.default,
    aten.diagonal.default: aten.diagonal_scatter.default,
    aten.as_strided.default: aten.as_strided_scatter.default,
}


@_inverse(*_SCATTERS)
def _part(b: NodeBuilder, before: fx.Node, new: fx.Node, step: Step) -> fx.Node:
    return b.apply(_SCATTERS[step.target], (before, new, *step.args), **dict(step.kwargs))


@_inverse(aten.view.dtype)
def _view_dtype(b: NodeBuilder, before: fx.Node, new: fx.Node, step: Step) -> fx.Node:
    return b.apply(aten.view.dtype, (new, before.meta["val"].dtype))


def _with_kwargs(step: Step, names: Sequence[str]) -> list[Any]:
    """The step's arguments as one positional list without gaps."""
    keywords = dict(step.kwargs)
    found = list(step.args)
    for name in names[len(found) :]:
        if name not in keywords:
            break
        found.append(keywords[name])
    return found


@_inverse(aten.split.Tensor, aten.split_with_sizes.default)
def _split(b: NodeBuilder, before: fx.Node, new: fx.Node, step: Step) -> fx.Node:
    sizes, *rest = _with_kwargs(step, ("split_size", "dim"))
    dim = rest[0] if rest else 0
    assert step.index is not None, "split returns a list"
    if isinstance(sizes, (list, tuple)):
        start: Any = sum(_number(size) for size in sizes[: step.index])
    else:
        start = _number(sizes) * step.index
    end = start + new.meta["val"].shape[dim]
    return b.apply(aten.slice_scatter.default, (before, new, dim, start, end))


def _number(size: Any) -> Any:
    return size.meta["val"] if isinstance(size, fx.Node) else size


@_inverse(aten.unbind.int)
def _unbind(b: NodeBuilder, before: fx.Node, new: fx.Node, step: Step) -> fx.Node:
    rest = _with_kwargs(step, ("dim",))
    return b.apply(aten.select_scatter.default, (before, new, rest[0] if rest else 0, step.index))
