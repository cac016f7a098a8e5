"""Adapter: the only module of this package that touches private torch names.

Each is looked up once, so that a new torch release can break this file only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import torch
from torch import fx
from torch._higher_order_ops.associative_scan import generic_associative_scan as _prefixes
from torch._higher_order_ops.map import map as _map
from torch._higher_order_ops.scan import scan as _scan
from torch._higher_order_ops.while_loop import while_loop as _while_loop
from torch._higher_order_ops.wrap import Wrap as _Wrap
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast, autocast_decorator
from torch.autograd.grad_mode import _enter_inference_mode, _exit_inference_mode
from torch.cpu.amp.autocast_mode import autocast as cpu_autocast
from torch.distributions.utils import _lazy_property_and_property
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.nn.modules import module as _module
from torch.optim._adafactor import _multi_tensor_adafactor, _single_tensor_adafactor
from torch.optim.asgd import _multi_tensor_asgd, _single_tensor_asgd
from torch.optim.optimizer import _get_value
from torch.optim.radam import _multi_tensor_radam, _single_tensor_radam
from torch.utils._contextlib import context_decorator
from torch.utils._device import DeviceContext, _device_constructors
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    is_traceable_wrapper_subclass,
)

__all__ = [
    "DataDependentOutputException", "DynamicOutputShapeException", "FakeTensor",
    "UnsupportedFakeTensorException", "UnsupportedOperatorException", "autocast_decorator",
    "context_decorator", "cpu_autocast",
]  # fmt: skip

set_grad_enabled: Callable[[bool], None] = torch._C._set_grad_enabled
pad_sequence: Callable[..., torch.Tensor] = torch._C._nn.pad_sequence
enter_autocast: Callable[..., object] = _enter_autocast
exit_autocast: Callable[[object], None] = _exit_autocast
base_tensor: type = torch._C.TensorBase
no_torch_function: object = torch._C._disabled_torch_function_impl
no_torch_dispatch: object = torch._C._disabled_torch_dispatch_impl
disable_torch_function: tuple[Any, ...] = (
    torch._C.DisableTorchFunctionSubclass,
    torch._C.DisableTorchFunction,
)
torch_function_enabled: Callable[[], bool] = torch._C._is_torch_function_enabled
_default: Any = torch.Tensor.__torch_function__
default_torch_function: Callable[..., object] = _default.__func__
push_function_mode: Callable[[object], None] = torch._C._push_on_torch_function_stack
pop_function_mode: Callable[[], object] = torch._C._pop_torch_function_stack
function_mode_count: Callable[[], int] = torch._C._len_torch_function_stack
function_mode_active: Callable[[], bool] = torch._C._is_torch_function_mode_enabled
device_constructors: Callable[[], Any] = _device_constructors
make_subclass: Callable[..., torch.Tensor] = torch.Tensor._make_subclass
is_wrapper: Callable[[object], bool] = is_traceable_wrapper_subclass
# Whether arguments have a ``__torch_function__``: those in a tuple, or those given.
OVERRIDES_OF: tuple[Any, ...] = (torch._C._has_torch_function,)
if torch.overrides.has_torch_function is not OVERRIDES_OF[0]:
    OVERRIDES_OF += (torch.overrides.has_torch_function,)
OVERRIDES_OF_ANY: tuple[Any, ...] = (
    torch._C._has_torch_function_unary,
    torch._C._has_torch_function_variadic,
)
enter_inference_mode: Callable[[bool], object] = _enter_inference_mode
exit_inference_mode: Callable[[object], None] = _exit_inference_mode

FORWARD_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
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
module_delattr: Callable[..., object] = torch.nn.Module.__delattr__
module_getattr: Callable[..., object] = torch.nn.Module.__getattr__
module_setattr: Callable[..., object] = torch.nn.Module.__setattr__

# What functions that ``torch.vmap`` and its kin made call, and the code of those they inline.
vmap_call: Callable[..., object] = torch.func.vmap.__globals__["vmap_impl"]
grad_call: Callable[..., object] = torch.func.jvp.__globals__["grad_impl"]
grad_and_value_call: Callable[..., object] = torch.func.jvp.__globals__["grad_and_value_impl"]
JACOBIANS = tuple((f, f(print).__code__) for f in (torch.func.jacrev, torch.func.jacfwd))

while_loop: Callable[..., object] = _while_loop
map_rows: Callable[..., object] = _map
scan: Callable[..., object] = _scan
prefixes: Callable[..., object] = _prefixes
wrap_call: Callable[..., object] = _Wrap.__call__
operator_call: Callable[..., object] = torch._ops.HigherOrderOperator.__call__
_once: Callable[..., Any] = torch.autograd.function.once_differentiable(print)
once_differentiable_code: object = _once.__code__
lazy_property: type = _lazy_property_and_property
node_label: Callable[[fx.Graph, Callable[..., object] | str], str] = fx.Graph._target_to_str
has_symbols: Callable[[torch.Tensor], bool] = attrgetter("_has_symbolic_sizes_strides")
autograd_apply: object = torch.autograd.Function.__dict__["apply"].__func__
# The code of functions that torch's own modules except from torch's own compiler.
not_traced_code: object = torch._compile._disable_dynamo(print).__code__
OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
safe_softmax: Callable[..., Any] = torch._safe_softmax
assert_async: Callable[..., object] = torch._assert_async
optimizer_value: Callable[..., object] = _get_value
# Optimizers that branch on how many steps they have taken, unless they are ``capturable``: the
# functions that update, each with the position of the list of step counts, and whether the
# capturable form writes to other numbers after it has multiplied with them.
COUNTING_OPTIMIZERS: tuple[tuple[Callable[..., object], Callable[..., object], int, bool], ...] = (
    (_single_tensor_radam, _multi_tensor_radam, 4, False),
    (_single_tensor_asgd, _multi_tensor_asgd, 5, True),
)
ADAFACTOR: tuple[Callable[..., object], ...] = (_single_tensor_adafactor, _multi_tensor_adafactor)
group_tensors: Callable[..., Any] = torch._C._group_tensors_by_device_and_dtype
is_tracing: Callable[[], bool] = torch._C._is_tracing
is_functional: Callable[[torch.Tensor], bool] = torch._is_functional_tensor

# Queries by their path below ``torch``, with spaces between; those that a release lacks are left
# out. The answers of FOLDED_QUERIES follow from state that every compiled body guards.
FOLDED_QUERIES = (
    "_C._is_any_autocast_enabled _C._is_autocast_available _C._cuda_getDeviceCount "
    "_C._get_privateuse1_backend_name _C._len_torch_dispatch_stack "
)
# Getters of the process's state, which answer with a number, a flag or a word.
_STATE = re.compile(
    r"_(cuda_)?get_.*_(enabled?|benchmark|deterministic|allow_tf32|precision|limit|reduction|optimize"
    r"|accumulation|math|backend|order|kernel)"
)
_READERS = [name for name in dir(torch._C) if _STATE.fullmatch(name)]
STATE_QUERIES = " ".join(f"_C.{name}" for name in (*_READERS, "_get_fp32_precision_getter"))
#: ``current_device()`` -> number of this thread's current GPU.
current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)


def is_unnumbered(device: torch.device) -> bool:
    """Whether it is the current GPU, whichever that is."""
    return device.type == "cuda" and device.index is None


# Switches of the attention kernels, which contexts turn: what each is set by and read by.
ATTENTION_SWITCHES: dict[Callable[[Any], None], Callable[[], Any]] = {
    getattr(torch._C, f"_set_sdp_use_{name}"): getattr(torch._C, f"_get_{name}_sdp_enabled")
    for name in "cudnn flash mem_efficient math overrideable".split()
}
ATTENTION_SWITCHES[torch._C._set_sdp_priority_order] = torch._C._get_sdp_priority_order
_READS = tuple(ATTENTION_SWITCHES.values())
# At its first attention on a recent GPU torch itself replaces the first order by the second.
_BUILT_IN_ORDER, _CUDNN_FIRST = [1, 2, 0, 3, 4], [3, 1, 2, 0, 4]
TRUE_QUERIES = "_utils.is_compiling"
FALSE_QUERIES = (
    "_jit_internal.is_scripting _C._is_tracing "
    "_C._functorch.is_functorch_wrapped_tensor _C._functorch.is_batchedtensor "
    "_C._functorch.is_gradtrackingtensor"
)
NONE_QUERIES = "_C._log_api_usage_once _C._get_tracing_state _C._functorch.peek_interpreter_stack"
TRANSFORM_QUERIES = "_C._are_functorch_transforms_active"
# Functions of modules that must not be imported, or that are copied about: (module, name, answer).
QUERIES_BY_NAME = (
    ("torch._dynamo.external_utils", "is_compiling", True),
    ("torch._dynamo", "is_compiling", True),
    ("torch._dynamo.eval_frame", "is_compiling", True),
    ("torch.compiler", "is_compiling", True),
    ("torch.compiler", "is_dynamo_compiling", True),
    ("torch.compiler", "is_exporting", False),
    ("torch._jit_internal", "is_scripting", False),
    ("torch.jit._trace", "is_tracing", False),
    ("torch.onnx", "is_in_onnx_export", False),
    ("torch.onnx.utils", "is_in_onnx_export", False),
    ("torch.fx._symbolic_trace", "is_fx_tracing", False),
    ("torch.fx._symbolic_trace", "is_fx_symbolic_tracing", False),
)


def apply_of(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """``function.apply`` where no transform of ``torch.func`` is active."""
    base: Any = super(torch.autograd.Function, function)
    apply: Callable[..., Any] = base.apply
    return apply


class CapturedGraph(_LazyGraphModule):
    """A graph module whose code is generated when somebody asks for it: backends walk the graph."""

    @property
    def _lazy_forward(self) -> Callable[..., object]:
        self.real_recompile()
        return self.forward

    forward = _lazy_forward


def backward_hooks_of(module: torch.nn.Module) -> tuple[list[Any], list[Any]]:
    """Backward hooks of a module, and those that run before its backward pass."""
    own: Any = module
    full, _ = own._get_backward_hooks()
    return full, own._get_backward_pre_hooks()


def attention_switches() -> bytes:
    """Which kernels attention may take, and in which order; torch's own change of it is none."""
    cudnn, flash, mem_efficient, math_, overrideable, read = _READS
    order = _CUDNN_FIRST if (now := read()) == _BUILT_IN_ORDER else now
    return bytes([cudnn(), flash(), mem_efficient(), math_(), overrideable(), *order])


