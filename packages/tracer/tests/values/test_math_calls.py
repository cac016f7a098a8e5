"""Functions of ``math`` on numbers that vary: one symbolic version, and Python's own errors."""

import math
import types

import pytest
import torch
from torchsmith_guards import SYMBOLIC_MATH
from torchsmith_tracer import compile as smith


def outcome(fn, *args):
    """Result, and type and text of what was raised."""
    try:
        return fn(*args), None
    except Exception as e:
        return None, (type(e), str(e))


def same(a, b):
    """The same objects: numbers to the bit, tensors closely."""
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b) or torch.allclose(a, b, equal_nan=True)
    return type(a) is type(b) and (a == b or a != a)


X = torch.linspace(-1, 1, 4)


def agree(fn, arguments, capture, graphs):
    """``fn`` compiled gives what it gives eagerly, call by call; how many graphs are made."""
    compiled = smith(fn, backend=capture)
    for number in arguments:
        assert same(outcome(compiled, X, number), outcome(fn, X, number)), number
    assert capture.n == graphs


@pytest.mark.parametrize("name", SYMBOLIC_MATH)
def test_the_exact_number_in_one_symbolic_version(name, capture):
    function = getattr(math, name)
    numbers = (1.25, 1.5, 1.75, 2.0) if name == "acosh" else (0.125, 0.25, 0.375, 0.75)
    agree(lambda a, n: (a * function(n), function(n)), numbers, capture, 2)


@pytest.mark.parametrize(
    "fn",
    [
        lambda a, n: a * math.log(n),
        lambda a, n: a * math.log(n, 2),
        lambda a, n: a * math.log(10, n + 1),
        lambda a, n: a * math.pow(n, 0.5),
        lambda a, n: a * math.pow(2, n),
        lambda a, n: a * (1 - math.exp(-n / 200)),
        lambda a, n: a if math.isnan(n / 3) or not math.isfinite(n / 3) else a * n,
    ],
)
@pytest.mark.parametrize("numbers", [(2, 3, 4, 9), (2.5, 3.5, 4.5, 0.125)])
def test_several_arguments_and_whole_numbers(fn, numbers, capture):
    agree(fn, numbers, capture, 2)


@pytest.mark.parametrize("name", SYMBOLIC_MATH)
@pytest.mark.parametrize("bad", [-1.0, 0.0, 1e308, -1e308, 2.0, 710.0, 1024.0])
def test_numbers_out_of_the_domain(name, bad, capture):
    function = getattr(math, name)

    def written_first(a, n):
        a.add_(1)
        out = function(n * 1.0)
        a.mul_(0.5)
        return out

    compiled = smith(written_first, backend=capture)
    near = 1.25 if name == "acosh" else 0.25
    for number in (near, near + 0.125, bad, near, math.inf, near + 0.25):
        a, b = X.clone(), X.clone()
        assert same(outcome(compiled, a, number), outcome(written_first, b, number)), number
        assert torch.equal(a, b)


def test_a_count_on_an_object(capture):
    def decayed(a, owner):
        owner.step += 1
        return a * 0.99 * (1 - math.exp(-owner.step / 200))

    compiled = smith(decayed, backend=capture)
    one, other = types.SimpleNamespace(step=0), types.SimpleNamespace(step=0)
    for _ in range(5):
        assert same(compiled(X, other), decayed(X, one))
    assert other.step == one.step == 5 and capture.n == 1


def test_the_logarithm_of_a_size(capture):
    def scaled(a):
        return a / math.log(a.shape[0]) * math.sqrt(a.shape[0])

    compiled = smith(scaled, backend=capture)
    for size in (3, 4, 5, 9):
        assert same(compiled(torch.ones(size)), scaled(torch.ones(size)))
    assert capture.n == 2


def test_a_number_out_of_a_tensor():
    def scaled(a):
        return a * math.log(a.sum().item())

    compiled = smith(scaled, fullgraph=True, options={"capture_scalar_outputs": True})
    for size in (3, 4, 5):
        assert same(compiled(torch.ones(size)), scaled(torch.ones(size)))
    with pytest.raises(ValueError, match="math domain error|expected a positive"):
        compiled(torch.zeros(4))
