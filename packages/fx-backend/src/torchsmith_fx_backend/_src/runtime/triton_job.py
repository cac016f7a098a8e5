"""One compilation by triton, told in plain data: in this process, or in one of its own.

Triton's front end holds the interpreter's lock, so threads do not compile side by side; processes
do. This file is also their program: ``python triton_job.py`` reads jobs from its standard input and
writes what they give to its standard output. It imports neither torch nor this package.
"""

from __future__ import annotations

import os
import pickle
import re
import select
import sys
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

IDLE_SECONDS = 60.0  # after so long without a job a process ends
HEADER = 8  # bytes before a message: its length


class Job(NamedTuple):
    """A module of ``@triton.jit`` functions and how to compile it.

    Attributes:
        text: the module's source.
        path: the file that holds it; debuggers and messages name it.
        functions: what to compile, all of the same parameters.
        signature: parameter name -> Triton type, in order.
        divisible: so many of the first parameters may be assumed to be multiples of 16 bytes.
        capability: compute capability as ``10 * major + minor``.
        options: triton's.
        cache: triton's own cache directory.
    """

    text: str
    path: str
    functions: tuple[str, ...]
    signature: dict[str, str]
    divisible: int
    capability: int
    options: dict[str, object]
    cache: str


@dataclass(frozen=True, slots=True)
class Binary:
    """One compiled ``@triton.jit`` function.

    Attributes:
        name: entry name in the cubin.
        cubin: the machine code.
        shared: dynamic shared memory in bytes.
        num_warps: warps per program.
        parameters: number of 8-byte kernel parameters, the compiler's hidden ones included.
    """

    name: str
    cubin: bytes
    shared: int
    num_warps: int
    parameters: int


class TritonCompileError(RuntimeError):
    """Triton rejected a generated kernel; the message holds its text and the source's path."""


def load_module(text: str, path: Path) -> dict[str, Any]:
    """Executes generated source under its real file name, so that debuggers find the lines."""
    namespace: dict[str, Any] = {"__name__": path.stem, "__file__": str(path)}
    exec(compile(text, str(path), "exec"), namespace)
    return namespace


def stages(job: Job) -> list[Any]:
    """Triton's ``CompiledKernel`` of each function, PTX included.

    Raises:
        TritonCompileError: triton rejects the source; ``__cause__`` is its own error.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module = load_module(job.text, Path(job.path))
    divisible = {(i,): [["tt.divisibility", 16]] for i in range(job.divisible)}
    target = GPUTarget("cuda", job.capability, 32)
    compiled = []
    for function in job.functions:
        try:
            ast = ASTSource(module[function], job.signature, {}, divisible)
            compiled.append(triton.compile(ast, target=target, options=job.options))
        except Exception as error:
            message = f"triton cannot compile {function} in {job.path}: {error}"
            raise TritonCompileError(message) from error
    return compiled


def to_binary(compiled: Any) -> Binary:
    """Extracts what a launch needs from a ``CompiledKernel``.

    Raises:
        TritonCompileError: the kernel asks for something that generated kernels never use.
    """
    metadata = compiled.metadata
    scratch = metadata.global_scratch_size + getattr(metadata, "profile_scratch_size", 0)
    if scratch or metadata.num_ctas != 1:
        raise TritonCompileError(f"{metadata.name} needs scratch memory or a cluster launch")
    return Binary(
        name=metadata.name,
        cubin=compiled.asm["cubin"],
        shared=metadata.shared,
        num_warps=metadata.num_warps,
        parameters=parameter_count(compiled.asm["ptx"]),
    )


def parameter_count(ptx: str) -> int:
    """Number of parameters of the (only) entry of ``ptx``.

    Raises:
        TritonCompileError: a parameter is not 8 bytes wide.
    """
    head = re.search(r"\.entry\s+\w+\s*\((.*?)\)", ptx, re.DOTALL)
    kinds: Sequence[str] = re.findall(r"\.param\s+\.(\w+)", head.group(1)) if head else ()
    if any(kind not in ("u64", "b64", "s64", "f64") for kind in kinds):
        raise TritonCompileError(f"unexpected kernel parameters: {', '.join(kinds)}")
    return len(kinds)


def send(stream: BinaryIO, message: object) -> None:
    """Write one message."""
    data = pickle.dumps(message)
    stream.write(len(data).to_bytes(HEADER, "little") + data)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """Read one message.

    Raises:
        EOFError: the other side has ended.
    """
    head = stream.read(HEADER)
    data = stream.read(int.from_bytes(head, "little")) if len(head) == HEADER else b""
    if not data:
        raise EOFError
    return pickle.loads(data)


def main() -> None:
    """Compile jobs until none comes any more."""
    jobs = os.fdopen(0, "rb", closefd=False)
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what triton prints is no result
    from triton import knobs  # all of triton, before the first job comes

    while select.select([jobs], [], [], IDLE_SECONDS)[0]:
        try:
            job = Job(*receive(jobs))
        except EOFError:
            return
        knobs.cache.dir = job.cache
        try:
            reply: object = [astuple(to_binary(stage)) for stage in stages(job)]
        except TritonCompileError as error:
            reply = str(error)
        send(results, reply)


if __name__ == "__main__":
    sys.path.pop(0)  # this folder: names in it are not modules
    main()
