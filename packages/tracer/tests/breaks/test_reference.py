"""The registry of break kinds and its reference page."""

import re
from pathlib import Path

import pytest
from torchsmith_tracer._src.breaks.kinds import KINDS
from torchsmith_tracer._src.breaks.report import BreakReport, Place
from torchsmith_tracer._src.breaks.signals import Unsupported

ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.id)
def test_page_says_what_the_registry_says(kind):
    """The programs on the page, and that each gives its kind, are tested in ``tests/readme``."""
    what, advice = (re.sub(r"\{(\w+)\}", r"*\1*", text) for text in (kind.what, kind.advice))
    head = (
        f"\n## {kind.id} {kind.name}\n\n{what[0].upper()}{what[1:]}.\n\n"
        f"* Category: {kind.category.value}\n* Advice: {advice}\n\n"
    )
    assert head in (ROOT / "docs" / "reference" / "breaks.md").read_text(), f"renew it:{head}"


def test_ids_are_unique_and_well_formed():
    ids = [kind.id for kind in KINDS.values()]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"TS-T\d{3}", found) for found in ids)


def test_every_kind_that_code_raises_is_registered():
    source = ROOT / "packages" / "tracer" / "src"
    raised = set()
    for path in source.rglob("*.py"):
        raised |= set(re.findall(r'Unsupported\(\s*"([\w-]+)"', path.read_text()))
    assert raised, "the search finds nothing"
    assert raised <= set(KINDS)


def test_missing_details_do_not_hide_the_message():
    report = BreakReport.of(Unsupported("item"), [])
    assert report.id == "TS-T013" and "<what>" in report.what


SPANS = {  # source, first and last line and column of the span in bytes; what is shown
    "ascii": ("    y = f(x)\n", (1, 1, 8, 12), "y = f(x)\n    ^^^^"),
    "wider than a byte": ("  ü = 'é' + f(x)\n", (1, 1, 14, 18), "ü = 'é' + f(x)\n          ^^^^"),
    "several lines": ("  f(x,\n    y)\n", (1, 2, 2, 6), "f(x,\n^^^^"),
    "tabs": ("\tf(x)\n", (1, 1, 1, 5), "f(x)\n^^^^"),
    "no columns": ("  f(x)\n", (1, None, None, None), "f(x)"),
    "no such line": ("", (7, 7, 0, 1), ""),
}


@pytest.mark.parametrize("case", SPANS)
def test_the_span_is_underlined(case, tmp_path):
    text, (line, end, column, end_column), shown = SPANS[case]
    (tmp_path / "ü.py").write_text(text, encoding="utf-8")
    place = Place(str(tmp_path / "ü.py"), line, "f", end, column, end_column)
    assert place.excerpt() == shown


def test_a_binary_file_has_no_excerpt(tmp_path):
    (tmp_path / "a.py").write_bytes(b"\xff\x00\xfe\n")
    assert Place(str(tmp_path / "a.py"), 1, "f", 1, 0, 1).excerpt() == ""
