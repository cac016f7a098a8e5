"""The native part: a C file without headers, compiled once in the background, called with ctypes.

Until the library is there (and without a compiler, or when a self-test fails, or on a Python that
does not stamp its dicts, or with ``TORCHSMITH_NATIVE_GUARDS=0``) guards are checked in full.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from torchsmith_guards._src import torch_private as private

ENVIRONMENT = "TORCHSMITH_NATIVE_GUARDS"
_SOURCE = Path(__file__).with_name("unchanged.c")
_SECONDS = 60.0  # how long a compiler may take before it is given up
_BYTES_HEAD = bytes.__basicsize__ - 1
_PYTHONS = ("PyBytes_FromStringAndSize", "PyBool_FromLong", "Py_DecRef")
_NO_ARGUMENTS, _FAST_CALL = 0x4, 0x80  # of methods in C
_TENSOR_HEAD = 48  # ``struct tensor`` of the C file without the numbers at its end


class Library:
    """The loaded library.

    Attributes:
        look: ``look(*tensors)``: what ``unchanged.c`` says of them, as bytes; empty for subclasses,
            and where it cannot be read.
        in_memory: ``in_memory(*tensors)``: whether all their elements lie in memory as they are;
            False for subclasses, and where other objects are among them.
        bump: ``bump(*tensors)``: count a write to each; False, and none is, where that cannot be
            done.
        gather: puts words together and says which low bits they have, see the C file.
        overlap: whether a range of memory that is written meets another one, likewise.
    """

    def __init__(self, path: Path) -> None:
        # PyDLL: the GIL stays held, since the functions read Python objects.
        library = ctypes.PyDLL(str(path))
        pointer, number = ctypes.c_void_p, ctypes.c_longlong
        library.use.argtypes = (pointer, ctypes.c_int, number, number, *(pointer,) * 4)
        library.gather.argtypes = (pointer, pointer, number, pointer)
        library.overlap.argtypes = (pointer, pointer, pointer, ctypes.c_char_p, number)
        library.describe.argtypes = (pointer, pointer, number, ctypes.c_int)
        library.layout.argtypes = (pointer,)
        own = (address_of(getattr(ctypes.pythonapi, name)) for name in _PYTHONS)
        functions = (*private.metadata_functions(), *own)
        addresses = (pointer * len(functions))(*functions)
        sample = torch.empty(2, device="cpu")
        places = range(16, torch.Tensor.__basicsize__, 8)
        cpp = private.tensor_address(sample)
        (offset,) = (place for place in places if word(id(sample) + place) == cpp)
        (back,) = (place for place in range(0, 96, 8) if word(cpp + place) & ~7 == id(sample))
        classes = id(torch.Tensor), id(torch.nn.Parameter)
        facts = (offset, back, id(sample), *classes, _BYTES_HEAD)
        library.use(addresses, -1, *facts)
        library.use(addresses, library.layout(id(sample)), *facts)
        self._describe, self._unchanged = (
            library.describe,
            _method(library.unchanged, _NO_ARGUMENTS),
        )
        self.look: Callable[..., bytes] = python_function(library.look)
        self.in_memory: Callable[..., bool] = python_function(library.in_memory)
        self.bump: Callable[..., bool] = python_function(library.bump)
        self.gather, self.overlap = library.gather, library.overlap

    def describe(
        self, tensor: torch.Tensor, of_grad: bool = False
    ) -> ctypes.Array[ctypes.c_char] | None:
        """A ``struct tensor`` with the metadata of now, of a tensor or of its gradient; None where
        it cannot be read."""
        room = 2 * tensor.dim()
        out = ctypes.create_string_buffer(_TENSOR_HEAD + 8 * room)
        done = self._describe(id(tensor), ctypes.addressof(out), room, of_grad)
        return out if done else None

    def unchanged(self, table: bytes) -> Callable[[], bool]:
        """A function that says whether nothing has changed of what a ``struct table`` lists."""
        return _function(self._unchanged, table)


def address_of(function: Any) -> int:
    """Where the code of a function of a library begins."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _method(function: Any, flags: int) -> ctypes.Array[ctypes.c_uint64]:
    """What Python knows a function in C by (``PyMethodDef``), as long as the process lives."""
    name = ctypes.create_string_buffer(function.__name__.encode())
    made = (ctypes.c_uint64 * 4)(ctypes.addressof(name), address_of(function), flags, 0)
    _kept.extend((name, made))
    return made


def _function(method: ctypes.Array[ctypes.c_uint64], own: object = None) -> Callable[..., Any]:
    """A function of Python's, whose calls cost less than those of ctypes; C is given ``own``."""
    made: Callable[..., Any] = _make_function(ctypes.addressof(method), own, None)
    return made


