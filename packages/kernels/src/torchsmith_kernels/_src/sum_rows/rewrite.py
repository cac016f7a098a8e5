"""Sums of rows in a compiler's graph, with each index sorted once: ``template.Template.rewrite``.

Eager mode sorts the index of each ``index_put`` and each embedding's gradient anew, by a dozen
launches. The other operators add by atomics there, in an order that changes: they are taken where
one sort serves several of them, or such an order is not wanted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from operator import getitem
from typing import Any, NamedTuple

import torch
from torch import fx

from torchsmith_kernels._src import check
from torchsmith_kernels._src.sum_rows import run
from torchsmith_kernels._src.sum_rows.op import INDICES, sort_rows, sum_rows
from torchsmith_kernels._src.template import Template

aten = torch.ops.aten
_SEVERAL = 3  # sums by one index that a sort pays for where eager mode does not sort
_TWO = 2  # and where it does: for one, compiling the kernels takes longer than most trainings gain
_REPEATING = (aten.expand.default, aten.unsqueeze.default, aten.view.default)


class _Sum(NamedTuple):
    """Rows of ``values``, added up in zeros of ``size`` at ``indices`` of the first dimensions.
    ``padding`` is left out, and with ``wrap`` indices may be negative."""

    size: Sequence[Any]
    indices: Sequence[Any]
    values: Any
    padding: Any = -1
    wrap: bool = False

    @property
    def order(self) -> object:
        """Equal for sums that one sort serves."""
        return (*self.indices, *self.size[: len(self.indices)], self.padding)

    def fits(self, whole: torch.Tensor, late: bool) -> bool:
        """Whether the kernels do it: indices are integers, and ``values`` has whole rows."""
        taken, lead = [i.meta["val"] for i in self.indices if i is not None], len(self.indices)
        if not self.size or not 0 < lead == len(taken):
            return False
        # Of several, wrong ones could make the number of another row.
        known = lead == 1 or (late and all(type(n) is int for n in whole.shape))
        common: Any = torch.broadcast_shapes(*(i.shape for i in taken))  # type: ignore[no-untyped-call]
        value = self.values.meta["val"]
        alike = value.dtype == whole.dtype  # else the operator refuses them
        plain = alike and value.dtype in check.FLOATING and all(i.dtype in INDICES for i in taken)
        return known and plain and tuple(value.shape) == (*common, *whole.shape[lead:])


def _zeros(target: Any) -> Sequence[Any]:
    """The sizes of ``target`` if it is of zeros, else none."""
    return target.args[0] if target.target is aten.full.default and target.args[1] == 0 else ()


def _index_put(target: Any, indices: Any, values: Any, accumulate: bool = False) -> _Sum:
    while indices and indices[-1] is None:
        indices = indices[:-1]
    return _Sum(_zeros(target) if accumulate else (), indices, values, wrap=True)


def _index_add(target: Any, dim: int, index: Any, values: Any, *, alpha: float = 1) -> _Sum:
    return _Sum(_zeros(target) if dim == 0 and alpha == 1 else (), (index,), values)


def _scatter_add(target: Any, dim: int, index: Any, values: Any) -> _Sum:
    """Of rows, where the index is repeated along the others of its dimensions."""
    along = zip(index.meta["val"].stride()[1:], index.meta["val"].shape[1:], strict=True)
    whole = index.meta["val"].shape == values.meta["val"].shape
    rows = dim == 0 and whole and all(stride == 0 or size == 1 for stride, size in along)
    while index.meta["val"].dim() > 1 and index.target in _REPEATING:
        index = index.args[0]
    return _Sum(_zeros(target) if rows else (), (index,), values)


def _embedding(grad: Any, index: Any, rows: Any, padding: Any, by_frequency: bool) -> _Sum:
    size = () if by_frequency else (rows, grad.meta["val"].shape[-1])
    return _Sum(size, (index,), grad, padding, wrap=True)


_SORTED = (aten.index_put.default, aten.embedding_dense_backward.default)  # in eager mode
_READ: dict[Any, Callable[..., _Sum]] = {
    aten.index_put.default: _index_put,
    aten.index_add.default: _index_add,
    aten.scatter_add.default: _scatter_add,
    aten.embedding_dense_backward.default: _embedding,
}


def rewrite(
    graph: fx.Graph, calls: Sequence[fx.Node], insert: Callable[..., fx.Node], late: bool
) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Pairs of a call and the node that gives its result now."""
    found: dict[fx.Node, _Sum] = {}
    for node in calls:
        each = _READ[node.target](*node.args, **node.kwargs)
        if each.fits(node.meta["val"], late):
            found[node] = each
    uses = Counter(each.order for each in found.values())
    # Where one of them takes no negative ones, these are an error in any case.
    bare = {each.order for each in found.values() if not each.wrap}
    least = dict.fromkeys(uses, 1 if torch.are_deterministic_algorithms_enabled() else _SEVERAL)
    least |= {each.order: _TWO for node, each in found.items() if node.target in _SORTED}
    sorts: dict[object, _Sort] = {}
    for node, each in found.items():
        if uses[each.order] >= least[each.order]:
            with graph.inserting_before(node):
                if each.order not in sorts:
                    wrap = each.order not in bare
                    sorts[each.order] = _sorted(graph, each._replace(wrap=wrap), insert)
                # What it adds up may stand for another of the calls by now.
                values = _READ[node.target](*node.args, **node.kwargs).values
                sort = sorts[each.order]
                new = insert(sum_rows.overload, values, *sort.items, list(each.size))
            sort.values.append(values.meta["val"])
            yield node, new
    for sort in sorts.values():
        _prepare(sort)


