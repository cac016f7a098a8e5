"""Sizes as index expressions: what layouts with symbols are known to be."""

import torch
from torchsmith_fx_backend._src.loops.index import ONE, ZERO, Sym, const, floordiv, mul
from torchsmith_fx_backend._src.loops.sizes import Info


def layout(*shape, stride=None):
    """A contiguous tensor, if no strides are given."""
    if stride is None:
        stride = [ONE]
        for size in reversed(shape[1:]):
            stride.insert(0, mul(stride[0], size))
    return Info(shape, tuple(stride), ZERO, torch.float32, torch.device("cpu"))


def test_a_number_divided_by_a_symbol_is_not_taken_for_zero():
    """An axis is cut into as many parts as the program finds: none overlap."""
    part = Sym("s0")
    cut = layout(const(4), floordiv(const(96), part), part, const(24))
    assert cut.dense()
    assert not cut.overlapping()


def test_windows_over_such_an_axis_overlap():
    count = floordiv(const(96), Sym("s0"))
    windows = layout(count, const(5), stride=(const(2), ONE))
    assert windows.overlapping()
    assert not windows.dense()
