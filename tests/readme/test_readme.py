"""What the READMEs show is true: Python blocks run, printed output matches, commands exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
READMES = [ROOT / "README.md", *sorted((ROOT / "packages").glob("*/README.md"))]
PAGES = [*READMES, *sorted((ROOT / "docs").rglob("*.md")), ROOT / "benchmarks" / "README.md"]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)


def blocks(path: Path, language: str) -> list[str]:
    return [body for kind, body in BLOCK.findall(path.read_text()) if kind == language]


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_python_blocks_run(path: Path, tmp_path: Path) -> None:
    """All Python blocks of a page run in order, as one program; ``text`` blocks right after a
    program are its exact output."""
    program = "\n".join(blocks(path, "python"))
    if not program:
        assert path.exists()
        return
    file = tmp_path / "block.py"
    file.write_text(program)
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, cwd=tmp_path, timeout=300
    )
    assert done.returncode == 0, done.stderr
    shown = re.findall(r"^```python\n.*?^```\n+```text\n(.*?)^```", path.read_text(), re.M | re.S)
    for output in shown:
        assert output.strip() in done.stdout, f"shown:\n{output}\nprinted:\n{done.stdout}"


@pytest.mark.parametrize("path", READMES, ids=lambda p: str(p.relative_to(ROOT)))
def test_nox_sessions_that_are_named_exist(path: Path) -> None:
    noxfile = (ROOT / "noxfile.py").read_text()
    for name in re.findall(r"nox -s ([\w-]+)", path.read_text()):
        pattern = rf'def {name.replace("-", "_")}\(session|name="{name}"'
        assert re.search(pattern, noxfile), name


def test_the_front_page_opens_with_the_two_commands() -> None:
    first = blocks(ROOT / "README.md", "bash")[0]
    assert "pip install nox && nox -s demo" in first
    assert "nox -s tests" in first


PROGRAMS = [*sorted((ROOT / "examples").glob("*.py")), ROOT / "docs" / "from_scratch.py"]


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.name)
def test_examples_run(path: Path) -> None:
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
