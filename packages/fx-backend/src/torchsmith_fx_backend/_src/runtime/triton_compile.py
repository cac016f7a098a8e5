"""Triton source text -> cubins, with triton's own compiler and without a GPU.

``triton`` is imported only when something really has to be compiled. Everything that a later
process needs to launch a kernel is plain data (``Binary``), kept in our own cache; triton's cache
directory is moved below ours while we compile, so that one directory holds it all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torchsmith_fx_backend._src.codegen.triton.scalars import SIGNATURES
from torchsmith_fx_backend._src.codegen.triton.source import TritonSource
from torchsmith_fx_backend._src.runtime.triton_job import Binary, Job, stages, to_binary
from torchsmith_fx_backend._src.runtime.workers import WORKERS

_scope_lock = threading.Lock()
_scope_users = 0
_scope_restore: Callable[[], None] = lambda: None


@contextmanager
def _triton_cache_below(folder: str) -> Iterator[None]:
    """Points triton's cache at ``folder`` while any of our compilations runs."""
    global _scope_users, _scope_restore
    from triton import knobs

    with _scope_lock:
        if _scope_users == 0:
            own = knobs.cache.__dict__
            before = own.get("dir")
            # The instance value only: assigning the attribute would also export it to the
            # environment of every later subprocess of the user's.
            own["dir"] = folder

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
    """Compiles every stage of ``source`` for one architecture, in a process of its own if one runs.

    Args:
        source: the printed kernel.
        path: the file that holds ``source.text``.
        capability: compute capability as ``10 * major + minor``.
        aligned: pointers may be assumed to be multiples of 16 bytes; the launcher checks that.
        cache_root: triton's cache goes below this directory.

    Raises:
        TritonCompileError: triton rejects the source.
    """
    job = _job(source, path, capability, aligned, str(cache_root / "triton"))
    binaries = WORKERS.compile(job)
    if binaries is None:
        with _triton_cache_below(job.cache):
            binaries = [to_binary(compiled) for compiled in stages(job)]
    return binaries


def compile_stages(
    source: TritonSource, path: Path, capability: int, *, aligned: bool = True
) -> list[Any]:
    """Triton's ``CompiledKernel`` objects (PTX included), made in this process."""
    return stages(_job(source, path, capability, aligned, ""))


def _job(source: TritonSource, path: Path, capability: int, aligned: bool, cache: str) -> Job:
    options: dict[str, object] = {
        "num_warps": source.config.num_warps,
        "num_stages": source.config.num_stages,
        # aten keeps subnormals; libdevice would flush them by default.
        "enable_reflect_ftz": False,
        "enable_fp_fusion": True,
        # Device asserts, which positions outside of a tensor trip, are compiled in debug mode only.
        "debug": "tl.device_assert(" in source.text,
        "sanitize_overflow": False,
    }
    return Job(
        source.text,
        str(path),
        tuple(stage.function for stage in source.stages),
        signature(source),
        len(source.pointers) + len(source.workspaces) if aligned else 0,
        capability,
        options,
        cache,
    )
