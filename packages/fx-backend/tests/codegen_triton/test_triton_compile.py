"""Printed kernels through triton's real compiler for sm_90, which needs no GPU."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "schedule"))

import pytest
import torch
import triton
from loop_reader import read_kernel
from plans import kernels, trace
from samples import Body, f32, f64, i64, row_major
from torchsmith_fx_backend._src.codegen.triton.config import Config, Schedule, choose
from torchsmith_fx_backend._src.codegen.triton.kernel import generate
from torchsmith_fx_backend._src.codegen.triton.source import TritonSource
from torchsmith_fx_backend._src.loops.index import add, const, mul, var
from torchsmith_fx_backend._src.loops.ir import LIBRARY, Kernel, Op, ReduceOp
from torchsmith_fx_backend._src.runtime import gpu
from torchsmith_fx_backend._src.runtime.cache import Cache
from torchsmith_fx_backend._src.runtime.gpu import GpuLauncher
from torchsmith_fx_backend._src.runtime.gpu_driver import SharedMemoryError
from torchsmith_fx_backend._src.runtime.launchers import (
    KernelFailedError,
    KernelRequest,
    LoadedKernel,
    Tunable,
)
from torchsmith_fx_backend._src.runtime.triton_compile import (
    TritonCompileError,
    compile_source,
    compile_stages,
    parameter_count,
    to_binary,
)
from torchsmith_fx_backend._src.runtime.triton_worker import Job, Result, compile_job
from torchsmith_fx_backend._src.schedule import schedule_graph
from windows import PROGRAMS, in_threads, inputs

bf16 = torch.bfloat16
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


@dataclass(frozen=True)
class Usage:
    registers: int
    stack: int
    shared: int
    ptx: str


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def compile_kernel(
    kernel: Kernel,
    cache: Path,
    config: Config | None = None,
    wide: bool = False,
    aligned: bool = True,
) -> list[Usage]:
    source = generate(kernel, config or choose(kernel), wide=wide)
    return compile_text(source, cache, aligned)


def compile_text(source: TritonSource, cache: Path, aligned: bool = True) -> list[Usage]:
    path = cache / f"{source.stages[0].function}.py"
    path.write_text(source.text)
    stages = compile_stages(source, path, 90, aligned=aligned)
    return [usage_of(each.cubin, each.ptx, each.metadata["shared"], cache) for each in stages]


def usage_of(cubin: bytes, ptx: str, shared: int, folder: Path) -> Usage:
    file = folder / "last.cubin"
    file.write_bytes(cubin)
    text = subprocess.run(
        [str(CUOBJDUMP), "-res-usage", str(file)], check=True, capture_output=True, text=True
    ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", text)
    assert found, text
    return Usage(int(found[1]), int(found[2]), shared, ptx)


def gelu(n: int, dtype: torch.dtype = bf16) -> Kernel:
    body = Body()
    x = body.cast(body.load(0, var(0), dtype), f32)
    erf = body.op(Op.ERF, body.op(Op.MUL, x, body.literal(0.7071067811865476)))
    half = body.op(Op.MUL, x, body.literal(0.5))
    y = body.op(Op.MUL, half, body.op(Op.ADD, erf, body.literal(1.0)))
    body.store(1, var(0), body.cast(y, dtype))
    return body.kernel([n])


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
    total = body.reduce(
        ReduceOp.SUM, body.cast(body.load(0, add(mul(const(cols), var(1)), var(0)), bf16), f32)
    )
    body.store(1, var(0), total)
    return body.kernel([cols, rows], 1)


def arg_max(rows: int, cols: int) -> Kernel:
    body = Body()
    body.store(1, var(0), body.reduce(ReduceOp.ARGMAX, body.load(0, row_major([rows, cols]))))
    return body.kernel([rows, cols], 1)


def transpose(rows: int, cols: int) -> Kernel:
    body = Body()
    body.store(
        1, row_major([rows, cols]), body.load(0, add(mul(const(rows), var(1)), var(0)), bf16)
    )
    return body.kernel([rows, cols])


@pytest.mark.parametrize(
    ("name", "kernel", "registers"),
    [
        ("gelu", gelu(1 << 20), 64),
        ("softmax 4096", softmax(8192, 4096), 64),
        ("softmax 16384", softmax(8192, 16384), 128),
        ("softmax 100000", softmax(512, 100_000), 96),
        ("softmax unknown", softmax("s0", "s1"), 128),
        ("column sum", column_sum(100_000, 768), 96),
        ("row sum split", column_sum(1_000_000, 1), 96),
        ("argmax", arg_max(4096, 8000), 96),
        ("argmax split", arg_max(2, 1_000_000), 96),
        ("transpose", transpose(2048, 4096), 64),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_kernels_compile_without_spills(
    name: str, kernel: Kernel, registers: int, cache: Path
) -> None:
    for usage in compile_kernel(kernel, cache):
        assert usage.stack == 0, f"{name}: local memory is in use"
        assert usage.registers <= registers, name
        assert usage.shared <= 48 * 1024, name


@pytest.mark.parametrize(
    ("kernel", "access"),
    [
        (gelu(1 << 20), "ld.global.v4.b32"),
        (softmax(8192, 4096), "ld.global"),
        (gelu(1 << 20, f32), "ld.global"),
    ],
    ids=["gelu bf16", "softmax", "gelu f32"],
)
def test_aligned_accesses_are_sixteen_bytes_wide(kernel: Kernel, access: str, cache: Path) -> None:
    if kernel.args[0].dtype is f32:
        body = Body()
        body.store(1, var(0), body.op(Op.EXP, body.load(0, var(0))))
        kernel = body.kernel([1 << 20])
    (usage,) = compile_kernel(kernel, cache)
    assert "v4.b32" in usage.ptx and access in usage.ptx


def test_rows_of_odd_length_are_still_read_sixteen_bytes_at_a_time(cache: Path) -> None:
    # Batch norm with its residual: a value per channel, images of 14 * 14.
    shape = [16, 256, 196]
    body = Body()
    x = body.cast(body.load(0, row_major(shape), bf16), f32)
    scaled = body.op(Op.MUL, x, body.cast(body.load(1, var(1), bf16), f32))
    body.store(2, row_major(shape), body.cast(scaled, bf16))
    (usage,) = compile_kernel(body.kernel(shape), cache)
    assert "ld.global.v4.b32" in usage.ptx and "st.global.v4.b32" in usage.ptx


@pytest.mark.parametrize("name", PROGRAMS)
def test_windows_compile_without_spills(
    name: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_threads(monkeypatch)
    found = kernels(schedule_graph(trace(PROGRAMS[name][0], *inputs(name, bf16))))
    assert found
    for kernel in found:
        assert all(usage.stack == 0 for usage in compile_kernel(kernel, cache))


@pytest.mark.parametrize("tensors", [2, 6, 12, 24])
def test_steps_under_way_fit_into_any_chip_however_many_tensors_are_read(
    tensors: int, cache: Path
) -> None:
    body, here = Body(), add(mul(const(512), var(1)), var(0))
    value = body.load(0, here)
    for number in range(1, tensors):
        value = body.op(Op.MUL, value, body.load(number, here))
    body.store(tensors, var(0), body.reduce(ReduceOp.SUM, value))
    kernel = body.kernel([512, 8192], 1)
    assert choose(kernel).schedule is Schedule.SPLIT
    assert all(stage.shared <= 99 * 1024 for stage in compile_kernel(kernel, cache))


def test_unaligned_variant_assumes_nothing(cache: Path) -> None:
    (usage,) = compile_kernel(gelu(1 << 20), cache, aligned=False)
    assert "ld.global.v4" not in usage.ptx


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("schedule", [Schedule.PERSISTENT, Schedule.LOOPED, Schedule.SPLIT])
@pytest.mark.parametrize("dtype", [f32, f64, torch.int32, i64, torch.int8, torch.uint8], ids=str)
def test_every_reduction_compiles_for_every_dtype(
    dtype: torch.dtype, schedule: Schedule, wide: bool, cache: Path
) -> None:
    body = Body()
    x = body.load(0, row_major([10, 300]), dtype)
    ops = [
        ReduceOp.SUM,
        ReduceOp.PROD,
        ReduceOp.MAX,
        ReduceOp.MIN,
        ReduceOp.ARGMAX,
        ReduceOp.ARGMIN,
    ]
    for number, op in enumerate(ops, 1):
        body.store(number, var(0), body.reduce(op, x))
    flag = body.op(Op.GT, x, body.literal(0, dtype))
    body.store(7, var(0), body.reduce(ReduceOp.ANY, flag))
    body.store(8, var(0), body.reduce(ReduceOp.ALL, flag))
    r_block = 512 if schedule is Schedule.PERSISTENT else 64
    config = Config(schedule, 1, r_block=r_block, splits=4 if schedule is Schedule.SPLIT else 1)
    assert compile_kernel(body.kernel([10, 300], 1), cache, config, wide)


IN_ORDER = """
@kernel(ranges=(s0, 40, 64), reduce_from={start}, args=("{dtype} read", "{dtype} written", "int64 read"),
        symbols=("s0",))
