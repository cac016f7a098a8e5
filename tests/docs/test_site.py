"""The built site has a place for every public name, and loads nothing from elsewhere."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "build" / "site"
# what makes a browser fetch something by itself; plain links to elsewhere are fine
FETCHED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^>]*>"
    r"|<link\b(?=[^>]*\brel=[\"']?(?:stylesheet|preconnect|preload))"
    r"[^>]*\bhref=[\"']?(?:https?:)?//[^>]*>"
)


def public_modules() -> list[Path]:
    """The modules of all packages that are not below ``_src``, by their files."""
    found = []
    for top in sorted((ROOT / "packages").glob("*/src/*/__init__.py")):
        found += [top, *top.parent.glob("[!_]*.py")]
    return found


def public_names(path: Path) -> list[str]:
    """``__all__`` of a module, or the classes of one that has none."""
    tree = ast.parse(path.read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    return [node.name for node in tree.body if isinstance(node, ast.ClassDef)]


def dotted(path: Path) -> str:
    """``torchsmith_guards.errors`` of a file of a package."""
    parts = path.relative_to(next(p for p in path.parents if p.name == "src")).parts
    return ".".join(parts).removesuffix(".py").removesuffix(".__init__")


def pages() -> str:
    return "\n".join(p.read_text() for p in sorted(SITE.glob("reference/api/*.html")))


@pytest.mark.parametrize("path", public_modules(), ids=dotted)
def test_every_public_name_has_a_place(path: Path) -> None:
    names = public_names(path)
    anchors = set(re.findall(r'\bid="([\w.]+)"', pages()))
    assert [name for name in names if f"{dotted(path)}.{name}" not in anchors] == []


def test_every_code_has_a_page_of_its_own() -> None:
    """With a program that is whole: it begins with imports."""
    for listed in ("errors", "breaks"):
        text = (ROOT / "docs" / "reference" / f"{listed}.md").read_text()
        codes = re.findall(r"^## (TS-\w+)", text, re.M)
        assert len(codes) > 20
        for code in codes:
            made = (SITE / "reference" / "codes" / f"{code}.html").read_text()
            assert f'href="../{listed}.html"' in made
            assert made.index(">contextlib<") < made.index(">Fix: ")
            assert (
                f'href="codes/{code}.html"' in (SITE / "reference" / f"{listed}.html").read_text()
            )


def test_no_page_loads_anything_from_elsewhere() -> None:
    html = sorted(SITE.rglob("*.html"))
    assert len(html) > 20
    assert {p.name: found for p in html if (found := FETCHED.findall(p.read_text()))} == {}


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://cdn.example/x.js"></script>',
        "<script defer src=//cdn.example/x.js></script>",
        '<link rel="stylesheet" href="https://fonts.example/css">',
        '<link href="https://fonts.example" rel="preconnect">',
    ],
)
def test_what_is_loaded_from_elsewhere_is_seen(text: str) -> None:
    assert FETCHED.search(text)
    assert not FETCHED.search(re.sub(r"(https:)?//[a-z]+\.example", "assets", text))
