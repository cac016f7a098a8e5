"""One call of a compiled program, differentiated in a way that is not ``backward`` alone.

Gradients of gradients, gradients for some inputs only, batches of tangents, calls whose saved
tensors go through hooks, calls that are checkpointed, and calls in the middle of eager operators.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from composition.gradients import Declined, Entry, Function, Scenario, kind_of, strides_of, tangent
from torch.utils.checkpoint import checkpoint

WAYS = ("twice", "some", "batch", "hooks", "checkpoint", "reentrant", "middle")


def play(scenario: Scenario, function: Function) -> list[Entry]:
    """Run one side; the journal of everything that can be seen."""
    rng = random.Random(scenario.seed + 3)
    way = rng.choice(WAYS)
    journal: list[Entry] = [("way", way)]
    leaves, args = _arguments(scenario, way)
    try:
        if way in ("reentrant", "middle"):  # which may lack what a usual call raises
            function(*_arguments(scenario, "")[1])
        results = _call(way, function, args)
    except Exception as error:
        return [("forward raises", str(error)[:200])]
    try:
        found = [x for x in results if isinstance(x, torch.Tensor) and x.requires_grad]
        found = [x for x in found if x.dtype.is_floating_point]
        if way == "middle":
            found = [x * 3 if rng.random() < 0.5 else x.sin() for x in found]
    except RuntimeError as error:
        return [("result raises", kind_of(error))]
    for number, x in enumerate(found):
        journal.append((f"result {number} is", (x.dtype, x.shape, strides_of(x))))
        journal.append((f"result {number}", x.detach().clone()))
    if found and leaves:
        _differentiate(way, found, leaves, args, rng, journal)
    return journal


def _arguments(scenario: Scenario, way: str) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Leaves that require gradients, and what a call is given."""
    leaves: list[torch.Tensor] = []
    args: list[torch.Tensor] = []
    for spec, kind in zip(scenario.program.inputs, scenario.wanted()):
        x = spec.make()
        if kind is not None:
            leaves.append(x.requires_grad_())
            dense = spec.layout in ("contiguous", "offset")  # a clone lies as it does
            inner = kind == "inner" or (way == "middle" and dense)
            x = x.clone(memory_format=torch.preserve_format) if inner else x
        args.append(x)
    return leaves, args


def _call(way: str, function: Function, args: Sequence[torch.Tensor]) -> Sequence[Any]:
    if way == "hooks":
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone(), lambda x: x.clone()):
            return function(*args)
    if way in ("checkpoint", "reentrant"):
        return checkpoint(  # type: ignore[no-any-return]
            function, *args, use_reentrant=way == "reentrant", preserve_rng_state=False
        )
    return function(*args)


def _differentiate(
    way: str,
    results: Sequence[torch.Tensor],
    leaves: Sequence[torch.Tensor],
    args: Sequence[torch.Tensor],
    rng: random.Random,
    journal: list[Entry],
) -> None:
    tangents = [tangent(x, rng) for x in results]
    sources = list({id(x): x for x in (*leaves, *args) if x.requires_grad}.values())
    try:
        if way == "reentrant":
            torch.autograd.backward(results, tangents)
            _note(journal, "gradient", [x.grad for x in leaves])
        elif way == "batch":
            pairs = [torch.stack([t, t * 2, t - 1]) for t in tangents]
            found = torch.autograd.grad(
                results, sources, pairs, allow_unused=True, is_grads_batched=True
            )
            _note(journal, "gradient", [None if g is None else g.contiguous() for g in found])
        elif way == "twice":
            tangents = [t.clone().requires_grad_() for t in tangents]
            found = torch.autograd.grad(
                results, sources, tangents, allow_unused=True, create_graph=True
            )
            _note(journal, "gradient", found)
            again = [g for g in found if g is not None and g.requires_grad]
            if again:
                second = torch.autograd.grad(
                    again, [*sources, *tangents], [g.detach() for g in again], allow_unused=True
                )
                _note(journal, "second", second)
        else:
            wanted = rng.sample(sources, rng.randint(1, len(sources))) if way == "some" else sources
            found = torch.autograd.grad(results, wanted, tangents, allow_unused=True)
            _note(journal, "gradient", found)
    except RuntimeError as error:
        if "cannot run again" in str(error):
            raise Declined from error
        journal.append((f"{way} raises", kind_of(error)))


def _note(journal: list[Entry], name: str, grads: Sequence[torch.Tensor | None]) -> None:
    for number, g in enumerate(grads):
        facts = None if g is None else (g.dtype, g.shape, g.requires_grad)
        journal.append((f"{name} {number} is", facts))
        if g is not None:
            journal.append((f"{name} {number}", g.detach().clone()))
