"""A fault of ours is an error in tests, not a slower graph."""

import os

os.environ.setdefault("TORCHSMITH_STRICT", "1")
