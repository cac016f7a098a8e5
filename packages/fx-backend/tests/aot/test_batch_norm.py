"""Batch norm in training writes its statistics without a word in its schema."""

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torchsmith_fx_backend import smith


def norm(x, w, mean, var, momentum=0.1):
    return F.batch_norm(x, mean, var, w, None, training=True, momentum=momentum)


def unused(x, w, mean, var):
    norm(x, w, mean, var)
    return x * w


def read_after(x, w, mean, var):
    before = (mean * 3).sin()
    y = norm(x, w, mean, var)
    return y + before + (mean * 2).cos(), var.sum()


def twice(x, w, mean, var):
    return norm(norm(x, w, mean, var).exp(), w, mean, var, 0.3)


def one_buffer_for_two(x, w, mean, var):
    return norm(x, w, mean, var) + norm(x + 1, w, mean, var.clone())


def views(x, w, mean, var):
    part = mean.view(2, -1)
    mean.mul_(2)
    return norm(x, w, part.flatten(), var)


def in_double(x, w, mean, var):
    return norm(x.bfloat16(), w, mean, var).float()


PROGRAMS = [unused, read_after, twice, one_buffer_for_two, views, in_double]


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("program", PROGRAMS)
def test_statistics_are_eagers(program, gradients):
    torch.manual_seed(0)
    ours = [torch.randn(5, 4), torch.rand(4), torch.randn(4), torch.rand(4)]
    eagers = [t.clone() for t in ours]
    for given in (ours, eagers):
        given[1].requires_grad_(gradients)
    compiled = smith(fx.symbolic_trace(program), ours)
    assert hasattr(compiled, "source")
    for step in range(3):
        got, wanted = (
            call(given[0] + step, *given[1:])
            for call, given in ((compiled, ours), (program, eagers))
        )
        torch.testing.assert_close(got, wanted)
        torch.testing.assert_close(ours, eagers)
        assert [t._version for t in ours] == [t._version for t in eagers]
        if gradients:
            for result, given in ((got, ours), (wanted, eagers)):
                loss = result[0] if isinstance(result, tuple) else result
                given[1].grad = None
                loss.square().sum().backward()
            torch.testing.assert_close(ours[1].grad, eagers[1].grad)


def test_two_forward_passes_before_a_backward_pass():
    given = [torch.randn(5, 4), torch.rand(4, requires_grad=True), torch.zeros(4), torch.ones(4)]
    compiled = smith(fx.symbolic_trace(norm), [*given, 0.1])
    first = compiled(*given, 0.1)
    second = compiled(*given, 0.1)
    (first.square().sum() + second.sum()).backward()
    got, given[1].grad = given[1].grad, None
    first, second = norm(*given), norm(*given)
    (first.square().sum() + second.sum()).backward()
    torch.testing.assert_close(got, given[1].grad)


def test_statistics_are_updated_in_place_where_nothing_else_reads_them():
    """By eager's function, which is called for images that do not lie densely in rows."""
    x = torch.randn(4, 5).t()
    given = [x, torch.rand(4, requires_grad=True), torch.zeros(4), torch.ones(4)]
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            source = smith(fx.symbolic_trace(norm), [*given, 0.1]).source
        assert "native_batch_norm.default" in source and "copy" not in source


def test_a_relu_and_its_gradient_are_in_the_kernels_of_the_norm():
    def program(x, w, mean, var):
        return F.batch_norm(x, mean, var, w, None, True).relu()

    given = [torch.randn(5, 4, 6, 6), torch.rand(4, requires_grad=True)]
    given += [torch.zeros(4), torch.ones(4)]
    compiled = smith(fx.symbolic_trace(program), given)
    assert "batch_norm" not in compiled.source
    assert len(compiled.kernels) <= 2
