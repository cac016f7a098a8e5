"""What of ``torch.optim`` is not traced as it stands: reads of tensors into Python.

Eager optimizers compute with Python floats: the number of steps and what follows from it. In a
graph these are 0-dim tensors of double precision, which round as Python's floats do. Where eager
branches on such a number, torch has a second form of the same update without branches
(``capturable``), which is taken.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from torchsmith_tracer._src import torch_private as private
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Args, Kwargs, Value
from torchsmith_tracer._src.values.builtins.registry import builtin
from torchsmith_tracer._src.values.constants import ConstantValue
from torchsmith_tracer._src.values.containers import ListValue
from torchsmith_tracer._src.values.symnum import SymNumValue
from torchsmith_tracer._src.values.tensor import TensorValue
from torchsmith_tracer._src.values.torch_queries import register


@builtin(private.optimizer_value)
def _number_of(tx: Trace, x: Value) -> Value | None:
    """``_get_value``: the number in a tensor."""
    if not isinstance(x, TensorValue) or x.fake.dim() or x.fake.requires_grad:
        return None
    if x.fake.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return None
    return tx.graph.call_method("to", (x, torch.float64))


def _counting(single: Callable[..., object], place: int) -> Callable[..., Value | None]:
    """Call ``single`` in its form without branches, with step counts of double precision."""

    def update(tx: Trace, *args: Value, **kwargs: Value) -> Value | None:
        capturable = kwargs.get("capturable")
        if not isinstance(capturable, ConstantValue) or capturable.value is not False:
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


for _single, _multi, _place in private.COUNTING_OPTIMIZERS:
    builtin(_single, _multi)(_counting(_single, _place))


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
    if hasattr(torch, _name):
        register(getattr(torch, _name), _fused(_name))
