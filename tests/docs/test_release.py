"""The rehearsal of a release finds what is wrong with wheels, pins and changelogs."""

from __future__ import annotations

import importlib.util
import re
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("release", ROOT / "docs" / "tools" / "release.py")
assert spec is not None and spec.loader is not None
release = importlib.util.module_from_spec(spec)
sys.modules["release"] = release  # dataclasses look their module up
spec.loader.exec_module(release)

PROJECT = """
[project]
name = "{name}"
version = "{version}"
description = "A package."
requires-python = ">=3.11,<3.14"
license = "Apache-2.0"
dependencies = [{requirements}]

[tool.towncrier]
directory = "changes"
filename = "CHANGELOG.md"
"""
LEAF = ("sm-leaf", "0.1.0", ["torch>=2.11"])
FRONT = ("sm-front", "0.3.0", ["sm-leaf>=0.1,<0.2", "torch>=2.11"])


def make(root: Path, *given: tuple[str, str, list[str]]) -> None:
    """A repository with packages that are as they should be, and their wheels."""
    (root / "dist").mkdir(exist_ok=True)
    (root / "LICENSE").write_text("Terms.")
    for name, version, requirements in given:
        module = name.replace("-", "_")
        folder = root / "packages" / name
        for path in (folder / "changes", folder / "src" / module):
            path.mkdir(parents=True, exist_ok=True)
        quoted = ", ".join(f'"{each}"' for each in requirements)
        text = PROJECT.format(name=name, version=version, requirements=quoted)
        (folder / "pyproject.toml").write_text(text)
        (folder / "changes" / "+first.feature.md").write_text(f"What {name} does.")
        (folder / "src" / module / "__init__.py").write_text(f'__version__ = "{version}"\n')
        lines = ["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}"]
        lines += ["Summary: A package.", "License-Expression: Apache-2.0"]
        lines += ["Requires-Python: <3.14,>=3.11", *(f"Requires-Dist: {r}" for r in requirements)]
        with zipfile.ZipFile(root / "dist" / f"{module}-{version}-py3-none-any.whl", "w") as wheel:
            info = f"{module}-{version}.dist-info"
            wheel.writestr(f"{info}/METADATA", "\n".join([*lines, "", "Text"]))
            wheel.writestr(f"{info}/licenses/LICENSE", "Terms.")
            wheel.writestr(f"{module}/__init__.py", "")
            wheel.writestr(f"{module}/py.typed", "")


def found(root: Path, *tags: str) -> list[str]:
    return list(release.problems(root, root / "dist", set(tags)))


def test_what_is_right_has_no_problems(tmp_path: Path) -> None:
    make(tmp_path, FRONT, LEAF)
    assert found(tmp_path) == []
    assert list(release.packages(tmp_path)) == ["sm-leaf", "sm-front"]


def rewrite(path: str, old: str, new: str) -> Callable[[Path], None]:
    def act(root: Path) -> None:
        file = root / path
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))

    return act


def write(path: str, text: str) -> Callable[[Path], None]:
    return lambda root: (root / path).write_text(text) and None


def add_to_wheel(path: str) -> Callable[[Path], None]:
    def act(root: Path) -> None:
        with zipfile.ZipFile(next((root / "dist").glob("sm_leaf-*.whl")), "a") as wheel:
            wheel.writestr(path, "")

    return act


def change_wheel(name: str, old: str, new: str) -> Callable[[Path], None]:
    def act(root: Path) -> None:
        path = next((root / "dist").glob("sm_leaf-*.whl"))
        with zipfile.ZipFile(path) as wheel:
            files = {each: wheel.read(each).decode() for each in wheel.namelist()}
        (place,) = [each for each in files if each.endswith(name)]
        assert old in files[place]
        files[place] = files[place].replace(old, new)
        with zipfile.ZipFile(path, "w") as wheel:
            for each, text in files.items():
                wheel.writestr(each, text)

    return act


LEAF_TOML, FRONT_TOML = "packages/sm-leaf/pyproject.toml", "packages/sm-front/pyproject.toml"
FAULTS = [
    (rewrite(LEAF_TOML, '"0.1.0"', '"0.2.0"'), "sm-front: sm-leaf<0.2,>=0.1 does not accept 0.2.0"),
    (rewrite(LEAF_TOML, '"0.1.0"', '"0.1.1"'), "sm-leaf: the wheel's version is 0.1.0, not 0.1.1"),
    (rewrite(LEAF_TOML, '"0.1.0"', '"0.1.1"'), "sm-leaf: __version__ is 0.1.0"),
    (rewrite(FRONT_TOML, "sm-leaf>=0.1,<0.2", "sm-leaf"), "required without a version"),
    (rewrite(FRONT_TOML, "torch>=2.11", "torch>=2.12"), "packages disagree on torch"),
    (rewrite(FRONT_TOML, "<3.14", "<3.15"), "packages disagree on Python"),
    (rewrite(LEAF_TOML, "A package.", "Another."), "sm-leaf: the wheel's summary is A package."),
    (rewrite(LEAF_TOML, 'license = "Apache-2.0"\n', ""), "does not say license_expression"),
    (write("packages/sm-leaf/changes/+a.bug.md", "A."), "changes/+a.bug.md is of no known kind"),
    (write("packages/sm-leaf/changes/+a.fix.md", " "), "changes/+a.fix.md is empty"),
    (write("dist/sm_leaf-0.0.9-py3-none-any.whl", ""), "there should be one wheel"),
    (change_wheel("METADATA", "Text", "[a](../b.md)"), "sm-leaf: the description links ../b.md"),
    (change_wheel("LICENSE", "Terms", "Others"), "does not bring the repository's LICENSE"),
    (write("LICENSE", "Newer terms."), "sm-front: the wheel does not bring the repository's"),
    (add_to_wheel("tests/__init__.py"), "the wheel also installs ['tests']"),
]


