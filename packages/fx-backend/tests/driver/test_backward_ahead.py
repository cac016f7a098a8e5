"""The usual backward half is compiled while other processes compile the forward half's kernels."""

from __future__ import annotations

import pytest
import torch
from torchsmith_fx_backend._src import driver, settings
from torchsmith_fx_backend._src.runtime import launchers, native


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher of the CPU waits too."""
    load = native.NativeLauncher.load

    def waiting(self: native.NativeLauncher, requests: object, cache: object) -> object:
        launchers.use_wait()
        return load(self, requests, cache)

    monkeypatch.setattr(native.NativeLauncher, "load", waiting)


def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w).tanh() * x.exp()


def compiled(*inputs: torch.Tensor, **options: object):
    graph = torch.fx.symbolic_trace(program)
    with settings.patch(graph_cache=False, **options):
        return driver.compile_training(graph, inputs)


def inputs() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(4, 4, requires_grad=True) for _ in range(2)]


def gradients(function, given: list[torch.Tensor], scale: float = 1.0) -> list[torch.Tensor]:
    result = function(*given)

    return [result, *torch.autograd.grad((result * scale).sum(), given)]


def test_both_halves_are_there_after_the_first() -> None:
    given = inputs()
    call = compiled(*given)
    assert len(call.training.backwards) == 1
    assert [name for name, _ in call.schedules.args[0]] == ["forward", "backward"]
    for scale in (1.0, -2.0):
        torch.testing.assert_close(gradients(call, given, scale), gradients(program, given, scale))
    assert len(call.training.backwards) == 1


def test_other_tangents_get_a_half_of_their_own() -> None:
    given = inputs()
    call = compiled(*given)
    result = call(*given)
    found = torch.autograd.grad(result, given, torch.ones(4, 4).t().contiguous().t())
    assert len(call.training.backwards) == 2
    torch.testing.assert_close(found, torch.autograd.grad(program(*given).sum(), given))


def test_a_loss_beside_other_results_is_taken_to_be_differentiated_alone() -> None:
    def with_loss(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result = program(x, w)
        return result.square().mean(), result

    given = inputs()
    graph = torch.fx.symbolic_trace(with_loss)
    with settings.patch(graph_cache=False):
        call = driver.compile_training(graph, given)
    torch.testing.assert_close(
        torch.autograd.grad(call(*given)[0], given),
        torch.autograd.grad(with_loss(*given)[0], given),
    )
    assert len(call.training.backwards) == 1
    both = [torch.autograd.grad(sum(t.sum() for t in f(*given)), given) for f in (call, with_loss)]
    torch.testing.assert_close(*both)
    assert len(call.training.backwards) == 2


def test_independent_results_have_halves_of_their_own() -> None:
    given = inputs()
    graph = torch.fx.symbolic_trace(lambda x, w: (x.exp() * 2, w.tanh()))
    with settings.patch(graph_cache=False):
        call = driver.compile_training(graph, given)
    assert len(call.training.backwards) == 2
    both = [
        torch.autograd.grad(sum(t.cos().sum() for t in f(*given)), given) for f in (call, graph)
    ]
    torch.testing.assert_close(*both)
    assert len(call.training.backwards) == 2


def test_results_in_another_order_wait_for_their_tangents() -> None:
    given = inputs()
    graph = torch.fx.symbolic_trace(lambda x, w: program(x, w).t().exp())
    with settings.patch(graph_cache=False):
        call = driver.compile_training(graph, given)
    assert not call.training.backwards
    torch.testing.assert_close(
        torch.autograd.grad(call(*given).sum(), given),
        torch.autograd.grad(graph(*given).sum(), given),
    )


def test_what_fails_ahead_is_told_by_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    given = inputs()
    prepare, asked = driver._half, []

    def half(module: torch.fx.GraphModule, *rest: object) -> object:
        asked.append(module)
        if len(asked) == 2:
            raise MemoryError
        return prepare(module, *rest)

    monkeypatch.setattr(driver, "_half", half)
    call = compiled(*given)
    assert len(asked) == 2 and not call.training.backwards
    torch.testing.assert_close(gradients(call, given), gradients(program, given))
    assert len(asked) == 3


def test_nothing_is_compiled_ahead_without_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launchers, "use_wait", lambda: None)
    assert not compiled(*inputs()).training.backwards
