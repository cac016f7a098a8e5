"""Lets the tests here import the harness and the corpus that lie beside them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
