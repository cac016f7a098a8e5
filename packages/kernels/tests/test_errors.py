"""Errors: codes and classes are those that the README lists."""

from __future__ import annotations

import builtins
import re
from pathlib import Path

import pytest
from torchsmith_kernels import KernelsError, errors

README = Path(__file__).parents[1] / "README.md"
LISTED = re.findall(
    r"^\| (TS-K\d+) \| `(\w+)`(?: \(also an? `(\w+)`\))? \|", README.read_text(), re.MULTILINE
)


def test_the_readme_lists_every_error() -> None:
    classes = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    codes = {
        kind.code: kind.__name__
        for kind in classes
        if issubclass(kind, KernelsError) and kind is not KernelsError
    }
    assert {code: name for code, name, _ in LISTED} == codes


@pytest.mark.parametrize(("code", "name", "also"), LISTED)
def test_messages_begin_with_the_code(code: str, name: str, also: str) -> None:
    kind = getattr(errors, name)
    assert issubclass(kind, RuntimeError)
    assert not also or issubclass(kind, getattr(builtins, also))
    given = {"op": "op", "argument": "input", "given": 1, "accepted": "2", "message": "no"}
    error = kind(**given)
    assert str(error).startswith(f"[{code}] ")
    assert given.items() <= error.details.items()
