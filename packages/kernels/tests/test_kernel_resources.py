"""The kernels through triton's real compiler for sm_90: registers, spills, shared memory.

What each case needs is recorded in ``resources_sm90.json`` per triton version. After a change that
is meant, rewrite it with ``TORCHSMITH_ACCEPT=1``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torchsmith_kernels._src import launch
from torchsmith_kernels._src.rms_norm import run
from torchsmith_kernels._src.rms_norm.config import Case, candidates, derived

if find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("needs triton's compiler", allow_module_level=True)

import triton
from torchsmith_kernels._src.rms_norm import kernel
from triton.backends.compiler import GPUTarget

TARGET = GPUTarget("cuda", 90, 32)
EXPECTED = Path(__file__).parent / "resources_sm90.json"
VERSION = ".".join(triton.__version__.split(".")[:2])
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
bf16, f32 = torch.bfloat16, torch.float32


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(tmp_path_factory.mktemp("triton"))
        yield


def forward(width: int, dtype: torch.dtype, config: Any = None) -> Any:
    config = config or derived(Case("forward", width, dtype))
    return launch.compile_kernel(
        kernel.forward_kernel,
        run.forward_signature(dtype, dtype),
        run.forward_constants(width, dtype, dtype, config),
        config.num_warps,
        (True, True, True, False, width % 16 == 0, False),
        TARGET,
    )


def backward(width: int, dtype: torch.dtype, config: Any = None) -> Any:
    config = config or derived(Case("backward", width, dtype))
    constants: dict[str, Any] = {
        "N": width, "HAS_WEIGHT": True, "NEED_DX": True, "NEED_DW": True,
        "COMPUTE": launch.triton_dtype(f32), "BLOCK_M": config.block_m, "BLOCK_N": config.block_n,
    }  # fmt: skip
    kind = f"*{launch.TYPES[dtype]}"
    even = width % 16 == 0
    if config.looped:
        del constants["NEED_DW"], constants["BLOCK_M"]
        function = kernel.backward_wide_kernel
        signature = [kind] * 4 + ["*fp32", "i64", "i64", "i64", "fp64"]
        aligned = [True] * 5 + [False, even, even, False]
    else:
        function = kernel.backward_kernel
        signature = [kind] * 4 + ["*fp32", "i64", "i64", "i64", "i64", "fp64"]
        aligned = [True] * 5 + [False, even, even, False, False]
    return launch.compile_kernel(function, signature, constants, config.num_warps, aligned, TARGET)


def usage(compiled: Any, folder: Path) -> dict[str, int]:
    file = folder / "kernel.cubin"
    file.write_bytes(compiled.asm["cubin"])
    text = subprocess.run(
        [str(CUOBJDUMP), "-res-usage", str(file)], check=True, capture_output=True, text=True
    ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", text)
    assert found, text
    return {
        "registers": int(found[1]),
        "stack": int(found[2]),
        "shared": int(compiled.metadata.shared),
        "num_warps": int(compiled.metadata.num_warps),
    }


CASES = {
    f"{name} {width} {str(dtype).removeprefix('torch.')}": (function, width, dtype)
    for name, function in (("forward", forward), ("backward", backward))
    for dtype in (bf16, f32)
    for width in (64, 1000, 4096, 8192, 16384, 32768, 100_000)
}


@pytest.mark.parametrize("case", list(CASES))
def test_resources(case: str, tmp_path: Path) -> None:
    function, width, dtype = CASES[case]
    got = usage(function(width, dtype), tmp_path)
    assert got["stack"] == 0, "local memory is in use: registers spill"
    assert got["registers"] * 32 * got["num_warps"] <= 65536, "one program must fit"
    assert got["shared"] <= 48 * 1024
    table = json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {}
    if os.environ.get("TORCHSMITH_ACCEPT") == "1":
        table.setdefault(VERSION, {})[case] = got
        EXPECTED.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")
        return
    # Another version of triton allocates registers differently; the limits above hold for all.
    if VERSION in table:
        assert table[VERSION][case] == got


@pytest.mark.parametrize("kernel_name", ["forward", "backward"])
@pytest.mark.parametrize("width", [128, 4096, 16384])
def test_no_candidate_spills(kernel_name: str, width: int, tmp_path: Path) -> None:
    function = forward if kernel_name == "forward" else backward
    for config in candidates(Case(kernel_name, width, bf16)):
        assert usage(function(width, bf16, config), tmp_path)["stack"] == 0, config


def test_rows_are_read_sixteen_bytes_at_a_time() -> None:
    assert "ld.global.v4.b32" in forward(4096, bf16).asm["ptx"]
    assert "ld.global.v4.b32" in backward(4096, bf16).asm["ptx"]


def test_row_offsets_are_64_bit() -> None:
    ptx = forward(4096, bf16).asm["ptx"]
    assert re.search(r"mul\.(lo|wide)\.[su](64|32)|mad\.lo\.s64|shl\.b64", ptx)
    assert "i64" in forward(4096, bf16).asm["ttir"]


def test_weight_kernels_compile() -> None:
    compiled = launch.compile_kernel(
        kernel.weight_sum_kernel,
        ["*fp32", "*bf16", "i64"],
        {"N": 4096, "COMPUTE": launch.triton_dtype(f32), "BLOCK_M": 32, "BLOCK_N": 64},
        4,
        [True, True, False],
        TARGET,
    )
    assert compiled.asm["cubin"][:4] == b"\x7fELF"
    compiled = launch.compile_kernel(
        kernel.weight_partial_kernel,
        ["*bf16", "*bf16", "*fp32", "*fp32", "i64", "i64", "i64", "i64"],
        {"N": 100_000, "COMPUTE": launch.triton_dtype(f32), "BLOCK_M": 8, "BLOCK_N": 256},
        4,
        [True] * 4 + [False, True, True, False],
        TARGET,
    )
    assert compiled.asm["cubin"][:4] == b"\x7fELF"


def test_a_missing_weight_is_no_argument() -> None:
    config = derived(Case("forward", 64, f32))
    compiled = launch.compile_kernel(
        kernel.forward_kernel,
        run.forward_signature(f32, None),
        run.forward_constants(64, f32, None, config),
        config.num_warps,
        (True, False, True, False, True, False),
        TARGET,
    )
    assert "weight" not in compiled.asm["ttir"].partition("{")[0]