def _(a0, a1, a2, i0, i1, i2):
    v0 = load(a0, 2560 * i0 + 64 * i1 + i2)
    v1 = load(a2, 40 * i0 + i1)
    v2 = position(v1, 40, 'IndexError', 'index {{index}}')
    {store}
"""  # noqa: E501


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "int64", "int8", "float64"])
def test_scans_and_scatters_compile(dtype: str, wide: bool, cache: Path) -> None:
    for op in ("sum", "prod", "max", "argmin", "logsumexp"):
        if op == "logsumexp" and dtype.startswith("int"):
            continue
        value = "cast(v4, 'bool')" if op == "argmin" else "gt(v4, v4)"
        found = f"v4 = scan_{op}(v0)\n    v5 = {value}\n    v6 = where(v5, v0, v0)"
        text = IN_ORDER.format(
            start=2, dtype=dtype, store=f"{found}\n    store(a1, 2560 * i0 + 64 * i1 + i2, v6)"
        )
        assert compile_kernel(read_kernel(text), cache, wide=wide)
    sums = () if dtype == "int8" else ("sum",)
    for mode in ("last", "add", "max", *sums):
        place = "2560 * i0 + 64 * at(v2) + i2"
        text = IN_ORDER.format(start=3, dtype=dtype, store=f"store(a1, {place}, v0, {mode!r})")
        assert compile_kernel(read_kernel(text), cache, wide=wide)


FLOAT_OPS = [
    op
    for op in Op
    if op not in (Op.AND, Op.OR, Op.XOR, Op.NOT, Op.SHL, Op.SHR, Op.CAST, Op.WHERE, Op.FMA)
]
INT_OPS = [
    Op.ADD,
    Op.SUB,
    Op.MUL,
    Op.FLOORDIV,
    Op.TRUNCDIV,
    Op.MOD,
    Op.FMOD,
    Op.NEG,
    Op.ABS,
    Op.POW,
    Op.MINIMUM,
    Op.MAXIMUM,
    Op.AND,
    Op.OR,
    Op.XOR,
    Op.NOT,
    Op.SHL,
    Op.SHR,
    Op.EQ,
    Op.LT,
]
UNARY = {
    Op.NEG,
    Op.ABS,
    Op.EXP,
    Op.EXP2,
    Op.EXPM1,
    Op.LOG,
    Op.LOG2,
    Op.LOG1P,
    Op.SQRT,
    Op.RSQRT,
    Op.SIN,
    Op.COS,
    Op.TANH,
    Op.ERF,
    *LIBRARY,
    Op.SIGMOID,
    Op.RECIPROCAL,
    Op.FLOOR,
    Op.CEIL,
    Op.TRUNC,
    Op.ROUND,
    Op.ISNAN,
    Op.ISINF,
    Op.NOT,
}


@pytest.mark.parametrize(
    ("dtype", "ops"),
    [
        (f32, FLOAT_OPS),
        (f64, FLOAT_OPS),
        *((d, INT_OPS) for d in (torch.uint8, torch.int8, torch.int16, torch.int32, i64)),
    ],
    ids=lambda value: str(value) if isinstance(value, torch.dtype) else "",
)
def test_every_scalar_operation_compiles(dtype: torch.dtype, ops: list[Op], cache: Path) -> None:
    body = Body()
    a, b = body.load(0, var(0), dtype), body.load(1, var(0), dtype)
    for number, op in enumerate(ops, 2):
        body.store(number, var(0), body.op(op, a) if op in UNARY else body.op(op, a, b))
    assert compile_kernel(body.kernel([1000]), cache)


def test_every_cast_compiles(cache: Path) -> None:
    kinds = [
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        i64,
        torch.float16,
        bf16,
        f32,
        f64,
    ]
    for source in kinds:
        body = Body()
        x = body.load(0, var(0), source)
        for number, target in enumerate(kinds, 1):
            body.store(number, var(0), body.cast(x, target))
        assert compile_kernel(body.kernel([1000]), cache)


def test_subnormals_survive_libdevice(cache: Path) -> None:
    body = Body()
    body.store(
        1, var(0), body.op(Op.LOG1P, body.op(Op.POW, body.load(0, var(0)), body.literal(3.0)))
    )
    (usage,) = compile_kernel(body.kernel([1000]), cache)
    assert not re.search(r"(add|mul|fma|sub)(\.rn)?\.ftz", usage.ptx)


_CALLS = """
import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice
from torchsmith_fx_backend._src.codegen.triton import functions as ts


