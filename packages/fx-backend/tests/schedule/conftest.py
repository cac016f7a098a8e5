import sys
from pathlib import Path

# Test modules are imported by path (importlib mode), so shared helpers need a place on sys.path.
sys.path.insert(0, str(Path(__file__).parent))
