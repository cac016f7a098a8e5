"""Triton source text -> cubins, with triton's own compiler and without a GPU.

``triton`` is imported only when something really has to be compiled. Everything that a later
process needs to launch a kernel is plain data (``Binary``), kept in our own cache; triton's cache
directory is moved below ours while we compile, so that one directory holds it all.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchsmith_fx_backend._src.codegen.triton.scalars import SIGNATURES
from torchsmith_fx_backend._src.codegen.triton.source import TritonSource


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


_scope_lock = threading.Lock()
_scope_users = 0
_scope_restore: Callable[[], None] = lambda: None


@contextmanager
def _triton_cache_below(root: Path) -> Iterator[None]:
    """Points triton's cache at ``root`` while any of our compilations runs."""
    global _scope_users, _scope_restore
    from triton import knobs

    with _scope_lock:
        if _scope_users == 0:
            own = knobs.cache.__dict__
            before = own.get("dir")
            # The instance value only: assigning the attribute would also export it to the
            # environment of every later subprocess of the user's.
            own["dir"] = str(root / "triton")

            def restore() -> None:
                if before is None:
                    own.pop("dir", None)
                else:
                    own["dir"] = before

            _scope_restore = restore
        _scope_users += 1
    try:
        yield
    finally:
        with _scope_lock:
            _scope_users -= 1
            if _scope_users == 0:
                _scope_restore()


def signature(source: TritonSource) -> dict[str, str]:
    """Parameter name -> Triton type, in order."""
    pointers = [*source.pointers, *((w.name, w.dtype) for w in source.workspaces)]
    types = {name: f"*{SIGNATURES[dtype]}" for name, dtype in pointers}
    types.update((symbol.name, symbol.kind) for symbol in source.symbols)
    return types


def compile_source(
    source: TritonSource, path: Path, capability: int, *, aligned: bool, cache_root: Path
) -> list[Binary]:
    """Compiles every stage of ``source`` for one architecture.

    Args:
        source: the printed kernel.
        path: the file that holds ``source.text``.
        capability: compute capability as ``10 * major + minor``.
        aligned: pointers may be assumed to be multiples of 16 bytes; the launcher checks that.
        cache_root: triton's cache goes below this directory.

    Raises:
        TritonCompileError: triton rejects the source; ``__cause__`` is its own error.
    """
    with _triton_cache_below(cache_root):
        return [
            to_binary(compiled)
            for compiled in compile_stages(source, path, capability, aligned=aligned)
        ]


def compile_stages(
    source: TritonSource, path: Path, capability: int, *, aligned: bool = True
) -> list[Any]:
    """As ``compile_source``, but returns triton's ``CompiledKernel`` objects (PTX included)."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module = load_module(source.text, path)
    pointers = len(source.pointers) + len(source.workspaces)
    divisible = {(i,): [["tt.divisibility", 16]] for i in range(pointers)} if aligned else {}
    options = {
        "num_warps": source.config.num_warps,
        "num_stages": source.config.num_stages,
        # aten keeps subnormals; libdevice would flush them by default.
        "enable_reflect_ftz": False,
        "enable_fp_fusion": True,
        # Device asserts, which positions outside of a tensor trip, are compiled in debug mode only.
        "debug": "tl.device_assert(" in source.text,
        "sanitize_overflow": False,
    }
    compiled = []
    for stage in source.stages:
        try:
            ast = ASTSource(module[stage.function], signature(source), {}, divisible)
            compiled.append(
                triton.compile(ast, target=GPUTarget("cuda", capability, 32), options=options)
            )
        except Exception as error:
            raise TritonCompileError(
                f"triton cannot compile {stage.function} in {path}: {error}"
            ) from error
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
