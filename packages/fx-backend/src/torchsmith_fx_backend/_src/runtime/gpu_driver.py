"""The few CUDA driver calls that loading and launching a compiled kernel takes, through ctypes.

Going to the driver directly means that no launcher stub is compiled per kernel signature, that a
warm start needs no triton at all, and that a launch is one foreign call on prepared arguments.
This is also the adapter for the private names of ``torch`` that a launch needs.
"""

from __future__ import annotations

import ctypes
import functools
from array import array
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

_SUCCESS = 0
_INVALID_CONTEXT = 201
_MAX_DYNAMIC_SHARED_MEMORY = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_SHARED_MEMORY_WITHOUT_ASKING = 48 * 1024


class DriverError(RuntimeError):
    """A CUDA driver call failed; the message names the call and the driver's own text."""


class SharedMemoryError(DriverError):
    """A kernel asks for more shared memory than the device has; others may not."""


@dataclass(frozen=True, slots=True)
class Function:
    """A kernel loaded into one device's context.

    Attributes:
        handle: the driver's ``CUfunction``.
        module: its ``CUmodule``; never unloaded, as captured graphs may refer to it.
    """

    handle: int
    module: int


class Driver:
    """The CUDA driver library of this process."""

    def __init__(self, library: str = "libcuda.so.1") -> None:
        """Open ``library``.

        Raises:
            OSError: there is no such library.
        """
        self.library = ctypes.CDLL(library)
        #: ``cuLaunchKernel``; called with ready-made ctypes objects, so no argtypes are set.
        self.launch_kernel: Callable[..., int] = self.library.cuLaunchKernel

    def check(self, status: int, call: str) -> None:
        """Raise ``DriverError`` unless ``status`` is success."""
        if status == _SUCCESS:
            return
        text = ctypes.c_char_p()
        self.library.cuGetErrorString(ctypes.c_int(status), ctypes.byref(text))
        reason = text.value.decode() if text.value else "unknown error"
        raise DriverError(f"{call} failed with CUDA error {status}: {reason}")

    def ensure_context(self, device: int) -> None:
        """Make ``device``'s primary context current in this thread if none is."""
        current = ctypes.c_void_p()
        self.check(self.library.cuCtxGetCurrent(ctypes.byref(current)), "cuCtxGetCurrent")
        if current.value:
            return
        handle = ctypes.c_int()
        self.check(
            self.library.cuDeviceGet(ctypes.byref(handle), ctypes.c_int(device)), "cuDeviceGet"
        )
        context = ctypes.c_void_p()
        self.check(
            self.library.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle),
            "cuDevicePrimaryCtxRetain",
        )
        self.check(self.library.cuCtxSetCurrent(context), "cuCtxSetCurrent")

    def load(self, binary: bytes, name: str, shared: int, device: int) -> Function:
        """Load a cubin into the current context.

        Args:
            binary: the cubin.
            name: the kernel's entry name.
            shared: bytes of dynamic shared memory that launches will ask for.
            device: ordinal of the current device.

        Raises:
            DriverError: the driver refuses the binary.
            SharedMemoryError: the device has less shared memory.
        """
        self.ensure_context(device)
        module = ctypes.c_void_p()
        self.check(
            self.library.cuModuleLoadData(ctypes.byref(module), ctypes.c_char_p(binary)),
            "cuModuleLoadData",
        )
        function = ctypes.c_void_p()
        self.check(
            self.library.cuModuleGetFunction(
                ctypes.byref(function), module, ctypes.c_char_p(name.encode())
            ),
            "cuModuleGetFunction",
        )
        if shared > _SHARED_MEMORY_WITHOUT_ASKING:
            most = ctypes.c_int(_MAX_DYNAMIC_SHARED_MEMORY)
            if self.library.cuFuncSetAttribute(function, most, ctypes.c_int(shared)) != _SUCCESS:
                raise SharedMemoryError(f"{name} needs {shared} bytes of shared memory")
        return Function(int(function.value or 0), int(module.value or 0))

    def retry_without_context(self, status: int, device: int) -> bool:
        """Whether a failed launch is worth repeating: this thread had no context yet."""
        if status != _INVALID_CONTEXT:
            return False
        self.ensure_context(device)
        return True


@functools.cache
def driver() -> Driver:
    """The process-wide driver.

    Raises:
        OSError: there is no CUDA driver on this machine.
    """
    return Driver()


def _find(name: str, otherwise: Callable[..., int]) -> Callable[..., int]:
    found: Callable[..., int] = getattr(torch._C, name, otherwise)
    return found


def _public_stream(device: int) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream)


#: ``current_stream(device)`` -> the raw ``CUstream`` that work is queued on now.
current_stream = _find("_cuda_getCurrentRawStream", _public_stream)
#: ``current_device()`` -> ordinal of this thread's current device.
current_device = _find("_cuda_getDevice", torch.cuda.current_device)


def on_device(device: int) -> AbstractContextManager[None]:
    """Makes ``device`` the current one for a while."""
    guard: AbstractContextManager[None] = torch.cuda.device(device)
    return guard


def is_recording() -> bool:
    """Whether launches on this thread's current stream are captured into a CUDA graph."""
    return torch.cuda.is_current_stream_capturing()


def upload(data: array[int], device: int) -> torch.Tensor:
    """``data`` as 64-bit integers on ``device``. Does not wait for the device: what comes from
    ordinary memory has been taken from there when the call returns."""
    here = torch.frombuffer(data, dtype=torch.int64)
    return here.to(torch.device("cuda", device), non_blocking=True)
