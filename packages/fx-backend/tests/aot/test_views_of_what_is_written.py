"""Views of what has been written, or is rounded: they share memory as eager's, and begin where it
begins."""

import pytest
import torch
from torch import fx
from torchsmith_fx_backend import Settings
from torchsmith_fx_backend._src.backend import compile_graph
from torchsmith_fx_backend._src.driver import compile_training

SETTINGS = Settings(graph_cache=False, verify=True, strict=True)

pytestmark = pytest.mark.usefixtures("reference_machine")


def compiled_and_eager(fn, make):
    """Results of both, and their arguments after the call."""
    graph = compile_graph(fx.symbolic_trace(fn), [make()], SETTINGS)
    mine, true = make(), make()
    with torch.no_grad():
        return (*graph(mine), mine), (*fn(true), true)


def memory(tensors):
    """For each tensor, the first that lies in the same storage."""
    pointers = [t.untyped_storage().data_ptr() for t in tensors]
    return [pointers.index(p) for p in pointers]


def double_rows(v):
    v.mul_(2)


def add_rows(v):
    v.index_add_(0, torch.tensor([0, 1]), v[[0, 1]])


@pytest.mark.parametrize("write", [double_rows, add_rows])
@pytest.mark.parametrize("part", [lambda x: x[2:], lambda x: x.chunk(2)[1], lambda x: x[:, 1:]])
@pytest.mark.parametrize(
    "view",
    [
        lambda v: v.unsqueeze(3).squeeze(3),
        lambda v: v.unsqueeze(3).transpose(0, 1).select(3, 0).transpose(0, 1),
        lambda v: v.unsqueeze(0).expand(1, -1, -1, -1)[0][:, 1:],
    ],
)
def test_views_of_views_of_a_written_part(write, part, view):
    def fn(x):
        v = part(x)
        write(v)
        return (torch.bmm(view(v), view(v).transpose(1, 2)),)

    make = lambda: torch.arange(64.0).view(4, 4, 4) / 64  # noqa: E731
    for mine, true in zip(*compiled_and_eager(fn, make), strict=True):
        torch.testing.assert_close(mine, true)


def test_a_view_that_needs_the_layout_from_before_a_write_shares_it():
    def fn(x):
        v = x.trunc()
        flat = v.view(-1)
        turned = v.movedim(0, -1)
        turned.masked_fill_(turned > 0, 1)  # whose result is in another order
        return v, flat, turned

    mine, true = compiled_and_eager(fn, lambda: torch.arange(-8.0, 8.0).view(4, 4))
    assert memory(mine) == memory(true)
    assert [t.stride() for t in mine] == [t.stride() for t in true]
    assert all(torch.equal(a, b) for a, b in zip(mine, true, strict=True))


@pytest.mark.parametrize(
    "view",
    [lambda v: v.view(-1), lambda v: v[1:], lambda v: v.t()[:1], lambda v: v.expand(2, 4, 4)],
)
def test_views_of_what_is_compared_in_low_precision(view):
    def fn(x):
        v = x * 1.7
        return v, torch.where(v == v, v, 3.0), view(v)

    make = lambda: torch.arange(16.0).view(4, 4).to(torch.bfloat16)  # noqa: E731
    mine, true = compiled_and_eager(fn, make)
    assert memory(mine) == memory(true)
    assert all(torch.equal(a, b) for a, b in zip(mine, true, strict=True))


@pytest.mark.parametrize("reduce", [torch.amin, torch.amax])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gradients_of_what_is_written_and_then_compared(reduce, dtype):
    """Each result is differentiated alone, in a graph of its own that compares nothing."""

    def fn(x):
        x.relu_()
        return (reduce(x, 0),)

    def gradient(f, values):
        leaf = torch.tensor(values, dtype=dtype, requires_grad=True)
        f(leaf * 1)[0].backward()
        return leaf.grad

    example = torch.ones(2, dtype=dtype, requires_grad=True) * 1
    compiled = compile_training(fx.symbolic_trace(fn), [example], SETTINGS)
    for values in ([1.0, 2.0], [-1.0, 2.0], [3.0, 3.0]):
        assert torch.equal(gradient(compiled, values), gradient(fn, values))
