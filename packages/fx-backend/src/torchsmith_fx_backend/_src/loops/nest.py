"""A loop nest under construction: one kernel that grows while graph nodes join it.

A nest has iteration axes and an SSA body. ``members`` are the graph nodes computed here, each at
fixed coordinates. ``Point`` is a node being lowered at one place, ``Value`` a scalar SSA value
with Python operators, so that a lowering reads as the formula it stands for.

Values of low-precision nodes are held in float32 all along (the *compute form*); they are rounded
when stored, and before comparisons and conversions to integers, where eager's rounding shows.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import fx

from torchsmith_fx_backend._src.loops import index as ix
from torchsmith_fx_backend._src.loops.index import Const, Index
from torchsmith_fx_backend._src.loops.ir import (
    Compute,
    IndexValue,
    Literal,
    Load,
    Node,
    Op,
    Reduce,
    ReduceOp,
    ScalarArg,
    Store,
)
from torchsmith_fx_backend._src.loops.registry import Coords, Geometry, Pointwise, Reduction, View
from torchsmith_fx_backend._src.loops.values import GraphValues

Number = int | float | bool
_MemoKey = tuple[fx.Node, Coords, int | None]
_FLOATS = frozenset({torch.float64, torch.float32, torch.bfloat16, torch.float16})
_LOW = frozenset({torch.bfloat16, torch.float16})


class MismatchError(Exception):
    """The node cannot be computed in this nest at these coordinates."""


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which values of ``dtype`` are computed: float32 for low precision."""
    return torch.float32 if dtype in _LOW else dtype


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A scalar SSA value of a nest. Python operators emit operations of the same dtype."""

    nest: Nest
    id: int
    dtype: torch.dtype

    def op(self, op: Op, *others: Value | Number) -> Value:
        """Apply ``op``; numbers become literals of this value's dtype."""
        args = [self.id]
        for other in others:
            if not isinstance(other, Value):
                other = self.nest.literal(other, self.dtype)
            args.append(other.id)
        found = _identity(self.nest.body, op, args)
        if found is None:
            found = self.nest.push(Compute(op, tuple(args), self.dtype))
        return Value(self.nest, found, self.dtype)

    def test(self, op: Op, *others: Value | Number) -> Value:
        """Apply a comparison or predicate; the result is bool."""
        args = [self.id]
        for other in others:
            if not isinstance(other, Value):
                other = self.nest.literal(other, self.dtype)
            args.append(other.id)
        known = _decided(op, [self.nest.body[a] for a in args])
        if known is not None:
            return self.nest.literal(known, torch.bool)
        return Value(self.nest, self.nest.push(Compute(op, tuple(args), torch.bool)), torch.bool)

    def __add__(self, other: Value | Number) -> Value:
        return self.op(Op.ADD if self.dtype is not torch.bool else Op.OR, other)

    def __sub__(self, other: Value | Number) -> Value:
        return self.op(Op.SUB, other)

    def __rsub__(self, other: Number) -> Value:
        return self.nest.literal(other, self.dtype).op(Op.SUB, self)

    def __mul__(self, other: Value | Number) -> Value:
        return self.op(Op.MUL if self.dtype is not torch.bool else Op.AND, other)

    def __truediv__(self, other: Value | Number) -> Value:
        return self.op(Op.DIV, other)

    def __rtruediv__(self, other: Number) -> Value:
        return self.nest.literal(other, self.dtype).op(Op.DIV, self)

    def __neg__(self) -> Value:
        return self.op(Op.NEG)

    def __and__(self, other: Value) -> Value:
        return self.op(Op.AND, other)

    def __or__(self, other: Value) -> Value:
        return self.op(Op.OR, other)

    __radd__ = __add__
    __rmul__ = __mul__

    def __lt__(self, other: Value | Number) -> Value:
        return self.test(Op.LT, other)

    def __le__(self, other: Value | Number) -> Value:
        return self.test(Op.LE, other)

    def __gt__(self, other: Value | Number) -> Value:
        return self.test(Op.GT, other)

    def __ge__(self, other: Value | Number) -> Value:
        return self.test(Op.GE, other)

    def eq(self, other: Value | Number) -> Value:
        return self.test(Op.EQ, other)

    def ne(self, other: Value | Number) -> Value:
        return self.test(Op.NE, other)

    def negated(self) -> Value:
        """The opposite of this bool value."""
        node = self.nest.body[self.id]
        if type(node) is Literal:
            return self.nest.literal(not node.value, torch.bool)
        return self.op(Op.NOT)

    def where(self, yes: Value | Number, no: Value | Number) -> Value:
        """``yes`` where this bool value is true, else ``no``; at least one is a ``Value``."""
        model = yes if isinstance(yes, Value) else no
        assert isinstance(model, Value)
        if not isinstance(yes, Value):
            yes = self.nest.literal(yes, model.dtype)
        if not isinstance(no, Value):
            no = self.nest.literal(no, model.dtype)
        condition = self.nest.body[self.id]
        if type(condition) is Literal:
            return yes if condition.value else no
        if yes.id == no.id:
            return yes
        node = Compute(Op.WHERE, (self.id, yes.id, no.id), yes.dtype)
        return Value(self.nest, self.nest.push(node), yes.dtype)

    def cast(self, dtype: torch.dtype) -> Value:
        """Convert as ``Tensor.to``; low precision only for a store or for rounding."""
        return self.nest.cast(self, dtype)

    def rounded(self, dtype: torch.dtype) -> Value:
        """The value as eager sees it when the tensor is of low precision ``dtype``."""
        return self.cast(dtype).cast(torch.float32) if dtype in _LOW else self


