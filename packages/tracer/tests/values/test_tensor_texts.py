"""Texts with numbers out of tensors, and checks of tensors whose messages they are."""

import pytest
import torch
import torchsmith_tracer

X = torch.tensor([1.0, 2.0, 3.0])


def given_back(x):
    total = x.sum()
    return x * 2, f"sum {total} and {total:.2f}", [f"{(x > 1).any()}"]


def only_for_an_error(x):
    found = (x > 0).sum()
    message = f"got {found}, not 3" + "!"
    if x.shape[0] > 3:
        raise ValueError(message)
    return x + 1


def checked(x):
    found = (x > 0).sum()
    torch._check_tensor_all(found == 3, lambda: f"{found} are positive")
    return x + found


def asserted(x):
    torch._assert((x > 0).all(), "not positive")
    return x + 1


def caught(x):
    try:
        torch._assert((x > 0).all(), "not positive")
    except AssertionError as e:
        return str(e)
    return "positive"


def of_a_tensor_that_changes(x):
    total = x.sum()
    text = f"{total}"
    total.add_(1)
    return text, total


def compared(x):
    return f"{x.sum()}" == f"{x.sum()}", f"{x.sum()}" in {"6.0"}, "6" in f"{x.sum()}"


def changed(x):
    return f"{x.sum():>9}|".upper(), len(f"{x.sum()}")


def of_a_wrong_format(x):
    try:
        return f"{x.sum():zz}"
    except ValueError as e:
        return str(e)


def of_several(x):
    try:
        return f"{x}", f"{x:.2f}"
    except TypeError as e:
        return str(e)


def outcome(fn, x):
    try:
        return str(fn(x))
    except Exception as e:
        return type(e), str(e)


@pytest.mark.parametrize("fn", [given_back, only_for_an_error, checked, asserted, caught])
def test_one_graph(fn, capture):
    compiled = torchsmith_tracer.compile(fn, backend=capture, fullgraph=True)
    for x in (X, X * 2, -X, X):
        assert outcome(compiled, x) == outcome(fn, x)
    assert capture.n == 1


@pytest.mark.parametrize(
    "fn", [of_a_tensor_that_changes, compared, changed, of_a_wrong_format, of_several]
)
def test_what_must_be_known_is_a_break(fn):
    compiled = torchsmith_tracer.compile(fn, backend="eager")
    for x in (X, -X):
        assert outcome(compiled, x) == outcome(fn, x)
    assert compiled._torchsmith_region.log.breaks


def test_a_lazy_module_that_is_made_inside():
    def program(x):
        return torch.nn.LazyLinear(4)(x.reshape(1, 3)).shape

    compiled = torchsmith_tracer.compile(program, backend="eager")
    assert compiled(X) == program(X)
    assert "internal-error" not in [b.name for b in compiled._torchsmith_region.log.breaks]
