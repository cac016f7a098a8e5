"""``torch.vmap``, ``torch.func.grad`` and their kin: the function is traced into a body, and the
graph calls the real transform on it. So nesting, levels and randomness are torch's own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import fx

from torchsmith_tracer._src import torch_private as private
from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.emitter import Emitter
from torchsmith_tracer._src.higher_order import nests, ops
from torchsmith_tracer._src.higher_order.effects import grad_mode, in_body, without_effects
from torchsmith_tracer._src.torch_private import storage_id
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Args, Kwargs, Value
from torchsmith_tracer._src.values.builtin_object import BuiltinObject
from torchsmith_tracer._src.values.builtins import registry
from torchsmith_tracer._src.values.builtins.registry import builtin
from torchsmith_tracer._src.values.constants import FALSE, NONE
from torchsmith_tracer._src.values.containers import TupleValue
from torchsmith_tracer._src.values.opaque import GraphObject
from torchsmith_tracer._src.values.tensor import TensorValue
from torchsmith_tracer._src.values.torch_queries import handles, register


class Inputs(NamedTuple):
    """Arguments of a transformed call, taken apart.

    Attributes:
        args: the arguments as the body sees them.
        nodes: outer nodes of the inputs, in order.
        rebuild: for each argument whose leaves are inputs, in order: (leaf count, nest builder).
    """

    args: list[Value]
    nodes: list[fx.Node]
    rebuild: list[tuple[int, Callable[[Sequence[Value]], Value]]]


class TransformValue(BuiltinObject):
    """What ``torch.vmap(func, ...)`` or ``torch.func.grad(func, ...)`` gave.

    Attributes:
        real: the transform.
        func: the function.
        options: its other arguments, by name.
    """

    __slots__ = ("func", "options", "real")
    cls = type(lambda: None)

    def __init__(self, real: Callable[..., object], func: Value, options: Kwargs) -> None:
        self.source = None
        self.real = real
        self.func = func
        self.options = options

    def describe(self) -> str:
        return f"{self.real.__name__} of {self.func.describe()}"

    def option(self, tx: Trace, name: str, default: object) -> object:
        """A constant option."""
        value = self.options.get(name)
        return default if value is None else tx.interp.concrete(value)

    def call(self, tx: Trace, args: Args, kwargs: Kwargs) -> Value:
        return _APPLY[self.real](tx, self, args, kwargs)

    def reconstruct(self, cg: Emitter) -> str:
        return cg.call(self.real, self.func, **self.options)


class PullBackValue(BuiltinObject):
    """The function that ``torch.func.vjp`` gives: from cotangents to gradients."""

    __slots__ = ("inputs", "node", "results")
    cls = type(lambda: None)

    def __init__(self, node: fx.Node, inputs: Inputs, results: int) -> None:
        self.source = None
        self.node = node
        self.inputs = inputs
        self.results = results

    def as_proxy(self) -> fx.Node:
        return self.node

    def call(self, tx: Trace, args: Args, kwargs: Kwargs) -> Value:
        leaves = [leaf for a in args for leaf in nests.flatten(tx, a)[0]]
        if kwargs or len(leaves) != self.results:
            raise Unsupported("opaque-call", what="a vjp with these cotangents")
        found = tx.graph.call_function(ops.pull_back, [self, *leaves])
        return _nest(self.inputs, tx.interp.unpack(found))


# --- bodies --------------------------------------------------------------------------------


def _differentiable(tx: Trace, fake: torch.Tensor) -> torch.Tensor:
    if not (fake.is_floating_point() or fake.is_complex()):
        raise Unsupported("opaque-call", what="a gradient with respect to integers")
    with tx.graph.fake.mode:
        return fake.detach().requires_grad_()


def _argnums(tx: Trace, transform: TransformValue, count: int) -> tuple[tuple[int, ...], bool]:
    """Differentiated arguments, and whether there is one without a tuple."""
    chosen = transform.option(tx, "argnums", 0)
    single = isinstance(chosen, int)
    numbers = chosen if isinstance(chosen, tuple) else (chosen,)
    if not all(isinstance(n, int) and -count <= n < count for n in numbers):
        raise Unsupported("opaque-call", what=f"{transform.describe()} with these arguments")
    return tuple(n % count for n in numbers), single


class _Call:
    """A transformed call: the body is open from its making until ``close``."""

    def __init__(self, tx: Trace, describe: str) -> None:
        self.tx = tx
        self.body = tx.graph.open_body()
        self.describe = describe
        self.written = len(tx.graph.written)

    def inputs(
        self, args: Args, chosen: Sequence[int], fake: Callable[..., torch.Tensor]
    ) -> Inputs:
        """Make the leaves of the chosen arguments inputs of the body."""
        given, nodes, rebuild = list(args), [], []
        for number in chosen:
            leaves, build = nests.flatten(self.tx, args[number])
            made: list[Value] = []
            for leaf in leaves:
                if not isinstance(leaf, TensorValue):
                    raise Unsupported("opaque-call", what=f"{self.describe} with these arguments")
                nodes.append(leaf.node)
                made.append(self.body.input(fake(self.tx, leaf.fake)))
            given[number] = build(made)
            rebuild.append((len(leaves), build))
        return Inputs(given, nodes, rebuild)

    def run(self, func: Value, args: Args, kwargs: Kwargs, *, grad: bool) -> Value:
        """What ``func`` returns, traced into the body."""
        graph = self.tx.graph
        graph.transforms += 1
        try:
            with in_body(self.describe), grad_mode(self.tx, grad or torch.is_grad_enabled()):
                return self.tx.interp.call(func, list(args), kwargs)
        finally:
            graph.transforms -= 1

    def close(
        self, target: Callable[..., object], own: tuple[object, ...], nodes: Args | list[fx.Node],
        results: Args,
    ) -> list[Value]:  # fmt: skip
        """End the body and call ``target(body, *own, *nodes, *operands)`` in its place."""
        tensors = [r for r in results if isinstance(r, TensorValue)]
        if len(tensors) != len(results):
            raise Unsupported("opaque-call", what=f"{self.describe} of results that are no tensors")
        graph = self.tx.graph
        outlined = self.body.close(tensors)
        if target is not ops.vmap and graph.written[self.written :]:
            fakes = (n.meta["example_value"] for n in outlined.operands)
            used = {storage_id(f) for f in fakes if isinstance(f, torch.Tensor)}
            if used & set(graph.written[self.written :]):
                raise Unsupported("body-effect", what=self.describe)
        module = graph.add_module(outlined.module)
        found = graph.call_nodes(target, (module, *own, *nodes, *outlined.operands))
        return self.tx.interp.unpack(found)


def _nest(inputs: Inputs, leaves: Sequence[Value], *, single: bool = False) -> Value:
    """Leaves in the shape of the differentiated arguments."""
    made, at = [], 0
    for count, build in inputs.rebuild:
        made.append(build(leaves[at : at + count]))
        at += count
    return made[0] if single else TupleValue(made)


def _split_aux(tx: Trace, transform: str, result: Value, has_aux: object) -> tuple[Value, Value]:
    """What is differentiated, and what comes along (None without ``has_aux``)."""
    if not has_aux:
        return result, NONE
    parts = tx.interp.unpack(result)
    if len(parts) != 2:
        raise Unsupported("opaque-call", what=f"{transform} with has_aux of {len(parts)} results")
    return parts[0], parts[1]


# --- the transforms -------------------------------------------------------------------------


def _vmap(tx: Trace, transform: TransformValue, args: Args, kwargs: Kwargs) -> Value:
    in_dims = transform.option(tx, "in_dims", 0)
    outlines = [nests.outline_of(tx, a) for a in args]
    if isinstance(in_dims, list) or (isinstance(in_dims, int) and nests.holds_none(outlines)):
        raise Unsupported("opaque-call", what="vmap over what is no tensor")
    dims = nests.spread(in_dims, outlines)
    leaves, build = nests.flatten(tx, TupleValue(args))
    call = _Call(tx, transform.describe())
    mapped, nodes, given = [], [], []
    for leaf, dim in zip(leaves, dims, strict=True):
        if dim is None:
            given.append(leaf)
            continue
        if not isinstance(leaf, TensorValue) or not isinstance(dim, int):
            raise Unsupported("opaque-call", what="vmap over what is no tensor")
        rank = leaf.fake.dim()
        if not -rank <= dim < rank:
            raise Unsupported("opaque-call", what="vmap over a dimension that is not there")
        with tx.graph.fake.mode:
            fake = leaf.fake
            if fake.size(dim) == 0:  # the body is traced as for one element all the same
                shape = (*fake.shape[:dim], 1, *fake.shape[dim % rank + 1 :])
                fake = torch.cat([fake, fake.new_empty(shape)], dim)
            given.append(call.body.input(fake.select(dim, 0)))
        mapped.append(dim)
        nodes.append(leaf.node)
    if not mapped:
        raise Unsupported("opaque-call", what="vmap without a mapped dimension")
    chunk_size = transform.option(tx, "chunk_size", None)
    with contextlib.ExitStack() as stack:
        if chunk_size is not None:  # each chunk would have the effects
            seen = [transform.func, *args, *kwargs.values()]
            stack.enter_context(without_effects(tx, "vmap in chunks", seen))
        stack.enter_context(tx.graph.mapping())  # keywords are not mapped
        result = call.run(transform.func, tx.interp.unpack(build(given)), kwargs, grad=False)
    flat, rebuild = nests.flatten(tx, result)
    outline = nests.outline_of(tx, result)
    if nests.holds_none(outline):
        raise Unsupported("opaque-call", what="vmap of a function that returns None")
    out_dims = tuple(nests.spread(transform.option(tx, "out_dims", 0), outline))
    own = (
        tuple(mapped),
        out_dims,
        transform.option(tx, "randomness", "error"),
        chunk_size,
    )
    return rebuild(call.close(ops.vmap, own, nodes, flat))


def _differentiated(
    tx: Trace, what: str, func: Value, args: Args, numbers: Sequence[int], kwargs: Kwargs,
    has_aux: object, *, forward: bool = False,
) -> tuple[_Call, Inputs, list[Value], nests.Rebuild, list[Value], nests.Rebuild]:  # fmt: skip
    """A body of which the first results are differentiated, and what builds its results."""
    call = _Call(tx, what)
    inputs = call.inputs(args, numbers, (lambda _, fake: fake) if forward else _differentiable)
    result = call.run(func, inputs.args, kwargs, grad=not forward)
    value, aux = _split_aux(tx, what, result, has_aux)
    return call, inputs, *nests.flatten(tx, value), *nests.flatten(tx, aux)


def _gradient(tx: Trace, transform: TransformValue, args: Args, kwargs: Kwargs) -> Value:
    numbers, single = _argnums(tx, transform, len(args))
    has_aux = transform.option(tx, "has_aux", False)
    what = transform.describe()
    call, inputs, outputs, _, others, build_aux = _differentiated(
        tx, what, transform.func, args, numbers, kwargs, has_aux
    )
    if len(outputs) != 1:
        raise Unsupported("opaque-call", what=f"{what} of a function with several results")
    count = len(inputs.nodes)
    found = call.close(ops.grad_and_value, (count,), inputs.nodes, [*outputs, *others])
    grads, value = _nest(inputs, found, single=single), found[count]
    aux = [build_aux(found[count + 1 :])] if has_aux else []
    if transform.real is torch.func.grad:
        return TupleValue([grads, *aux]) if has_aux else grads
    return TupleValue([grads, TupleValue([value, *aux]) if has_aux else value])


def _jacobian(tx: Trace, transform: TransformValue, args: Args, kwargs: Kwargs) -> Value:
    names = transform.options.keys() - {"argnums", "has_aux"}
    options = {name: tx.interp.concrete(transform.options[name]) for name in names}
    numbers, single = _argnums(tx, transform, len(args))
    has_aux = transform.option(tx, "has_aux", False)
    call, inputs, outputs, build, others, build_aux = _differentiated(
        tx, transform.describe(), transform.func, args, numbers, kwargs, has_aux
    )
    width, count = len(inputs.nodes), len(outputs)
    own = (transform.real.__name__, width, count, options)
    found = call.close(ops.jacobian, own, inputs.nodes, [*outputs, *others])
    starts = range(0, count * width, width)
    whole = build([_nest(inputs, found[i : i + width], single=single) for i in starts])
    return TupleValue([whole, build_aux(found[count * width :])]) if has_aux else whole


def _hessian(tx: Trace, transform: TransformValue, args: Args, kwargs: Kwargs) -> Value:
    inner = TransformValue(torch.func.jacrev, transform.func, transform.options)
    outer = TransformValue(torch.func.jacfwd, inner, transform.options)
    return outer.call(tx, args, kwargs)


_APPLY: dict[object, Callable[..., Value]] = {
    torch.func.vmap: _vmap,
    torch.func.grad: _gradient,
    torch.func.grad_and_value: _gradient,
    torch.func.jacrev: _jacobian,
    torch.func.jacfwd: _jacobian,
    torch.func.hessian: _hessian,
}
_POSITIONAL: dict[object, tuple[str, ...]] = {
    torch.func.vmap: ("in_dims", "out_dims", "randomness"),
    torch.func.hessian: ("argnums",),
    torch.func.jacrev: ("argnums",),
}


def _register(real: Callable[..., object]) -> None:
    names = _POSITIONAL.get(real, ("argnums", "has_aux"))

    def make(tx: Trace, args: Args, kwargs: Kwargs) -> Value:
        options = {**dict(zip(names, args[1:])), **kwargs}
        known = all(tx.interp.try_concrete(v) is not tx.interp.UNKNOWN for v in options.values())
        if not args or len(args) > 1 + len(names) or not known:
            raise Unsupported("opaque-call", what=f"{real.__name__} with these arguments")
        return TransformValue(real, args[0], options)

    register(real, make)


for _real in _APPLY:
    assert callable(_real)
    _register(_real)


@handles(torch.func.jvp)
def _jvp(
    tx: Trace,
    func: Value,
    primals: Value,
    tangents: Value,
    /,
    *,
    strict: Value = FALSE,
    has_aux: Value = FALSE,
) -> Value:
    aux = has_aux.as_constant()
    given = tx.interp.unpack(primals)
    directions, _ = nests.flatten(tx, tangents)
    nodes = [d.node for d in directions if isinstance(d, TensorValue)]
    call, inputs, outputs, build, others, build_aux = _differentiated(
        tx, "torch.func.jvp", func, given, range(len(given)), {}, aux, forward=True
    )
    if len(nodes) != len(inputs.nodes):
        raise Unsupported("opaque-call", what="torch.func.jvp with these tangents")
    n, m = len(outputs), len(others)
    own = (len(nodes), n, strict.as_constant())
    found = call.close(ops.jvp, own, [*inputs.nodes, *nodes], [*outputs, *others])
    parts = [build(found[:n]), build(found[n + m :])]
    return TupleValue([*parts, build_aux(found[n : n + m])] if aux else parts)


@handles(torch.func.vjp)
def _vjp(tx: Trace, func: Value, /, *primals: Value, has_aux: Value = FALSE) -> Value:
    aux = has_aux.as_constant()
    call, inputs, outputs, build, others, build_aux = _differentiated(
        tx, "torch.func.vjp", func, primals, range(len(primals)), {}, aux
    )
    n = len(outputs)
    own = (len(inputs.nodes), n)
    *found, pull = call.close(ops.vjp, own, inputs.nodes, [*outputs, *others])
    assert isinstance(pull, GraphObject)
    parts = [build(found[:n]), PullBackValue(pull.node, inputs, n)]
    return TupleValue([*parts, build_aux(found[n:])] if aux else parts)


@handles(torch.func.linearize)
def _refused(tx: Trace, *args: Value, **kwargs: Value) -> Value:
    raise Unsupported("opaque-call", what="torch.func.linearize, which compiles by itself")


# --- functions that were transformed elsewhere -------------------------------------------------


@builtin(private.vmap_call)
def _vmap_call(tx: Trace, func: Value, *given: Value, **kwargs: Value) -> Value:
    names = ("in_dims", "out_dims", "randomness", "chunk_size")
    return TransformValue(torch.func.vmap, func, dict(zip(names, given))).call(
        tx, given[4:], kwargs
    )


def _gradient_call(real: Callable[..., object]) -> Callable[..., Value]:
    def call(
        tx: Trace, func: Value, argnums: Value, has_aux: Value, args: Value, kwargs: Value
    ) -> Value:
        options = {"argnums": argnums, "has_aux": has_aux}
        words = tx.interp.keywords(kwargs)
        return TransformValue(real, func, options).call(tx, tx.interp.unpack(args), words)

    return call


builtin(private.grad_call)(_gradient_call(torch.func.grad))
builtin(private.grad_and_value_call)(_gradient_call(torch.func.grad_and_value))


def _jacobian_call(real: Callable[..., object], cells: Sequence[str]) -> registry.Closure:
    def call(tx: Trace, cell: Callable[[str], Value], args: Args, kwargs: Kwargs) -> Value:
        options = {name: cell(name) for name in cells}
        return TransformValue(real, options.pop("func"), options).call(tx, args, kwargs)

    return call


for _made, _code in private.JACOBIANS:
    registry.closure(_code)(_jacobian_call(_made, _code.co_freevars))
