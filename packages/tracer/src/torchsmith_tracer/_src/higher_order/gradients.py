"""Gradients: ``backward``, ``torch.autograd.grad`` and the ``.grad`` of tensors.

The autograd graph of a trace is that of its fake tensors, so a backward pass runs on those while
tracing: which leaves it reaches, and what ``.grad`` each has afterwards, is found out, not derived.
In the captured graph it is one call (``ops.backward``) that takes the leaves with the gradients
that they have at that point and gives those that they have then. ``.grad`` itself is an attribute
like any other to the journal.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torchsmith_guards import AttrSource

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.higher_order import ops
from torchsmith_tracer._src.higher_order.hooks import refuse_pending
from torchsmith_tracer._src.torch_private import without_anomalies
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.constants import NONE, TRUE, ConstantValue
from torchsmith_tracer._src.values.tensor import PROPERTIES, STORES, TensorValue
from torchsmith_tracer._src.values.tensor_methods import method
from torchsmith_tracer._src.values.torch_queries import handles

_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


# --- the attribute ---------------------------------------------------------------------------


def read_grad(tx: Trace, tensor: TensorValue) -> Value:
    """``tensor.grad``, where traced code has not stored to it."""
    if tensor.real is not None and tensor.source is not None:
        return tx.builder.wrap(tensor.real.grad, AttrSource(tensor.source, "grad"))
    if not tensor.fake.is_leaf:
        raise Unsupported("tensor-attribute", what="grad", tensor=tensor.describe())
    return NONE


def store_grad(tx: Trace, tensor: TensorValue, value: Value) -> None:
    """``tensor.grad = value``."""
    none = tx.interp.is_none(value)
    if not none and not isinstance(value, TensorValue):
        raise Unsupported("tensor-attribute-store", what="grad", tensor=tensor.describe())
    _set_fake(tx, tensor.fake, value.fake if isinstance(value, TensorValue) else None)
    tx.journal.store_attr(tensor, "grad", NONE if none else value)


def _set_fake(tx: Trace, fake: torch.Tensor, grad: torch.Tensor | None) -> None:
    before = fake.grad
    if before is grad:
        return
    try:
        fake.grad = grad
    except (RuntimeError, TypeError) as e:
        raise Unsupported("op-failed", what="setting grad", error=str(e), cause=e) from e
    tx.graph.record(lambda: setattr(fake, "grad", before))


PROPERTIES["grad"] = read_grad
STORES["grad"] = store_grad


# --- whether gradients are recorded ----------------------------------------------------------


@method("requires_grad_")
def _require_grad(tx: Trace, tensor: TensorValue, /, requires_grad: Value = TRUE) -> Value:
    flag = requires_grad.as_constant()
    fake = tensor.fake
    if flag is not fake.requires_grad:
        tx.graph.call_method("requires_grad_", (tensor, ConstantValue(flag)))
        tx.graph.record(lambda: fake.is_leaf and fake.requires_grad_(not flag))  # type: ignore[arg-type]
        if tensor.source is not None:
            tx.journal.call_later(torch.Tensor.requires_grad_, tensor, ConstantValue(flag))
    if fake.requires_grad and fake.is_leaf:
        tx.builder.note_leaf(tensor)
    return tensor


STORES["requires_grad"] = _require_grad


# --- backward passes -------------------------------------------------------------------------


@method("backward")
def _backward(
    tx: Trace,
    tensor: TensorValue,
    /,
    gradient: Value = NONE,
    retain_graph: Value = NONE,
    create_graph: Value = NONE,
    inputs: Value = NONE,
) -> Value:
    return _run(tx, [tensor], [gradient], retain_graph, create_graph, inputs)


@handles(torch.autograd.backward)
def _autograd_backward(
    tx: Trace,
    tensors: Value,
    grad_tensors: Value = NONE,
    retain_graph: Value = NONE,
    create_graph: Value = NONE,
    grad_variables: Value = NONE,
    inputs: Value = NONE,
) -> Value:
    if not tx.interp.is_none(grad_variables):
        raise Unsupported("opaque-call", what="torch.autograd.backward with grad_variables")
    roots = _several(tx, tensors)
    grads = [NONE] * len(roots) if tx.interp.is_none(grad_tensors) else _several(tx, grad_tensors)
    return _run(tx, roots, grads, retain_graph, create_graph, inputs)


def _several(tx: Trace, value: Value) -> list[Value]:
    return [value] if isinstance(value, TensorValue) else list(tx.interp.unpack(value))


def _run(
    tx: Trace,
    roots: Sequence[Value],
    grads: Sequence[Value],
    retain: Value,
    create: Value,
    inputs: Value,
) -> Value:
    if any(not isinstance(v, TensorValue) for v in roots):
        raise Unsupported("opaque-call", what="a backward pass from something else than tensors")
    tx.graph.need_history()
    refuse_pending(tx)
    restricted = not tx.interp.is_none(inputs)
    leaves = _leaves(tx, [r for r in roots if isinstance(r, TensorValue)])
    if restricted:
        asked = _several(tx, inputs)
        if any(leaf not in leaves for leaf in asked):
            raise Unsupported("opaque-call", what="a backward pass to tensors that it cannot reach")
        leaves = [leaf for leaf in leaves if leaf in asked]
    old = [leaf.getattr(tx, "grad") for leaf in leaves]
    if any(not isinstance(g, TensorValue) and not tx.interp.is_none(g) for g in old):
        raise Unsupported("opaque-call", what="a backward pass to gradients that are not traced")
    for leaf, grad in zip(leaves, old, strict=True):
        _set_fake(tx, leaf.fake, grad.fake if isinstance(grad, TensorValue) else None)
        tx.graph.record(partial(setattr, leaf.fake, "grad", leaf.fake.grad))
    argument = tx.graph.argument
    flags = (tx.interp.concrete(retain), bool(tx.interp.concrete(create)), restricted)
    nests = [tuple(map(argument, part)) for part in (roots, grads, leaves, old)]
    with without_anomalies():
        after = tx.interp.unpack(tx.graph.call_nodes(ops.backward, (*nests, *flags)))
    tx.graph.note_attributes(leaf.source for leaf in leaves)
    for leaf, before, now in zip(leaves, old, after, strict=True):
        if isinstance(before, TensorValue) and isinstance(now, TensorValue):
            if now.fake is before.fake:  # accumulated in place
                before.replace_node(tx, now.node)
                continue
        tx.journal.store_attr(leaf, "grad", now)
    return NONE


def _leaves(tx: Trace, roots: Sequence[TensorValue]) -> list[TensorValue]:
    """The leaves that a backward pass from ``roots`` reaches, in a fixed order.

    Raises:
        Unsupported: the history leads out of the trace, or hooks of the user's would run.
    """
    reached = [(fake, tx.builder.leaves.get(id(fake))) for fake in _reached(roots)]
    found = [leaf for _, leaf in reached if leaf is not None]
    if len(found) < len(reached):
        what = "a backward pass through a tensor whose history began before"
        raise Unsupported("opaque-call", what=what)
    for leaf in found:
        if leaf.real is None or leaf.source is None:
            continue
        for name in _HOOKS:
            hooks = tx.world.computed(leaf.real, leaf.source, name)
            if not tx.interp.is_none(hooks) and tx.interp.truth(hooks):
                raise Unsupported("opaque-call", what="a backward pass that runs hooks")
    return found


def _reached(roots: Sequence[Value], stop: object = None) -> list[torch.Tensor]:
    """Tensors without a history in the trace that a backward pass from ``roots`` reaches, not
    looking behind the node ``stop``, in a fixed order."""
    found: dict[int, torch.Tensor] = {}
    todo: list[object] = []
    seen = {stop}
    for root in roots:
        if isinstance(root, TensorValue):
            if root.fake.grad_fn is None and root.fake.requires_grad:
                found[id(root.fake)] = root.fake
            todo.append(root.fake.grad_fn)
    while todo:
        fn = todo.pop()
        if fn is None or fn in seen:
            continue
        seen.add(fn)
        variable = getattr(fn, "variable", None)
        if isinstance(variable, torch.Tensor):
            found[id(variable)] = variable
        todo += [following for following, _ in fn.next_functions]  # type: ignore[attr-defined]
    return list(found.values())


@handles(torch.autograd.grad)
def _grad(tx: Trace, outputs: Value, inputs: Value, *args: Value, **kwargs: Value) -> Value:
    tx.graph.need_history()
    refuse_pending(tx)
    asked = [v for v in _several(tx, inputs) if isinstance(v, TensorValue)]
    if any(v.source is not None for v in asked):  # nothing before came of what is made here
        # What is behind one of several may have come from another one.
        stop = asked[0].fake.grad_fn if len(asked) == 1 else None
        reached = _reached(_several(tx, outputs), stop)
        if any(id(fake) not in tx.builder.leaves for fake in reached):
            what = "gradients through tensors whose history began before"
            raise Unsupported("opaque-call", what=what)
    args = (outputs, inputs, *args)
    with without_anomalies():
        return tx.graph.call_function(torch.autograd.grad, args, kwargs)
