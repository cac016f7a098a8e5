"""Each error and each code has its place in the reference, with a program and what to do.

That the programs print what is shown there is tested with the other pages, in ``tests/readme``.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"
CODE = re.compile(r"TS-[A-Z]\d{3}")


def error_classes() -> dict[str, tuple[str, str]]:
    """code -> class and first paragraph of its docstring, of all ``errors.py``; without bases."""
    found = {}
    for path in sorted((ROOT / "packages").glob("*/src/*/errors.py")):
        for node in ast.parse(path.read_text()).body:
            for line in node.body if isinstance(node, ast.ClassDef) else ():
                code = re.fullmatch(r"code(?:: .*)? = '(TS-.*)'", ast.unparse(line))
                if code is not None and not code[1].endswith("000"):
                    about = (ast.get_docstring(node) or "").partition("\n\n")[0]
                    found[code[1]] = (node.name, " ".join(about.replace("``", "`").split()))
    return found


def sections(page: str) -> dict[str, str]:
    """code -> the text below its heading, heading included."""
    parts = re.split(r"^## ", (REFERENCE / page).read_text(), flags=re.M)[1:]
    return {part.split()[0]: part for part in parts}


ENTRIES = sections("errors.md") | sections("breaks.md")


@pytest.mark.parametrize("code", error_classes())
def test_an_error_has_its_class_and_what_it_means(code: str) -> None:
    name, about = error_classes()[code]
    text = sections("errors.md")[code]
    assert text.startswith(f"{code} {name}\n\n{about}\n"), f"renew it: {name}: {about}"


@pytest.mark.parametrize("code", ENTRIES)
def test_an_entry_has_a_program_its_output_and_a_fix(code: str) -> None:
    text = ENTRIES[code]
    shape = r".*^```python\n.+?^```\n\n```text\n(.+?)^```\n\nFix: \S.*"
    found = re.fullmatch(shape, text, re.M | re.S)
    assert found, text
    assert f"[{code}]" in found[1], "the output names the code"


def test_every_code_in_the_sources_has_a_place() -> None:
    used = {
        code
        for path in (ROOT / "packages").glob("*/src/**/*.py")
        for code in CODE.findall(path.read_text())
    }
    assert len(used) > 60
    named = set(sections("errors.md")) | set(sections("breaks.md"))
    bases = set(CODE.findall((REFERENCE / "errors.md").read_text().partition("\n## ")[0]))
    assert used - named - bases == set()
    assert named - used == set(), "an entry for what is not there any more"
