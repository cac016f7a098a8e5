"""What the repository's own checks read: source files and their imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "guards": "torchsmith_guards",
    "tracer": "torchsmith_tracer",
    "kernels": "torchsmith_kernels",
    "fx-backend": "torchsmith_fx_backend",
    "torchsmith": "torchsmith",
}


def product_files(package: str) -> list[Path]:
    """The Python files of a package that its wheel holds."""
    return sorted((ROOT / "packages" / package / "src").rglob("*.py"))


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted module) of every import, ``from a import b`` also as ``a.b``, and of
    every ``import_module("literal")``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Call) and node.args:
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            name = node.func.id if isinstance(node.func, ast.Name) else name
            first = node.args[0]
            if name in ("import_module", "__import__") and isinstance(first, ast.Constant):
                yield node.lineno, str(first.value)


def is_there(place: str, folder: Path) -> bool:
    """Whether ``folder`` has what a table of tests names: ``file.py::beginning of a test's name``,
    with the beginning of a text that the test's file holds in brackets behind it."""
    test, _, text = place.partition(" [")
    file, _, name = test.partition("::")
    if not (folder / file).is_file():
        return False
    tree = ast.parse((folder / file).read_text())
    names = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    has_text = any(isinstance(t, str) and t.startswith(text.rstrip("]")) for t in texts)
    return any(n.startswith(name) for n in names) and (not text or has_text)


def attribute_chains(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, ``a.b.c``) of every attribute access that starts at a plain name."""
    for node in ast.walk(tree):
        parts: list[str] = []
        inner: ast.AST = node
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if parts and isinstance(inner, ast.Name):
            yield node.lineno, ".".join([inner.id, *reversed(parts)])
