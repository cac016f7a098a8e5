"""Which rows are too few and too long for one kernel to walk again what it has reduced.

A row is the work of one thread of a CPU, or of one program of a GPU; kernels of their own share out
what reads the reduced rows by elements.
"""

from __future__ import annotations

from torchsmith_fx_backend._src.loops import index as ix
from torchsmith_fx_backend._src.loops import verify
from torchsmith_fx_backend._src.loops.index import Const
from torchsmith_fx_backend._src.loops.ir import Load
from torchsmith_fx_backend._src.loops.nest import Nest

# Fewer rows that are at least so long are walked once: on a GPU, and elsewhere.
ROWS, OTHERS = {"cuda": (264, 1 << 15)}, (16, 1 << 16)
# On a GPU a program reduces some 64 rows together where they lie side by side in memory, as many
# elements of each at a time.
COLUMNS = {"cuda": (264 << 6, 1 << 9)}
# Walks over a row that is not held, each of which computes again what it reads: the code, and the
# time it takes to compile, grow with the square of their number.
MOST_WALKS = 4
HELD = {"cuda": 1 << 13}  # elements of a row that one program holds
SHARED, SHORT = 4, 1 << 10  # fewer rows, if they are longer, are shared out to the threads of a CPU


def too_few(device: str, rows: int, length: int, *, columns: bool) -> bool:
    """Whether so many rows of this length leave most of a device idle.

    Args:
        device: its type.
        rows: their number.
        length: elements of a row.
        columns: whether elements of different rows are the neighbours in memory.
    """
    usual = ROWS.get(device, OTHERS)
    fewer, longer = COLUMNS.get(device, usual) if columns else usual
    return rows < fewer and length >= longer


def leaves_idle(nest: Nest, *, columns: bool = False) -> bool:
    """Whether a nest reduces so few and long rows, or would once it reads something in which
    elements of different rows are the neighbours (``columns``)."""
    if not nest.reduced:
        return False
    device, rows, length = nest.device.type, nest.numel(nest.outer_axes()), nest.numel(nest.reduced)
    if type(rows) is not Const or type(length) is not Const:
        return False
    size = device, rows.value, length.value
    if too_few(*size, columns=False):
        return True
    return too_few(*size, columns=True) and (columns or _reads_columns(nest))


def walks_again(nest: Nest) -> bool:
    """Whether a nest walks such rows again after a reduction, or others too often."""
    if not leaves_idle(nest):
        return walks_often(nest, MOST_WALKS + 1)
    return verify.walks_again(nest.nodes, verify.varying(nest.nodes, nest.reduced or ()))


def walks_often(nest: Nest, often: int = MOST_WALKS) -> bool:
    """Whether so many reductions of a row that is not held lie one after the other."""
    return not _held(nest) and max(verify.reduce_levels(nest.nodes), default=0) >= often


def _held(nest: Nest) -> bool:
    """Whether a kernel keeps what it has computed of a row, or walks it once."""
    if not nest.reduced:
        return True
    rows, length = nest.numel(nest.outer_axes()), nest.numel(nest.reduced)
    if nest.device.type in HELD:
        return type(length) is Const and length.value <= HELD[nest.device.type]
    shared = type(rows) is Const and rows.value < SHARED
    return not shared or (type(length) is Const and length.value <= SHORT)


def _reads_columns(nest: Nest) -> bool:
    """Whether something that varies along the reduced rows is read across them."""
    axes = set(nest.reduced or ())
    for node in nest.nodes:
        if isinstance(node, Load) and not axes.isdisjoint(variables := ix.variables(node.index)):
            near = [axis for axis in variables if ix.coefficient(node.index, axis) == ix.ONE]
            if near and axes.isdisjoint(near):
                return True
    return False
