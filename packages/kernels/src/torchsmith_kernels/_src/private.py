"""The private names of torch that this package uses, in one place.

Those about the current device have public, slower stand-ins; the others have none, and are what
``torch.library`` and ``torch.autograd.Function`` themselves are built on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch.autograd import forward_ad


def below_autograd() -> AbstractContextManager[None]:
    """Calls inside skip autograd and reach the device's kernel."""
    guard: AbstractContextManager[None] = torch._C._AutoDispatchBelowAutograd()
    return guard


def transforms_active() -> bool:
    """Whether this runs inside ``torch.func.grad``, ``vmap`` or the like."""
    active: bool = torch._C._are_functorch_transforms_active()
    return active


def autocast_anywhere() -> bool:
    """Whether autocast is on for any type of device."""
    on: bool = torch._C._is_any_autocast_enabled()
    return on


def watched() -> bool:
    """Whether a mode, transform, autocast or profiler wants to see calls in the dispatcher."""
    return (
        torch._C._len_torch_dispatch_stack() > 0
        or torch._C._len_torch_function_stack() > 0
        or autocast_anywhere()
        or torch._C._autograd._profiler_enabled()
        or torch._C._is_tracing()
        or forward_mode()
    )


def forward_mode() -> bool:
    """Whether tensors may carry tangents of forward-mode differentiation."""
    return forward_ad._current_level >= 0


#: ``is_batched(tensor)``: whether it is one of ``torch.autograd.grad(..., is_grads_batched=True)``,
#: which looks like a plain tensor and has no memory.
is_batched: Callable[[torch.Tensor], bool] = torch._C._functorch.is_legacy_batchedtensor


def recording() -> bool:
    """Whether a mode or tracer looks at calls, perhaps to run them again later."""
    return torch._C._len_torch_dispatch_stack() > 0 or bool(torch._C._is_tracing())


def _public_stream(device: int) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream)


def _find(name: str, otherwise: Callable[..., int]) -> Callable[..., int]:
    found: Callable[..., int] = getattr(torch._C, name, otherwise)
    return found


#: ``current_stream(device)`` -> the raw stream that work is queued on now.
current_stream = _find("_cuda_getCurrentRawStream", _public_stream)
#: ``current_device()`` -> ordinal of this thread's current device.
current_device = _find("_cuda_getDevice", torch.cuda.current_device)
