"""``torch.cond``, loops over rows and activation checkpointing: bodies without side effects."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.utils.checkpoint
from torchsmith_guards import GuardKind

from torchsmith_tracer._src import torch_private as private
from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.higher_order import ops
from torchsmith_tracer._src.higher_order.attention import flex_attention
from torchsmith_tracer._src.higher_order.effects import in_body, without_effects
from torchsmith_tracer._src.higher_order.nests import Rebuild, flatten, holds_none, outline_of
from torchsmith_tracer._src.torch_private import storage_id
from torchsmith_tracer._src.trace import Outlined, Trace
from torchsmith_tracer._src.values.base import Args, Kwargs, Value
from torchsmith_tracer._src.values.builtins.registry import builtin
from torchsmith_tracer._src.values.constants import FALSE, ConstantValue
from torchsmith_tracer._src.values.containers import TupleValue
from torchsmith_tracer._src.values.tensor import TensorValue
from torchsmith_tracer._src.values.torch_queries import handles


class Traced(NamedTuple):
    """A function's body.

    Attributes:
        body: the closed body, whose results are the tensors that the function returned.
        shape: outline of what it returned.
        leaves: what it returned, taken apart.
        rebuild: puts leaves together.
    """

    body: Outlined
    shape: object
    leaves: list[Value]
    rebuild: Rebuild

    def result(self, tensors: Sequence[Value]) -> Value:
        """What the function returned, with these tensors; what is no tensor is a constant."""
        given = iter(tensors)
        parts = [next(given) if isinstance(v, TensorValue) else v for v in self.leaves]
        return self.rebuild(parts)


def trace_body(
    tx: Trace, what: str, func: Value, args: Args, inputs: Sequence[int] = (),
    kwargs: Kwargs | None = None,
) -> Traced:  # fmt: skip
    """Trace ``func(*args)``; the tensors in the arguments at ``inputs`` become inputs of it."""
    body = tx.graph.open_body()
    given = list(args)
    for number in inputs:
        leaves, build = flatten(tx, args[number])
        given[number] = build(
            [body.input(leaf.fake) if isinstance(leaf, TensorValue) else leaf for leaf in leaves]
        )
    named = kwargs or {}
    with in_body(what), without_effects(tx, what, [func, *args, *named.values()]):
        result = tx.interp.call(func, given, named)
    flat, rebuild = flatten(tx, result)
    shape = outline_of(tx, result)
    if any(not isinstance(leaf, TensorValue | ConstantValue) for leaf in flat):
        raise Unsupported("opaque-call", what=f"{what} with such a result")
    closed = body.close([leaf for leaf in flat if isinstance(leaf, TensorValue)])
    return Traced(closed, shape, flat, rebuild)


def _pure(tx: Trace, what: str, func: Value, args: Args, inputs: Sequence[int] = ()) -> Traced:
    """A body of tensors only, which changes nothing in place and returns nothing that it was
    given: what torch's control-flow operators ask for."""
    start = len(tx.graph.written)
    traced = trace_body(tx, what, func, args, inputs)
    if holds_none(traced.shape) or any(not isinstance(v, TensorValue) for v in traced.leaves):
        raise Unsupported("opaque-call", what=f"{what} with results that are no tensors")
    holders = [n for n in traced.body.module.graph.nodes if n.op == "placeholder"]
    given = (n.meta["example_value"] for n in holders)
    taken = {storage_id(t) for t in given if isinstance(t, torch.Tensor)}
    if taken & set(tx.graph.written[start:]):
        raise Unsupported("body-effect", what=what)
    for fake in traced.body.fakes:
        assert isinstance(fake, torch.Tensor)
        if storage_id(fake) in taken:
            raise Unsupported("opaque-call", what=f"{what} whose results share memory")
        taken.add(storage_id(fake))
    return traced


def _tensors(tx: Trace, value: Value, what: str) -> list[TensorValue]:
    """The leaves of operands, which must be tensors."""
    leaves, _ = flatten(tx, value)
    found = [leaf for leaf in leaves if isinstance(leaf, TensorValue)]
    if len(found) != len(leaves) or holds_none(outline_of(tx, value)):
        raise Unsupported("opaque-call", what=f"{what} with what is no tensor")
    return found


def _emit(
    tx: Trace, target: Callable[..., object], args: tuple[object, ...], fakes: tuple[object, ...]
) -> list[Value]:
    """The results of a call whose fake results are those of a body."""
    node = tx.graph.add_call("call_function", target, args, {}, fakes)
    return tx.interp.unpack(tx.graph.wrap_result(node, fakes))


