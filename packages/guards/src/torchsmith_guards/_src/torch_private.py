"""Adapter: the only place in this package (with ``fake/``) that touches private torch names.

Each is looked up once, with a public fallback where torch has one, so that a new torch release
can break this file only.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

# Python-level torch-function modes (``torch.device`` contexts and the default device are among
# them), torch-dispatch modes and functorch levels that are active on this thread.
function_mode_count: Callable[[], int] = torch._C._len_torch_function_stack
function_mode_at: Callable[[int], object] = torch._C._get_function_stack_at
torch_function_enabled: Callable[[], bool] = torch._C._is_torch_function_enabled
dispatch_mode_count: Callable[[], int] = torch._C._len_torch_dispatch_stack
no_torch_function: object = torch._C._disabled_torch_function_impl
no_torch_dispatch: object = torch._C._disabled_torch_dispatch_impl
is_tracing: Callable[[], bool] = torch._C._is_tracing
functorch_level: Callable[[], object] = torch._C._functorch.peek_interpreter_stack
# The level of ``torch.autograd.forward_ad`` at which tensors may have tangents, -1 outside of any.
forward_level: Callable[[], int] = functools.partial(
    getattr, torch.autograd.forward_ad, "_current_level"
)
profiler_enabled: Callable[[], bool] = getattr(torch.autograd, "_profiler_enabled", lambda: False)
deterministic_algorithms: Callable[[], bool] = torch._C._get_deterministic_algorithms
any_autocast_enabled: Callable[[], bool] = torch._C._is_any_autocast_enabled


def autocast_devices() -> tuple[str, ...]:
    """Device types whose autocast state belongs to the ambient state on this machine."""
    devices = ["cpu"]
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is not None and accelerator.type != "cpu":
        devices.append(accelerator.type)
    elif torch.version.cuda is not None:
        devices.append("cuda")  # autocast("cuda") can be entered without a device
    return tuple(devices)


@contextmanager
def without_saving_hooks() -> Iterator[None]:
    """No hooks on what autograd saves, as a compile must not be seen by the program's."""
    autograd = torch._C._autograd
    taken: list[tuple[object, object]] = []
    while (hooks := autograd._top_saved_tensors_default_hooks(True)) is not None:
        taken.append(hooks)
        autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(taken):
            autograd._push_saved_tensors_default_hooks(pack, unpack)


def mode_device(mode: object) -> torch.device | None:
    """The device of a ``with torch.device(...)`` mode, else None."""
    device = getattr(mode, "device", None)
    return device if isinstance(device, torch.device) else None


# Functions of libtorch that read one thing of a tensor each, in the order in which ``unchanged.c``
# takes them: the stable C interface, then members of C++ classes that it has no name for. All are
# looked up by name, so that a release without one of them turns the native check off.
_LIBRARIES: tuple[tuple[str, str], ...] = (
    (
        "libtorch_cpu.so",
        """
        aoti_torch_get_dtype aoti_torch_get_device_type aoti_torch_get_device_index
        aoti_torch_get_layout aoti_torch_get_dim aoti_torch_get_sizes aoti_torch_get_strides
        aoti_torch_get_data_ptr _ZN2at6native7is_conjERKNS_6TensorE
        _ZN2at6native6is_negERKNS_6TensorE _ZN2at6native12is_inferenceERKNS_6TensorE
        _ZNK2at10TensorBase7is_viewEv _ZN5torch8autograd4impl12bump_versionERKN2at6TensorE
        _ZNK2at10TensorBase7is_leafEv _ZNK2at10TensorBase8_versionEv
        _ZN2at6native14_is_zerotensorERKNS_6TensorE
        """,
    ),
    (
        "libc10.so",
        """
        _ZNK3c1010TensorImpl13requires_gradEv _ZNK3c1010TensorImpl4gradEv
        _ZNK3c1010TensorImpl11has_storageEv
        """,
    ),
)


def metadata_functions() -> tuple[int, ...]:
    """Addresses of the functions.

    Raises:
        OSError, AttributeError: this torch has no such library or function.
    """
    found: list[int] = []
    for name, symbols in _LIBRARIES:
        library = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", name))
        for symbol in symbols.split():
            address = ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value
            assert address is not None, "a symbol that was found has an address"
            found.append(address)
    return tuple(found)


def tensor_address(tensor: torch.Tensor) -> int:
    """Address of the C++ tensor that a Python tensor stands for."""
    return int(tensor._cdata)
