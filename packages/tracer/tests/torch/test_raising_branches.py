"""Branches on tensors whose one side only raises: checked in the graph, and the program's own error
where the check fails. PYTEST_DONT_REWRITE: the asserts of the programs are to be CPython's."""

import pytest
import torch
from torch import nn


def asserts(x, log):
    log.append("before")
    assert (x > 0).all(), f"not {x}"
    log.append("after")
    return x * 2


def raises_if(x, log):
    y = x * 2
    log.append(x.sum())
    if torch.isnan(y.log()).any():
        raise ValueError("negative " + str(len(log)))
    return y


def in_a_function(x, log):
    def check(t):
        if not t.min() >= 0:
            log.append("bad")
            raise ArithmeticError(t)
        return t

    return check(x.add(0)) + check(x * 2)


def handled(x, log):
    try:
        assert x.sum() > 0
        y = x + 1
    except AssertionError:
        log.append("caught")
        y = x - 1
    return y * 2


def after_a_write(x, log):
    x.mul_(2)
    noise = torch.rand(2)
    assert x[0] > 0
    x.add_(1)
    return x + noise


def numbers(x, log):
    if x.sum() == -2:  # a float
        raise ValueError
    assert x.sum().int()
    return x


def distribution(x, log):
    d = torch.distributions.Normal(x, x)
    return d.rsample(), d.log_prob(x), d.entropy()


def categorical(x, log):
    d = torch.distributions.Categorical(probs=x)
    return d.sample(), d.entropy(), torch.distributions.Bernoulli(logits=x).log_prob(x * 0)


ONE_GRAPH = [
    *(asserts, raises_if, in_a_function, handled, after_a_write, numbers, distribution),
    categorical,
]


@pytest.mark.parametrize("fn", ONE_GRAPH)
def test_the_graph_goes_on(program, capture, fn):
    def body(C):
        run, log, seen = C(fn), [], []
        for value in (1.0, 2.0, -1.0, 3.0, -1.0):
            x = torch.full((2,), value)
            try:
                seen.append(run(x, log))
            except (ValueError, ArithmeticError, AssertionError) as e:
                seen.append((type(e), str(e)))
            log.append(x)
            log[:-2] = []  # a list that grows is another one
        return seen, log, torch.rand(1)

    assert program(body) <= 3


def test_branches_that_do_more_are_breaks(program):
    def goes_on(x):
        y = x + 1
        if x.sum() > 0:
            y = y * 2
        return y - 1

    def body(C):
        run = C(goes_on)
        return [run(torch.full((2,), v)) for v in (1.0, -1.0, 1.0)]

    program(body, broken=True)


def test_gradients(program):
    def body(C):
        layer = nn.Linear(2, 2)

        def step(x):
            y = layer(x)
            assert not y.isnan().any()
            return y.sum()

        run, seen = C(step), []
        for _ in range(2):
            layer.zero_grad()
            run(torch.ones(1, 2)).backward()
            seen.append(layer.weight.grad.clone())
        return seen

    assert program(body) == 1
