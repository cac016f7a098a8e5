"""The command line: one file for each subcommand of ``torchsmith``.

In: ``add(commands)`` of each file puts its parser and its ``run`` there. Out: an exit code (0 ok,
1 finding, 2 usage), results on standard output, messages on standard error. A new subcommand is a
file here and its name in ``COMMANDS``. Read ``trace.py`` for an example.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from torchsmith._src.commands import env, explain, minify, recompiles, trace

COMMANDS = (explain, trace, recompiles, minify, env)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["explain"]:
        return explain.run(arguments[1:])  # the tracer's own command has its own parser
    parser = argparse.ArgumentParser(
        prog="torchsmith", description="Ask what the compiler did, and on what machine."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for command in COMMANDS:
        command.add(commands)
    options = parser.parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    return run(options)
