"""The registry of break kinds and its reference page."""

import re
from pathlib import Path

from torchsmith_tracer._src.breaks.kinds import KINDS
from torchsmith_tracer._src.breaks.reference import page
from torchsmith_tracer._src.breaks.report import BreakReport
from torchsmith_tracer._src.breaks.signals import Unsupported

ROOT = Path(__file__).resolve().parents[4]


def test_page_is_up_to_date():
    assert (ROOT / "docs" / "reference" / "breaks.md").read_text() == page()


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
