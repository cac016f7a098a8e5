"""Modes and options through every way in: what a mode cannot do here is said, once."""

import warnings

import pytest
import torch
import torchsmith
from torch import fx
from torchsmith_fx_backend import smith
from torchsmith_fx_backend._src import modes
from torchsmith_fx_backend.errors import ModeWarning
from torchsmith_tracer.errors import UnknownOptionError

NOT_ON_A_CPU = {"reduce-overhead": 1, "max-autotune": 1, "max-autotune-no-cudagraphs": 0}


@pytest.fixture(autouse=True)
def nothing_was_said():
    modes.not_recorded.cache_clear()


def program(x):
    return torch.sin(x) + 1


def by_torchsmith(mode):
    return torchsmith.compile(lambda x: program(x), mode=mode)


def by_torchsmith_options(mode):
    return torchsmith.compile(lambda x: program(x), options={"mode": mode})


def by_torch(mode):
    return torch.compile(lambda x: program(x), backend="smith", mode=mode)


def by_torch_options(mode):
    return torch.compile(lambda x: program(x), backend="smith", options={"mode": mode})


def directly(mode):
    return smith(fx.symbolic_trace(program), [torch.ones(3)], mode=mode)


WAYS = (by_torchsmith, by_torchsmith_options, by_torch, by_torch_options, directly)


def run(way, mode):
    """What is said about modes by a compile and a call."""
    x = torch.ones(3)
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        torch.testing.assert_close(way(mode)(x), program(x))
    return [str(w.message) for w in caught if issubclass(w.category, ModeWarning)]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_each_mode_warns_once_in_a_process(way):
    for mode, count in NOT_ON_A_CPU.items():
        texts = run(way, mode)
        assert len(texts) == count
        assert all(text.startswith(f"[TS-B008] mode={mode!r}: ") for text in texts)
        assert run(way, mode) == [], "the second time"
    assert [run(way, "default"), run(directly, None)] == [[], []]


def test_strict_keeps_it_a_warning(monkeypatch):
    monkeypatch.setenv("TORCHSMITH_STRICT", "1")
    assert len(run(by_torchsmith, "reduce-overhead")) == 1


def test_explain_says_what_was_measured():
    mode = "max-autotune-no-cudagraphs"
    found = torchsmith.explain(lambda x: program(x), mode=mode)(torch.ones(3))
    assert "not measured: C kernels have one form each" in str(found)
    assert found.to_json()["frames"][0]["notes"]
    assert "C kernels have one form each" in found.html()


def test_unknown_modes_are_errors():
    with pytest.raises(UnknownOptionError, match="max-autotune"):
        by_torchsmith("fast")
    with pytest.raises(Exception, match="TS-B007"), torch.no_grad():
        by_torch("fast")(torch.ones(3))


def test_options_of_the_backend_reach_it_through_both_front_doors():
    gm, x = fx.symbolic_trace(program), torch.ones(3)
    options = {"verify": True, "graph_cache": False}
    with torch.no_grad():
        for compiled in (
            smith(gm, [x], options=options),
            torchsmith.compile(program, options=options),
            torch.compile(program, backend="smith", options=options),
        ):
            torch.testing.assert_close(compiled(x), program(x))
