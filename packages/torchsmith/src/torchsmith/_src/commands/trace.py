"""``torchsmith trace PATH``: what a trace folder (``TORCHSMITH_TRACE=folder``) tells, as tables."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from torchsmith_guards.records import ProcessTrace, read_trace, report
from torchsmith_tracer import trace_page


def add(commands: Any) -> None:
    """Put this command's parser there."""
    parser = commands.add_parser("trace", help="tables of a trace folder or file")
    parser.add_argument("path", help="a folder that TORCHSMITH_TRACE named, or one of its files")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--html", metavar="OUT", help="write a page for the browser instead")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print one report for each process; 1 if a compile failed."""
    traces = load(options.path)
    if traces is None:
        return 2
    if options.html is not None:
        return 0 if trace_page(options.path, options.html) else 2
    if options.json:
        print(json.dumps([plain(trace) for trace in traces], indent=2))
    else:
        print("\n\n".join(map(_shown, traces)))
    return int(any(frame.outcome == "failed" for trace in traces for frame in trace.frames))


def load(path: str) -> list[ProcessTrace] | None:
    """The traces at ``path``; None, and a message, where there are none."""
    try:
        return read_trace(path)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return None


def plain(trace: ProcessTrace) -> dict[str, object]:
    """Plain data."""
    return {
        "file": trace.file,
        "process": trace.process,
        "frames": [frame.to_json() for frame in trace.frames],
        "graphs": [graph.to_json() for graph in trace.graphs],
        "counters": trace.counters,
        "skipped": trace.skipped,
    }


def _shown(trace: ProcessTrace) -> str:
    about = trace.process
    argv = about.get("argv")
    command = " ".join(map(str, argv)) if isinstance(argv, list) else ""
    began = about.get("started")
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(began if type(began) is float else 0))
    lines = [f"Process {about.get('pid', '?')} from {when}: {command}".rstrip(": ")]
    if trace.skipped:
        lines.append(f"{trace.skipped} lines of {trace.file} cannot be read")
    return "\n".join([*lines, report(trace.frames, trace.graphs, trace.counters)])