@pytest.mark.parametrize(("fault", "said"), FAULTS, ids=[said[:40] for _, said in FAULTS])
def test_each_fault_is_found(fault: Callable[[Path], None], said: str, tmp_path: Path) -> None:
    make(tmp_path, LEAF, FRONT)
    fault(tmp_path)
    assert any(said in problem for problem in found(tmp_path)), found(tmp_path)


def test_changes_after_a_tag_need_a_version(tmp_path: Path) -> None:
    make(tmp_path, LEAF)
    assert found(tmp_path, "sm-leaf-0.1.0") == [
        "sm-leaf: has changes since sm-leaf-0.1.0; raise its version"
    ]
    (tmp_path / "packages/sm-leaf/changes/+first.feature.md").unlink()
    assert found(tmp_path, "sm-leaf-0.1.0") == []


def test_the_plan_has_order_and_changelogs(tmp_path: Path) -> None:
    pytest.importorskip("towncrier")
    make(tmp_path, FRONT, LEAF, ("sm-old", "1.0.0", []))
    (tmp_path / "packages/sm-leaf/changes/+b.fix.md").write_text("A fault is gone.")
    text = release.plan(tmp_path, tmp_path / "dist", {"sm-old-1.0.0"})
    table, _, changelogs = text.partition("# Changelogs")
    assert table.index("| `sm-leaf-0.1.0`") < table.index("| `sm-front-0.3.0`")
    assert "`sm-old-1.0.0` exists already" in table
    assert "- What sm-front does." in changelogs
    assert "- What sm-old does." not in changelogs
    features, _, fixes = changelogs.partition("Fixes")
    assert "- What sm-leaf does." in features
    assert "- A fault is gone." in fixes


LINKS = [
    ("[a](b.md) and [c](<../d e.md>)", ["b.md", "../d"]),
    ("![a](b.png)\n[c]: ./d.md", ["b.png", "./d.md"]),
    ("[a](https://x.org/b) [c](#d) [e](mailto:f@x.org)", []),
    ("`[a](b)` and\n```python\nx[0](y)\n```\n", []),
]


@pytest.mark.parametrize(("text", "expected"), LINKS)
def test_relative_links_of_a_text(text: str, expected: list[str]) -> None:
    assert release.relative_links(text) == expected


@pytest.mark.parametrize("package", release.packages(ROOT).values(), ids=lambda p: p.name)
def test_a_readme_leads_nowhere_that_is_not(package: release.Package) -> None:
    """It is the description on an index page, too: documents are named by their path."""
    text = (package.folder / "README.md").read_text()
    assert release.relative_links(text) == []
    named = re.findall(r"`(docs/[^`]*\.md|\w+\.md)`", text)
    assert [n for n in named if not any((r / n).is_file() for r in (ROOT, package.folder))] == []
    assert (package.folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_fragments_of_this_repository_are_of_known_kinds() -> None:
    all_packages = release.packages(ROOT)
    assert len(all_packages) == 5
    assert set(all_packages) == set(release.PROGRAMS)
    problems = [
        f"{name}: {problem}"
        for name, package in all_packages.items()
        for problem in (
            *release.change_problems(package),
            *release.pin_problems(package, all_packages),
        )
    ]
    assert [*problems, *release.agreement_problems(all_packages)] == []


def test_a_wheel_brings_what_it_declares_and_no_more() -> None:
    all_packages = release.packages(ROOT)
    needed = {
        name: {
            each.name.removeprefix("torchsmith-")
            for each in release.needed_by(package, all_packages)
        }
        for name, package in all_packages.items()
    }
    assert needed["torchsmith-guards"] == {"guards"}
    assert needed["torchsmith-kernels"] == {"kernels"}
    assert needed["torchsmith-fx-backend"] == {"fx-backend", "guards"}  # kernels is an extra
    assert needed["torchsmith"] >= {"guards", "kernels", "tracer", "fx-backend"}