class _Sort(NamedTuple):
    """A call of ``sort_rows``, its results, and what is summed by it."""

    call: Any
    items: list[fx.Node]
    values: list[torch.Tensor]


def _sorted(graph: fx.Graph, each: _Sum, insert: Callable[..., fx.Node]) -> _Sort:
    (row, *others), (rows, *sizes) = each.indices, each.size
    wrong: list[fx.Node] = []
    for index, size in zip(others, sizes, strict=False):
        wrong += _outside(row, rows, insert), _outside(index, size, insert)
        row = insert(aten.mul.Scalar, insert(aten.remainder.Scalar, row, rows), size)
        row = insert(aten.add.Tensor, row, insert(aten.remainder.Scalar, index, size))
        rows *= size
    for places in wrong:  # they shall not be those of another row
        row = insert(aten.masked_fill.Scalar, row, places, rows)
    call = insert(sort_rows.overload, row, rows, each.padding, each.wrap, True)
    items = [graph.call_function(getitem, (call, n)) for n in range(3)]
    for item, value in zip(items, call.meta["val"], strict=True):
        item.meta["val"] = value
    return _Sort(call, items, [])


def _outside(index: fx.Node, size: int, insert: Callable[..., fx.Node]) -> fx.Node:
    """Where an index is none of ``size`` rows, also when counted from the end."""
    rest = insert(aten.sub.Tensor, index, insert(aten.remainder.Scalar, index, size))
    either = insert(aten.ne.Scalar, rest, 0), insert(aten.ne.Scalar, rest, -size)
    return insert(aten.logical_and.default, *either)


def _prepare(sort: _Sort) -> None:
    """Begin to compile the kernels, unless sizes vary."""
    index, rows, padding, wrap, _ = sort.call.args
    count, totals = index.meta["val"].numel(), [value.numel() for value in sort.values]
    if all(type(n) is int for n in (count, rows, padding, *totals)) and count:
        kinds = {(n // count, value.dtype) for n, value in zip(totals, sort.values, strict=True)}
        run.prepare(index.meta["val"], rows, padding, wrap, kinds)


sum_rows_template = Template(
    name="sum_rows",
    targets={str(target): 0 for target in _READ},
    parameters=("values", "order", "offsets", "ends", "size"),
    op=sum_rows.overload,
    matches=lambda call: False,
    speedup=lambda call: None,
    rewrite=rewrite,
)
