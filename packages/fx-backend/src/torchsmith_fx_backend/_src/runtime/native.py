"""Launcher of C kernels: compiles those that are missing, loads them, makes them callable.

Kernels are addressed by a hash of their C text and of the toolchain, so equal kernels of any graph
in any process compile once. All missing kernels of a graph go into one C file (a few files,
compiled side by side, when there are many).
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import tempfile
import threading
import warnings
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torchsmith_guards import python_function
from torchsmith_guards.records import recorder

from torchsmith_fx_backend._src.runtime.cache import Cache
from torchsmith_fx_backend._src.runtime.compiler import CompileError, Compiler, find_compiler
from torchsmith_fx_backend._src.runtime.launchers import (
    KernelFailedError,
    KernelRequest,
    LoadedKernel,
    Unavailable,
)

if TYPE_CHECKING:  # what is restored needs no printer, whose import takes longer than that
    from torchsmith_fx_backend._src.codegen.c import Function
    from torchsmith_fx_backend._src.loops.ir import Kernel

_PER_UNIT = 8  # kernels per C file from which on a second compiler process pays
_PLACEHOLDER = "KERNEL"


class NoCompilerWarning(UserWarning):
    """No working C compiler: graphs run through aten, correct but not faster than eager."""


class NativeLauncher:
    """Compiles kernels with the system's C compiler and calls them with raw pointers."""

    def __init__(self) -> None:
        """Nothing is compiled or loaded yet."""
        self._loaded: dict[str, LoadedKernel] = {}
        self._texts: dict[Kernel, str] = {}
        self._lock = threading.RLock()
        self._warned = False

    def expect(self) -> None:
        """See ``launchers.Launcher``: a C compiler starts with each file."""

    def load(self, requests: Sequence[KernelRequest], cache: Cache) -> list[LoadedKernel]:
        """One callable kernel per request; compiles what neither process nor cache holds.

        Raises:
            Unavailable: there is no C compiler, or it does not work; one warning has said so.
            KernelFailedError: these cannot be printed or compiled.
        """
        with self._lock:
            compiler = find_compiler()
            if compiler is None:
                raise self._unavailable("no C compiler found (tried $CC, cc, gcc, clang)")
            functions = self._functions(requests, compiler)
            missing: dict[str, Function] = {}
            for key, function in functions:
                if key not in missing and not self._find(key, cache):
                    missing[key] = function
            if missing:
                try:
                    with recorder.phase("compile C"):
                        self._compile(missing, compiler, cache)
                except (CompileError, OSError) as error:
                    self._blame(requests, functions, compiler)
                    raise self._unavailable(f"C compiler does not work: {error}") from error
            return [self._loaded[key] for key, _ in functions]

    def restore(
        self, keys: Sequence[str], device: torch.device, cache: Cache
    ) -> list[LoadedKernel] | None:
        """The kernels of these content addresses, without a compiler, or None."""
        with self._lock:
            if all(self._find(key, cache) for key in keys):
                return [self._loaded[key] for key in keys]
            return None

    def _unavailable(self, problem: str) -> Unavailable:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"torchsmith: {problem}; graphs run through aten instead. Install gcc or clang, "
                "or set CC.",
                NoCompilerWarning,
                stacklevel=2,
            )
        return Unavailable(problem)

    def _function(self, request: KernelRequest, compiler: Compiler) -> tuple[str, Function]:
        """Content address and C text; the name is part of neither's hash."""
        from torchsmith_fx_backend._src.codegen.c import Function, kernel_function, parameters

        text = self._texts.get(request.kernel)
        if text is None:
            text = self._texts[request.kernel] = kernel_function(request.kernel, _PLACEHOLDER)
        faults = request.kernel.faults
        whole = f"{compiler.identity}\n{_build_version()}\n{faults}\n{text}"
        key = hashlib.sha256(whole.encode()).hexdigest()[:40]
        name = f"k_{key[:16]}"
        comment = "".join(f"/* {line.replace('*/', '* /')} */\n" for line in request.origins)
        definition = comment + text.replace(f"void {_PLACEHOLDER}(", f"void {name}(", 1)
        return key, Function(name, parameters(request.kernel), definition, faults)

    def _functions(
        self, requests: Sequence[KernelRequest], compiler: Compiler
    ) -> list[tuple[str, Function]]:
        functions, failed = [], []
        for request in requests:
            try:
                functions.append(self._function(request, compiler))
            except Exception as error:  # noqa: BLE001 - whatever it is, other kernels are fine
                failed.append((request, error))
        if failed:
            raise KernelFailedError(failed)
        return functions

    def _blame(
        self,
        requests: Sequence[KernelRequest],
        functions: Sequence[tuple[str, Function]],
        compiler: Compiler,
    ) -> None:
        """Raise for the kernels that do not compile on their own, if the compiler works at all."""
        from torchsmith_fx_backend._src.codegen.c import unit

        failed: list[tuple[KernelRequest, Exception]] = []
        with tempfile.TemporaryDirectory(prefix="torchsmith-build-") as name:
            for number, function in enumerate([None, *(f for _, f in functions)]):
                source = Path(name) / f"alone{number}.c"
                source.write_text(unit([] if function is None else [function]))
                try:
                    compiler.compile([(source, source.with_suffix(".so"))])
                except (CompileError, OSError) as error:
                    if function is None:
                        return
                    failed.append((requests[number - 1], error))
        if failed:
            raise KernelFailedError(failed)

    def _find(self, key: str, cache: Cache) -> bool:
        """Whether kernel ``key`` is loaded, after looking in the cache."""
        if key in self._loaded:
            return True
        entry = cache.get(f"kernel {key}")
        if entry is None:
            return False
        unit_key = entry["unit"].decode()
        files = cache.get(unit_key)
        if files is None or "unit.so" not in files:
            return False
        try:
            self._load_unit(cache.path(unit_key, "unit.so"), files["unit.so"], files)
        except (OSError, AttributeError) as error:
            # A file of the right hash that does not load: another machine's, or no exec rights.
            text = f"torchsmith: a cached kernel does not load and is compiled again: {error}"
            warnings.warn(text, stacklevel=2)
            cache.remove(unit_key)
            return False
        return key in self._loaded

    def _compile(self, missing: dict[str, Function], compiler: Compiler, cache: Cache) -> None:
        from torchsmith_fx_backend._src.codegen.c import unit

        keys = list(missing)
        processes = max(1, min(os.cpu_count() or 1, -(-len(keys) // _PER_UNIT)))
        groups = [keys[start::processes] for start in range(processes)]
        with tempfile.TemporaryDirectory(prefix="torchsmith-build-") as name:
            folder = Path(name)
            jobs = []
            texts = []
            for number, group in enumerate(groups):
                text = unit([missing[key] for key in group])
                source = folder / f"unit{number}.c"
                source.write_text(text)
                jobs.append((source, folder / f"unit{number}.so"))
                texts.append(text)
            compiler.compile(jobs)
            for group, text, (_, built) in zip(groups, texts, jobs, strict=True):
                self._adopt(group, missing, text, built, cache)

    def _adopt(
        self, keys: list[str], functions: dict[str, Function], text: str, built: Path, cache: Cache
    ) -> None:
        """Load a fresh shared object and keep it in the cache."""
        listing = "".join(f"{key} {functions[key].name}\n" for key in keys)
        files = {
            "unit.c": text.encode(),
            "unit.so": built.read_bytes(),
            "kernels.txt": listing.encode(),
        }
        for key in keys:
            files[f"{key}.c"] = functions[key].definition.encode()
        unit_key = "unit " + hashlib.sha256(listing.encode() + files["unit.c"]).hexdigest()
        stored = cache.put(unit_key, files)
        if stored:
            for key in keys:
                cache.put(f"kernel {key}", {"unit": unit_key.encode()})
        self._load_unit(
            cache.path(unit_key, "unit.so") if stored else built, files["unit.so"], files
        )

    def _load_unit(self, path: Path, data: bytes, files: dict[str, bytes]) -> None:
        library = _open_library(path, data)
        addresses = _api_addresses()
        table = (ctypes.c_void_p * len(addresses))(*addresses)
        library.ts_bind(ctypes.byref(table))
        for line in files["kernels.txt"].decode().splitlines():
            key, _, name = line.partition(" ")
            if key not in self._loaded:
                source = files[f"{key}.c"].decode()
                each = _each(library, name) if hasattr(library, f"py_{name}_each") else None
                call = python_function(getattr(library, f"py_{name}"))
                self._loaded[key] = LoadedKernel(key, name, source, call, each)


def _open_library(path: Path, data: bytes) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError:
        if not hasattr(os, "memfd_create"):
            raise
    # The file system may forbid execution; an anonymous file in memory does not.
    descriptor = os.memfd_create("torchsmith-kernels")
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        return ctypes.CDLL(f"/proc/self/fd/{descriptor}")


def _address(name: str) -> int:
    return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0


def _api_addresses() -> list[int]:
    """The fields of ``py`` in ``codegen.c.unit``, in order."""
    first = "PyLong_AsVoidPtr PyLong_AsLongLong PyFloat_AsDouble PyErr_Occurred PyErr_SetString"
    threads = (_address("PyEval_SaveThread"), _address("PyEval_RestoreThread"))
    errors = (id(IndexError), id(RuntimeError))
    reading = map(_address, first.split())
    return [*reading, id(TypeError), *threads, id(None), _address("Py_IncRef"), *errors]


def _each(library: ctypes.CDLL, name: str) -> Callable[[array[int], int], object]:
    call = python_function(getattr(library, f"py_{name}_each"))
    return lambda table, bits: call(*table.buffer_info())


@functools.cache
def _build_version() -> str:
    """A hash of the C that surrounds every kernel: prelude and entry points."""
    from torchsmith_fx_backend._src.codegen.c import Function, Parameter, unit
    from torchsmith_fx_backend._src.codegen.c.functions import FUNCTIONS, PROLOGUE

    kinds = [Parameter(kind, "int64_t a", "a") for kind in ("pointer", "integer", "floating")]
    text = PROLOGUE + "".join(FUNCTIONS.values()) + unit([Function("any", tuple(kinds), "")])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
