"""Kernels as Python text that a person reads. It also runs: the tests read kernels back from it.

Printed for ``TORCHSMITH_LOGS=loops``::

    @kernel(ranges=(10, 16), reduce_from=1, args=("float32 read", "float32 written"), symbols=())
    def _(a0, a1, i0, i1):
        v0 = load(a0, 16 * i0 + i1)
        v1 = reduce_max(v0)
        ...
        store(a1, 16 * i0 + i1, v5)
"""

from __future__ import annotations

import torch

from torchsmith_fx_backend._src.loops import index as ix
from torchsmith_fx_backend._src.loops.index import Index
from torchsmith_fx_backend._src.loops.ir import (
    BufferArg,
    Compute,
    IndexValue,
    Kernel,
    Literal,
    Load,
    Node,
    Op,
    Position,
    Reduce,
    ScalarArg,
    Scan,
    Store,
    StoreMode,
)


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _argument(arg: BufferArg) -> str:
    words = [_dtype(arg.dtype)]
    words += [word for word in ("read", "written", "inplace") if getattr(arg, word)]
    return repr(" ".join(words))


def print_node(node: Node) -> str:
    """One SSA operation, without its name."""
    match node:
        case Literal(value, dtype):
            text = (
                f"float({str(value)!r})" if value != value or abs(value) == float("inf") else value
            )
            return f"literal({text}, {_dtype(dtype)!r})"
        case IndexValue(index):
            return f"index({index})"
        case ScalarArg(name, dtype):
            return f"scalar({name!r}, {_dtype(dtype)!r})"
        case Load(arg, index, _, mask):
            guard = "" if mask is None else f", mask=v{mask}"
            return f"load(a{arg}, {index}{guard})"
        case Position(value, extent, fault, wrap, mask):
            words = [f"v{value}", str(extent)]
            words += [] if fault is None else [repr(fault.error), repr(fault.message)]
            words += ["wrap=True"] if wrap else []
            words += [] if mask is None else [f"mask=v{mask}"]
            return f"position({', '.join(words)})"
        case Compute(Op.CAST, (value,), dtype):
            return f"cast(v{value}, {_dtype(dtype)!r})"
        case Compute(op, args, _):
            name = f"{op.value}_" if op in (Op.AND, Op.OR, Op.NOT) else op.value
            return f"{name}({', '.join(f'v{a}' for a in args)})"
        case Reduce(op, value, _):
            return f"reduce_{op.value}(v{value})"
        case Scan(op, value, _):
            return f"scan_{op.value}(v{value})"
        case Store(arg, index, value, mode):
            how = "" if mode is StoreMode.SET else f", {mode.value!r}"
            return f"store(a{arg}, {index}, v{value}{how})"


def _expressions(kernel: Kernel) -> list[Index]:
    indices = [n.index for n in kernel.body if isinstance(n, (Load, Store, IndexValue))]
    return indices + [n.extent for n in kernel.body if isinstance(n, Position)]


def print_kernel(kernel: Kernel) -> str:
    """``kernel`` as Python text; see the module docstring."""
    ranges = ", ".join(map(str, kernel.ranges)) + ("," if len(kernel.ranges) == 1 else "")
    args = ", ".join(map(_argument, kernel.args)) + ("," if len(kernel.args) == 1 else "")
    names = [f"a{i}" for i in range(len(kernel.args))]
    names += [f"i{i}" for i in range(len(kernel.ranges))]
    lines = [
        f"{s.name} = symbol({s.name!r}, {s.low}, {s.high})"
        for s in ix.symbol_nodes([*kernel.ranges, *_expressions(kernel)])
        if s != ix.Sym(s.name)
    ]
    lines += [
        f"@kernel(ranges=({ranges}), reduce_from={kernel.reduce_from}, args=({args}), "
        f"symbols={kernel.symbols!r})",
        f"def _({', '.join(names)}):",
    ]
    for position, node in enumerate(kernel.body):
        name = "" if isinstance(node, Store) else f"v{position} = "
        lines.append(f"    {name}{print_node(node)}")
    if not kernel.body:
        lines.append("    pass")
    return "\n".join(lines) + "\n"
