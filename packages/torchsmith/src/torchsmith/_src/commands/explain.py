"""``torchsmith explain FILE::func``: the tracer's command with our backend as its default."""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from typing import Any


def add(commands: Any) -> None:
    """Only for the list of commands: ``run`` gets its arguments unparsed."""
    commands.add_parser("explain", help="what compiling a function gives: see explain --help")


def run(arguments: Sequence[str] | argparse.Namespace) -> int:
    """Run the tracer's command line with ``arguments``."""
    given = [] if isinstance(arguments, argparse.Namespace) else list(arguments)
    # our default first, so that a backend that is given wins
    sys.argv = ["torchsmith explain", "--backend", "smith", *given]
    try:
        runpy.run_module("torchsmith_tracer", run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0
