"""Rehearse a release from the wheels in ``dist``; ``nox -s release -- --dry-run`` runs it.

It reads wheels and sources and says everything that is wrong with them; it writes the plan
``dist/release.md``, what to tag in which order and the changelog of each package; it installs each
wheel into an empty folder with the siblings that it declares, and runs a program from there; and it
installs all of them and runs the demo. Nothing is tagged or uploaded.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from packaging.metadata import Metadata
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "dist"
# kinds of changelog fragments, in the order of a changelog's sections; the same for all packages
KINDS = {"feature": "Features", "fix": "Fixes", "removal": "Deprecations and removals"}
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)|^\s*\[[^\]]+\]:\s*(\S+)", re.M)
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.M | re.S)
FRAGMENT = re.compile(r"\+?[\w-]+\.(\w+)\.md")
# what each wheel is asked to do where nothing else of ours is installed
PROGRAMS = {
    "torchsmith-guards": """
import torchsmith_guards as guards
checks = guards.GuardSet()
checks.add(guards.Guard(guards.LocalSource("x"), guards.GuardKind.CONSTANT, 3))
checker = checks.compile(["x"], {})
assert checker.check(3) and not checker.check(4)
""",
    "torchsmith-tracer": """
import torch, torchsmith_tracer as tracer
f = lambda x: (x.sin(), print(end="", flush=True), x.cos())
report = tracer.explain(f)(torch.ones(3))
assert report.graph_count == 2 and report.html().rstrip().endswith("</html>")
""",
    "torchsmith-kernels": """
import torch, torchsmith_kernels as kernels
x = torch.randn(2, 4)
torch.testing.assert_close(kernels.softmax(x, -1), torch.softmax(x, -1))
""",
    "torchsmith-fx-backend": """
import torch, torchsmith_fx_backend as backend
f = lambda x: x.sin() + 1
x = torch.randn(4)
compiled = backend.compile_graph(backend.make_fx(f)(x), [x])
torch.testing.assert_close(compiled(x), f(x))
""",
    "torchsmith": """