def map_nodes(nest: object, fn: Callable[[fx.Node], object]) -> Any:
    """Replace the nodes in a nest of arguments."""
    return fx.node.map_arg(nest, fn)  # type: ignore[type-var, arg-type]


def numpy_layer() -> Any:
    """Torch's NumPy layer: functions of NumPy in operators of torch. Imported when it is needed."""
    import torch._numpy

    return torch._numpy


def c_namespaces() -> tuple[object, ...]:
    """Namespaces of operators that are implemented in C++."""
    names = ("_VariableFunctions", "_nn", "_special", "_linalg", "_fft", "_sparse", "_nested")
    return tuple(getattr(torch._C, n) for n in names)


def legacy_tensor_types() -> dict[type, torch.dtype]:
    """``torch.FloatTensor`` and its kin on the CPU, with their element types."""
    found = {}
    for name in "Float Double Half BFloat16 Byte Char Short Int Long Bool".split():
        cls: Any = getattr(torch, f"{name}Tensor")
        found[cls] = cls.dtype
    return found


def storage_id(tensor: torch.Tensor) -> int:
    """Identity of the storage behind a (fake) tensor, shared by its views."""
    if type(tensor) is FakeTensor:
        identity: int = tensor.untyped_storage()._cdata
        return identity
    with disable_torch_function[0]():
        return int(tensor.untyped_storage()._cdata)


