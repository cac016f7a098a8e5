"""Several calls of one compiled program, whose arguments differ in what autograd knows of them.

Between calls an argument turns from a leaf into a computed tensor, a view or one without gradients,
two become one tensor, gradients and hooks are there already, gradients are switched off; arguments
and results are written through views; backward passes take the calls together or in any order.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from composition.gradients import Entry, Function, Scenario, kind_of, sharing, strides_of, tangent

KINDS = ("leaf", "leaf", "leaf", "inner", "view", "part", None)


@dataclass
class _Call:
    """One call's tensors."""

    args: list[torch.Tensor] = field(default_factory=list)
    leaves: list[torch.Tensor] = field(default_factory=list)
    results: list[torch.Tensor] = field(default_factory=list)


def play(scenario: Scenario, function: Function) -> list[Entry]:
    """Run one side of a session; the journal of everything that can be seen."""
    rng = random.Random(scenario.seed + 2)
    journal: list[Entry] = []
    calls: list[_Call] = []
    for number in range(rng.randint(2, 3)):
        call = _Call()
        _arguments(call, scenario, rng, calls, journal)
        versions = [x._version for x in call.args]
        silent = number > 0 and rng.random() < 0.1
        try:
            with torch.set_grad_enabled(not silent):
                results = function(*call.args)
        except Exception as error:
            if not number:
                return [("forward raises", str(error)[:200])]
            journal.append((f"call {number} raises", True))
            continue
        call.results = [x for x in results if isinstance(x, torch.Tensor)]
        if not _look(journal, f"call {number}", call, versions):
            return journal
        calls.append(call)
        if rng.random() < 0.2:
            _write(rng.choice([*call.args, *call.results]), rng, journal)
    _differentiate(calls, rng, journal)
    return journal


def _arguments(
    call: _Call, scenario: Scenario, rng: random.Random, calls: list[_Call], journal: list[Entry]
) -> None:
    """Make the arguments of a call; those of the first are what was compiled for."""
    again = calls and rng.random() < 0.3
    for place, (spec, kind) in enumerate(zip(scenario.program.inputs, scenario.wanted())):
        # Another layout would be another graph: those of graphs are for the caller to compare.
        dense = spec.layout in ("contiguous", "offset")
        if calls and dense and rng.random() < 0.25:
            kind = rng.choice(KINDS)
        if not spec.dtype.is_floating_point or spec.layout == "expanded":
            kind = None
        if calls and rng.random() < (0.6 if again else 0.1):
            x = calls[-1].args[place]  # as the last call left it
            call.args.append(x)
            continue
        if place and spec == scenario.program.inputs[0] and calls and rng.random() < 0.2:
            call.args.append(call.args[0])
            continue
        x = spec.make()
        if kind is not None:
            leaf = x.requires_grad_()
            call.leaves.append(leaf)
            _prepare(leaf, f"leaf {place}", rng, journal)
            if kind != "leaf":
                x = leaf.clone(memory_format=torch.preserve_format)
            if kind == "view":
                x = x[...]
            if kind == "part" and x.dim():
                x = torch.cat([x, x]).narrow(0, 0, len(x))
            if kind != "leaf" and rng.random() < 0.2:
                x.register_hook(_noting(journal, f"hook of argument {place}"))
        call.args.append(x)


def _prepare(leaf: torch.Tensor, name: str, rng: random.Random, journal: list[Entry]) -> None:
    """Let a leaf have a gradient of some layout, or a hook."""
    what = rng.choice(("nothing", "nothing", "gradient", "turned", "hook", "after"))
    if what == "gradient":
        leaf.grad = torch.ones_like(leaf)
    if what == "turned" and leaf.dim() > 1:
        leaf.grad = torch.ones(leaf.shape[::-1], dtype=leaf.dtype).permute(
            *range(leaf.dim() - 1, -1, -1)
        )
    if what == "hook":
        leaf.register_hook(_noting(journal, f"hook of {name}"))
    if what == "after":
        note = _noting(journal, f"hook after {name}")
        leaf.register_post_accumulate_grad_hook(lambda x: (note(x.grad), None)[1])


def _noting(journal: list[Entry], name: str) -> Any:
    def note(grad: torch.Tensor | None) -> torch.Tensor | None:
        if grad is None:  # eager's nodes give nothing for some, too
            journal.append((f"{name} is", None))
            return None
        journal.append((f"{name} is", (grad.shape, grad.dtype)))
        journal.append((name, grad.detach().clone()))
        return grad * 2

    return note


def _look(journal: list[Entry], name: str, call: _Call, versions: Sequence[int]) -> bool:
    """Note results and arguments after a call; False where a result cannot be asked."""
    for number, x in enumerate(call.results):
        try:
            facts = (x.dtype, x.shape, strides_of(x), x.requires_grad, x.is_leaf, x._is_view())
        except RuntimeError as error:
            journal.append((f"{name}, result {number} raises", kind_of(error)))
            return False
        journal.append((f"{name}, result {number} is", facts))
        journal.append((f"{name}, result {number}", x.detach().clone()))
    for number, (x, version) in enumerate(zip(call.args, versions)):
        facts = (x._version > version, x.requires_grad, x.is_leaf, x._is_view())
        journal.append((f"{name}, argument {number} is", facts))
        journal.append((f"{name}, argument {number}", x.detach().clone()))
    journal.append((f"{name}, sharing", sharing([*call.args, *call.results])))
    return True


def _write(victim: torch.Tensor, rng: random.Random, journal: list[Entry]) -> None:
    """Write a tensor between passes, perhaps through a view, perhaps with a history."""
    way = rng.choice(("whole", "part", "history"))
    try:
        if way == "history":
            victim.mul_(2)
        else:
            with torch.no_grad():
                (victim[..., :1] if way == "part" else victim).add_(1)
        journal.append(("written between", True))
    except (RuntimeError, IndexError):
        journal.append(("written between", False))


def _differentiate(calls: Sequence[_Call], rng: random.Random, journal: list[Entry]) -> None:
    leaves = list({id(x): x for call in calls for x in call.leaves}.values())
    passes = [list(call.results) for call in calls]
    if rng.random() < 0.4:
        passes = [[x for each in passes for x in each]]
    rng.shuffle(passes)
    for turn, results in enumerate([*passes, *rng.choices(passes, k=rng.choice((0, 0, 1)))]):
        try:
            chosen = [x for x in results if x.requires_grad and x.dtype.is_floating_point]
        except RuntimeError:
            continue
        if not chosen:
            continue
        chosen = rng.sample(chosen, rng.randint(1, len(chosen))) if rng.random() < 0.5 else chosen
        tangents = [tangent(x, rng) for x in chosen]
        retain, begin = rng.random() < 0.4, len(journal)
        try:
            torch.autograd.backward(chosen, tangents, retain_graph=retain)
        except RuntimeError as error:
            del journal[begin:]  # eager's nodes may come by hooks before one of them raises
            journal.append((f"pass {turn} raises", kind_of(error)))
            return  # what was done before is not the same
        for number, leaf in enumerate(leaves):
            g = leaf.grad
            facts = None if g is None else (g.dtype, g.shape, strides_of(g), g.requires_grad)
            journal.append((f"gradient {turn}.{number} is", facts))
            if g is not None:
                journal.append((f"gradient {turn}.{number}", g.detach().clone()))
