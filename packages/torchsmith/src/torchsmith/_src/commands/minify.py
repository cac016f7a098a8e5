"""``torchsmith minify PROGRAM``: a small file that fails as the program does."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from torchsmith._src.repro.minify import minify
from torchsmith._src.repro.reduce import BUDGET
from torchsmith._src.repro.sandbox import LIMIT
from torchsmith.errors import MinifyError


def add(commands: Any) -> None:
    """Put this command's parser there."""
    parser = commands.add_parser("minify", help="write a small file that fails as a program does")
    parser.add_argument("program", help="a failing program, or what TORCHSMITH_REPRO recorded")
    parser.add_argument("--out", default="small.py", help="the file to write (small.py)")
    limits = {"limit": (LIMIT, "one run may take"), "budget": (BUDGET, "minifying may take")}
    for name, (value, what) in limits.items():
        about = f"seconds that {what} ({value:g})"
        parser.add_argument(f"--{name}", type=float, default=value, help=about)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Minify; 0 a file was written, 1 there is nothing to minify, 2 usage."""

    def say(text: str) -> None:
        print(text, file=sys.stderr)

    try:
        found = minify(options.program, limit=options.limit, budget=options.budget, say=say)
        Path(options.out).write_text(found.text, encoding="utf-8")
    except (MinifyError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1 if isinstance(error, MinifyError) else 2
    first = str(found.failure).partition("\n")[0]
    print(f"{first}\nstage at fault: {found.stage}\n{options.out}: {found.size}")
    return 0
