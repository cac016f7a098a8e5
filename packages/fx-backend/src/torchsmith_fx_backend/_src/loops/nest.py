"""A loop nest under construction: one kernel that grows while graph nodes join it.

A nest has iteration axes and an SSA list. ``members`` are the graph nodes computed here, each at
fixed coordinates. ``fit`` says whether and how a node could join, without doing it; ``join`` puts
the node's standalone body (see ``body.py``) in, with its variables and operands replaced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import fx

from torchsmith_fx_backend._src.loops import index as ix
from torchsmith_fx_backend._src.loops.body import Body, Builder, Read, Value, compute_dtype
from torchsmith_fx_backend._src.loops.index import Const, Index, Var
from torchsmith_fx_backend._src.loops.ir import (
    Compute,
    IndexValue,
    Load,
    Node,
    Op,
    Position,
    Reduce,
    Scan,
    Store,
    StoreMode,
)
from torchsmith_fx_backend._src.loops.registry import Coords, Pointwise, Reduction, Scatter, View
from torchsmith_fx_backend._src.loops.values import GraphValues

Computed = Pointwise | Reduction | Scatter


@dataclass(frozen=True, slots=True)
class Member:
    """A graph node computed in a nest: its value and its coordinates in the nest's axes.

    What a scatter writes has positions among them; ``walked`` are those of the scatter's points.
    """

    at: Coords
    value: Value
    mode: StoreMode = StoreMode.SET
    walked: Coords = ()

    @property
    def meets(self) -> bool:
        """Whether points may write the same element, and more than one of them counts."""
        return self.mode is not StoreMode.SET


@dataclass(frozen=True, slots=True)
class Fit:
    """How a node can join a nest.

    Attributes:
        at: its coordinates (for a reduction: those of its *input*).
        reduced: the nest's reduction axes afterwards.
        places: coordinates of each of its results.
        reads: values that the nest would load and does not load yet.
    """

    at: Coords
    reduced: tuple[int, ...] | None
    places: tuple[Coords, ...]
    reads: tuple[fx.Node, ...]


class Nest(Builder):
    """One kernel under construction over the values of one graph.

    Attributes:
        sizes: extent of each axis by number; axes are never renumbered while the nest grows.
        reduced: the reduction axes once a reduction has joined, else None.
        nodes: SSA list; ``Load.arg``/``Store.arg`` are value numbers of the graph.
        members: graph nodes computed here; nobody reads those of a scatter here.
        seen: coordinates at which values of a shape are known to be walked.
        reads: for each graph value loaded here, the coordinates it is loaded at.
    """

    def __init__(self, graph: GraphValues, device: torch.device) -> None:
        super().__init__(graph)
        self.device = device
        self.members: dict[fx.Node, Member] = {}
        self.tuples: dict[fx.Node, tuple[Member, ...]] = {}
        self.seen: dict[Coords, list[Coords]] = {}
        self.reads: dict[fx.Node, set[Coords]] = {}
        self._memo: dict[tuple[fx.Node, Coords, int | None], Value] = {}
        self._moved: dict[tuple[Index, Coords], Index] = {}
        self._next_axis = 0

    # ------------------------------------------------------------------------------- axes

    def fresh_axes(self, shape: Coords) -> Coords:
        """New axes for an index space of ``shape``; dimensions of size one need none."""
        at: list[Index] = []
        for size in shape:
            if size == ix.ONE:
                at.append(ix.ZERO)
                continue
            self.sizes[self._next_axis] = size
            at.append(ix.var(self._next_axis))
            self._next_axis += 1
        return tuple(at)

    def outer_axes(self) -> set[int]:
        return set(self.sizes) - set(self.reduced or ())

    # ------------------------------------------------------------------------------- fit

    def fit(self, node: fx.Node, rule: Computed, at: Coords) -> Fit | None:
        """How ``node`` can join at ``at`` (a reduction: with its *input* walked there), if it can.

        It can when it covers the nest's axes (or the outer ones), its reduction is the nest's, and
        every value computed here that it needs is needed just where it is computed.
        """
        reduced = self.reduced
        places: tuple[Coords, ...] = (at,)
        dims = rule.dims(node) if isinstance(rule, Reduction) else ()
        if not dims:
            covered = set().union(*map(ix.variables, at))
            if covered != set(self.sizes) and covered != self.outer_axes():
                return None
        else:
            reduced = self.reduction_axes([at[d] for d in dims])
            rest = {a for d, x in enumerate(at) if d not in dims for a in ix.variables(x)}
            if reduced is None or rest & set(reduced) or rest | set(reduced) != set(self.sizes):
                return None
            if (self.reduced and self.reduced != reduced) or self.meets():
                return None
            if mixed([*self.nodes, *self.graph.body(node).nodes]):
                return None
        if type(rule) is Reduction:
            places = tuple(
                at if full else _reduced_place(at, dims, len(shape))
                for shape, full in zip(self.graph.output_shapes(node), rule.full)
            )
        reads: dict[fx.Node, None] = {}
        body = self.graph.body(node)
        if isinstance(rule, Scatter):
            if self.reduced or (body.mode.ordered and not self.in_order(at)):
                return None
            reads[self.graph.base(node)] = None  # which must be there before
        if not self._reaches(body, at, reads, set()):
            return None
        return Fit(at, reduced, places, tuple(r for r in reads if r not in self.reads))

    def _reaches(
        self,
        body: Body,
        at: Coords,
        reads: dict[fx.Node, None],
        visited: set[tuple[fx.Node, Coords]],
    ) -> bool:
        """Whether all that ``body`` reads is at hand; notes what is loaded for it."""
        for read in body.nodes:
            if type(read) is not Read:
                continue
            operand = body.operands[read.operand]
            there = self._move(read.at, at)
            member = self.members.get(operand)
            if member is not None:
                if member.at != there or not self.graph.fusable(operand):
                    return False
                continue
            if (operand, there) in visited:
                continue
            visited.add((operand, there))
            if not self._is_substituted(operand):
                if not self.graph.info(operand).read_on(self.device):
                    return False
                reads[operand] = None
            elif not self._reaches(self.graph.body(operand), there, reads, visited):
                return False
        return True

    def _is_substituted(self, node: fx.Node) -> bool:
        """Whether a node's body takes its place wherever it is read."""
        return type(self.graph.rule(node)) is View or self.graph.inlined(node)

    # ------------------------------------------------------------------------------ join

    def join(self, node: fx.Node, rule: Computed, fit: Fit) -> None:
        """Compute ``node`` here, as ``fit`` says."""
        self.reduced = fit.reduced
        body = self.graph.body(node)
        values, target = self.place(body, fit.at)
        if isinstance(rule, Scatter):
            self.members[node] = Member(target, values[0], body.mode, fit.at)
            return
        members = tuple(map(Member, fit.places, values))
        if type(rule) is Reduction:
            self._see(self.graph.space(node, rule), fit.at)
            if rule.several:
                self.tuples[node] = members
                return
        self._enter(node, members[0])

    def add_output(self, node: fx.Node, parent: fx.Node, number: int) -> None:
        """Enter output ``number`` of a multi-output member under its own graph node."""
        self._enter(node, self.tuples[parent][number])

    def _enter(self, node: fx.Node, member: Member) -> None:
        self.members[node] = member
        self._see(self.graph.info(node).shape, member.at)

    def _see(self, shape: Coords, at: Coords) -> None:
        ats = self.seen.setdefault(shape, [])
        if at not in ats:
            ats.append(at)

    # ------------------------------------------------------------------------ substitution

    def place(self, body: Body, at: Coords) -> tuple[list[Value], Coords]:
        """The results of ``body`` with its variables at ``at`` and its operands read from here,
        and where a scatter writes them."""
        values: list[Value] = []
        positions: dict[int, Index] = {}
        for node in body.nodes:
            match node:
                case Read(operand, there, _, mask):
                    made = self._read(
                        body.operands[operand],
                        self._move(there, at, positions),
                        None if mask is None else values[mask],
                    )
                case IndexValue(index):
                    made = self.index_value(self._move((index,), at, positions)[0])
                case Position(value, extent, fault, wrap, mask):
                    place = partial(self.position, values[value], extent, fault, wrap)
                    index = place() if mask is None else self.masked(values[mask], place)
                    positions[len(values)] = index
                    made = values[value]  # nobody reads it but through its index
                case Compute(Op.CAST, (value,), dtype):
                    made = self.cast(values[value], dtype)
                case Compute(Op.WHERE, args):
                    condition, yes, no = (values[a] for a in args)
                    made = condition.where(yes, no)
                case Compute(Op.NOT, (value,), torch.bool):
                    made = values[value].negated()
                case Compute(op, args, dtype):
                    first, *rest = (values[a] for a in args)
                    same = dtype is first.dtype
                    made = first.op(op, *rest) if same else first.test(op, *rest)
                case Reduce(op, value):
                    made = self.reduce(op, values[value])
                case Scan(scan_op, value):
                    made = self.scan(scan_op, values[value])
                case _:
                    made = Value(self, self.push(node), node.dtype)  # type: ignore[union-attr]
            values.append(made)
        return [values[result] for result in body.results], self._move(body.target, at, positions)

    def _read(self, node: fx.Node, at: Coords, mask: Value | None) -> Value:
        if mask is None:
            return self.value(node, at)
        return self.masked(mask, lambda: self.value(node, at))

    def _move(
        self, coordinates: Coords, at: Coords, positions: Mapping[int, Index] | None = None
    ) -> Coords:
        """``coordinates`` over a body's variables, where these are at ``at``."""
        moved: list[Index] = []
        for x in coordinates:
            if type(x) is Var:  # nearly all of them
                moved.append(at[x.axis])
            elif type(x) is Const:
                moved.append(x)
            elif positions and ix.loaded(x):
                moved.append(ix.substitute(x, dict(enumerate(at)), self.sizes, positions))
            else:
                found = self._moved.get((x, at))
                if found is None:
                    found = ix.substitute(x, dict(enumerate(at)), self.sizes)
                    self._moved[x, at] = found
                moved.append(found)
        return tuple(moved)

    def value(self, node: fx.Node, at: Coords) -> Value:
        """The value of graph node ``node`` at ``at``, in compute form."""
        member = self.members.get(node)
        if member is not None:
            assert member.at == at, f"{node} is computed here, but elsewhere"
            return member.value
        key = (node, at, None if self._mask is None else self._mask.id)
        found = self._memo.get(key)
        if found is None:
            if self._is_substituted(node):
                ((found,), _) = self.place(self.graph.body(node), at)
            else:
                found = self._load(node, at)
            self._memo[key] = found
        return found

    def _load(self, node: fx.Node, at: Coords) -> Value:
        info = self.graph.info(node)
        mask = None if self._mask is None else self._mask.id
        at = tuple(map(self.plain, at))
        self.reads.setdefault(node, set()).add(at)
        offset = ix.add(*map(ix.mul, at, info.stride)) if at else ix.ZERO
        load = Load(self.graph.number(node), offset, info.dtype, mask)
        value = Value(self, self.push(load), info.dtype)
        return value.cast(compute_dtype(info.dtype))

    # ------------------------------------------------------------------------------ scatters

    def meets(self) -> bool:
        """Whether points of a member may meet: then the nest has no reductions."""
        return any(member.meets for member in self.members.values())

    def out_of_order(self) -> bool:
        """Whether points of a member meet along reductions, or in an order that is not theirs."""
        meeting = [member for member in self.members.values() if member.meets]
        strict = (member for member in meeting if member.mode.ordered)
        return bool(meeting and self.reduced) or not all(self.in_order(m.walked) for m in strict)

    def in_order(self, walked: Coords) -> bool:
        """Whether the nest's order of points is the row-major one of ``walked``."""
        axes = self.reduction_axes(walked)
        return not self.reduced and axes is not None and list(axes) == list(self.sizes)

    # --------------------------------------------------------------------- reduction axes

    def reduction_axes(self, coords: Sequence[Index]) -> tuple[int, ...] | None:
        """The axes that make up ``coords`` in row-major order, or None if they are no such set."""
        axes: list[int] = []
        for x in coords:
            if x == ix.ZERO:
                continue
            found = self._mixed_radix(x)
            if found is None:
                return None
            axes.extend(found)
        return tuple(axes) if len(set(axes)) == len(axes) else None

    def _mixed_radix(self, x: Index) -> list[int] | None:
        terms = x.terms if type(x) is ix.Add else (x,)
        strides: list[tuple[Index, int]] = []
        for term in terms:
            axes = ix.variables(term)
            if len(axes) != 1:
                return None
            axis = axes.pop()
            stride = ix.coefficient(term, axis)
            if stride is None:
                return None
            strides.append((stride, axis))
        expected: Index = ix.ONE
        order: list[int] = []
        while strides:
            for entry in strides:
                if entry[0] == expected:
                    strides.remove(entry)
                    order.append(entry[1])
                    expected = ix.mul(expected, self.sizes[entry[1]])
                    break
            else:
                return None
        return order[::-1]


def mixed(nodes: Sequence[Node | Read]) -> bool:
    """Whether there are reductions and scans."""
    return {Reduce, Scan} <= {type(node) for node in nodes}


def _reduced_place(at: Coords, dims: Sequence[int], rank: int) -> Coords:
    """Coordinates of a reduced result: its dimensions are kept with size one, or gone."""
    if rank == len(at):
        return tuple(ix.ZERO if d in dims else x for d, x in enumerate(at))
    return tuple(x for d, x in enumerate(at) if d not in dims)


def substitute_node(node: Node, mapping: dict[int, Index], sizes: ix.Ranges) -> Node:
    """``node`` with iteration axes replaced."""
    match node:
        case Load() | Store() | IndexValue():
            return replace(node, index=ix.substitute(node.index, mapping, sizes))
    return node
