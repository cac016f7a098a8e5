"""The tile tables: every derived configuration is valid, and stored ones win only when valid."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from torchsmith_kernels._src import store
from torchsmith_kernels._src.rms_norm.config import (
    BACKWARD_LIMIT,
    FORWARD_LIMIT,
    MEASURED,
    Case,
    Config,
    candidates,
    choose,
    derived,
    from_json,
)

WIDTHS = [1, 2, 15, 16, 17, 100, 768, 4096, 5000, 16384, 16385, 32768, 32769, 100_000, 10**6]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHSMITH_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("kernel", ["forward", "backward"])
@pytest.mark.parametrize("width", WIDTHS)
def test_derived_and_candidate_configurations_are_valid(kernel: str, width: int) -> None:
    case = Case(kernel, width, torch.bfloat16)
    for config in candidates(case):
        assert from_json(case, asdict(config)) == config
        threads = 32 * config.num_warps
        assert config.block_m * config.block_n // threads <= 64, "registers would spill"
    limit = FORWARD_LIMIT if kernel == "forward" else BACKWARD_LIMIT
    assert derived(case).looped == (width > limit)


@pytest.mark.parametrize(
    "changes",
    [
        {"block_n": 96},
        {"block_n": 64},
        {"num_warps": 64},
        {"num_warps": 0},
        {"block_m": "1"},
        {"looped": "yes"},
        {"unknown": 1},
    ],
    ids=str,
)
def test_stored_nonsense_is_not_a_configuration(changes: dict[str, object]) -> None:
    case = Case("forward", 100, torch.bfloat16)
    assert from_json(case, {**asdict(derived(case)), **changes}) is None
    assert from_json(case, None) is None


def test_order_of_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("forward", 4096, torch.bfloat16)
    monkeypatch.setitem(MEASURED, 90, {})
    assert choose(case, 90) == (derived(case), "derived")
    shipped = Config(1, 4096, 4)
    monkeypatch.setitem(MEASURED, 90, {case.key(): shipped})
    assert choose(case, 90) == (shipped, "measured")
    assert choose(case, 80) == (derived(case), "derived")
    own = Config(1, 4096, 16)
    store.save("rms_norm", 90, "a GPU", {case.key(): {"config": asdict(own)}})
    assert choose(case, 90) == (own, "tuned")
    assert choose(Case("forward", 4096, torch.float16), 90)[1] == "derived"


def test_saving_merges_and_replaces(cache: Path) -> None:
    store.save("rms_norm", 90, "a GPU", {"a": {"x": 1}, "b": {"x": 2}})
    path = store.save("rms_norm", 90, "a GPU", {"b": {"x": 3}})
    assert store.tuned_table("rms_norm", 90) == {"a": {"x": 1}, "b": {"x": 3}}
    assert path == cache / "kernels" / "rms_norm.sm_90.json"
    assert [file.name for file in path.parent.iterdir()] == [path.name], "nothing left behind"
    assert json.loads(path.read_text())["device"] == "a GPU"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"entries": 3}', '{"entries": {"a": 1}}'])
def test_a_damaged_table_is_reported_and_ignored(text: str) -> None:
    path = store.path_of("rms_norm", 90)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.warns(UserWarning, match=f"ignoring tuned configurations in {path}"):
        assert store.tuned_table("rms_norm", 90) == {}
    case = Case("forward", 64, torch.float32)
    assert choose(case, 90) == (derived(case), "derived")


def test_default_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TORCHSMITH_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert store.folder() == tmp_path / "xdg" / "torchsmith" / "kernels"
