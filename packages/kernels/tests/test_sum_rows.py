"""``sort_rows`` and ``sum_rows`` against sums in float64, on every path that exists here."""

from __future__ import annotations

import threading
import tomllib
from pathlib import Path

import kernel_testing as kt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchsmith_kernels import Template, sum_rows_template
from torchsmith_kernels._src import launch
from torchsmith_kernels._src.sum_rows import op, run
from torchsmith_kernels._src.sum_rows.config import LENGTH, Config, derived


def summed(
    values: Tensor, index: Tensor, rows: int, padding: int = -1, wrap: bool = True
) -> Tensor:
    found = op.sort_rows(index, rows, padding, wrap, False)
    got: Tensor = op.sum_rows(values, *found, [rows, values.shape[-1]])
    return got


def wanted(values: Tensor, index: Tensor, rows: int) -> Tensor:
    index = torch.where(index < 0, index + rows, index).flatten().long().cpu()
    total = torch.zeros(rows, values.shape[1], dtype=torch.float64)
    return total.index_add_(0, index, values.double().cpu())


INDICES = {
    "unique": lambda: torch.randperm(300),
    "few": lambda: torch.randint(5, (300,)),
    "one": lambda: torch.full((300,), -3),
    "blocks": lambda: torch.arange(3 * LENGTH) // LENGTH,
    # A run of three blocks and its neighbours, so that pieces begin and end inside of blocks.
    "mixed": lambda: torch.cat((torch.randint(-300, 300, (170,)), torch.full((2 * LENGTH,), 70))),
    "one too long": lambda: torch.full((LENGTH + 1,), 7),
    "one of a block": lambda: torch.full((LENGTH,), 299),
}


SUMMED = [
    (1, torch.float32),
    (130, torch.float32),
    *((3, dtype) for dtype in (*kt.DTYPES, torch.float64)),
]


@kt.devices
@pytest.mark.parametrize("indices", list(INDICES))
@pytest.mark.parametrize("width, dtype", SUMMED, ids=str)
def test_sums(width: int, indices: str, dtype: torch.dtype, device: str) -> None:
    torch.manual_seed(0)
    index = INDICES[indices]()
    index = index[torch.randperm(len(index))].to(device)
    values = kt.make(len(index), width, dtype=dtype, device=device)
    got, want = summed(values, index, 300), wanted(values, index, 300)
    assert got.dtype == dtype and got.is_contiguous()
    exact = wanted(values.abs(), index, 300)
    limit = kt.ROUNDOFF[dtype] * want.abs() + 10 * kt.ROUNDOFF[torch.float32] * exact
    if dtype is torch.float64:
        limit = 10 * kt.ROUNDOFF[dtype] * exact
    assert ((got.double().cpu() - want).abs() <= limit).all()


@kt.devices
@settings(max_examples=25, deadline=None)
@given(
    shape=st.lists(st.integers(0, 7), max_size=3),
    rows=st.integers(1, 40),
    width=st.integers(0, 20),
    kind=st.sampled_from([torch.int32, torch.int64]),
)
def test_any_shape(shape: list[int], rows: int, width: int, kind: torch.dtype, device: str) -> None:
    index = torch.randint(-rows, rows, shape).to(kind).to(device)
    values = kt.make(index.numel(), width, device=device)
    kt.same(summed(values, index, rows).double().cpu(), wanted(values, index, rows))


