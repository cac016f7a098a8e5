"""What graphs call for functions that take functions. Each takes the body as a graph of its own.

A body takes its inputs, then the operands that it shares with the outer graph, and gives a tuple.
Differentiated and mapped inputs come first among ``args``, ``count`` of them; the rest is handed
through. Aliases of these names in printed graphs are what ``torch.func`` calls them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, NamedTuple

import torch
from torch.utils.hooks import BackwardHook, RemovableHandle

from torchsmith_tracer._src.torch_private import AmbientState, backward_hooks_of

Body = Callable[..., tuple[Any, ...]]


def vmap(
    body: Body,
    in_dims: tuple[int, ...],
    out_dims: tuple[int | None, ...],
    randomness: str,
    chunk_size: int | None,
    *args: object,
) -> tuple[Any, ...]:
    """``torch.vmap`` of a body over its first ``len(in_dims)`` arguments."""
    rest = (None,) * (len(args) - len(in_dims))
    dims: Any = (*in_dims, *rest)
    outs: Any = out_dims
    mapped = torch.vmap(body, dims, outs, randomness=randomness, chunk_size=chunk_size)
    return mapped(*args)


def _with_aux(body: Body, results: int, rest: Sequence[object] = ()) -> Callable[..., Any]:
    """``body`` on its arguments and the rest, its first ``results`` results apart."""

    def run(*args: object) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        found = body(*args, *rest)
        return found[:results], found[results:]

    return run


def grad_and_value(body: Body, count: int, *args: object) -> tuple[Any, ...]:
    """Gradients of the first result, that result, then the other results."""

    def split(*args: object) -> tuple[Any, tuple[Any, ...]]:
        result, *others = body(*args)
        return result, tuple(others)

    run = torch.func.grad_and_value(split, tuple(range(count)), has_aux=True)
    grads, (value, others) = run(*args)
    return (*grads, value, *others)


def jacobian(
    body: Body, transform: str, count: int, results: int, options: dict[str, Any], *args: object
) -> tuple[Any, ...]:
    """``torch.func.jacrev`` or ``jacfwd``: the Jacobians of the first ``results`` results, row by
    row, then the other results."""
    split = _with_aux(body, results)
    run = getattr(torch.func, transform)(split, tuple(range(count)), has_aux=True, **options)
    rows, others = run(*args)
    return (*(part for row in rows for part in row), *others)


def jvp(body: Body, count: int, results: int, strict: bool, *args: object) -> tuple[Any, ...]:
    """Results, tangents of the first ``results`` of them; ``args`` are inputs, tangents, rest."""
    inputs, tangents, rest = args[:count], args[count : 2 * count], args[2 * count :]
    run = _with_aux(body, results, rest)
    found: Any = torch.func.jvp(run, inputs, tangents, strict=strict, has_aux=True)
    out, out_tangents, others = found
    return (*out, *others, *out_tangents)


def vjp(body: Body, count: int, results: int, *args: object) -> tuple[Any, ...]:
    """Results, and the function that takes cotangents of the first ``results`` of them."""
    run = _with_aux(body, results, args[count:])
    found: Any = torch.func.vjp(run, *args[:count], has_aux=True)
    out, pull, others = found
    return (*out, *others, pull)


def pull_back(pull: Callable[..., Sequence[Any]], *cotangents: object) -> tuple[Any, ...]:
    """Gradients from the function that ``vjp`` gave."""
    return tuple(pull(tuple(cotangents)))


def cond(
    condition: torch.Tensor, when_true: Body, when_false: Body, count: int, *args: object
) -> tuple[Any, ...]:
    """One of two bodies; the first ``count`` arguments belong to the first."""
    return when_true(*args[:count]) if condition else when_false(*args[count:])


def while_loop(condition: Body, body: Body, count: int, shared: int, *args: Any) -> tuple[Any, ...]:
    """Repeat ``body`` on ``count`` carried tensors while ``condition`` holds; the condition's own
    operands are the next ``shared`` arguments, the body's the rest."""
    carried, rest = args[:count], args[count:]
    while condition(*carried, *rest[:shared])[0]:
        carried = body(*carried, *rest[shared:])
    return tuple([x.clone() if x is given else x for x, given in zip(carried, args)])


def scan(
    body: Body, carried: int, count: int, dim: int, reverse: bool, *args: Any
) -> tuple[Any, ...]:
    """The first ``carried`` arguments after the last step, then what the steps gave, stacked. A
    step takes what is carried and a slice of the next ``count`` arguments."""
    state, scanned, rest = args[:carried], args[carried : carried + count], args[carried + count :]
    slices = [x.movedim(dim, 0).unbind(0) for x in scanned]
    steps = list(zip(*slices, strict=True))
    given = []
    for step in reversed(steps) if reverse else steps:
        found = body(*state, *step, *rest)
        state = found[:carried]
        given.append(found[carried:])
    stacked = [torch.stack(parts) for parts in zip(*given, strict=True)]
    if reverse:
        stacked = [part.flip(0) for part in stacked]
    return (*state, *(part.movedim(0, dim) if dim < part.dim() else part for part in stacked))


