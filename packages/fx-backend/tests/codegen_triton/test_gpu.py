"""The launcher for CUDA devices. Needs a GPU where it launches; printing and keys do not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from loop_reference import evaluate
from samples import Body, f32, row_major
from torchsmith_fx_backend._src.codegen.triton.config import Config, Schedule, choose
from torchsmith_fx_backend._src.loops.index import add, const, mul, var
from torchsmith_fx_backend._src.loops.ir import LIBRARY, Kernel, Op, ReduceOp
from torchsmith_fx_backend._src.runtime import gpu
from torchsmith_fx_backend._src.runtime.cache import Cache, default_cache
from torchsmith_fx_backend._src.runtime.gpu import GpuLauncher, print_kernel
from torchsmith_fx_backend._src.runtime.launchers import KernelRequest, Unavailable
from torchsmith_fx_backend._src.runtime.triton_compile import Binary

bf16 = torch.bfloat16


def make_launcher(kernel, device, hints=None):
    """A function of tensors (in the order of ``kernel.args``), then one number per symbol."""
    store = default_cache()
    request = KernelRequest(kernel, device, config=choose(kernel, hints) if hints else None)
    launch = gpu._finish(*gpu._prepare(request, store), store).launch
    count = len(kernel.args)
    return lambda *args: launch(*(t.data_ptr() for t in args[:count]), *args[count:])


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="launches on a GPU")
CUDA = torch.device("cuda", 0)


def softmax(rows: int | str, cols: int | str, dtype: torch.dtype = bf16) -> Kernel:
    body = Body()
    here = row_major([rows, cols])
    x = body.cast(body.load(0, here, dtype), f32)
    e = body.op(Op.EXP, body.op(Op.SUB, x, body.reduce(ReduceOp.MAX, x)))
    y = body.op(Op.DIV, e, body.reduce(ReduceOp.SUM, e))
    body.store(1, here, body.cast(y, dtype))
    return body.kernel([rows, cols], 1, symbols=[s for s in (rows, cols) if isinstance(s, str)])


def column_sum(rows: int, cols: int) -> Kernel:
    body = Body()
    index = add(mul(const(cols), var(1)), var(0))
    body.store(1, var(0), body.reduce(ReduceOp.SUM, body.load(0, index)))
    return body.kernel([cols, rows], 1)


def transpose(rows: int, cols: int) -> Kernel:
    body = Body()
    source = body.load(0, add(mul(const(rows), var(1)), var(0)), bf16)
    body.store(1, row_major([rows, cols]), source)
    return body.kernel([rows, cols])


def row_argmax(rows: int, cols: int) -> Kernel:
    body = Body()
    body.store(1, var(0), body.reduce(ReduceOp.ARGMAX, body.load(0, row_major([rows, cols]))))
    return body.kernel([rows, cols], 1)


# -- without a GPU -------------------------------------------------------------------------------


def test_static_kernels_print_one_width_and_dynamic_ones_both() -> None:
    assert list(print_kernel(softmax(8, 64))) == [False]
    assert list(print_kernel(softmax(2**20, 2**12))) == [True]
    assert list(print_kernel(softmax("s0", 64))) == [False, True]


def test_a_source_survives_its_journey_through_the_cache(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    config = Config(Schedule.SPLIT, 2, r_block=64, splits=3, num_warps=2)
    for sources in (
        print_kernel(softmax("s0", "s1"), origins=("y = x.softmax(-1)",)),
        print_kernel(column_sum(1000, 8), config=config),
    ):
        binaries = [
            Binary(f"k{i}", bytes([i] * 9), 100 * i, 4, 5 + i)
            for i in range(len(next(iter(sources.values())).stages))
        ]
        gpu._write_entry("key", sources, binaries, cache)
        assert gpu._read_entry("key", cache) == (sources, binaries)
        cache.remove("key")
    assert gpu._read_entry("key", cache) is None


def test_a_damaged_entry_counts_as_missing(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    gpu._write_entry("key", print_kernel(softmax(8, 64)), [Binary("k", b"x", 0, 4, 4)], cache)
    file = cache.path("key", "stage0.cubin")
    file.write_bytes(b"y")
    assert gpu._read_entry("key", cache) is None


def test_entries_are_plain_json(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    gpu._write_entry("key", print_kernel(softmax(8, 64)), [Binary("k", b"x", 0, 4, 4)], cache)
    entry = json.loads(cache.path("key", "entry.json").read_text())
    assert entry["sources"][0]["config"]["schedule"] == "persistent"


def test_unsupported_devices_warn_once_and_are_unavailable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu, "_capability", lambda ordinal: 75)
    monkeypatch.setattr(torch.version, "hip", None)
    launcher, cache = GpuLauncher(), Cache(tmp_path / "cache")
    request = KernelRequest(softmax(8, 64), CUDA)
    with pytest.warns(UserWarning, match=r"through aten: compute capability 7.5 is below 8.0"):
        with pytest.raises(Unavailable):
            launcher.load([request], cache)
    with pytest.raises(Unavailable, match="7.5"):
        launcher.load([request], cache)
    monkeypatch.setattr(gpu.util, "find_spec", lambda name: None)
    with pytest.raises(Unavailable, match="triton is not installed"):
        launcher.load([request], cache)
    assert launcher.load([], cache) == []


def test_restoring_an_unknown_key_is_a_miss(tmp_path: Path) -> None:
    assert GpuLauncher().restore(["nothing"], CUDA, Cache(tmp_path / "cache")) is None


# -- on a GPU ------------------------------------------------------------------------------------


def compare(kernel: Kernel, tensors: list[torch.Tensor], symbols: dict[str, int]) -> None:
    """Runs ``kernel`` generated and by the reference evaluator in float64."""
    given = [t.clone() for t in tensors]
    make_launcher(kernel, CUDA, hints=symbols)(*given, *symbols.values())
    expected = [t.clone() for t in tensors]
    evaluate(kernel, expected, symbols)
    torch.cuda.synchronize()
    for got, want in zip(given, expected):
        if want.dtype.is_floating_point:
            error = (got.double() - want.double()).norm() / want.double().norm()
            assert float(error) < (4e-3 if want.dtype is bf16 else 1e-5)
        else:
            assert torch.equal(got, want)


@needs_gpu
@pytest.mark.parametrize("cols", [7, 128, 1000, 4096, 16384, 50_257, 131_072])
def test_softmax_at_real_sizes(cols: int) -> None:
    rows = max(2, 2**23 // cols)
    x = torch.randn(rows, cols, device=CUDA).to(bf16) * 3
    compare(softmax(rows, cols), [x, torch.empty_like(x)], {})
    compare(softmax("s0", "s1"), [x, torch.empty_like(x)], {"s0": rows, "s1": cols})


@needs_gpu
@pytest.mark.parametrize(("rows", "cols"), [(100_000, 768), (1_000_000, 1), (33, 8192)])
def test_column_sums_at_real_sizes(rows: int, cols: int) -> None:
    x = torch.rand(rows, cols, device=CUDA)
    compare(column_sum(rows, cols), [x, torch.empty(cols, device=CUDA)], {})
    out = [torch.empty(cols, device=CUDA) for _ in range(2)]
    for t in out:
        make_launcher(column_sum(rows, cols), CUDA)(x, t)
    assert torch.equal(out[0], out[1]), "the order of addition is fixed"


@needs_gpu
@pytest.mark.parametrize("dtype", [f32, torch.float64], ids=str)
def test_zeros_keep_their_signs(dtype: torch.dtype) -> None:
    body = Body()
    x = body.load(0, var(0), dtype)
    body.store(1, var(0), body.op(Op.NEG, x))
    body.store(2, var(0), body.op(Op.MUL, x, body.literal(-0.0, dtype)))
    x = torch.tensor([0.0, -0.0, 1.0, -1.0], device=CUDA, dtype=dtype)
    out = [torch.empty_like(x) for _ in range(2)]
    make_launcher(body.kernel([4]), CUDA)(x, *out)
    for got, want in zip(out, (-x, x * -0.0)):
        assert torch.equal(got, want) and torch.equal(got.signbit(), want.signbit())


FUNCTIONS = {op: getattr(torch, op.value) for op in (*LIBRARY, Op.ATAN2)}


@needs_gpu
@pytest.mark.parametrize("dtype", [f32, torch.float64], ids=str)
@pytest.mark.parametrize("op", FUNCTIONS, ids=str)
def test_functions_of_the_library(op: Op, dtype: torch.dtype) -> None:
    special = [0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan"), 1e-40, 1e30, 0.5]
    x = torch.tensor(special, device=CUDA, dtype=dtype)
    x = torch.cat([x.repeat(10), x.repeat_interleave(10), torch.randn(1000, device=CUDA).to(dtype)])
    y = x.roll(7)
    body = Body()
    loaded = [body.load(i, var(0), dtype) for i in range(2)]
    body.store(2, var(0), body.op(op, *(loaded if op is Op.ATAN2 else loaded[:1])))
    got = torch.empty_like(x)
    make_launcher(body.kernel([len(x)]), CUDA)(x, y, got)
    want = FUNCTIONS[op](x, y) if op is Op.ATAN2 else FUNCTIONS[op](x)
    torch.testing.assert_close(got, want, rtol=3e-7, atol=0, equal_nan=True)
    assert torch.equal(got.signbit() & got.isfinite(), want.signbit() & want.isfinite())


@needs_gpu
def test_argmax_and_transpose_at_real_sizes() -> None:
    x = torch.randint(0, 1000, (64, 300_000), device=CUDA).float()
    compare(row_argmax(64, 300_000), [x, torch.empty(64, dtype=torch.int64, device=CUDA)], {})
    x = torch.randn(4096, 2050, device=CUDA).to(bf16)
    compare(transpose(2050, 4096), [x, torch.empty_like(x)], {})


@needs_gpu
def test_more_than_two_to_the_31_elements() -> None:
    n = 2**31 + 4099
    body = Body()
    one = body.op(Op.ADD, body.cast(body.load(0, var(0), bf16), f32), body.literal(1.0))
    body.store(1, var(0), body.cast(one, bf16))
    x = torch.randn(n, dtype=bf16, device=CUDA)
    y = torch.full_like(x, float("nan"))
    make_launcher(body.kernel([n]), CUDA)(x, y)
    for part in (slice(0, 5000), slice(2**31 - 2000, 2**31 + 2000), slice(-5000, None)):
        assert torch.equal(y[part], (x[part].float() + 1).to(bf16))
    dynamic = Body()
    one = dynamic.op(Op.ADD, dynamic.cast(dynamic.load(0, var(0), bf16), f32), dynamic.literal(1.0))
    dynamic.store(1, var(0), dynamic.cast(one, bf16))
    launch = make_launcher(dynamic.kernel(["s0"], symbols=["s0"]), CUDA)
    y.fill_(float("nan"))
    launch(x, y, n)
    assert torch.equal(y[-5000:], (x[-5000:].float() + 1).to(bf16))


@needs_gpu
def test_unaligned_views_and_streams() -> None:
    x = torch.randn(1 + 4096 * 64, device=CUDA).to(bf16)
    want = torch.softmax(x[1:].view(64, 4096).float(), -1)
    launch = make_launcher(softmax(64, 4096), CUDA)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        y = torch.empty(1 + 4096 * 64, device=CUDA, dtype=bf16)
        launch(x[1:], y[1:])
    stream.synchronize()
    assert float((y[1:].view(64, 4096).float() - want).norm() / want.norm()) < 4e-3


@needs_gpu
def test_graph_capture() -> None:
    x = torch.randn(64, 512, device=CUDA).to(bf16)
    y = torch.empty_like(x)
    launch = make_launcher(softmax(64, 512), CUDA)
    launch(x, y)
    want = y.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(x, y)
    y.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, want)


@needs_gpu
def test_launcher_loads_in_parallel_and_restores(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    kernels = [softmax(64, 512 + 16 * i) for i in range(6)]
    loaded = GpuLauncher().load([KernelRequest(k, CUDA, ("softmax",)) for k in kernels], cache)
    again = GpuLauncher().restore([kernel.key for kernel in loaded], CUDA, cache)
    assert again is not None and [k.source for k in again] == [k.source for k in loaded]
    for number, kernel in enumerate(again):
        x = torch.randn(64, 512 + 16 * number, device=CUDA).to(bf16)
        y = torch.empty_like(x)
        kernel.launch(x.data_ptr(), y.data_ptr())
        want = torch.softmax(x.float(), -1)
        assert float((y.float() - want).norm() / want.norm()) < 4e-3
