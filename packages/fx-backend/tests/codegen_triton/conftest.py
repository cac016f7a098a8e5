"""Makes ``samples`` importable; without the extra ``gpu`` only what needs no triton is tested."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

if find_spec("triton") is None:
    collect_ignore = ["test_triton_compile.py", "test_interpreted.py", "interpreted"]