def backward(
    tensors: tuple[torch.Tensor, ...],
    gradients: tuple[torch.Tensor | None, ...],
    leaves: tuple[torch.Tensor, ...],
    old: tuple[torch.Tensor | None, ...],
    retain_graph: bool | None,
    create_graph: bool,
    restricted: bool,
) -> tuple[torch.Tensor | None, ...]:
    """``torch.autograd.backward`` where ``leaves`` have the gradients ``old``; gives those that
    they have afterwards. Only ``leaves`` receive any if ``restricted``."""
    for leaf, grad in zip(leaves, old, strict=True):
        if leaf.grad is not grad:
            leaf.grad = grad
    inputs = list(leaves) if restricted else None
    torch.autograd.backward(tensors, gradients, retain_graph, create_graph, inputs=inputs)
    return tuple(leaf.grad for leaf in leaves)


def register_hook(tensor: torch.Tensor, body: Body, *operands: object) -> RemovableHandle:
    """``tensor.register_hook`` of a body that gives the new gradient, or nothing."""

    def hook(grad: torch.Tensor) -> Any:
        found = body(grad, *operands)
        return found[0] if found else None

    return numbered_apart(tensor.register_hook(hook))  # type: ignore[no-untyped-call]


def watched(tensor: torch.Tensor) -> None:
    """Between what makes ``tensor`` and what uses it: a hook that the graph has not wants its whole
    gradient."""


def numbered_apart(made: RemovableHandle) -> RemovableHandle:
    """Give a hook a number of our own: traced code has counted its own handles only, so that what
    it leaves as the next number may be the hook's."""
    hooks: Any = made.hooks_dict_ref()
    hooks[number := next(_NUMBERS)] = hooks.pop(made.id)
    made.id = number
    return made


_NUMBERS = count(-1, -1)


def module_hooks(module: Callable[[], torch.nn.Module | None]) -> BackwardHook:
    """What runs the backward hooks that a module has now."""
    owner = module()
    assert owner is not None
    return BackwardHook(owner, *backward_hooks_of(owner))


def set_up_hooks(
    hooks: BackwardHook, setup: str, count: int, places: Sequence[int], *tensors: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Call ``setup`` on the inputs or results of a module, ``count`` of them with ``tensors`` at
    ``places``; gives the tensors to go on with."""
    given: list[torch.Tensor | None] = [None] * count
    for place, tensor in zip(places, tensors, strict=True):
        given[place] = tensor
    found = getattr(hooks, setup)(tuple(given))
    return tuple(found[place] for place in places)


def checkpoint(
    body: Body,
    contexts: Callable[[], Any] | None,
    count: int,
    options: dict[str, Any],
    *args: object,
) -> tuple[Any, ...]:
    """``torch.utils.checkpoint`` of a body whose explicit arguments are the first ``count``;
    ``contexts`` makes the contexts of the first and of the second run."""
    from torch.utils.checkpoint import checkpoint as real

    rest = args[count:]
    if contexts is not None:
        options = {**options, "context_fn": contexts}

    def run(*inputs: object) -> tuple[Any, ...]:
        ambient = AmbientState()
        try:
            return body(*inputs, *rest)
        except BaseException:  # the second run ends as soon as it has computed enough
            ambient.restore()
            raise

    found: tuple[Any, ...] = real(run, *args[:count], **options)
    return found


class Plan(NamedTuple):
    """How a traced ``autograd.Function`` runs its bodies.

    Attributes:
        inputs, results, shared: inputs, results, and operands of the forward body, whose further
            results are for the backward body only.
        constant: which results take no gradient.
        saved: what the backward body takes after the gradients: an argument (from 0) or a result
            (from -1 downwards) of the forward body; its own operands follow.
        once: there is no derivative of the derivative.
    """

    inputs: int
    results: int
    shared: int
    constant: tuple[int, ...]
    saved: tuple[int, ...]
    once: bool


class _Function(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(forward: Body, backward: Body, plan: tuple[Any, ...], *args: Any) -> Any:
        return tuple(forward(*args[: plan[0] + plan[2]]))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        _, ctx.backward, plan, *args = inputs
        plan = Plan(*plan)
        taken = (args[i] if i >= 0 else output[-1 - i] for i in plan.saved)
        held = (*taken, *args[plan.inputs + plan.shared :])
        tensors = [x if isinstance(x, torch.Tensor) else None for x in held]
        ctx.save_for_backward(*tensors)
        ctx.numbers = [None if isinstance(x, torch.Tensor) else x for x in held]  # of sizes
        ctx.results, ctx.count = plan.results, len(args)
        apart = {*plan.constant, *range(plan.results, len(output))}
        found = (output[i] for i in sorted(apart))
        ctx.mark_non_differentiable(*(x for x in found if isinstance(x, torch.Tensor)))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        held = [n if t is None else t for t, n in zip(ctx.saved_tensors, ctx.numbers, strict=True)]
        found = ctx.backward(*grads[: ctx.results], *held)
        return (None, None, None, *found, *(None,) * (ctx.count - len(found)))


class _Once(_Function):
    """The same, differentiable once."""

    backward = torch.autograd.function.once_differentiable(_Function.backward)  # type: ignore[assignment]


def autograd_function(
    forward: Body, backward: Body, plan: tuple[Any, ...], *args: object
) -> tuple[Any, ...]:
    """A traced ``autograd.Function``: inputs, then the forward's and the backward's operands."""
    own = Plan(*plan)
    function = _Once if own.once else _Function
    found: tuple[Any, ...] = function.apply(forward, backward, plan, *args)  # type: ignore[no-untyped-call]
    return found[: own.results]
