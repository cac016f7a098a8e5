"""``torch.cond``, ``while_loop`` and activation checkpointing: bodies without side effects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
import torch.utils.checkpoint
from torch import fx

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.higher_order import ops
from torchsmith_tracer._src.higher_order.effects import without_effects
from torchsmith_tracer._src.higher_order.nests import Rebuild, flatten, outline_of
from torchsmith_tracer._src.torch_private import while_loop
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.containers import TupleValue
from torchsmith_tracer._src.values.tensor import TensorValue
from torchsmith_tracer._src.values.torch_queries import register

if TYPE_CHECKING:
    from torchsmith_tracer._src.trace import Outlined, Trace

Args = Sequence[Value]
Kwargs = dict[str, Value]


def trace_body(
    tx: Trace, what: str, func: Value, args: Args, inputs: Sequence[int] = ()
) -> tuple[Outlined, object, Rebuild]:
    """Trace ``func(*args)`` into a body; the arguments at ``inputs`` become inputs of it.

    Returns:
        The closed body, the shape of its result, and what builds a result from tensors.
    """
    body = tx.graph.open_body()
    given = list(args)
    for number in inputs:
        leaves, build = flatten(tx, args[number])
        given[number] = build([body.input(_tensor(leaf, what).fake) for leaf in leaves])
    with without_effects(tx, what, [func, *args]):
        result = tx.interp.call(func, given, {})
    flat, rebuild = flatten(tx, result)
    shape = outline_of(tx, result)
    return body.close([_tensor(leaf, what) for leaf in flat]), shape, rebuild


def _tensor(value: Value, what: str) -> TensorValue:
    if not isinstance(value, TensorValue):
        raise Unsupported("opaque-call", what=f"{what} with what is no tensor")
    return value


def _emit(
    tx: Trace, target: Callable[..., object], args: tuple[object, ...], fakes: tuple[object, ...]
) -> list[Value]:
    """The results of a call whose fake results are those of a body."""
    node = tx.graph.add_call("call_function", target, args, {}, fakes)
    return tx.interp.unpack(tx.graph.wrap_result(node, fakes))


def _layout(fake: object) -> object:
    assert isinstance(fake, torch.Tensor)
    return (tuple(fake.shape), fake.stride(), fake.dtype, fake.device, fake.requires_grad)


def _cond(tx: Trace, args: Args, kwargs: Kwargs) -> Value:
    named = dict(zip(("pred", "true_fn", "false_fn", "operands"), args)) | kwargs
    if not {"pred", "true_fn", "false_fn"} <= named.keys() <= {*named, "operands"}:
        raise Unsupported("opaque-call", what="torch.cond with these arguments")
    pred, operands = named["pred"], named.get("operands")
    given = [] if operands is None else tx.interp.unpack(operands)
    if not isinstance(pred, TensorValue):
        chosen = named["true_fn" if tx.interp.truth(pred) else "false_fn"]
        return tx.interp.call(chosen, given)
    if pred.fake.dtype is not torch.bool or pred.fake.numel() != 1:
        raise Unsupported("opaque-call", what="torch.cond with this condition")
    yes, shape, rebuild = trace_body(tx, "a branch of torch.cond", named["true_fn"], given)
    no, other, _ = trace_body(tx, "a branch of torch.cond", named["false_fn"], given)
    if shape != other or [*map(_layout, yes.fakes)] != [*map(_layout, no.fakes)]:
        raise Unsupported("opaque-call", what="torch.cond with branches of different results")
    modules = (tx.graph.add_module(yes.module), tx.graph.add_module(no.module))
    own = (pred.node, *modules, len(yes.operands), *yes.operands, *no.operands)
    return rebuild(_emit(tx, ops.cond, own, yes.fakes))


def _while_loop(tx: Trace, args: Args, kwargs: Kwargs) -> Value:
    if kwargs or len(args) != 3:
        raise Unsupported("opaque-call", what="while_loop with these arguments")
    condition, body, carried = args
    given = tx.interp.unpack(carried)
    leaves, _ = flatten(tx, carried)
    tensors = [_tensor(leaf, "while_loop") for leaf in leaves]
    every = range(len(given))
    test, _, _ = trace_body(tx, "the condition of while_loop", condition, given, every)
    step, shape, rebuild = trace_body(tx, "the body of while_loop", body, given, every)
    same = [_layout(t.fake) for t in tensors] == [_layout(f) for f in step.fakes]
    if len(test.fakes) != 1 or not same or shape != outline_of(tx, TupleValue(given)):
        raise Unsupported("opaque-call", what="while_loop with results unlike its operands")
    modules = (tx.graph.add_module(test.module), tx.graph.add_module(step.module))
    own = (*modules, len(tensors), len(test.operands), *(t.node for t in tensors))
    return rebuild(_emit(tx, ops.while_loop, (*own, *test.operands, *step.operands), step.fakes))


_KEEP = {"use_reentrant", "preserve_rng_state", "early_stop"}


def _checkpoint(tx: Trace, args: Args, kwargs: Kwargs) -> Value:
    """Checkpointing changes what is saved for the backward pass, not the result; with nothing to
    save it is the plain call."""
    own = {k: v for k, v in kwargs.items() if k in _KEEP}
    others = kwargs.keys() & {"context_fn", "determinism_check", "debug"}
    rest = {k: v for k, v in kwargs.items() if k not in own and k not in others}
    func, *given = args
    if not torch.is_grad_enabled():
        return tx.interp.call(func, given, rest)
    if rest or others:
        raise Unsupported("opaque-call", what="torch.utils.checkpoint with these arguments")
    options = {k: tx.interp.concrete(v) for k, v in own.items()}
    tensors = [i for i, a in enumerate(given) if isinstance(a, TensorValue)]
    body, _, rebuild = trace_body(tx, "a checkpointed function", func, given, tensors)
    nodes: list[fx.Node] = [_tensor(given[i], "checkpoint").node for i in tensors]
    module = tx.graph.add_module(body.module)
    target_args = (module, len(nodes), options, *nodes, *body.operands)
    return rebuild(_emit(tx, ops.checkpoint, target_args, body.fakes))


register(torch.cond, _cond)
register(while_loop, _while_loop)
register(torch.utils.checkpoint.checkpoint, _checkpoint)
