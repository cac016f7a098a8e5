"""Triton source text -> cubins, with triton's own compiler and without a GPU.

Other processes compile, where they can be started; ``triton`` is imported here only if not.
Everything that a later process needs to launch a kernel is plain data (``Binary``), kept in our own
cache; nothing is looked up in triton's, or written there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torchsmith_fx_backend._src.codegen.triton.scalars import SIGNATURES
from torchsmith_fx_backend._src.codegen.triton.source import TritonSource
from torchsmith_fx_backend._src.runtime.triton_pool import POOL, NoWorkerError
from torchsmith_fx_backend._src.runtime.triton_worker import Job, Result, compile_job


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


def signature(source: TritonSource) -> dict[str, str]:
    """Parameter name -> Triton type, in order."""
    pointers = [*source.pointers, *((w.name, w.dtype) for w in source.workspaces)]
    types = {name: f"*{SIGNATURES[dtype]}" for name, dtype in pointers}
    types.update((symbol.name, symbol.kind) for symbol in source.symbols)
    return types


def compile_source(
    source: TritonSource, path: Path, capability: int, *, aligned: bool
) -> list[Binary]:
    """Compiles every stage of ``source`` for one architecture.

    Args:
        source: the printed kernel.
        path: the file that holds ``source.text``.
        capability: compute capability as ``10 * major + minor``.
        aligned: pointers may be assumed to be multiples of 16 bytes; the launcher checks that.

    Raises:
        TritonCompileError: triton rejects the source.
    """
    stages = compile_stages(source, path, capability, aligned=aligned)
    return list(map(to_binary, stages))


def compile_stages(
    source: TritonSource, path: Path, capability: int, *, aligned: bool
) -> list[Result]:
    """As ``compile_source``, but returns everything that triton tells, PTX included."""
    pointers = len(source.pointers) + len(source.workspaces)
    job = Job(
        text=source.text,
        path=str(path),
        functions=[stage.function for stage in source.stages],
        signature=signature(source),
        aligned=range(pointers) if aligned else (),
        capability=capability,
        options={
            "num_warps": source.config.num_warps,
            "num_stages": source.config.num_stages,
            # aten keeps subnormals; libdevice would flush them by default.
            "enable_reflect_ftz": False,
            "enable_fp_fusion": True,
            # Device asserts, which positions outside of a tensor trip, are compiled in debug mode
            # only.
            "debug": "tl.device_assert(" in source.text,
            "sanitize_overflow": False,
        },
    )
    try:
        try:
            return POOL.compile(job)
        except NoWorkerError:
            return compile_job(job)
    except Exception as error:
        raise TritonCompileError(f"triton cannot compile {path}: {error}") from error


def to_binary(compiled: Result) -> Binary:
    """What a launch needs of it.

    Raises:
        TritonCompileError: the kernel asks for something that generated kernels never use.
    """
    told = compiled.metadata
    if told["global_scratch_size"] or told["profile_scratch_size"] or told["num_ctas"] != 1:
        raise TritonCompileError(f"{told['name']} needs scratch memory or a cluster launch")
    return Binary(
        name=told["name"],
        cubin=compiled.cubin,
        shared=told["shared"],
        num_warps=told["num_warps"],
        parameters=parameter_count(compiled.ptx),
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
