"""Backward halves are compiled while other threads call, compile, fail and differentiate."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest
import torch
from torchsmith_fx_backend._src import driver, settings
from torchsmith_fx_backend._src.runtime import launchers, native

THREADS = 6
TRACED = threading.Lock()  # the flag that a symbolic trace sets and puts back is the process's


@pytest.fixture(autouse=True, params=[False, True], ids=["when asked", "ahead"])
def waits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the launcher of the CPU waits for other processes, too."""
    if request.param:
        load = native.NativeLauncher.load

        def waiting(self: native.NativeLauncher, requests: object, cache: object) -> object:
            launchers.use_wait()
            return load(self, requests, cache)

        monkeypatch.setattr(native.NativeLauncher, "load", waiting)


def program(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (x @ w).tanh() * x, w.exp()


def leaves() -> list[torch.Tensor]:
    return [torch.linspace(-1, i + 1.0, 64).view(8, 8).requires_grad_() for i in range(2)]


def compiled(number: int = 1) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    with TRACED:
        graph = torch.fx.symbolic_trace(lambda x, w: tuple(t * number for t in program(x, w)))
    with settings.patch(graph_cache=False):
        return driver.compile_training(graph, leaves())


TANGENTS = [torch.ones(8, 8), torch.ones(8, 8).t().contiguous().t(), torch.ones(1).expand(8, 8)]


def gradients(function: Callable[..., object], kind: int, both: bool) -> list[torch.Tensor | None]:
    given = leaves()
    results = function(*given)
    count = 2 if both else 1
    torch.autograd.backward(results[:count], [TANGENTS[kind]] * count)
    return [x.grad for x in given]


def together(work: Callable[[int], object]) -> list[BaseException]:
    """What the threads that do ``work`` at once raise."""
    errors: list[BaseException] = []
    start = threading.Barrier(THREADS)

    def go(number: int) -> None:
        start.wait()
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=go, args=(n,), daemon=True) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    return errors


def test_threads_share_a_graph_and_its_halves() -> None:
    call = compiled()
    expected = {(k, b): gradients(program, k, b) for k in range(3) for b in (False, True)}

    def work(number: int) -> None:
        for turn in range(6):
            key = ((number + turn) % 3, bool(number % 2))
            torch.testing.assert_close(gradients(call, *key), expected[key])

    assert together(work) == []
    assert len(call.training.backwards) == len(expected)


def test_threads_compile_at_once() -> None:
    expected = gradients(program, 0, True)

    def work(number: int) -> None:
        found = gradients(compiled(number + 1), 0, True)
        torch.testing.assert_close(found, [(number + 1) * g for g in expected])

    assert together(work) == []


def test_a_half_that_fails_in_one_thread_is_compiled_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call = compiled(3)
    call.training.backwards.clear()
    prepare, failing = driver._half, [MemoryError("planted"), KeyError("planted")]

    def half(*arguments: object) -> object:
        if failing:
            raise failing.pop()
        return prepare(*arguments)

    monkeypatch.setattr(driver, "_half", half)
    expected = [3 * g for g in gradients(program, 0, True)]
    errors = together(lambda _: torch.testing.assert_close(gradients(call, 0, True), expected))
    assert sorted(type(e).__name__ for e in errors) == ["KeyError", "MemoryError"]
    torch.testing.assert_close(gradients(call, 0, True), expected)


def test_a_hook_of_a_backward_pass_compiles_and_differentiates() -> None:
    found: list[list[torch.Tensor | None]] = []

    def hook(grad: torch.Tensor) -> None:
        with torch.enable_grad():
            found.append(gradients(compiled(5), 0, True))
            found.append(gradients(call, 1, True))  # the graph that is being differentiated

    call = compiled(2)
    expected = gradients(program, 0, True)
    for _ in range(2):
        given = leaves()
        before = [x * 1 for x in given]
        before[0].register_hook(hook)
        results = call(*before)
        results[1].register_hook(hook)
        torch.autograd.backward(results, [TANGENTS[0]] * 2)
        torch.testing.assert_close([x.grad for x in given], [2 * g for g in expected])
    assert len(found) == 8
    for number, each in enumerate(found):
        torch.testing.assert_close(each, [(2 if number % 2 else 5) * g for g in expected])


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_goes_on() -> None:
    call = compiled()
    expected = gradients(program, 0, True)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            torch.testing.assert_close(gradients(call, 0, True), expected)
            torch.testing.assert_close(gradients(compiled(1), 0, True), expected)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    torch.testing.assert_close(gradients(call, 0, True), expected)
