"""``patch(model)``: the kernels inside a Hugging Face Llama, Qwen or Mistral model.

Only the given model's own modules change, each through an instance attribute ``forward``; classes,
library modules and other models stay as they are, parameters and ``state_dict`` too. ``undo``
removes the attributes again. transformers itself is never imported here.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from torchsmith_kernels._src.apply_rotary.op import apply_rotary
from torchsmith_kernels._src.flash_attention.op import flash_attention
from torchsmith_kernels._src.fused_linear_cross_entropy.functional import (
    fused_linear_cross_entropy,
)
from torchsmith_kernels._src.geglu.op import geglu
from torchsmith_kernels._src.rms_norm.op import rms_norm
from torchsmith_kernels._src.swiglu.op import swiglu
from torchsmith_kernels.errors import ArgumentTypeError, PatchError

__all__ = ["Change", "Patch", "patch"]

FAMILIES = ("llama", "qwen2", "qwen3", "mistral")
OPS = (
    "rms_norm",
    "swiglu",
    "geglu",
    "apply_rotary",
    "flash_attention",
    "fused_linear_cross_entropy",
)
#: Everything that leaves the model's outputs as they are; see ``patch`` about the loss.
DEFAULT_OPS = OPS[:-1]


@dataclass(frozen=True, slots=True)
class Change:
    """One module that runs other code now.

    Attributes:
        module: its qualified name in the model.
        kind: its class.
        ops: the ops of this package that it calls.
    """

    module: str
    kind: str
    ops: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.module or '(model)'} ({self.kind}): {', '.join(self.ops)}"


class Patch:
    """What ``patch`` changed; ``undo`` puts it back. Also a context manager.

    Attributes:
        changes: one entry per changed module, in the model's order.
    """

    def __init__(self, modules: Sequence[nn.Module], changes: Sequence[Change]) -> None:
        self._modules: tuple[nn.Module, ...] = tuple(modules)
        self.changes: tuple[Change, ...] = tuple(changes)

    def undo(self) -> None:
        """Restores every module; further calls do nothing."""
        for module in self._modules:
            if isinstance(module.__dict__.get("forward"), _Swapped):
                del module.__dict__["forward"]
        self._modules = ()

    def __enter__(self) -> Patch:
        return self

    def __exit__(self, *exc: object) -> None:
        self.undo()

    def __str__(self) -> str:
        return "\n".join(str(change) for change in self.changes)


class _Swapped:
    """A replaced ``forward``: a function bound to its module, recognisable for ``undo``."""

    def __init__(self, function: Callable[..., Any], module: nn.Module) -> None:
        self.__func__, self.__self__ = function, module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__func__(self.__self__, *args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle, which finds an attention layer's new forward nowhere: it is made again."""
        names = self.__func__.__globals__
        if names is globals():
            return _Swapped, (self.__func__, self.__self__)
        return _swapped_attention, (
            self.__self__,
            names.get("apply_rotary_pos_emb") is _rotary_pos_emb,
            isinstance(names.get("ALL_ATTENTION_FUNCTIONS"), _Interfaces),
        )


def _swapped_attention(module: nn.Module, rotary: bool, attention: bool) -> _Swapped:
    forward = cast(types.FunctionType, type(module).forward)
    return _Swapped(_attention_forward(forward, rotary, attention), module)


