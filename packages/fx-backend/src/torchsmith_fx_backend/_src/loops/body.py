"""Standalone loop bodies: what one graph node computes at one point of its own index space.

A node is lowered once, on its own, to a ``Body``: frozen SSA over the variables of the node's index
space (a reduction: of its input's), in which ``Read`` stands for an operand at given coordinates.
Views are bodies, too: one read. Fusion substitutes bodies into each other and calls no lowering.

``Point`` is what a lowering function gets: a node at its own coordinates. ``Value`` is a scalar SSA
value with Python operators, so that a lowering reads as the formula it stands for.

Values of low-precision nodes are held in float32 all along (the *compute form*); they are rounded
when stored, and before comparisons and conversions to integers, where eager's rounding shows.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import fx

from torchsmith_fx_backend._src.loops import index as ix
from torchsmith_fx_backend._src.loops.index import Const, Index
from torchsmith_fx_backend._src.loops.ir import (
    Compute,
    Fault,
    IndexValue,
    Literal,
    Load,
    Node,
    Op,
    Position,
    Reduce,
    ReduceOp,
    ScalarArg,
    Scan,
    ScanOp,
    StoreMode,
)
from torchsmith_fx_backend._src.loops.registry import (
    Coords,
    Geometry,
    Reduction,
    Rule,
    Scatter,
    View,
    argument,
)
from torchsmith_fx_backend._src.loops.sizes import UnrepresentableError
from torchsmith_fx_backend._src.loops.values import GraphValues
from torchsmith_fx_backend._src.loops.verify import uses

Number = int | float | bool
_T = TypeVar("_T")
_FLOATS = frozenset({torch.float64, torch.float32, torch.bfloat16, torch.float16})
_LOW = frozenset({torch.bfloat16, torch.float16})


@dataclass(frozen=True, slots=True)
class Read:
    """Operand number ``operand`` at coordinates of its own, in compute form.

    With ``mask`` (an SSA id) it is only looked at where the mask is true.
    """

    operand: int
    at: Coords
    dtype: torch.dtype
    mask: int | None = None


@dataclass(frozen=True, slots=True)
class Body:
    """A node's computation over its own variables.

    Attributes:
        nodes: SSA list; variable ``d`` of an index is dimension ``d`` of the node.
        results: SSA ids of the node's results.
        operands: the graph nodes that ``Read`` numbers.
        target: of a scatter, coordinates in its result that a point writes, ...
        mode: ... and how.
    """

    nodes: tuple[Node | Read, ...]
    results: tuple[int, ...]
    operands: tuple[fx.Node, ...]
    target: Coords = ()
    mode: StoreMode = StoreMode.SET

    @property
    def may_fail(self) -> bool:
        """Whether it checks a position, so that it must run at every point of the node."""
        return may_fail(self.nodes)

    @property
    def looks_up(self) -> bool:
        """Whether it reads at positions that it computes."""
        return any(type(n) is Position for n in self.nodes)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which values of ``dtype`` are computed: float32 for low precision."""
    return torch.float32 if dtype in _LOW else dtype


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A scalar SSA value of a body. Python operators emit operations of the same dtype."""

    body: Builder
    id: int
    dtype: torch.dtype

    def _with(self, others: Iterable[Value | Number]) -> list[int]:
        values = (o if isinstance(o, Value) else self.body.literal(o, self.dtype) for o in others)
        return [self.id, *(value.id for value in values)]

    def op(self, op: Op, *others: Value | Number) -> Value:
        """Apply ``op``; numbers become literals of this value's dtype."""
        args = self._with(others)
        found = _identity(self.body.nodes, op, args)
        if found is None:
            found = self.body.push(Compute(op, tuple(args), self.dtype))
        return Value(self.body, found, self.dtype)

    def test(self, op: Op, *others: Value | Number) -> Value:
        """Apply a comparison or predicate; the result is bool."""
        args = self._with(others)
        known = _decided(op, [self.body.nodes[a] for a in args])
        if known is not None:
            return self.body.literal(known, torch.bool)
        return Value(self.body, self.body.push(Compute(op, tuple(args), torch.bool)), torch.bool)

    def __add__(self, other: Value | Number) -> Value:
        return self.op(Op.ADD if self.dtype is not torch.bool else Op.OR, other)

    def __sub__(self, other: Value | Number) -> Value:
        return self.op(Op.SUB, other)

    def __rsub__(self, other: Number) -> Value:
        return self.body.literal(other, self.dtype).op(Op.SUB, self)

    def __mul__(self, other: Value | Number) -> Value:
        return self.op(Op.MUL if self.dtype is not torch.bool else Op.AND, other)

    def __truediv__(self, other: Value | Number) -> Value:
        return self.op(Op.DIV, other)

    def __rtruediv__(self, other: Number) -> Value:
        return self.body.literal(other, self.dtype).op(Op.DIV, self)

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
        node = self.body.nodes[self.id]
        if type(node) is Literal:
            return self.body.literal(not node.value, torch.bool)
        return self.op(Op.NOT)

    def where(self, yes: Value | Number, no: Value | Number) -> Value:
        """``yes`` where this bool value is true, else ``no``; at least one is a ``Value``."""
        model = yes if isinstance(yes, Value) else no
        assert isinstance(model, Value)
        if not isinstance(yes, Value):
            yes = self.body.literal(yes, model.dtype)
        if not isinstance(no, Value):
            no = self.body.literal(no, model.dtype)
        condition = self.body.nodes[self.id]
        if type(condition) is Literal:
            return yes if condition.value else no
        if yes.id == no.id:
            return yes
        node = Compute(Op.WHERE, (self.id, yes.id, no.id), yes.dtype)
        return Value(self.body, self.body.push(node), yes.dtype)

    def cast(self, dtype: torch.dtype) -> Value:
        """Convert as ``Tensor.to``; low precision only for a store or for rounding."""
        return self.body.cast(self, dtype)

    def rounded(self, dtype: torch.dtype) -> Value:
        """The value as eager sees it when the tensor is of low precision ``dtype``."""
        node = self.body.nodes[self.id]
        if dtype in _LOW and type(node) is Literal:
            return self.body.literal(torch.tensor(node.value, dtype=dtype).item(), torch.float32)
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