import torch, torchsmith
f = lambda x: torch.softmax(x.exp() + 1, -1)
x = torch.randn(4, 8)
torch.testing.assert_close(torchsmith.compile(f, fullgraph=True)(x), f(x))
""",
}
ABSENT = """
import importlib.util
assert not [name for name in {names} if importlib.util.find_spec(name)], "of ours, not declared"
"""


@dataclass(frozen=True)
class Package:
    """A folder of ``packages``: its name and what its ``pyproject.toml`` says."""

    folder: Path
    project: dict[str, Any]
    tool: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.project["name"])

    @property
    def version(self) -> str:
        return str(self.project["version"])

    @property
    def module(self) -> str:
        return self.name.replace("-", "_")

    @property
    def tag(self) -> str:
        return f"{self.name}-{self.version}"

    @property
    def requirements(self) -> list[Requirement]:
        extras = self.project.get("optional-dependencies", {}).values()
        lists = [self.project.get("dependencies", []), *extras]
        return [Requirement(text) for each in lists for text in each]

    @property
    def fragments(self) -> list[Path]:
        return sorted(p for p in (self.folder / "changes").glob("*") if p.name[0] != ".")


def packages(root: Path) -> dict[str, Package]:
    """All packages, each after the siblings that it needs."""
    found = {}
    for path in sorted((root / "packages").glob("*/pyproject.toml")):
        data = tomllib.loads(path.read_text())
        package = Package(path.parent, data["project"], data.get("tool", {}))
        found[package.name] = package
    needs = {
        name: sorted({r.name for r in package.requirements if r.name in found})
        for name, package in found.items()
    }
    return {name: found[name] for name in TopologicalSorter(needs).static_order()}


def wheels(package: Package, dist: Path) -> list[Path]:
    return sorted(dist.glob(f"{package.module}-*.whl"))


# ------------------------------------------------------------------------------------------------
# What can be wrong
# ------------------------------------------------------------------------------------------------


def problems(root: Path, dist: Path, tags: set[str]) -> Iterator[str]:
    """Everything that speaks against a release, as sentences; ``tags`` are those that exist."""
    all_packages = packages(root)
    for package in all_packages.values():
        for problem in (
            *wheel_problems(package, dist),
            *pin_problems(package, all_packages),
            *change_problems(package),
        ):
            yield f"{package.name}: {problem}"
        if package.tag in tags and package.fragments:
            yield f"{package.name}: has changes since {package.tag}; raise its version"
    yield from agreement_problems(all_packages)


def wheel_problems(package: Package, dist: Path) -> Iterator[str]:
    """The wheel's metadata is that of the sources, and it holds the package alone."""
    found = wheels(package, dist)
    if len(found) != 1:
        yield f"there should be one wheel in {dist.name}, not {[p.name for p in found]}"
        return
    with zipfile.ZipFile(found[0]) as archive:
        names = archive.namelist()
        (place,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        metadata = Metadata.from_email(archive.read(place))
        info = place.partition("/")[0]
        licenses = [archive.read(n) for n in names if n.startswith(f"{info}/licenses/")]
    expected = {
        "name": package.name,
        "version": package.version,
        "summary": package.project.get("description"),
        "requires_python": package.project.get("requires-python"),
        "license_expression": package.project.get("license"),
    }
    for field, value in expected.items():
        if value is None:
            yield f"pyproject.toml does not say {field}"
        elif str(getattr(metadata, field)).replace(" ", "") not in (
            str(value).replace(" ", ""),
            ",".join(sorted(str(value).replace(" ", "").split(","))),
        ):
            yield f"the wheel's {field} is {getattr(metadata, field)}, not {value}"
    if not (metadata.description or "").strip():
        yield "the wheel has no description"
    for target in relative_links(metadata.description or ""):
        yield f"the description links {target}, which an index page has not"
    if (package.folder.parents[1] / "LICENSE").read_bytes() not in licenses:
        yield "the wheel does not bring the repository's LICENSE"
    given = sorted(str(each).partition(";")[0].strip() for each in metadata.requires_dist or [])
    if given != sorted(str(each).partition(";")[0].strip() for each in package.requirements):
        yield f"the wheel requires {given}"
    if other := sorted({n.partition("/")[0] for n in names} - {package.module, info}):
        yield f"the wheel also installs {other}"
    if f"{package.module}/py.typed" not in names:
        yield "the wheel has no py.typed"


def relative_links(text: str) -> list[str]:
    """What ``text`` links relative to its own place, of which only a checkout has the files."""
    targets = [inline or named for inline, named in LINK.findall(CODE.sub("", text))]
    return [target for target in targets if not re.match(r"#|[a-z][a-z+.-]*:", target)]


def pin_problems(package: Package, all_packages: dict[str, Package]) -> Iterator[str]:
    """Each sibling's version is one that this package accepts."""
    for requirement in package.requirements:
        sibling = all_packages.get(requirement.name)
        if sibling is None:
            continue
        if not requirement.specifier:
            yield f"{requirement.name} is required without a version"
        elif not requirement.specifier.contains(sibling.version, prereleases=True):
            yield f"{requirement} does not accept {sibling.version}, which is released with it"


def change_problems(package: Package) -> Iterator[str]:
    """Fragments are of a known kind and say something; the version says itself once."""
    for path in package.fragments:
        found = FRAGMENT.fullmatch(path.name)
        if found is None or found[1] not in KINDS:
            yield f"changes/{path.name} is of no known kind ({', '.join(KINDS)})"
        elif not path.read_text().strip():
            yield f"changes/{path.name} is empty"
    init = package.folder / "src" / package.module / "__init__.py"
    stated = re.search(r'^__version__ = "(.*)"', init.read_text(), re.M)
    if stated is not None and stated[1] != package.version:
        yield f"__version__ is {stated[1]}, pyproject.toml says {package.version}"


def agreement_problems(all_packages: dict[str, Package]) -> Iterator[str]:
    """What all packages require of Python and torch is the same everywhere."""
    pythons = {p.project.get("requires-python") for p in all_packages.values()}
    if len(pythons) > 1:
        yield f"packages disagree on Python: {sorted(map(str, pythons))}"
    by_name: dict[str, set[str]] = {}
    for package in all_packages.values():
        for requirement in package.requirements:
            if requirement.name not in all_packages:
                by_name.setdefault(requirement.name, set()).add(str(requirement.specifier))
    for name, specifiers in sorted(by_name.items()):
        if len(specifiers) > 1:
            yield f"packages disagree on {name}: {sorted(specifiers)}"


# ------------------------------------------------------------------------------------------------
# The plan
# ------------------------------------------------------------------------------------------------


def changelog(package: Package) -> str:
    """The section that towncrier would add to the package's changelog."""
    own = package.tool.get("towncrier", {})
    lines = ["[tool.towncrier]", *(f"{key} = {json.dumps(own[key])}" for key in own)]
    lines += [f"name = {json.dumps(package.name)}", 'title_format = "{name} {version}"']
    for directory, title in KINDS.items():
        lines += ["[[tool.towncrier.type]]", f"directory = {json.dumps(directory)}"]
        lines += [f"name = {json.dumps(title)}", "showcontent = true"]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "towncrier.toml"
        config.write_text("\n".join(lines) + "\n")
        done = subprocess.run(
            [sys.executable, "-m", "towncrier", "build", "--draft", "--version", package.version,
             "--config", str(config), "--dir", str(package.folder)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode != 0:
        raise SystemExit(f"{package.name}: towncrier failed\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def plan(root: Path, dist: Path, tags: set[str]) -> str:
    """What to tag, in which order, with which files and changelogs, as Markdown."""
    parts = ["# Release plan\n\nTag and upload in this order; a package after what it requires.\n"]
    parts.append("| tag | wheel | sha256 | requires of ours |\n|---|---|---|---|")
    all_packages = packages(root)
    due = [package for package in all_packages.values() if package.tag not in tags]
    for package in due:
        (wheel,) = wheels(package, dist)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        ours = ", ".join(str(r) for r in package.requirements if r.name in all_packages) or "-"
        parts.append(f"| `{package.tag}` | {wheel.name} | `{digest}` | {ours} |")
    for package in all_packages.values():
        if package.tag in tags:
            parts.append(f"\n`{package.tag}` exists already: nothing is released of it.")
    parts.append("\n# Changelogs")
    parts += [f"\n{changelog(package)}" for package in due]
    return "\n".join(parts) + "\n"


# ------------------------------------------------------------------------------------------------
# Each wheel alone
# ------------------------------------------------------------------------------------------------


def use_each(dist: Path, all_packages: dict[str, Package]) -> None:
    """Run each package's program where only its wheel and its declared siblings' wheels are."""
    for name, package in all_packages.items():
        needed = needed_by(package, all_packages)
        paths = [str(wheels(each, dist)[0]) for each in needed]
        with tempfile.TemporaryDirectory() as folder:
            install = ["-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", folder]
            subprocess.run([sys.executable, *install, *paths], check=True)
            others = [each.module for each in all_packages.values() if each not in needed]
            program = ["-c", ABSENT.format(names=others) + PROGRAMS[name]]
            env = dict(os.environ, PYTHONPATH=folder, TORCHSMITH_CACHE_DIR=f"{folder}/cache")
            subprocess.run([sys.executable, *program], check=True, cwd=folder, env=env, timeout=600)
        print(f"{name} works from {', '.join(p.name for p in needed)}", flush=True)


def needed_by(package: Package, all_packages: dict[str, Package]) -> list[Package]:
    """A package and the siblings that it requires without an extra, and theirs."""
    found = {package.name: package}
    for text in package.project.get("dependencies", []):
        sibling = all_packages.get(Requirement(text).name)
        if sibling is not None:
            found |= {each.name: each for each in needed_by(sibling, all_packages)}
    return list(found.values())


def demo(root: Path, dist: Path) -> None:
    """Install all wheels into this environment, and run the demo with them."""
    install = ["install", "-q", "--force-reinstall", "--no-deps", "--no-index"]
    paths = [str(path) for path in sorted(dist.glob("*.whl"))]
    subprocess.run([sys.executable, "-m", "pip", *install, *paths], check=True)
    subprocess.run([sys.executable, "-m", "pip", "check"], check=True)
    with tempfile.TemporaryDirectory() as cache:  # nothing that another version has compiled
        env = dict(os.environ, TORCHSMITH_CACHE_DIR=cache)
        program = [sys.executable, str(root / "benchmarks" / "demo.py")]
        subprocess.run(program, check=True, env=env)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dry-run", action="store_true", help="the only way to run it")
    if not parser.parse_args().dry_run:
        parser.error("only --dry-run: tags and uploads are made by hand, see docs/release.md")
    git = ["git", "-C", str(ROOT), "tag", "--list"]
    tags = set(subprocess.run(git, capture_output=True, text=True, check=True).stdout.split())
    found = list(problems(ROOT, DIST, tags))
    for problem in found:
        print(problem)
    if found:
        return 1
    (DIST / "release.md").write_text(plan(ROOT, DIST, tags))
    print(f"{len(packages(ROOT))} packages are consistent; the plan is {DIST / 'release.md'}")
    use_each(DIST, packages(ROOT))
    demo(ROOT, DIST)
    return 0


if __name__ == "__main__":
    sys.exit(main())
