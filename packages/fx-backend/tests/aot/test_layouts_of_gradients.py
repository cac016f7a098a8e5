"""Gradients lie as eager's, though what a compiled graph computes them by is another formula."""

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torchsmith_fx_backend import Settings
from torchsmith_fx_backend._src.driver import compile_training

SETTINGS = Settings(graph_cache=False, verify=True, strict=True)
pytestmark = pytest.mark.usefixtures("reference_machine")


def turned(x):
    """``x`` with its dimensions the other way round in memory."""
    dims = tuple(reversed(range(x.dim())))
    return x.permute(dims).contiguous().permute(dims)


ORDERS = {"rows": lambda x: x.contiguous(), "turned": turned}


def gradients(program, x, order, *, computed):
    """Gradients of the leaf, and of what is computed from it if that is given."""
    leaf = x.detach().requires_grad_()
    given = leaf.clone(memory_format=torch.preserve_format) if computed else leaf
    results = [y for y in program(given) if y.requires_grad]
    tangents = [ORDERS[order](torch.ones(y.shape, dtype=y.dtype)) for y in results]
    return torch.autograd.grad(results, [leaf, given], tangents)


def check(fn, x, order, *, computed=False):
    example = x.detach().requires_grad_()
    example = example.clone(memory_format=torch.preserve_format) if computed else example
    compiled = compile_training(fx.symbolic_trace(fn), [example], SETTINGS)
    pairs = [gradients(program, x, order, computed=computed) for program in (compiled, fn)]
    for mine, true in zip(*pairs, strict=True):
        torch.testing.assert_close(mine, true)
        assert mine.stride() == true.stride()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("step", [torch.trunc, torch.sign, torch.round, lambda x: x * 0 > x])
def test_zeros_for_what_has_no_slope_lie_as_what_comes_back(step, order):
    def fn(x):
        return (F.gelu(step(x) * x.detach()), x.exp())

    check(fn, torch.randn(4, 3, 5), order)
    check(lambda x: (F.gelu(x.trunc()),), turned(torch.randn(4, 3, 5)), order)
    check(lambda x: (F.gelu(x.trunc()),), torch.randn(4, 3, 5), order)


def write_whole(x, v):
    x.mul_(2)


def write_part(x, v):
    x.narrow(0, 0, 1).exp_()


def write_view(x, v):
    v.add_(1)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("laid", ORDERS)
@pytest.mark.parametrize("write", [write_whole, write_part, write_view])
@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[:, 1:3],
        lambda x: x.transpose(0, 2),
        lambda x: x.transpose(0, 1)[1:].unsqueeze(0),
        lambda x: x.diagonal(0, 1, 2),
        lambda x: x.select(1, 0),
        lambda x: x[..., :1],
    ],
)
def test_of_views_that_outlive_a_write(view, write, laid, order):
    def fn(x):
        v = view(x)
        write(x, v)
        return (v * v.contiguous(), v.sin())

    torch.manual_seed(0)
    check(fn, ORDERS[laid](torch.randn(4, 4, 3)), order, computed=True)


def test_of_views_that_were_made_after_a_write():
    def fn(x):
        x.mul_(2)
        return (F.group_norm(x.transpose(0, 2), 1),)

    check(fn, torch.randn(4, 4, 1, 2), "rows", computed=True)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("laid", ORDERS)
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", [None, 0, 1, -1, -3])
def test_of_products(dim, keepdim, laid, order):
    def fn(x):
        return (x.prod() if dim is None else x.prod(dim, keepdim),)

    torch.manual_seed(0)
    check(fn, ORDERS[laid](torch.rand(4, 3, 5) + 0.5), order)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "norm",
    [
        lambda x: F.group_norm(x, 3),
        lambda x: F.layer_norm(x[..., None], (1,)),
        lambda x: F.layer_norm(x[..., None].expand(-1, -1, 3), (3,)),
    ],
)
def test_of_norms_that_find_no_spread_are_zero(norm, dtype):
    """A distance from the mean is that of the rounded values, of which the mean is."""
    torch.manual_seed(0)
    check(lambda x: (norm(F.celu(x * 1.5, 0.5)),), torch.randn(8, 3).to(dtype), "rows")


@pytest.mark.parametrize("size", [(2, 3, 4, 5), (2, 1, 3, 4, 2)])
@pytest.mark.parametrize("corners", [False, True])
def test_grids_save_nothing_and_are_differentiated_twice(size, corners):
    rank = len(size) - 2
    fn = lambda x: (F.affine_grid(x, size, align_corners=corners),)  # noqa: E731
    leaf = torch.randn(2, rank, rank + 1, requires_grad=True)
    compiled = compile_training(fx.symbolic_trace(fn), [leaf], SETTINGS)
    mine, true = compiled(leaf)[0], fn(leaf)[0]
    tangent = torch.randn(mine.shape)
    for _ in range(2):
        ours, eager = (torch.autograd.grad(y, leaf, tangent)[0] for y in (mine, true))
        torch.testing.assert_close(ours, eager)
        assert ours.stride() == eager.stride()