class Builder:
    """An SSA list that grows, equal nodes once.

    Attributes:
        graph: what is known about the graph's values.
        sizes: extent of each axis by number.
        reduced: the reduction axes; None or empty when there is none to walk.
        nodes: the list.
    """

    def __init__(self, graph: GraphValues) -> None:
        self.graph = graph
        self.sizes: dict[int, Index] = {}
        self.reduced: tuple[int, ...] | None = None
        self.nodes: list[Node] = []
        self._ids: dict[Node, int] = {}
        self._mask: Value | None = None
        self._axes: dict[int, frozenset[int]] = {}

    def numel(self, axes: Sequence[int] | set[int] | None = None) -> Index:
        """The number of points of ``axes``; of all by default."""
        return ix.product([self.sizes[a] for a in (self.sizes if axes is None else axes)])

    def push(self, node: Node) -> int:
        """Append ``node`` unless an equal one is there; its SSA id."""
        found = self._ids.get(node)
        if found is None:
            found = self._ids[node] = len(self.nodes)
            self.nodes.append(node)
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
        index = self.plain(index)
        if type(index) is Const:
            return self.literal(index.value, torch.int64)
        return Value(self, self.push(IndexValue(index, torch.int64)), torch.int64)

    def plain(self, index: Index) -> Index:
        """``index`` without what the mask at hand tells of it."""
        return index if self._mask is None else ix.substitute(index, {}, self.sizes, plain=True)

    def scalar(self, node: fx.Node, dtype: torch.dtype) -> Value:
        """A number computed by the graph (size or float), as ``dtype``."""
        value = node.meta["val"]
        if isinstance(value, (int, float)):
            return self.literal(value, dtype)
        index = self.graph.scalar_index(node)
        if index is not None:
            return self.index_value(index).cast(dtype)
        whole = isinstance(value, torch.SymFloat) and dtype not in _FLOATS  # which C truncates
        read = torch.float64 if whole else dtype
        return Value(self, self.push(ScalarArg(self.graph.scalar_name(node), read)), read).cast(
            dtype
        )

    def cast(self, value: Value, dtype: torch.dtype) -> Value:
        if value.dtype is dtype:
            return value
        node = self.nodes[value.id]
        whole = type(node) is Literal and not isinstance(node.value, float)
        if type(node) is Literal and dtype not in _LOW and (whole or dtype in _FLOATS):
            return self.literal(node.value, dtype)
        if type(node) is Compute and node.op is Op.CAST and value.dtype is torch.float32:
            source = self.nodes[node.args[0]]
            if getattr(source, "dtype", None) is dtype and dtype in _LOW:
                return Value(self, node.args[0], dtype)
        return Value(self, self.push(Compute(Op.CAST, (value.id,), dtype)), dtype)

    def reduce(self, op: ReduceOp, value: Value) -> Value:
        """Reduce over the reduction axes; the identity when there are none."""
        position = op in (ReduceOp.ARGMAX, ReduceOp.ARGMIN)
        dtype = torch.int64 if position else value.dtype
        if not self.reduced:
            if op is ReduceOp.SUM and dtype in _FLOATS:
                return value + 0.0  # a sum starts from 0.0, so that it is never -0.0
            return self.literal(0, torch.int64) if position else value
        return Value(self, self.push(Reduce(op, value.id, dtype)), dtype)

    def scan(self, op: ScanOp, value: Value) -> Value:
        """Scan along the reduction axes; rows of one element are their own."""
        position = op in (ScanOp.ARGMAX, ScanOp.ARGMIN)
        dtype = torch.int64 if position else value.dtype
        if not self.reduced:
            return self.literal(0, torch.int64) if position else value
        return Value(self, self.push(Scan(op, value.id, dtype)), dtype)

    def position(
        self, value: Value, extent: Index, fault: Fault | None = None, wrap: bool = False
    ) -> Index:
        """``value`` as an index in ``0 .. extent-1``; see ``ir.Position``."""
        value = value.cast(torch.int64)
        node = self.nodes[value.id]
        known: Index | None = None
        if type(node) is Literal:
            known = ix.const(int(node.value))
            if wrap and node.value < 0:
                known = ix.add(known, extent)
        elif type(node) is IndexValue:
            known = node.index
        if known is not None and ix.in_range(known, extent, self.sizes):
            return known
        mask = None if self._mask is None else self._mask.id
        made = self.push(Position(value.id, extent, fault, wrap, mask))
        return ix.Loaded(made, extent, tuple(sorted(self._follows(made))))

    def _follows(self, value: int) -> frozenset[int]:
        """The axes along which an SSA value differs."""
        found = self._axes.get(value)
        if found is None:
            node = self.nodes[value]
            axes: set[int] = set()
            if isinstance(node, Reduce):
                axes = set(self.sizes) - set(self.reduced or ())
            elif isinstance(node, Scan):
                axes = set(self.sizes)
            else:
                for operand in self._operands(node):
                    axes |= self._follows(operand)
                for x in self._coordinates(node):
                    ix.variables(x, axes)
            found = self._axes[value] = frozenset(axes)
        return found

    def _operands(self, node: Node) -> tuple[int, ...]:
        return uses(node)

    def _coordinates(self, node: Node) -> Coords:
        return (node.index,) if isinstance(node, (Load, IndexValue)) else ()

    def masked(self, mask: Value, read: Callable[[], _T]) -> _T:
        """``read()`` with every load in it guarded by ``mask``."""
        condition = self.nodes[mask.id]
        if type(condition) is Literal and condition.value:
            return read()
        before = self._mask
        self._mask = mask if before is None else before & mask
        try:
            return read()
        finally:
            self._mask = before

    def value(self, node: fx.Node, at: Coords) -> Value:
        """The value of graph node ``node`` at ``at``, in compute form."""
        raise NotImplementedError