def _layout(fake: object) -> object:
    assert isinstance(fake, torch.Tensor)
    return (tuple(fake.shape), fake.stride(), fake.dtype, fake.device, fake.requires_grad)


# --- branches and loops ------------------------------------------------------------------------


@handles(torch.cond)
def _cond(
    tx: Trace, pred: Value, true_fn: Value, false_fn: Value, operands: Value | None = None
) -> Value:
    given = [] if operands is None else tx.interp.unpack(operands)
    if not isinstance(pred, TensorValue):
        return tx.interp.call(true_fn if tx.interp.truth(pred) else false_fn, given)
    if pred.fake.dtype is not torch.bool or pred.fake.numel() != 1:
        raise Unsupported("opaque-call", what="torch.cond with this condition")
    _tensors(tx, TupleValue(given), "torch.cond")
    yes = _pure(tx, "a branch of torch.cond", true_fn, given)
    no = _pure(tx, "a branch of torch.cond", false_fn, given)
    fakes = yes.body.fakes
    if yes.shape != no.shape or [*map(_layout, fakes)] != [*map(_layout, no.body.fakes)]:
        raise Unsupported("opaque-call", what="torch.cond with branches of different results")
    modules = (tx.graph.add_module(yes.body.module), tx.graph.add_module(no.body.module))
    shared = yes.body.operands
    own = (pred.node, *modules, len(shared), *shared, *no.body.operands)
    return yes.result(_emit(tx, ops.cond, own, fakes))


@handles(private.while_loop)
def _while_loop(tx: Trace, condition: Value, body: Value, carried: Value, /) -> Value:
    given = tx.interp.unpack(carried)
    tensors = _tensors(tx, TupleValue(given), "while_loop")
    every = range(len(given))
    test = _pure(tx, "the condition of while_loop", condition, given, every)
    step = _pure(tx, "the body of while_loop", body, given, every)
    fakes = step.body.fakes
    same = [_layout(t.fake) for t in tensors] == [_layout(f) for f in fakes]
    if len(test.leaves) != 1 or not same or step.shape != outline_of(tx, TupleValue(given)):
        raise Unsupported("opaque-call", what="while_loop with results unlike its operands")
    modules = (tx.graph.add_module(test.body.module), tx.graph.add_module(step.body.module))
    shared = test.body.operands
    own = (*modules, len(tensors), len(shared), *(t.node for t in tensors))
    return step.result(_emit(tx, ops.while_loop, (*own, *shared, *step.body.operands), fakes))


def _rows(tx: Trace, tensors: Sequence[TensorValue], dim: int, what: str) -> list[Value]:
    """First slices along ``dim``, as inputs of the body that is open."""
    sizes = [t.fake.size(dim) for t in tensors if t.fake.dim() > dim >= 0]
    if not sizes or len(sizes) != len(tensors) or any(n != sizes[0] or n == 0 for n in sizes):
        raise Unsupported("opaque-call", what=f"{what} over these tensors")
    with tx.graph.fake.mode:
        return [tx.graph.wrap_result(t.node, t.fake.select(dim, 0)) for t in tensors]


@handles(private.map_rows)
def _map(tx: Trace, func: Value, rows: Value, /, *others: Value) -> Value:
    what = "map"
    tensors = _tensors(tx, rows, what)
    _, build = flatten(tx, rows)
    given = [build(_rows(tx, tensors, 0, what)), *others]
    step = _pure(tx, "the body of map", func, given, [0])
    return _looped(tx, (0, len(tensors), 0, False), tensors, step)


_ZERO = ConstantValue(0)


@handles(private.scan)
def _scan(
    tx: Trace,
    func: Value,
    carried: Value,
    scanned: Value,
    /,
    *,
    dim: Value = _ZERO,
    reverse: Value = FALSE,
) -> Value:
    place, backwards = tx.interp.concrete(dim), tx.interp.concrete(reverse)
    state, tensors = _tensors(tx, carried, "scan"), _tensors(tx, scanned, "scan")
    if type(place) is not int or type(backwards) is not bool or not state:
        raise Unsupported("opaque-call", what="scan with these arguments")
    _, build = flatten(tx, scanned)
    given = [carried, build(_rows(tx, tensors, place, "scan"))]
    step = _pure(tx, "the body of scan", func, given, [0, 1])
    count = len(state)
    same = [_layout(t.fake)[:4] for t in state] == [_layout(f)[:4] for f in step.body.fakes[:count]]  # type: ignore[index]
    whole = isinstance(step.shape, list) and len(step.shape) == 2
    if not same or not whole or step.shape[0] != outline_of(tx, carried):  # type: ignore[index]
        raise Unsupported("opaque-call", what="scan with results unlike what it carries")
    return _looped(tx, (count, len(tensors), place, backwards), [*state, *tensors], step)


