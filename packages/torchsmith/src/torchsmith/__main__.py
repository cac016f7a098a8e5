"""Command line: ``torchsmith explain FILE::func`` and ``torchsmith env``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import runpy
import shutil
import sys
from collections.abc import Sequence
from importlib import metadata

PACKAGES = (
    "torchsmith",
    "torchsmith-guards",
    "torchsmith-tracer",
    "torchsmith-fx-backend",
    "torchsmith-kernels",
    "torch",
    "triton",
)


def environment() -> dict[str, str]:
    """Versions and places that decide how programs are compiled on this machine."""
    candidates = (os.environ.get("CC"), "cc", "gcc", "clang")
    compilers = (path for name in candidates if name and (path := shutil.which(name)))
    facts = {"python": platform.python_version(), "platform": platform.platform()}
    for name in PACKAGES:
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            facts[name] = "not installed"
    facts["C compiler"] = next(compilers, "none found")
    facts["cache"] = os.environ.get("TORCHSMITH_CACHE_DIR", "default")
    return facts


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code (0 ok, 1 finding, 2 usage)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["explain"]:
        # the tracer's own command, with our default backend first so that a given one wins
        sys.argv = ["torchsmith explain", "--backend", "smith", *arguments[1:]]
        try:
            runpy.run_module("torchsmith_tracer", run_name="__main__")
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else 1
        return 0
    parser = argparse.ArgumentParser(prog="torchsmith", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("explain", help="what compiling a function gives: see explain --help")
    env = commands.add_parser("env", help="versions and places")
    env.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    facts = environment()
    if options.json:
        print(json.dumps(facts, indent=2))
    else:
        print("\n".join(f"{name}: {value}" for name, value in facts.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
