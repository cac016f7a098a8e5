"""What happens around a compiled graph: the user's own errors reach the user."""

import pytest
import torch
import torchsmith_tracer as ts


def test_errors_of_a_script_are_the_users_own():
    """A script run as a file has ``__package__`` None, unlike a module."""
    namespace = {"__package__": None}
    exec("def pick(a, i):\n    return a[i] * 2\n", namespace)
    compiled = ts.compile(namespace["pick"], backend="eager")
    with pytest.raises(IndexError, match="out of bounds"):
        compiled(torch.randn(4, 5), torch.tensor([4]))


@pytest.mark.parametrize("write", [lambda a, b: a.pow_(b), lambda a, b: a.float_power_(b)])
def test_an_in_place_operator_never_resizes_what_it_writes(write):
    a, b = torch.rand(5, 1).double(), torch.rand(5, 5).double()
    compiled = ts.compile(lambda a, b: write(a.mul_(1), b), backend="eager")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="broadcast shape"):
            compiled(a, b)
    assert a.shape == (5, 1)
