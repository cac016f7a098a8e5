"""``torchsmith recompiles PATH``: which functions of a trace were compiled again, and why."""

from __future__ import annotations

import argparse
import json
from typing import Any

from torchsmith_guards.records import recompiles

from torchsmith._src.commands.trace import load


def add(commands: Any) -> None:
    """Put this command's parser there."""
    parser = commands.add_parser("recompiles", help="what was compiled again, why, what to do")
    parser.add_argument("path", help="a folder that TORCHSMITH_TRACE named, or one of its files")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the summary of all processes together; 1 if there are recompiles."""
    traces = load(options.path)
    if traces is None:
        return 2
    frames = [frame for trace in traces for frame in trace.frames]
    again = [frame for frame in frames if frame.recompiled]
    if options.json:
        rows = [
            {
                "function": frame.function,
                "file": frame.file,
                "line": frame.line,
                "compile_id": frame.compile_id,
                "seconds": frame.seconds,
                "reasons": [reason.to_json() for reason in frame.recompiled],
            }
            for frame in again
        ]
        print(json.dumps(rows, indent=2))
    else:
        print(recompiles(frames))
    return int(bool(again))
