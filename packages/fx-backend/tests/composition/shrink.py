"""Makes a failing program smaller while it keeps failing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from composition.programs import Program, Step, name_pattern

Fails = Callable[[Program], bool]


def shrink(program: Program, fails: Fails, most: int = 400) -> Program:
    """The smallest program found by leaving things out, one after the other."""
    tried = 0
    again = True
    while again and tried < most:
        again = False
        for smaller in _smaller(program):
            tried += 1
            if tried > most:
                break
            if fails(smaller):
                program, again = smaller, True
                break
    return program


def _smaller(program: Program) -> Iterator[Program]:
    for output in program.outputs if len(program.outputs) > 1 else ():
        yield _without_dead(replace(program, outputs=(output,)))
    for number, step in reversed(list(enumerate(program.steps))):
        rest = program.steps[:number] + program.steps[number + 1 :]
        if step.target is None:
            yield replace(program, steps=rest)
            continue
        for other in dict.fromkeys(step.reads):
            steps = tuple(_renamed(s, step.target, other) for s in rest)
            outputs = tuple(other if o == step.target else o for o in program.outputs)
            yield replace(program, steps=steps, outputs=outputs)
    for number, spec in enumerate(program.inputs):
        for plain in (
            replace(spec, special=False),
            replace(spec, layout="contiguous"),
            replace(spec, shape=tuple(min(n, 4) for n in spec.shape)),
        ):
            if plain != spec:
                inputs = (*program.inputs[:number], plain, *program.inputs[number + 1 :])
                yield replace(program, inputs=inputs)


def _without_dead(program: Program) -> Program:
    """Without steps whose value nobody reads (and no write follows)."""
    needed = set(program.outputs)
    kept: list[Step] = []
    for step in reversed(program.steps):
        if step.target is None or step.target in needed:
            needed.update(step.reads)
            kept.append(step)
    return replace(program, steps=tuple(reversed(kept)))


def _renamed(step: Step, old: str, new: str) -> Step:
    if old not in step.reads:
        return step
    text = re.sub(name_pattern(old), new, step.text)
    return Step(step.target, text, tuple(new if r == old else r for r in step.reads))
