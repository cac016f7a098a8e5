"""Operators of other packages where they are faster: those under ``torchsmith.kernels``.

An entry point of that group names a template: what an operator can stand for, which calls its own
kernels take, and how much faster it was measured to be. The package is imported when a graph could
use it, by its entry point alone. What can be replaced here is attention that is written out as
products with a softmax between, which stores all scores: with a cap on them no operator of torch's
takes it.
"""

from __future__ import annotations

import functools
import importlib.metadata
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import fx

from torchsmith_fx_backend._src.capture.recorder import values_of
from torchsmith_fx_backend._src.capture.torch_private import OpOverload, fused_attention_choice
from torchsmith_fx_backend._src.captured import is_boxed
from torchsmith_fx_backend._src.loops.registry import Scatter, rule_for
from torchsmith_fx_backend._src.passes.attention import ATTENTION as TORCHS
from torchsmith_fx_backend._src.passes.attention import arguments as attention_arguments
from torchsmith_fx_backend._src.passes.attention import result_of
from torchsmith_fx_backend._src.passes.base import Pass, insert, is_static, replace_with
from torchsmith_fx_backend._src.passes.fused_attention import HALF, unrepeated

aten = torch.ops.aten
ATTENTION = "attention"  # the pattern's name among the targets of templates
_GROUP = "torchsmith.kernels"
_SUMS = {aten.index_put.default, aten.index_add.default, aten.scatter_add.default}
_SUMS |= {aten.embedding_dense_backward.default}
_WIDEST = 64  # elements of a head, beside a mask
_LOWEST = -1e38  # what hides a key in a row with others, and does not overflow when it is scaled


class Template(Protocol):
    """What a package says about one of its operators, as the README of torchsmith-kernels tells."""

    targets: Mapping[str, int]
    parameters: tuple[str, ...]
    op: OpOverload
    matches: Callable[[Mapping[str, object]], bool]
    speedup: Callable[[Mapping[str, object]], float | None]
    rewrite: Callable[..., Iterable[tuple[fx.Node, fx.Node]]] | None


@functools.cache
def offered() -> tuple[Template, ...]:
    """The templates of all installed packages."""
    found = []
    for entry in importlib.metadata.entry_points(group=_GROUP):
        try:
            found.append(entry.load())
        except Exception as error:  # noqa: BLE001 - a package of somebody else's
            logging.getLogger("torchsmith.backend").warning(
                "the kernels %s cannot be used: %s: %s", entry.value, type(error).__name__, error
            )
    return tuple(found)


@dataclass(frozen=True)
class LibraryKernels(Pass):
    """Replaces attention that is written out by a template's operator, where that was measured to
    be faster, else by torch's where that has a kernel which stores no scores.

    Attributes:
        unmeasured: also where nobody measured.
        device: calls on devices of this type are replaced.
        templates: gives the templates.
        choose: as for ``FusedAttention``.
        fewest: keys with which torch's kernel for masks was measured to be faster (on an H200 1.1
            to 2.2 times with heads of up to 64; wider ones and windows of 49 keys were slower).
    """

    unmeasured: bool = False
    device: str = "cuda"
    templates: Callable[[], Sequence[Template]] = offered
    choose: Callable[..., int | None] = fused_attention_choice
    fewest: int = 64

    def run(self, graph: fx.Graph) -> None:
        masks: dict[fx.Node, fx.Node] = {}
        for node in graph.find_nodes(op="call_function", target=aten.matmul.default):
            if node.meta["val"].device.type != self.device:
                continue
            found = _written_out(node)
            template = None if found is None else self._chosen(found)
            if found is not None and (template is not None or self._has_kernel(found)):
                _replace(graph, node, found, template, masks)

    def _chosen(self, found: _Attention) -> Template | None:
        values = values_of(found._asdict())
        for template in self.templates():
            if ATTENTION not in template.targets or not template.matches(values):
                continue
            speedup = template.speedup(values)
            if self.unmeasured if speedup is None else speedup > 1:
                return template
        return None

    def _has_kernel(self, found: _Attention) -> bool:
        """Whether torch has one that is faster. A mask as large as the scores, which loops make as
        they read it, would be stored in their place."""
        query, key, value, mask = values_of(found[:4])
        if found.softcap or query.shape[1] != key.shape[1]:
            return False
        if mask is not None:
            scores = query.shape[:-1].numel() * key.shape[-2]
            small = mask.dtype == query.dtype and 2 * mask.numel() <= scores
            if not small or query.shape[-1] > _WIDEST or key.shape[-2] < self.fewest:
                return False
        options = {"scale": found.scale, "enable_gqa": False}
        return bool(self.choose(query, key, value, mask, 0.0, False, **options))