class _Lowering(Builder):
    """The body of one node in the making: operands are reads."""

    def __init__(self, graph: GraphValues, shape: Coords, reduced: Sequence[int] = ()) -> None:
        super().__init__(graph)
        self.at = tuple(ix.ZERO if n == ix.ONE else ix.var(d) for d, n in enumerate(shape))
        self.sizes = {d: n for d, n in enumerate(shape) if n != ix.ONE}
        self.reduced = tuple(d for d in reduced if d in self.sizes)
        self.operands: dict[fx.Node, int] = {}

    def value(self, node: fx.Node, at: Coords) -> Value:
        operand = self.operands.setdefault(node, len(self.operands))
        dtype = compute_dtype(self.graph.info(node).dtype)
        mask = None if self._mask is None else self._mask.id
        return Value(self, self.push(Read(operand, at, dtype, mask)), dtype)  # type: ignore[arg-type]

    def _operands(self, node: Node | Read) -> tuple[int, ...]:
        if isinstance(node, Read):
            return () if node.mask is None else (node.mask,)
        return uses(node)

    def _coordinates(self, node: Node | Read) -> Coords:
        return node.at if isinstance(node, Read) else super()._coordinates(node)

    def body(self, results: Sequence[Value]) -> Body:
        return Body(tuple(self.nodes), tuple(v.id for v in results), tuple(self.operands))


def may_fail(nodes: Iterable[Node | Read]) -> bool:
    """Whether some position among ``nodes`` makes a launch raise when it lies outside."""
    return any(type(n) is Position and n.fault is not None for n in nodes)


