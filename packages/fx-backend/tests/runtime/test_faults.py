"""Kernels that differ only in what they raise."""

import pytest
import torch
from torch import fx
from torchsmith_fx_backend import smith


def by_gather(a, ids):
    return a.gather(0, ids).sin()


def by_index(a, ids):
    return a[ids].sin()


def by_select(a, ids):
    return torch.index_select(a, 0, ids).sin()


PROGRAMS = [by_gather, by_index, by_select]


@pytest.mark.parametrize("order", [PROGRAMS, PROGRAMS[::-1]])
def test_each_raises_its_own_error(order):
    a, ids = torch.randn(7), torch.tensor([0, 3, 6, 2])
    made = [smith(fx.symbolic_trace(fn), [a, ids]) for fn in order]
    for _ in range(2):
        for fn, compiled in zip(order, made):
            torch.testing.assert_close(compiled(a, ids), fn(a, ids))
            told = []
            for call in (compiled, fn):
                with pytest.raises((IndexError, RuntimeError)) as raised:
                    call(a, torch.tensor([0, 7, 6, 2]))
                told.append((raised.type, str(raised.value).split("\n")[0]))
            assert told[0] == told[1]
