"""Positions of pooling maxima are saved in a byte or two, and gradients stay eager's."""

import pytest
import torch
import torch.nn.functional as F
from torchsmith_fx_backend import Settings
from torchsmith_fx_backend._src.driver import compile_training

SETTINGS = Settings(graph_cache=False, verify=True, strict=True)


def halves(x, w):
    return F.max_pool2d(x * w, 2).sin()


def overlapping(x, w):
    return F.max_pool2d((x * w).tanh(), 3, 2, 1) * 3


def ragged(x, w):
    return F.max_pool2d(x + w, (3, 2), (2, 3), (1, 0), ceil_mode=True)


def spread(x, w):
    return F.max_pool2d(x * w, (2, 3), 1, (1, 0), dilation=(3, 2))


def large(x, w):
    return F.max_pool2d(x * w, 5, 3, 2)


def in_a_row(x, w):
    return F.max_pool2d(F.max_pool2d(x * w, 2) * w, 3, 1, 1)


def told(x, w):
    y, where = F.max_pool2d(x * w, 2, return_indices=True)
    return y * 2, where


def taken_back(x, w):
    y, where = F.max_pool2d(x * w, 2, return_indices=True)
    return F.max_unpool2d(y.sin(), where, 2, output_size=x.shape[-2:])


def volume(x, w):
    return F.max_pool3d((x * w).unflatten(1, (2, 2)), (2, 3, 2), (1, 2, 2), (1, 1, 0))


def last_channels(x, w):
    return F.max_pool2d((x * w).to(memory_format=torch.channels_last), 3, 2, 1)


def low(x, w):
    return F.max_pool2d((x * w).bfloat16(), 3, 2, 1).float()


def single(x, w):
    return F.max_pool2d((x * w)[0], 2, 1)


POOLS = [halves, overlapping, ragged, spread, large, in_a_row, told, taken_back]
POOLS += [volume, last_channels, low, single]


def inputs(step, size=(13, 11)):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(2, 4, *size, generator=generator)
    if step == 1:  # several maxima in each window
        x = x.round()
    if step == 2:
        x[0, 0, 3:6, 2] = torch.nan
        x[1, 1] = -torch.inf
    return [x.requires_grad_(), torch.rand(4, 1, 1, generator=generator).requires_grad_()]


def run(call, step):
    given = inputs(step)
    found = call(*given)
    found = list(found) if isinstance(found, (tuple, list)) else [found]
    roots = [t for t in found if t.requires_grad]
    tangents = [torch.randn(t.shape, generator=torch.Generator().manual_seed(9)) for t in roots]
    torch.autograd.backward(roots, tangents)
    return [*(t.detach() for t in found), *(t.grad for t in given)]


def compiled_for(program):
    class Module(torch.nn.Module):
        def forward(self, x, w):
            return program(x, w)

    return compile_training(Module(), inputs(0), SETTINGS)


@pytest.mark.parametrize("program", POOLS)
def test_gradients_are_eagers(program):
    compiled = compiled_for(program)
    for step in (0, 1, 2, 3):
        got, wanted = run(compiled, step), run(program, step)
        torch.testing.assert_close(got, wanted, equal_nan=True)
        assert [t.stride() for t in got] == [t.stride() for t in wanted]


@pytest.mark.parametrize("program", [halves, overlapping, in_a_row, volume, last_channels, low])
def test_nothing_of_eight_bytes_is_saved(program):
    training = compiled_for(program).training
    saved = [value for value in training._given.values() if isinstance(value, torch.Tensor)]
    kinds = {value.dtype for value in saved if not value.dtype.is_floating_point}
    assert kinds and kinds <= {torch.uint8, torch.int16}


def test_positions_that_the_caller_has_are_right():
    got, wanted = run(compiled_for(told), 3), run(told, 3)
    assert got[1].dtype is torch.int64 and torch.equal(got[1], wanted[1])


def test_a_wide_image_needs_two_bytes():
    def program(x, w):
        return F.max_pool2d(x * w, 3, 2, 1)

    class Module(torch.nn.Module):
        def forward(self, x, w):
            return program(x, w)

    wide = [t.detach() for t in inputs(0, (6, 300))]
    compiled = compile_training(Module(), [t.requires_grad_() for t in wide], SETTINGS)
    program(*wide).square().sum().backward()
    wanted = [t.grad for t in wide]
    for t in wide:
        t.grad = None
    compiled(*wide).square().sum().backward()
    torch.testing.assert_close([t.grad for t in wide], wanted)
    assert torch.int16 in {v.dtype for v in compiled.training._given.values()}
