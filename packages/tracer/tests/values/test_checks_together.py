"""Checks of tensors that a program raises for: one in the graph for several, before what relies on
them; a failure is eager's, and leaves what eager leaves."""

import pytest
import torch
import torchsmith_tracer
from torch.distributions import Categorical, Normal
from torch.utils.checkpoint import checkpoint


def targets(capture):
    (graph,) = capture.graphs
    return [getattr(n.target, "__name__", n.target) for n in graph.graph.nodes if "call" in n.op]


def several(x, index, state):
    if (x < 0).any():
        raise ValueError("negative")
    if not x.isfinite().all():
        raise AssertionError("infinite")
    if x.sum() == 0:
        raise ValueError("empty")
    return x.sqrt() * 2


def before_an_index(x, index, state):
    torch._assert((index < 2).all(), "too large")
    if not (index >= 0).all():
        raise IndexError("too small")
    y = x[:, :2] * 2 + 1
    return y.gather(1, index) + x[0, 1:2]


def before_a_write(x, index, state):
    if (x < 0).any():
        raise ValueError("negative")
    y = x * 2
    state.add_(x)
    return y


def of_distributions(x, index, state):
    normal = Normal(x, x, validate_args=True)  # torch.compile switches that off for a process
    return normal.log_prob(x * 2).sum() + Categorical(x, validate_args=True).entropy()


def in_a_body(x, index, state):
    def body(x):
        if (x < 0).any():
            raise ValueError("negative")
        return x.sqrt() * 2

    torch._assert(x.isfinite().all(), "infinite")
    return checkpoint(body, x, use_reentrant=False) + 1


CASES = {several: 1, before_an_index: 1, before_a_write: 1, of_distributions: 1, in_a_body: 1}
GOOD = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
INDEX = torch.tensor([[0, 1], [1, 0]])


def outcome(fn, x, index):
    state = torch.zeros(2, 3)
    try:
        found = fn(x, index, state)
    except Exception as error:
        found = type(error), str(error)
    return found, state


@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_results_and_failures_are_those_of_eager(fn, capture):
    compiled = torchsmith_tracer.compile(fn, backend=capture, fullgraph=True)
    for x in (GOOD, GOOD.clone().fill_(0), -GOOD, GOOD / 0, GOOD * torch.nan, GOOD + 1):
        for index in (INDEX, INDEX + 5, INDEX - 5):
            found, left = outcome(compiled, x, index)
            expected, wanted = outcome(fn, x, index)
            if isinstance(expected, torch.Tensor):
                torch.testing.assert_close(found, expected, equal_nan=True)
            else:
                assert found == expected
            torch.testing.assert_close(left, wanted, equal_nan=True)
    assert targets(capture).count("_assert_async") == CASES[fn]


def test_checks_come_before_what_relies_on_them(capture):
    torchsmith_tracer.compile(before_an_index, backend=capture)(GOOD, INDEX, None)
    names = targets(capture)
    assert names.index("mul") < names.index("_assert_async") < names.index("gather")
    torchsmith_tracer.compile(before_a_write, backend=(later := type(capture)()))(GOOD, None, GOOD)
    names = targets(later)
    assert names.index("_assert_async") < names.index("add_")


def test_checks_around_a_break(capture):
    def fn(x):
        if not x.isfinite().all():
            raise AssertionError
        y = x * 2
        torch.randn(1).item()
        if not (y > 0).all():
            raise AssertionError
        return y + 1

    compiled = torchsmith_tracer.compile(fn, backend=capture)
    assert torch.equal(compiled(GOOD), fn(GOOD))
    for bad in (-GOOD, GOOD / 0):
        with pytest.raises(AssertionError):
            compiled(bad)
