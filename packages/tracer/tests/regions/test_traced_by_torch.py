"""Compiled functions and modules that ``torch.jit`` traces or compiles: it sees the program."""

import pytest
import torch
import torchsmith_tracer
from torch import nn


def compiled_before(target, x):
    run = torchsmith_tracer.compile(target)
    for _ in range(3):
        run(x)
    return run


def compiled_within(target, x):
    return torchsmith_tracer.compile(target)


TARGETS = {
    "function": lambda: lambda x: x.sin() * 2,
    "module": lambda: nn.Linear(3, 3).requires_grad_(False),
    "no gradient": lambda: torch.no_grad()(nn.Linear(3, 3).requires_grad_(False).forward),
}


@pytest.mark.parametrize("how", [compiled_before, compiled_within])
@pytest.mark.parametrize("name", TARGETS)
def test_a_trace_has_the_operators_of_the_program(name, how):
    target, x = TARGETS[name](), torch.ones(2, 3)
    run = how(target, x)
    traced = torch.jit.trace(run, x, check_trace=False)
    outer = torch.jit.trace(lambda x: run(x) + 1, x, check_trace=False)
    for y in (torch.zeros(2, 3), torch.full((5, 3), 2.0)):
        torch.testing.assert_close(traced(y), target(y))
        torch.testing.assert_close(outer(y), target(y) + 1)
        torch.testing.assert_close(run(y), target(y))


def test_a_compiled_module_is_scripted_as_what_it_was_made_from():
    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    run = torchsmith_tracer.compile(module)
    x = torch.randn(2, 3)
    run(x)
    torch.testing.assert_close(torch.jit.script(run)(x), module(x))
    assert run._orig_mod is module