@dataclass(frozen=True)
class SummedRows(Pass):
    """Has a template rewrite sums of rows by index, as gradients of indexing are, of which kernels
    make no loops: eager mode sorts each index anew, or adds in an order that changes."""

    device: str = "cuda"
    templates: Callable[[], Sequence[Template]] = offered

    def run(self, graph: fx.Graph) -> None:
        calls = [
            n for n in graph.nodes if n.target in _SUMS and not isinstance(rule_for(n), Scatter)
        ]
        calls = [node for node in calls if node.meta["val"].device.type == self.device]
        add = functools.partial(insert, graph)
        for each in self.templates() if calls else ():
            if each.targets.keys() >= {*map(str, _SUMS)} and each.rewrite is not None:
                for node, new in each.rewrite(graph, calls, add, is_boxed(graph)):
                    replace_with(graph, node, new)
                break


class _Attention(NamedTuple):
    """``softmax(cap(scale * query @ key.mT) + attn_mask) @ value``."""

    query: fx.Node
    key: fx.Node
    value: fx.Node
    attn_mask: fx.Node | None
    scale: float
    softcap: float  # 0 for none


def _alone(arg: Any, *targets: OpOverload, users: int = 1) -> fx.Node | None:
    """``arg`` if it is a call of one of ``targets`` that nothing else reads."""
    call = isinstance(arg, fx.Node) and arg.target in targets and len(arg.users) == users
    return arg if call else None


def _softmax(weights: Any) -> fx.Node | None:
    """What ``weights`` are the softmax of, along their last dimension."""
    weights = _uncast(weights)
    quotient = _alone(weights, aten.div.Tensor)
    if quotient is None:
        return None
    raised = _alone(quotient.args[0], aten.exp.default, users=2)
    total = _alone(quotient.args[1], aten.sum.dim_IntList)
    shifted = None if raised is None else _alone(raised.args[0], aten.sub.Tensor)
    if total is None or shifted is None or total.args != (raised, [-1], True) or total.kwargs:
        return None
    top = _alone(shifted.args[1], aten.amax.default)
    scores: Any = shifted.args[0]
    if top is None or top.args != (scores, [-1], True) or len(scores.users) != 2:
        return None
    cast = scores.target is aten._to_copy.default and len(scores.args[0].users) == 1
    return scores.args[0] if cast else scores  # type: ignore[no-any-return]


def _uncast(arg: Any) -> Any:
    cast = _alone(arg, aten._to_copy.default)
    return arg if cast is None else cast.args[0]


def _scaled(arg: Any) -> tuple[Any, float]:
    """What ``arg`` is a multiple of, and the factor."""
    factor = 1.0
    arg = _uncast(arg)
    while (call := _alone(arg, aten.mul.Tensor, aten.div.Tensor)) is not None:
        by: Any = call.args[1]
        if type(by) not in (int, float) or not by or not math.isfinite(by):
            break
        factor = factor * by if call.target is aten.mul.Tensor else factor / by
        arg = _uncast(call.args[0])
    return arg, factor