def python_function(function: Any) -> Callable[..., Any]:
    """A function of Python's out of one in C that takes what ``METH_FASTCALL`` says."""
    return _function(_method(function, _FAST_CALL))


_kept: list[Any] = []
_make_function = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p
)(("PyCFunction_NewEx", ctypes.pythonapi))


def word(address: int) -> int:
    """The eight bytes at ``address``, which must be those of a live object."""
    return ctypes.c_uint64.from_address(address).value


@dataclass(slots=True)
class Shared:
    """The library of this process, once ``settled``; else ``problem`` says why there is none.

    ``closing`` is set when the interpreter ends.
    """

    library: Library | None = None
    problem: str = ""
    thread: threading.Thread | None = None
    closing: bool = False
    settled: threading.Event = field(default_factory=threading.Event)


shared = Shared()
_lock = threading.Lock()
# Held while the thread is inside of torch: an interpreter that ends meanwhile would end the thread
# in the middle of C++ code, and with it the process.
_in_torch = threading.Lock()
_PATIENCE = 10.0  # seconds that the end of the interpreter waits for the thread


def _leave() -> None:
    shared.closing = True
    _in_torch.acquire(timeout=_PATIENCE)


def _after_fork() -> None:
    global _in_torch
    _in_torch = threading.Lock()  # the thread that may have held it is not in this process


atexit.register(_leave)
os.register_at_fork(after_in_child=_after_fork)


def library() -> Library | None:
    """The library when it is ready; the first call starts the compilation."""
    if shared.thread is None:
        with _lock:
            if shared.thread is None:
                made = threading.Thread(target=_prepare, name="torchsmith guards", daemon=True)
                try:
                    made.start()
                except RuntimeError as error:  # a process may have so many threads and no more
                    shared.problem = str(error)
                    shared.settled.set()
                shared.thread = made
    return shared.library


def unavailable() -> bool:
    """True once it is known that there will be no library."""
    return shared.settled.is_set() and shared.library is None


def _prepare() -> None:
    try:
        shared.library = load()
    except Exception as error:  # noqa: BLE001 - whatever it is, the full check is right
        shared.problem = f"{type(error).__name__}: {error}"
    shared.settled.set()


def load() -> Library:
    """Compile the library or take it from the cache, load and test it.

    Raises:
        Exception: whatever stands against using it.
    """
    from torchsmith_guards._src.unchanged import selftest

    if os.environ.get(ENVIRONMENT, "1") == "0":
        raise RuntimeError(f"{ENVIRONMENT}=0")
    selftest.supported()
    path = _compiled()
    with _in_torch:
        if shared.closing:
            raise RuntimeError("the interpreter is about to end")
        loaded = Library(path)
        selftest.run(loaded)
    return loaded


def compiler() -> list[str]:
    """The command of the system's C compiler.

    Raises:
        FileNotFoundError: there is none.
    """
    for text in (sysconfig.get_config_var("CC") or "", "cc", "gcc", "clang"):
        command = shlex.split(text)
        if command and shutil.which(command[0]):
            return command
    raise FileNotFoundError("no C compiler")


def _compiled() -> Path:
    command = [*compiler(), "-O2", "-shared", "-fPIC"]
    facts = "\0".join((platform.machine(), sys.platform, *command, _SOURCE.read_text()))
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(os.environ.get("TORCHSMITH_CACHE_DIR") or os.path.join(base, "torchsmith"))
    folder /= "guards"
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    out = folder / f"unchanged-{hashlib.sha256(facts.encode()).hexdigest()[:32]}.so"
    for path in (folder.parent, folder, *([out] if out.exists() else [])):
        status = path.stat()
        if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(f"{path} can be written by others")
    if out.exists() and _is_whole(out.read_bytes()):
        return out
    handle, name = tempfile.mkstemp(prefix=".new-", suffix=".so", dir=folder)
    os.close(handle)
    try:
        full = [*command, "-o", name, str(_SOURCE)]
        subprocess.run(
            full, check=True, capture_output=True, timeout=_SECONDS, stdin=subprocess.DEVNULL
        )
        with open(name, "rb+") as file:
            file.write(hashlib.sha256(file.read()).digest())
        os.chmod(name, 0o700)
        os.replace(name, out)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
    return out


def _is_whole(data: bytes) -> bool:
    """Whether a library ends in its hash, as it does not where a machine has stopped or a disk was
    full: loading what is left of it would be the end of the process."""
    size = hashlib.sha256().digest_size
    return hashlib.sha256(data[:-size]).digest() == data[-size:]