def lower(graph: GraphValues, node: fx.Node, rule: Rule) -> Body:
    """The standalone body of ``node`` by its ``rule``.

    Raises:
        UnrepresentableError: the call has no such form.
    """
    if isinstance(rule, View):
        base = graph.base(node)
        made = _Lowering(graph, graph.info(node).shape)
        shapes = graph.info(base).shape, graph.info(node).shape
        there: Coords = (ix.ZERO,) * len(shapes[0])
        if ix.ZERO not in shapes[1]:  # nobody reads an element of an empty view
            there = rule.pull(Geometry(node, *shapes, made.sizes), made.at)
        return made.body([made.value(base, there)])
    if isinstance(rule, Reduction):
        made = _Lowering(graph, graph.space(node, rule), rule.dims(node))
        return made.body(rule.emit(Point(made, node, made.at)))
    if isinstance(rule, Scatter):
        made = _Lowering(graph, graph.space(node, rule))
        written = rule.emit(Point(made, node, made.at))
        return replace(made.body([written.value]), target=written.at, mode=written.mode)
    made = _Lowering(graph, graph.info(node).shape)
    return made.body([rule.emit(Point(made, node, made.at))])


@dataclass(frozen=True, slots=True)
class Written:
    """What a point of a scatter writes, and where in the result; points may meet (see ``mode``)."""

    value: Value
    at: Coords
    mode: StoreMode


@dataclass(frozen=True, slots=True)
class Point:
    """A graph node being lowered: what a lowering function gets.

    Attributes:
        body: the body in the making.
        node: the graph node.
        at: coordinates in the node's own index space (for a reduction: in its input's).
    """

    body: Builder
    node: fx.Node
    at: Coords

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the node's result tensor."""
        return self.body.graph.info(self.node).dtype

    @property
    def shape(self) -> Coords:
        return self.body.graph.info(self.node).shape

    def arg(self, position: int, name: str | None = None, default: object = None) -> object:
        """A raw argument of the node."""
        found: object = argument(self.node, position, name, default)
        return found

    def operand(self, position: int = 0) -> fx.Node:
        """An argument that is a value of the graph."""
        found = self.node.args[position]
        assert isinstance(found, fx.Node)
        return found

    def dim(self, position: int) -> int:
        """A dimension argument (0 by default), counted from the front."""
        return int(argument(self.node, position, "dim", 0)) % max(len(self.at), 1)

    def read(self, arg: object, dtype: torch.dtype | None = None) -> Value:
        """An operand at this point, broadcast to the node's shape, as ``dtype`` (compute form)."""
        if isinstance(arg, fx.Node):
            if not self.body.graph.is_tensor(arg):
                return self.body.scalar(arg, compute_dtype(dtype or self.dtype))
            value = self.body.value(arg, self.broadcast(arg))
            if dtype is None:
                return value
            return self.convert(value, self.body.graph.info(arg).dtype, dtype)
        if not isinstance(arg, (int, float, bool)):
            raise UnrepresentableError(f"operand {arg!r}")
        return self.body.literal(arg, compute_dtype(dtype or self.dtype))

    def element(self, arg: object) -> Value:
        """An operand as an element of the result: a number, say, is one that its dtype has."""
        value = self.read(arg, self.dtype)
        alike = isinstance(arg, fx.Node) and getattr(arg.meta["val"], "dtype", 0) is self.dtype
        return value if alike else value.rounded(self.dtype)

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
        source = self.body.graph.base(self.node)
        value = self.body.value(source, self.at)
        if dtype is None:
            return value
        return self.convert(value, self.body.graph.info(source).dtype, dtype)

    def read_input_rounded(self) -> Value:
        """A reduction's input as eager would compare it."""
        source = self.body.graph.base(self.node)
        return self.body.value(source, self.at).rounded(self.body.graph.info(source).dtype)

    def at_of(self, arg: fx.Node, at: Coords) -> Value:
        """An operand at explicit coordinates of its own."""
        return self.body.value(arg, at)

    def broadcast(self, arg: fx.Node) -> Coords:
        """This point's coordinates in the index space of an operand that broadcasts to it."""
        shape = self.body.graph.info(arg).shape
        skip = len(self.at) - len(shape)
        return tuple(ix.ZERO if size == ix.ONE else x for size, x in zip(shape, self.at[skip:]))

    def tensors(self) -> Iterator[fx.Node]:
        """The tensor operands."""
        return (a for a in self.node.all_input_nodes if self.body.graph.is_tensor(a))
