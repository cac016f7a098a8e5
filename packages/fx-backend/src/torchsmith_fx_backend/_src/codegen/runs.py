"""Steps of a plan that follow each other and can be one call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any

from torchsmith_fx_backend._src.schedule.plan import (
    Allocate,
    BindSymbol,
    Bump,
    ExternCall,
    Free,
    Launch,
    Name,
    Plan,
    Step,
)

FEW = {"cuda": 8}  # launches of which a table of their arguments costs more


def runs(plan: Plan) -> Iterator[list[Any]]:
    """The steps of a plan, those that can be one call together: launches of one kernel that do not
    depend on each other, and allocations and readings of single elements on a CPU."""
    own = {*plan.inputs, *(s.name for s in plan.steps if isinstance(s, Allocate))}
    numbers = _numbers(plan)
    start, steps = 0, plan.steps
    while start < len(steps):
        found = _run(steps, start, own, numbers)
        yield list(steps[start : start + found])
        start += found


def _run(steps: Sequence[Step], start: int, own: set[str], numbers: set[str]) -> int:
    """How many steps from ``start`` on are one call."""
    first = steps[start]
    after = (steps[i] for i in range(start + 1, len(steps)))
    match first:
        case Launch() if not first.kernel.faults and _is_static(first):
            touched, written = set(first.args), _written(first)
            count = 1
            for step in after if touched <= own else ():
                if not isinstance(step, Launch) or step.kernel != first.kernel:
                    break
                writes = _written(step)
                apart = not (writes & touched or written & set(step.args))
                if step.device != first.device or not apart or not set(step.args) <= own:
                    break
                touched.update(step.args)
                written |= writes
                count += 1
            return count if count >= FEW.get(first.device.type, 2) else 1
        case Allocate(name, layout, None) if name in numbers:
            alike = takewhile(
                lambda s: (
                    isinstance(s, Allocate)
                    and (s.name in numbers and s.reuse is None and s.layout == layout)
                ),
                after,
            )
            return 1 + sum(1 for _ in alike)
        case BindSymbol(what="item"):
            return 1 + sum(
                1
                for _ in takewhile(lambda s: isinstance(s, BindSymbol) and s.what == "item", after)
            )
    return 1


def _is_static(step: Launch) -> bool:
    """Whether a launch depends on nothing but the memory and the numbers that it is given."""
    return len(step.numbers) == len(step.kernel.symbols) and not any(step.starts)


def _written(step: Launch) -> set[str]:
    return {name for name, arg in zip(step.args, step.kernel.args) if arg.written}


def _numbers(plan: Plan) -> set[str]:
    """Single elements on a CPU that nothing but kernels and readings of them sees."""
    found = {
        s.name
        for s in plan.steps
        if isinstance(s, Allocate) and s.layout.size == () and s.layout.device.type == "cpu"
    }
    for step in plan.steps:
        match step:
            case Launch() | Free() | Bump() | BindSymbol(what="item") | Allocate(reuse=None):
                continue
            case Allocate(name, _, str(reuse)):
                found -= {name, reuse}
            case ExternCall():
                found -= set(_named((step.args, step.kwargs, step.results, step.out)))
    return found - set(_named(plan.outputs))


def _named(value: object) -> Iterator[str]:
    match value:
        case Name(name):
            yield name
        case str():
            yield value
        case tuple() | list():
            for item in value:
                yield from _named(item)
