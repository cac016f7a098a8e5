"""Check that a kernel is legal loop IR. Runs in tests and under ``TORCHSMITH_VERIFY=1``."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from torchsmith_fx_backend._src.loops.accesses import IllegalKernelError, check_accesses
from torchsmith_fx_backend._src.loops.index import (
    ONE,
    Index,
    Var,
    has_var,
    loaded,
    symbols,
    variables,
)
from torchsmith_fx_backend._src.loops.ir import (
    Compute,
    IndexValue,
    Kernel,
    Load,
    Node,
    Op,
    Position,
    Reduce,
    ReduceOp,
    ScalarArg,
    Scan,
    ScanOp,
    Store,
    StoreMode,
)

LOW_PRECISION = frozenset({torch.bfloat16, torch.float16})
__all__ = ["IllegalKernelError", "full_values", "reduce_levels", "uses", "verify"]

COMPARISONS = frozenset({Op.EQ, Op.NE, Op.LT, Op.LE, Op.GT, Op.GE})
PREDICATES = frozenset({Op.ISNAN, Op.ISINF})
_ARITY = {
    **dict.fromkeys(
        (
            *("add", "sub", "mul", "div", "floordiv", "truncdiv", "mod", "fmod", "pow", "atan2"),
            *("minimum", "maximum", "and", "or", "xor", "shl", "shr"),
            *("eq", "ne", "lt", "le", "gt", "ge"),
        ),
        2,
    ),
    "fma": 3,
    "where": 3,
}


def full_values(kernel: Kernel) -> list[bool]:
    """For each node of the body: whether its value differs along a reduction axis.

    For a ``Store`` it says whether it happens at every point (value or index is full) rather than
    once per outer point.
    """
    return varying(kernel.body, range(kernel.reduce_from, len(kernel.ranges)))


def varying(body: Sequence[Node], reduced: Collection[int]) -> list[bool]:
    """``full_values`` of a body whose reduction axes are ``reduced``."""
    full: list[bool] = []
    for node in body:
        match node:
            case Load() | Store() | IndexValue():
                value = any(axis in reduced for axis in variables(node.index))
                value = value or any(full[a] for a in uses(node))
            case Reduce():
                value = False
            case Scan():
                value = True
            case _:
                value = any(full[a] for a in uses(node))
        full.append(value)
    return full


def walks_again(body: Sequence[Node], full: Sequence[bool]) -> bool:
    """Whether a reduction, or what differs along the reduction axes, depends on a reduction."""
    depends: list[bool] = []
    for node, differs in zip(body, full):
        after, reduces = any(depends[i] for i in uses(node)), isinstance(node, Reduce)
        if after and (reduces or differs):
            return True
        depends.append(after or reduces)
    return False


def reduce_levels(body: Sequence[Node]) -> list[int]:
    """For each node: how many reductions lie one after the other before it.

    A printer that walks a row several times handles the full values of level ``n`` in pass ``n``.
    """
    levels: list[int] = []
    for node in body:
        level = max((levels[a] for a in uses(node)), default=0)
        levels.append(level + 1 if isinstance(node, Reduce) else level)
    return levels


def read_before(body: Sequence[Node], full: Sequence[bool]) -> list[bool]:
    """For each node: whether no pass walks the row after it; ``full`` is ``full_values``."""
    levels = reduce_levels(body)
    last, walked = max(levels), max((n for n, each in zip(levels, full) if each), default=0)
    return [n >= (walked if each else last) for n, each in zip(levels, full)]


def verify(kernel: Kernel, sizes: Sequence[Index | None] = ()) -> None:
    """Raise ``IllegalKernelError`` unless ``kernel`` obeys the rules of ``ir.py``.

    Args:
        kernel: what to check.
        sizes: how many elements each argument reaches over; with them, accesses are checked, too
            (see ``accesses.check_accesses``).
    """
    _Check(kernel).run()
    check_accesses(kernel, sizes)


class _Check:
    """Walks a kernel's body with what is known of the values before the one at ``position``.

    Attributes:
        dtypes: of each value; None for stores, which have none.
        follows: the axes that each value differs along.
        read, written: whether the body reads and writes each argument.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.rank = len(kernel.ranges)
        self.reduces = kernel.reduce_from < self.rank
        self.known = set(kernel.symbols)
        self.single = {axis for axis, size in enumerate(kernel.ranges) if size == ONE}
        self.position: int | None = None
        self.dtypes: list[torch.dtype | None] = []
        self.follows: list[set[int]] = []
        self.read = [False] * len(kernel.args)
        self.written = [False] * len(kernel.args)

    def run(self) -> None:
        kernel = self.kernel
        self.need(0 <= kernel.reduce_from <= self.rank, "reduce_from lies outside the ranges")
        self.need(len(self.known) == len(kernel.symbols), "symbols are not unique")
        for size in kernel.ranges:
            self.need(not has_var(size), "a range contains an iteration variable")
            self.need(symbols(size) <= self.known, "a range uses a symbol that is not an argument")
        for self.position, node in enumerate(kernel.body):
            self.dtypes.append(self.checked(node))
            self.follows.append(axes_of(node, self.follows, kernel.reduce_from, self.rank))
        self.position = None
        for number, buffer in enumerate(kernel.args):
            name = f"argument {number}"
            self.need(buffer.read == self.read[number], f"{name}: wrong read flag")
            self.need(buffer.written == self.written[number], f"{name}: wrong written flag")
            both = buffer.read and buffer.written
            self.need(buffer.inplace == both, f"{name}: read and written but not in place")
            if both:
                self.check_inplace(number, name)

    def need(self, ok: bool, rule: str) -> None:
        if not ok:
            at = self.position
            where = "" if at is None else f" at %{at}: {self.kernel.body[at]!r}"
            raise IllegalKernelError(f"{rule}{where}")

    # --- parts of nodes --------------------------------------------------------------------------
    def operand(self, value: int) -> torch.dtype:
        self.need(0 <= value < len(self.dtypes), "operand is not defined before its use")
        dtype = self.dtypes[value]
        self.need(dtype is not None, "operand has no value")
        assert dtype is not None
        return dtype

    def check_mask(self, mask: int | None) -> None:
        if mask is not None:
            self.need(self.operand(mask) is torch.bool, "mask is not bool")

    def check_index(self, index: Index) -> None:
        exist = all(0 <= axis < self.rank for axis in variables(index))
        self.need(exist, "index uses an axis that does not exist")
        self.need(symbols(index) <= self.known, "index uses a symbol that is not an argument")
        for leaf in loaded(index):
            self.operand(leaf.value)
            made = self.kernel.body[leaf.value]
            is_position = isinstance(made, Position) and made.extent == leaf.extent
            self.need(is_position, "index uses a value that is not such a position")
            inside = self.follows[leaf.value] <= {*leaf.axes, *self.single}
            self.need(inside, "position differs on more axes")

    def buffer(self, arg: int) -> torch.dtype:
        self.need(0 <= arg < len(self.kernel.args), "argument does not exist")
        return self.kernel.args[arg].dtype

    # --- nodes -----------------------------------------------------------------------------------
    def checked(self, node: Node) -> torch.dtype | None:
        """The dtype of the value of ``node``, which obeys the rules of its kind."""
        need = self.need
        match node:
            case IndexValue(index):
                self.check_index(index)
                need(node.dtype is torch.int64, "index values are int64")
            case ScalarArg(name):
                need(name in self.known, "scalar is not an argument")
            case Load(arg, index, dtype, mask):
                self.check_index(index)
                need(self.buffer(arg) is dtype, "load dtype is not the buffer's")
                self.check_mask(mask)
                self.read[arg] = True
            case Position(value, extent, _, _, mask):
                need(self.operand(value) is torch.int64, "position is not int64")
                need(symbols(extent) <= self.known and not has_var(extent), "wrong extent")
                self.check_mask(mask)
            case Compute():
                self.check_compute(node)
            case Reduce():
                self.check_reduce(node)
            case Scan(op, value):
                given = self.operand(value)
                need(given not in LOW_PRECISION, "scan in low precision")
                where = op in (ScanOp.ARGMAX, ScanOp.ARGMIN)
                need(node.dtype is (torch.int64 if where else given), "wrong dtype")
                need(self.reduces, "no axis to scan")
                mixed = any(isinstance(n, Reduce) for n in self.kernel.body)
                need(not mixed, "a kernel with scans and reductions")
            case Store(arg, index, value, mode):
                self.check_index(index)
                plain = mode is StoreMode.SET or not self.reduces
                need(plain, "points meet in a kernel with reductions")
                dtype = self.buffer(arg)
                need(dtype is self.operand(value), "store dtype is not the buffer's")
                self.written[arg] = True
                return None
        return node.dtype

    def check_compute(self, node: Compute) -> None:
        op, need = node.op, self.need
        given = [self.operand(a) for a in node.args]
        need(len(given) == _ARITY.get(op.value, 1), "wrong number of operands")
        if op is Op.CAST:
            return
        low = not LOW_PRECISION.isdisjoint((*given, node.dtype))
        need(not low, "arithmetic in low precision")
        if op is Op.WHERE:
            need(given[0] is torch.bool, "condition is not bool")
            given = given[1:]
        need(len(set(given)) == 1, "operands differ in dtype")
        if op in COMPARISONS or op in PREDICATES:
            need(node.dtype is torch.bool, "result is not bool")
        else:
            need(node.dtype is given[0], "result dtype is not the operands'")

    def check_reduce(self, node: Reduce) -> None:
        op, need, given = node.op, self.need, self.operand(node.value)
        need(given not in LOW_PRECISION, "reduction in low precision")
        if op in (ReduceOp.ARGMAX, ReduceOp.ARGMIN):
            need(node.dtype is torch.int64, "positions are int64")
        else:
            need(given is node.dtype, "reduction changes the dtype")
        if op in (ReduceOp.ANY, ReduceOp.ALL):
            need(given is torch.bool, "any/all take bool")
        need(self.reduces, "no reduction axis")

    def check_inplace(self, number: int, name: str) -> None:
        body = self.kernel.body
        stores = [n for n in body if isinstance(n, Store) and n.arg == number]
        self.need(len(stores) == 1, f"{name}: in place with several stores")
        self.need(stores[0].mode is StoreMode.SET, f"{name}: read where points meet")
        loads = [n for n in body if isinstance(n, Load) and n.arg == number]
        same = all(node.index == stores[0].index for node in loads)
        self.need(same, f"{name}: in place at another index")
        if self.reduces:
            last = read_before(body, full_values(self.kernel))[body.index(stores[0])]
            self.need(last, f"{name}: in place before the last pass")


def axes_of(node: Node, follows: Sequence[set[int]], reduce_from: int, rank: int) -> set[int]:
    """The axes that the value of ``node`` differs along, from those of the values before it."""
    if isinstance(node, Reduce):
        return set(range(reduce_from))
    if isinstance(node, Scan):
        return set(range(rank))
    found = set[int]().union(*(follows[a] for a in uses(node)))
    if isinstance(node, (Load, Store, IndexValue)):
        variables(node.index, found)
    return found


def uses(node: Node) -> tuple[int, ...]:
    """SSA ids that ``node`` reads."""
    match node:
        case Compute(_, args):
            return args
        case Load(_, index, _, mask):
            positions = _positions(index)
            return positions if mask is None else (*positions, mask)
        case IndexValue(index):
            return _positions(index)
        case Position(value=value, mask=mask):
            return (value,) if mask is None else (value, mask)
        case Reduce(value=value) | Scan(value=value):
            return (value,)
        case Store(_, index, value):
            return (*_positions(index), value)
    return ()


def _positions(index: Index) -> tuple[int, ...]:
    if type(index) is Var:
        return ()
    return tuple(leaf.value for leaf in loaded(index))