def active_modes() -> list[object]:
    """Torch-dispatch and torch-function modes that are active, default devices aside."""
    count = torch._C._len_torch_function_stack()
    functions = [torch._C._get_function_stack_at(i) for i in range(count)]
    dispatch = _get_current_dispatch_mode_stack() if torch._C._len_torch_dispatch_stack() else []
    return [m for m in functions if not isinstance(m, DeviceContext)] + dispatch


def functorch_transform() -> str | None:
    """Name of the innermost ``torch.func`` transform that is running, or None."""
    level: Any = torch._C._functorch.peek_interpreter_stack()
    return None if level is None else f"torch.func {level.key().name.lower()}"


def forward_differentiation() -> str | None:
    """What a level of ``torch.autograd.forward_ad`` is called, if one is open."""
    return "dual_level" if torch.autograd.forward_ad._current_level >= 0 else None


profiler_enabled: Callable[[], bool] = torch._C._autograd._profiler_enabled
enable_record_function: Callable[[bool], None] = torch._C._autograd._enable_record_function


def saving_hook() -> Callable[..., object] | None:
    """The hook that is given what autograd saves now."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return None if hooks is None else hooks[0]


def version_of(tensor: torch.Tensor) -> int | None:
    """How often a tensor was written to; inference tensors do not count that."""
    with disable_torch_function[0]():
        return None if tensor.is_inference() else tensor._version


def set_version(tensor: torch.Tensor, version: int | None) -> None:
    """Give a tensor an earlier version: what was written since has been taken back."""
    if version is not None:
        torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))


def set_deterministic(mode: bool, warn_only: bool = False) -> None:
    """``torch.use_deterministic_algorithms``."""
    torch.use_deterministic_algorithms(mode, warn_only=warn_only)


def deterministic_mode() -> tuple[bool, bool]:
    """What ``set_deterministic`` was called with."""
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    return torch.are_deterministic_algorithms_enabled(), warn_only


def set_anomaly(mode: bool, check_nan: bool = True) -> None:
    """``torch.set_anomaly_enabled``."""
    torch.set_anomaly_enabled(mode, check_nan)


def anomaly_mode() -> tuple[bool, bool]:
    """What ``set_anomaly`` was called with."""
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


@contextmanager
def without_anomalies() -> Iterator[None]:
    """Fake gradients have no values to look for NaN in."""
    mode, check = anomaly_mode()
    torch.set_anomaly_enabled(False, check)
    try:
        yield
    finally:
        torch.set_anomaly_enabled(mode, check)


# Functions that change a setting: each with what does it, and how to ask what holds.
SWITCHES: list[tuple[Any, Callable[..., Any], Callable[..., Any]]] = [
    *((put, put, read) for put, read in ATTENTION_SWITCHES.items()),
    *(
        (put, put, getattr(torch._C, name))
        for name in _READERS
        for put in (getattr(torch._C, name.replace("get_", "set_", 1), None),)
        if put is not None and put not in ATTENTION_SWITCHES
    ),
    (torch._C._set_default_dtype, torch._C._set_default_dtype, torch.get_default_dtype),
    (torch.set_num_threads, torch.set_num_threads, torch.get_num_threads),
    (torch.use_deterministic_algorithms, set_deterministic, deterministic_mode),
    (torch._C._set_deterministic_algorithms, set_deterministic, deterministic_mode),
    (torch.set_anomaly_enabled, set_anomaly, anomaly_mode),
]
_SETTINGS = {put: read for _, put, read in SWITCHES}
_PRECISION = torch._C._set_fp32_precision_setter
SWITCHES.append((_PRECISION, _PRECISION, torch._C._get_fp32_precision_getter))
# Those of which there are several: how many arguments say which.
SWITCH_KEYS: dict[object, int] = {_PRECISION: 2}


class AmbientState:
    """Grad mode, autocast and other settings, to be restored after a failure."""

    def __init__(self) -> None:
        self._grad = torch.is_grad_enabled()
        self._autocast = [
            (d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")
        ]
        self._any = any(enabled for _, enabled, _ in self._autocast)
        self._cache = torch.is_autocast_cache_enabled()
        self._settings = {put: read() for put, read in _SETTINGS.items()}

    def keep(self, changed: Iterable[object]) -> None:
        """Restore none of the settings but those that are set by these functions."""
        self._settings = {put: self._settings[put] for put in changed if put in self._settings}

    def restore(self) -> None:
        """Bring the state back; a no-op for what has not changed."""
        torch._C._set_grad_enabled(self._grad)
        for put, was in self._settings.items():
            now = _SETTINGS[put]()
            if now != was and (was, now) != (_BUILT_IN_ORDER, _CUDNN_FIRST):
                put(*was) if isinstance(was, tuple) else put(was)
        changed = False
        for device, enabled, dtype in self._autocast:
            if torch.is_autocast_enabled(device) is not enabled:
                changed = True
                torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(self._cache)
        if changed and not self._any:  # contexts were entered and never left
            while torch.autocast_increment_nesting() > 1:
                torch.autocast_decrement_nesting()
                torch.autocast_decrement_nesting()
            torch.autocast_decrement_nesting()
            torch.clear_autocast_cache()


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode whose handler torch does not wrap (the wrapper imports torch._dynamo)."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
