"""Compiler discovery, kernel sharing, the entry points' argument checks."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
import torch
from torchsmith_fx_backend._src.runtime import compiler as compiler_module
from torchsmith_fx_backend._src.runtime.cache import Cache
from torchsmith_fx_backend._src.runtime.compiler import CompileError, Compiler, find_compiler
from torchsmith_fx_backend._src.runtime.launchers import KernelRequest, Unavailable
from torchsmith_fx_backend._src.runtime.native import NativeLauncher, NoCompilerWarning

CPU = torch.device("cpu")


def forbid_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_(self: Compiler, jobs: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(Compiler, "compile", compile_)


def copied(cache: Cache) -> Cache:
    """The same entries in new files: the loader remembers files that this process has mapped."""
    return Cache(shutil.copytree(cache.root, cache.root.with_name("copy")))


def run_add(launcher: NativeLauncher, cache: Cache, plans, value: float) -> torch.Tensor:
    (kernel,) = launcher.load([KernelRequest(plans.add(value, 8), CPU)], cache)
    x, y = torch.arange(8.0), torch.zeros(8)
    kernel.launch(x.data_ptr(), y.data_ptr())
    return y - x


def test_kernel_runs(cache: Cache, plans) -> None:
    assert run_add(NativeLauncher(), cache, plans, 2.5).tolist() == [2.5] * 8


def test_equal_kernels_compile_once_in_a_process(
    cache: Cache, plans, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = NativeLauncher()
    first, second = launcher.load([KernelRequest(plans.add(1.0, 8), CPU)] * 2, cache)
    assert first is second
    forbid_compiling(monkeypatch)
    requests = [KernelRequest(plans.add(1.0, 8), CPU, ("another origin",))]
    assert launcher.load(requests, cache)[0] is first


def test_equal_kernels_compile_once_across_launchers(
    cache: Cache, plans, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_add(NativeLauncher(), cache, plans, 1.0)
    forbid_compiling(monkeypatch)
    assert run_add(NativeLauncher(), Cache(cache.root), plans, 1.0).tolist() == [1.0] * 8


def test_many_kernels_are_compiled_side_by_side(cache: Cache, plans) -> None:
    requests = [KernelRequest(plans.add(float(n), 8), CPU) for n in range(20)]
    kernels = NativeLauncher().load(requests, cache)
    for number, kernel in enumerate(kernels):
        x = torch.zeros(8)
        kernel.launch(x.data_ptr(), x.data_ptr())
        assert x.tolist() == [float(number)] * 8
    units = list(cache.root.glob("v1/*/*/unit.so"))
    assert 1 <= len(units) <= 3


@pytest.mark.parametrize("victim", ["unit.so", "unit.c", "kernels.txt"])
def test_damaged_kernel_is_rebuilt(cache: Cache, plans, victim: str) -> None:
    run_add(NativeLauncher(), cache, plans, 1.0)
    again = copied(cache)
    (path,) = again.root.glob(f"v1/*/*/{victim}")
    path.write_bytes(b"damaged")
    assert run_add(NativeLauncher(), again, plans, 1.0).tolist() == [1.0] * 8
    assert any(m.reason.startswith("corrupt") for m in again.misses)


def test_shared_object_of_the_right_hash_that_does_not_load(cache: Cache, plans) -> None:
    """As from a machine of another kind: a warning, and it is built anew."""
    run_add(NativeLauncher(), cache, plans, 1.0)
    again = copied(cache)
    (path,) = again.root.glob("v1/*/*/unit.so")
    manifest = path.with_name("MANIFEST")
    old, new = hashlib.sha256(path.read_bytes()).hexdigest(), hashlib.sha256(b"alien").hexdigest()
    path.write_bytes(b"alien")
    manifest.write_text(manifest.read_text().replace(old, new))
    with pytest.warns(UserWarning, match="does not load and is compiled again"):
        got = run_add(NativeLauncher(), again, plans, 1.0)
    assert got.tolist() == [1.0] * 8


def test_wrong_arguments_raise(cache: Cache, plans) -> None:
    (kernel,) = NativeLauncher().load([KernelRequest(plans.add(1.0, 8), CPU)], cache)
    with pytest.raises(TypeError, match="takes 2 arguments"):
        kernel.launch(0)
    with pytest.raises(TypeError):
        kernel.launch("pointer", 0)


def test_without_a_compiler_one_warning(
    cache: Cache, plans, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    launcher = NativeLauncher()
    request = [KernelRequest(plans.add(1.0, 8), CPU)]
    with pytest.warns(NoCompilerWarning, match="no C compiler found") as caught:
        with pytest.raises(Unavailable):
            launcher.load(request, cache)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(Unavailable):
            launcher.load(request, cache)


def test_broken_compiler_is_reported_with_its_message(
    cache: Cache, plans, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = tmp_path / "fakecc"
    fake.write_text("#!/bin/sh\necho 'license expired' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("CC", str(fake))
    with pytest.warns(NoCompilerWarning, match="license expired"), pytest.raises(Unavailable):
        NativeLauncher().load([KernelRequest(plans.add(1.0, 8), CPU)], cache)


def test_cc_is_preferred(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plain = find_compiler()
    assert plain is not None
    wrapper = tmp_path / "mycc"
    wrapper.write_text(f'#!/bin/sh\nexec {plain.command[0]} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("CC", f"{wrapper} -DX=1")
    chosen = find_compiler()
    assert chosen is not None
    assert chosen.command == (str(wrapper), "-DX=1")
    assert chosen.identity != plain.identity


def test_flags_that_the_compiler_rejects_are_dropped(tmp_path: Path) -> None:
    plain = find_compiler()
    assert plain is not None
    picky = Compiler(plain.command, (("-fno-such-flag-at-all",), ()), "x")
    source = tmp_path / "a.c"
    source.write_text("int f(void) { return 1; }\n")
    picky.compile([(source, tmp_path / "a.so")])
    assert (tmp_path / "a.so").exists()
    source.write_text("int f(void) { return }\n")
    with pytest.raises(CompileError, match="error"):
        picky.compile([(source, tmp_path / "b.so")])


def test_openmp_runtime_is_the_one_that_torch_uses(cache: Cache, plans) -> None:
    """Two OpenMP runtimes in a process would double the threads."""
    script = (
        "import torch, re\n"
        "from pathlib import Path\n"
        "def runtimes():\n"
        "    maps = Path('/proc/self/maps').read_text()\n"
        "    return set(re.findall(r'/\\S*/lib(?:gomp|iomp5|omp)[-.\\w]*', maps))\n"
        "before = runtimes()\n"
        "from torchsmith_fx_backend._src.runtime.native import NativeLauncher\n"
        "from torchsmith_fx_backend._src.runtime.launchers import KernelRequest\n"
        "from torchsmith_fx_backend._src.runtime.cache import Cache\n"
        "from torchsmith_fx_backend._src.loops.ir import *\n"
        "from torchsmith_fx_backend._src.loops.index import const, var\n"
        "import sys\n"
        "f = torch.float32\n"
        "k = Kernel((const(1000000),), 1, (Load(0, var(0), f), Store(1, var(0), 0)),\n"
        "           (BufferArg(f, True, False), BufferArg(f, False, True)), ())\n"
        "r = KernelRequest(k, torch.device('cpu'))\n"
        "(loaded,) = NativeLauncher().load([r], Cache(sys.argv[1]))\n"
        "x, y = torch.randn(1000000), torch.zeros(1000000)\n"
        "loaded.launch(x.data_ptr(), y.data_ptr())\n"
        "assert torch.equal(x, y)\n"
        "assert runtimes() == before, (before, runtimes())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(cache.root)], capture_output=True, timeout=120
    )
    assert done.returncode == 0, done.stderr.decode()


def test_kernels_run_from_other_threads(cache: Cache, plans) -> None:
    launcher = NativeLauncher()
    results: dict[int, list[float]] = {}

    def work(number: int) -> None:
        results[number] = run_add(launcher, cache, plans, float(number)).tolist()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {n: [float(n)] * 8 for n in range(6)}


def test_identity_covers_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = find_compiler()
    assert plain is not None
    monkeypatch.setattr(compiler_module, "_processor", lambda: "another one")
    assert compiler_module._identity(plain.command, plain.flags) != plain.identity


def test_vector_registers_are_clean_after_a_kernel() -> None:
    """Scalar code is several times slower while the upper halves of vector registers are in use."""
    compiler = find_compiler()
    assert compiler is not None
    source = "void f(float *a) { for (int i = 0; i < 999; i++) a[i] = a[i] * 2.0f; }"
    command = [*compiler.command, *compiler.flags[0], "-S", "-x", "c", "-", "-o", "-"]
    shown = subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout
    if "ymm" not in shown and "zmm" not in shown:
        pytest.skip("this processor has no such registers")
    assert "vzeroupper" in shown
