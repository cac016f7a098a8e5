"""Check that a kernel is legal loop IR. Runs in tests and under ``TORCHSMITH_VERIFY=1``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

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
            *("add", "sub", "mul", "div", "floordiv", "truncdiv", "mod", "fmod", "pow"),
            *("minimum", "maximum", "and", "or", "xor", "shl", "shr"),
            *("eq", "ne", "lt", "le", "gt", "ge"),
        ),
        2,
    ),
    "fma": 3,
    "where": 3,
}


class NeedFn(Protocol):
    """The check callback of ``verify``."""

    def __call__(self, ok: bool, rule: str, position: int | None = None) -> None: ...


def full_values(kernel: Kernel) -> list[bool]:
    """For each node of the body: whether its value differs along a reduction axis.

    For a ``Store`` it says whether it happens at every point (value or index is full) rather than
    once per outer point.
    """
    start = kernel.reduce_from
    full: list[bool] = []
    for node in kernel.body:
        match node:
            case Load() | Store() | IndexValue():
                value = any(axis >= start for axis in variables(node.index))
                value = value or any(full[a] for a in uses(node))
            case Reduce():
                value = False
            case Scan():
                value = True
            case _:
                value = any(full[a] for a in uses(node))
        full.append(value)
    return full


def reduce_levels(kernel: Kernel) -> list[int]:
    """For each node: how many reductions lie one after the other before it.

    A printer that walks a row several times handles the full values of level ``n`` in pass ``n``.
    """
    levels: list[int] = []
    for node in kernel.body:
        level = max((levels[a] for a in uses(node)), default=0)
        levels.append(level + 1 if isinstance(node, Reduce) else level)
    return levels


def verify(kernel: Kernel, sizes: Sequence[Index | None] = ()) -> None:
    """Raise ``IllegalKernelError`` unless ``kernel`` obeys the rules of ``ir.py``.

    Args:
        kernel: what to check.
        sizes: how many elements each argument reaches over; with them, accesses are checked, too
            (see ``accesses.check_accesses``).
    """

    def need(ok: bool, rule: str, position: int | None = None) -> None:
        if not ok:
            where = "" if position is None else f" at %{position}: {kernel.body[position]!r}"
            raise IllegalKernelError(f"{rule}{where}")

    need(0 <= kernel.reduce_from <= len(kernel.ranges), "reduce_from lies outside the ranges")
    known = set(kernel.symbols)
    need(len(known) == len(kernel.symbols), "symbols are not unique")
    for size in kernel.ranges:
        need(not has_var(size), "a range contains an iteration variable")
        need(symbols(size) <= known, "a range uses a symbol that is not an argument")

    single = {axis for axis, size in enumerate(kernel.ranges) if size == ONE}

    def check_index(index: Index, position: int) -> None:
        need(
            all(0 <= axis < len(kernel.ranges) for axis in variables(index)),
            "index uses an axis that does not exist",
            position,
        )
        need(symbols(index) <= known, "index uses a symbol that is not an argument", position)
        for leaf in loaded(index):
            operand(leaf.value, position)
            made = kernel.body[leaf.value]
            is_position = isinstance(made, Position) and made.extent == leaf.extent
            need(is_position, "index uses a value that is not such a position", position)
            need(
                follows[leaf.value] <= {*leaf.axes, *single},
                "position differs on more axes",
                position,
            )

    dtypes: list[torch.dtype | None] = []
    follows: list[set[int]] = []  # axes that each value differs along
    read = [False] * len(kernel.args)
    written = [False] * len(kernel.args)

    def operand(value: int, position: int) -> torch.dtype:
        need(0 <= value < position, "operand is not defined before its use", position)
        dtype = dtypes[value]
        need(dtype is not None, "operand has no value", position)
        assert dtype is not None
        return dtype

    for position, node in enumerate(kernel.body):
        dtype: torch.dtype | None = None
        match node:
            case Literal():
                dtype = node.dtype
            case IndexValue(index):
                check_index(index, position)
                need(node.dtype is torch.int64, "index values are int64", position)
                dtype = node.dtype
            case ScalarArg(name):
                need(name in known, "scalar is not an argument", position)
                dtype = node.dtype
            case Load(arg, index, dtype, mask):
                check_index(index, position)
                need(0 <= arg < len(kernel.args), "argument does not exist", position)
                need(kernel.args[arg].dtype is dtype, "load dtype is not the buffer's", position)
                if mask is not None:
                    need(operand(mask, position) is torch.bool, "mask is not bool", position)
                read[arg] = True
            case Position(value, extent, _, _, mask):
                need(operand(value, position) is torch.int64, "position is not int64", position)
                need(symbols(extent) <= known and not has_var(extent), "wrong extent", position)
                if mask is not None:
                    need(operand(mask, position) is torch.bool, "mask is not bool", position)
                dtype = node.dtype
            case Compute():
                _check_compute(node, [operand(a, position) for a in node.args], need, position)
                dtype = node.dtype
            case Reduce(op, value):
                given = operand(value, position)
                need(given not in LOW_PRECISION, "reduction in low precision", position)
                if op in (ReduceOp.ARGMAX, ReduceOp.ARGMIN):
                    need(node.dtype is torch.int64, "positions are int64", position)
                else:
                    need(given is node.dtype, "reduction changes the dtype", position)
                if op in (ReduceOp.ANY, ReduceOp.ALL):
                    need(given is torch.bool, "any/all take bool", position)
                need(kernel.reduce_from < len(kernel.ranges), "no reduction axis", position)
                dtype = node.dtype
            case Scan(op, value):
                given = operand(value, position)
                need(given not in LOW_PRECISION, "scan in low precision", position)
                where = op in (ScanOp.ARGMAX, ScanOp.ARGMIN)
                need(node.dtype is (torch.int64 if where else given), "wrong dtype", position)
                need(kernel.reduce_from < len(kernel.ranges), "no axis to scan", position)
                mixed = any(isinstance(n, Reduce) for n in kernel.body)
                need(not mixed, "a kernel with scans and reductions", position)
                dtype = node.dtype
            case Store(arg, index, value, mode):
                check_index(index, position)
                plain = mode is StoreMode.SET or kernel.reduce_from == len(kernel.ranges)
                need(plain, "points meet in a kernel with reductions", position)
                need(0 <= arg < len(kernel.args), "argument does not exist", position)
                given = operand(value, position)
                need(kernel.args[arg].dtype is given, "store dtype is not the buffer's", position)
                written[arg] = True
        dtypes.append(dtype)
        follows.append(axes_of(node, follows, kernel.reduce_from, len(kernel.ranges)))
    for number, buffer in enumerate(kernel.args):
        need(buffer.read == read[number], f"argument {number}: wrong read flag")
        need(buffer.written == written[number], f"argument {number}: wrong written flag")
        both = buffer.read and buffer.written
        need(buffer.inplace == both, f"argument {number}: read and written but not in place")
        if both:
            _check_inplace(kernel, number, need)
    check_accesses(kernel, sizes)


def _check_compute(node: Compute, given: list[torch.dtype], need: NeedFn, position: int) -> None:
    op = node.op
    need(len(given) == _ARITY.get(op.value, 1), "wrong number of operands", position)
    if op is Op.CAST:
        return
    need(
        not any(d in LOW_PRECISION for d in (*given, node.dtype)),
        "arithmetic in low precision",
        position,
    )
    if op is Op.WHERE:
        need(given[0] is torch.bool, "condition is not bool", position)
        given = given[1:]
    need(len(set(given)) == 1, "operands differ in dtype", position)
    if op in COMPARISONS or op in PREDICATES:
        need(node.dtype is torch.bool, "result is not bool", position)
    else:
        need(node.dtype is given[0], "result dtype is not the operands'", position)


def _check_inplace(kernel: Kernel, number: int, need: NeedFn) -> None:
    stores = [n for n in kernel.body if isinstance(n, Store) and n.arg == number]
    need(len(stores) == 1, f"argument {number}: in place with several stores")
    need(stores[0].mode is StoreMode.SET, f"argument {number}: read where points meet")
    for node in kernel.body:
        if isinstance(node, Load) and node.arg == number:
            need(node.index == stores[0].index, f"argument {number}: in place at another index")
    if kernel.reduce_from < len(kernel.ranges):
        levels = reduce_levels(kernel)
        store = kernel.body.index(stores[0])
        need(levels[store] == max(levels), f"argument {number}: in place before the last level")


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
