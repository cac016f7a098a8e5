"""What the READMEs show is true: Python blocks run, printed output matches, commands exist."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
READMES = [ROOT / "README.md", *sorted((ROOT / "packages").glob("*/README.md"))]
CODES = [ROOT / "docs" / "reference" / name for name in ("errors.md", "breaks.md")]
DOCS = [path for path in sorted((ROOT / "docs").rglob("*.md")) if path not in CODES]
PAGES = [*READMES, *DOCS, ROOT / "benchmarks" / "README.md"]
EXPLANATIONS = sorted((ROOT / "docs" / "explanation").glob("*.md"))
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
OUTPUT = re.compile(r"^```text\n(.*?)^```", re.M | re.S)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)


def blocks(path: Path, language: str) -> list[str]:
    return [body for kind, body in BLOCK.findall(path.read_text()) if kind == language]


def outputs(path: Path) -> list[str]:
    """The ``text`` blocks that follow a Python block with nothing in between."""
    text = path.read_text()
    found = list(BLOCK.finditer(text))
    return [
        output[2]
        for program, output in zip(found, found[1:], strict=False)
        if (program[1], output[1]) == ("python", "text")
        and not text[program.end() : output.start()].strip()
    ]


@pytest.mark.parametrize("path", EXPLANATIONS, ids=lambda p: p.name)
def test_explanations_show_what_their_programs_print(path: Path) -> None:
    programs = blocks(path, "python")
    assert 2 <= len(programs) <= 4
    assert len(outputs(path)) == len(blocks(path, "text")) == len(programs)


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda p: p.name)
def test_tutorials_show_all_that_they_print(path: Path) -> None:
    printing = [body for body in blocks(path, "python") if "print(" in body]
    assert len(printing) >= 3
    assert len(outputs(path)) == len(blocks(path, "text")) == len(printing)


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_python_blocks_run(path: Path, tmp_path: Path) -> None:
    """All Python blocks of a page run in order, as one program; ``text`` blocks right after a
    program are its exact output, in their order."""
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
    end, printed = 0, done.stdout.replace(f"{tmp_path}/", "")
    for output in outputs(path):
        start = printed.find(output.strip(), end)
        assert start >= 0, f"shown:\n{output}\nprinted:\n{printed}"
        end = start + len(output.strip())


@pytest.mark.parametrize("path", CODES, ids=lambda p: p.name)
def test_each_code_has_a_program_that_gives_it(path: Path, tmp_path: Path) -> None:
    """Each section stands alone on the site: its program prints exactly what is shown there."""
    runner = ROOT / "docs" / "tools" / "code_pages.py"
    done = subprocess.run(
        [sys.executable, str(runner), str(path)],
        capture_output=True, text=True, cwd=tmp_path, timeout=300,
        env={**os.environ, "TORCHSMITH_STRICT": "0"},  # as a user has it
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    parts = re.split(r"^## ", path.read_text(), flags=re.M)[1:]
    shown = {part.split()[0]: OUTPUT.findall(part) for part in parts}
    assert {code: [text] for code, text in json.loads(done.stdout).items()} == shown


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
