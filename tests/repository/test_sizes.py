"""Files stay small enough to read: 800 lines at most."""

from __future__ import annotations

from sources import PACKAGES, ROOT, product_files

LIMIT = 800


def test_no_source_file_is_over_the_limit() -> None:
    files = [path for package in PACKAGES for path in product_files(package)]
    assert files
    lengths = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in files}
    assert {name: n for name, n in lengths.items() if n > LIMIT} == {}


def test_the_whole_product_does_not_grow_unnoticed() -> None:
    """The aim is 25,000 lines; see docs/decisions/0006-lines-of-code.md for where we are."""
    total = sum(len(p.read_text().splitlines()) for k in PACKAGES for p in product_files(k))
    assert total <= 68_000
