"""``TORCHSMITH_DEBUG=folder``: every record as a folder of files, what failed as a crash record.

::

    folder/run_2026_01_31_12_00_00_123456-pid_7/
        log.txt                        one line for each record, and what our loggers say
        frame_0_1-forward/             compile 0/1
            user.py guards.py body.py  the function, its checks, what runs instead of it
            record.json report.txt
        graph_3-0_1-inference/
            graph.py functional.py     as captured, and after the passes: run by themselves
            plan.txt loops.txt wrapper.py k_0123.c
            record.json
        errors/forward-BackendError-12.txt

A run has one folder, which is made when the first file is written. What cannot be written costs
one warning.
"""

from __future__ import annotations

import json
import linecache
import logging
import os
import re
import time
import traceback
import warnings
from datetime import datetime
from pathlib import Path

from torchsmith_guards._src.records import tables
from torchsmith_guards._src.records.rows import FrameRecord, GraphRecord, Record
from torchsmith_guards._src.records.trace_file import TraceWarning, unwritable

VARIABLE = "TORCHSMITH_DEBUG"
_SUFFIXES = {"user": ".py", "guards": ".py", "body": ".py", "wrapper": ".py", "page": ".json"}
_LANGUAGES = {"c": ".c", "triton": ".py"}
_folders: dict[tuple[str, int], Path] = {}
_broken: set[str] = set()


def debug_folder() -> Path | None:
    """This process's folder below the one that the environment names; only the path is made."""
    root = os.environ.get(VARIABLE)
    if not root or root in _broken:
        return None
    key = root, os.getpid()
    if key not in _folders:
        stamp = datetime.now().strftime("%Y_%m_%d_%H_%M_%S_%f")
        _folders[key] = Path(root) / f"run_{stamp}-pid_{os.getpid()}"
    return _folders[key]


def write_record(record: Record, error: BaseException | None = None) -> None:
    """Write the files of one record, and a crash record if ``error`` ended it."""
    folder = debug_folder()
    if folder is None:
        return
    try:
        _log(folder, record)
        place = folder / _name(record)
        place.mkdir(parents=True, exist_ok=True)
        for name, text in _files(record).items():
            (place / name).write_text(text, encoding="utf-8", errors="backslashreplace")
        if error is not None and (isinstance(record, FrameRecord) or not record.compile_id):
            write_crash(record, error)  # a graph's is told with its frame
    except OSError as problem:
        _give_up(problem)


def write_crash(record: Record | None, error: BaseException, where: str = "") -> Path | None:
    """A crash record: the error, the user's line underlined, the traceback. One that is there
    is kept. ``where``: ``file:line`` of the user's code, if the record does not say it."""
    folder = debug_folder()
    if folder is None:
        return None
    line = where or getattr(record, "failure_line", "")
    if not line and isinstance(record, FrameRecord):
        line = f"{record.file}:{record.line}"
    function = record.function if isinstance(record, FrameRecord) else getattr(record, "name", "")
    number = line.rpartition(":")[2] or "0"
    name = _plain(f"{function}-{type(error).__name__}-{number}") + ".txt"
    path = folder / "errors" / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8", errors="backslashreplace") as file:
            file.write(_crash_text(record, error, line))
    except FileExistsError:
        logging.getLogger("torchsmith").info("kept the crash record that is there: %s", path)
    except OSError as problem:
        _give_up(problem)
        return None
    return path


def _crash_text(record: Record | None, error: BaseException, line: str) -> str:
    parts = [f"{type(error).__name__}: {error}", "", f"at {line}", underlined(line), ""]
    if record is not None:
        parts += [f"compile {record.compile_id}, after {record.seconds:.3f} s, in"]
        parts += [f"  {phase.name}: {phase.seconds:.3f} s" for phase in record.phases] + [""]
    return "\n".join([*parts, *traceback.format_exception(error)])


def underlined(line: str) -> str:
    """The source line at ``file:line`` with a line of carets below; empty without source."""
    file, _, number = line.rpartition(":")
    text = linecache.getline(file, int(number)).rstrip() if number.isdigit() else ""
    bare = text.lstrip()
    return f"{text}\n{' ' * (len(text) - len(bare))}{'^' * len(bare)}" if bare else ""


def _give_up(problem: OSError) -> None:
    root = os.environ.get(VARIABLE, "")
    if root not in _broken:
        _broken.add(root)
        text = unwritable("debug files", root, problem, VARIABLE)
        warnings.warn(text, TraceWarning, stacklevel=2)


def _name(record: Record) -> str:
    number = record.compile_id.replace("/", "_")
    if isinstance(record, FrameRecord):
        return _plain(f"frame_{number}-{record.function}")
    return _plain(f"graph_{record.graph_id}-{number or 'alone'}-{record.kind}")


def _plain(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name)[:120]


def _files(record: Record) -> dict[str, str]:
    out = {
        name if "." in name else name + _SUFFIXES.get(name, ".txt"): text
        for name, text in record.texts.items()
        if text and f"{name}.py" not in record.texts
    }
    bare = record.to_json()
    bare["texts"] = bare["lines"] = {}
    if isinstance(record, GraphRecord):
        for kernel in record.kernels:
            if kernel.source:
                out[_plain(kernel.name) + _LANGUAGES.get(kernel.language, ".txt")] = kernel.source
    else:
        parts = [tables.frames([record]), tables.breaks([record]), tables.recompiles([record])]
        parts.append(record.note)
        out["report.txt"] = "\n\n".join(part for part in parts if part) + "\n"
    out["record.json"] = json.dumps(bare, indent=1, default=repr)
    return out


def _log(folder: Path, record: Record) -> None:
    """A line in the log of the run, which our loggers write to as well."""
    log = logging.getLogger("torchsmith")
    path = folder / "log.txt"
    if not any(getattr(h, "baseFilename", None) == str(path.absolute()) for h in log.handlers):
        for old in [h for h in log.handlers if getattr(h, "torchsmith_debug", False)]:
            log.removeHandler(old)  # of another folder, or of the process that this was forked from
            old.close()
        folder.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(path, encoding="utf-8", errors="backslashreplace")
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
        handler.torchsmith_debug = True  # type: ignore[attr-defined]
        log.addHandler(handler)
    when = time.strftime("%H:%M:%S", time.localtime(record.started))
    with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(f"{when} {_name(record)} {record.outcome} {record.seconds:.3f} s\n")