def patch(model: nn.Module, ops: Sequence[str] = DEFAULT_OPS) -> Patch:
    """Makes the modules of a Hugging Face Llama, Qwen2, Qwen3 or Mistral model call our ops.

    RMS norms call ``rms_norm`` (rounded once, where the model rounds before the weight as well),
    MLPs ``swiglu`` or ``geglu``, attention layers ``apply_rotary`` and, where the model's attention
    implementation is ``sdpa``, ``flash_attention``. ``fused_linear_cross_entropy`` is left out
    unless asked for, since calls with ``labels`` then return no logits; it leaves a model alone
    that has a loss of its own, or more in its head than a weight.

    Args:
        model: the model, or a part of one.
        ops: which ops may be put in; names of ``torchsmith_kernels``.

    Returns:
        The list of changes, with ``undo``.

    Raises:
        ArgumentTypeError: ``model`` is no module, or ``ops`` names something else.
        PatchError: there is nothing to change, or the model is patched already.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(
            op="patch",
            argument="model",
            given=f"of type {type(model).__name__}",
            accepted="it must be a torch.nn.Module",
        )
    if isinstance(ops, str) or not isinstance(ops, Collection) or not all(op in OPS for op in ops):
        raise ArgumentTypeError(
            op="patch", argument="ops", given=repr(ops), accepted=f"accepted are {', '.join(OPS)}"
        )
    found: list[tuple[nn.Module, Callable[..., Any], Change]] = []
    for name, module in model.named_modules():
        if isinstance(module.__dict__.get("forward"), _Swapped):
            raise PatchError(message=f"{name or 'the model'} is patched already; undo that first")
        if not _of_family(module) or "forward" in module.__dict__:
            continue
        swap = _replacement(module, frozenset(ops))
        if swap is not None:
            forward, used = swap
            found.append((module, forward, Change(name, type(module).__name__, used)))
    if not found:
        raise PatchError(
            message=f"{type(model).__name__} has no module that {', '.join(ops)} can run; known "
            f"are norms, MLPs and attention layers of {', '.join(FAMILIES)} in transformers"
        )
    for module, forward, _ in found:
        module.__dict__["forward"] = _Swapped(forward, module)
    return Patch([module for module, _, _ in found], [change for _, _, change in found])


def _of_family(module: nn.Module) -> bool:
    home = type(module).__module__
    return any(home == f"transformers.models.{name}.modeling_{name}" for name in FAMILIES)


def _replacement(
    module: nn.Module, ops: frozenset[str]
) -> tuple[Callable[..., Any], tuple[str, ...]] | None:
    """The new forward of a module and the ops in it, None where there is none."""
    kind = type(module).__name__
    if kind.endswith("RMSNorm") and "rms_norm" in ops:
        return _rms_norm_forward, ("rms_norm",)
    if kind.endswith("MLP"):
        gate = _GATES.get(type(getattr(module, "act_fn", None)).__name__)
        if gate is not None and gate[1] in ops:
            return gate[0], (gate[1],)
    if kind.endswith("Attention"):
        return _attention(module, ops)
    if kind.endswith("ForCausalLM") and "fused_linear_cross_entropy" in ops:
        if _is_plain(getattr(module, "lm_head", None)):
            return _causal_lm_forward, ("fused_linear_cross_entropy",)
    return None


def _rms_norm_forward(self: Any, hidden_states: Tensor) -> Tensor:
    if self.weight.dtype is not hidden_states.dtype:  # the model's own result has the wider one
        wider = torch.promote_types(self.weight.dtype, hidden_states.dtype)
        hidden_states = hidden_states.to(wider)
    return rms_norm(hidden_states, self.weight.shape, self.weight, self.variance_epsilon)


def _swiglu_forward(self: Any, x: Tensor) -> Any:
    return self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))


def _geglu_forward(self: Any, x: Tensor) -> Any:
    return self.down_proj(geglu(self.gate_proj(x), self.up_proj(x)))


def _geglu_tanh_forward(self: Any, x: Tensor) -> Any:
    return self.down_proj(geglu(self.gate_proj(x), self.up_proj(x), approximate="tanh"))


#: Classes of activation functions, in torch and transformers, with what replaces an MLP of theirs.
_GATES: dict[str, tuple[Callable[..., Any], str]] = {
    "SiLU": (_swiglu_forward, "swiglu"),
    "SiLUActivation": (_swiglu_forward, "swiglu"),
    "GELUActivation": (_geglu_forward, "geglu"),
    "GELUTanh": (_geglu_tanh_forward, "geglu"),
    "PytorchGELUTanh": (_geglu_tanh_forward, "geglu"),
}


def _rotary_pos_emb(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
) -> tuple[Tensor, Tensor]:
    """The model's ``apply_rotary_pos_emb``: heads at ``unsqueeze_dim``."""
    if unsqueeze_dim == 2:
        q, k = apply_rotary(q.transpose(1, 2), k.transpose(1, 2), cos, sin)
        return q.transpose(1, 2), k.transpose(1, 2)
    return apply_rotary(q, k, cos, sin)


