"""Self-test of the isolation: plant an undeclared sibling import and expect the import to fail.

A copy of ``packages/guards`` gets ``import torchsmith_tracer`` in its ``__init__``; installed in an
environment that holds only what guards declares, importing it must fail; unplanted it must work.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def install_and_import(folder: Path) -> subprocess.CompletedProcess[str]:
    pip = [sys.executable, "-m", "pip", "install", "-q", "--force-reinstall", "--no-deps"]
    subprocess.run([*pip, str(folder)], check=True)
    command = [sys.executable, "-c", "import torchsmith_guards"]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder.parent)


def main() -> None:
    work = Path(sys.argv[1]) / "planted"
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(ROOT / "packages" / "guards", work)
    clean = install_and_import(work)
    assert clean.returncode == 0, clean.stderr
    init = work / "src" / "torchsmith_guards" / "__init__.py"
    init.write_text(init.read_text() + "\nimport torchsmith_tracer\n")
    planted = install_and_import(work)
    assert planted.returncode != 0, "the planted import went unnoticed"
    assert "No module named 'torchsmith_tracer'" in planted.stderr, planted.stderr
    print("isolation: a planted sibling import fails, as it must")


if __name__ == "__main__":
    main()