@triton.jit
def kernel(x, y):
    position = tl.program_id(0) + {position}
"""
_VALUES = (
    "{}.exp(tl.load(x + position))",
    "{}.exp(tl.load(x + position) - 2.0) * 3.0",
    "1.0 / (1.0 + {}.exp(-tl.load(x + position)))",
    "{}.rsqrt(tl.load(x + position))",
    "tl.load(x + position) * {}.rsqrt(tl.load(x + position) + 1e-5)",
)


@pytest.mark.parametrize(
    "position, kind", [("0", "fp32"), ("tl.arange(0, 512)", "fp32"), ("0", "fp64")]
)
def test_instructions_written_out_are_those_of_libdevice(
    position: str, kind: str, tmp_path: Path
) -> None:
    found = []
    for module in ("libdevice", "ts"):
        path = tmp_path / f"{module}.py"
        values = (f"{value.format(module)})\n" for value in _VALUES)
        lines = (f"    tl.store(y + {n} * 4096 + position, {v}" for n, v in enumerate(values))
        path.write_text(_CALLS.format(position=position) + "".join(lines))
        signature = {"x": f"*{kind}", "y": f"*{kind}"}
        options = {"enable_reflect_ftz": False, "enable_fp_fusion": True}
        job = Job(path.read_text(), str(path), ["kernel"], signature, (0, 1), 90, options)
        (result,) = compile_job(job)
        cubin = tmp_path / f"{module}.cubin"
        cubin.write_bytes(result.cubin)
        command = [str(CUOBJDUMP), "-sass", str(cubin)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        names = re.findall(r"/\*[0-9a-f]{4,}\*/ +(?:@\S+ )?([A-Z][\w.]*)", text)
        found.append(sorted(name for name in names if name.startswith(("F", "MUFU", "D"))))
    assert len([name for name in found[0] if name.startswith("MUFU")]) >= len(_VALUES)
    assert found[0] == found[1]


def test_binary_holds_what_a_launch_needs(cache: Path) -> None:
    source = generate(softmax("s0", "s1"), choose(softmax("s0", "s1")))
    path = cache / "binary.py"
    path.write_text(source.text)
    (binary,) = compile_source(source, path, 90, aligned=True)
    assert binary.name == source.stages[0].function
    assert binary.cubin[:4] == b"\x7fELF"
    assert binary.num_warps == source.config.num_warps
    assert binary.parameters >= len(source.pointers) + len(source.symbols)


def test_parameter_count_rejects_narrow_parameters() -> None:
    head = ".visible .entry k(\n .param .u64 .ptr .global k_param_0,\n .param .u32 k_param_1\n)"
    with pytest.raises(TritonCompileError, match="unexpected kernel parameters"):
        parameter_count(head)
    assert parameter_count(head.replace("u32", "u64")) == 2


def test_a_kernel_that_triton_rejects_names_its_file(tmp_path: Path) -> None:
    source = generate(gelu(64), choose(gelu(64)))
    broken = source.text.replace("tl.load(", "tl.no_such_function(")
    path = tmp_path / "broken.py"
    path.write_text(broken)
    import dataclasses

    with pytest.raises(TritonCompileError, match=str(path)):
        compile_source(dataclasses.replace(source, text=broken), path, 90, aligned=True)


def test_to_binary_refuses_scratch_memory() -> None:
    told = {"name": "k", "global_scratch_size": 64, "profile_scratch_size": 0, "num_ctas": 1}
    with pytest.raises(TritonCompileError, match="scratch"):
        to_binary(Result(b"", "", told))


def test_forms_of_a_kernel_are_compiled_apart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What does not compile or load takes the place of its kernel; each form has its own key."""

    class Loaded:
        launch = each = print

        def __init__(self, sources: dict, ordinal: int, obtain: object, driver: object) -> None:
            self.source = next(iter(sources.values()))
            if self.source.config.x_block == 256:
                raise SharedMemoryError("too much shared memory")

    monkeypatch.setattr(gpu, "_capability", lambda ordinal: 90)
    monkeypatch.setattr(gpu, "_sm_count", lambda ordinal: 132)
    monkeypatch.setattr(gpu, "driver", lambda: None)
    monkeypatch.setattr(gpu, "TritonKernel", Loaded)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda ordinal: "a chip")
    monkeypatch.setattr(torch.version, "hip", None)
    body = Body()
    body.store(1, var(0), body.load(0, var(0)))
    kernel, device = body.kernel([5000]), torch.device("cuda", 0)
    launcher, cache = GpuLauncher(), Cache(tmp_path / "cache")
    assert isinstance(launcher, Tunable)
    configs, machine = launcher.candidates(kernel, {}, device)
    assert configs[0] == choose(kernel) and machine.endswith(":a chip")
    tried = [None, configs[0], *(Config(Schedule.POINTWISE, x) for x in (100, 256))]
    requests = [KernelRequest(kernel, device, config=config) for config in tried]
    usual, first, odd, full = launcher.attempt(requests, cache)
    assert isinstance(usual, LoadedKernel) and isinstance(first, LoadedKernel)
    assert usual.source == first.source and usual.key != first.key
    assert isinstance(odd, TritonCompileError) and isinstance(full, SharedMemoryError)
    with pytest.raises(KernelFailedError) as raised:  # but for it the others are fine
        launcher.load([requests[0], requests[3]], cache)
    assert [request for request, _ in raised.value.failed] == [requests[3]]
    again = launcher.restore([usual.key, first.key], device, cache)
    assert again is not None and [k.source for k in again] == [usual.source, first.source]
