"""Records of failures: a folder each, with a file that runs alone and what a report needs."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import shutil
import time
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torchsmith_fx_backend import Settings
from torchsmith_guards.records import printing

from torchsmith._src.repro.cases import Case, evaluated, load_case, print_case
from torchsmith._src.repro.judge import Failure, run
from torchsmith.errors import RecordWarning

SMALL = 4096  # elements: inputs up to this size are recorded by value
LARGE = 1 << 24  # elements: beyond that they are not, even where values matter
PROGRAM, FACTS, GRAPH = "repro.py", "record.json", "graph.txt"
_warned: set[str] = set()
_numbers = itertools.count(1)


@dataclasses.dataclass
class Record:
    """The record of one graph, in ``folder``."""

    folder: Path
    case: Case
    failure: Failure | None = None

    def failed(self, failure: Failure) -> None:
        """Keep the record; the first failure counts."""
        if self.failure is None:
            self.failure = failure
            _guarded(self.folder, lambda: self.write("failed"))

    def failed_unless_eager_does(self, case: Case, inputs: Sequence[Any], error: Exception) -> None:
        """A compiled graph raised: that is a failure unless eager raises, too."""
        try:
            run(case.gm.forward, inputs)
        except Exception:  # noqa: BLE001 - the program's own error
            self.ran()
        else:
            self.failed(Failure("run", type(error).__name__, str(error)))

    def ran(self) -> None:
        """The graph ran: unless it failed otherwise there is nothing to record."""
        if self.failure is None and self.folder.exists():
            shutil.rmtree(self.folder, ignore_errors=True)

    def write(self, state: str) -> None:
        """Write everything."""
        case, failure = self.case, self.failure
        self.folder.mkdir(parents=True, exist_ok=True)
        values = failure is not None and failure.kind in ("accuracy", "run")
        texts = [_text(x, LARGE if values else SMALL) for x in case.inputs]
        case = case.with_inputs(texts, evaluated(texts, case.inputs))
        title = str(failure) if failure else "This graph was running when the process ended."
        (self.folder / GRAPH).write_text(f"{case.gm.graph}\n", encoding="utf-8")
        program: str | None = None
        try:
            program = print_case(case, title, "Recorded by TORCHSMITH_REPRO.")
            (self.folder / PROGRAM).write_text(program, encoding="utf-8")
        except printing.UnprintableError as error:
            title += f" (no program: {error})"
        facts = {
            "state": state,
            "title": title,
            "failure": dataclasses.asdict(failure) if failure else None,
            "place": _place(case),
            "inputs": [describe(x) for x in case.inputs],
            "backend": case.backend,
            "options": {k: repr(v) for k, v in case.options.items()},
            "contexts": case.contexts,
            "settings": dataclasses.asdict(Settings.from_environment()),
            "environment": environment(),
        }
        text = json.dumps(facts, indent=2, ensure_ascii=False)
        (self.folder / FACTS).write_text(text, encoding="utf-8")


def open_record(folder: str | None, case: Case) -> Record | None:
    """A record of ``case`` in ``folder``, in the state of one that crashes from here on."""
    if folder is None:
        return None
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{next(_numbers)}"
    record = Record(Path(folder) / name, case)
    return record if _guarded(Path(folder), lambda: record.write("running")) else None


def _guarded(folder: Path, action: Any) -> bool:
    """Do ``action``; where that fails, the program goes on with one warning."""
    try:
        action()
    except Exception as error:  # noqa: BLE001 - nobody's program stops at this
        if str(folder.parent) not in _warned:
            _warned.add(str(folder.parent))
            last = traceback.extract_tb(error.__traceback__)[-1]
            warnings.warn(
                f"[{RecordWarning.code}] failures are not recorded: {type(error).__name__}: "
                f"{error} ({Path(last.filename).name}:{last.lineno}). The program goes on; give "
                "TORCHSMITH_REPRO a folder that can be written and has room",
                RecordWarning,
                stacklevel=2,
            )
        return False
    return True


def records_in(folder: Path) -> list[Path]:
    """The programs recorded in ``folder`` or one of its folders, oldest first; failures before
    graphs that were running at the end."""
    found = sorted(folder.rglob(PROGRAM))
    return sorted(found, key=lambda path: facts_of(path).get("state") == "running")


def facts_of(program: Path) -> dict[str, Any]:
    """What is recorded beside ``program``."""
    try:
        found = json.loads((program.parent / FACTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def read_record(program: Path) -> tuple[Case, Failure | None]:
    """The case and the failure that are recorded in ``program``."""
    case = load_case(str(program), program.read_text(encoding="utf-8"))
    failure = facts_of(program).get("failure")
    return case, Failure(**failure) if failure else None


def describe(value: Any) -> dict[str, Any]:
    """The metadata of an input."""
    if not isinstance(value, torch.Tensor):
        return {"value": repr(value)}
    strided = value.layout is torch.strided
    return {
        "shape": list(value.shape),
        "stride": list(value.stride()) if strided else None,
        "dtype": str(value.dtype),
        "device": str(value.device),
        "layout": str(value.layout),
        "requires_grad": value.requires_grad,
    }


def environment() -> dict[str, str]:
    """What ``torchsmith env`` prints."""
    from torchsmith._src.commands import env  # the commands import what is here

    return env.environment()


def _text(value: Any, limit: int) -> str | None:
    """How to write an input: generated where it is too large to be written by value."""
    large = isinstance(value, torch.Tensor) and value.numel() > limit
    return printing.generated(value) if large else None


def _place(case: Case) -> str | None:
    """The user's line of the first operator."""
    for node in case.ops:
        trace = str(node.meta.get("stack_trace", "")).strip().splitlines()
        lines = [line.strip() for line in trace if line.strip().startswith("File ")]
        if lines:
            return lines[-1]
    return None
