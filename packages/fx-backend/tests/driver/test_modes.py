"""A mode that changes nothing says so; one that does not exist is an error."""

import contextlib

import pytest
import torch
from torch import fx
from torchsmith_fx_backend import smith
from torchsmith_fx_backend._src import driver, modes
from torchsmith_fx_backend.errors import ModeError, ModeWarning, SettingError


@pytest.fixture(autouse=True)
def nothing_was_said(monkeypatch):
    monkeypatch.setattr(modes, "_said", {})


def program(x):
    return torch.sin(x) + 1


def test_reduce_overhead_on_a_cpu_says_that_nothing_is_recorded():
    x = torch.ones(3)
    with pytest.warns(ModeWarning, match="an input is on device 'cpu'") as said, torch.no_grad():
        for _ in range(2):
            compiled = smith(fx.symbolic_trace(program), [x], mode="reduce-overhead")
            torch.testing.assert_close(compiled(x), program(x))
    assert len(said) == 1


@pytest.mark.parametrize("training", ["eager", "compiled"])
def test_training_graphs_are_not_recorded_and_say_so(training):
    x = torch.ones(3, requires_grad=True)
    with pytest.warns(ModeWarning, match="requires gradients"):
        options = {"training": training, "mode": "reduce-overhead"}
        compiled = smith(fx.symbolic_trace(program), [x], options=options)
    torch.testing.assert_close(compiled(x), program(x))


def test_max_autotune_says_that_nothing_is_measured():
    x = torch.ones(3)
    for mode, instead in {
        "max-autotune": "reduce-overhead",
        "max-autotune-no-cudagraphs": "default",
    }.items():
        with pytest.warns(ModeWarning) as said, torch.no_grad():
            compiled = smith(fx.symbolic_trace(program), [x], mode=mode)
            torch.testing.assert_close(compiled(x), program(x))
        assert f"Use mode={instead!r}" in str(said[0].message)


def test_recordings_are_what_reduce_overhead_runs(monkeypatch):
    """From the front door to the recorder, the graph cache included; the device is played."""
    seen = []

    class Played:
        def __init__(self, device):
            seen.append(device)

        def ready(self):
            return True

        def turn(self):
            return contextlib.nullcontext()

        def random_state(self):
            return None

        def record(self, run):
            results = run()

            def replay():
                for place, fresh in zip(results, run(), strict=True):
                    place.copy_(fresh)

            seen.append("recorded")
            return replay, results

    monkeypatch.setattr(driver, "obstacle", lambda graph: "")
    monkeypatch.setattr(driver, "CudaRecorder", Played)
    for _ in range(2):  # the second time from the graph cache
        seen.clear()
        with torch.no_grad():
            example = torch.ones(3, 5)
            compiled = smith(fx.symbolic_trace(program), [example], mode="reduce-overhead")
            assert "def " in compiled.source
            for n in range(4):
                x = torch.full((3, 5), float(n))
                torch.testing.assert_close(compiled(x), program(x))
        assert seen == [0, "recorded"]


def test_unknown_modes_and_options_are_errors():
    gm, x = fx.symbolic_trace(program), torch.ones(3)
    with pytest.raises(ModeError, match="max-autotune"):
        smith(gm, [x], mode="fast")
    with pytest.raises(ModeError, match="3"):
        smith(gm, [x], options={"mode": 3})
    with pytest.raises(SettingError, match="graph_cache"):
        smith(gm, [x], options={"speed": 1})
