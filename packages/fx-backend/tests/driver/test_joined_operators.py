"""Operators as parts of kernels, or as simpler ones, against eager: values, types and layouts."""

import pytest
import torch
from torch import nn
from torchsmith_fx_backend import Settings, compile_graph, make_fx
from torchsmith_fx_backend._src.driver import functional_graph

EDGES = torch.tensor([0.0, -0.0, 1, -1, torch.inf, -torch.inf, torch.nan, 1e4, -1e4, 88, 5e-8])
ALL = torch.cartesian_prod(EDGES, EDGES)
IMAGE = torch.arange(48.0).view(2, 4, 2, 3)


def filled(x):
    kept = torch.ones(4, 6, dtype=torch.bool)
    kept[1:].fill_(x[0, 0] > 100)
    numbers = torch.arange(24).view(4, 6).t()
    numbers[2:4].fill_(x[1, 1])
    return kept, numbers, x.t().clone().fill_(x[0, 2])


def once_and_again(x):
    last = x.to(memory_format=torch.channels_last) * 2
    return [
        torch.cat([x] * 5),
        torch.cat([last] * 3, 1),
        torch.cat([x.permute(0, 2, 3, 1)[:, None]] * 4, 1) + 1,
        torch.cat([x[0, 0, 0]] * 2, -1),
        torch.stack([x] * 3),
        torch.stack([last] * 3, -1),
        torch.cat([x, x * 2, x], 2),
        torch.cat([x[:0]] * 3),
    ]


def after_nothing(x):
    """What caches do first: they begin as a row of no elements."""
    nothing, last = (
        torch.zeros(0, dtype=torch.float64).to(x),
        x.to(memory_format=torch.channels_last),
    )
    return [
        torch.cat([nothing, x.transpose(1, 2)], -2),
        torch.cat([x.transpose(0, 3), nothing], 0),
        torch.cat([nothing, last], 1),
        torch.cat([nothing, last, nothing, last * 2], 1),
        torch.cat([nothing, x[:0]]),
        torch.cat([nothing, nothing.double()]),
        torch.cat([nothing, x[0, 0, 0]]),
        torch.cat([nothing.double(), x]),
    ]


def compared(fn, *inputs, rtol=1e-6, atol=1e-7):
    compiled = compile_graph(make_fx(fn)(*inputs), list(inputs), Settings(graph_cache=False))
    found, expected = compiled(*inputs), fn(*inputs)
    pairs = zip(found, expected) if isinstance(expected, (tuple, list)) else [(found, expected)]
    for a, b in pairs:
        torch.testing.assert_close(a, b, equal_nan=True, rtol=rtol, atol=atol)
        assert a.stride() == b.stride()
    return compiled.source


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("op", [torch.logaddexp, torch.logaddexp2])
def test_logarithms_of_sums(op, dtype):
    a, b = ALL.to(dtype).unbind(1)
    coarse = 2e-2 if dtype.itemsize == 2 else 1e-6
    source = compared(lambda a, b: op(a, b), a, b, rtol=coarse, atol=coarse)
    assert "kernel_0(" in source
    compared(lambda a, b: op(a[:, None], b[:5]) * 2, a, b, rtol=coarse, atol=coarse)


def test_elements_filled_with_a_value_of_a_tensor():
    assert "fill(" not in compared(filled, torch.arange(12.0).view(3, 4))


def test_one_tensor_several_times():
    compared(once_and_again, IMAGE)


def test_what_comes_after_nothing():
    compared(after_nothing, IMAGE)
    graph = functional_graph(make_fx(lambda x: after_nothing(x)[0])(IMAGE), [IMAGE]).module.graph
    (cat,) = graph.find_nodes(op="call_function", target=torch.ops.aten.cat.default)
    assert len(cat.args[0]) == 1


@pytest.mark.parametrize("dim", [0, 2])
def test_weights_of_a_norm_of_their_own(dim):
    layer = nn.utils.parametrizations.weight_norm(nn.Conv1d(3, 4, 5), dim=dim)
    g, v = layer.parametrizations.weight.original0, layer.parametrizations.weight.original1
    source = compared(lambda g, v: torch._weight_norm(v, g, dim), g.detach(), v.detach())
    assert "weight_norm(" not in source


def test_a_loop_that_writes_hundreds_of_columns():
    """A point would ask for each column whether it is one of it, as deep as they are many."""

    def filled_in_turn(x):
        out, row = torch.zeros(3, 400), x
        for i in range(400):
            out[:, i] = row.amax(1)
            row = row * 0.99 + i
        return out

    source = compared(filled_in_turn, torch.rand(3, 5), rtol=1e-5, atol=1e-4)
    assert "kernel_0(" in source
