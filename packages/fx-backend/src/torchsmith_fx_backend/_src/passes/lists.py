"""Calls over lists of tensors, as one call for each tensor: those fuse, a call over lists cannot.

``torch._foreach_*`` is how optimizers write a step over all parameters. One such call after the
other moves every parameter through memory each time; the calls for one parameter are one kernel.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from torchsmith_fx_backend._src.passes.base import Pass

aten = torch.ops.aten

_PREFIX = "aten::_foreach_"
_ALONE = (
    "abs acos asin atan ceil clone cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p "
    "log2 max neg reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc"
).split()
_GREATER = (aten.clamp_min.default, aten.maximum.default)
_LESS = (aten.clamp_max.default, aten.minimum.default)
# name -> what is called with a number, and with a tensor
_TWO: dict[str, tuple[Any, Any]] = {
    **{n: (getattr(aten, n).Tensor,) * 2 for n in ("add", "sub", "mul", "div")},
    "pow": (aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor),
    **dict.fromkeys(("maximum", "clamp_min"), _GREATER),
    **dict.fromkeys(("minimum", "clamp_max"), _LESS),
}


class Lists(Pass):
    """Replaces a call over lists, whose results are taken apart, by calls for their members."""

    def run(self, graph: fx.Graph) -> None:
        for node in list(graph.nodes):
            schema = getattr(node.target, "_schema", None)
            if schema is None or not schema.name.startswith(_PREFIX):
                continue
            items = list(node.users)
            calls = list(_calls(schema.name.removeprefix(_PREFIX), node))
            if not calls or any(item.target is not operator.getitem for item in items):
                continue
            for item in items:
                target, args, kwargs = calls[item.args[1]]
                with graph.inserting_before(node):
                    new = graph.call_function(target, args, kwargs)
                new.meta = dict(item.meta)
                item.replace_all_uses_with(new)
                graph.erase_node(item)
            graph.erase_node(node)


def _calls(name: str, node: fx.Node) -> Iterator[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """The call for each member of the lists; none where it is not known."""
    lists: Any = node.args
    numbers = len(node.meta["val"])

    def each(argument: Any) -> Sequence[Any]:
        """An argument for each member: a list's own, or the same for all."""
        return argument if isinstance(argument, (list, tuple)) else [argument] * numbers

    if name in _ALONE:
        for x in lists[0]:
            yield getattr(aten, name).default, (x,), dict(node.kwargs)
    elif name == "pow" and not isinstance(lists[0], (list, tuple)):
        for x in lists[1]:
            yield aten.pow.Scalar, (lists[0], x), {}
    elif name in _TWO:
        for x, other in zip(lists[0], each(lists[1])):
            yield _TWO[name][isinstance(other, fx.Node)], (x, other), dict(node.kwargs)
    elif name in ("addcmul", "addcdiv") and not isinstance(lists[-1], fx.Node):
        values = each(lists[3] if len(lists) > 3 else node.kwargs.get("value", 1))
        for x, a, b, value in zip(lists[0], lists[1], lists[2], values):
            yield getattr(aten, name).default, (x, a, b), {"value": value}
    elif name == "lerp":
        for x, end, weight in zip(lists[0], lists[1], each(lists[2])):
            target = aten.lerp.Tensor if isinstance(weight, fx.Node) else aten.lerp.Scalar
            yield target, (x, end, weight), {}
    elif name == "copy":
        for x, source in zip(lists[0], lists[1]):
            yield aten.copy.default, (x, source), {}
    elif name == "zero":
        for x in lists[0]:
            yield aten.zeros_like.default, (x,), {}
    elif name == "norm":
        order = lists[1] if len(lists) > 1 else 2
        dtype = lists[2] if len(lists) > 2 else node.kwargs.get("dtype")
        for x in lists[0]:
            yield aten.linalg_vector_norm.default, (x, order), {"dtype": dtype}
