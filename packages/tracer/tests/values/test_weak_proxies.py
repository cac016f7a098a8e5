"""A weak proxy shows the class of what it stands for, as long as that lives."""

import weakref

import pytest
import torch
import torchsmith_tracer as tracer


class Plain:
    size = 3

    def __call__(self, x):
        return x * self.size


def shown_class(proxy):
    return proxy.__class__.__name__, type(proxy).__name__


def is_one(proxy):
    kinds = (Plain, list, torch.nn.Module, torch.Tensor)
    return [isinstance(proxy, kind) for kind in kinds], isinstance(proxy, kinds)


def matched(proxy):
    match proxy:
        case torch.nn.Module() | torch.Tensor():
            return "of torch"
        case Plain(size=size):
            return size
    return "other"


MAKERS = {
    "plain": Plain,
    "module": lambda: torch.nn.Linear(2, 2),
    "tensor": lambda: torch.ones(2),
    "set": lambda: frozenset([1]),
}


@pytest.mark.filterwarnings("ignore::torchsmith_tracer.errors.TracerWarning")
@pytest.mark.parametrize("program", [shown_class, is_one, matched])
@pytest.mark.parametrize("kind", MAKERS)
def test_while_it_lives_and_after(program, kind):
    compiled = tracer.compile(program, backend="eager")
    for _ in range(2):
        thing = MAKERS[kind]()
        proxy = weakref.proxy(thing)
        assert compiled(proxy) == program(proxy)
        del thing
        for run in (program, compiled):
            with pytest.raises(ReferenceError):
                run(proxy)
