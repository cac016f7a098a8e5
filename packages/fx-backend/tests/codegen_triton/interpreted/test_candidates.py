"""Whatever measuring chooses, a kernel computes the same: every candidate of a table of kernels."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from loop_reader import read_kernel
from samples import check
from torchsmith_fx_backend._src.codegen.triton.candidates import candidates
from torchsmith_fx_backend._src.codegen.triton.config import Schedule

ONE_IN, ONE_OUT = '"float32 read"', '"float32 written"'
HEAD = "@kernel(ranges=({ranges}), reduce_from={outer}, args=({args}), symbols={symbols})\n"


def kernel(ranges, outer, args, lines, symbols=()):
    names = [f"a{i}" for i in range(len(args))]
    names += [f"i{i}" for i in range(len(ranges.strip(", ").split(",")))]
    head = HEAD.format(ranges=ranges, outer=outer, args=", ".join(args) + ",", symbols=symbols)
    body = "".join(f"    {line}\n" for line in lines)
    return read_kernel(f"{head}def _({', '.join(names)}):\n{body}")


SOFTMAX = (
    "v0 = load(a0, {row} * i0 + i1)",
    "v1 = reduce_max(v0)",
    "v2 = sub(v0, v1)",
    "v3 = exp(v2)",
    "v4 = reduce_sum(v3)",
    "v5 = div(v3, v4)",
    "store(a1, {row} * i0 + i1, v5)",
)
POINTS = ("v0 = load(a0, i0)", "v1 = mul(v0, v0)", "store(a1, i0, v1)")
COLUMNS = ("v0 = load(a0, 40 * i1 + i0)", "v1 = reduce_sum(v0)", "store(a1, i0, v1)")
ROWS = ("v0 = load(a0, 5000 * i0 + i1)", "v1 = reduce_{op}(v0)", "store(a1, i0, v1)")
TURNED = ("v0 = load(a0, 50 * i1 + i0)", "store(a1, 70 * i0 + i1, v0)")
SCAN = ("v0 = load(a0, 300 * i0 + i1)", "v1 = scan_sum(v0)", "store(a1, 300 * i0 + i1, v1)")
SCATTER = (
    "v0 = load(a0, i1)",
    "v1 = position(v0, 9)",
    "v2 = load(a1, 40 * i1 + i0)",
    "store(a2, 40 * at(v1) + i0, v2, 'add')",
)
BOTH = (ONE_IN, ONE_OUT)
LAST = '"int64 written"'
ADDED = ('"int64 read"', ONE_IN, '"float32 read written"')
# name -> kernel, elements of each buffer, sizes, schedules that must be among the candidates
KERNELS = {
    "points": (kernel("900,", 1, BOTH, POINTS), (900, 900), {}, {"pointwise"}),
    "any points": (kernel("s0,", 1, BOTH, POINTS, ("s0",)), (777, 777), {"s0": 777}, {"pointwise"}),
    "turned": (kernel("50, 70", 2, BOTH, TURNED), (3500, 3500), {}, {"tile", "pointwise"}),
    "softmax": (
        kernel("3, 1100", 1, BOTH, [line.format(row=1100) for line in SOFTMAX]),
        (3300, 3300),
        {},
        {"persistent", "looped"},
    ),
    "any softmax": (
        kernel("s0, s1", 1, BOTH, [line.format(row="s1") for line in SOFTMAX], ("s0", "s1")),
        (600, 600),
        {"s0": 2, "s1": 300},
        {"looped"},
    ),
    "rows": (
        kernel("2, 5000", 1, BOTH, [line.format(op="sum") for line in ROWS]),
        (10000, 2),
        {},
        {"persistent", "looped", "split"},
    ),
    "places": (
        kernel("1, 5000", 1, (ONE_IN, LAST), [line.format(op="argmax") for line in ROWS]),
        (5000, 1),
        {},
        {"persistent", "looped", "split"},
    ),
    "columns": (kernel("40, 500", 1, BOTH, COLUMNS), (20000, 40), {}, {"split", "looped"}),
    "scan": (kernel("7, 300", 1, BOTH, SCAN), (2100, 2100), {}, {"scan"}),
    "scatter": (kernel("40, 30", 2, ADDED, SCATTER), (30, 1200, 360), {}, {"scatter"}),
}


@pytest.mark.parametrize("name", KERNELS)
def test_every_candidate_computes_the_same(name: str, tmp_path: Path) -> None:
    loops, lengths, sizes, schedules = KERNELS[name]
    generator = torch.Generator().manual_seed(3)
    tensors = []
    for length, arg in zip(lengths, loops.args):
        made = torch.randint(0, 9, (length,), generator=generator)
        if arg.dtype.is_floating_point:
            made = torch.rand(length, generator=generator)
        tensors.append(made.to(arg.dtype))
    configs = candidates(loops, sizes)
    assert len(configs) > 3
    assert schedules <= {config.schedule.value for config in configs}
    moved = {Schedule.POINTWISE, Schedule.TILE, Schedule.SCATTER}
    for config in configs:
        exact = config.schedule in moved
        check(loops, tensors, tmp_path, symbols=sizes, config=config, rtol=1e-4, exact=exact)
