"""Adapter: the only module of this package's capture side that touches private torch names.

A new torch release can break this file only. Everything here is thin: a name, or a function of a
few lines around one.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.autograd.graph import _engine_run_backward
from torch.fx.graph import _PyTreeCodeGen, _PyTreeInfo
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
    is_traceable_wrapper_subclass,
)
from torch.utils.hooks import RemovableHandle
from torchsmith_guards import new_strided

__all__ = [
    "DataDependentOutputException", "DynamicOutputShapeException", "FakeTensor", "FakeTensorMode",
    "HigherOrderOperator", "OpOverload", "enable_python_dispatcher", "pytree",
    "unset_fake_temporarily",
]  # fmt: skip

is_wrapper: Callable[[object], bool] = is_traceable_wrapper_subclass
# Functions that change how operators run, but for what capture takes into account.
_SETTING = re.compile(
    r"(_cuda)?_set_(?!grad_enabled|sdp_|default_dtype).*|set_(num_|determin|anomaly).*"
)


@functools.cache
def is_setting(name: str) -> bool:
    """Whether a function of this name changes how operators run."""
    return _SETTING.fullmatch(name) is not None


_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd

# VariableType calls operators with this key excluded; what autograd itself does to save a tensor
# comes with the key included.
_VIEWS = torch._C.DispatchKey.ADInplaceOrView

# Whether the backward pass that runs leaves what was saved to another one.
keeps_graph: Callable[[], bool] = torch._C._autograd._get_current_graph_task_keep_graph
below_autograd: Callable[[], AbstractContextManager[object]] = torch._C._AutoDispatchBelowAutograd
without_dispatch: Callable[[], AbstractContextManager[object]] = torch._C._DisableTorchDispatch
without_active_modes: Callable[[], AbstractContextManager[object]] = _disable_current_modes


def delayed_error(message: str, count: int) -> Callable[..., Sequence[torch.Tensor]]:
    """A function that returns its ``count`` arguments; differentiating that is an error."""
    error = torch._C._functions.DelayedError(message.encode(), count)

    def mark(*tensors: torch.Tensor) -> Sequence[torch.Tensor]:
        marked = error(*tensors)
        return marked if isinstance(marked, (list, tuple)) else (marked,)

    return mark


def apply_of(function: type[torch.autograd.Function], **unset: object) -> Callable[..., Any]:
    """``function.apply``, which otherwise looks at each of its arguments first: a transform that
    has ended may still wrap it. Within a transform it says what eager says. Autograd calls
    ``function.backward`` without asking whether that has another name. ``unset`` are attributes
    that its contexts have until they are set."""
    for name, value in {"apply": function.backward, **unset}.items():
        setattr(function._backward_cls, name, value)
    plain = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    within = torch._C._are_functorch_transforms_active

    def apply(*args: object) -> Any:
        return (function.apply if within() else plain)(*args)

    return apply


use_count: Callable[[torch.Tensor], int] = torch.Tensor._use_count  # type: ignore[attr-defined]


def in_storage(tensor: torch.Tensor) -> bool:
    """Whether a tensor has memory. One whose class has operators of its own may only seem to."""
    kind: Any = type(tensor)
    plain = kind.__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl
    return plain and torch._C._has_storage(tensor)


def settled(x: torch.Tensor | None) -> torch.Tensor | None:
    """``x``, or where that helps a copy whose elements lie in memory as they are."""
    if x is not None and (x.is_neg() or x.is_conj() or x._is_zerotensor()):
        return torch.empty_like(x).copy_(x)
    # Operators on what a collective gives wait for it, and their results are plain.
    return x if x is None or in_storage(x) else x.clone()


# Whether the backward pass under way runs a node; it raises of a leaf that it gives a gradient of.
will_run: Callable[[Any], bool] = torch._C._will_engine_execute_node
has_autocast: Callable[[], bool] = torch._C._is_any_autocast_enabled


# A context for running: what was captured has autocast's casts in it.
below_autocast: Callable[[], AbstractContextManager[object]] = torch._C._DisableAutocast


def without_autocast() -> AbstractContextManager[object]:
    """The same for capturing, where rules ask whether there is autocast."""
    contexts = contextlib.ExitStack()
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            contexts.enter_context(torch.autocast(device, enabled=False))
    return contexts


def has_saving_hooks() -> bool:
    """Whether hooks take what autograd saves now."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


@functools.cache
def number() -> torch.Tensor:
    """A number as autograd saves it: hooks on what is saved do not get it."""
    with without_active_modes(), torch.inference_mode(False), torch.enable_grad():
        return (torch.ones(1, requires_grad=True) * 1).grad_fn._saved_other  # type: ignore[union-attr, no-any-return]


_LESS = {torch.float64: torch.half, torch.int64: torch.int8, torch.complex128: torch.complex64}


