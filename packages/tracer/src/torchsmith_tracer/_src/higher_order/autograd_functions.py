"""``autograd.Function.apply``: its ``forward`` is traced, and where gradients are recorded its
``backward`` as well, each into a body of its own.

``Context`` and ``run_forward`` are never used by the host: the interpreter traces them.
"""

from __future__ import annotations

import torch
from torch import fx
from torch.autograd.function import FunctionCtx

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.higher_order import ops
from torchsmith_tracer._src.higher_order.effects import (
    grad_mode,
    in_backward,
    in_body,
    without_effects,
)
from torchsmith_tracer._src.torch_private import autograd_apply
from torchsmith_tracer._src.torch_private import once_differentiable_code as once
from torchsmith_tracer._src.trace import Outlined, Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtins.registry import builtin
from torchsmith_tracer._src.values.constants import NONE, ConstantValue
from torchsmith_tracer._src.values.containers import TupleValue
from torchsmith_tracer._src.values.functions import FunctionValue
from torchsmith_tracer._src.values.tensor import TensorValue

DEFAULT_SETUP = torch.autograd.Function.setup_context

# The traced functions are typed by what they replace.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc"


class Context(FunctionCtx):
    """``ctx`` of a traced call."""

    saved_tensors = ()  # filled when ``apply`` has returned

    def __init__(self, needs_input_grad):
        self.needs_input_grad = needs_input_grad


def make_context(args):
    """The context of a call."""
    return Context(tuple(isinstance(a, torch.Tensor) and a.requires_grad for a in args))


def run_forward(ctx, cls, args, kwargs):
    """What ``apply`` returns: ``forward`` without gradients, an input given back is an alias."""
    with torch.no_grad():
        if cls.setup_context is not DEFAULT_SETUP:
            forward = cls.forward
            missing = forward.__code__.co_argcount - len(args)
            if missing > 0:
                args = args + forward.__defaults__[-missing:]
            result = forward(*args)
            cls.setup_context(ctx, args, result)
        else:
            result = cls.forward(ctx, *args, **kwargs)
        dirty = getattr(ctx, "dirty_tensors", ())

        def given_back(out):
            for a in args:
                if out is a and isinstance(out, torch.Tensor):
                    for written in dirty:
                        if written is out:
                            return out
                    return out.detach()
            return out

        if type(result) is tuple:
            return tuple([given_back(out) for out in result])
        return given_back(result)


def run_backward(ctx, cls, grads):
    """What ``backward`` gives, always as a tuple."""
    ctx.saved_tensors = getattr(ctx, "to_save", ())
    found = cls.backward(ctx, *grads)
    return found if isinstance(found, tuple) else (found,)


def ask(ctx):
    """What the context was told in ``forward``."""
    return (
        getattr(ctx, "dirty_tensors", ()),
        getattr(ctx, "non_differentiable", ()),
        getattr(ctx, "materialize_grads", True),
    )


@builtin(autograd_apply)
def _apply(tx: Trace, cls: Value, *args: Value, **kwargs: Value) -> Value:
    if kwargs and _has_setup(tx, cls):
        raise _refused(cls)
    if tx.graph.transforms and not _has_setup(tx, cls):
        raise _refused(cls)  # torch.func takes no others
    # Under ``torch.vmap`` the class's own rule decides, or that there is none.
    if tx.graph.mapped and not tx.interp.truth(cls.getattr(tx, "generate_vmap_rule")):
        raise _refused(cls)
    given = tx.interp.tuple(args)
    ctx = _call(tx, make_context, given)
    forward = (ctx, cls, given, tx.interp.dict(kwargs))
    if torch.is_grad_enabled():
        inputs = [a for a in args if isinstance(a, TensorValue) and a.fake.requires_grad]
        if inputs:
            return _recorded(tx, cls, ctx, args, forward)
    return _call(tx, run_forward, *forward)


def _call(tx: Trace, fn: object, *args: Value) -> Value:
    return tx.builder.wrap_new(fn).call(tx, list(args), {})


def _has_setup(tx: Trace, cls: Value) -> bool:
    """Whether ``apply`` would bind keywords to the parameters of ``forward``."""
    setup = cls.getattr(tx, "setup_context")
    return not (isinstance(setup, FunctionValue) and setup.fn is DEFAULT_SETUP)


def _refused(cls: Value) -> Unsupported:
    return Unsupported("opaque-call", what=f"{cls.describe()}.apply, an autograd function")


