"""Compiling is not seen by what the user has made active, and uses nothing of theirs up."""

import contextlib
import random
import warnings

import numpy as np
import pytest
import torch
import torchsmith_tracer
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class Dispatch(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


def f(x):
    return torch.nn.functional.dropout(x * 2 + 1, 0.5).sin()


@pytest.mark.parametrize("mode", [Dispatch, Functions])
@pytest.mark.parametrize("warm", [None, contextlib.nullcontext(), torch.device("cpu")])
def test_modes_see_the_operators_of_the_program_and_no_others(mode, warm):
    compiled = torchsmith_tracer.compile(f)
    if warm is not None:
        with warm:
            compiled(torch.ones(3))
    x = torch.ones(3)
    with mode() as eager:
        f(x)
    with mode() as ours:
        compiled(x)
        compiled(x)
    assert ours.seen == eager.seen * 2
    notes = [r.note for r in compiled._torchsmith_region.log.frames if r.eager]
    assert len(notes) == 1
    assert mode.__name__ in notes[0]


def test_a_default_device_is_no_reason_to_run_eagerly(capture):
    with torch.device("meta"):
        out = torchsmith_tracer.compile(lambda: torch.ones(2) + 1, backend=capture)()
    assert out.device.type == "meta"
    assert capture.n == 1


def test_saved_tensor_hooks_are_called_as_often_as_in_eager():
    def loss(x):
        return (x.sin() * x.exp()).sum()

    def count(fn):
        seen = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: (seen.append(type(t)), t)[1], lambda t: t
        ):
            fn(torch.ones(3, requires_grad=True))
        return seen

    assert count(torchsmith_tracer.compile(loss)) == count(loss)


def test_random_numbers_are_not_used_up():
    def compile_and_draw(work):
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        work()
        return random.random(), np.random.rand(), float(torch.rand(()))

    def greedy(gm, example_inputs):
        random.random(), np.random.rand(), torch.rand(3)
        return gm.forward

    compiled = torchsmith_tracer.compile(lambda x: x + 1, backend=greedy)
    assert compile_and_draw(lambda: compiled(torch.ones(2))) == compile_and_draw(lambda: None)


def test_warnings_are_given_once_for_each_call_that_warns():
    def softmax(x):
        return torch.nn.functional.softmax(x + 1)  # warns about the implicit dimension

    def given(fn):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            fn(torch.ones(2, 2))
        return [str(w.message) for w in found]

    assert given(torchsmith_tracer.compile(softmax)) == given(softmax)


def test_compiling_does_not_bring_back_warnings_that_were_shown():
    arrays = torchsmith_tracer.compile(lambda a: np.sqrt(a).mean() > a.max())

    def shown(x):
        warnings.warn("only once", stacklevel=1)
        return x

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        shown(0)
        for step in range(3):
            torchsmith_tracer.compile(lambda x, k=step: x + k)(torch.ones(2))
            arrays(np.ones(step + 2))
            shown(step)
    assert [str(w.message) for w in found] == ["only once"]


def test_autocast_keeps_no_fake_casts():
    weight = torch.ones(3, 3, requires_grad=True)

    def product(x):
        return x @ weight

    with torch.autocast("cpu", torch.bfloat16):
        first = torchsmith_tracer.compile(product)(torch.ones(3, 3))
        assert torch.is_autocast_cache_enabled()
        second = product(torch.ones(3, 3))
    assert torch.equal(first, second)


def test_profilers_do_not_see_the_tracing():
    def counts(fn):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as prof:
            fn(torch.ones(4))
        return {e.key: e.count for e in prof.key_averages() if e.key.startswith("aten::")}

    def g(x):
        return (x * 2).sin()

    expected = counts(g)
    assert expected["aten::sin"] == 1
    assert counts(torchsmith_tracer.compile(g)) == expected