def is_number(tensor: torch.Tensor) -> bool:
    """Whether a tensor stands for a number of the program: it does not decide on types."""
    less = _LESS.get(tensor.dtype)
    own = less is None or tensor.dim() > 0
    return not own and torch.result_type(tensor, torch.empty((), dtype=less)) is less


@contextlib.contextmanager
def saving_hooks(pack: Callable[[Any], Any], unpack: Callable[[Any], Any]) -> Iterator[None]:
    """Hooks of our own on what autograd saves, where the program forbids hooks, too."""
    autograd: Any = torch._C._autograd
    forbidden = autograd._saved_tensors_hooks_get_disabled_error_message()
    autograd._saved_tensors_hooks_enable()
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            yield
    finally:
        if forbidden is not None:
            autograd._saved_tensors_hooks_disable(forbidden)


def above_autograd_views() -> bool:
    """Whether a dispatch comes from autograd's own bookkeeping, not from an operator call."""
    return not torch._C._dispatch_tls_is_dispatch_key_excluded(_VIEWS)


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode whose handler torch does not wrap (the wrapper imports torch._dynamo)."""

    _casts: tuple[str, ...] | None = None  # devices with autocast, within ``decomposing``

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    @contextlib.contextmanager
    def decomposing(self, op: OpOverload) -> Iterator[None]:
        """For the handler, to run what ``op`` is defined by under the mode. Autocast, which is off
        in a handler, casts for these operators, unless it had a rule for ``op`` itself."""
        before = casts = self._casts
        if casts is None:
            with torch._C._RestorePythonTLSSnapshot():  # type: ignore[attr-defined]
                casts = tuple(d for d in ("cpu", "cuda") if torch.is_autocast_enabled(d))
        name: str = op.name()  # type: ignore[no-untyped-call]
        ruled = torch._C._dispatch_has_kernel_for_dispatch_key
        self._casts = tuple(d for d in casts if not ruled(name, f"Autocast{d.upper()}"))
        try:
            with contextlib.ExitStack() as stack:
                for device in self._casts:
                    stack.enter_context(torch.autocast(device, cache_enabled=False))
                stack.enter_context(self)
                yield
        finally:
            self._casts = before


def number_in(tensor: torch.Tensor) -> int | float | bool:
    """The number in a real one-element tensor, read past any active mode."""
    with without_dispatch():
        return tensor.item()


def active_modes() -> Sequence[TorchDispatchMode]:
    """The dispatch modes of this thread, outermost first."""
    return _get_current_dispatch_mode_stack()


def has_composite_kernel(op: OpOverload) -> bool:
    """Whether ``op`` is defined by other operators rather than by kernels of its own."""
    name: str = op.name()  # type: ignore[no-untyped-call]
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")


def run_composite_kernel(
    op: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
) -> object:
    """Run the C++ definition of a composite operator; Python replacements are passed over,
    because some of them differ in aliasing (dropout copies its input, for instance)."""
    return op._op_dk(_COMPOSITE, *args, **kwargs)


def attention_switches() -> tuple[bool, ...]:
    """Which kernels ``scaled_dot_product_attention`` may take now, and in which order."""
    names = ("cudnn", "flash", "mem_efficient", "math", "overrideable")
    order = torch._C._get_sdp_priority_order()
    return (*(getattr(torch._C, f"_get_{name}_sdp_enabled")() for name in names), *order)


def python_definition(op: OpOverload) -> Callable[..., object]:
    """Torch's definition of a composite operator in Python."""
    from torch import _refs  # noqa: F401  (both register theirs)
    from torch._decomp import decompositions  # noqa: F401

    return op.py_kernels[_COMPOSITE]


def fused_attention_choice(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    is_causal: bool,
    *,
    scale: float | None,
    enable_gqa: bool,
    dtype: torch.dtype | None = None,
) -> int | None:
    """Number of the kernel that eager's attention chooses for operands of these layouts (and of
    this dtype, if one is given): 0 is the one that stores all scores. None where there is no such
    device, or no memory to ask it."""
    if not torch.cuda.is_available() or query.device.type != "cuda":
        return None

    def real(tensor: torch.Tensor) -> torch.Tensor:
        size, stride = tuple(tensor.shape), tensor.stride()
        kind = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        made = torch.empty_strided(size, stride, dtype=kind, device=tensor.device)
        return made.requires_grad_(tensor.requires_grad)

    with without_active_modes(), torch.no_grad():
        try:
            chosen = torch._fused_sdp_choice(
                real(query),
                real(key),
                real(value),
                None if mask is None else real(mask),
                dropout,
                is_causal,
                scale=scale,
                enable_gqa=enable_gqa,
            )
        except RuntimeError:  # out of memory, or operands that eager refuses, too
            return None
    return int(chosen)


