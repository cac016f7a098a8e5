"""Makes ``samples`` importable; without the extra ``gpu`` only what needs no triton is tested."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

if find_spec("triton") is None:
    compiled = ["test_triton_compile.py", "test_triton_pool.py"]
    collect_ignore = [*compiled, "test_interpreted.py", "interpreted"]
