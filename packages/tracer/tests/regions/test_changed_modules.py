"""Modules whose class, or what calling them means, changes between calls."""

import pytest
import torch
import torchsmith_tracer
from torch import nn
from torch.nn.utils import parametrize

X = torch.arange(6.0).reshape(2, 3)


class Symmetric(nn.Module):
    def forward(self, w):
        return w.triu() + w.triu(1).mT


LAZY = {
    "linear": lambda: nn.LazyLinear(4),
    "norm": lambda: nn.LazyBatchNorm1d(),
    "chain": lambda: nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2)),
}


@pytest.mark.parametrize("name", LAZY)
def test_lazy_modules_are_compiled_from_their_second_call_on(program, capture, name):
    def body(C):
        module = LAZY[name]()
        run = C(module)
        seen = [run(X + i) for i in range(3)]
        return seen, dict(run.state_dict()), run.__class__, isinstance(run, type(module))

    program(body)
    assert capture.n == 1


def test_a_lazy_module_whose_first_call_fails_is_still_to_be_made(program, capture):
    def body(C):
        run = C(nn.LazyLinear(4))
        with pytest.raises(AttributeError):
            run("no tensor")
        return [run(X) for _ in range(2)]

    program(body)
    assert capture.n == 1


def test_a_lazy_module_in_a_function_breaks_its_first_call_only(program, capture):
    def body(C):
        module = nn.LazyLinear(4)
        run = C(lambda x: module(x + 1) * 2)
        return [run(X) for _ in range(3)]

    program(body, broken=True)
    assert [len(capture.targets(i)) for i in range(capture.n)] == [1, 1, 3]


def test_parametrizations_that_come_and_go(program):
    def body(C):
        module = nn.Linear(3, 3)
        run, seen = C(module), []
        outer = C(lambda x: run(x) * 2)
        for change in (
            lambda: None,
            lambda: parametrize.register_parametrization(run, "weight", Symmetric(), unsafe=True),
            lambda: parametrize.remove_parametrizations(module, "weight"),
        ):
            change()
            seen += [run(X), outer(X), run.weight.detach(), run.__class__.__name__]
        return seen

    program(body)


def test_attributes_of_the_compiled_form_are_those_of_the_module(program):
    def body(C):
        module = nn.Linear(3, 3)
        run, seen = C(module), []
        run.extra = nn.ReLU()
        seen.append(list(module._modules))
        del run.extra
        for use in (lambda: run.extra, lambda: delattr(run, "extra")):
            with pytest.raises(AttributeError) as error:
                use()
            seen.append(str(error.value))
        return seen

    program(body)


def test_a_call_of_modules_that_is_replaced(program, monkeypatch):
    plain = nn.Module.__call__

    def body(C):
        module = nn.Linear(3, 3)
        run, seen = C(module), [C(module)(X)]
        for call in (plain, lambda self, *args: plain(self, *args) * 2, plain):
            monkeypatch.setattr(nn.Module, "__call__", call)
            seen.append(run(X))
        return seen

    program(body)


def test_lazy_modules_say_why_they_break():
    module = nn.LazyLinear(4)
    run = torchsmith_tracer.compile(lambda x: module(x), backend="eager")
    run(X)
    assert "its first call makes its parameters" in run._torchsmith_region.log.breaks[0].what