def _recorded(
    tx: Trace, cls: Value, ctx: Value, args: tuple[Value, ...], call: tuple[Value, ...]
) -> Value:
    """Trace both directions. The backward body lies inside the forward one while it is traced, so
    what it uses of the forward becomes results of that."""
    backward_function = cls.getattr(tx, "backward")
    only_once = isinstance(backward_function, FunctionValue) and backward_function.code is once
    graph = tx.graph
    what = f"{cls.describe()}, an autograd function,"
    outer = graph.open_body()
    numbers = [i for i, a in enumerate(args) if isinstance(a, TensorValue)]
    given, nodes = list(args), []
    for i in numbers:
        argument = args[i]
        assert isinstance(argument, TensorValue)
        nodes.append(argument.node)
        with graph.fake.mode:
            fake = argument.fake.detach()
            fake.requires_grad_(argument.fake.requires_grad)
        given[i] = stand_in = outer.input(fake)
        assert isinstance(stand_in, TensorValue)
        stand_in.stands_for = argument
    with in_body(what), grad_mode(tx, False), without_effects(tx, what, [cls, *args]):
        own = (ctx, cls, TupleValue(given), call[3])
        result = _call(tx, run_forward, *own)
        dirty, constant, materialize = tx.interp.unpack(_call(tx, ask, ctx))
        parts, results = _results(tx, cls, result)
        if tx.interp.unpack(dirty) or (
            len(results) > 1 and tx.interp.concrete(materialize) is not True
        ):
            raise _refused(cls)
        inner = graph.open_body()
        grads = [inner.input(p.fake) if isinstance(p, TensorValue) else NONE for p in parts]
        with in_backward(f"the backward of {what}"):
            found = tx.interp.unpack(_call(tx, run_backward, ctx, cls, TupleValue(grads)))
    if len(found) < len(args) or any(g is not NONE for g in found[len(args) :]):
        raise _refused(cls)  # an error when the backward pass runs
    wanted = [found[i] for i in numbers]
    records = any(_requires(n, recorded=True) for n in inner.nodes())
    backward = inner.close([g for g in wanted if isinstance(g, TensorValue)])
    if any(not isinstance(g, TensorValue) and g is not NONE for g in wanted):
        raise _refused(cls)
    inside = set(outer.nodes())
    saved = [n for n in backward.operands if n in inside]
    shared = [n for n in backward.operands if n not in inside]
    given_nodes = [a.node for i in numbers if isinstance(a := given[i], TensorValue)]
    made = [n for n in saved if n not in given_nodes]
    # A view of an input counts as a leaf that requires them, as long as none are recorded.
    if any(_requires(n, recorded=not records) for n in made):
        raise _refused(cls)  # what ``forward`` recorded is differentiated in ``backward``
    result_nodes = [r.node for r in results]
    extra = [n for n in saved if n not in given_nodes and n not in result_nodes]
    places = {n: -1 - i for i, n in enumerate([*result_nodes, *extra])}
    places |= {n: i for i, n in enumerate(given_nodes)}
    taken = tuple(places[n] for n in saved)
    forward = outer.close(
        [*results, *(graph.wrap_result(n, n.meta["example_value"]) for n in extra)]
    )
    stays = {id(v) for v in tx.interp.unpack(constant)}
    plain = tuple(i for i, r in enumerate(results) if id(r) in stays)
    plan = ops.Plan(len(nodes), len(results), len(forward.operands), plain, taken, only_once)
    present = [g is not NONE for g in wanted]
    module = _in_order(backward, present, len(results), [*saved, *shared])
    target_args = (
        graph.add_module(forward.module),
        graph.add_module(module),
        tuple(plan),
        *nodes,
        *forward.operands,
        *shared,
    )
    given_back = iter(tx.interp.unpack(graph.call_nodes(ops.autograd_function, target_args)))
    whole = [next(given_back) if isinstance(p, TensorValue) else p for p in parts]
    return TupleValue(whole) if type(result) is TupleValue else whole[0]


def _requires(node: fx.Node, *, recorded: bool = False) -> bool:
    """Whether what a node gives requires gradients, as no leaf if that must be ``recorded``."""
    value = node.meta.get("example_value")
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        return False
    return not (recorded and value.is_leaf)


def _results(tx: Trace, cls: Value, result: Value) -> tuple[list[Value], list[TensorValue]]:
    """What ``forward`` returned, and the tensors of it; the rest must be constants."""
    parts = tx.interp.unpack(result) if type(result) is TupleValue else [result]
    tensors = [p for p in parts if isinstance(p, TensorValue)]
    twice = len({t.node for t in tensors}) != len(tensors)  # one tensor in two places
    if not tensors or twice or any(not isinstance(p, TensorValue | ConstantValue) for p in parts):
        raise _refused(cls)
    return parts, tensors


def _in_order(
    body: Outlined, present: list[bool], grads: int, order: list[fx.Node]
) -> fx.GraphModule:
    """A backward body with its operands in another order, and None for missing gradients."""
    module = body.module
    holders = [n for n in module.graph.nodes if n.op == "placeholder"]
    by_operand = dict(zip(body.operands, holders[grads:], strict=True))
    last = holders[grads - 1]
    for operand in reversed(order):
        if by_operand[operand] is not last.next:
            last.append(by_operand[operand])
    output = next(iter(reversed(module.graph.nodes)))
    given = iter(output.args[0])
    output.args = (tuple(next(given) if there else None for there in present),)
    module.recompile()
    return module
