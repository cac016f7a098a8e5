"""Adapter: the only place in this package (with ``fake/``) that touches private torch names.

Each is looked up once, with a public fallback where torch has one, so that a new torch release
can break this file only.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

# Python-level torch-function modes (``torch.device`` contexts and the default device are among
# them), torch-dispatch modes and functorch levels that are active on this thread.
function_mode_count: Callable[[], int] = torch._C._len_torch_function_stack
function_mode_at: Callable[[int], object] = torch._C._get_function_stack_at
torch_function_enabled: Callable[[], bool] = torch._C._is_torch_function_enabled
dispatch_mode_count: Callable[[], int] = torch._C._len_torch_dispatch_stack
functorch_level: Callable[[], object] = torch._C._functorch.peek_interpreter_stack


def _any_autocast_slow() -> bool:
    return any(torch.is_autocast_enabled(d) for d in autocast_devices())


any_autocast_enabled: Callable[[], bool] = getattr(
    torch._C, "_is_any_autocast_enabled", _any_autocast_slow
)


def autocast_devices() -> tuple[str, ...]:
    """Device types whose autocast state belongs to the ambient state on this machine."""
    devices = ["cpu"]
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is not None and accelerator.type != "cpu":
        devices.append(accelerator.type)
    elif torch.version.cuda is not None:
        devices.append("cuda")  # autocast("cuda") can be entered without a device
    return tuple(devices)


def mode_device(mode: object) -> torch.device | None:
    """The device of a ``with torch.device(...)`` mode, else None."""
    device = getattr(mode, "device", None)
    return device if isinstance(device, torch.device) else None
