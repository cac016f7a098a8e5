"""What of ``torch.optim`` is not traced as it stands: reads of tensors into Python.

Eager optimizers compute with Python floats: the number of steps and what follows from it. In a
graph these are 0-dim tensors of double precision, which round as Python's floats do. Where eager
branches on such a number, torch has a second form of the same update without branches
(``capturable``), which is taken; Adafactor has none, and is written here. Two optimizers cannot be
in a graph at all: calls of their steps are breaks.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from torchsmith_tracer._src import torch_private as private
from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Args, Kwargs, Value
from torchsmith_tracer._src.values.builtins.registry import builtin, traced
from torchsmith_tracer._src.values.constants import ConstantValue
from torchsmith_tracer._src.values.containers import ListValue
from torchsmith_tracer._src.values.symnum import SymNumValue
from torchsmith_tracer._src.values.tensor import TensorValue
from torchsmith_tracer._src.values.torch_queries import register


def _native(cls: type[torch.optim.Optimizer], why: str) -> None:
    def step(tx: Trace, *args: Value, **kwargs: Value) -> Value:
        raise Unsupported("native-optimizer", what=f"torch.optim.{cls.__name__}", why=why)

    builtin(inspect.unwrap(cls.step))(step)


_native(torch.optim.LBFGS, "which losses and products of vectors decide about")
_native(torch.optim.SparseAdam, "on gradients of which only the data says how many rows they have")


@builtin(private.optimizer_value)
def _number_of(tx: Trace, x: Value) -> Value | None:
    """``_get_value``: the number in a tensor."""
    if not isinstance(x, TensorValue) or x.fake.dim() or x.fake.requires_grad:
        return None
    if x.fake.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return None
    return tx.graph.call_method("to", (x, torch.float64))


def _counting(single: Callable[..., object], place: int, once: bool) -> Callable[..., Value | None]:
    """Call ``single`` in its form without branches, with step counts of double precision.
    ``once``: that form writes to numbers which a backward pass would need.
    """

    def update(tx: Trace, *args: Value, **kwargs: Value) -> Value | None:
        capturable = kwargs.get("capturable")
        if not isinstance(capturable, ConstantValue) or capturable.value is not False:
            return None
        if once and tx.interp.truth(kwargs["differentiable"]):
            return None
        steps = list(tx.interp.unpack(args[place])) if len(args) > place else []
        if any(not isinstance(step, TensorValue) for step in steps):
            return None
        wide = [tx.graph.call_method("to", (step, torch.float64)) for step in steps]
        changed = (*args[:place], ListValue(wide), *args[place + 1 :])
        function = tx.builder.wrap_new(single)
        result = function.call(tx, changed, {**kwargs, "capturable": ConstantValue(True)})
        for step, now in zip(steps, wide, strict=True):
            tx.graph.call_method("copy_", (step, now))
        return result

    return update


for _single, _multi, _place, _once in private.COUNTING_OPTIMIZERS:
    builtin(_single, _multi)(_counting(_single, _place, _once))


def _adafactor(
    params: Any,
    grads: Any,
    row_vars: Any,
    col_vars: Any,
    variances: Any,
    state_steps: Any,
    grad_scale: Any,
    found_inf: Any,
    *,
    d: Any,
    lr: Any,
    beta2_decay: Any,
    weight_decay: Any,
    eps1: Any,
    eps2: Any,
    maximize: bool,
    **_named: object,
) -> None:
    """Adafactor's update, for each tensor by itself."""
    if grad_scale is not None or found_inf is not None:
        raise AssertionError("Grad scaling should occur outside of optimizer.step()")
    wide = torch.float64
    rate = lr.squeeze() if isinstance(lr, torch.Tensor) else torch.scalar_tensor(lr, dtype=wide)
    eps1 = torch.finfo(params[0].dtype).eps if eps1 is None and params else eps1

    def larger(least: Any, x: Any) -> Any:
        return torch.where(x > least, x, least)  # as ``max`` does, also of NaN

    def root_mean_square(x: Any) -> Any:
        return x.norm(2).to(wide) / x.numel() ** 0.5

    def blend(old: Any, new: Any, weight: Any) -> None:
        dtype = torch.promote_types(old.dtype, torch.float32)
        old.copy_(torch.lerp(old.to(dtype), new.to(dtype), weight.to(old.device, dtype)))

    for i, param in enumerate(params):
        grad = -grads[i] if maximize else grads[i]
        state_steps[i].add_(1)
        step = state_steps[i].to(wide)
        weight = step**beta2_decay
        alpha = larger(eps2, root_mean_square(param)) * torch.minimum(rate, 1 / step**0.5)
        if weight_decay != 0:
            param.mul_(1 - rate * weight_decay)
        if grad.dim() > 1:
            for dim, old in ((-1, row_vars[i]), (-2, col_vars[i])):
                norm = torch.norm(grad, dim=dim, keepdim=True)
                blend(old, norm.square_().div_(grad.size(dim)), weight)
            estimate = row_vars[i] @ col_vars[i]
            estimate.div_(row_vars[i].mean(dim=-2, keepdim=True).clamp_(min=eps1))
        else:
            blend(variances[i], grad * grad, weight)
            estimate = variances[i].clone()
        update = estimate.clamp_(min=eps1 * eps1).rsqrt_().mul_(grad)
        param.add_(update, alpha=-alpha / larger(1.0, root_mean_square(update) / d))


def _adafactors(params: Any, *args: Any, eps1: Any, **kwargs: Any) -> None:
    """The form for lists has all tensors' ``eps1`` by the type of its first group."""
    if eps1 is None and params:
        eps1 = torch.finfo(next(iter(private.group_tensors([params], False)))[1]).eps
    _adafactor(params, *args, eps1=eps1, **kwargs)


for _update, _form in zip(private.ADAFACTOR, (_adafactor, _adafactors), strict=True):
    builtin(_update)(traced(_form))


def _fused(name: str) -> Callable[[Trace, Args, Kwargs], Value | None]:
    """A fused update takes its learning rate as a number, which the graph would be specialised
    on, or as a tensor."""
    target = getattr(torch, name)

    def update(tx: Trace, args: Args, kwargs: Kwargs) -> Value | None:
        rate = kwargs.get("lr")
        if not isinstance(rate, SymNumValue):
            return None
        dtype = ConstantValue(torch.float64)
        tensor = tx.graph.call_function(torch.scalar_tensor, (rate,), {"dtype": dtype})
        return tx.graph.call_function(target, args, {**kwargs, "lr": tensor})

    return update


for _name in ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_"):
    register(getattr(torch, _name), _fused(_name))
