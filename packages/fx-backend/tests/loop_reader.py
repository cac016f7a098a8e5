"""Reads a kernel back from what ``records.kernels.print_kernel`` printed, by running it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torchsmith_fx_backend._src.loops import index as ix
from torchsmith_fx_backend._src.loops.index import Index
from torchsmith_fx_backend._src.loops.ir import (
    BufferArg,
    Compute,
    Fault,
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
from torchsmith_fx_backend._src.loops.verify import COMPARISONS, PREDICATES, axes_of


class _Text:
    """An index expression while a printed kernel is run: Python operators build it."""

    def __init__(self, index: Index) -> None:
        self.index = index

    def __add__(self, other: _Text | int) -> _Text:
        return _Text(ix.add(self.index, _index(other)))

    def __mul__(self, other: _Text | int) -> _Text:
        return _Text(ix.mul(self.index, _index(other)))

    def __floordiv__(self, other: _Text | int) -> _Text:
        return _Text(ix.FloorDiv(self.index, _index(other)))

    def __mod__(self, other: _Text | int) -> _Text:
        return _Text(ix.Mod(self.index, _index(other)))

    __radd__ = __add__
    __rmul__ = __mul__


def _index(value: _Text | int) -> Index:
    return value.index if isinstance(value, _Text) else ix.const(value)


class _Reader:
    def __init__(self) -> None:
        self.body: list[Node] = []
        self.follows: list[set[int]] = []
        self.reduce_from = self.rank = 0
        self.buffers: list[BufferArg] = []
        self.result: Kernel | None = None

    def push(self, node: Node) -> int:
        self.body.append(node)
        self.follows.append(axes_of(node, self.follows, self.reduce_from, self.rank))
        return len(self.body) - 1

    def position(
        self,
        value: int,
        extent: _Text | int,
        error: str | None = None,
        message: str = "",
        wrap: bool = False,
        mask: int | None = None,
    ) -> int:
        fault = None if error is None else Fault(error, message)
        return self.push(Position(value, _index(extent), fault, wrap, mask))

    def at(self, value: int) -> _Text:
        node = self.body[value]
        assert isinstance(node, Position)
        return _Text(ix.Loaded(value, node.extent, tuple(sorted(self.follows[value]))))

    def dtype(self, value: int) -> torch.dtype:
        node = self.body[value]
        assert not isinstance(node, Store)
        return node.dtype

    def compute(self, op: Op) -> Callable[..., int]:
        def emit(*args: int) -> int:
            truth = op in COMPARISONS or op in PREDICATES
            dtype = torch.bool if truth else self.dtype(args[-1])
            return self.push(Compute(op, args, dtype))

        return emit

    def reduce(self, op: ReduceOp) -> Callable[[int], int]:
        position = op in (ReduceOp.ARGMAX, ReduceOp.ARGMIN)
        return lambda value: self.push(
            Reduce(op, value, torch.int64 if position else self.dtype(value))
        )

    def scan(self, op: ScanOp) -> Callable[[int], int]:
        position = op in (ScanOp.ARGMAX, ScanOp.ARGMIN)
        return lambda value: self.push(
            Scan(op, value, torch.int64 if position else self.dtype(value))
        )

    def kernel(
        self,
        ranges: tuple[_Text | int, ...],
        reduce_from: int,
        args: tuple[str, ...],
        symbols: tuple[str, ...],
    ) -> Callable[[Callable[..., None]], None]:
        for text in args:
            dtype, *words = text.split()
            flags = dict.fromkeys(words, True)
            read, written = flags.pop("read", False), flags.pop("written", False)
            self.buffers.append(BufferArg(getattr(torch, dtype), read, written, **flags))

        self.reduce_from, self.rank = reduce_from, len(ranges)

        def run(function: Callable[..., None]) -> None:
            axes = [_Text(ix.var(i)) for i in range(len(ranges))]
            function(*range(len(args)), *axes)
            self.result = Kernel(
                tuple(map(_index, ranges)),
                reduce_from,
                tuple(self.body),
                tuple(self.buffers),
                symbols,
            )

        return run


def read_kernel(text: str) -> Kernel:
    """The kernel that ``print_kernel`` printed. Runs the text: only for text of our own."""
    reader = _Reader()
    names: dict[str, object] = {
        "symbol": symbol,
        "kernel": reader.kernel,
        "literal": lambda v, d: reader.push(Literal(v, getattr(torch, d))),
        "index": lambda i: reader.push(IndexValue(_index(i), torch.int64)),
        "scalar": lambda n, d: reader.push(ScalarArg(n, getattr(torch, d))),
        "load": lambda a, i, mask=None: reader.push(
            Load(a, _index(i), reader.buffers[a].dtype, mask)
        ),
        "cast": lambda v, d: reader.push(Compute(Op.CAST, (v,), getattr(torch, d))),
        "position": reader.position,
        "at": reader.at,
        "store": lambda a, i, v, mode="set": reader.push(Store(a, _index(i), v, StoreMode(mode))),
    }
    for op in Op:
        if op is not Op.CAST:
            names[f"{op.value}_" if op in (Op.AND, Op.OR, Op.NOT) else op.value] = reader.compute(
                op
            )
    for reduce_op in ReduceOp:
        names[f"reduce_{reduce_op.value}"] = reader.reduce(reduce_op)
    for scan_op in ScanOp:
        names[f"scan_{scan_op.value}"] = reader.scan(scan_op)
    known = _Symbols(names)
    exec(compile(text, "<kernel>", "exec"), known)
    assert reader.result is not None
    return reader.result


class _Symbols(dict[str, object]):
    """A namespace in which every unknown name is a size symbol."""

    def __missing__(self, name: str) -> object:
        if name in ("float", "__builtins__"):
            raise KeyError(name)
        return _Text(ix.Sym(name))


def symbol(name: str, low: int | None, high: int | None) -> _Text:
    return _Text(ix.Sym(name, low, high))
