"""Adapter: the only module of this package that touches private torch names.

Each is looked up once, so that a new torch release can break this file only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast
from torch.cpu.amp.autocast_mode import autocast as cpu_autocast
from torch.autograd.grad_mode import _enter_inference_mode, _exit_inference_mode
from torch.nn.modules import module as _module
from torch.utils._contextlib import context_decorator

__all__ = [
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "UnsupportedFakeTensorException",
    "UnsupportedOperatorException",
    "context_decorator",
    "cpu_autocast",
]

set_grad_enabled: Callable[[bool], None] = torch._C._set_grad_enabled
enter_autocast: Callable[..., object] = _enter_autocast
exit_autocast: Callable[[object], None] = _exit_autocast
base_tensor: type = torch._C.TensorBase
tracing_state: Callable[[], object] = torch._C._get_tracing_state
log_api_usage: Callable[..., None] = torch._C._log_api_usage_once
no_torch_function: object = torch._C._disabled_torch_function_impl
enter_inference_mode: Callable[[bool], object] = _enter_inference_mode
exit_inference_mode: Callable[[object], None] = _exit_inference_mode

MODULE_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)
module_globals: dict[str, object] = vars(_module)
module_call: Callable[..., object] = torch.nn.Module.__call__
module_call_impl: Callable[..., object] = torch.nn.Module._call_impl
module_getattr: Callable[..., object] = torch.nn.Module.__getattr__
module_setattr: Callable[..., object] = torch.nn.Module.__setattr__


def global_hooks_empty() -> bool:
    """True when no hook for all modules is registered."""
    return not any(getattr(_module, name) for name in GLOBAL_HOOKS)


def enter(context: torch.autocast) -> None:
    """``context.__enter__()``."""
    context.__enter__()  # type: ignore[no-untyped-call]


def leave(context: torch.autocast) -> None:
    """``context.__exit__(None, None, None)``."""
    context.__exit__(None, None, None)


def map_nodes(nest: object, fn: Callable[[fx.Node], object]) -> Any:
    """Replace the nodes in a nest of arguments."""
    return fx.node.map_arg(nest, fn)  # type: ignore[type-var, arg-type]


def c_namespaces() -> tuple[object, ...]:
    """Namespaces of operators that are implemented in C++."""
    names = ("_VariableFunctions", "_nn", "_special", "_linalg", "_fft", "_sparse", "_nested")
    return tuple(getattr(torch._C, n) for n in names if hasattr(torch._C, n))


def storage_id(tensor: torch.Tensor) -> int:
    """Identity of the storage behind a (fake) tensor, shared by its views."""
    identity: int = tensor.untyped_storage()._cdata
    return identity