def make_fake(
    mode: FakeTensorMode,
    size: Sequence[int | torch.SymInt],
    stride: Sequence[int | torch.SymInt],
    dtype: torch.dtype,
    device: torch.device,
    offset: int | torch.SymInt = 0,
) -> FakeTensor:
    """A fake tensor of this layout, without running any operator under the mode."""
    if type(offset) is int and offset == 0:
        return new_strided(mode, size, stride, dtype, device)
    with without_dispatch():
        far = (s * (n - 1) for n, s in zip(size, stride) if not (type(n) is int and n < 2))
        whole = torch.empty_strided((offset + 1 + sum(far),), (1,), dtype=dtype, device="meta")
        return FakeTensor(mode, torch.as_strided(whole, size, stride, offset), device)


def fake_like(
    mode: FakeTensorMode, tensor: torch.Tensor, offset: int | torch.SymInt = 0
) -> FakeTensor:
    """A fake tensor of the layout of ``tensor``."""
    return make_fake(mode, tensor.shape, tensor.stride(), tensor.dtype, tensor.device, offset)


def fake_mode_of(tensor: torch.Tensor) -> FakeTensorMode | None:
    """The mode that a fake tensor belongs to; None for other tensors."""
    return tensor.fake_mode if isinstance(tensor, FakeTensor) else None


@contextlib.contextmanager
def no_autocast_cache() -> Iterator[None]:
    """Switch autocast's cache of cast weights off, so that a trace records each cast."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


def pytree_codegen(
    names: Sequence[str], in_spec: pytree.TreeSpec, out_spec: pytree.TreeSpec | None
) -> torch.fx.graph.CodeGen:
    """Code generation for a graph module that takes and returns nested containers."""
    return _PyTreeCodeGen(_PyTreeInfo(list(names), in_spec, out_spec))


def structures(graph: torch.fx.Graph) -> tuple[pytree.TreeSpec, pytree.TreeSpec] | None:
    """How the arguments and the result of a graph are nested whose code takes them apart."""
    info = getattr(graph._codegen, "pytree_info", None)
    if info is None or info.out_spec is None:
        return None
    parts = info.in_spec.children()
    named = len(parts) == 2 and parts[0].type is tuple and parts[1].type is dict
    return parts[0] if named else info.in_spec, info.out_spec


def run_backward(
    outputs: Sequence[torch.Tensor],
    leaves: Sequence[torch.Tensor],
    tangents: Sequence[torch.Tensor],
) -> Sequence[torch.Tensor | None]:
    """``torch.autograd.grad`` for tangents of the right sizes, which it checks by sympy."""
    return _engine_run_backward(
        tuple(outputs), tuple(tangents), True, False, tuple(leaves), True, accumulate_grad=False
    )


def check_version(tensor: torch.Tensor, version: int) -> None:
    """Raise what autograd raises of a tensor that was written since it had ``version``."""
    if tensor._version != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: [{tensor.type()} {list(tensor.shape)}] is at version {tensor._version}; "
            f"expected version {version} instead. Hint: enable anomaly detection to find the "
            "operation that failed to compute its gradient, with "
            "torch.autograd.set_detect_anomaly(True)."
        )


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Give a tensor an earlier version: what was written since has been taken back."""
    torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))


def hook(tensor: torch.Tensor, function: Callable[[torch.Tensor], Any] | None) -> None:
    """``tensor.register_hook``, which takes a number that programs see, for a tensor of our own
    that has no hook; None takes that of a leaf off again."""
    tensor._backward_hooks = None if function is None else OrderedDict({0: function})
    if tensor.grad_fn is not None:
        tensor.grad_fn._register_hook_dict(tensor)


@contextlib.contextmanager
def ended(functions: Iterable[Any]) -> Iterator[None]:
    """Gradients reach these nodes of autograd's, but nothing behind them. It takes none of the
    numbers of hooks that programs see."""
    number = RemovableHandle.next_id
    handles = [f.register_prehook(lambda grads: (None,) * len(grads)) for f in functions]
    RemovableHandle.next_id = number
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def gradient_clock() -> int:
    """How many nodes of the autograd graph this thread has made: the number of the next one."""
    return torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]


def running_gradient() -> int | None:
    """What ``gradient_clock`` said when the node that autograd is now running was made.

    Very large for those that add into leaves.
    """
    node = torch._C._current_autograd_node()
    return None if node is None else node._sequence_nr()


def has_mkldnn(dtype: torch.dtype = torch.float32) -> bool:
    """Whether eager takes the library's layers for tensors of this type on this CPU."""
    if not (torch._C._has_mkldnn and torch.backends.mkldnn.enabled):
        return False
    half = dtype is torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return dtype is torch.float32 or bool(half)


def mkldnn_convolution() -> OpOverload:
    """A convolution that takes packed weights."""
    return torch.ops.mkldnn._convolution_pointwise.default


def pack_convolution(
    weight: torch.Tensor,
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    image: Sequence[int],
) -> torch.Tensor:
    """``weight`` in the layout that the library wants for images of this size."""
    pack = torch.ops.mkldnn._reorder_convolution_weight
    return pack(weight.detach(), padding, stride, dilation, groups, image)  # type: ignore[no-any-return]
