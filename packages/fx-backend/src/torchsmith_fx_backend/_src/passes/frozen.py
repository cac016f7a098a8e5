"""What constants allow: the passes that run with the option ``freezing``.

Attributes of the module count as constants here, unless the graph writes their memory. Whatever
is computed from them alone is computed now; what scales and shifts the channels of a convolution
or linear layer is folded into its weights; packed weights are laid out as the library wants them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from torchsmith_fx_backend._src.capture.recorder import tensors_in
from torchsmith_fx_backend._src.capture.torch_private import (
    fake_mode_of,
    has_mkldnn,
    mkldnn_convolution,
    pack_convolution,
    without_active_modes,
)
from torchsmith_fx_backend._src.passes.base import (
    COPY,
    Pass,
    escaping,
    held,
    inferred,
    is_pure,
    is_static,
)
from torchsmith_fx_backend._src.passes.biases import CONVOLUTION

aten = torch.ops.aten

LARGEST_GROWTH = 1 << 20  # bytes by which a constant may exceed what it is computed from
LINEAR = aten.linear.default


def constant(node: object) -> torch.Tensor | None:
    """The tensor of an attribute of the module that the graph does not write; else None."""
    if not isinstance(node, fx.Node) or node.op != "get_attr":
        return None
    value = operator.attrgetter(str(node.target))(node.graph.owning_module)
    return value if isinstance(value, torch.Tensor) and value.layout is torch.strided else None


class FoldFrozen(Pass):
    """Computes what depends on constants alone, but for what the caller gets to see."""

    def run(self, graph: fx.Graph) -> None:
        copies = graph.find_nodes(op="call_function", target=COPY)
        written = {_memory(constant(copy.args[0])) for copy in copies}
        known: dict[fx.Node, Any] = {}
        made: set[fx.Node] = set()  # from constants of the graph's own only: cheap, and no gain
        seen = escaping(graph)
        for node in graph.nodes:
            if node.op == "get_attr":
                value = constant(node)
                if value is not None and _memory(value) not in written:
                    known[node] = value
            elif node.op == "call_function" and is_pure(node) and node not in seen:
                operands = node.all_input_nodes
                if all(operand in known for operand in operands):
                    result = _evaluated(node, known)
                    if result is not None:
                        known[node] = result
                        if made.issuperset(operands):
                            made.add(node)
        changed = False
        for node, value in known.items():
            if node.op == "get_attr" or node in made or not isinstance(value, torch.Tensor):
                continue
            users = [user for user in node.users if user not in known]
            if users:
                with graph.inserting_before(node):
                    folded = held(graph, value, node.meta)
                for user in users:
                    user.replace_input_with(node, folded)
                changed = True
        if changed:
            graph.eliminate_dead_code(lambda node: not is_pure(node))


def _memory(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.untyped_storage().data_ptr()


def _evaluated(node: fx.Node, known: dict[fx.Node, Any]) -> Any:
    """What ``node`` gives, if that is laid out as its metadata says, and not much larger."""
    expected = node.meta["val"]
    if isinstance(expected, torch.Tensor) and not is_static(expected):
        return None
    target: Any = node.target
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), known.__getitem__)
    operands = tensors_in([known[operand] for operand in node.all_input_nodes])
    given = sum(tensor.untyped_storage().nbytes() for tensor in operands)
    try:
        if isinstance(expected, torch.Tensor):
            dense = expected.numel() * expected.element_size()
            if dense > given + LARGEST_GROWTH and target is not aten.expand.default:
                return None
        with without_active_modes(), torch.no_grad():
            value = target(*args, **kwargs)
    except (RuntimeError, IndexError):  # it shall fail when the program runs
        return None
    if isinstance(value, torch.Tensor) and value.stride() != expected.stride():
        return None
    return value


# ------------------------------------------------------------------------------------- scales


class FoldScales(Pass):
    """Folds what scales and shifts output channels, batch norm for one, into the weights."""

    def run(self, graph: fx.Graph) -> None:
        seen = escaping(graph)
        changed = False
        for node in list(graph.nodes):
            if node.op == "call_function" and node.target in (CONVOLUTION, LINEAR):
                changed |= _fold_behind(graph, node, seen)
        if changed:
            graph.eliminate_dead_code(lambda node: not is_pure(node))


_Affine = tuple[torch.Tensor, torch.Tensor]  # y = scale * x + shift for each channel


def _scaled(y: _Affine, by: torch.Tensor) -> _Affine:
    return y[0] * by, y[1] * by


# What an operation does to y, given a constant that is its second operand, or else its first.
_STEPS: dict[Any, Callable[[_Affine, torch.Tensor, bool], _Affine | None]] = {
    aten.add.Tensor: lambda y, c, second: (y[0], y[1] + c),
    aten.sub.Tensor: lambda y, c, second: (y[0], y[1] - c) if second else (-y[0], c - y[1]),
    aten.mul.Tensor: lambda y, c, second: _scaled(y, c),
    aten.div.Tensor: lambda y, c, second: _scaled(y, 1 / c) if second else None,
}


def _then(y: _Affine, node: fx.Node, value: fx.Node, channel: int) -> _Affine | None:
    """y after ``node``, an operation on ``value``; None when it does not stay affine."""
    if node.target is aten._to_copy.default:
        wide = node.meta["val"].dtype.is_floating_point
        return y if wide and not set(node.kwargs) - {"dtype"} else None
    if node.target not in _STEPS or node.kwargs or len(node.args) != 2:
        return None
    second = node.args[0] is value
    other = _per_channel(node.args[1 if second else 0], node.meta["val"], channel)
    return None if other is None else _STEPS[node.target](y, other, second)


def _per_channel(operand: object, result: torch.Tensor, channel: int) -> torch.Tensor | None:
    """A constant as one number per channel, in double; None when it differs within a channel."""
    if isinstance(operand, (int, float)):
        return torch.full(result.shape[channel : channel + 1], operand, dtype=torch.float64)
    value = constant(operand)
    if value is None or not value.is_floating_point():
        return None
    shape = [1] * (result.dim() - value.dim()) + list(value.shape)
    if len(shape) != result.dim() or any(n != 1 for d, n in enumerate(shape) if d != channel):
        return None
    return value.detach().double().reshape(-1).expand(int(result.shape[channel]))


def _fold_behind(graph: fx.Graph, node: fx.Node, seen: set[fx.Node]) -> bool:
    bias = node.args[2] if len(node.args) > 2 else node.kwargs.get("bias")
    weight = constant(node.args[1])
    given = node.meta["val"]
    if weight is None or not weight.is_floating_point() or not is_static(given):
        return False
    if bias is not None and constant(bias) is None:
        return False
    channel = given.dim() - 1 if node.target is LINEAR else 1
    numbers = torch.zeros(given.shape[channel], dtype=torch.float64, device=weight.device)
    best: _Affine = (numbers + 1, numbers)
    affine: _Affine | None = best
    end = last = node
    while affine is not None and last not in seen and len(last.users) == 1:
        (last, before) = (next(iter(last.users)), last)
        value = last.meta.get("val")
        if last.op != "call_function" or not isinstance(value, torch.Tensor):
            break
        affine = _then(affine, last, before, channel) if value.shape == given.shape else None
        same = value.dtype == given.dtype and value.stride() == given.stride()
        if affine is not None and same:
            end, best = last, affine
    if end is node or not all(bool(torch.isfinite(part).all()) for part in best):
        return False
    scale, shift = best
    with without_active_modes(), torch.no_grad():
        scaled = (weight.double() * _along_outputs(node, weight, scale)).to(weight.dtype)
        added = constant(bias)
        shift = shift if added is None else added.double() * scale + shift
        # The layout stays: kernels are chosen by it.
        scaled = torch.empty_like(weight).copy_(scaled)
        offset = shift.to(weight.dtype)
    with graph.inserting_before(node):
        kernel = held(graph, scaled, node.args[1].meta)  # type: ignore[union-attr]
        mode: Any = fake_mode_of(given)
        like = inferred(mode, lambda: given.new_empty(offset.shape, dtype=offset.dtype))
        addend = held(graph, offset, {"val": like})
    node.args = (node.args[0], kernel, addend, *node.args[3:])
    node.kwargs = {}
    end.replace_all_uses_with(node)
    if end in seen:
        seen.add(node)
    return True


def _along_outputs(node: fx.Node, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """``scale`` shaped to multiply the weights of each output channel."""
    if node.target is CONVOLUTION and node.args[6]:  # transposed: [inputs, outputs / groups, ...]
        groups: Any = node.args[8]
        rows = scale.reshape(groups, 1, -1).expand(-1, weight.shape[0] // groups, -1)
        return rows.reshape(weight.shape[0], -1, *[1] * (weight.dim() - 2))
    return scale.reshape(-1, *[1] * (weight.dim() - 1))


# ------------------------------------------------------------------------------------ packing


class PackConvolutions(Pass):
    """Gives convolutions over channels-last images on the CPU weights in the library's own
    layout, into which it would bring them at each call."""

    def run(self, graph: fx.Graph) -> None:
        if not has_mkldnn():
            return
        for node in graph.find_nodes(op="call_function", target=CONVOLUTION):
            self._pack(graph, node)

    def _pack(self, graph: fx.Graph, node: fx.Node) -> None:
        image: Any = node.args[0].meta["val"]  # type: ignore[union-attr]
        weight = constant(node.args[1])
        if weight is None or weight.dtype != torch.float32 or weight.device.type != "cpu":
            return
        if node.args[6] or image.dim() != 4 or not is_static(image) or image.numel() == 0:
            return
        last = torch.channels_last
        result = node.meta["val"]
        if not (
            image.is_contiguous(memory_format=last) and result.is_contiguous(memory_format=last)
        ):
            return
        args: Any = node.args
        bias, stride, padding, dilation, groups = (args[i] for i in (2, 3, 4, 5, 8))
        with without_active_modes(), torch.no_grad():
            packed = pack_convolution(weight, padding, stride, dilation, groups, image.shape)
        with graph.inserting_before(node):
            kernel = held(graph, packed, node.args[1].meta)  # type: ignore[union-attr]
        node.target = mkldnn_convolution()
        node.args = (
            *(node.args[0], kernel, bias, padding, stride, dilation, groups),
            *("none", [], ""),
        )
