"""From a finished nest to a kernel in canonical form.

Dead values go, axes are split where index expressions divide them, ordered by memory strides and
merged where every access allows, and everything is renumbered by position; so equal layers of a
model give equal kernels.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise

import torch

from torchsmith_fx_backend._src.loops import index as ix
from torchsmith_fx_backend._src.loops.index import FloorDiv, Index, Mod, Var
from torchsmith_fx_backend._src.loops.ir import (
    BufferArg,
    Compute,
    IndexValue,
    Kernel,
    Load,
    Node,
    Position,
    Reduce,
    ReduceOp,
    ScalarArg,
    Scan,
    Store,
)
from torchsmith_fx_backend._src.loops.nest import Member, Nest, substitute_node
from torchsmith_fx_backend._src.loops.sizes import Info, estimate
from torchsmith_fx_backend._src.loops.verify import read_before, uses, varying


@dataclass(frozen=True)
class Draft:
    """A kernel whose ``Load.arg`` and ``Store.arg`` are still value numbers of the graph."""

    ranges: tuple[Index, ...]
    reduce_from: int
    body: tuple[Node, ...]
    dtypes: dict[int, torch.dtype]  # of each value number

    @cached_property
    def _accesses(self) -> dict[tuple[type[Node], int], list[int]]:
        """Positions in the body by what is there, ``Load`` or ``Store``, and of which value."""
        found: dict[tuple[type[Node], int], list[int]] = {}
        for position, node in enumerate(self.body):
            if type(node) is Load or type(node) is Store:
                found.setdefault((type(node), node.arg), []).append(position)
        return found

    @cached_property
    def _read_before(self) -> list[bool]:
        reduced = range(self.reduce_from, len(self.ranges))
        return read_before(self.body, varying(self.body, reduced))

    def loads(self) -> list[int]:
        """Value numbers read, in order of first use."""
        return [number for kind, number in self._accesses if kind is Load]

    def stores(self) -> list[int]:
        """Value numbers written, in order."""
        return [number for kind, number in self._accesses if kind is Store]

    def may_share(self, source: int, target: int) -> bool:
        """Whether ``target`` may be written over ``source``: see ``ir.BufferArg.inplace``."""
        stores = self._accesses.get((Store, target), [])
        if len(stores) != 1 or not self._read_before[stores[0]]:
            return False
        at, *read = (self.body[i] for i in (*stores, *self._accesses.get((Load, source), [])))
        assert type(at) is Store
        if any(type(node) is Load and node.index != at.index for node in read):
            return False
        return self.dtypes[source] is self.dtypes[target]

    def bind(
        self, same: dict[int, int], held: Container[int] = ()
    ) -> tuple[Kernel, tuple[int, ...], dict[str, int]]:
        """The kernel, the value numbers of its arguments in order, and those of its numbers.

        Args:
            same: written value number -> read value number whose memory it takes over.
            held: values of one element that are handed in as numbers.
        """
        order: dict[int, int] = {}
        numbers: dict[int, str] = {}
        read: set[int] = set()
        written: set[int] = set()
        body: list[Node] = []
        for node in self.body:
            if type(node) is Load and node.arg in held:
                name = numbers.setdefault(node.arg, f"number{len(numbers)}")
                node = ScalarArg(name, node.dtype)
            elif type(node) is Load or type(node) is Store:
                number = same.get(node.arg, node.arg)
                place = order.setdefault(number, len(order))
                (read if type(node) is Load else written).add(place)
                node = replace(node, arg=place)
            body.append(node)
        args = tuple(
            BufferArg(self.dtypes[number], i in read, i in written, i in read and i in written)
            for number, i in order.items()
        )
        names = tuple(sorted({*self._symbols(), *numbers.values()}))
        kernel = Kernel(self.ranges, self.reduce_from, tuple(body), args, names)
        return kernel, tuple(order), {name: number for number, name in numbers.items()}

    def _symbols(self) -> set[str]:
        found: set[str] = set()
        for size in self.ranges:
            ix.symbols(size, found)
        for node in self.body:
            if type(node) is ScalarArg:
                found.add(node.name)
            elif type(node) is Position:
                ix.symbols(node.extent, found)
            elif type(node) is Load or type(node) is Store or type(node) is IndexValue:
                ix.symbols(node.index, found)
        return found


def finish(nest: Nest, stores: Sequence[tuple[int, Member, Info]]) -> Draft:
    """``nest`` with the given members stored, in canonical form; the nest may go on growing."""
    written = []
    for number, member, info in stores:
        value = member.value.cast(info.dtype)
        offset = ix.add(*map(ix.mul, member.at, info.stride)) if member.at else ix.ZERO
        written.append(Store(number, offset, value.id, member.mode))
    body = live([*nest.nodes, *written])
    sizes = dict(nest.sizes)
    outer = [a for a in sizes if a not in (nest.reduced or ())]
    inner = list(nest.reduced or ())
    if not any(type(n) is Reduce or type(n) is Scan for n in body):
        # Nothing reads what is reduced: what is stored at each point of it stays alone.
        stored = {axis for node in written for axis in ix.variables(node.index)}
        outer, inner = outer + [a for a in inner if a in stored], []
    for _ in range(2):
        body, outer, inner = _split(body, sizes, outer, inner)
    accesses = _accesses(body, inner)
    where = (ReduceOp.ARGMAX, ReduceOp.ARGMIN)
    fixed = any(type(n) is Scan or (type(n) is Reduce and n.op in where) for n in body)
    meeting = any(member.mode.ordered for _, member, _ in stores)
    outer = outer if meeting else _ordered(accesses, outer)
    inner = inner if fixed else _ordered(accesses, inner)
    outer, body = _merge(body, sizes, outer)
    inner, body = _merge(body, sizes, inner)
    ranges = [sizes[a] for a in outer] or [ix.ONE]
    reduce_from = len(ranges)
    numbering = {a: i for i, a in enumerate(outer)}
    numbering.update({a: reduce_from + i for i, a in enumerate(inner)})
    ranges += [sizes[a] for a in inner]
    if any(a != i for a, i in numbering.items()):
        mapping: dict[int, Index] = {a: ix.var(i) for a, i in numbering.items()}
        body = [substitute_node(n, mapping, ranges) for n in body]
    dtypes = {number: info.dtype for number, _, info in stores}
    for node in body:
        if type(node) is Load:
            dtypes[node.arg] = node.dtype
    return Draft(tuple(ranges), reduce_from, tuple(body), dtypes)


@lru_cache(maxsize=256)
def from_start(kernel: Kernel) -> tuple[Kernel, tuple[int, ...]]:
    """``kernel`` with accesses counted from the first element of each argument that any of them
    may touch, and the places of those elements; so that equal steps over the parts of a tensor
    (the times of a sequence, the gates of a cell) are equal kernels."""
    starts: list[int | None] = [None] * len(kernel.args)
    for node in kernel.body:
        if type(node) is Load or type(node) is Store:
            low = ix.bounds(node.index, kernel.ranges)[0]
            before = starts[node.arg]
            low = max(low or 0, 0)
            starts[node.arg] = low if before is None else min(low, before)
    found = tuple(start or 0 for start in starts)
    if not any(found):
        return kernel, found
    body = tuple(
        replace(node, index=ix.sub(node.index, ix.const(found[node.arg])))
        if type(node) is Load or type(node) is Store
        else node
        for node in kernel.body
    )
    return replace(kernel, body=body), found


def live(body: Sequence[Node]) -> list[Node]:
    """Drop values that no store needs; renumber operands."""
    needed = [type(node) is Store for node in body]
    for position in range(len(body) - 1, -1, -1):
        if needed[position]:
            for operand in uses(body[position]):
                needed[operand] = True
    place: dict[int, int] = {}
    out: list[Node] = []
    for position, node in enumerate(body):
        if needed[position]:
            place[position] = len(out)
            out.append(renumber(node, place))
    return out


def renumber(node: Node, place: dict[int, int] | Sequence[int]) -> Node:
    """``node`` with its operand ids replaced."""
    match node:
        case Compute(op, args, dtype):
            return Compute(op, tuple(place[a] for a in args), dtype)
        case Load(arg, index, dtype, mask):
            index = renumber_index(index, place)
            return Load(arg, index, dtype, None if mask is None else place[mask])
        case IndexValue(index, dtype):
            return IndexValue(renumber_index(index, place), dtype)
        case Position(value, mask=mask):
            return replace(node, value=place[value], mask=None if mask is None else place[mask])
        case Reduce(op, value, dtype):
            return Reduce(op, place[value], dtype)
        case Scan(op, value, dtype):
            return Scan(op, place[value], dtype)
        case Store(_, index, value):
            return replace(node, index=renumber_index(index, place), value=place[value])
    return node


def renumber_index(index: Index, place: dict[int, int] | Sequence[int]) -> Index:
    """``index`` with the SSA ids of its loaded positions replaced."""
    found = ix.loaded(index)
    if not found:
        return index
    return ix.substitute(
        index, {}, positions={p.value: replace(p, value=place[p.value]) for p in found}
    )


def _indices(body: Sequence[Node]) -> list[Index]:
    found: dict[Index, None] = {}
    for node in body:
        if type(node) is Load or type(node) is Store or type(node) is IndexValue:
            found[node.index] = None
    return list(found)


def _accesses(body: Sequence[Node], inner: Sequence[int]) -> list[Index]:
    """Memory accesses, the ones that decide the loop order first: those along reduced axes, which
    touch more, before others, and stores before loads; among each those over more axes."""
    ranked = []
    for i, node in enumerate(body):
        if type(node) is Load or type(node) is Store:
            axes = ix.variables(node.index)
            ranked.append((axes.isdisjoint(inner), type(node) is Load, -len(axes), i, node.index))
    ranked.sort(key=lambda r: r[:4])
    return list(dict.fromkeys(r[4] for r in ranked))


# ------------------------------------------------------------------------------------ split


def _boundaries(x: Index, into: dict[int, dict[Index, None]]) -> None:
    match x:
        case ix.Add(parts) | ix.Mul(parts):
            for part in parts:
                _boundaries(part, into)
        case FloorDiv(Var(axis), den) | Mod(Var(axis), den):
            into.setdefault(axis, {})[den] = None
        case Mod(FloorDiv(Var(axis), inner), den):
            marks = into.setdefault(axis, {})
            marks[inner] = None
            marks[ix.mul(inner, den)] = None
        case FloorDiv(num, _) | Mod(num, _):
            _boundaries(num, into)


def _divides(a: Index, b: Index) -> Index | None:
    quotient = ix.floordiv(b, a)
    return quotient if ix.mul(quotient, a) == b and not ix.has_var(quotient) else None


def _split(
    body: list[Node], sizes: dict[int, Index], outer: list[int], inner: list[int]
) -> tuple[list[Node], list[int], list[int]]:
    marks: dict[int, dict[Index, None]] = {}
    for x in _indices(body):
        _boundaries(x, marks)
    mapping: dict[int, Index] = {}
    for axis, dens in marks.items():
        chain: list[Index] = [ix.ONE]
        for den in sorted(dens, key=estimate):
            below = _divides(chain[-1], den)
            above = _divides(den, sizes[axis])
            if below is not None and below != ix.ONE and above is not None and above != ix.ONE:
                chain.append(den)
        if len(chain) == 1:
            continue
        chain.append(sizes[axis])
        parts: list[int] = []
        total: Index = ix.ZERO
        for low, high in pairwise(chain):
            fresh = max(sizes) + 1
            sizes[fresh] = ix.floordiv(high, low)
            parts.insert(0, fresh)
            total = ix.add(total, ix.mul(low, ix.var(fresh)))
        mapping[axis] = total
        for axes in (outer, inner):
            if axis in axes:
                at = axes.index(axis)
                axes[at : at + 1] = parts
    if mapping:
        body = [substitute_node(n, mapping, sizes) for n in body]
    return body, outer, inner


# ----------------------------------------------------------------------------- order, merge


def _ordered(accesses: list[Index], axes: list[int]) -> list[int]:
    """Largest stride first, as seen by the first access that moves along the axis."""
    if len(axes) < 2:
        return axes

    def weight(axis: int) -> int:
        for x in accesses:
            stride = ix.coefficient(x, axis)
            if stride is not None and stride != ix.ZERO:
                return abs(estimate(stride)) if not ix.has_var(stride) else 0
        return 0

    return sorted(axes, key=lambda a: -weight(a))


def _merge(
    body: list[Node], sizes: dict[int, Index], axes: list[int]
) -> tuple[list[int], list[Node]]:
    """Make one axis of neighbours that every index expression walks as one."""
    if len(axes) < 2:
        return axes, body
    # What a loaded position follows shows in the accesses that it is computed from.
    indices = [_without_loaded(x) for x in _indices(body)]
    strides = {a: [ix.coefficient(x, a) for x in indices] for a in axes}
    out = [axes[-1]]
    mapping: dict[int, Index] = {}
    for axis in reversed(axes[:-1]):
        last = out[0]
        size = sizes[last]
        if all(
            a is not None and b is not None and a == ix.mul(b, size)
            for a, b in zip(strides[axis], strides[last])
        ):
            mapping[axis] = ix.ZERO
            sizes[last] = ix.mul(sizes[axis], size)
        else:
            out.insert(0, axis)
    if mapping:
        body = [substitute_node(n, mapping, sizes) for n in body]
    return out, body


def _without_loaded(x: Index) -> Index:
    found = ix.loaded(x)
    return ix.substitute(x, {}, positions={p.value: ix.ZERO for p in found}) if found else x
