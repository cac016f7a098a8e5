"""A mode that changes nothing says so; one that does not exist is an error."""

import pytest
import torch
from torch import fx
from torchsmith_fx_backend import smith
from torchsmith_fx_backend._src import modes
from torchsmith_fx_backend.errors import ModeError, ModeWarning, SettingError


@pytest.fixture(autouse=True)
def nothing_was_said(monkeypatch):
    monkeypatch.setattr(modes, "_said", {})


def program(x):
    return torch.sin(x) + 1


def test_reduce_overhead_on_a_cpu_speaks_of_the_cpu():
    x = torch.ones(3)
    with pytest.warns(ModeWarning, match="no input is on a GPU") as said, torch.no_grad():
        for _ in range(2):
            compiled = smith(fx.symbolic_trace(program), [x], mode="reduce-overhead")
            torch.testing.assert_close(compiled(x), program(x))
    assert len(said) == 1


def test_reduce_overhead_on_a_gpu_speaks_of_recordings():
    class OnGpu(torch.Tensor):
        device = torch.device("cuda")

    with pytest.warns(ModeWarning, match="no CUDA graph is recorded"):
        modes.check("reduce-overhead", [torch.ones(1), torch.ones(1).as_subclass(OnGpu)])


def test_unknown_modes_and_options_are_errors():
    gm, x = fx.symbolic_trace(program), torch.ones(3)
    with pytest.raises(ModeError, match="max-autotune"):
        smith(gm, [x], mode="fast")
    with pytest.raises(ModeError, match="3"):
        smith(gm, [x], options={"mode": 3})
    with pytest.raises(SettingError, match="graph_cache"):
        smith(gm, [x], options={"speed": 1})
