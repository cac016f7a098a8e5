"""Global state: every field is captured and compared."""

import contextlib
import threading

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torchsmith_guards import GlobalState


class Functions(TorchFunctionMode):
    """Does nothing."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Dispatch(TorchDispatchMode):
    """Does nothing."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def default_dtype(dtype):
    old = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(old)


@contextlib.contextmanager
def deterministic(*, warn_only=False):
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def default_device(device):
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


STATES = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast bf16": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast fp16": lambda: torch.autocast("cpu", torch.float16),
    "autocast no cache": lambda: torch.autocast("cpu", torch.bfloat16, cache_enabled=False),
    "float64": lambda: default_dtype(torch.float64),
    "deterministic": deterministic,
    "deterministic warn": lambda: deterministic(warn_only=True),
    "device context": lambda: torch.device("meta"),
    "default device": lambda: default_device("meta"),
    "function mode": Functions,
    "no torch function": torch._C.DisableTorchFunction,
    "no subclass torch function": torch._C.DisableTorchFunctionSubclass,
    "dispatch mode": Dispatch,
}


@pytest.mark.parametrize("name", STATES)
def test_state_changes_are_seen(name):
    outside = GlobalState.capture()
    assert outside.matches()
    with STATES[name]():
        inside = GlobalState.capture()
        assert inside.matches()
        assert not outside.matches()
        assert outside.differences(inside)
        assert GlobalState.capture() == inside
    assert outside.matches()
    assert not inside.matches()


def test_states_differ_from_each_other():
    found = []
    for name, state in STATES.items():
        if name in ("default device", "no torch function"):
            continue  # the same as their neighbours, as far as programs can tell
        with state():
            found.append(GlobalState.capture())
    assert len(set(found)) == len(found)


def test_functorch_level():
    outside = GlobalState.capture()
    seen = []

    def body(x):
        seen.append((outside.matches(), GlobalState.capture().functorch))
        return x

    torch.func.vmap(body)(torch.ones(2))
    assert seen == [(False, True)]


def test_state_is_per_thread():
    state = GlobalState.capture()
    seen = []
    with torch.no_grad():
        assert not state.matches()
        thread = threading.Thread(target=lambda: seen.append(state.matches()))
        thread.start()
        thread.join()
    assert seen == [True]


def test_default_device_is_named():
    with torch.device("meta"):
        assert GlobalState.capture().default_device == torch.device("meta")
    assert GlobalState.capture().default_device == torch.device("cpu")
