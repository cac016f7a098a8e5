"""Batch norms of low precision on a CPU keep statistics as eager does, not as torch's fakes say."""

import itertools

import pytest
import torch
from torchsmith_guards import FakeMode, LocalSource, ShapeEnv, hint_of
from torchsmith_guards._src.fake.layouts.base import layout_of

aten = torch.ops.aten
FORMATS = (torch.contiguous_format, torch.channels_last)
LOW = (torch.bfloat16, torch.float16)
NONE = (None, None, None, True)  # no shift, no running statistics, in training


def check(op, *args):
    wanted = op(*args)
    for layout, tensor in zip(layout_of(op, args), wanted, strict=True):
        if layout is None or tensor is None:
            assert layout is tensor
        else:
            size, stride, dtype, *_ = layout
            found = tuple(size), tuple(stride), dtype
            assert found == (tuple(tensor.shape), tensor.stride(), tensor.dtype)
    return wanted


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("running", [torch.float32, None])
def test_statistics(training, affine, running):
    for dtype, memory in itertools.product(LOW, FORMATS):
        x = torch.randn(2, 4, 6, 6).to(dtype).to(memory_format=memory)
        weight = torch.ones(4) if affine else None
        mean = None if running is None else torch.zeros(4)
        if mean is None and not training:
            continue
        parameters = (x, weight, weight, mean, None if mean is None else mean + 1)
        _, *saved = check(aten.native_batch_norm.default, *parameters, training, 0.1, 1e-5)
        for mask in ([True, True, True], [True, False, False]) if training else ():
            given = (x, x, weight, mean, mean, *saved, True, 1e-5, mask)
            check(aten.native_batch_norm_backward.default, *given)


@pytest.mark.parametrize("channels", [4, 5])
def test_one_parameter_for_each_channel_is_guarded(channels):
    env = ShapeEnv()
    x = FakeMode(env).fakeify(torch.randn(4, 4).t(), LocalSource("x"), {0, 1})
    found = layout_of(aten.native_batch_norm.default, (x, torch.ones(channels), *NONE, 0.1, 1e-5))
    assert (found is not None) == (channels == 4)
    assert any("4" in str(g.expected) or "5" in str(g.expected) for g in env.shape_guards())
    if found is not None:
        assert [hint_of(n) for n in found[0][1]] == [4, 1]  # whatever the order of the input
