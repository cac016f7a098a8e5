"""Which folder of a package's ``_src`` may import which: one list, in which nothing is a circle.

A folder (or a file directly below ``_src``) imports only what stands above it, and only what its
line names. Imports for annotations alone may go the other way where ``TYPES`` says so. Values know
the trace, but neither the interpreter nor the graph, not even by their types.
"""

from __future__ import annotations

import ast
import fnmatch
import functools
import tomllib
from collections import defaultdict
from collections.abc import Iterator

import pytest
from sources import PACKAGES, ROOT, imports, product_files

RUNTIME = {
    "tracer": {
        "torch_private": "",
        "settings": "",
        "marks": "",
        "size_marks": "",
        "trace": "",
        "breaks": "",
        "frames": "",
        "effects": "breaks frames torch_private",
        "emitter": "breaks effects",
        "facts": "breaks frames torch_private",
        "values": "breaks effects emitter facts frames marks torch_private trace",
        "interp": "breaks frames trace values",
        "graph": "breaks torch_private trace values",
        "codegen": "breaks effects emitter frames values",
        "higher_order": "breaks effects emitter torch_private trace values",
        "build": "breaks frames graph higher_order marks size_marks torch_private trace values",
        "compilation": "build effects facts graph interp values",
        "page": "breaks frames torch_private",
        "explanation": "breaks page",
        "records": "breaks frames page torch_private",
        "regions": "breaks build codegen compilation effects emitter facts frames marks records "
        "settings torch_private values",
        "api": "breaks explanation marks regions settings values",
    },
}
TYPES = {
    "tracer": {
        "trace": "effects emitter facts frames settings values",
        "breaks": "frames values",
        "frames": "values",
        "effects": "values",
        "emitter": "values",
        "facts": "trace values",
        "graph": "compilation frames",
        "codegen": "compilation regions",
        "build": "compilation",
        "compilation": "frames settings",
        "records": "regions",
    },
}


def _annotations_only(tree: ast.AST) -> Iterator[ast.If]:
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield node


@functools.cache
def _edges(package: str) -> tuple[dict[str, dict[str, str]], dict[str, dict[str, str]]]:
    """Folder -> folder -> a place: imports that run, and those for annotations alone."""
    runtime: dict[str, dict[str, str]] = defaultdict(dict)
    types: dict[str, dict[str, str]] = defaultdict(dict)
    top = f"{PACKAGES[package]}._src."
    base = ROOT / "packages" / package / "src" / PACKAGES[package] / "_src"
    folders = {path.stem for path in base.iterdir()}
    for path in product_files(package):
        if base not in path.parents:
            continue
        own = path.relative_to(base).parts[0].removesuffix(".py")
        tree = ast.parse(path.read_text())
        blocks = list(_annotations_only(tree))
        quiet = {entry for block in blocks for entry in imports(block)}
        for line, dotted in imports(tree):
            folder = dotted.removeprefix(top).partition(".")[0] if dotted.startswith(top) else own
            if folder != own and folder in folders:
                found = types if (line, dotted) in quiet else runtime
                found[own].setdefault(folder, f"{path.relative_to(base)}:{line}")
    return runtime, types


def _listed(text: str) -> set[str]:
    return set(text.split())


@pytest.mark.parametrize("package", RUNTIME)
def test_folders_import_what_is_listed(package: str) -> None:
    runtime, types = _edges(package)
    for own, found in runtime.items():
        extra = {k: v for k, v in found.items() if k not in _listed(RUNTIME[package][own])}
        assert not extra, f"{own}/ imports {extra}"
    for own, found in types.items():
        allowed = _listed(RUNTIME[package][own] + " " + TYPES[package].get(own, ""))
        extra = {k: v for k, v in found.items() if k not in allowed}
        assert not extra, f"{own}/ imports for annotations {extra}"


@pytest.mark.parametrize("package", RUNTIME)
def test_the_list_has_no_circle_and_nothing_unused(package: str) -> None:
    runtime, types = _edges(package)
    above: set[str] = set()
    for own, text in RUNTIME[package].items():
        assert _listed(text) <= above, f"{own} may import only what stands above it"
        assert _listed(text) <= set(runtime[own]), f"{own}: drop what is not imported any more"
        assert _listed(TYPES[package].get(own, "")) <= set(types[own]), f"{own}: the same"
        above.add(own)
    assert above >= set(runtime) | set(types)


def test_values_know_the_trace_only_by_its_protocol() -> None:
    hidden = {"interp", "graph", "build", "compilation", "higher_order", "regions"}
    known = _listed(RUNTIME["tracer"]["values"] + " " + TYPES["tracer"].get("values", ""))
    assert not hidden & (known | _listed(TYPES["tracer"]["trace"]))


def test_no_folder_of_tests_is_left_out() -> None:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    tests = [p for pattern in ("packages/*/tests", "tests") for p in ROOT.glob(pattern)]
    files = [file.relative_to(ROOT) for folder in tests for file in folder.rglob("test_*.py")]
    folders = {part for file in files for part in file.parts[:-1]}
    assert "build" in folders  # a name that pytest leaves out where nothing is said
    patterns = options["norecursedirs"]
    assert not [f for f in folders for p in patterns if fnmatch.fnmatch(f, p)]
