"""A session: a model and the steps of its life, played by eager and by compiled code."""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torchsmith
from calls.blocks import JOINS, KINDS, RETURNS, Net, choose
from calls.changes import CHANGES, EVERYTHING
from calls.side import VIEW, Side
from composition.gradients import Entry, difference

# Errors that compiled code has and eager has not, on purpose, which say so.
DOCUMENTED = ("differentiated twice, but cannot run again",)


class Step(NamedTuple):
    """What is done, and the seed of its details."""

    what: str
    seed: int


@dataclass(frozen=True)
class Session:
    """A model and what happens to it."""

    kind: str
    blocks: tuple[str, ...]
    entry: str
    dynamic: bool | None
    join: str
    returns: str
    steps: tuple[Step, ...]
    seed: int = 0

    def __str__(self) -> str:
        steps = ", ".join(f"({what!r}, {seed})" for what, seed in self.steps)
        head = ", ".join(
            f"{name}={getattr(self, name)!r}"
            for name in ("kind", "blocks", "entry", "dynamic", "join", "returns", "seed")
        )
        return f"Session({head}, steps=[{steps}])"


def generate(seed: int) -> Session:
    """The session of that seed."""
    rng = random.Random(seed)
    kind = rng.choice(KINDS)
    steps = _changes(rng, rng.choice((0, 1, 2)))
    for _ in range(rng.randint(3, 6)):
        steps.append(_step("call", rng))
        if rng.random() < 0.15:
            steps.append(_step("call", rng))
        if rng.random() < 0.3:
            steps += _changes(rng, 1)
        if rng.random() < 0.6:
            steps.append(_step("backward", rng))
        steps += _changes(rng, rng.choice((0, 1, 1, 1, 2, 3)))
    steps += [_step("backward", rng), _step("drop", rng)]
    return Session(
        kind,
        tuple(choose(kind, rng) for _ in range(rng.randint(1, 3))),
        rng.choice(("module", "module", "function", "method")),
        rng.choice((None, None, None, True, False)),
        rng.choice(JOINS),
        rng.choice(RETURNS),
        tuple(steps),
        seed,
    )


def _step(what: str, rng: random.Random) -> Step:
    return Step(what, rng.randrange(10_000))


def _changes(rng: random.Random, count: int) -> list[Step]:
    return [_step(rng.choice(list(CHANGES)), rng) for _ in range(count)]


def play(session: Session, *, compiled: bool, wide: bool = False) -> list[Entry]:
    """Run one side; the journal of all that can be seen."""
    torch.manual_seed(session.seed)
    net = Net(session.kind, session.blocks, session.join, session.returns)
    if wide:
        net.double()
    side = Side(compiled, wide, session.kind, net, session.dynamic, session.entry)
    torch.manual_seed(session.seed + 1)
    try:
        for number, step in enumerate(session.steps):
            side.note("step", (number, step.what))
            if step.what in CHANGES:
                side.settle()
            try:
                EVERYTHING[step.what](side, random.Random(step.seed))
            except Exception as error:
                side.note("change raises", (type(error).__name__, str(error)[:60]))
            if side.ended:
                break
    finally:
        side.close()
        if compiled:
            torchsmith.reset()
    return side.journal


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def compare(session: Session) -> str | None:
    """What differs between eager and compiled code, or None."""
    with _quiet():
        want, got = (play(session, compiled=compiled) for compiled in (False, True))
    at: object = None
    way: object = None
    judge: list[Entry] | None = None
    for place, ((name, true), (label, mine)) in enumerate(zip(want, got)):
        if label == "backward raises" and any(text in str(mine) for text in DOCUMENTED):
            return None
        if name != label == "backward raises" and (way, mine) == ("create_graph", "written"):
            return None  # which runs again from all that a call was given
        if name != label == "backward raises" == want[-1][0]:
            return None  # some hooks of the program's are called before eager raises
        if name != label:
            return f"{at}: {label} = {mine}, not {name} = {true}"
        if name == "step":
            at = true
        if name == "way":
            way = true
        if name == "alive" and set(mine) < set(true):
            continue  # what eager's graph keeps alive in a cycle
        if name == VIEW and true:  # of what eager has made on its way: nobody relies on it
            continue
        if not isinstance(true, torch.Tensor):
            if true != mine:
                return f"{at}: {name} {mine}, not {true}"
            continue
        problem = difference(mine, true)
        if problem is None:
            continue
        if judge is None:
            with _quiet():
                judge = play(session, compiled=False, wide=True)
        wide = judge[place][1] if place < len(judge) and judge[place][0] == name else None
        if not isinstance(wide, torch.Tensor) or wide.shape != true.shape:
            return None  # double precision takes another way
        if difference(true, wide, 0.2) is not None:
            return None  # eager itself is off, and what follows is, too
        if difference(mine, wide, 10 if true.dtype is torch.float32 else 1) is None:
            continue  # a sum that is near zero
        return f"{at}: {name}: {problem}"
    if len(want) != len(got):
        return f"{len(got)} entries, not {len(want)}"
    return None


def shrink(session: Session, most: int = 120) -> Session:
    """A shorter session that fails, too."""
    tries = 0

    def fails(candidate: Session) -> bool:
        nonlocal tries
        tries += 1
        try:
            return compare(candidate) is not None
        except Exception:
            return False

    size = max(1, len(session.steps) // 2)
    while size and tries < most:
        place = len(session.steps)
        while place > 0 and tries < most:
            place -= size
            kept = session.steps[: max(place, 0)] + session.steps[max(place, 0) + size :]
            if len(kept) < len(session.steps) and fails(candidate := replace(session, steps=kept)):
                session = candidate
        size //= 2
    for place in reversed(range(len(session.blocks))):
        kept_blocks = session.blocks[:place] + session.blocks[place + 1 :]
        if fails(candidate := replace(session, blocks=kept_blocks)):
            session = candidate
    for simple in ({"returns": "one"}, {"dynamic": None}, {"entry": "module"}, {"join": "add"}):
        if fails(candidate := replace(session, **simple)):  # type: ignore[arg-type]
            session = candidate
    return session
