"""Tuples, lists and dicts of values, taken apart into their leaves and built again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.constants import NONE
from torchsmith_tracer._src.values.containers import ListValue, NamedTupleValue, TupleValue
from torchsmith_tracer._src.values.lazy import realize
from torchsmith_tracer._src.values.mappings import DictValue

Rebuild = Callable[[Sequence[Value]], Value]


def flatten(tx: Trace, value: Value) -> tuple[list[Value], Rebuild]:
    """The leaves of a nest, and what makes a nest of the same shape from other leaves; ``None``
    has no leaves, as in torch's trees."""
    value = realize(tx, value)
    if value is NONE:
        return [], lambda _: NONE
    if isinstance(value, NamedTupleValue):
        kind = value.tuple_class
        return _several(tx, value.unpack(tx), lambda parts: NamedTupleValue(parts, kind))
    if type(value) in (TupleValue, ListValue):
        assert isinstance(value, TupleValue | ListValue)
        like = value.like
        return _several(tx, value.unpack(tx), lambda parts: like(list(parts)))
    if isinstance(value, DictValue):
        table = dict(value.table)
        order = sorted(table) if all(type(k) is str for k in table) else list(table)  # type: ignore[type-var]
        cls = value.cls

        def build(parts: Sequence[Value]) -> Value:
            made = dict(zip(order, parts, strict=True))
            return DictValue({k: (table[k][0], made[k]) for k in table}, cls=cls)

        return _several(tx, [table[k][1] for k in order], build)
    return [value], lambda leaves: leaves[0]


def _several(tx: Trace, parts: Sequence[Value], build: Rebuild) -> tuple[list[Value], Rebuild]:
    flat: list[Value] = []
    pieces = []
    for part in parts:
        leaves, rebuild = flatten(tx, part)
        pieces.append((len(flat), len(flat) + len(leaves), rebuild))
        flat += leaves

    def whole(leaves: Sequence[Value]) -> Value:
        return build([rebuild(leaves[start:end]) for start, end, rebuild in pieces])

    return flat, whole


def spread(dims: object, tree: object) -> list[object]:
    """One entry of ``dims``, an int, None or a nest of them, for every leaf of ``tree``: a whole
    subtree may share one."""
    if isinstance(dims, int) or dims is None:
        return [dims] * leaves_in(tree)
    if isinstance(dims, (tuple, list)) and isinstance(tree, list) and len(dims) == len(tree):
        return [d for part, sub in zip(dims, tree) for d in spread(part, sub)]
    if isinstance(dims, dict) and isinstance(tree, dict) and dims.keys() == tree.keys():
        return [d for key in tree for d in spread(dims[key], tree[key])]
    raise Unsupported("opaque-call", what="vmap with dimensions that do not fit the arguments")


def leaves_in(tree: object) -> int:
    """Number of leaves of an ``outline_of``."""
    if isinstance(tree, dict):
        tree = list(tree.values())
    return sum(map(leaves_in, tree)) if isinstance(tree, list) else int(tree is not NOTHING)


def holds_none(tree: object) -> bool:
    """Whether a nest with this outline holds ``None``, which is a leaf to ``torch.vmap``."""
    if isinstance(tree, dict):
        tree = list(tree.values())
    return any(map(holds_none, tree)) if isinstance(tree, list) else tree is NOTHING


NOTHING = "None"  # in an outline


def outline_of(tx: Trace, value: Value) -> object:
    """The shape of a nest: lists and dicts, with None for each leaf, in the order of leaves."""
    value = realize(tx, value)
    if value is NONE:
        return NOTHING
    if type(value) in (TupleValue, ListValue, NamedTupleValue):
        assert isinstance(value, TupleValue | ListValue)
        return [outline_of(tx, part) for part in value.unpack(tx)]
    if isinstance(value, DictValue):
        keys = list(value.table)
        if all(type(k) is str for k in keys):
            keys.sort(key=str)
        return {k: outline_of(tx, value.table[k][1]) for k in keys}
    return None