def _written_out(node: fx.Node) -> _Attention | None:
    """The attention that a product gives, if it is one."""
    weights, value = node.args
    scores = _softmax(weights)
    if scores is None or not isinstance(value, fx.Node):
        return None
    splits: list[tuple[Any, Any]] = [(scores, None)]
    if scores.target is aten.add.Tensor and not scores.kwargs:
        splits = [(scores.args[0], scores.args[1]), (scores.args[1], scores.args[0])]
    for inner, mask in splits:
        found = _products(inner, value, mask)
        if found is not None and _fits(found, node):
            return _grouped(found)
    return None


def _products(scores: Any, value: fx.Node, mask: Any) -> _Attention | None:
    """Attention by ``scores`` as they are before ``mask`` is added."""
    inner, scale = _scaled(scores)
    softcap = 0.0
    bounded = _alone(inner, aten.tanh.default)
    if bounded is not None:
        softcap = scale
        inner, scale = _scaled(bounded.args[0])
        scale *= softcap
    product = _alone(inner, aten.matmul.default)
    if product is None or softcap < 0:
        return None
    query, turned = product.args
    assert isinstance(query, fx.Node) and isinstance(turned, fx.Node)
    key, *dims = turned.args if turned.target is aten.transpose.int else (None,)
    if not isinstance(key, fx.Node) or key.meta["val"].dim() != 4:
        return None
    if {dim % 4 for dim in dims if isinstance(dim, int)} != {2, 3}:
        return None
    return _Attention(query, key, value, mask, scale, softcap)


def _fits(found: _Attention, node: fx.Node) -> bool:
    """Whether nothing is broadcast or of another type but a mask; templates ask for the rest."""
    query, key = found.query.meta["val"], found.key.meta["val"]
    same = query.dtype == node.meta["val"].dtype and query.dtype in HALF
    if not same or not is_static(query) or query.shape[:2] != key.shape[:2]:
        return False
    mask = found.attn_mask.meta["val"] if isinstance(found.attn_mask, fx.Node) else None
    if not isinstance(mask, torch.Tensor):
        return found.attn_mask is None
    fits = mask.is_floating_point() and is_static(mask) and mask.device == query.device
    return fits and 2 <= mask.dim() <= 4


def _grouped(found: _Attention) -> _Attention:
    """With the heads of keys and values that the program repeated."""
    key, value = unrepeated(found.key), unrepeated(found.value)
    if key is None or value is None or key.meta["val"].shape != value.meta["val"].shape:
        return found
    return found._replace(key=key, value=value)


def _replace(
    graph: fx.Graph,
    node: fx.Node,
    found: _Attention,
    template: Template | None,
    masks: dict[fx.Node, fx.Node],
) -> None:
    """Put a call of ``template``'s operator, or of torch's, in the place of ``node``."""
    with graph.inserting_before(node):
        if found.attn_mask is not None:
            if found.attn_mask not in masks:
                masks[found.attn_mask] = _hiding(graph, found.attn_mask)
            found = found._replace(attn_mask=masks[found.attn_mask])
        arguments = found._asdict()
        if template is not None:
            new = insert(graph, template.op, *(arguments[name] for name in template.parameters))
        else:
            new = graph.call_function(TORCHS, found[:4], {"scale": found.scale})
            new.meta["val"] = result_of(attention_arguments(new))
    replace_with(graph, node, new)


def _hiding(graph: fx.Graph, mask: fx.Node) -> fx.Node:
    """``mask`` such that rows without any key come out as from a softmax.

    Kernels give zeros where all scores are -inf, and take numbers near it for that: a softmax gives
    NaN, or equal weights.
    """
    number = functools.partial(insert, graph)
    options = {"dtype": mask.meta["val"].dtype, "device": mask.meta["val"].device}
    none = number(aten.eq.Scalar, mask, -math.inf)
    least = number(aten.full.default, [], -math.inf, **options)
    some = number(aten.where.self, none, least, number(aten.clamp_min.default, mask, _LOWEST))
    every = number(aten.all.dim, none, -1, True)
    return number(aten.where.self, every, number(aten.full.default, [], math.nan, **options), some)
