"""Which stage of the compiler is at fault: they are switched on one after the other.

With all of them off a graph runs as it was captured. The first one whose presence brings the
failure is named. It may need others: a pass that is wrong only after another one, a fusion that
is wrong only of lowered operators; that is why they come in the order in which they act.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchsmith_fx_backend import SWITCHES

from torchsmith._src.repro.cases import Case, entered
from torchsmith._src.repro.judge import Failure, compiled_by, find_backend, run

Judge = Callable[[Case, Mapping[str, Any]], Failure | None]
_LATE = ("lowerings", "reuse", "fusion")


@dataclass(frozen=True, slots=True)
class Blame:
    """The stage at fault.

    Attributes:
        stage: ``tracer``, ``guards``, ``capture``, ``autograd``, ``decompositions``,
            ``partition``, ``pass NAME``, ``lowering of OPERATOR``, ``reuse``, ``fusion`` or
            ``cache``; ``backend`` where that is all that can be said.
        options: with these the graph is compiled right: the stage is left out, and all after it.
    """

    stage: str
    options: Mapping[str, Any]

    def __str__(self) -> str:
        return self.stage


def blame(case: Case, judge: Judge) -> Blame:
    """The stage that makes ``case`` fail.

    Args:
        case: a graph with inputs; best a small one.
        judge: of a case with more options for the backend, whose cache of graphs is off.
    """

    def fails(disabled: Sequence[str], case: Case = case) -> bool:
        return judge(case, {"disable": list(disabled)}) is not None

    if case.backend != "smith":
        return Blame(f"backend {case.backend.rpartition(':')[2]}", {})
    if fails(SWITCHES):
        forward = replace(case, contexts=("torch.no_grad()", *case.contexts))
        if any(getattr(x, "requires_grad", False) for x in case.inputs) and not fails(
            SWITCHES, forward
        ):
            return Blame("autograd", {"training": "eager"})
        return Blame("capture", {})
    for stage, name, disabled in _steps(case):
        if fails(disabled):
            return Blame(stage, {"disable": [name]})
    if judge(case, {"graph_cache": True}) is not None:
        return Blame("cache", {"graph_cache": False})
    return Blame("none that fails twice", {})


def _steps(case: Case) -> Iterator[tuple[str, str, list[str]]]:
    """Each stage, the switch that leaves it out, and all that is off when it is the last one."""
    off = list(SWITCHES)
    for name in SWITCHES:
        if name in _LATE:
            continue
        off.remove(name)
        yield (name if name in ("decompositions", "partition") else f"pass {name}"), name, [*off]
    operators = _operators(case)
    for one in operators:
        others = [f"lowering:{other}" for other in operators if other != one]
        yield f"lowering of {one}", f"lowering:{one}", [*others, "reuse", "fusion"]
    yield "lowerings", "lowerings", ["reuse", "fusion"]
    yield "reuse", "reuse", ["fusion"]
    yield "fusion", "fusion", []


class _Graphs(logging.Handler):
    """Collects the operators of the graphs that are about to be lowered."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.found: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        for name in re.findall(r"torch\.ops\.(\w+\.\w+\.\w+)", record.getMessage()):
            self.found[name] = None


def _operators(case: Case) -> list[str]:
    """The operators of ``case`` when it is lowered, in both halves of a training graph."""
    handler, log = _Graphs(), logging.getLogger("torchsmith.aot")
    level, propagate = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    log.propagate = False
    try:
        with contextlib.suppress(Exception), entered(", ".join(case.contexts)):
            off = {"disable": list(_LATE)}
            run(compiled_by(find_backend(case.backend), case, off), case.inputs)
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = propagate
    return list(handler.found)
