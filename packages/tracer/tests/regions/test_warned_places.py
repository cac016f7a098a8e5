"""Warnings name the program's file and line, and are shown as often as eager shows them."""

import sys
import warnings

import pytest
import torch
import torchsmith_tracer


def direct(x, level):
    warnings.warn("direct", stacklevel=level)
    return x * 2


def after_a_break(x, level):
    y = x.sum().item()
    warnings.warn("after", FutureWarning, stacklevel=level)
    return x * y


def helper(level):
    warnings.warn(UserWarning("of a helper"), stacklevel=level)


def in_a_helper(x, level):
    x = x + 1
    helper(level)
    return x * x.sum().item()


def in_a_loop(x, level):
    for _ in range(2):
        x = x * x.sum().item()
        helper(level)
    return x


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)

    def forward(self, x, level):
        x = self.inner(x)
        warnings.warn("of a layer", stacklevel=level)
        return x * x.detach().sum().item()


def calls(f, level):
    """Two places, each several times; what reached the user of the function."""
    x = torch.ones(2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        globals().pop("__warningregistry__", None)
        for _ in range(3):
            f(x, level)
        f(x, level)
    return [(str(w.message), w.category, w.filename, w.lineno) for w in caught]


@pytest.mark.parametrize("level", [0, 1, 2, 3, 4, 1000])
@pytest.mark.parametrize("fn", [direct, after_a_break, in_a_helper, in_a_loop])
def test_the_place_of_a_warning(fn, level, capture):
    compiled = torchsmith_tracer.compile(fn, backend=capture)
    own, expected = [calls(f, level) for f in (compiled, fn)]  # from one line
    assert expected
    assert own == expected
    assert capture.n >= 1


@pytest.mark.parametrize("level", [1, 2])
def test_the_place_of_a_warning_of_a_method(level, capture):
    class User:
        def step(self, x, level):
            warnings.warn("of a method", stacklevel=level)
            return x * 2

    user = User()
    compiled = torchsmith_tracer.compile(user.step, backend=capture)
    assert calls(compiled, level) == calls(user.step, level)


def test_the_place_of_a_warning_of_a_layer(capture):
    layer = Layer()
    compiled = torchsmith_tracer.compile(layer, backend=capture)
    assert calls(compiled, 1) == calls(layer, 1)
    assert capture.n >= 1


def test_a_warning_that_is_an_error(check):
    def f(x):
        y = x * x.sum().item()
        warnings.warn("now an error", stacklevel=2)
        return y

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(f, torch.ones(2), breaks=["item", "opaque-call"])


def test_a_level_that_is_no_number(agree):
    def f(x):
        warnings.warn("bad", stacklevel="2")
        return x

    agree(f, torch.ones(2))


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the argument is new in 3.12")
def test_prefixes_that_are_skipped(capture):
    def f(x, level):
        warnings.warn("skipping", stacklevel=level, skip_file_prefixes=(__file__,))
        return x * 2

    compiled = torchsmith_tracer.compile(f, backend=capture)
    assert calls(compiled, 2) == calls(f, 2)