_NEUTRAL_RIGHT = {Op.ADD: 0, Op.SUB: 0, Op.MUL: 1, Op.DIV: 1, Op.AND: True, Op.OR: False}
_COMMUTATIVE = frozenset({Op.ADD, Op.MUL, Op.AND, Op.OR})


def _identity(body: list[Node], op: Op, args: list[int]) -> int | None:
    """The operand that ``op`` gives back unchanged, bit for bit, because the other is neutral."""
    neutral = _NEUTRAL_RIGHT.get(op)
    if neutral is None or len(args) != 2:
        return None
    for value, other in ((args[0], args[1]), (args[1], args[0])):
        node = body[other]
        if type(node) is Literal and type(node.value) is not complex and node.value == neutral:
            floating = node.dtype.is_floating_point
            boolean = node.dtype is torch.bool
            if op in (Op.AND, Op.OR):
                if boolean:
                    return value
            elif not boolean and not (floating and neutral == 0 and _signed(op, node)):
                return value
        if op not in _COMMUTATIVE:
            return None
    return None


_COMPARE: dict[Op, Callable[[int, int], bool]] = {
    Op.EQ: operator.eq,
    Op.NE: operator.ne,
    Op.LT: operator.lt,
    Op.LE: operator.le,
    Op.GT: operator.gt,
    Op.GE: operator.ge,
}


def _decided(op: Op, args: list[Node]) -> bool | None:
    """The truth of a comparison of two integer literals."""
    compare = _COMPARE.get(op)
    if compare is None or len(args) != 2:
        return None
    left, right = args
    if type(left) is not Literal or type(right) is not Literal:
        return None
    if type(left.value) is not int or type(right.value) is not int:
        return None
    return compare(left.value, right.value)


def _signed(op: Op, zero: Literal) -> bool:
    """Whether adding or subtracting this zero may turn -0.0 into 0.0."""
    return op is Op.ADD or str(zero.value).startswith("-")


@dataclass(frozen=True, slots=True)
class Member:
    """A graph node computed in a nest: its value and its coordinates in the nest's axes."""

    at: Coords
    value: Value


