"""The loop IR: a kernel is iteration ranges plus an SSA list of scalar operations.

Everything here is frozen data. A ``Kernel`` says *what* is computed at each point of its iteration
space; how the space is walked (vector lanes, threads, tiles, one pass or two) is the business of a
schedule in ``codegen``. Two kernels that compute the same thing compare equal: names are positions
(buffer arguments ``0..n-1``, SSA values by list index), so equal layers share one kernel.

Iteration space
    ``ranges[:reduce_from]`` are the outer axes, ``ranges[reduce_from:]`` the reduction axes.
    A kernel without reduction has ``reduce_from == len(ranges)``. An SSA value is *full* when it
    depends on a reduction axis (through an index or an operand) and *outer* otherwise; a
    ``Reduce`` consumes a full (or outer, which then counts every point) value and is outer.
    Later operations may combine outer and full values, which is how softmax and layer norm are
    one kernel. A store happens at each point when its value *or its index* is full, otherwise once
    per outer point. ``verify.full_values`` tells which is which, ``verify.reduce_levels`` how many
    passes over a row a plain loop needs.

Numerics
    Values of type bfloat16/float16 are only ever loaded, cast to float32, and cast back right
    before a store: arithmetic never happens in low precision. Integer arithmetic wraps in its own
    dtype. There is no fast-math: NaN and inf behave as in aten.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import torch

from torchsmith_fx_backend._src.loops.index import Index, const

Size = Index  # a Const or an expression over Sym; never contains Var


class Op(Enum):
    """Scalar operations. Operand and result dtypes are equal unless the comment says otherwise."""

    # arithmetic, float and int
    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"  # float only: true division
    FLOORDIV = "floordiv"  # rounds to minus infinity
    TRUNCDIV = "truncdiv"  # rounds to zero
    MOD = "mod"  # sign of the divisor, as Python and torch.remainder
    FMOD = "fmod"  # sign of the dividend, as C
    NEG = "neg"
    ABS = "abs"
    MINIMUM = "minimum"  # propagates NaN
    MAXIMUM = "maximum"  # propagates NaN
    POW = "pow"
    FMA = "fma"  # a * b + c, may or may not round in between
    # float functions
    EXP = "exp"
    EXP2 = "exp2"
    EXPM1 = "expm1"
    LOG = "log"
    LOG2 = "log2"
    LOG1P = "log1p"
    SQRT = "sqrt"
    RSQRT = "rsqrt"
    SIN = "sin"
    COS = "cos"
    TANH = "tanh"
    ERF = "erf"
    # float functions that only kernels for a GPU have
    TAN = "tan"
    ASIN = "asin"
    ACOS = "acos"
    ATAN = "atan"
    ATAN2 = "atan2"
    SINH = "sinh"
    ASINH = "asinh"
    ACOSH = "acosh"
    ATANH = "atanh"
    ERFC = "erfc"
    LGAMMA = "lgamma"
    # more float functions
    SIGMOID = "sigmoid"
    RECIPROCAL = "reciprocal"
    FLOOR = "floor"
    CEIL = "ceil"
    TRUNC = "trunc"
    ROUND = "round"  # half to even
    ISNAN = "isnan"  # -> bool
    ISINF = "isinf"  # -> bool
    # bits and logic
    AND = "and"  # int and bool: bitwise
    OR = "or"
    XOR = "xor"
    NOT = "not"
    SHL = "shl"
    SHR = "shr"
    # comparisons -> bool
    EQ = "eq"
    NE = "ne"
    LT = "lt"
    LE = "le"
    GT = "gt"
    GE = "ge"
    WHERE = "where"  # (bool, T, T) -> T
    CAST = "cast"  # any -> node.dtype, as Tensor.to


# Functions of one number that a GPU's library has; on a CPU aten's vectors are faster than loops.
LIBRARY = tuple(map(Op, "tan asin acos atan sinh asinh acosh atanh erfc lgamma".split()))

# How C and Python write operations alike.
INFIX: dict[Op, str] = {
    Op.ADD: "+",
    Op.SUB: "-",
    Op.MUL: "*",
    Op.DIV: "/",
    Op.AND: "&",
    Op.OR: "|",
    Op.XOR: "^",
    Op.EQ: "==",
    Op.NE: "!=",
    Op.LT: "<",
    Op.LE: "<=",
    Op.GT: ">",
    Op.GE: ">=",
}


class ReduceOp(Enum):
    """Reductions over all reduction axes. Result dtype is the operand's."""

    SUM = "sum"
    PROD = "prod"
    MAX = "max"  # propagates NaN
    MIN = "min"  # propagates NaN
    ANY = "any"  # bool
    ALL = "all"  # bool
    ARGMAX = (
        "argmax"  # -> int64, flat position within the reduction axes, first of equals, NaN wins
    )
    ARGMIN = "argmin"

    def identity(self, dtype: torch.dtype) -> float | int | bool:
        """The value that leaves a reduction of ``dtype`` unchanged."""
        if self in (ReduceOp.SUM, ReduceOp.PROD):
            start = int(self is ReduceOp.PROD)
            return float(start) if dtype.is_floating_point else start
        if self in (ReduceOp.ANY, ReduceOp.ALL):
            return self is ReduceOp.ALL
        low = self in (ReduceOp.MAX, ReduceOp.ARGMAX)
        if dtype is torch.bool:
            return not low
        if dtype.is_floating_point:
            return -torch.inf if low else torch.inf
        return int(torch.iinfo(dtype).min if low else torch.iinfo(dtype).max)


