"""These tests run generated kernels: on a GPU, or else under Triton's interpreter.

The interpreter must be switched on before triton is imported, so on a machine without a GPU they
run in a process of their own, which ``test_interpreted.py`` starts.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

if os.environ.get("TRITON_INTERPRET") != "1" and not torch.cuda.is_available():
    collect_ignore_glob = ["test_*.py"]
