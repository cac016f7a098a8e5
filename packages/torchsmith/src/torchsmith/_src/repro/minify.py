"""``minify``: from a failing program, or a recorded failure, to a small file that fails alone."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torchsmith_guards.records import printing

from torchsmith._src.repro.cases import Case, print_case
from torchsmith._src.repro.judge import (
    BackendNotFoundError,
    Failure,
    find_backend,
    judge,
    judge_apart,
)
from torchsmith._src.repro.program import fewer_statements, outcome, stage_of
from torchsmith._src.repro.records import FACTS, environment, read_record, records_in
from torchsmith._src.repro.reduce import BUDGET, Reducer
from torchsmith._src.repro.sandbox import LIMIT
from torchsmith._src.repro.stages import blame
from torchsmith._src.repro.watch import Watch
from torchsmith.errors import MinifyError

Say = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Minified:
    """A small failing program.

    Attributes:
        text: its source.
        failure: how it fails.
        stage: the stage of the compiler that is at fault.
        size: what is left, in words.
    """

    text: str
    failure: Failure
    stage: str
    size: str


def minify(
    path: str | Path,
    *,
    limit: float = LIMIT,
    budget: float = BUDGET,
    say: Say = lambda text: None,
) -> Minified:
    """Minify a program, or what ``TORCHSMITH_REPRO`` recorded.

    Args:
        path: a Python file; or a record: its folder, the program in it, or a folder of records.
        limit: seconds after which a run hangs.
        budget: seconds after which the smallest program so far is the result.
        say: told of progress.

    Raises:
        MinifyError: nothing fails, or it fails without the compiler, too.
        FileNotFoundError: there is no such file.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(path)
    if path.is_dir() or (path.parent / FACTS).exists():
        found = _first_of(path if path.is_dir() else path.parent, limit, budget, say)
        if found is None:
            raise MinifyError(f"no graph that is recorded in {path} fails alone")
        return found
    return _program(path, limit, budget, say)


def minify_case(
    case: Case,
    known: Failure | None = None,
    *,
    limit: float = LIMIT,
    budget: float = BUDGET,
    say: Say = lambda text: None,
) -> Minified | None:
    """The smallest case that fails as ``case`` does; None when it does not fail.

    Args:
        case: a graph with inputs.
        known: how it is said to fail. Without that, or if that is no exception, it first runs in
            another process, and where that dies, so do all of its candidates.
        limit, budget, say: as for ``minify``.
    """
    try:
        find_backend(case.backend)
    except BackendNotFoundError:
        return None
    sure = known is not None and known.kind in ("compile", "run", "accuracy")
    failure = judge(case) if sure else judge_apart(case, limit=limit)
    if failure is None:
        return None
    apart = failure.kind in ("crash", "hang", "error")

    def judged(case: Case, options: Mapping[str, Any] | None = None) -> Failure | None:
        return judge_apart(case, options, limit=limit) if apart else judge(case, options)

    say(f"{failure.kind} failure in a graph of {len(case.ops)} operators")
    small = Reducer(judged, failure, budget, say).run(case)
    last = judged(small) or failure
    stage = blame(small, judged)
    about = [f"Stage at fault: {stage}."]
    if stage.options:
        about.append(f"It is right with options={dict(stage.options)}.")
    count = len(small.ops)
    size = "1 operator" if count == 1 else f"{count} operators"
    try:
        text = print_case(small, str(last), "\n".join([*about, _versions()]))
    except printing.UnprintableError as error:
        raise MinifyError(f"{size} fail, but {error} cannot be written to a file") from error
    again = outcome("small.py", text, Watch(), limit)
    if not _ends_so(again, last):
        note = "Compiled from this file it ends otherwise: what the tracer makes of it is another"
        text = text.replace(about[0], f"{about[0]}\n{note} graph. ({again})", 1)
    return Minified(text, last, str(stage), size)


def _ends_so(program: Failure | None, graph: Failure) -> bool:
    """Whether a program that compiles a graph ends as the graph's failure has it."""
    if program is None or program.kind in ("crash", "hang"):
        return program is not None and program.key == graph.key
    if graph.kind == "compile":
        return program.error == "BackendError" and graph.error in program.message
    return program.error == "VerificationError"


def _first_of(folder: Path, limit: float, budget: float, say: Say) -> Minified | None:
    """Of the first recorded graph that fails."""
    for program in records_in(folder):
        try:
            case, known = read_record(program)
        except Exception as error:  # noqa: BLE001 - others may be readable
            say(f"{program} cannot be read: {type(error).__name__}: {error}")
            continue
        found = minify_case(case, known, limit=limit, budget=budget, say=say)
        if found is not None:
            return found
    return None


def _program(path: Path, limit: float, budget: float, say: Say) -> Minified:
    text = path.read_text(encoding="utf-8")
    sys.path.insert(0, str(path.parent.absolute()))  # where its modules are
    strict = Watch(verify=True, errors=True)
    with tempfile.TemporaryDirectory(prefix="torchsmith-repro-") as folder:
        say("running the program, with every graph compared with eager")
        watch = Watch(folder=folder, verify=True, errors=True)
        failure = outcome(str(path), text, watch, limit)
        found = _first_of(Path(folder), limit, budget, say)
        if found is not None:
            return found
    plain = outcome(str(path), text, Watch(), limit)
    watch = strict if plain is None else Watch()
    failure = plain or failure
    if failure is None:
        raise MinifyError(f"{path} does not fail, and each of its graphs computes what eager does")
    wanted = failure.key

    def fails(text: str, watch: Watch = watch) -> bool:
        found = outcome(str(path), text, watch, limit)
        if found is None or found.key != wanted:
            return False
        alone = outcome(str(path), text, watch, limit, eager=True)
        return alone is None or alone.key != wanted

    if not fails(text):
        raise MinifyError(f"{path} fails without being compiled, too: {failure}")
    say(f"{failure}; no graph fails alone")
    stage = stage_of(str(path), text, watch, failure, limit)
    quick = replace(watch, backend="eager" if stage in ("tracer", "guards") else None)
    small = fewer_statements(text, partial(fails, watch=quick), say, budget)
    count = len(small.splitlines())
    about = f"{failure}\n\nStage at fault: {stage}.\n{_versions()}"
    if watch is strict:
        about += "\nIt fails with TORCHSMITH_STRICT=1 and compile(..., verify=True)."
    text = f"{printing.docstring(about)}\n\n{small}"
    return Minified(text, failure, stage, f"{count} lines")


def _versions() -> str:
    facts = environment()
    return f"torchsmith {facts['torchsmith']}, torch {facts['torch']}, Python {facts['python']}"
