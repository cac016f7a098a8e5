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
from array import array
from dataclasses import dataclass, field
from pathlib import Path

import torch

from torchsmith_guards._src import torch_private as private

ENVIRONMENT = "TORCHSMITH_NATIVE_GUARDS"
_SOURCE = Path(__file__).with_name("unchanged.c")
_SECONDS = 60.0  # how long a compiler may take before it is given up
_TUPLE_ITEMS = tuple.__basicsize__
_TENSOR_HEAD = 48  # ``struct tensor`` of the C file without the numbers at its end


class Library:
    """The loaded library.

    Attributes:
        unchanged: ``unchanged(address of a table)``: 1 when nothing has changed.
        gather: puts words together and says which low bits they have, see the C file.
        overlap: whether a range of memory that is written meets another one, likewise.
    """

    def __init__(self, path: Path) -> None:
        # PyDLL: the GIL stays held, since the functions read Python objects.
        library = ctypes.PyDLL(str(path))
        pointer, number = ctypes.c_void_p, ctypes.c_longlong
        library.use.argtypes = (pointer, ctypes.c_int, number, number, *(pointer,) * 3)
        library.look.argtypes, library.bump.argtypes = (pointer, number, pointer), (pointer, number)
        library.gather.argtypes = (pointer, pointer, number, pointer)
        library.overlap.argtypes = (pointer, pointer, pointer, ctypes.c_char_p, number)
        library.describe.argtypes = (pointer, pointer, number, ctypes.c_int)
        library.layout.argtypes = library.unchanged.argtypes = (pointer,)
        functions = private.metadata_functions()
        addresses = (pointer * len(functions))(*functions)
        sample = torch.empty(2, device="cpu")
        places = range(16, torch.Tensor.__basicsize__, 8)
        cpp = private.tensor_address(sample)
        (offset,) = (place for place in places if word(id(sample) + place) == cpp)
        (back,) = (place for place in range(0, 96, 8) if word(cpp + place) & ~7 == id(sample))
        facts = (offset, back, id(sample), id(torch.Tensor), id(torch.nn.Parameter))
        library.use(addresses, -1, *facts)
        library.use(addresses, library.layout(id(sample)), *facts)
        self._describe, self._look, self._bump = library.describe, library.look, library.bump
        self.unchanged, self.gather = library.unchanged, library.gather
        self.overlap = library.overlap

    def describe(
        self, tensor: torch.Tensor, of_grad: bool = False
    ) -> ctypes.Array[ctypes.c_char] | None:
        """A ``struct tensor`` with the metadata of now, of a tensor or of its gradient; None where
        it cannot be read."""
        room = 2 * tensor.dim()
        out = ctypes.create_string_buffer(_TENSOR_HEAD + 8 * room)
        done = self._describe(id(tensor), ctypes.addressof(out), room, of_grad)
        return out if done else None

    def look(self, tensors: tuple[torch.Tensor, ...]) -> array[int] | None:
        """Where the elements of each tensor begin; then, likewise, 1 for those that require a
        gradient, plus 2 for views. None for subclasses, and where it cannot be read."""
        count = len(tensors)
        out = array("Q", bytes(16 * count))
        done = self._look(id(tensors) + _TUPLE_ITEMS, count, out.buffer_info()[0])
        return out if done else None

    def bump(self, tensors: tuple[torch.Tensor, ...]) -> bool:
        """Count a write to each tensor; False, and none is counted, where that cannot be done."""
        return bool(self._bump(id(tensors) + _TUPLE_ITEMS, len(tensors)))


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
    if out.exists():
        return out
    handle, name = tempfile.mkstemp(prefix=".new-", suffix=".so", dir=folder)
    os.close(handle)
    try:
        full = [*command, "-o", name, str(_SOURCE)]
        subprocess.run(
            full, check=True, capture_output=True, timeout=_SECONDS, stdin=subprocess.DEVNULL
        )
        os.chmod(name, 0o700)
        os.replace(name, out)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
    return out