class ScanOp(Enum):
    """Inclusive scans along the reduction axes, row-major. Result dtype is the operand's."""

    SUM = "sum"
    PROD = "prod"
    MAX = "max"  # NaN stays
    MIN = "min"  # NaN stays
    ARGMAX = "argmax"  # -> int64, flat position so far, last of equals, NaN wins
    ARGMIN = "argmin"
    LOGSUMEXP = "logsumexp"


@dataclass(frozen=True, slots=True, eq=False)
class Literal:
    """A scalar constant of ``dtype``. Equality is by text: 0.0 is not -0.0, NaN is NaN."""

    value: float | int | bool
    dtype: torch.dtype

    def __eq__(self, other: object) -> bool:
        if type(other) is not Literal:
            return NotImplemented
        return self.dtype is other.dtype and repr(self.value) == repr(other.value)

    def __hash__(self) -> int:
        return hash((repr(self.value), self.dtype))


@dataclass(frozen=True, slots=True)
class IndexValue:
    """The value of an index expression at this point (``arange``), as int64."""

    index: Index
    dtype: torch.dtype  # always torch.int64


@dataclass(frozen=True, slots=True)
class ScalarArg:
    """A size symbol or Python number handed in at launch (a scalar of the graph), as ``dtype``."""

    name: str
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Load:
    """Read ``kernel.args[arg]`` at element offset ``index``.

    With ``mask`` (an SSA id of a bool value) the memory is only touched where the mask is true;
    elsewhere the value is zero.
    """

    arg: int
    index: Index
    dtype: torch.dtype
    mask: int | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """What a launch raises when a position lies outside: an exception's name and its message.

    The message may hold ``{index}`` and ``{size}``.
    """

    error: str
    message: str


@dataclass(frozen=True, slots=True)
class Position:
    """The int64 SSA value ``value`` as a position in ``0 .. extent-1``, for ``index.Loaded``.

    With ``wrap``, negative values count from the end first. A value outside becomes position 0 and
    makes the launch raise ``fault`` when it is done; without a fault it becomes the nearest
    position. With ``mask`` the value only counts where that is true; elsewhere the position is 0.
    """

    value: int
    extent: Size
    fault: Fault | None = None
    wrap: bool = False
    mask: int | None = None
    dtype: torch.dtype = torch.int64