class Nest:
    """One kernel under construction over the values of one graph.

    Attributes:
        sizes: extent of each axis by number; axes are never renumbered while the nest grows.
        reduced: the reduction axes once a reduction has joined, else None.
        body: SSA list; ``Load.arg``/``Store.arg`` are value numbers of the graph.
        members: graph nodes computed here.
        seen: coordinates at which values of a shape are known to be walked.
        reads: for each graph value loaded here, the coordinates it is loaded at.
    """

    def __init__(self, graph: GraphValues, device: torch.device) -> None:
        self.graph = graph
        self.device = device
        self.sizes: dict[int, Index] = {}
        self.reduced: tuple[int, ...] | None = None
        self.body: list[Node] = []
        self.members: dict[fx.Node, Member] = {}
        self.tuples: dict[fx.Node, tuple[Member, ...]] = {}
        self.seen: dict[Coords, list[Coords]] = {}
        self.reads: dict[fx.Node, set[Coords]] = {}
        self._ids: dict[Node, int] = {}
        self._memo: dict[_MemoKey, Value] = {}
        self._mask: Value | None = None
        self._log: list[tuple[fx.Node, Coords, _MemoKey | None]] = []
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

    def numel(self, axes: Sequence[int] | set[int] | None = None) -> Index:
        return ix.product([self.sizes[a] for a in (self.sizes if axes is None else axes)])

    def split_axis(self, axis: int, inner: Index) -> None:
        """Replace ``axis`` by two: (outer, inner) with ``inner`` the extent of the second."""
        outer = ix.floordiv(self.sizes[axis], inner)
        a, b = self._next_axis, self._next_axis + 1
        self._next_axis += 2
        del self.sizes[axis]
        self.sizes[a], self.sizes[b] = outer, inner
        self.rename({axis: ix.add(ix.mul(inner, ix.var(a)), ix.var(b))})
        if self.reduced is not None and axis in self.reduced:
            self.reduced = tuple(
                n for old in self.reduced for n in ((a, b) if old == axis else (old,))
            )

    def rename(self, mapping: dict[int, Index]) -> None:
        """Substitute axes everywhere; the new axes must be in ``sizes``."""

        def move(at: Coords) -> Coords:
            return tuple(ix.substitute(x, mapping, self.sizes) for x in at)

        self.body = [substitute_node(n, mapping, self.sizes) for n in self.body]
        self._ids = {}
        for position, node in enumerate(self.body):
            self._ids.setdefault(node, position)
        self.members = {n: Member(move(m.at), m.value) for n, m in self.members.items()}
        self.tuples = {
            n: tuple(Member(move(m.at), m.value) for m in ms) for n, ms in self.tuples.items()
        }
        self.seen = {shape: [move(at) for at in ats] for shape, ats in self.seen.items()}
        self.reads = {n: {move(at) for at in ats} for n, ats in self.reads.items()}
        self._log.clear()  # what came before a renaming is final
        self._memo = {(n, move(at), m): v for (n, at, m), v in self._memo.items()}

    # ---------------------------------------------------------------------- transactions

    def begin(self) -> tuple[int, int]:
        """Start a trial; give the mark to ``rollback`` to undo what was emitted since."""
        return len(self.body), len(self._log)

    def rollback(self, mark: tuple[int, int]) -> None:
        length, entries = mark
        for emitted in self.body[length:]:
            if self._ids.get(emitted, -1) >= length:
                del self._ids[emitted]
        del self.body[length:]
        for node, at, key in self._log[entries:]:
            if key is not None:
                self._memo.pop(key, None)
            else:
                ats = self.reads[node]
                ats.discard(at)
                if not ats:
                    del self.reads[node]
        del self._log[entries:]
        self._mask = None

    # ------------------------------------------------------------------------------ emit

    def push(self, node: Node) -> int:
        """Append ``node`` unless an equal one is there; its SSA id."""
        found = self._ids.get(node)
        if found is None:
            found = self._ids[node] = len(self.body)
            self.body.append(node)
        return found

    def literal(self, number: Number, dtype: torch.dtype) -> Value:
        if dtype is torch.bool:
            number = bool(number)
        elif dtype in _FLOATS:
            number = float(number)
        else:
            number = int(number)
            bits = 8 * dtype.itemsize  # as C converts it: eager clamps bytes to -1 that way
            number &= (1 << bits) - 1
            if dtype.is_signed and number >> (bits - 1):
                number -= 1 << bits
        return Value(self, self.push(Literal(number, dtype)), dtype)

    def index_value(self, index: Index) -> Value:
        """The number ``index`` at this point, as int64."""
        if type(index) is Const:
            return self.literal(index.value, torch.int64)
        return Value(self, self.push(IndexValue(index, torch.int64)), torch.int64)

    def scalar(self, node: fx.Node, dtype: torch.dtype) -> Value:
        """A number computed by the graph (size or float), as ``dtype``."""
        value = node.meta["val"]
        if isinstance(value, (int, float)):
            return self.literal(value, dtype)
        index = self.graph.scalar_index(node)
        if index is not None:
            return self.index_value(index).cast(dtype)
        return Value(self, self.push(ScalarArg(self.graph.scalar_name(node), dtype)), dtype)

    def cast(self, value: Value, dtype: torch.dtype) -> Value:
        if value.dtype is dtype:
            return value
        node = self.body[value.id]
        whole = type(node) is Literal and not isinstance(node.value, float)
        if type(node) is Literal and dtype not in _LOW and (whole or dtype in _FLOATS):
            return self.literal(node.value, dtype)
        if type(node) is Compute and node.op is Op.CAST and value.dtype is torch.float32:
            source = self.body[node.args[0]]
            if getattr(source, "dtype", None) is dtype and dtype in _LOW:
                return Value(self, node.args[0], dtype)
        return Value(self, self.push(Compute(Op.CAST, (value.id,), dtype)), dtype)

    def reduce(self, op: ReduceOp, value: Value) -> Value:
        """Reduce over this nest's reduction axes; the identity when there are none."""
        position = op in (ReduceOp.ARGMAX, ReduceOp.ARGMIN)
        dtype = torch.int64 if position else value.dtype
        if not self.reduced:
            if op is ReduceOp.SUM and dtype in _FLOATS:
                return value + 0.0  # a sum starts from 0.0, so that it is never -0.0
            return self.literal(0, torch.int64) if position else value
        return Value(self, self.push(Reduce(op, value.id, dtype)), dtype)

    # ------------------------------------------------------------------------------ read

    def value(self, node: fx.Node, at: Coords) -> Value:
        """The value of graph node ``node`` at ``at``, in compute form.

        Raises:
            MismatchError: the node is computed in this nest, but at other coordinates.
        """
        member = self.members.get(node)
        if member is not None:
            if member.at != at or not self.graph.fusable(node):
                raise MismatchError
            return member.value
        mask = None if self._mask is None else self._mask.id
        key = (node, at, mask)
        found = self._memo.get(key)
        if found is not None:
            return found
        rule = self.graph.rule(node)
        if type(rule) is View:
            base = self.graph.base(node)
            shapes = self.graph.info(base).shape, self.graph.info(node).shape
            found = self.value(base, rule.pull(Geometry(node, *shapes, self.sizes), at))
        elif self.graph.inlined(node):
            assert type(rule) is Pointwise
            found = rule.emit(Point(self, node, at))
        else:
            found = self._load(node, at)
        self._memo[key] = found
        self._log.append((node, at, key))
        return found

    def _load(self, node: fx.Node, at: Coords) -> Value:
        info = self.graph.info(node)
        if info.device != self.device:
            raise MismatchError
        mask = None if self._mask is None else self._mask.id
        ats = self.reads.setdefault(node, set())
        if at not in ats:
            ats.add(at)
            self._log.append((node, at, None))
        offset = ix.add(*map(ix.mul, at, info.stride)) if at else ix.ZERO
        load = Load(self.graph.number(node), offset, info.dtype, mask)
        value = Value(self, self.push(load), info.dtype)
        return value.cast(compute_dtype(info.dtype))

    def masked(self, mask: Value, read: Callable[[], Value]) -> Value:
        """``read()`` with every load in it guarded by ``mask``."""
        condition = self.body[mask.id]
        if type(condition) is Literal and condition.value:
            return read()
        before = self._mask
        self._mask = mask if before is None else before & mask
        try:
            return read()
        finally:
            self._mask = before

    # ------------------------------------------------------------------------------ join

    def compute(self, node: fx.Node, rule: Pointwise | Reduction, at: Coords) -> list[Member]:
        """Emit ``node`` at ``at`` (a reduction: with its *input* walked at ``at``).

        Nothing but the body changes, so ``rollback`` undoes it; ``enter`` makes it final.

        Raises:
            MismatchError: it cannot be computed here.
        """
        if type(rule) is Pointwise:
            covered = set().union(*map(ix.variables, at))
            if covered != set(self.sizes) and covered != self.outer_axes():
                raise MismatchError
            return [Member(at, rule.emit(Point(self, node, at)))]
        assert type(rule) is Reduction
        dims = rule.dims(node)
        axes = self.reduction_axes([at[d] for d in dims])
        rest = {a for d, x in enumerate(at) if d not in dims for a in ix.variables(x)}
        if axes is None or rest & set(axes) or rest | set(axes) != set(self.sizes):
            raise MismatchError
        if self.reduced is not None and self.reduced != axes:
            raise MismatchError
        before, self.reduced = self.reduced, axes
        try:
            values = rule.emit(Point(self, node, at))
        finally:
            self.reduced = before
        members = []
        for value, shape, full in zip(values, self.graph.output_shapes(node), rule.full):
            if full:
                place = at
            elif len(shape) == len(at):
                place = tuple(ix.ZERO if d in dims else x for d, x in enumerate(at))
            else:
                place = tuple(x for d, x in enumerate(at) if d not in dims)
            members.append(Member(place, value))
        return members

    def enter(
        self, node: fx.Node, rule: Pointwise | Reduction, at: Coords, members: list[Member]
    ) -> None:
        """Make the result of ``compute`` part of this nest."""
        if type(rule) is Reduction:
            dims = rule.dims(node)
            self.reduced = self.reduction_axes([at[d] for d in dims])
            self._see(self.graph.info(self.graph.base(node)).shape, at)
            if rule.several:
                self.tuples[node] = tuple(members)
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


