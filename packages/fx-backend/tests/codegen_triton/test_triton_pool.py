"""Compiling processes: what they answer, and that nothing depends on any one of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from torchsmith_fx_backend._src.runtime import triton_compile
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
        options={"num_warps": 1, "enable_fp_fusion": True},
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
    assert len(pool._idle) == len(workers(pool)) == 1
    host = pool._host.process
    pool.close()
    assert host.returncode is not None


def test_a_refusal_is_told_and_the_process_goes_on(pool: Pool, tmp_path: Path) -> None:
    with pytest.raises(WorkerFailedError, match="no_such_function"):
        pool.compile(job(tmp_path, "tl.no_such_function(x)"))
    (worker,) = workers(pool)
    assert pool.compile(job(tmp_path))
    assert workers(pool) == [worker]


def test_what_a_failing_pass_prints_is_told_in_short(
    pool: Pool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fails = """
import os
os.write(2, b"%0 = tt.load\\n" * 1000 + b"kernel.py:3:0: error: {what}\\n")
raise RuntimeError("PassManager::run failed")
"""
    for what in ("first pass", "second pass"):
        wrong = job(tmp_path)._replace(text=fails.replace("{what}", what))
        with pytest.raises(WorkerFailedError) as raised:
            pool.compile(wrong)
        lines = str(raised.value).splitlines()
        assert lines[0].endswith("RuntimeError: PassManager::run failed")
        assert lines[1:] == [f"kernel.py:3:0: error: {what}"]
    assert capfd.readouterr().err == ""
    assert len(workers(pool)) == 1


def workers(pool: Pool) -> list[int]:
    """Processes that the host of ``pool`` has forked."""
    number = pool._host.process.pid
    return [int(n) for n in Path(f"/proc/{number}/task/{number}/children").read_text().split()]


def ended(process: int) -> bool:
    """Whether a process that is no child of ours ends soon."""
    for _ in range(200):
        try:
            if Path(f"/proc/{process}/stat").read_text().split(") ")[1][0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


def test_a_process_that_has_ended_is_replaced(pool: Pool, tmp_path: Path) -> None:
    pool.compile(job(tmp_path))
    (worker,) = workers(pool)
    os.kill(worker, signal.SIGKILL)
    assert ended(worker)
    assert pool.compile(job(tmp_path))
    assert worker not in workers(pool)


def test_a_host_that_has_ended_is_replaced(pool: Pool, tmp_path: Path) -> None:
    pool.prepare()
    before = pool._host.process
    before.kill()
    before.wait()
    assert pool.compile(job(tmp_path))
    assert pool._host.process is not before


def test_a_forked_process_has_its_own(pool: Pool, tmp_path: Path) -> None:
    pool.compile(job(tmp_path))
    host = pool._host.process
    child = os.fork()
    if not child:
        os._exit(pool._host is not None or bool(pool._idle))
    assert os.waitpid(child, 0)[1] == 0
    assert host.poll() is None and pool.compile(job(tmp_path))
    assert pool._host.process is host and len(workers(pool)) == 1


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
    (binary,) = triton_compile.compile_source(source, path, 90, aligned=True)
    assert binary.cubin[:4] == b"\x7fELF"


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), 9)"])
def test_processes_end_with_the_one_that_started_them(end: str, tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from test_triton_pool import job, workers\n"
        "from torchsmith_fx_backend._src.runtime.triton_pool import POOL\n"
        "POOL.compile(job(Path(sys.argv[1])))\n"
        "print(POOL._host.process.pid, *workers(POOL), flush=True)\n"
    )
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program + end, str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert not ran.stderr
    processes = [int(n) for n in ran.stdout.split()]
    assert len(processes) == 2 and all(map(ended, processes))


def test_jobs_of_threads_are_compiled_side_by_side(pool: Pool, tmp_path: Path) -> None:
    folders = [tmp_path / str(i) for i in range(6)]
    for folder in folders:
        folder.mkdir()
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(lambda folder: pool.compile(job(folder)), folders))
    assert all(result.cubin[:4] == b"\x7fELF" for (result,) in found)
    assert 1 <= len(workers(pool)) <= 3