@dataclass(frozen=True, slots=True)
class Compute:
    """Apply ``op`` to SSA values ``args``; ``dtype`` is the result's."""

    op: Op
    args: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Reduce:
    """Reduce SSA value ``value`` over every reduction axis of the kernel."""

    op: ReduceOp
    value: int
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Scan:
    """Combine SSA value ``value`` at this point and at those before it in its row.

    The value is full. A kernel has reductions or scans, not both.
    """

    op: ScanOp
    value: int
    dtype: torch.dtype


class StoreMode(Enum):
    """What a store does with what is there. Points that meet at one offset come in row-major order
    of the iteration space if the mode is ``ordered``. A bool counts as a number of one bit."""

    SET = "set"  # which point's value stays is not said
    SUM = "sum"  # added in any order: numbers that a GPU adds in one step
    LAST = "last"  # the last point's value stays
    ADD = "add"  # rounded to the buffer's dtype after each point
    MUL = "mul"
    MAX = "max"  # propagates NaN
    MIN = "min"  # propagates NaN

    @property
    def ordered(self) -> bool:
        """Whether what stays depends on the order in which points come."""
        return self not in (StoreMode.SET, StoreMode.SUM)


@dataclass(frozen=True, slots=True)
class Store:
    """Write SSA value ``value`` to ``kernel.args[arg]`` at element offset ``index``. No result."""

    arg: int
    index: Index
    value: int
    mode: StoreMode = StoreMode.SET


Node = Literal | IndexValue | ScalarArg | Load | Position | Compute | Reduce | Scan | Store


def as_index(node: object) -> Index | None:
    """The int64 value of a node as an index expression, if it is one."""
    match node:
        case IndexValue(index):
            return index
        case Literal(int(value), torch.int64):
            return const(value)
    return None


@dataclass(frozen=True, slots=True)
class BufferArg:
    """One pointer argument. ``written``: some Store targets it; ``read``: some Load does.

    ``inplace``: it is read and written, and every load happens at the very index that the same
    point stores later, so lanes may run in any order. In a kernel with reductions no pass over the
    row follows the store's (see ``verify.read_before``), so none sees new values.
    """

    dtype: torch.dtype
    read: bool
    written: bool
    inplace: bool = False


@dataclass(frozen=True, slots=True)
class Kernel:
    """A loop nest over ``ranges`` that evaluates ``body`` at each point. See the module docstring.

    Attributes:
        ranges: extents, outer axes first; ``Const`` or expressions over ``Sym``. Row-major order:
            the last axis varies fastest and is the one that vectorises.
        reduce_from: index of the first reduction axis.
        body: SSA list; an operand id is the list index of an earlier node.
        args: pointer arguments in launch order.
        symbols: names of size symbols (and scalar args) in launch order, after the pointers.
    """

    ranges: tuple[Size, ...]
    reduce_from: int
    body: tuple[Node, ...]
    args: tuple[BufferArg, ...]
    symbols: tuple[str, ...]
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __hash__(self) -> int:
        if not self._hash:  # asked for at each of many equal launches
            own = hash((self.ranges, self.reduce_from, self.body, self.args, self.symbols))
            object.__setattr__(self, "_hash", own)
        return self._hash

    @property
    def floating(self) -> set[str]:
        """Those of its symbols that are no integers."""
        scalars = (n for n in self.body if isinstance(n, ScalarArg))
        return {n.name for n in scalars if n.dtype.is_floating_point}

    @property
    def scans(self) -> bool:
        """Whether its rows are walked in order."""
        return any(isinstance(n, Scan) for n in self.body)

    @property
    def faults(self) -> tuple[Fault, ...]:
        """What a launch may raise, each once."""
        found = (n.fault for n in self.body if isinstance(n, Position) and n.fault is not None)
        return tuple(dict.fromkeys(found))
