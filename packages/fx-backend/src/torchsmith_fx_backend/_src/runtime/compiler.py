"""Finds a C compiler and turns C files into shared objects.

Tried in order: ``$CC``, ``cc``, ``gcc``, ``clang``. Kernels must share the OpenMP runtime that
torch already runs (a second one would double the threads), so that one is linked by path when the
compiler's own default would be another file.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# gcc vectorises as well at -O1 with these two passes as at -O3, in two thirds of the time; clang
# needs -O2 for it. Without -fexpensive-optimizations gcc leaves out ``vzeroupper``, and then all
# scalar code that follows a kernel on the thread (libm, aten) runs several times slower.
_GCC_OPTIMISE = ("-O1", "-ftree-vectorize", "-ftree-pre", "-fexpensive-optimizations")
_CLANG_OPTIMISE = ("-O2",)
_BASE = (
    "-std=gnu11",
    "-fPIC",
    "-shared",
    "-pipe",
    "-w",
    # no errno, no floating-point exceptions: both block vector code; values stay strict
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fwrapv",
    # gcc writes some addresses as offsets from 0, and drops what follows a read of a null pointer
    "-fno-delete-null-pointer-checks",
    "-fno-semantic-interposition",
)


class CompileError(Exception):
    """The compiler rejected a file under every set of flags; the message is its own."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C compiler: its command, its sets of flags (best first), and what identifies them."""

    command: tuple[str, ...]
    flags: tuple[tuple[str, ...], ...]
    identity: str

    def compile(self, jobs: Sequence[tuple[Path, Path]]) -> None:
        """Compile each C file to its shared object, all at the same time.

        Raises:
            CompileError: some file does not compile under any set of flags.
        """
        waiting = list(jobs)
        message = ""
        for flags in self.flags:
            running = [(job, self._start(job, flags)) for job in waiting]
            waiting = []
            for job, process in running:
                _, errors = process.communicate()
                if process.returncode:
                    waiting.append(job)
                    message = errors.decode(errors="replace").strip()
            if not waiting:
                return
        raise CompileError(f"{' '.join(self.command)}: {message}")

    def _start(self, job: tuple[Path, Path], flags: tuple[str, ...]) -> subprocess.Popen[bytes]:
        source, target = job
        command = [*self.command, *_BASE, str(source), "-o", str(target), *flags, "-lm"]
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )


def find_compiler() -> Compiler | None:
    """The C compiler of this machine, or None. ``$CC`` is read at each call."""
    return _find(os.environ.get("CC", ""), os.environ.get("PATH", ""))


@functools.lru_cache(maxsize=8)
def _find(configured: str, path: str) -> Compiler | None:
    candidates = [shlex.split(configured)] if configured.strip() else []
    candidates += [["cc"], ["gcc"], ["clang"]]
    for candidate in candidates:
        found = shutil.which(candidate[0], path=path)
        if found is not None:
            command = (found, *candidate[1:])
            flags = _flag_sets(command)
            return Compiler(command, flags, _identity(command, flags))
    return None


def _flag_sets(command: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    clang = "clang" in os.path.basename(os.path.realpath(command[0]))
    level = _CLANG_OPTIMISE if clang else _GCC_OPTIMISE
    native = "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"
    openmp = _openmp_flags()
    return (
        (*level, native, *openmp),
        (*level, native, "-fopenmp-simd"),
        (*level, "-fopenmp-simd"),
        ("-O2",),
    )


def _openmp_flags() -> tuple[str, ...]:
    """``-fopenmp``, and the OpenMP runtime that torch has loaded if it is not the default one."""
    strict = "-Wl,-z,defs"  # a runtime that lacks what the code calls must fail here, not later
    try:
        # Succeeds only if the library of that name is in the process already.
        ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        return ("-fopenmp", strict)
    except OSError:
        pass
    loaded = _loaded_openmp()
    if loaded is None:
        return ("-fopenmp", strict)
    return ("-fopenmp", strict, "-Wl,--as-needed", loaded)


def _loaded_openmp() -> str | None:
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return None
    for kind in ("libgomp", "libiomp5", "libomp"):
        match = re.search(rf"(/\S*/{kind}[-.\w]*\.so[.\d]*)", maps)
        if match is not None:
            return match.group(1)
    return None


def _identity(command: tuple[str, ...], flags: tuple[tuple[str, ...], ...]) -> str:
    """A hash of all that decides what machine code a C file becomes."""
    real = os.path.realpath(command[0])
    try:
        status = os.stat(real)
        stamp = (status.st_size, int(status.st_mtime))
    except OSError:
        stamp = (0, 0)
    text = repr((real, stamp, command[1:], _BASE, flags, platform.machine(), _processor()))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _processor() -> str:
    """What ``-march=native`` looks at: a cache directory may be shared by unlike machines."""
    try:
        with open("/proc/cpuinfo") as file:
            text = file.read(16384)
    except OSError:
        return platform.processor()
    wanted = ("model name", "model\t", "flags", "Features", "CPU part", "CPU implementer")
    lines = text.split("\n\n")[0].splitlines()
    return "\n".join(line for line in lines if line.startswith(wanted))
