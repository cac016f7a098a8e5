"""Stored tables: what is tuned wins over what is shipped, and nonsense counts for nothing."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from torchsmith_kernels._src import store, tables, tuning
from torchsmith_kernels._src.relu_squared.config import Case, Config, derived, table

CASE = Case("forward", torch.bfloat16)
OTHER = Config(512, 2)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHSMITH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tables, "shipped", lambda op, capability: {})
    tables.forget()
    return tmp_path


def test_without_tables_the_derived_configuration_is_used() -> None:
    assert table.explain(CASE, 90) == (derived(CASE), "derived")


def test_order_of_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    entry: store.Table = {CASE.key(): {"config": asdict(OTHER)}}
    monkeypatch.setattr(tables, "shipped", lambda op, capability: entry)
    assert table.explain(CASE, 90) == (OTHER, "measured")
    better = Config(1024, 4)
    store.save("relu_squared", 90, "a chip", {CASE.key(): {"config": asdict(better)}})
    tables.forget()
    assert table.explain(CASE, 90) == (better, "tuned")
    assert table.choose(CASE, 80) == OTHER, "another chip was not tuned"


@pytest.mark.parametrize(
    "stored",
    [None, 3, {}, {"block": 512}, {"block": "512", "num_warps": 4}, {"block": 500, "num_warps": 4},
     {"block": 512, "num_warps": 64}, {"block": 512, "num_warps": 4, "unknown": 1},
     {"block": None, "num_warps": 4}],
    ids=str,
)  # fmt: skip
def test_stored_nonsense_is_not_a_configuration(stored: object) -> None:
    store.save("relu_squared", 90, "a chip", {CASE.key(): {"config": stored}})
    tables.forget()
    assert table.explain(CASE, 90) == (derived(CASE), "derived")


def test_a_damaged_file_is_reported_and_ignored() -> None:
    path = store.path_of("relu_squared", 90)
    path.parent.mkdir(parents=True)
    path.write_text("{")
    store._read.cache_clear()
    with pytest.warns(UserWarning, match="ignoring tuned configurations in .*relu_squared.sm_90"):
        assert table.explain(CASE, 90)[1] == "derived"


@pytest.mark.parametrize("op", list(tuning.TUNABLE))
def test_shipped_tables_are_read(op: str) -> None:
    path = Path(tables.__file__).parent / op / "sm_90.json"
    if not path.exists():
        pytest.skip("nothing was measured for this op")
    record = json.loads(path.read_text())
    assert record["device"] and record["command"], "say where the numbers are from"
    cases = {case.key() for case in tuning.find(op).cases([torch.bfloat16])}
    assert set(record["entries"]) & cases, "the measured cases are none that tuning knows"


def test_what_is_remembered_is_bounded_and_goes_with_the_tables() -> None:
    known: tables.Remembered[int] = tables.Remembered(most=2)
    for number in range(3):
        known.keep(number, number)
    assert known == {2: 2}
    tables.forget()
    assert not known