def substitute_node(node: Node, mapping: dict[int, Index], sizes: ix.Ranges) -> Node:
    """``node`` with iteration axes replaced."""
    match node:
        case Load() | Store() | IndexValue():
            return replace(node, index=ix.substitute(node.index, mapping, sizes))
    return node


@dataclass(frozen=True, slots=True)
class Point:
    """A graph node being lowered at one place of a nest: what a lowering function gets.

    Attributes:
        nest: the nest it is lowered into.
        node: the graph node.
        at: coordinates in the node's own index space (for a reduction: in its input's).
    """

    nest: Nest
    node: fx.Node
    at: Coords

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the node's result tensor."""
        return self.nest.graph.info(self.node).dtype

    @property
    def shape(self) -> Coords:
        return self.nest.graph.info(self.node).shape

    def arg(self, position: int, name: str | None = None, default: object = None) -> object:
        """A raw argument of the node, by position or keyword."""
        if position < len(self.node.args):
            return self.node.args[position]
        return self.node.kwargs.get(name, default) if name is not None else default

    def read(self, arg: object, dtype: torch.dtype | None = None) -> Value:
        """An operand at this point, broadcast to the node's shape, as ``dtype`` (compute form)."""
        if isinstance(arg, fx.Node):
            if not self.nest.graph.is_tensor(arg):
                return self.nest.scalar(arg, compute_dtype(dtype or self.dtype))
            value = self.nest.value(arg, self.broadcast(arg))
            if dtype is None:
                return value
            return self.convert(value, self.nest.graph.info(arg).dtype, dtype)
        if not isinstance(arg, (int, float, bool)):
            raise MismatchError
        return self.nest.literal(arg, compute_dtype(dtype or self.dtype))

    @staticmethod
    def convert(value: Value, source: torch.dtype, dtype: torch.dtype) -> Value:
        """``value`` of a tensor of dtype ``source`` as a tensor of ``dtype``, in compute form."""
        if dtype not in _FLOATS:
            value = value.rounded(source)
        return value.cast(compute_dtype(dtype))

    def output_dtype(self, number: int) -> torch.dtype:
        """Dtype of one of the node's results."""
        value = self.node.meta["val"]
        result = value[number] if isinstance(value, (tuple, list)) else value
        assert isinstance(result, torch.Tensor)
        return result.dtype

    def read_input(self, dtype: torch.dtype | None) -> Value:
        """A reduction's input at this point, as ``dtype`` (compute form)."""
        source = self.nest.graph.base(self.node)
        value = self.nest.value(source, self.at)
        if dtype is None:
            return value
        return self.convert(value, self.nest.graph.info(source).dtype, dtype)

    def read_input_rounded(self) -> Value:
        """A reduction's input as eager would compare it."""
        source = self.nest.graph.base(self.node)
        return self.nest.value(source, self.at).rounded(self.nest.graph.info(source).dtype)

    def at_of(self, arg: fx.Node, at: Coords) -> Value:
        """An operand at explicit coordinates of its own."""
        return self.nest.value(arg, at)

    def broadcast(self, arg: fx.Node) -> Coords:
        """This point's coordinates in the index space of an operand that broadcasts to it."""
        shape = self.nest.graph.info(arg).shape
        skip = len(self.at) - len(shape)
        return tuple(ix.ZERO if size == ix.ONE else x for size, x in zip(shape, self.at[skip:]))

    def tensors(self) -> Iterator[fx.Node]:
        """The tensor operands."""
        return (a for a in self.node.all_input_nodes if self.nest.graph.is_tensor(a))
