"""What each mode does, and says where it cannot; one that does not exist is an error."""

import contextlib
import warnings
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import fx
from torchsmith_fx_backend import smith
from torchsmith_fx_backend._src import backend, driver, modes
from torchsmith_fx_backend._src.codegen.triton.config import Config, Schedule
from torchsmith_fx_backend._src.runtime import launchers
from torchsmith_fx_backend._src.runtime.native import NativeLauncher
from torchsmith_fx_backend._src.tuning.tuner import Tuner
from torchsmith_fx_backend.errors import ModeError, ModeWarning, SettingError
from torchsmith_guards.records import recorder


@pytest.fixture(autouse=True)
def nothing_was_said():
    modes.not_recorded.cache_clear()


def program(x):
    return torch.sin(x) + 1


def test_reduce_overhead_on_a_cpu_says_that_nothing_is_recorded():
    x = torch.ones(3)
    recorder.clear()
    with pytest.warns(ModeWarning, match="an input is on device 'cpu'") as said, torch.no_grad():
        for number in (1, 2):
            compiled = smith(fx.symbolic_trace(program), [x], mode="reduce-overhead")
            for _ in range(2):
                torch.testing.assert_close(compiled(x), program(x))
            assert recorder.metrics().counter("recordings", "skipped") == number
    assert len(said) == 1


@pytest.mark.parametrize(
    ("training", "reason"), [("eager", "operator by operator"), ("compiled", "on device 'cpu'")]
)
def test_training_graphs_that_cannot_be_recorded_say_so(training, reason):
    x = torch.ones(3, requires_grad=True)
    with pytest.warns(ModeWarning, match=reason):
        options = {"training": training, "mode": "reduce-overhead"}
        compiled = smith(fx.symbolic_trace(program), [x], options=options)
    torch.testing.assert_close(compiled(x), program(x))


class Measured(NativeLauncher):
    """C kernels, as if they had two forms."""

    def candidates(self, kernel, sizes, device):
        return (Config(Schedule.POINTWISE, 128), Config(Schedule.POINTWISE, 256)), "played"

    def attempt(self, requests, cache):
        return [replace(k, launch=lambda *given: None) for k in self.load(requests, cache)]


class Played:
    """The second form takes half the time of the first."""

    count = 0

    def __init__(self, device):
        pass

    def obstacle(self, size):
        return ""

    def rounds(self, runs, count):
        Played.count += 1
        return [
            [2e-6 / (number + 1 if len(runs) > 1 else 1)] * count for number in range(len(runs))
        ]

    def close(self):
        pass


@pytest.fixture
def measured(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHSMITH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setitem(launchers._instances, "cpu", Measured())
    monkeypatch.setattr(driver, "Tuner", partial(Tuner, stopwatch=Played))
    Played.count = 0


@pytest.mark.parametrize("training", [False, True])
def test_max_autotune_measures_once_and_tells(measured, training):
    with warnings.catch_warnings(), torch.set_grad_enabled(training):
        warnings.simplefilter("error")
        for number in range(3):  # then from the graph cache, and at last not asked for
            mode = "max-autotune-no-cudagraphs" if number < 2 else "default"
            x = torch.linspace(-1, 1, 50, requires_grad=training)
            compiled = smith(fx.symbolic_trace(program), [x], mode=mode)
            torch.testing.assert_close(compiled(x), program(x))
            if training:
                compiled(x).sum().backward()
                torch.testing.assert_close(x.grad, torch.cos(x.detach()))
            told = [kernel["tuned"] for each in compiled.schedules() for kernel in each["kernels"]]
            notes, record = compiled.notes(), recorder.metrics().graphs[-1].kernels[0]
            if number == 2:
                assert set(told) == {""} and notes == [] and record.seconds is None
                continue
            won = "pointwise x_block=256 num_warps=4: 1.0 us, 2.00x as fast as the table's "
            assert all(text.startswith(won) for text in (*told, record.tuned)) and told
            assert (record.seconds, record.table_seconds) == (1e-6, 2e-6)
            assert [note.partition(": ")[2] for note in notes] == [told[0]]
            if number == 0:
                count, Played.count = Played.count, 0
        assert count and not Played.count


def test_a_graph_that_ran_out_of_time_is_not_kept(measured, monkeypatch):
    x, name = torch.ones(7), "max-autotune-no-cudagraphs"
    with torch.no_grad():
        clock = iter(range(100))
        tuner = partial(Tuner, stopwatch=Played, clock=lambda: next(clock))
        monkeypatch.setattr(driver, "Tuner", tuner)
        options = {"tuning_seconds": 0.5}
        compiled = smith(fx.symbolic_trace(program), [x], mode=name, options=options)
        assert "the time for it was over" in compiled.notes()[0] and not Played.count
        monkeypatch.setattr(driver, "Tuner", partial(Tuner, stopwatch=Played))
        compiled = smith(fx.symbolic_trace(program), [x], mode=name)
        assert "2.00x" in compiled.notes()[0] and Played.count
        Played.count = 0
        off = smith(fx.symbolic_trace(program), [x], mode=name, options={"tuning_seconds": 0})
        assert off.notes() == [] and not Played.count


def test_on_a_cpu_there_is_nothing_to_measure():
    x = torch.ones(3)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        compiled = smith(fx.symbolic_trace(program), [x], mode="max-autotune-no-cudagraphs")
        torch.testing.assert_close(compiled(x), program(x))
    (note,) = compiled.notes()
    assert note.endswith(": not measured: C kernels have one form each")


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
    monkeypatch.setattr(backend, "CudaRecorder", Played)
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
