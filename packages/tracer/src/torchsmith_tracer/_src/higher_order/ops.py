"""What graphs call for functions that take functions. Each takes the body as a graph of its own.

A body takes its inputs, then the operands that it shares with the outer graph, and gives a tuple.
Differentiated and mapped inputs come first among ``args``, ``count`` of them; the rest is handed
through. Aliases of these names in printed graphs are what ``torch.func`` calls them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

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


def _first(body: Body) -> Callable[..., tuple[Any, tuple[Any, ...]]]:
    """The body with its first result apart: what is differentiated, and what comes along."""

    def run(*args: object) -> tuple[Any, tuple[Any, ...]]:
        result, *others = body(*args)
        return result, tuple(others)

    return run


def grad(body: Body, count: int, *args: object) -> tuple[Any, ...]:
    """Gradients of the first result, then the other results."""
    run = torch.func.grad(_first(body), tuple(range(count)), has_aux=True)
    grads, others = run(*args)
    return (*grads, *others)


def grad_and_value(body: Body, count: int, *args: object) -> tuple[Any, ...]:
    """Gradients of the first result, that result, then the other results."""
    run = torch.func.grad_and_value(_first(body), tuple(range(count)), has_aux=True)
    grads, (value, others) = run(*args)
    return (*grads, value, *others)


def _jacobian(
    transform: Callable[..., Callable[..., Any]],
    body: Body,
    count: int,
    differentiated: int,
    options: dict[str, object],
) -> Callable[..., tuple[Any, ...]]:
    def split(*args: object) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        results = body(*args)
        return results[:differentiated], results[differentiated:]

    def run(*args: object) -> tuple[Any, ...]:
        rows, others = transform(split, tuple(range(count)), has_aux=True, **options)(*args)
        return (*(part for row in rows for part in row), *others)

    return run


def jacrev(
    body: Body, count: int, results: int, options: dict[str, object], *args: object
) -> tuple[Any, ...]:
    """Jacobians of the first ``results`` results, row by row, then the other results."""
    return _jacobian(torch.func.jacrev, body, count, results, options)(*args)


def jacfwd(
    body: Body, count: int, results: int, options: dict[str, object], *args: object
) -> tuple[Any, ...]:
    """As ``jacrev``, in forward mode."""
    return _jacobian(torch.func.jacfwd, body, count, results, options)(*args)


def jvp(body: Body, count: int, results: int, strict: bool, *args: object) -> tuple[Any, ...]:
    """Results, tangents of the first ``results`` of them; ``args`` are inputs, tangents, rest."""
    inputs, tangents, rest = args[:count], args[count : 2 * count], args[2 * count :]

    def run(*primals: object) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        found = body(*primals, *rest)
        return found[:results], found[results:]

    found: Any = torch.func.jvp(run, inputs, tangents, strict=strict, has_aux=True)
    out, out_tangents, others = found
    return (*out, *others, *out_tangents)


def apply(body: Body, *args: object) -> tuple[Any, ...]:
    """The body itself: what ``torch.func.linearize`` gives first."""
    return body(*args)


def vjp(body: Body, count: int, results: int, *args: object) -> tuple[Any, ...]:
    """Results, and the function that takes cotangents of the first ``results`` of them."""
    rest = args[count:]

    def run(*primals: object) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        found = body(*primals, *rest)
        return found[:results], found[results:]

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
    return tuple(carried)


def map_rows(body: Body, count: int, *args: Any) -> tuple[Any, ...]:
    """The body of each row of the first ``count`` arguments; the results are stacked."""
    mapped, rest = args[:count], args[count:]
    rows = [body(*row, *rest) for row in zip(*mapped, strict=True)]
    return tuple(map(torch.stack, zip(*rows, strict=True)))


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
    found: tuple[Any, ...] = real(lambda *inputs: body(*inputs, *rest), *args[:count], **options)
    return found


class _Function(torch.autograd.Function):
    """Runs a forward and a backward body.

    ``numbers`` are: inputs, results, operands of the forward body; and which results take no
    gradient. The forward body gives the results, then what the backward body needs of it.
    """

    @staticmethod
    def forward(
        ctx: Any, forward: Body, backward: Body, numbers: tuple[int, int, int, tuple[int, ...]],
        *args: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        inputs, results, shared, constant = numbers
        found = forward(*args[: inputs + shared])
        ctx.save_for_backward(*found[results:], *args[inputs + shared :])
        ctx.backward, ctx.count = backward, 3 + len(args)
        ctx.mark_non_differentiable(*(found[i] for i in constant))
        return tuple(found[:results])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        found = ctx.backward(*grads, *ctx.saved_tensors)
        return (None, None, None, *found, *(None,) * (ctx.count - 3 - len(found)))


def autograd_function(
    forward: Body, backward: Body, numbers: tuple[int, int, int, tuple[int, ...]], *args: object
) -> tuple[Any, ...]:
    """A traced ``autograd.Function``: inputs, then the forward's and the backward's operands."""
    found: tuple[Any, ...] = _Function.apply(forward, backward, numbers, *args)  # type: ignore[no-untyped-call]
    return found
