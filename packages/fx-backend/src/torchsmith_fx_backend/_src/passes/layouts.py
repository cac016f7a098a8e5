"""Channels-last through stacks of convolutions.

Half-precision convolutions run on matrix units that want the channels of a pixel side by side.
Given anything else, the library copies input and result of each call, and is slower by a factor of
1.3 to 4 over the shapes of usual networks (measured on an H200). So the first input of a stack is
copied once, everything behind it follows, and what the caller sees is copied back. What is saved
for a backward half stays as it is; there the gradients of convolutions follow, too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import fx

from torchsmith_fx_backend._src.capture.torch_private import OpOverload
from torchsmith_fx_backend._src.loops.registry import Pointwise, rule_for
from torchsmith_fx_backend._src.passes.attention import ATTENTION
from torchsmith_fx_backend._src.passes.base import (
    COPY,
    TRACED,
    Pass,
    escaping,
    infer,
    insert,
    is_static,
    same_layout,
    source,
)
from torchsmith_fx_backend._src.passes.biases import CONVOLUTION, split_bias

aten = torch.ops.aten
CONVOLUTION_BACKWARD = aten.convolution_backward.default
_LAST = torch.channels_last
_FAR = 16  # between the first and the last tap; all less were measured to be fast
_FEWEST = 2  # convolutions: a single one gains what the copies around it cost
_REDUCTIONS = frozenset({aten.sum.dim_IntList, aten.amax.default, aten.amin.default})
# What these compute depends on the strides of their operands, or the kernel that they choose does,
# or whether they take them at all.
_BOUND = frozenset(
    {aten.as_strided.default, aten.view.dtype, aten.nll_loss2d_backward.default, ATTENTION}
)


@dataclass(frozen=True)
class ChannelsLast(Pass):
    """Runs convolutions over images in channels-last order.

    Attributes:
        device: convolutions on devices of this type are rewritten.
        dtypes: those whose kernels want channels last.
        biases: whether biases are added in the kernels that follow.
        same_draws: whether what random operators draw depends on the layout that they see.
    """

    device: str = "cuda"
    dtypes: tuple[torch.dtype, ...] = (torch.float16, torch.bfloat16)
    biases: bool = True
    same_draws: bool = False

    def run(self, graph: fx.Graph) -> None:
        chosen = _convolutions(graph, 4, self.device, self.dtypes)
        for node in chosen if self.biases else ():
            if node.target is CONVOLUTION:
                split_bias(graph, node)
        before: dict[fx.Node, Any] = {}
        for node in graph.find_nodes(op="placeholder"):
            traced, value = node.meta.get(TRACED), node.meta["val"]
            if isinstance(traced, torch.Tensor) and is_static(value) and is_static(traced):
                if value.stride() != traced.stride():
                    before[node] = traced
        if not (chosen or before):
            return
        follow(graph, before, chosen, same_draws=self.same_draws)


def follow(
    graph: fx.Graph,
    before: Mapping[fx.Node, Any],
    chosen: Collection[fx.Node] = (),
    *,
    same_draws: bool = False,
) -> None:
    """Let what is computed from nodes whose layout has changed lie as it does then.

    Args:
        graph: rewritten in place.
        before: what those nodes gave before.
        chosen: convolutions that are given channels-last images.
        same_draws: as for ``ChannelsLast``.
    """
    seen = escaping(graph, saved=False)
    walk = _Walk(graph, set(chosen), seen, same_draws, dict(before))
    for node in list(graph.nodes):
        walk.visit(node)


def _arguments(node: fx.Node) -> tuple[Any, ...]:
    """Those of a convolution, or of the one that a node is the gradient of."""
    return node.args if node.target is CONVOLUTION else node.args[1:]


def _has_odd_groups(node: fx.Node) -> bool:
    """Whether groups have a width for which the library rearranges channels-last images at each
    call (24 channels a group, measured: half of a RegNet's time); 1 and powers of two are fine."""
    arguments = _arguments(node)
    width = int(arguments[1].meta["val"].shape[1])
    return bool(arguments[8] != 1) and width & (width - 1) != 0


@dataclass(frozen=True)
class RowsAsImages(Pass):
    """Makes convolutions over rows ones over images of height one, for ``ChannelsLast``: aten
    itself lays rows out with their channels apart. What lies otherwise then is followed."""

    device: str = "cuda"
    dtypes: tuple[torch.dtype, ...] = (torch.float16, torch.bfloat16)
    same_draws: bool = False

    def run(self, graph: fx.Graph) -> None:
        for node in _convolutions(graph, 3, self.device, self.dtypes):
            with graph.inserting_before(node):
                x, weight = (insert(graph, aten.unsqueeze.default, n, 2) for n in node.args[:2])
                settings: Any = node.args[2:]
                bias, stride, padding, dilation, *rest = settings
                steps = [1, *stride], [0, *padding], [1, *dilation]
                rest[1] = [0, *rest[1]]
                image = insert(graph, CONVOLUTION, x, weight, bias, *steps, *rest)
                rows = insert(graph, aten.squeeze.dim, image, 2)
            image.meta, rows.meta = {**node.meta, **image.meta}, node.meta
            node.replace_all_uses_with(rows)
            graph.erase_node(node)
            follow(graph, {image: image.meta["val"]}, same_draws=self.same_draws)


class SharedCopies(Pass):
    """Lets kernels read the copy that a product reads, not what was copied, which need not be in
    memory then; and aten lays their results out as before, where it is called instead."""

    def run(self, graph: fx.Graph) -> None:
        place = {node: number for number, node in enumerate(graph.nodes)}
        for copy in graph.find_nodes(op="call_function", target=aten.clone.default):
            source, *_ = copy.all_input_nodes
            if not any(user.target is aten.linear.default for user in copy.users):
                continue
            for user in list(source.users):
                if place[user] <= place[copy] or not isinstance(rule_for(user), Pointwise):
                    continue
                given = user.args, user.kwargs
                user.replace_input_with(source, copy)
                if not same_layout(infer(user), user.meta["val"]):
                    user.args, user.kwargs = given


def _convolutions(
    graph: fx.Graph, rank: int, device: str, dtypes: tuple[torch.dtype, ...]
) -> list[fx.Node]:
    """Those over tensors of this rank that go channels-last together; none where that does not
    pay."""
    found = [
        node
        for target in (CONVOLUTION, CONVOLUTION_BACKWARD)
        for node in graph.find_nodes(op="call_function", target=target)
        if _suits(node, rank, device, dtypes)
    ]
    return [] if len(found) < _FEWEST or any(map(_has_odd_groups, found)) else found


def _suits(node: fx.Node, rank: int, device: str, dtypes: tuple[torch.dtype, ...]) -> bool:
    x, weight = (n.meta["val"] for n in _arguments(node)[:2])
    return (
        x.device.type == weight.device.type == device
        and x.dtype == weight.dtype
        and x.dtype in dtypes
        and x.dim() == weight.dim() == rank
        and is_static(x)
        and is_static(weight)
        and x.numel() > 0
        and not _arguments(node)[6]  # transposed
        and not _is_slow(node)
        and rule_for(node) is None  # a loop does with any layout
    )


def _leaves_out_padding(node: fx.Node) -> bool:
    """Whether aten would compute another gradient of averages: on a GPU its kernel for images with
    channels last takes windows for those of an image without padding (torch 2.11)."""
    if node.target is not aten.avg_pool2d_backward.default or rule_for(node) is not None:
        return False
    padding: Any = node.args[4]
    return any(padding)


def _is_slow(node: fx.Node) -> bool:
    """Whether the library has no fast kernel for channels-last images: for groups of one channel
    with several results each it launched a kernel per group; see ``_reaches_far``."""
    _, weight, _, _, _, dilation, _, _, groups = _arguments(node)[:9]
    results, width, *_ = weight.meta["val"].shape
    return (groups > 1 == width and results != groups) or _reaches_far(weight.meta["val"], dilation)


def _reaches_far(weight: torch.Tensor, dilation: Any) -> bool:
    """Whether taps are so far apart that the library may have no fast kernel for channels-last
    images: it took 27 ms instead of 0.5 for three taps 16 apart, on an H200."""
    taps = weight.shape[2:]
    spans = [(n - 1) * step for n, step in zip(taps, dilation)]
    pair_in_row = math.prod(taps) == taps[-1] <= 2  # fast at any distance
    return not pair_in_row and max(spans) > _FAR


@dataclass
class _Walk:
    """Gives each node behind a convolution the layout that it has then."""

    graph: fx.Graph
    chosen: set[fx.Node]
    seen: set[fx.Node]  # those whose memory the caller gets to see
    same_draws: bool
    before: dict[fx.Node, Any]  # original results of what changed
    copies: dict[fx.Node, fx.Node] = field(default_factory=dict)

    def visit(self, node: fx.Node) -> None:
        if node in self.chosen:
            images = node.args[:1] if node.target is CONVOLUTION else node.args[:2]
            for image in images:
                self._put_last(node, image)
            self._put_weight_last(node, _arguments(node)[1])
        elif self.before.keys().isdisjoint(node.all_input_nodes) or node.target is COPY:
            return
        slow = node.target in (CONVOLUTION, CONVOLUTION_BACKWARD) and node not in self.chosen
        if node.op == "output":
            self._restore_inputs(node, self.seen)
            return
        if not self._follows(node) or (slow and _is_slow(node)):
            self._restore_inputs(node, node.all_input_nodes)
            return
        try:
            value = infer(node)
        except (RuntimeError, ValueError):  # a view that these strides do not allow
            self._restore_inputs(node, node.all_input_nodes)
            return
        old = node.meta["val"]
        if not _same(value, old):
            self.before[node] = old
            node.meta["val"] = value
            if node in self.seen and isinstance(old, torch.Tensor):
                self._copy_for_the_caller(node)
        elif node not in self.seen and _scatters(node):
            self._reduce_in_order(node)

    def _follows(self, node: fx.Node) -> bool:
        """Whether the layout of what ``node`` reads is free, and tells that of its result."""
        if node.target in _BOUND or _leaves_out_padding(node):
            return False
        if isinstance(node.target, OpOverload):
            random = torch.Tag.nondeterministic_seeded in node.target.tags
            return node.target.namespace in ("aten", "prims") and not (random and self.same_draws)
        return getattr(node.target, "__module__", None) == "_operator"

    def _copy_for_the_caller(self, node: fx.Node) -> None:
        """Let what is returned, and the views of it that are, be of one copy in eager's layout."""
        with self.graph.inserting_before(node.next):
            copy = self._in_layout(node, self.before[node])
        for user in list(node.users):
            if user is not copy and (user.op == "output" or user in self.seen):
                user.replace_input_with(node, copy)

    def _reduce_in_order(self, node: fx.Node) -> None:
        """Let a reduction of five dimensions to four give what has its channels last."""
        args: Any = node.args
        source, (dim,), *rest = args
        batch, channels, height, width = (n for n in range(5) if n != dim % 5)
        old, order = node.meta["val"], [batch, height, width, dim, channels]
        with self.graph.inserting_before(node):
            turned = insert(self.graph, aten.permute.default, source, order)
        node.args = turned, [3], *rest
        node.meta["val"] = infer(node)
        with self.graph.inserting_before(node.next):
            image = insert(self.graph, aten.permute.default, node, [0, 3, 1, 2])
        node.replace_all_uses_with(image, delete_user_cb=lambda user: user is not image)
        self.before[image] = old

    def _in_layout(self, node: fx.Node, old: torch.Tensor) -> fx.Node:
        if old.is_contiguous() and old.layout is torch.strided:
            layout = torch.contiguous_format
            return insert(self.graph, aten.clone.default, node, memory_format=layout)
        options = {"dtype": old.dtype, "device": old.device}
        size, stride = list(old.shape), list(old.stride())
        empty = insert(self.graph, aten.empty_strided.default, size, stride, **options)
        return insert(self.graph, aten.copy.default, empty, node)

    def _put_last(self, node: fx.Node, image: Any) -> None:
        value = image.meta["val"]
        if value.is_contiguous(memory_format=_LAST) and not _either_way(value):
            return
        if image not in self.copies:
            with self.graph.inserting_before(node):
                self.copies[image] = self._last(image, value)
        node.replace_input_with(image, self.copies[image])

    def _last(self, image: fx.Node, value: torch.Tensor) -> fx.Node:
        """``image`` with its channels side by side: a copy, or a view of what lies so anyway."""
        if not _either_way(value):
            return insert(self.graph, aten.clone.default, image, memory_format=_LAST)
        channels, height, width = value.shape[1:]
        steps = [channels * height * width, 1, channels * width, channels]
        return insert(self.graph, aten.as_strided.default, image, list(value.shape), steps)

    def _put_weight_last(self, node: fx.Node, weight: fx.Node) -> None:
        """Let a cast that makes a weight for convolutions alone lay it out, too, and several
        convolutions with one weight read one copy of it: each call of the library would make it."""
        old = weight.meta["val"]
        if weight in self.copies or sum(user in self.chosen for user in weight.users) > 1:
            self._put_last(node, weight)
            return
        others = (user for user in weight.users if user not in self.chosen and user.op != "output")
        if weight in self.seen or any(others):
            return
        if weight.target is not aten._to_copy.default:
            computed = isinstance(rule_for(source(weight)), Pointwise)
            if computed and not old.is_contiguous(memory_format=_LAST):
                self._compute_last(weight)
            return
        if not old.is_contiguous(memory_format=_LAST):
            weight.kwargs = {**weight.kwargs, "memory_format": _LAST}
            self.before[weight], weight.meta["val"] = old, infer(weight)

    def _compute_last(self, weight: fx.Node) -> None:
        """Let the kernel that computes a weight lay it out, for a backward half as well."""
        with self.graph.inserting_before(weight.next):
            last = insert(self.graph, aten.clone.default, weight, memory_format=_LAST)
        weight.replace_all_uses_with(last, delete_user_cb=lambda user: user is not last)

    def _restore_inputs(self, node: fx.Node, operands: Collection[fx.Node]) -> None:
        """Give ``node`` copies of those of its operands in the layouts that they had."""
        for operand in node.all_input_nodes:
            old = self.before.get(operand)
            if operand not in operands or not isinstance(old, torch.Tensor):
                continue
            with self.graph.inserting_before(node):
                copy = self._in_layout(operand, old)
            node.replace_input_with(operand, copy)


def _scatters(node: fx.Node) -> bool:
    """Whether a reduction over parts of the channels reads what has them side by side: aten gives
    an image that has them apart, which would be read in one order and written in another."""
    value, args = node.meta["val"], cast("Any", node.args)
    if (
        node.target not in _REDUCTIONS
        or value.dim() != 4
        or value.is_contiguous(memory_format=_LAST)
    ):
        return False
    strides = [*args[0].meta["val"].stride()]
    if len(strides) != 5 or len(args[1]) != 1 or not value.is_contiguous():
        return False
    del strides[args[1][0]]
    return bool(strides[1] == 1)


def _either_way(image: torch.Tensor) -> bool:
    """Whether an image of one channel lies as both orders say, and is taken for a row-major one: so
    would be what a convolution makes of it."""
    return image.shape[1] == 1 and image.is_contiguous()


def _same(a: object, b: object) -> bool:
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return all(_same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, torch.Tensor):
        return same_layout(a, b)
    return True
