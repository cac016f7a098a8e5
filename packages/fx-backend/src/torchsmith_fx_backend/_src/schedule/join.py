"""Make one nest of two that walk the same space."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from torchsmith_fx_backend._src.loops import index as ix
from torchsmith_fx_backend._src.loops.body import Value
from torchsmith_fx_backend._src.loops.canonical import renumber, renumber_index
from torchsmith_fx_backend._src.loops.index import Index, Var
from torchsmith_fx_backend._src.loops.ir import Compute, Load, Node, Op
from torchsmith_fx_backend._src.loops.nest import Member, Nest, mixed, substitute_node
from torchsmith_fx_backend._src.loops.registry import Coords


def join_nests(host: Nest, guest: Nest, there: Coords, here: Coords) -> Nest | None:
    """``host`` and ``guest`` as one nest in which ``guest`` runs first, or None.

    Args:
        host: the nest whose axes are kept.
        guest: the nest to bring in; it must not depend on ``host`` (``host`` may read members of
            ``guest``; those loads become uses of the value).
        there: coordinates, in axes of ``host``, of some value both walk ...
        here: ... and the same coordinates in axes of ``guest``.
    """
    if host.device != guest.device:
        return None
    mapping = _align(host, guest, there, here)
    if mapping is None or _writes_into(host, guest) or _writes_into(guest, host):
        return None
    merged = Nest(host.graph, host.device)
    merged.sizes = host.sizes
    merged._next_axis = host._next_axis
    merged.reduced = host.reduced
    if guest.reduced:
        merged.reduced = merged.reduction_axes([mapping[a] for a in guest.reduced])
        if merged.reduced is None or not _reduces_along(host, merged.reduced):
            return None

    place: list[int] = []
    as_it_is = all(x == ix.var(a) for a, x in mapping.items())
    if as_it_is:
        place.extend(range(len(guest.nodes)))
        merged.nodes, merged._ids = list(guest.nodes), dict(guest._ids)
    for node in () if as_it_is else guest.nodes:
        place.append(merged.push(substitute_node(renumber(node, place), mapping, host.sizes)))
    _bring(merged, guest, place, None if as_it_is else mapping)

    taken: dict[int, Value] = {}
    for read, ats in host.reads.items():
        made = merged.members.get(read)
        if made is not None:
            if ats != {made.at} or not host.graph.fusable(read):
                return None
            taken[host.graph.number(read)] = made.value
    place = []
    stored: dict[int, int] = {}
    for node in host.nodes:
        place.append(_take(merged, renumber(node, place), taken, stored))
    _bring(merged, host, place)
    return None if mixed(merged.nodes) or merged.out_of_order() else merged


def _reduces_along(nest: Nest, axes: tuple[int, ...]) -> bool:
    """Whether ``nest`` reduces along ``axes``, or may: all its members are full or outer then."""
    if nest.reduced is not None:
        return nest.reduced == axes
    whole = set(nest.sizes)
    covered = (set().union(*map(ix.variables, m.at)) for m in nest.members.values())
    return all(found in (whole, whole - set(axes)) for found in covered)


def _bring(
    merged: Nest, nest: Nest, place: list[int], mapping: Mapping[int, Index] | None = None
) -> None:
    """What ``nest`` computes and reads, in ``merged``.

    Args:
        place: where the nodes of ``nest`` are now.
        mapping: its axes in those of ``merged``, if they are not the same.
    """

    @functools.cache  # many members are at one place
    def move(at: Coords) -> Coords:
        moved = tuple(renumber_index(x, place) for x in at)
        if mapping is None:
            return moved
        return tuple(ix.substitute(x, mapping, merged.sizes) for x in moved)

    def member(old: Member) -> Member:
        value = Value(merged, place[old.value.id], old.value.dtype)
        return Member(move(old.at), value, old.mode, move(old.walked))

    for read, ats in nest.reads.items():
        if read not in merged.members:
            merged.reads.setdefault(read, set()).update(map(move, ats))
    for name, each in nest.members.items():
        merged.members[name] = member(each)
    for name, parts in nest.tuples.items():
        merged.tuples[name] = tuple(map(member, parts))
    for shape, places in nest.seen.items():
        for at in places:
            merged._see(shape, move(at))


def _writes_into(nest: Nest, other: Nest) -> bool:
    """Whether a scatter of ``nest`` writes into what ``other`` computes."""
    base = nest.graph.base
    return any(member.walked and base(n) in other.members for n, member in nest.members.items())


def _take(nest: Nest, node: Node, taken: dict[int, Value], stored: dict[int, int]) -> int:
    """Push a node of the host, with loads of the guest's members replaced by their values.

    ``stored`` maps the low-precision forms that such loads gave to the values themselves: the cast
    that follows a load goes away with it, while a cast that rounds on purpose stays.
    """
    if type(node) is Load and node.arg in taken:
        value = taken[node.arg]
        if value.dtype is node.dtype:
            return value.id
        low = nest.cast(value, node.dtype).id
        stored[low] = value.id
        return low
    if type(node) is Compute and node.op is Op.CAST:
        whole = stored.get(node.args[0])
        if whole is not None and getattr(nest.nodes[whole], "dtype", None) is node.dtype:
            return whole
    return nest.push(node)


def _align(host: Nest, guest: Nest, there: Coords, here: Coords) -> dict[int, Index] | None:
    """Axes of ``guest`` as expressions over axes of ``host``."""
    mapping: dict[int, Index] = {}
    for x, y in zip(here, there, strict=True):
        if x == ix.ZERO and y == ix.ZERO:
            continue
        if type(x) is not Var or x.axis in mapping:
            return None
        # The axis must run over exactly the same points in both; a slice or a shift does not.
        axes = host.reduction_axes([y])
        if axes is None or host.numel(axes) != guest.sizes[x.axis]:
            return None
        mapping[x.axis] = y
    missing = [a for a in guest.sizes if a not in mapping]
    if missing and list(guest.sizes.values()) == list(host.sizes.values()):
        # The value is broadcast in both; their axes agree one by one.
        pairs = {a: ix.var(b) for a, b in zip(guest.sizes, host.sizes)}
        if all(pairs[a] == x for a, x in mapping.items()):
            mapping, missing = dict(pairs), []
    if missing:
        # What is left must be reduction axes on both sides, pairwise of one size.
        if host.reduced is None or guest.reduced is None or missing != list(guest.reduced):
            return None
        if [guest.sizes[a] for a in guest.reduced] != [host.sizes[a] for a in host.reduced]:
            return None
        mapping.update({a: ix.var(b) for a, b in zip(guest.reduced, host.reduced)})
    covered = set().union(*map(ix.variables, mapping.values()))
    size = guest.numel()
    if covered == set(host.sizes):
        return mapping if size == host.numel() else None
    if not guest.reduced and covered == host.outer_axes() and host.reduced:
        return mapping if size == host.numel(covered) else None
    return None
