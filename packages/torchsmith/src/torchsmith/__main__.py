"""Command line: ``torchsmith explain|trace|recompiles|minify|env``; see ``_src/commands``."""

from __future__ import annotations

import sys

from torchsmith._src.commands import main

if __name__ == "__main__":
    sys.exit(main())
