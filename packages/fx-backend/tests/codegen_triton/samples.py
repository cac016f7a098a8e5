"""Small kernels and a way to run printed source, shared by the tests of the Triton printer."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from loop_reference import evaluate
from torchsmith_fx_backend._src.codegen.triton.config import Config, Schedule, choose
from torchsmith_fx_backend._src.codegen.triton.kernel import generate
from torchsmith_fx_backend._src.codegen.triton.source import TritonSource
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
from torchsmith_fx_backend._src.runtime.triton_compile import Binary, compile_source
from torchsmith_fx_backend._src.runtime.triton_launcher import TritonKernel, Variant

f32, f64, i64 = torch.float32, torch.float64, torch.int64
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETED or not torch.cuda.is_available() else "cuda")


class Body:
    """Builds a kernel body node by node; every method returns the new SSA id."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.dtypes: list[torch.dtype] = []
        self.buffers: dict[int, list[object]] = {}

    def _push(self, node: Node, dtype: torch.dtype) -> int:
        self.nodes.append(node)
        self.dtypes.append(dtype)
        return len(self.nodes) - 1

    def load(
        self, arg: int, index: Index, dtype: torch.dtype = f32, mask: int | None = None
    ) -> int:
        self.buffers.setdefault(arg, [dtype, False, False])[1] = True
        return self._push(Load(arg, index, dtype, mask), dtype)

    def store(self, arg: int, index: Index, value: int) -> int:
        dtype = self.dtypes[value]
        self.buffers.setdefault(arg, [dtype, False, False])[2] = True
        return self._push(Store(arg, index, value), dtype)

    def literal(self, value: float, dtype: torch.dtype = f32) -> int:
        return self._push(Literal(value, dtype), dtype)

    def index(self, index: Index) -> int:
        return self._push(IndexValue(index, i64), i64)

    def scalar(self, name: str, dtype: torch.dtype) -> int:
        return self._push(ScalarArg(name, dtype), dtype)

    def op(self, op: Op, *args: int, dtype: torch.dtype | None = None) -> int:
        if dtype is None:
            comparing = op in (Op.EQ, Op.NE, Op.LT, Op.LE, Op.GT, Op.GE, Op.ISNAN, Op.ISINF)
            dtype = torch.bool if comparing else self.dtypes[args[-1]]
        return self._push(Compute(op, args, dtype), dtype)

    def cast(self, value: int, dtype: torch.dtype) -> int:
        return self.op(Op.CAST, value, dtype=dtype)

    def reduce(self, op: ReduceOp, value: int) -> int:
        arg = op in (ReduceOp.ARGMAX, ReduceOp.ARGMIN)
        dtype = i64 if arg else self.dtypes[value]
        return self._push(Reduce(op, value, dtype), dtype)

    def kernel(
        self,
        ranges: Sequence[int | str],
        reduce_from: int | None = None,
        symbols: Sequence[str] = (),
    ) -> Kernel:
        sizes = tuple(const(r) if isinstance(r, int) else Sym(r) for r in ranges)
        args = tuple(
            BufferArg(dtype, read, written, read and written)
            for _, (dtype, read, written) in sorted(self.buffers.items())
        )
        kernel = Kernel(
            sizes,
            len(sizes) if reduce_from is None else reduce_from,
            tuple(self.nodes),
            args,
            tuple(symbols),
        )
        verify(kernel)
        return kernel


def row_major(ranges: Sequence[int | str], axes: Sequence[int] | None = None) -> Index:
    """Offset of the current point in a dense tensor of extents ``ranges``."""
    sizes = [const(r) if isinstance(r, int) else Sym(r) for r in ranges]
    axes = range(len(sizes)) if axes is None else axes
    terms = [mul(var(a), product(sizes[i + 1 :])) for i, a in enumerate(axes)]
    return add(*terms)


# The interpreter truncates to bfloat16 where hardware rounds; CUDA's functions err by a few ulp.
ULP = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10, torch.float32: 2e-6}

_counter = itertools.count()


def run_source(
    source: TritonSource,
    tensors: Sequence[torch.Tensor],
    symbols: Mapping[str, float],
    folder: Path,
) -> None:
    """Runs printed text: with our own launcher on a GPU, else under triton's interpreter."""
    path = folder / f"kernel_{next(_counter)}.py"
    path.write_text(source.text)
    values = {
        symbol.name: float(value) if symbol.kind == "fp64" else int(value)
        for symbol, value in zip(source.symbols, symbols.values(), strict=True)
    }
    if DEVICE.type == "cuda":
        _launch(source, path, [t.data_ptr() for t in tensors], list(values.values()))
        return
    namespace: dict[str, object] = {}
    exec(compile(source.text, str(path), "exec"), namespace)
    workspaces = [
        torch.full((eval(w.length, {}, values),), 77).to(w.dtype) for w in source.workspaces
    ]
    for stage in source.stages:
        grid = tuple(eval(part, {}, values) for part in stage.grid)
        if 0 not in grid:
            function = namespace[stage.function]
            function[grid](*tensors, *workspaces, *values.values())  # type: ignore[index]


def _launch(
    source: TritonSource, path: Path, pointers: Sequence[int], values: Sequence[float]
) -> None:
    major, minor = torch.cuda.get_device_capability()

    def obtain(variant: Variant) -> list[Binary]:
        return compile_source(source, path, 10 * major + minor, aligned=variant.aligned)

    device = torch.cuda.current_device()
    TritonKernel({source.wide: source}, device, obtain).launch(*pointers, *values)
    torch.cuda.synchronize()


def check(
    kernel: Kernel,
    tensors: Sequence[torch.Tensor],
    folder: Path,
    *,
    symbols: Mapping[str, float] | None = None,
    config: Config | None = None,
    wide: bool = False,
    rtol: float = 1e-5,
    atol: float = 1e-5,
    exact: bool = False,
) -> TritonSource:
    """Runs ``kernel`` printed and by the reference; buffers must agree, NaN included."""
    symbols = symbols or {}
    expected = [t.clone() for t in tensors]
    evaluate(kernel, expected, symbols)
    hints = {name: int(value) for name, value in symbols.items()}
    source = generate(kernel, config or choose(kernel, hints), wide=wide, origins=("a test",))
    given = [t.clone().to(DEVICE) for t in tensors]
    run_source(source, given, symbols, folder)
    for arg, (want, got) in enumerate(zip(expected, given, strict=True)):
        where = f"arg {arg} of\n{source.text}"
        compare(got.cpu(), want, (0.0, 0.0) if exact else (rtol, atol), where)
    return source


def compare(got: torch.Tensor, want: torch.Tensor, limits: tuple[float, float], where: str) -> None:
    """Asserts closeness within (rtol, atol); integers must be equal, NaN meets NaN."""
    if not want.dtype.is_floating_point:
        limits = (0.0, 0.0)
    elif limits != (0.0, 0.0):
        limits = (max(limits[0], ULP.get(want.dtype, 0.0)), limits[1])
    elif want.dtype in ULP and INTERPRETED:
        limits = (ULP[want.dtype], 0.0)
    torch.testing.assert_close(
        got, want, rtol=limits[0], atol=limits[1], equal_nan=True, msg=lambda m: f"{where}{m}"
    )


REDUCTION_CONFIGS = {
    "persistent": Config(Schedule.PERSISTENT, 2, r_block=64),
    "looped": Config(Schedule.LOOPED, 2, r_block=16),
    "split": Config(Schedule.SPLIT, 2, r_block=4, splits=3),
}
