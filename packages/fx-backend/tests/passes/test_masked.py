"""Writes of one value where a mask is true: values, layouts, and no search for true places."""

import operator
import warnings

import pytest
import torch
import torchsmith_guards as guards
from torch import fx
from torchsmith_fx_backend import Settings, compile_graph

PUT = torch.ops.aten.index_put.default
STRICT = Settings(graph_cache=False, verify=True, strict=True)
X = torch.arange(24.0).reshape(2, 3, 4) % 7 - 3
ROWS = torch.tensor([[True, False, True], [False, True, True]])


def everywhere(x, m):
    return x.index_put([x > 0], x.new_full((), 9.0)) + 1


def rows(x, m):
    return x.index_put([m], x.new_full((1,), 9.0))


def columns(x, m):
    return PUT(x.transpose(0, 2), [None, m.t()], x.new_full((), 9.0))


def behind(x, m):
    return PUT(x[..., 0], [None, m[0]], x.new_full((1, 1), 9.0), True)


def in_place(x, m):
    y = x * 2
    return y.index_put_([m], x.new_zeros(()))


def of_an_input(x, m):
    return x.index_put_([x > 1], x.new_zeros(())) + 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("fn", [everywhere, rows, columns, behind, in_place, of_an_input])
def test_masks_are_choices(fn, dtype):
    if fn is columns and dtype is not torch.float32:
        return
    first, second = X.to(dtype), X.to(dtype)
    compiled = compile_graph(fx.symbolic_trace(fn), [first, ROWS], STRICT)
    want, got = fn(first, ROWS), compiled(second, ROWS)
    assert torch.equal(want, got) and want.stride() == got.stride()
    assert torch.equal(first, second) and first._version == second._version
    assert "index_put" not in compiled.source


@pytest.mark.parametrize("write", ["index_put", "index_put_"])
def test_rows_of_any_length_are_chosen(write):
    put = operator.methodcaller
    fn = lambda x: put(write, [x.select(-1, 0) > 0], x.new_full((), 9.0))(x) + 1
    x = torch.ones(4, 1).t()  # a choice has other strides than the write
    fake = guards.FakeMode(guards.ShapeEnv()).fakeify(x, guards.LocalSource("x"), {1})
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # fx warns of symbols that no node computes
        compiled = compile_graph(fx.symbolic_trace(fn), [fake], STRICT)
    assert "index_put" not in compiled.source
    for column in (torch.ones(4, 1), torch.ones(7, 1), -torch.ones(5, 1)):
        given, mine = column.clone().t(), column.clone().t()
        got, want = compiled(mine), fn(given)
        assert torch.equal(want, got) and want.stride(1) == got.stride(1)
        assert torch.equal(given, mine)


def test_several_values_stay():
    several = lambda x, m, v: x.index_put([m], v)
    args = X, ROWS, torch.arange(16.0).reshape(4, 4)
    compiled = compile_graph(fx.symbolic_trace(several), args, STRICT)
    assert torch.equal(compiled(*args)[0], several(*args)[0])
    assert "index_put" in compiled.source
