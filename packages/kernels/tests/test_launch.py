"""Where kernels run, and what happens where they cannot."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator

import pytest
import torch
from torchsmith_kernels import FallbackWarning
from torchsmith_kernels._src import launch


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    def clear() -> None:
        launch.problem.cache_clear()
        launch.interpreted.cache_clear()
        launch._warned.clear()
        launch._found_usable.clear()

    clear()
    yield
    clear()


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_and_calling_on_a_cpu_needs_no_triton() -> None:
    code = (
        "import sys, torch, importlib.abc\n"
        "class Absent(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'triton': raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "import importlib.util\n"
        "real = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda n, *a: None if n == 'triton' else real(n, *a)\n"
        "import torchsmith_kernels as k\n"
        "x = torch.ones(2, 4, requires_grad=True)\n"
        "k.rms_norm(x, (4,)).sum().backward()\n"
        "print(k.rms_norm(x, (4,)).sum().item(), 'triton' in sys.modules)\n"
    )
    total, loaded = run(code).split()
    assert abs(float(total) - 8) < 1e-3
    assert loaded == "False"


def test_importing_does_not_import_triton() -> None:
    assert run("import sys, torchsmith_kernels; print('triton' in sys.modules)") == "False"


def test_without_triton_a_gpu_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "find_spec", lambda name: None)
    device = torch.device("cuda", 0)
    with pytest.warns(FallbackWarning, match="rms_norm: triton is not installed; the plain"):
        assert not launch.usable(device, "rms_norm")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not launch.usable(device, "rms_norm")


def test_old_gpus_use_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (7, 5))
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(launch, "find_spec", lambda name: name)
    assert launch.problem("cuda", 0) == "compute capability 7.5 is below 8.0"
    with pytest.warns(FallbackWarning, match="7.5 is below 8.0"):
        assert not launch.usable(torch.device("cuda", 0), "rms_norm")


def test_amd_gpus_use_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.0")
    monkeypatch.setattr(launch, "find_spec", lambda name: name)
    assert launch.problem("cuda", 0) == "AMD GPUs are not supported yet"


def test_a_cpu_never_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "find_spec", lambda name: None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not launch.usable(torch.device("cpu"), "rms_norm")
        assert not launch.usable(torch.device("meta"), "rms_norm")
    assert launch.problem("xpu", 0) == "triton is not installed"


def test_other_device_types_have_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "find_spec", lambda name: name)
    assert "no kernels for device type 'xpu'" in (launch.problem("xpu", 0) or "")


def test_plans_of_several_sizes_share_what_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A size that is new each time must not cost a compile each time."""
    bound: list[object] = []
    kernel = launch.Kernel("nowhere", "kernel")

    def bind(args: object, constants: object, options: object, ordinal: int) -> object:
        bound.append(args)
        return (lambda *given: None), None, None, (), False

    monkeypatch.setattr(launch.Kernel, "_bind", staticmethod(bind))
    monkeypatch.setattr(torch.Tensor, "get_device", lambda tensor: 0)
    monkeypatch.setattr(launch.private, "current_device", lambda: 0)
    monkeypatch.setattr(launch.private, "current_stream", lambda ordinal: 0)
    x = torch.empty(64)
    plans = [launch.Plan(kernel, (1, 1, 1), (n, 3), {"BLOCK": 64}) for n in (5, 7, 9, 16, 32)]
    for plan in plans:
        plan(x, None)
        plan(x, None)
    assert len(bound) == 2  # numbers are or are not multiples of 16
    plans[0].prepare(x, x)
    kernel((1, 1, 1), (x, x, 11, 3), {"BLOCK": 64})
    assert len(bound) == 3
