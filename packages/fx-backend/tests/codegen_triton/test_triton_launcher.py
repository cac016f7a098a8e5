"""The launch path against a recording stand-in for the CUDA driver: no GPU is needed."""

from __future__ import annotations

import ctypes
import struct
import subprocess
import threading
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from samples import Body, f32, row_major
from torchsmith_fx_backend._src.codegen.triton.config import Config, Schedule
from torchsmith_fx_backend._src.codegen.triton.source import TritonSource
from torchsmith_fx_backend._src.loops.index import Sym, add, mul, var
from torchsmith_fx_backend._src.loops.ir import Kernel, Op, ReduceOp
from torchsmith_fx_backend._src.runtime import gpu_driver
from torchsmith_fx_backend._src.runtime.gpu import print_kernel
from torchsmith_fx_backend._src.runtime.gpu_driver import Driver, DriverError, SharedMemoryError
from torchsmith_fx_backend._src.runtime.triton_compile import Binary
from torchsmith_fx_backend._src.runtime.triton_launcher import TritonKernel, Variant, for_each

HIDDEN = 2  # triton's own scratch pointers, after ours


class Recorded(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char * 64),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("parameters", ctypes.c_uint),
        ("stream", ctypes.c_uint64),
        ("values", ctypes.c_uint64 * 32),
    ]


class FakeDriver(Driver):
    held: torch.Tensor

    def hold(self, data: array[int]) -> torch.Tensor:
        self.held = torch.frombuffer(data, dtype=torch.int64)
        return self.held

    def launches(self) -> list[Recorded]:
        self.library.fake_launch.restype = ctypes.POINTER(Recorded)
        return [self.library.fake_launch(i)[0] for i in range(self.library.fake_count())]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    target = tmp_path_factory.mktemp("fake") / "libfakecuda.so"
    source = Path(__file__).parent / "fake_cuda.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(target), str(source)], check=True)
    return str(target)


