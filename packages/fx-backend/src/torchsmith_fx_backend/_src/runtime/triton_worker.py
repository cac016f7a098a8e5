"""Compiles Triton source. Runs in this process, or as the program of another one.

Triton keeps the interpreter lock for a quarter of a kernel's compile time, so that threads of one
process are soon all waiting for it. As a program this file is the host of such processes: what
triton does once in each (imports, its dialects; 0.2 s) is done before they are forked. It imports
triton and the functions that kernels call, but not torch, which would take ten times as long.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import struct
import sys
import tempfile
import types
from collections.abc import Sequence
from io import BufferedRWPair
from pathlib import Path
from select import select
from typing import IO, Any, NamedTuple

IDLE = 60.0  # seconds without a job after which a process ends


class Job(NamedTuple):
    """What to compile.

    Attributes:
        text: source of a module with ``@triton.jit`` functions.
        path: the file that holds it: error messages and debuggers show its lines.
        functions: those to compile.
        signature: parameter name -> Triton type, in order.
        aligned: numbers of the parameters that are multiples of 16 bytes.
        capability: compute capability as ``10 * major + minor``.
        options: of triton's compiler.
    """

    text: str
    path: str
    functions: Sequence[str]
    signature: dict[str, str]
    aligned: Sequence[int]
    capability: int
    options: dict[str, Any]


class Result(NamedTuple):
    """One compiled function: its machine code, its PTX, and what triton tells of it."""

    cubin: bytes
    ptx: str
    metadata: dict[str, Any]


_TOLD = ("name", "shared", "num_warps", "num_ctas", "global_scratch_size", "profile_scratch_size")


def load_module(text: str, path: str) -> dict[str, Any]:
    """Execute generated source under its real file name, so that debuggers find the lines."""
    namespace: dict[str, Any] = {"__name__": os.path.basename(path)[:-3], "__file__": path}
    exec(compile(text, path, "exec"), namespace)
    return namespace


def compile_job(job: Job) -> list[Result]:
    """Compile every function of ``job``; triton's own errors pass through.

    Its stages are run one after the other, as ``triton.compile`` does, but for triton's own cache:
    to find names there and to write eight files for each function takes a tenth of all the time,
    and what is compiled is kept in ours.
    """
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, make_backend

    module = load_module(job.text, job.path)
    divisible = {(number,): [["tt.divisibility", 16]] for number in job.aligned}
    target = GPUTarget("cuda", job.capability, 32)
    backend = make_backend(target)
    options = backend.parse_options(dict(job.options))
    helpers = backend.get_codegen_implementation(options), backend.get_module_map()
    results = []
    for name in job.functions:
        source = ASTSource(module[name], job.signature, {}, divisible)
        stages: dict[str, Any] = {}
        backend.add_stages(stages, options, source.language)
        context = ir.context()
        ir.load_dialects(context)
        backend.load_dialects(context)
        form = source.make_ir(target, options, *helpers, context)
        made, told = {}, dict(options.__dict__)
        for kind, lower in stages.items():
            made[kind] = form = lower(form, told)
        metadata = {key: told.get(key, 0) for key in _TOLD}
        results.append(Result(made["cubin"], made["ptx"], metadata))
    return results


def send(stream: BufferedRWPair, message: object) -> None:
    """Write one message."""
    data = pickle.dumps(message)
    stream.write(struct.pack("=Q", len(data)) + data)
    stream.flush()


def receive(stream: BufferedRWPair) -> Any:
    """Read one message.

    Raises:
        EOFError: the other side has gone.
    """
    head = stream.read(8)
    if len(head) < 8:
        raise EOFError
    data = stream.read(*struct.unpack("=Q", head))
    return pickle.loads(data)


def serve(connection: socket.socket) -> None:
    """Answer jobs, each with its results or with the text of an error, until none comes."""
    stream = connection.makefile("rwb")
    with tempfile.TemporaryFile(buffering=0) as said:
        os.dup2(said.fileno(), 2)
        while select([connection], [], [], IDLE)[0]:  # one at a time: none waits in the buffer
            try:
                job = Job(*receive(stream))
            except EOFError:
                return
            send(stream, _answer(job, said))


def _answer(job: Job, said: IO[bytes]) -> object:
    """Results, or the text of an error. Where one of its passes fails, the compiler prints all of
    its input into ``said``: the lines that say what failed are part of the error."""
    try:
        return [tuple(result) for result in compile_job(job)]
    except Exception as error:  # noqa: BLE001 - whatever it is, the asker tells it
        said.seek(0)
        lines = said.read().decode(errors="replace").splitlines()
        said.seek(0)
        said.truncate()
        failed = [x for x in lines if ": error: " in x or ": note: Pipeline failed" in x]
        return "\n".join((f"{type(error).__name__}: {error}", *failed[:9]))


def host(control: socket.socket) -> None:
    """Fork a process for every connection that comes with a byte, until none comes."""
    _warm_up()
    while select([control], [], [], IDLE)[0]:
        told, connections, _, _ = socket.recv_fds(control, 1, 1)
        if not told:
            return
        if os.fork():
            for each in connections:
                os.close(each)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            continue
        control.close()
        with contextlib.suppress(OSError):  # the asker has gone
            serve(socket.socket(fileno=connections[0]))
        os._exit(0)


_SMALLEST = """
import triton
import triton.language as tl
from torchsmith_fx_backend._src.codegen.triton import functions


@triton.jit
def smallest(x):
    tl.store(x, 0.0)
"""


def _warm_up() -> None:
    """Compile something, so that triton has loaded all that it needs."""
    with tempfile.TemporaryDirectory(prefix="torchsmith-") as folder:
        path = os.path.join(folder, "smallest.py")
        Path(path).write_text(_SMALLEST)
        options = {"enable_fp_fusion": True}  # newer versions warn where it is not said
        signature = {"x": "*fp32"}
        compile_job(Job(_SMALLEST, path, ["smallest"], signature, (0,), 80, options))


def allow_functions() -> None:
    """Let kernels import the functions that they call, without what the packages around import."""
    folder = Path(__file__).parents[2]
    name = folder.name
    for part in ("", "_src", "codegen", "triton"):
        folder, name = folder / part, f"{name}.{part}" if part else name
        package = types.ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the asker's to handle
    os.dup2(2, 1)  # what a compiler prints is no output of the program
    sys.path.insert(0, sys.argv[1])
    allow_functions()
    host(socket.socket(fileno=os.dup(0)))