def _attention_function(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """An attention function of transformers' interface; masks are those made for ``sdpa``."""
    if attention_mask is not None and attention_mask.shape[-1] > key.shape[2]:  # transformers 4
        attention_mask = attention_mask[..., : key.shape[2]]
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    result = flash_attention(
        query,
        key,
        value,
        attention_mask,
        dropout_p=dropout,
        is_causal=causal and attention_mask is None and query.shape[2] > 1,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return result.transpose(1, 2).contiguous(), None


#: Arguments of an attention function that change what it computes in ways that ours cannot.
_FOREIGN = ("cache", "position_bias", "head_mask", "softcap")


class _Interfaces:
    """Stands for transformers' registry of attention functions; answers ``sdpa`` with ours."""

    def __init__(self, registry: Any) -> None:
        self.registry = registry

    def attend(self, *args: Any, **kwargs: Any) -> Any:
        if any(kwargs.get(name) is not None for name in _FOREIGN):  # as in continuous batching
            return self.registry["sdpa"](*args, **kwargs)
        return _attention_function(*args, **kwargs)

    def get_interface(self, name: str, default: Callable[..., Any]) -> Callable[..., Any]:
        if name == "sdpa":
            return self.attend
        function: Callable[..., Any] = self.registry.get_interface(name, default)
        return function

    def __getitem__(self, name: str) -> Callable[..., Any]:  # transformers 4
        function: Callable[..., Any] = self.attend if name == "sdpa" else self.registry[name]
        return function


def _attention(
    module: nn.Module, ops: frozenset[str]
) -> tuple[Callable[..., Any], tuple[str, ...]] | None:
    """The layer's own forward with other globals, so that the library's module stays untouched."""
    forward = type(module).forward
    if not isinstance(forward, types.FunctionType) or hasattr(forward, "__wrapped__"):
        return None
    names = forward.__code__.co_names
    sdpa = getattr(getattr(module, "config", None), "_attn_implementation", None) == "sdpa"
    rotary = "apply_rotary" in ops and "apply_rotary_pos_emb" in names
    attention = "flash_attention" in ops and sdpa and "ALL_ATTENTION_FUNCTIONS" in names
    used = ("apply_rotary",) * rotary + ("flash_attention",) * attention
    return (_attention_forward(forward, rotary, attention), used) if used else None


def _attention_forward(
    forward: types.FunctionType, rotary: bool, attention: bool
) -> Callable[..., Any]:
    """``forward`` with our functions under the names of the library's."""
    replaced: dict[str, Any] = {}
    if rotary:
        replaced["apply_rotary_pos_emb"] = _rotary_pos_emb
    if attention:
        registry = forward.__globals__["ALL_ATTENTION_FUNCTIONS"]
        replaced["ALL_ATTENTION_FUNCTIONS"] = _Interfaces(registry)
    function = types.FunctionType(
        forward.__code__,
        {**forward.__globals__, **replaced},
        forward.__name__,
        forward.__defaults__,
        forward.__closure__,
    )
    function.__kwdefaults__ = forward.__kwdefaults__
    return function


def _is_plain(head: object) -> bool:
    """Whether a head does no more than multiply with its weight: no bias, adapter or hook."""
    return (
        type(head) is nn.Linear
        and head.bias is None
        and not (head._forward_hooks or head._forward_pre_hooks or "forward" in head.__dict__)
    )


def _causal_lm_forward(
    self: Any, input_ids: Tensor | None = None, *args: Any, **kwargs: Any
) -> Any:
    """As the model's own, but with ``labels`` the logits are never made; they come back as None."""
    labels = kwargs.get("labels")
    as_tuple = kwargs.get("return_dict", getattr(self.config, "return_dict", True)) is False
    loss_function = getattr(self, "loss_function", None)
    usual = getattr(loss_function, "__name__", "") == "ForCausalLMLoss" and _is_plain(self.lm_head)
    if labels is None or args or as_tuple or not usual:
        return type(self).forward(self, input_ids, *args, **kwargs)
    options = {name: value for name, value in kwargs.items() if name not in _LOSS_ARGUMENTS}
    outputs = self.model(input_ids=input_ids, **options)
    ignore = kwargs.get("ignore_index", -100)
    shifted = kwargs.get("shift_labels")
    if shifted is None:
        shifted = nn.functional.pad(labels, (0, 1), value=ignore)[..., 1:]
    hidden = outputs.last_hidden_state
    count = kwargs.get("num_items_in_batch")
    loss = fused_linear_cross_entropy(
        hidden.reshape(-1, hidden.shape[-1]),
        self.lm_head.weight,
        shifted.reshape(-1).to(hidden.device),
        ignore_index=ignore,
        reduction="mean" if count is None else "sum",
    )
    if count is not None:
        loss = loss / (count.to(loss.device) if torch.is_tensor(count) else count)
    result = vars(sys.modules[type(self).__module__])["CausalLMOutputWithPast"]
    return result(
        loss=loss,
        logits=None,
        past_key_values=outputs.past_key_values,
        hidden_states=outputs.hidden_states,
        attentions=outputs.attentions,
    )


_LOSS_ARGUMENTS = (
    "labels",
    "shift_labels",
    "ignore_index",
    "num_items_in_batch",
    "logits_to_keep",
    "return_dict",
)
