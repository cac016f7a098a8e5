"""Handlers of signals that raise: their exception reaches the program from wherever it came up,
in a compile as in a call that is compiled, and is taken for no failure."""

import functools
import gc
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
import torchsmith
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

WEIGHT = torch.eye(4)


class TimeIsUpError(Exception):
    """What programs raise to end something that takes too long."""


def handler(number, frame):
    raise TimeIsUpError


class Handler:
    def __call__(self, number, frame):
        raise TimeIsUpError

    def method(self, *args):
        raise TimeIsUpError


@functools.wraps(handler)
def wrapped(*args):
    return handler(*args)


HANDLERS = {
    "function": handler,
    "object": Handler(),
    "method": Handler().method,
    "wrapped": wrapped,
}


@pytest.fixture(params=HANDLERS)
def installed(request):
    before = signal.signal(signal.SIGUSR1, HANDLERS[request.param])
    yield
    signal.signal(signal.SIGUSR1, before)


def interrupted(call, at):
    """Run ``call`` with a signal as line number ``at`` of Python code is reached; whether there are
    that many, and whether it was interrupted."""
    lines = [0]

    def trace(frame, event, arg):
        if event == "line" and lines[0] <= at:
            lines[0] += 1
            if lines[0] == at:
                signal.raise_signal(signal.SIGUSR1)
        return trace

    callbacks, thresholds = gc.callbacks[:], gc.get_threshold()
    gc.callbacks.clear()  # what these raise is ignored, as is what finalizers do
    gc.set_threshold(0)
    sys.settrace(trace)
    try:
        call()
    except TimeIsUpError:
        return True, True
    finally:
        sys.settrace(None)
        gc.set_threshold(*thresholds)
        gc.callbacks.extend(callbacks)
    return lines[0] >= at, False


def inference(x, log):
    log.append(len(log))
    for _ in range(3):
        x = (x @ WEIGHT).sin() + x.sum()
    return x


def in_a_block(x, log):
    with torch.no_grad():
        try:
            return inference(x, log) * 2
        except ValueError:
            return x


def training(x, log):
    log.append(len(log))
    x = x.clone().requires_grad_()
    (x @ WEIGHT).exp().sum().backward()
    return x.grad


def assert_nothing_is_left():
    end = time.monotonic() + 30
    while not gc.isenabled() and time.monotonic() < end:
        time.sleep(0.01)  # a thread may be compiling the backward half ahead
    assert torch.is_grad_enabled() and gc.isenabled()
    assert not torch.is_autocast_enabled("cpu") and not _get_current_dispatch_mode_stack()


@pytest.mark.parametrize("fn", [inference, in_a_block, training])
def test_a_call_is_interrupted_wherever_it_is(fn, installed):
    compiled = torchsmith.compile(fn)
    x, log = torch.arange(8.0).view(2, 4) / 8, []
    for _ in range(3):
        log.clear()
        compiled(x, log)
    at, there = 0, True
    while there:
        at += 1
        log.clear()
        there, ended = interrupted(lambda: compiled(x, log), at)
        assert ended or not there, f"line {at} was not interrupted"
        assert len(log) <= 1
        assert_nothing_is_left()
    assert at > 5
    torch.testing.assert_close(compiled(x, log), fn(x, log))


@pytest.mark.parametrize("installed", ["function"], indirect=True)
@pytest.mark.parametrize("fn", [inference, training])
def test_a_compile_is_interrupted(fn, installed):
    """At some of its very many lines."""
    x = torch.arange(8.0).view(2, 4) / 8
    torchsmith.compile(fn)(x, [])  # modules are loaded
    at, interruptions = 1, 0
    while True:
        compiled = torchsmith.compile(fn, options={"graph_cache": False})
        there, ended = interrupted(lambda: compiled(x, []), at)
        if not there:
            break
        interruptions += ended
        assert_nothing_is_left()
        at = at * 5 // 4 + 1
    assert interruptions > 20
    torch.testing.assert_close(compiled(x, []), fn(x, []))


@pytest.mark.parametrize("installed", ["function", "method"], indirect=True)
def test_a_compile_without_end_is_interrupted(installed):
    """At once by a second signal, where the first waits for a better place."""
    reached = []

    def backend(graph, inputs):
        with torch.no_grad():
            signal.raise_signal(signal.SIGUSR1)
            reached.append(1)
            signal.raise_signal(signal.SIGUSR1)
        raise AssertionError("not reached")

    x = torch.arange(8.0).view(2, 4) / 8
    compiled = torchsmith.compile(inference, backend=backend)
    for count in (1, 2):
        with pytest.raises(TimeIsUpError):
            compiled(x, [])
        assert len(reached) == count
        assert_nothing_is_left()


def test_what_was_interrupted_is_compiled_again(installed):
    calls = []

    def backend(graph, inputs):
        calls.append(1)
        if len(calls) == 1:
            signal.raise_signal(signal.SIGUSR1)
        return graph.forward

    x, log = torch.arange(8.0).view(2, 4) / 8, []
    compiled = torchsmith.compile(inference, backend=backend)
    with pytest.raises(TimeIsUpError):
        compiled(x, log)
    assert not log
    for _ in range(2):
        torch.testing.assert_close(compiled(x, log), inference(x, []))
    assert log == [0, 1]


def test_a_program_deals_with_its_own(installed):
    def fn(x):
        y = x + 1
        try:
            signal.raise_signal(signal.SIGUSR1)
        except TimeIsUpError:
            return y * 2
        return y

    compiled = torchsmith.compile(fn)
    for _ in range(3):
        assert compiled(torch.ones(2)).tolist() == [4, 4]


def test_a_guard_that_cannot_be_asked_fails():
    """An exception that is raised within a check, by an object of the program's, is another."""

    class Lazy(nn.Module):
        def forward(self, x):
            return x * self.scale

    model = Lazy()
    model.scale = 2.0
    compiled = torchsmith.compile(model)
    assert compiled(torch.ones(2)).tolist() == [2, 2]
    del model.scale
    with pytest.raises(AttributeError):
        compiled(torch.ones(2))


ENDS = """
import threading, time, torch, torchsmith

@torchsmith.compile
def fn(x):
    for i in range(60):
        x = (x * i).sin() + x.mean()
    return x

threading.Thread(target=fn, args=(torch.ones(5),), daemon=True).start()
time.sleep({seconds})
print("the end")
"""


@pytest.mark.parametrize("seconds", [0.02, 0.2, 0.6])
def test_the_process_ends_while_a_daemon_thread_compiles(seconds, tmp_path):
    """The thread was stopped where C++ freed what its compile had made: an abort."""
    command = [sys.executable, "-c", ENDS.format(seconds=seconds)]
    folder = {**os.environ, "TORCHSMITH_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(command, env=folder, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "the end\n", "")