@kt.devices
@pytest.mark.parametrize("sort", ["rank", "radix"])
@pytest.mark.parametrize("rows", [100, 2**15 + 10])
def test_the_order_is_a_stable_sort(
    rows: int, sort: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    if sort == "radix":
        monkeypatch.setattr(run, "_RANKED", 0)
    index = torch.randint(rows, (700,))
    index[torch.rand(700) < 0.5] = 17
    order, offsets, ends = op.sort_rows(index.to(device), rows, 5, False, True)
    keys, want = torch.sort(torch.where(index == 5, rows, index), stable=True)
    assert torch.equal(order.cpu(), want)
    assert torch.equal(offsets.cpu(), torch.searchsorted(keys, torch.arange(rows + 1)))
    last = torch.tensor([*range(LENGTH - 1, 700, LENGTH), 699])
    assert torch.equal(ends.cpu()[::2], keys[::LENGTH])
    assert torch.equal(ends.cpu()[1::2], keys[last])


@kt.devices
def test_what_is_no_row_is_left_out(device: str) -> None:
    index = torch.tensor([3, 4, -1, -5, 2**33, 0, 2], device=device)
    ones = torch.ones(7, 2, device=device)
    for wrap, padding, want in ((True, 2, [1, 0, 0, 2]), (False, -1, [1, 0, 1, 1])):
        got = summed(ones, index, 4, padding, wrap)
        assert got[:, 1].tolist() == want


@kt.without_interpreter
@pytest.mark.parametrize("index", [[0, 4], [-5, 0]])
def test_what_is_no_row_is_an_error(index: list[int]) -> None:
    with pytest.raises(IndexError, match=f"index {4 if index[1] else -5} is out of bounds"):
        op.sort_rows(torch.tensor(index), 4, -1, True, True)


@kt.devices
def test_rows_that_are_parts_of_others(device: str) -> None:
    index = torch.randint(9, (50,), device=device)
    whole = kt.make(50, 24, device=device)
    for values in (whole[:, 3:10], whole[:, ::2], whole[:1].expand(50, 24), whole.t()[:, :24]):
        own = index[: len(values)]
        kt.same(summed(values, own, 9).double().cpu(), wanted(values, own, 9))


@kt.devices
def test_nan_and_infinity_reach_their_row_only(device: str) -> None:
    values = torch.ones(4 * LENGTH, 2, device=device)
    values[2 * LENGTH, 0], values[-1, 1] = torch.nan, torch.inf
    index = torch.arange(4 * LENGTH, device=device) // (2 * LENGTH)
    got = summed(values, index, 3).cpu()
    want = torch.tensor([[256, 256], [torch.nan, torch.inf], [0, 0]])
    kt.same(got, want)


@kt.devices
def test_two_runs_are_bit_equal(device: str) -> None:
    index = torch.randint(30, (1000,), device=device) // 9
    values = kt.make(1000, 33, device=device)
    kt.bit_equal(lambda: summed(values, index, 40))


@kt.devices
def test_operators_are_registered_completely(device: str) -> None:
    index = torch.randint(6, (2, 3), device=device)
    torch.library.opcheck(op.sort_rows.overload, (index, 6, -1, True, True))
    found = op.sort_rows(index, 6, -1, True, True)
    torch.library.opcheck(
        op.sum_rows.overload, (kt.make(2, 3, 5, device=device), *found, [2, 3, 5])
    )


def test_the_template() -> None:
    own = tuple(argument.name for argument in op.sum_rows.overload._schema.arguments)
    assert isinstance(sum_rows_template, Template) and own == sum_rows_template.parameters
    assert all(hasattr(torch.ops.aten, name.split(".")[1]) for name in sum_rows_template.targets)
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    offered = project["entry-points"]["torchsmith.kernels"]
    assert offered["sum_rows"] == "torchsmith_kernels:sum_rows_template"


@kt.large
def test_more_than_2_to_the_31_elements() -> None:
    count, width = 2**21 + 7, 2**10
    values = torch.zeros(count, width, dtype=torch.bfloat16, device="cuda")
    values[-3:] = 3
    index = torch.zeros(count, dtype=torch.int32, device="cuda")
    index[-3:] = count - 1
    got = summed(values, index, count)
    assert torch.all(got[-1] == 9) and not got[:-1].any()


@kt.needs_compiler
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_resources(dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    index, values = torch.zeros(3000, dtype=torch.int64), torch.empty(3000, 64, dtype=dtype)
    found: list[Tensor] = []
    sorting = kt.check_resources(
        "sum_rows", f"sort {name}", lambda: found.extend(run.sort(index, 100, -1, True, True))
    )
    assert len(sorting) == 2 and "__assertfail" in sorting[0].asm["ptx"]
    kernels = kt.check_resources("sum_rows", f"sum {name}", lambda: run.total(values, *found))
    assert len(kernels) == 2 and not any("atom." in k.asm["ptx"] for k in [*sorting, *kernels])
    assert all("ld.global.v4.b32" in k.asm["ptx"] for k in kernels), "16 bytes a thread"
    many = torch.zeros(10000, dtype=torch.int32)
    kt.check_resources("sum_rows", f"many {name}", lambda: run.sort(many, 100, -1, True, False))
    few = kt.check_resources("sum_rows", f"few {name}", lambda: run.total(values[:9], *found))
    assert len(few) == 1, "no segment can be long"


@kt.needs_compiler
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("width", [1, 3, 8, 24, 130, 256, 1000, 3001])
def test_no_tile_spills(width: int, dtype: torch.dtype) -> None:
    index = torch.zeros(3000, dtype=torch.int64)
    with kt.compiled_for_sm90():
        found = run.sort(index, 100, -1, True, True)
    for rows in (torch.empty(3000, width, dtype=dtype), torch.empty(3000, 3999, dtype=dtype)):
        with kt.compiled_for_sm90() as kernels:
            run.total(rows[:, :width], *found)
        for name, compiled in kernels:
            assert kt._usage(compiled)["stack"] == 0, name


@pytest.mark.parametrize(
    ("width", "count", "rows", "want"),
    [
        (64, 200_000, 20_000, Config(2, 16, 64, 2)),
        (256, 16_384, 50_000, Config(1, 8, 256, 2)),
        (4096, 16_384, 32_000, Config(1, 4, 1024, 4)),
        (3, 70_000, 3_000, Config(4, 32, 4, 2)),
        (1, 70_000, 3_000, Config(16, 32, 1, 2)),
    ],
)
def test_tiles(width: int, count: int, rows: int, want: Config) -> None:
    assert derived(width, count, rows) == want


@pytest.mark.skipif(not torch.cuda.is_available(), reason="compiles for a GPU")
def test_what_was_prepared_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bound: list[str] = []
    real = launch.Kernel._bind

    def bind(kernel: launch.Kernel, *given: object) -> object:
        bound.append(kernel.name)
        return real(kernel, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(launch.Kernel, "_bind", bind)
    index = torch.randint(-777, 777, (20_000,), device="cuda")
    run.prepare(index, 777, -1, True, [(24, torch.float32)])
    for thread in threading.enumerate():
        if thread.name == "torchsmith kernels":
            thread.join()
    known = len(bound)  # of those that earlier tests have not compiled
    assert {"pieces_kernel", "sum_kernel"} <= set(bound)
    values = torch.randn(20_000, 24, device="cuda")
    found = op.sort_rows(index, 777, -1, True, True)
    got, want = op.sum_rows(values, *found, [777, 24]), wanted(values, index, 777)
    torch.testing.assert_close(got.cpu(), want.float(), rtol=1e-4, atol=1e-4)
    assert len(bound) == known
