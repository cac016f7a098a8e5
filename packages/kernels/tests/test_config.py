"""The tables of configurations: which source wins, and what is done about damaged files."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from torchsmith_kernels._src import store, tables
from torchsmith_kernels._src.relu_squared.config import Case, Config, derived, table

CASE = Case("forward", torch.bfloat16)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHSMITH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(table, "_chosen", {})
    return tmp_path


def test_order_of_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "shipped", lambda op, capability: {})
    assert table.explain(CASE, 90) == (derived(CASE), "derived")
    tables.forget()
    measured = {CASE.key(): {"config": asdict(Config(1024, 4))}}
    monkeypatch.setattr(tables, "shipped", lambda op, capability: measured)
    assert table.explain(CASE, 90) == (Config(1024, 4), "measured")
    tables.forget()
    own = Config(2048, 16)
    store.save("relu_squared", 90, "a GPU", {CASE.key(): {"config": asdict(own)}})
    assert table.explain(CASE, 90) == (own, "tuned")
    assert table.choose(CASE, 90) == own
    assert table.explain(Case("forward", torch.float16), 90)[1] == "derived"


@pytest.mark.parametrize(
    "config",
    [
        None,
        {"block": 1000, "num_warps": 4},
        {"block": 1024, "num_warps": 64},
        {"block": "1024", "num_warps": 4},
        {"block": 1024},
        {"block": 1024, "num_warps": 4, "unknown": 1},
    ],
    ids=str,
)
def test_stored_nonsense_is_not_a_configuration(
    config: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "shipped", lambda op, capability: {CASE.key(): {"config": config}})
    assert table.explain(CASE, 90) == (derived(CASE), "derived")


def test_saving_merges_and_replaces(cache: Path) -> None:
    store.save("rms_norm", 90, "a GPU", {"a": {"x": 1}, "b": {"x": 2}})
    path = store.save("rms_norm", 90, "a GPU", {"b": {"x": 3}})
    assert store.tuned_table("rms_norm", 90) == {"a": {"x": 1}, "b": {"x": 3}}
    assert path == cache / "kernels" / "rms_norm.sm_90.json"
    assert [file.name for file in path.parent.iterdir()] == [path.name], "nothing left behind"
    assert json.loads(path.read_text())["device"] == "a GPU"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"entries": 3}', '{"entries": {"a": 1}}'])
def test_a_damaged_table_is_reported_and_ignored(text: str) -> None:
    path = store.path_of("relu_squared", 90)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.warns(UserWarning, match=f"ignoring tuned configurations in {path}"):
        assert store.tuned_table("relu_squared", 90) == {}
    assert table.explain(Case("backward", torch.float32), 90)[1] in ("measured", "derived")


def test_default_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TORCHSMITH_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert store.folder() == tmp_path / "xdg" / "torchsmith" / "kernels"
