"""Complex numbers written into parts of parts: as eager, and without copies of the whole."""

import pytest
import torch
from torchsmith_fx_backend import Settings, compile_graph, make_fx

ONES = torch.ones(3, 4, 6, dtype=torch.complex64)


def corners(x):
    out = torch.zeros(3, 8, 9, dtype=torch.complex64)
    out[:, :4, :6] = x * 2
    out[:, -4:, 2:8] = x + 1j
    return out, torch.fft.ifft2(out)


def steps(x):
    out = torch.full((3, 8, 12), 2 + 1j)
    out[1:][:, ::2, 1::2] = x[1:]
    return out


def deep(x):
    out = torch.zeros(4, 8, 9, dtype=torch.complex64)
    out[1:, -5:-1, :6] = x
    out[:3, :4, 3:] = x
    return out.real, out


def part_of_a_whole(x):
    y = torch.fft.fft(x)
    y[:2, 1:3, 2:4] = x[:2, 1:3, :2]
    return y


def empty(x):
    out = torch.zeros(3, 8, 9, dtype=torch.complex64)
    out[3:, 4:2, :6] = x[:0, :0]
    return out + 1


def read_between(x):
    out = torch.zeros(3, 8, 9, dtype=torch.complex64)
    out[:, :4, :6] = x
    before = out.sum()
    out[:, :4, :6] = x * 3
    return out, before


def two_of_a_kind(x):
    a, b = (torch.zeros(3, 8, 9, dtype=torch.complex64) for _ in range(2))
    a[:, :4, :6] = x
    b[:, 4:, 3:] = x
    return torch.fft.fft(a), torch.fft.fft(b)


@pytest.mark.parametrize(
    "fn", [corners, steps, deep, part_of_a_whole, empty, read_between, two_of_a_kind]
)
@pytest.mark.parametrize("offset", [0, 1])
def test_parts_of_parts(fn, offset):
    torch.manual_seed(0)
    x = torch.randn(3 + offset, 4, 6, dtype=torch.complex64)[offset:]
    compiled = compile_graph(make_fx(fn)(x), [x], Settings(graph_cache=False, verify=True))
    for _ in range(2):
        found, expected = compiled(x), fn(x)
        for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (found, expected))):
            torch.testing.assert_close(a, b)
            assert a.stride() == b.stride()


@pytest.mark.parametrize("fn", [corners, two_of_a_kind])
def test_nothing_is_copied_whole(fn):
    compiled = compile_graph(make_fx(fn)(ONES), [ONES], Settings(graph_cache=False))
    assert "slice_scatter(" not in compiled.source
    assert "as_strided_scatter(" not in compiled.source
    assert compiled.source.count("= aten_full(") == 1 + (fn is two_of_a_kind)
