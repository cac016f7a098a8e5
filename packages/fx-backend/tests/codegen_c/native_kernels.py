"""Builds small kernels and runs them as compiled C, shared by the tests of the C printer."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Mapping, Sequence

import torch
from loop_reference import evaluate
from torchsmith_fx_backend._src.codegen.c import kernel_function
from torchsmith_fx_backend._src.loops.index import Index, Sym, add, const, mul, product, var
from torchsmith_fx_backend._src.loops.ir import (
    BufferArg,
    Compute,
    IndexValue,
    Kernel,
    Literal,
    Load,
    Node,
    Op,
    Reduce,
    ReduceOp,
    ScalarArg,
    Store,
)
from torchsmith_fx_backend._src.loops.verify import verify
from torchsmith_fx_backend._src.runtime.cache import Cache
from torchsmith_fx_backend._src.runtime.launchers import KernelRequest
from torchsmith_fx_backend._src.runtime.native import NativeLauncher

CPU = torch.device("cpu")
f32, f64, i64 = torch.float32, torch.float64, torch.int64
PREDICATES = {Op.EQ, Op.NE, Op.LT, Op.LE, Op.GT, Op.GE, Op.ISNAN, Op.ISINF}


class Body:
    """A kernel body in the making; each method returns the new SSA id."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.dtypes: list[torch.dtype] = []

    def push(self, node: Node, dtype: torch.dtype) -> int:
        self.nodes.append(node)
        self.dtypes.append(dtype)
        return len(self.nodes) - 1

    def load(
        self, arg: int, index: Index, dtype: torch.dtype = f32, mask: int | None = None
    ) -> int:
        return self.push(Load(arg, index, dtype, mask), dtype)

    def store(self, arg: int, index: Index, value: int) -> int:
        return self.push(Store(arg, index, value), self.dtypes[value])

    def literal(self, value: float, dtype: torch.dtype = f32) -> int:
        return self.push(Literal(value, dtype), dtype)

    def index(self, index: Index) -> int:
        return self.push(IndexValue(index, i64), i64)

    def scalar(self, name: str, dtype: torch.dtype) -> int:
        return self.push(ScalarArg(name, dtype), dtype)

    def op(self, op: Op, *args: int, dtype: torch.dtype | None = None) -> int:
        kind = dtype or (torch.bool if op in PREDICATES else self.dtypes[args[-1]])
        return self.push(Compute(op, args, kind), kind)

    def cast(self, value: int, dtype: torch.dtype) -> int:
        return self.op(Op.CAST, value, dtype=dtype)

    def reduce(self, op: ReduceOp, value: int) -> int:
        position = op in (ReduceOp.ARGMAX, ReduceOp.ARGMIN)
        dtype = i64 if position else self.dtypes[value]
        return self.push(Reduce(op, value, dtype), dtype)

    def kernel(
        self,
        ranges: Sequence[int | str],
        reduce_from: int | None = None,
        symbols: Sequence[str] = (),
    ) -> Kernel:
        """The verified kernel; argument flags follow from the loads and stores."""
        dtypes: dict[int, torch.dtype] = {}
        read, written = set(), set()
        for node, dtype in zip(self.nodes, self.dtypes):
            if isinstance(node, (Load, Store)):
                dtypes[node.arg] = dtype
                (read if isinstance(node, Load) else written).add(node.arg)
        args = tuple(
            BufferArg(dtypes[n], n in read, n in written, n in read and n in written)
            for n in sorted(dtypes)
        )
        start = len(ranges) if reduce_from is None else reduce_from
        kernel = Kernel(sizes(ranges), start, tuple(self.nodes), args, tuple(symbols))
        verify(kernel)
        return kernel


def sizes(ranges: Sequence[int | str]) -> tuple[Index, ...]:
    return tuple(const(r) if isinstance(r, int) else Sym(r) for r in ranges)


def row_major(ranges: Sequence[int | str], axes: Sequence[int] | None = None) -> Index:
    """Offset in a dense tensor over ``axes`` (all by default) of the iteration space."""
    extents = sizes(ranges)
    chosen = list(range(len(ranges))) if axes is None else list(axes)
    terms = []
    for place, axis in enumerate(chosen):
        terms.append(mul(var(axis), product([extents[a] for a in chosen[place + 1 :]])))
    return add(*terms)


@functools.cache
def launcher() -> tuple[NativeLauncher, Cache]:
    """One launcher for all tests of a process, with a cache of its own."""
    return NativeLauncher(), Cache(tempfile.mkdtemp(prefix="torchsmith-test-"))


def run(
    kernel: Kernel, tensors: Sequence[torch.Tensor], symbols: Mapping[str, float] | None = None
) -> None:
    """Compile ``kernel`` and run it on ``tensors`` in place."""
    native, cache = launcher()
    (loaded,) = native.load([KernelRequest(kernel, CPU)], cache)
    values = [(symbols or {})[name] for name in kernel.symbols]
    loaded.launch(*(t.data_ptr() for t in tensors), *values)


def check(
    kernel: Kernel,
    tensors: Sequence[torch.Tensor],
    symbols: Mapping[str, float] | None = None,
    *,
    rtol: float = 2e-6,
    atol: float = 1e-6,
) -> list[torch.Tensor]:
    """Compiled C and the reference evaluator must leave the same values in all buffers."""
    expected = [t.clone(memory_format=torch.preserve_format) for t in tensors]
    given = [t.clone(memory_format=torch.preserve_format) for t in tensors]
    evaluate(kernel, expected, symbols)
    run(kernel, given, symbols)
    for number, (want, got) in enumerate(zip(expected, given)):
        exact = not want.dtype.is_floating_point
        unit = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}.get(want.dtype, rtol)
        torch.testing.assert_close(
            got,
            want,
            rtol=0 if exact else max(rtol, unit),
            atol=0 if exact else atol,
            equal_nan=True,
            msg=lambda m, n=number: f"buffer {n}: {m}\n{kernel_function(kernel, 'k')}",
        )
    return given
