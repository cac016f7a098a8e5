"""A fault of ours is an error in tests, not a slower graph. Makes the loop helpers importable."""

import os
import sys
from pathlib import Path

os.environ.setdefault("TORCHSMITH_STRICT", "1")
sys.path.insert(0, str(Path(__file__).parent))
