"""Compiling processes: what they answer, and that nothing depends on any one of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from torchsmith_fx_backend._src.runtime import triton_compile, triton_pool
from torchsmith_fx_backend._src.runtime.triton_pool import NoWorkerError, Pool, WorkerFailedError
from torchsmith_fx_backend._src.runtime.triton_worker import Job

TEXT = """
import sys
import triton
import triton.language as tl
from torchsmith_fx_backend._src.codegen.triton import functions as ts

assert "torch" not in sys.modules


@triton.jit
def kernel(x, y):
    tl.store(y, ts.exp({what}))
"""


def job(folder: Path, what: str = "tl.load(x) * 2") -> Job:
    path = folder / "kernel.py"
    path.write_text(TEXT.replace("{what}", what))
    return Job(
        text=path.read_text(),
        path=str(path),
        functions=("kernel",),
        signature={"x": "*fp32", "y": "*fp32"},
        aligned=(0, 1),
        capability=90,
        options={"num_warps": 1},
        cache=str(folder / "triton"),
    )


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch):
    made = Pool()
    yield made
    made.close()


def test_a_process_compiles_one_job_after_the_other(pool: Pool, tmp_path: Path) -> None:
    for what in ("tl.load(x) * 2", "tl.load(x) + 1"):
        (result,) = pool.compile(job(tmp_path, what))
        assert result.cubin[:4] == b"\x7fELF"
        assert ".entry kernel" in result.ptx
        assert result.metadata["num_warps"] == 1
    (worker,) = pool._idle
    pool.close()
    assert worker.returncode is not None


def test_a_refusal_is_told_and_the_process_goes_on(pool: Pool, tmp_path: Path) -> None:
    with pytest.raises(WorkerFailedError, match="no_such_function"):
        pool.compile(job(tmp_path, "tl.no_such_function(x)"))
    (worker,) = pool._idle
    assert pool.compile(job(tmp_path))
    assert pool._idle == [worker]


def test_a_process_that_has_ended_is_replaced(pool: Pool, tmp_path: Path) -> None:
    pool.prepare(1)
    (worker,) = pool._idle
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    assert pool.compile(job(tmp_path))
    assert pool._idle != [worker]


def test_a_forked_process_has_its_own(pool: Pool, tmp_path: Path) -> None:
    pool.compile(job(tmp_path))
    (worker,) = pool._idle
    child = os.fork()
    if not child:
        os._exit(bool(pool._idle))
    assert os.waitpid(child, 0)[1] == 0
    assert worker.poll() is None and pool.compile(job(tmp_path))


@pytest.mark.parametrize("trouble", ["no interpreter", "no such program", "one that ends"])
def test_without_processes_the_caller_compiles(
    trouble: str, pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = {"no interpreter": "", "no such program": "/no/such", "one that ends": "/bin/true"}
    monkeypatch.setattr(sys, "executable", program[trouble])
    for _ in range(2):
        with pytest.raises(NoWorkerError):
            pool.compile(job(tmp_path))
    monkeypatch.setattr(triton_compile, "POOL", pool)
    from samples import Body, f32
    from torchsmith_fx_backend._src.codegen.triton.config import choose
    from torchsmith_fx_backend._src.codegen.triton.kernel import generate
    from torchsmith_fx_backend._src.loops.index import var

    body = Body()
    body.store(1, var(0), body.load(0, var(0), f32))
    kernel = body.kernel([8])
    source = generate(kernel, choose(kernel))
    path = tmp_path / "here.py"
    path.write_text(source.text)
    (binary,) = triton_compile.compile_source(source, path, 90, aligned=True, cache_root=tmp_path)
    assert binary.cubin[:4] == b"\x7fELF"


def test_processes_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    program = (
        "from torchsmith_fx_backend._src.runtime.triton_pool import POOL\n"
        "POOL.prepare(1); print(POOL._idle[0].pid)"
    )
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True
    )
    assert not ran.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int(ran.stdout), 0)


def test_no_more_processes_than_processors(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_pool, "processors", lambda: 2)
    pool.prepare(5)
    pool.prepare(5)
    assert len(pool._idle) == 2