@pytest.fixture
def driver(library: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    fake = FakeDriver(library)
    fake.library.fake_reset(0, 1)
    monkeypatch.setattr(gpu_driver, "current_device", lambda: 0)
    monkeypatch.setattr(gpu_driver, "current_stream", lambda device: 0x5000 + device)
    monkeypatch.setattr(gpu_driver, "on_device", lambda device: nullcontext())
    monkeypatch.setattr(gpu_driver, "is_recording", lambda: False)
    monkeypatch.setattr(gpu_driver, "upload", lambda data, device: fake.hold(data))
    yield fake


def loaded(
    kernel: Kernel, driver: Driver, shared: int = 0, config: Config | None = None
) -> tuple[TritonKernel, list[Variant]]:
    sources: Mapping[bool, TritonSource] = print_kernel(kernel, config=config)
    made: list[Variant] = []

    def obtain(variant: Variant) -> list[Binary]:
        made.append(variant)
        source = for_each(sources) if variant.each else sources[variant.wide]
        assert source is not None
        own = len(source.pointers) + len(source.workspaces) + len(source.symbols)
        name = f"wide{variant.wide}_aligned{variant.aligned}"
        return [
            Binary(f"{name}_{i}", bytes([own + HIDDEN]), shared, 4, own + HIDDEN)
            for i in range(len(source.stages))
        ]

    return TritonKernel(sources, 0, obtain, driver), made


def add_one(extent: int | str) -> Kernel:
    body = Body()
    body.store(1, var(0), body.op(Op.ADD, body.load(0, var(0)), body.literal(1.0)))
    return body.kernel([extent], symbols=[extent] if isinstance(extent, str) else [])


def test_static_launch_packs_pointers_grid_and_stream(driver: FakeDriver) -> None:
    kernel, made = loaded(add_one(5000), driver)
    kernel.launch(0x1000, 0x2000)
    (launch,) = driver.launches()
    blocks = -(-5000 // kernel.source.config.x_block)
    assert launch.name == b"wideFalse_alignedTrue_0"
    assert (list(launch.grid), list(launch.block)) == ([blocks, 1, 1], [128, 1, 1])
    assert list(launch.values)[:4] == [0x1000, 0x2000, 0, 0]
    assert launch.stream == 0x5000
    assert made == [Variant(wide=False, aligned=True)]


def test_buffers_are_reused_and_every_launch_has_its_own_values(driver: FakeDriver) -> None:
    kernel, _ = loaded(add_one(64), driver)
    for i in range(1, 6):
        kernel.launch(0x1000 * i, 0x1000 * i + 16)
    assert [launch.values[0] for launch in driver.launches()] == [0x1000 * i for i in range(1, 6)]
    assert [launch.values[1] for launch in driver.launches()] == [
        0x1000 * i + 16 for i in range(1, 6)
    ]


def test_unaligned_pointers_get_their_own_variant(driver: FakeDriver) -> None:
    kernel, made = loaded(add_one(64), driver)
    kernel.launch(0x1000, 0x2004)
    kernel.launch(0x1004, 0x2000)
    kernel.launch(0x1000, 0x2000)
    names = [launch.name for launch in driver.launches()]
    assert names == [b"wideFalse_alignedFalse_0"] * 2 + [b"wideFalse_alignedTrue_0"]
    assert made == [Variant(False, True), Variant(False, False)]


def test_large_static_kernel_is_wide_from_the_start(driver: FakeDriver) -> None:
    kernel, made = loaded(add_one(2**31 + 5), driver)
    kernel.launch(0x1000, 0x2000)
    assert made == [Variant(wide=True, aligned=True)]
    assert driver.launches()[0].grid[0] == -(-(2**31 + 5) // kernel.source.config.x_block)


def test_dynamic_kernel_switches_to_wide_addresses_and_skips_empty_grids(
    driver: FakeDriver,
) -> None:
    kernel, made = loaded(add_one("s0"), driver)
    kernel.launch(0x1000, 0x2000, 0)
    assert driver.launches() == []
    kernel.launch(0x1000, 0x2000, 3000)
    kernel.launch(0x1000, 0x2000, 2**31)
    small, large = driver.launches()
    block = kernel.source.config.x_block
    assert (small.name, small.grid[0], small.values[2]) == (
        b"wideFalse_alignedTrue_0",
        -(-3000 // block),
        3000,
    )
    assert (large.name, large.grid[0], large.values[2]) == (
        b"wideTrue_alignedTrue_0",
        2**31 // block,
        2**31,
    )
    assert made == [Variant(False, True), Variant(True, True)]


def test_float_scalars_keep_double_precision(driver: FakeDriver) -> None:
    body = Body()
    scaled = body.op(Op.MUL, body.load(0, var(0)), body.scalar("scale", f32))
    body.store(1, var(0), scaled)
    kernel, _ = loaded(body.kernel([8], symbols=["scale"]), driver)
    kernel.launch(0x10, 0x20, 0.1)
    assert struct.unpack("d", struct.pack("Q", driver.launches()[0].values[2]))[0] == 0.1


def test_split_reduction_launches_two_stages_over_a_workspace(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = Body()
    body.store(1, var(0), body.reduce(ReduceOp.SUM, body.load(0, row_major([4, 1000]))))
    config = Config(Schedule.SPLIT, 2, r_block=64, splits=3)
    lengths: list[int] = []
    real_empty = torch.empty

    def empty(length: int, *, dtype: torch.dtype, device: int) -> torch.Tensor:
        lengths.append(length)
        return real_empty(length, dtype=dtype)

    monkeypatch.setattr(torch, "empty", empty)
    kernel, _ = loaded(body.kernel([4, 1000], 1), driver, config=config)
    kernel.launch(0x1000, 0x2000)
    partial, combine = driver.launches()
    assert (list(partial.grid), list(combine.grid)) == ([2, 3, 1], [1, 1, 1])
    assert lengths == [256]  # 3 * 4 numbers, up to where another workspace may begin
    assert partial.values[2] == combine.values[2] != 0


def test_workspaces_of_a_launch_are_one_allocation(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = Body()
    total = body.reduce(ReduceOp.SUM, body.load(0, row_major([100, 1000])))
    largest = body.reduce(ReduceOp.MAX, body.load(0, row_major([100, 1000])))
    body.store(1, var(0), total)
    body.store(2, var(0), largest)
    config = Config(Schedule.SPLIT, 2, r_block=64, splits=3)
    held: list[torch.Tensor] = []
    real_empty = torch.empty

    def empty(length: int, *, dtype: torch.dtype, device: int) -> torch.Tensor:
        held.append(real_empty(length, dtype=dtype))
        return held[-1]

    monkeypatch.setattr(torch, "empty", empty)
    kernel, _ = loaded(body.kernel([100, 1000], 1), driver, config=config)
    kernel.launch(0x1000, 0x2000, 0x3000)
    (whole,) = held
    for stage in driver.launches():
        assert list(stage.values)[3:5] == [whole.data_ptr(), whole.data_ptr() + 1280]
    assert whole.nbytes == 2 * 1280  # 3 * 100 floats each, in steps of 256 bytes


def test_large_shared_memory_is_asked_for(driver: FakeDriver) -> None:
    kernel, _ = loaded(add_one(64), driver, shared=100_000)
    kernel.launch(0x1000, 0x2000)
    assert driver.launches()[0].shared == 100_000


def test_more_shared_memory_than_there_is_is_a_fault_of_the_kernel(driver: FakeDriver) -> None:
    with pytest.raises(SharedMemoryError, match="300000 bytes of shared memory"):
        loaded(add_one(64), driver, shared=300_000)


def test_a_thread_without_a_context_gets_one(driver: FakeDriver) -> None:
    kernel, _ = loaded(add_one(64), driver)
    driver.library.fake_reset(0, 0)
    kernel.launch(0x1000, 0x2000)
    assert len(driver.launches()) == 1


def test_a_failing_launch_names_the_call(driver: FakeDriver) -> None:
    kernel, _ = loaded(add_one(64), driver)
    driver.library.fake_reset(1, 1)
    with pytest.raises(DriverError, match="cuLaunchKernel failed .* 1: invalid argument"):
        kernel.launch(0x1000, 0x2000)


def test_a_refused_binary_names_the_call(driver: FakeDriver) -> None:
    with pytest.raises(DriverError, match="cuModuleLoadData failed"):
        driver.load(b"\xff", "name", 0, 0)


def test_another_current_device_is_switched_and_restored(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[int] = []

    def on_device(device: int) -> nullcontext[None]:
        entered.append(device)
        return nullcontext()

    monkeypatch.setattr(gpu_driver, "on_device", on_device)
    monkeypatch.setattr(gpu_driver, "current_device", lambda: 1)
    kernel, _ = loaded(add_one(64), driver)
    entered.clear()
    kernel.launch(0x1000, 0x2000)
    assert entered == [0]


def test_threads_do_not_mix_arguments(driver: FakeDriver) -> None:
    kernel, _ = loaded(add_one(64), driver)
    wrong: list[str] = []
    launch_kernel: Callable[..., int] = kernel._driver.launch_kernel

    def work(base: int) -> None:
        for _ in range(300):
            kernel.launch(base, base + 16)

    threads = [threading.Thread(target=work, args=(0x10000 * (i + 1),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(64):
        entry = driver.library.fake_launch(i)[0] if driver.launches() else None
        if entry is not None and entry.values[1] != entry.values[0] + 16:
            wrong.append(hex(entry.values[0]))
    assert wrong == []
    assert launch_kernel is driver.launch_kernel


def test_offset_bound_counts_strides_not_only_points(driver: FakeDriver) -> None:
    # 2**20 points, but the last one lies 2**34 elements away.
    body = Body()
    far = add(mul(Sym("s0"), var(0)), var(1))
    body.store(1, row_major([1024, 1024]), body.load(0, far))
    kernel, made = loaded(body.kernel([1024, 1024], symbols=["s0"]), driver)
    kernel.launch(0x1000, 0x2000, 1024)
    kernel.launch(0x1000, 0x2000, 2**24)
    assert made == [Variant(False, True), Variant(True, True)]


def scaled(extent: int) -> Kernel:
    body = Body()
    factor = body.scalar("number0", f32)
    body.store(1, var(0), body.op(Op.MUL, body.load(0, var(0)), factor))
    return body.kernel([extent], symbols=["number0"])


def test_many_runs_are_one_launch_with_a_table_of_their_arguments(driver: FakeDriver) -> None:
    kernel, made = loaded(scaled(64), driver)
    given = (0x1000, 0x2000, 0.5, 0x3000, 0x4000, -2.0, 0x5000, 0x6000, 3.0)
    kernel.each(array("Q", struct.pack("=QQdQQdQQd", *given)), 0x7000)
    (launch,) = driver.launches()
    alone = kernel.source.stages[0].grid
    assert list(launch.grid) == [int(alone[0]), int(alone[1]), 3]
    assert launch.values[0] == driver.held.data_ptr() and launch.stream == 0x5000
    rows = struct.unpack("=QQdQQdQQd", driver.held.numpy().tobytes())
    assert rows == given
    kernel.each(array("Q", struct.pack("=QQd", *given[:3])), 0x3000)
    assert made == [Variant(False, True), Variant(False, True, each=True)]
    assert driver.launches()[1].grid[2] == 1


@pytest.mark.parametrize("reason", ["unaligned", "recorded", "varying"])
def test_runs_that_cannot_share_a_launch_follow_each_other(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    kernel, _ = loaded(add_one("s0") if reason == "varying" else add_one(64), driver)
    monkeypatch.setattr(gpu_driver, "is_recording", lambda: reason == "recorded")
    last = 0x4004 if reason == "unaligned" else 0x4000
    size = [64] if reason == "varying" else []
    table = array("Q", (0x1000, 0x2000, *size, 0x3000, last, *size))
    kernel.each(table, 0x3000 | last)
    assert [launch.values[0] for launch in driver.launches()] == [0x1000, 0x3000]
    assert [launch.grid[2] for launch in driver.launches()] == [1, 1]
