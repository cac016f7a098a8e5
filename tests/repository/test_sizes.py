"""Files stay small enough to read, and packages small enough to know."""

from __future__ import annotations

from pathlib import Path

from sources import PACKAGES, ROOT, product_files

LIMIT = 800
# Lines of Python per group of packages; why these, says docs/decisions/0006-lines-of-code.md.
BUDGETS = {
    ("guards", "tracer"): 48_425,
    ("fx-backend",): 36_215,
    ("kernels",): 22_000,
    ("torchsmith",): 1_000,
}
# Folders that tell what the compiler did, in whichever package: counted apart, all together.
REPORTS = {"records", "page", "repro", "commands"}
REPORTS_BUDGET = 5_700


def test_no_source_file_is_over_the_limit() -> None:
    files = [path for package in PACKAGES for path in product_files(package)]
    assert files
    lengths = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in files}
    assert {name: n for name, n in lengths.items() if n > LIMIT} == {}


def test_every_package_has_a_budget() -> None:
    assert sorted(name for group in BUDGETS for name in group) == sorted(PACKAGES)


def _is_report(path: Path) -> bool:
    """Whether a file is in one of the folders of ``REPORTS`` under a package's ``_src``."""
    parts = path.parts
    return parts[parts.index("_src") + 1] in REPORTS if "_src" in parts else False


def test_no_package_grows_beyond_its_budget() -> None:
    totals = {
        group: sum(
            len(p.read_text().splitlines())
            for name in group
            for p in product_files(name)
            if not _is_report(p)
        )
        for group in BUDGETS
    }
    assert {group: n for group, n in totals.items() if n > BUDGETS[group]} == {}


def test_what_tells_stays_small() -> None:
    files = [p for name in PACKAGES for p in product_files(name) if _is_report(p)]
    assert sum(len(p.read_text().splitlines()) for p in files) <= REPORTS_BUDGET