def _looped(
    tx: Trace, own: tuple[object, ...], tensors: Sequence[TensorValue], step: Traced
) -> Value:
    """A call that runs a body in a loop of known length."""
    module = tx.graph.add_module(step.body.module)
    nodes = (*(t.node for t in tensors), *step.body.operands)
    return step.result(tx.interp.unpack(tx.graph.call_nodes(ops.scan, (module, *own, *nodes))))


@builtin(private.wrap_call)
def _wrap(tx: Trace, operator: Value, func: Value, *args: Value, **kwargs: Value) -> Value:
    """``wrap(func, ...)`` is the call itself, made a unit for compilers."""
    return tx.interp.call(func, args, kwargs)


@builtin(private.operator_call)
def _other(tx: Trace, operator: Value, *args: Value, **kwargs: Value) -> Value:
    name = getattr(getattr(operator, "obj", None), "_name", None)
    if name == "flex_attention" and not kwargs:
        return flex_attention(tx, args)
    if name == "associative_scan":
        # Its function is pointwise, so it takes many rows at once. The operator's own gradient
        # would compare all rows with all others.
        more = dict(zip(("additional_inputs",), args[2:])) | kwargs
        return tx.builder.wrap_new(private.prefixes).call(tx, args[:2], more)
    raise Unsupported("opaque-call", what=f"{operator.describe()}, an operator of functions")


# --- checkpointing -----------------------------------------------------------------------------

_KEEP = {"use_reentrant", "preserve_rng_state", "early_stop", "determinism_check", "debug"}


@handles(torch.utils.checkpoint.checkpoint)
def _checkpoint(tx: Trace, func: Value, /, *given: Value, **kwargs: Value) -> Value:
    """Checkpointing changes what is saved for the backward pass, not the result; with nothing to
    save it is the plain call."""
    own = {k: v for k, v in kwargs.items() if k in _KEEP}
    rest = {k: v for k, v in kwargs.items() if k not in own and k != "context_fn"}
    if not torch.is_grad_enabled():
        return tx.interp.call(func, given, rest)
    options = {k: tx.interp.concrete(v) for k, v in own.items()}
    if options.get("debug") or (rest and options.get("use_reentrant") is not False):
        raise Unsupported("opaque-call", what="torch.utils.checkpoint with these arguments")
    contexts = None
    if "context_fn" in kwargs:
        contexts = tx.graph.add_module(_host(tx, kwargs["context_fn"]))
    tensors = [i for i, a in enumerate(given) if isinstance(a, TensorValue)]
    traced = trace_body(tx, "a checkpointed function", func, given, tensors, rest)
    nodes = [a.node for a in given if isinstance(a, TensorValue)]
    module = tx.graph.add_module(traced.body.module)
    operands = (*nodes, *traced.body.operands)
    fakes = [f for n in operands if isinstance(f := n.meta.get("example_value"), torch.Tensor)]
    if not tx.graph.inference.isdisjoint(map(storage_id, fakes)):  # which eager may not save
        raise Unsupported("opaque-call", what="torch.utils.checkpoint of an inference tensor")
    target_args = (module, contexts, len(nodes), options, *operands)
    return traced.result(_emit(tx, ops.checkpoint, target_args, traced.body.fakes))


def _host(tx: Trace, value: Value) -> Any:
    """A callable that the graph calls as it is: it runs when the graph does, out of our sight."""
    for name in ("fn", "obj"):
        found = getattr(value, name, None)
        if found is not None and value.source is not None:
            tx.builder.guard(value.source, GuardKind.ID, found, "a function that is called later")
            return found
    if value.python_type() is functools.partial:
        func = _host(tx, value.getattr(tx, "func"))
        parts = tx.interp.unpack(value.getattr(tx, "args"))
        named = value.getattr(tx, "keywords")
        if tx.interp.truth(named):
            raise Unsupported("opaque-call", what="torch.utils.checkpoint with these arguments")
        return functools.partial(func, *(_host(tx, part) for part in parts))
    return tx.interp.concrete(value)
