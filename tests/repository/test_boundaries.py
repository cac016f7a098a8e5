"""No package reaches what the architecture forbids; each third-party import is declared."""

from __future__ import annotations

import ast
import re
import sys
import tomllib

import pytest
from sources import PACKAGES, ROOT, attribute_chains, imports, product_files

FORBIDDEN = (
    "torch._dynamo",
    "torch._inductor",
    "torch._functorch",
    "torch.fx.experimental.proxy_tensor",
    "torch.fx.experimental.symbolic_shapes",
    "torch._C._dynamo",
    "torch._export",
    "torch._guards",
)


# 3.13 has modules that the oldest supported Python does not list
STDLIB = sys.stdlib_module_names | {"_suggestions"}


def _hits(dotted: str) -> bool:
    return any(dotted == name or dotted.startswith(name + ".") for name in FORBIDDEN)


@pytest.mark.parametrize("package", PACKAGES)
def test_the_compile_stack_that_we_replace_is_not_used(package: str) -> None:
    found = []
    for path in product_files(package):
        tree = ast.parse(path.read_text(), str(path))
        for line, dotted in [*imports(tree), *attribute_chains(tree)]:
            if _hits(dotted):
                found.append(f"{path.relative_to(ROOT)}:{line}: {dotted}")
    assert found == []


@pytest.mark.parametrize("package", PACKAGES)
def test_siblings_are_imported_by_top_level_name_only(package: str) -> None:
    own = PACKAGES[package]
    siblings = set(PACKAGES.values()) - {own}
    found = []
    for path in product_files(package):
        for line, dotted in imports(ast.parse(path.read_text())):
            top, _, rest = dotted.partition(".")
            if top in siblings and rest.startswith("_"):
                found.append(f"{path.relative_to(ROOT)}:{line}: {dotted}")
    assert found == []


def _declared(package: str) -> set[str]:
    """The modules that a package may import: itself and what its project file names."""
    project = tomllib.loads((ROOT / "packages" / package / "pyproject.toml").read_text())["project"]
    extras = project.get("optional-dependencies", {}).values()
    return {PACKAGES[package]} | {
        re.split(r"[\s;<>=!~\[]", text)[0].replace("-", "_").lower()
        for text in [*project["dependencies"], *(d for group in extras for d in group)]
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_tests_import_no_sibling_that_is_not_declared(package: str) -> None:
    """Each package is tested in an environment without the others."""
    foreign = set(PACKAGES.values()) - _declared(package)
    found = []
    for path in sorted((ROOT / "packages" / package / "tests").rglob("*.py")):
        for line, dotted in imports(ast.parse(path.read_text())):
            if dotted.partition(".")[0] in foreign:
                found.append(f"{path.relative_to(ROOT)}:{line}: {dotted}")
    assert found == []


@pytest.mark.parametrize("package", PACKAGES)
def test_third_party_imports_are_declared(package: str) -> None:
    declared = _declared(package)
    undeclared = []
    for path in product_files(package):
        for line, dotted in imports(ast.parse(path.read_text())):
            top = dotted.partition(".")[0]
            if top in STDLIB or top in declared:
                continue
            undeclared.append(f"{path.relative_to(ROOT)}:{line}: {top}")
    assert undeclared == []


def test_the_check_sees_every_way_to_import() -> None:
    code = (
        "import torch._dynamo\nfrom torch import _inductor\n"
        "from importlib import import_module\nimport_module('torch._guards')\n"
        "import torch\ntorch._functorch.config\n"
    )
    tree = ast.parse(code)
    lines = {line for line, dotted in [*imports(tree), *attribute_chains(tree)] if _hits(dotted)}
    assert lines == {1, 2, 4, 6}
