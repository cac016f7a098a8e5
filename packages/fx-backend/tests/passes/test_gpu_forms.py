"""What is rewritten for a GPU, tried on a CPU: values and layouts stay eager's."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "aot"))

import math

import pytest
import torch
from differential import assert_metadata, check
from torch import fx
from torch.nn.functional import linear, pad
from torch.nn.functional import scaled_dot_product_attention as attention
from torchsmith_fx_backend import compile_graph
from torchsmith_fx_backend._src import by_rows, switches
from torchsmith_fx_backend._src.passes import (
    AlignedProducts,
    ChannelsLast,
    CommonSubexpressions,
    ConvolutionBiases,
    DeadCode,
    FusedAttention,
    GroupProducts,
    PatchProducts,
    RowsAsImages,
    padding,
    thin,
)
from torchsmith_fx_backend._src.passes.base import run_passes
from torchsmith_fx_backend._src.passes.batches import BatchedProducts
from torchsmith_fx_backend._src.passes.layouts import SharedCopies
from torchsmith_fx_backend._src.passes.repeats import Repeats
from torchsmith_fx_backend._src.passes.thin import ThinProducts

aten = torch.ops.aten
HALF = torch.bfloat16


def rewritten(fn, *inputs, passes, **tolerance):
    """The calls of the graph after ``passes``, once it is known to do what ``fn`` does."""

    def transform(module):
        run_passes(module.graph, [*passes, DeadCode()], check=True)
        module.recompile()

    graph = check(fn, *inputs, transform=transform, **tolerance)
    assert_metadata(graph, inputs)
    return [n for n in graph.module.graph.nodes if n.op == "call_function"]


def randn(*size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*size, generator=generator).to(HALF)


PRODUCTS = {
    "columns": (lambda x, w, b: linear(x, w), 3, 16, 7),
    "columns with bias": (lambda x, w, b: linear(x, w, b) * 2, 3, 16, 7),
    "inner": (lambda x, w, b: linear(x, w), 3, 9, 8),
    "both": (lambda x, w, b: linear(x, w).float(), 3, 9, 7),
    "mm": (lambda x, w, b: torch.mm(x, w.t()), 3, 9, 7),
    "returned transposed": (lambda x, w, b: (linear(x, w).t(), linear(x, w)[1:]), 3, 9, 7),
    "batch": (lambda x, w, b: linear(x.view(3, len(x) // 3, -1), w), 3, 16, 7),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_padded(name, monkeypatch):
    monkeypatch.setattr(padding, "_pays", lambda *sizes: True)
    fn, rows, inner, columns = PRODUCTS[name]
    inputs = randn(rows, inner), randn(columns, inner, seed=1), randn(columns, seed=2)
    passes = [CommonSubexpressions(), AlignedProducts(device="cpu")]
    calls = rewritten(fn, *inputs, passes=passes, rtol=2e-2, atol=2e-2)
    products = [n for n in calls if n.target in (aten.linear.default, aten.mm.default)]
    for node in products:
        assert all(a.meta["val"].shape[-1] % 8 == 0 for a in node.all_input_nodes)
        assert node.meta["val"].shape[-1] % 8 == 0


ODD = {
    "no bias": (lambda x, w, b: linear(x, w), 16),
    "bias": (lambda x, w, b: linear(x, w, b), 16),
    "batch": (lambda x, w, b: linear(x.view(3, len(x) // 3, -1), w, b), 16),
    "odd inner": (lambda x, w, b: linear(x, w), 9),
    "mm": (lambda x, w, b: torch.mm(x, w.t()), 16),
    "mm by rows": (lambda x, w, b: torch.mm(x, w.view(w.shape[1], -1)), 16),
    "read too": (lambda x, w, b: (y := linear(x, w, b), y.float().exp()), 16),
}


@pytest.mark.parametrize("columns", [17, 18, 20, 43])
@pytest.mark.parametrize("name", ODD)
def test_many_rows_of_odd_width_are_computed_by_classes(name, columns, monkeypatch):
    monkeypatch.setattr(padding, "_pays", lambda *sizes: True)
    monkeypatch.setattr(padding, "_MANY", 1)
    fn, inner = ODD[name]
    for rows in (9, 24):
        inputs = randn(rows, inner), randn(columns, inner, seed=1), randn(columns, seed=2)
        calls = rewritten(fn, *inputs, passes=[AlignedProducts("cpu")], rtol=2e-2, atol=2e-2)
        assert by_rows.product in [n.target for n in calls]


@pytest.mark.parametrize("returned", [False, True])
def test_small_products_that_are_only_read_are_cut_out_of_padded_ones(returned, monkeypatch):
    """Two calls for each class of rows would cost more than a copy, which kernels read through."""
    monkeypatch.setattr(padding, "_pays", lambda *sizes: True)
    monkeypatch.setattr(padding, "_MANY", 1)
    fn = lambda x, w: (y := linear(x, w), y.relu())[not returned :]  # noqa: E731
    given = randn(24, 16), randn(17, 16, seed=1)
    calls = rewritten(fn, *given, passes=[AlignedProducts("cpu")], rtol=2e-2, atol=2e-2)
    assert (by_rows.product in [n.target for n in calls]) == returned


@pytest.mark.parametrize("columns", range(16, 40))
@pytest.mark.parametrize("bias", [False, True])
def test_products_of_classes_of_rows_are_aligned_and_hold_nothing_large(columns, bias, monkeypatch):
    writes = []

    def noting(kind):
        def run(*args, out=None):
            if out is not None:
                writes.append(out)
            return kind(*args) if out is None else kind(*args, out=out)

        return run

    # Zeros and small whole numbers are exact in any order of summation.
    x, weight = (randn(n, 8, seed=n).mul(4).round() for n in (19, columns))
    added = randn(columns).mul(4).round() if bias else None
    wanted = linear(x, weight, added)
    monkeypatch.setattr(torch, "mm", noting(torch.mm))
    monkeypatch.setattr(torch, "addmm", noting(torch.addmm))
    result = by_rows.product(x, weight, added)
    assert torch.equal(result, wanted) and result.is_contiguous()
    for out in writes:
        assert out.untyped_storage().data_ptr() == result.untyped_storage().data_ptr()
        assert out.storage_offset() % 8 == out.stride(0) % 8 == out.shape[1] % 8 == 0
    assert len(writes) == by_rows.period(columns)


def test_rows_that_lie_across_are_copied_once():
    def fn(x, w, b):
        across, part = x.mT, x[..., :2]
        return linear(across, w, b) * linear(across, w) + linear(x[:1].mT, w) + part.sum(), linear(
            part, w[:, :2]
        )

    inputs = randn(3, 8, 5), randn(6, 8, seed=1), randn(6, seed=2)
    calls = rewritten(fn, *inputs, passes=[CommonSubexpressions()], rtol=2e-2, atol=6e-2)
    assert len([n for n in calls if n.target is aten.clone.default]) == 1
    products = [n.args[0] for n in calls if n.target is aten.linear.default]
    assert len({*products}) == 3 and products[0] is products[1]


def test_kernels_read_the_copies_of_products():
    def fn(x, w):
        y = x.sin().mT
        return linear(y, w) * y, y.exp()

    x, w = torch.randn(3, 8, 900), torch.randn(8, 8)  # so large that a call computes the second
    for mine, eager in zip(compile_graph(fx.symbolic_trace(fn), [x, w])(x, w), fn(x, w)):
        torch.testing.assert_close(mine, eager, check_stride=True)
    calls = rewritten(fn, x, w, passes=[SharedCopies()], rtol=1e-4, atol=1e-5)
    (copy,) = (n for n in calls if n.target is aten.clone.default)
    assert {n.target for n in copy.users} == {aten.linear.default, aten.mul.Tensor}


REPEATED = {
    "read by loops": (lambda b, y: ((y + b).exp(), (y * b).sum(-1)), True),
    "returned": (lambda b, y: (b, y + b), False),
    "read by a product": (lambda b, y: (b @ y.mT, y + b), False),
    "viewed": (lambda b, y: b.view(4, -1).exp() + y.view(4, -1), False),
}


@pytest.mark.parametrize("name", REPEATED)
def test_what_is_repeated_is_copied_before(name):
    read, taken = REPEATED[name]

    def fn(x, y):
        return read((x.t() * 2).unsqueeze(0).expand(4, 5, 6).contiguous(), y)

    inputs = torch.randn(6, 5), torch.randn(4, 5, 6)
    calls = rewritten(fn, *inputs, passes=[Repeats()], rtol=1e-5, atol=1e-5)
    sizes = [n.meta["val"].numel() for n in calls if n.target is aten.clone.default]
    assert sizes == [30 if taken else 120]


def test_padding_is_estimated_and_only_for_two_bytes():
    slow = [(8192, 768, 50257), (4096, 1023, 1024), (8192, 768, 30522)]
    fine = [(8192, 768, 50256), (1, 768, 50257), (4096, 1000, 1024), (64, 33, 17)]
    asked = []
    for rows, inner, columns in slow + fine:
        moved = [rows * inner, inner * columns, rows * columns]
        work = 2 * rows * inner * columns
        asked.append(padding._pays(work, math.gcd(inner, columns), moved))
    assert asked == [True] * 3 + [False] * 4
    big, weight = torch.randn(4096, 33), torch.randn(1025, 33)
    calls = rewritten(linear, big, weight, passes=[AlignedProducts(device="cpu")])
    assert [n.target for n in calls] == [aten.linear.default]


THIN = {
    "row": (lambda x, w, b: linear(x[:1], w), HALF),
    "row of a batch": (lambda x, w, b: linear(x[:1, None], w, b).relu(), HALF),
    "gated": (lambda x, w, b: linear(x[:1], w).sigmoid() * linear(x[:1] + 1, w, b), HALF),
    "column": (lambda x, w, b: linear(x, w[2:3], b[:1]), HALF),
    "row across": (lambda x, w, b: torch.mm(x[:1], w.t().contiguous()), HALF),
    "outer": (lambda x, w, b: torch.mm(x[:, :1], b[None]), torch.float32),
    "row by columns": (lambda x, w, b: torch.addmm(b, x[:1], w.t()), torch.float64),
    "column added": (lambda x, w, b: torch.addmm(b[:1], x, w.t()[:, :1]), torch.float16),
    "heads": (lambda x, w, b: torch.bmm(x[:, None], w[:5, :, None].expand(-1, -1, 3)), HALF),
    "queries": (lambda x, w, b: (x[:, None] @ w[None].mT).softmax(-1), torch.float32),
    "returned transposed": (lambda x, w, b: linear(x[:1], w).t(), HALF),
}


@pytest.mark.parametrize("name", THIN)
def test_thin_products_are_sums_rounded_once(name, monkeypatch):
    fn, dtype = THIN[name]
    inputs = [randn(*size, seed=n).to(dtype) for n, size in enumerate([(5, 16), (7, 16), (7,)])]
    close = {"rtol": 1e-2, "atol": 1e-2} if dtype.itemsize == 2 else {"rtol": 1e-5, "atol": 1e-5}
    calls = rewritten(fn, *inputs, passes=[ThinProducts(device="cpu")], **close)
    assert {n.target for n in calls}.isdisjoint(thin._PRODUCTS)
    exact = fn(*(each.double() for each in inputs))
    monkeypatch.setattr(switches, "PASSES", (ThinProducts(device="cpu"),))
    compiled = compile_graph(fx.symbolic_trace(fn), inputs)
    torch.testing.assert_close(compiled(*inputs).double(), exact, **close)


SMALL = {
    "mixed heads": lambda x, w: linear(linear(x, w, w[0]).softmax(1), w).permute(0, 3, 1, 2),
    "rotations": lambda x, w: x.reshape(-1, 4, 4) @ x.reshape(-1, 4, 4).mT @ w,
    "added": lambda x, w: torch.addmm(w[0], x.reshape(-1, 4), w.t()),
}


@pytest.mark.parametrize("dtype", [HALF, torch.float32])
@pytest.mark.parametrize("name", SMALL)
def test_products_of_many_rows_by_few_columns_of_few_terms_are_sums(name, dtype, monkeypatch):
    inputs = randn(3, 8, 8, 4).to(dtype), randn(4, 4, seed=1).to(dtype)
    close = {"rtol": 2e-2, "atol": 4e-2} if dtype is HALF else {"rtol": 1e-5, "atol": 1e-5}
    for most, left in ((128, False), (1 << 20, True)):
        monkeypatch.setattr(thin, "_MANY", most)
        calls = rewritten(SMALL[name], *inputs, passes=[ThinProducts(device="cpu")], **close)
        assert {n.target for n in calls}.isdisjoint(thin._PRODUCTS) is not left
    monkeypatch.setattr(thin, "_FEW", 15)
    monkeypatch.setattr(thin, "_MANY", 1)
    calls = rewritten(SMALL[name], *inputs, passes=[ThinProducts(device="cpu")], **close)
    assert not {n.target for n in calls}.isdisjoint(thin._PRODUCTS)


NOT_THIN = {
    "two rows": lambda x, w: linear(x[:2], w),
    "scaled": lambda x, w: torch.addmm(x[0, :7], x[:1], w.t(), alpha=2),
    "vector": lambda x, w: linear(x[0], w),
    "nothing": lambda x, w: linear(x[:1], w[:0]),
    "whole numbers": lambda x, w: torch.mm(x[:1].long(), w.long().t()),
}


@pytest.mark.parametrize("name", NOT_THIN)
def test_other_products_are_left_to_the_library(name):
    inputs = randn(5, 16).float(), randn(7, 16, seed=1).float()
    calls = rewritten(NOT_THIN[name], *inputs, passes=[ThinProducts(device="cpu")])
    assert not {n.target for n in calls}.isdisjoint(thin._PRODUCTS)


# Matrices that lie column by column: gradients of weights, of which rows may be odd.
ACROSS = {
    "gradient": lambda g, x: g.t().mm(x),
    "both gradients": lambda g, x: (g.t().mm(x), g.mm(x[:9])),
    "by linear": lambda g, x: linear(g.t(), x.t()),
    "read later": lambda g, x: g.t().mm(x).float().exp(),
    "columns, too": lambda g, x: g.t().mm(x[:, :9]),
    "twice": lambda g, x: (g.t().mm(x), g.t().contiguous().t().t().mm(x)),
}


@pytest.mark.parametrize("name", ACROSS)
def test_matrices_that_lie_across_are_padded_as_they_lie(name, monkeypatch):
    monkeypatch.setattr(padding, "_pays", lambda *sizes: True)
    inputs = randn(16, 9), randn(16, 24, seed=1)
    passes = [CommonSubexpressions(), AlignedProducts(device="cpu")]
    calls = rewritten(ACROSS[name], *inputs, passes=passes, rtol=2e-2, atol=2e-2)
    products = [n for n in calls if n.target in (aten.linear.default, aten.mm.default)]
    for node in products:
        for value in (n.meta["val"] for n in (*node.all_input_nodes, node)):
            assert max(value.stride()) % 8 == 0
    widened = [n.args for n in calls if n.target is aten.constant_pad_nd.default]
    assert len(widened) == len(set(map(str, widened)))


def test_aligned_matrices_with_odd_inner_dimension_stay(monkeypatch):
    monkeypatch.setattr(padding, "_pays", lambda *sizes: True)
    calls = rewritten(
        lambda g, x: g.t().mm(x),
        randn(9, 16),
        randn(9, 24, seed=1),
        passes=[AlignedProducts("cpu")],
    )
    assert not [n for n in calls if n.target is aten.constant_pad_nd.default]


B, H, L, D = 2, 4, 12, 8


def fused(*operands, **kwargs):
    """Plays eager's choice: a bias whose rows are not contiguous takes the slow kernel."""
    mask = operands[3]
    return 3 if mask is None or mask.dtype is torch.bool or mask.stride(-1) == 1 else 0


def repeat(x, times):
    batch, heads, length, width = x.shape
    x = x[:, :, None].expand(batch, heads, times, length, width)
    return x.reshape(batch, heads * times, length, width)


def masks():
    visible = torch.rand(B, 1, L, L, generator=torch.Generator().manual_seed(3)) > 0.3
    visible[..., 0] = True
    return {
        "transposed bias": randn(1, L, L, H).permute(0, 3, 1, 2),
        "repeated bias": randn(1, 1, L, 1).expand(B, H, L, L),
        "odd rows": randn(1, H, L, L),
        "aligned": randn(1, H, L, 16)[..., :L],
        "booleans": visible,
        "keys": visible[:, :, :1].expand(B, 1, L, L),
        "two dimensions": randn(L, L).t(),
    }


@pytest.mark.parametrize("name", masks())
def test_masks_are_laid_out_by_rows_once_for_all_layers(name):
    def fn(q, k, v, mask):
        return attention(attention(q, k, v, mask), k, v, mask, scale=0.5)

    inputs = *(randn(B, H, L, D, seed=n) for n in range(3)), masks()[name]
    passes = [CommonSubexpressions(), FusedAttention(device="cpu", choose=fused)]
    calls = rewritten(fn, *inputs, passes=passes, rtol=2e-2, atol=2e-2)
    first, second = (n for n in calls if n.target is aten.scaled_dot_product_attention.default)
    assert first.args[3] is second.args[3]
    laid = first.args[3].meta["val"]
    assert laid.dtype is HALF
    assert laid.stride(-1) == 1 or laid.shape[-1] == 1
    assert all(s % 8 == 0 for s, n in zip(laid.stride()[:-1], laid.shape) if n > 1)


@pytest.mark.parametrize("queries", [1, L])
def test_repeated_keys_are_left_to_the_kernel(queries):
    def fn(q, k, v, mask):
        return attention(q, repeat(k, 2), repeat(v, 2), mask).transpose(1, 2)

    inputs = randn(B, H, queries, D), randn(B, 2, L, D), randn(B, 2, L, D, seed=4)
    inputs = *inputs, torch.ones(B, 1, queries, L, dtype=torch.bool).tril()
    passes = [FusedAttention(device="cpu", choose=fused)]
    calls = rewritten(fn, *inputs, passes=passes, rtol=2e-2, atol=2e-2)
    (call,) = (n for n in calls if n.target is aten.scaled_dot_product_attention.default)
    assert call.kwargs["enable_gqa"] is True and call.args[1].op == "placeholder"
    refuses = FusedAttention(device="cpu", choose=lambda *a, enable_gqa, **k: int(not enable_gqa))
    calls = rewritten(fn, *inputs, passes=[refuses], rtol=2e-2, atol=2e-2)
    (call,) = (n for n in calls if n.target is aten.scaled_dot_product_attention.default)
    assert not call.kwargs.get("enable_gqa", False)


def test_what_draws_or_is_wide_stays():
    def fn(q, k, v, mask):
        return attention(q, k, v, mask)

    inputs = *(torch.randn(B, H, L, D) for _ in range(3)), pad(torch.ones(L, L), (0, 0)).t()
    calls = rewritten(fn, *inputs, passes=[FusedAttention(device="cpu", choose=fused)])
    assert [n.target for n in calls] == [aten.scaled_dot_product_attention.default]


def stack(x, w1, b1, w2, w3):
    y = torch.conv2d(x, w1, b1, padding=1).relu()
    z = torch.conv2d(y, w2, stride=2) + torch.nn.functional.max_pool2d(y, 2)
    return torch.conv2d(z, w3, padding=1, groups=w3.shape[0])


def block(x, *weights):
    y = stack(x, *weights)
    return torch.nn.functional.batch_norm(y, y.mean((0, 2, 3)), y.var((0, 2, 3))) * y.sigmoid()


def flattened(x, *weights):
    y = stack(x, *weights)
    return linear(y.flatten(1), torch.ones(5, y[0].numel())), y.mean((2, 3)), y.shape[1]


def tokens(x, *weights):
    y = stack(x, *weights).flatten(2).transpose(1, 2)
    return torch.nn.functional.layer_norm(y, (y.shape[-1],)), torch.cat([y, y], 1).view(
        x.shape[0], -1
    )


def several(x, *weights):
    y = stack(x, *weights)
    return y, y[:, 1:], y.permute(0, 2, 3, 1), x.as_strided((3,), (2,)), y.unbind(1)[0]


def reused(x, w1, b1, w2, w3):
    return torch.conv2d(x, w1, b1), torch.conv2d(x, w1), torch.conv2d(x.sin(), w1, b1) * x.mean()


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("fn", [stack, block, flattened, tokens, several, reused])
def test_convolutions_run_channels_last(fn, last):
    generator = torch.Generator().manual_seed(0)
    sizes = (2, 4, 9, 9), (8, 4, 3, 3), (8,), (8, 8, 3, 3), (8, 1, 3, 3)
    x, *weights = (torch.randn(size, generator=generator) * 0.3 for size in sizes)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    passes = [ChannelsLast(device="cpu", dtypes=(torch.float32,))]
    calls = rewritten(fn, x, *weights, passes=passes, rtol=1e-4, atol=1e-5)
    convolutions = [n for n in calls if n.target is aten.convolution.default]
    for node in convolutions:
        assert node.args[0].meta["val"].is_contiguous(memory_format=torch.channels_last)
        assert node.meta["val"].is_contiguous(memory_format=torch.channels_last)
        assert node.args[2] is None
    clones = [n.args[0].name for n in calls if n.target is aten.clone.default]
    assert clones.count("arg0") == (0 if last else 1)


def test_group_norms_between_convolutions_need_no_copies():
    def fn(x, w1, b1, w2, w3):
        y = torch.nn.functional.group_norm(torch.conv2d(x, w1, b1, padding=1), 4)
        return torch.conv2d(torch.nn.functional.silu(y), w2)

    generator = torch.Generator().manual_seed(0)
    sizes = (2, 4, 9, 9), (8, 4, 3, 3), (8,), (8, 8, 3, 3), (8, 1, 3, 3)
    inputs = [torch.randn(size, generator=generator) * 0.3 for size in sizes]
    passes = [ChannelsLast(device="cpu", dtypes=(torch.float32,))]
    calls = rewritten(fn, *inputs, passes=passes, rtol=1e-4, atol=1e-5)
    moved = [n.target for n in calls if n.target in (aten.clone.default, aten.copy.default)]
    assert moved == [aten.clone.default] * 2  # the first input and the result


@pytest.mark.parametrize("returned", [False, True])
def test_sums_over_parts_of_channels_stay_channels_last(returned):
    """As in networks that weigh several branches: aten lays the sum out with channels apart."""

    def fn(x, w1, w2, w3):
        y = torch.conv2d(x, w1, padding=1).relu()
        parts = y.reshape(y.shape[0], 2, -1, *y.shape[2:])
        weights = torch.conv2d(parts.sum(1).mean((2, 3), keepdim=True), w2).softmax(1)
        sums = (parts * weights.reshape(y.shape[0], 2, -1, 1, 1)).sum(1)
        result = torch.conv2d(torch.nn.functional.avg_pool2d(sums, 3), w3)
        return (result, sums) if returned else result

    generator = torch.Generator().manual_seed(0)
    sizes = (2, 4, 9, 9), (8, 4, 3, 3), (8, 4, 1, 1), (5, 4, 1, 1)
    inputs = [torch.randn(size, generator=generator) * 0.3 for size in sizes]
    passes = [ChannelsLast(device="cpu", dtypes=(torch.float32,))]
    calls = rewritten(fn, *inputs, passes=passes, rtol=1e-4, atol=1e-5)
    (pool,) = [n for n in calls if n.target is aten.avg_pool2d.default]
    sums = [n for n in calls if n.target is aten.sum.dim_IntList]
    assert pool.args[0].meta["val"].is_contiguous(memory_format=torch.channels_last) != returned
    assert sums[0].next.target is aten.permute.default


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("returned", [False, True])
@pytest.mark.parametrize("places", [(7,), (3, 5)])
@pytest.mark.parametrize("last", [False, True])
def test_pixels_in_groups_are_products_of_a_batch(last, places, returned, bias):
    convolve = torch.conv1d if len(places) == 1 else torch.conv2d

    def fn(x, w, v, b):
        x = x.movedim(-1, 1) if last else x
        y = convolve(x, w, b if bias else None, groups=2)
        z = convolve(torch.nn.functional.gelu(y), v, groups=2)
        return (y.flatten(1), z) if returned else torch.softmax(z, 1).movedim(1, -1)

    x = randn(2, *places, 144) if last else randn(2, 144, *places)
    ones = [1] * len(places)
    inputs = x, randn(160, 72, *ones, seed=1), randn(6, 80, *ones, seed=2), randn(160, seed=3)
    passes = [GroupProducts("cpu", (torch.float32,))]
    calls = rewritten(fn, *(t.float() for t in inputs), passes=passes, rtol=1e-4, atol=1e-4)
    targets = [n.target for n in calls]
    assert targets.count(aten.bmm.default) == 2 and aten.convolution.default not in targets
    if last and not returned and len(places) == 2:  # the products are read as they lie
        assert targets.count(aten.clone.default) == 2


def test_convolutions_stay_where_products_may_be_refused():
    inputs = randn(2, 144, 7, 7).float(), randn(160, 72, 1, 1).float()
    passes = [GroupProducts("cpu", (torch.float32,))]
    torch.use_deterministic_algorithms(True)
    try:
        calls = rewritten(lambda x, w: torch.conv2d(x, w, groups=2), *inputs, passes=passes)
    finally:
        torch.use_deterministic_algorithms(False)
    assert aten.convolution.default in [n.target for n in calls]


def test_convolutions_with_one_weight_read_one_copy_of_it():
    def fn(x, w, other):
        for _ in range(3):
            x = torch.conv2d(torch.conv2d(x, w, padding=1).relu(), other)
        return x

    generator = torch.Generator().manual_seed(0)
    sizes = (2, 8, 9, 9), (8, 8, 3, 3), (8, 8, 1, 1)
    inputs = [torch.randn(size, generator=generator) * 0.3 for size in sizes]
    passes = [ChannelsLast(device="cpu", dtypes=(torch.float32,))]
    calls = rewritten(fn, *inputs, passes=passes, rtol=1e-4, atol=1e-5)
    convolutions = [n for n in calls if n.target is aten.convolution.default]
    weights = {n.args[1] for n in convolutions}
    assert len(convolutions) == 6 and len(weights) == 2
    assert all(n.meta["val"].is_contiguous(memory_format=torch.channels_last) for n in weights)


@pytest.mark.parametrize("returned", [False, True])
def test_rows_go_channels_last_too(returned):
    def fn(x, w1, b, w2):
        y = torch.conv1d(x, w1, b, 2, 3, 2).relu()
        z = torch.conv1d(y, w2, None, 1, 1, 1, 2) + y.mean(2, keepdim=True)
        return (y, z) if returned else z

    generator = torch.Generator().manual_seed(0)
    sizes = (2, 4, 19), (8, 4, 3), (8,), (8, 4, 3)
    inputs = [torch.randn(size, generator=generator) for size in sizes]
    passes = [
        RowsAsImages(device="cpu", dtypes=(torch.float32,)),
        ChannelsLast(device="cpu", dtypes=(torch.float32,)),
    ]
    calls = rewritten(fn, *inputs, passes=passes, rtol=1e-4, atol=1e-5)
    convolutions = [n for n in calls if n.target is aten.convolution.default]
    assert len(convolutions) == 2
    for node in convolutions:
        assert node.args[0].meta["val"].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("seen", [False, True])
def test_rows_whose_channels_lie_last_are_read_where_they_are(seen):
    def fn(x, w):
        for _ in range(2):
            y = torch.conv1d(x.mT, w, padding=2)
            x = linear(y[..., :9].mT, w[..., 0]).sigmoid()
        return (x, y, y[:, 1:], torch.conv1d(y[..., :4].mT, w)) if seen else x

    passes = [
        RowsAsImages(device="cpu", dtypes=(torch.float32,)),
        ChannelsLast(device="cpu", dtypes=(torch.float32,)),
    ]
    inputs = torch.randn(2, 9, 4), torch.randn(4, 4, 3)
    calls = rewritten(fn, *inputs, passes=passes, rtol=1e-4, atol=1e-5)
    convolutions = [n for n in calls if n.target is aten.convolution.default]
    assert {n.meta["val"].dim() for n in convolutions} == {4}


def test_convolutions_of_each_channel_alone_stay_rows():
    x, w = torch.randn(2, 4, 9), torch.randn(4, 1, 3)
    passes = [RowsAsImages(device="cpu", dtypes=(torch.float32,))]
    calls = rewritten(
        lambda x, w: torch.conv1d(torch.conv1d(x, w, groups=4), w, groups=4),
        *(x, w),
        passes=passes,
        rtol=1e-4,
        atol=1e-5,
    )
    assert [n.target for n in calls] == [aten.convolution.default] * 2
    assert all(n.meta["val"].dim() == 3 for n in calls)


@pytest.mark.parametrize(
    ("taps", "dilation", "last"), [(3, 8, True), (3, 16, False), (5, 8, False), (2, 64, True)]
)
def test_taps_that_are_far_apart_keep_their_layout(taps, dilation, last):
    """The library may have no fast channels-last kernel for them."""

    def fn(x, w):
        for _ in range(3):
            x = torch.nn.functional.conv1d(x, w, dilation=dilation).relu()
        return x

    inputs = randn(2, 8, 3 * (taps - 1) * dilation + 9), randn(8, 8, taps, seed=1)
    passes = [RowsAsImages(device="cpu"), ChannelsLast(device="cpu")]
    calls = rewritten(fn, *inputs, passes=passes, rtol=3e-2, atol=3e-2)
    ranks = {n.meta["val"].dim() for n in calls if n.target is aten.convolution.default}
    assert ranks == {4 if last else 3}


def test_one_convolution_stays():
    x, w = torch.randn(2, 4, 9, 9), torch.randn(8, 4, 3, 3)
    passes = [ChannelsLast(device="cpu", dtypes=(torch.float32,))]
    (call,) = rewritten(lambda x, w: torch.conv2d(x, w), x, w, passes=passes, rtol=1e-4, atol=1e-5)
    assert call.args[0].op == "placeholder"


def test_odd_groups_keep_their_layout():
    x, w1, w2 = torch.randn(2, 6, 9, 9), torch.randn(6, 3, 3, 3), torch.randn(4, 6, 3, 3)
    passes = [ChannelsLast(device="cpu", dtypes=(torch.float32,))]
    calls = rewritten(
        lambda x, w1, w2: torch.conv2d(torch.conv2d(x, w1, groups=2), w2),
        *(x, w1, w2),
        passes=passes,
        rtol=1e-4,
        atol=1e-4,
    )
    assert [n.target for n in calls] == [aten.convolution.default] * 2


BIASED = {
    "rows": (torch.conv1d, (2, 4, 9), (8, 4, 3)),
    "images": (torch.conv2d, (2, 4, 6, 9), (8, 4, 3, 1)),
    "volumes": (torch.conv3d, (1, 4, 5, 6, 7), (8, 4, 3, 3, 1)),
    "transposed": (torch.conv_transpose2d, (2, 4, 6, 9), (4, 8, 3, 3)),
}


@pytest.mark.parametrize("name", BIASED)
def test_biases_of_convolutions_are_added_by_what_follows(name):
    convolve, image, weight = BIASED[name]
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(size, generator=generator) for size in (image, weight, (8,))]
    calls = rewritten(
        lambda x, w, b: convolve(x, w, b).relu() + convolve(x, w),
        *inputs,
        passes=[ConvolutionBiases(device="cpu")],
        rtol=1e-4,
        atol=1e-4,
    )
    convolutions = [n for n in calls if n.target is aten.convolution.default]
    assert [n.args[2] for n in convolutions] == [None, None]


def test_convolutions_of_single_channels_keep_their_bias():
    inputs = torch.randn(2, 4, 6, 9), torch.randn(4, 1, 3, 3), torch.randn(4)
    (call,) = rewritten(
        lambda x, w, b: torch.conv2d(x, w, b, groups=4),
        *inputs,
        passes=[ConvolutionBiases(device="cpu")],
        rtol=1e-4,
        atol=1e-4,
    )
    assert call.args[2] is not None


PATCHES = {
    "patches": ((2, 3, 8, 12), (5, 3, 4, 4), {"stride": 4}),
    "unequal": ((2, 3, 6, 8), (5, 3, 3, 2), {"stride": (3, 2)}),
    "whole image": ((2, 3, 5, 7), (4, 3, 5, 7), {}),
    "row": ((2, 3, 5, 8), (4, 3, 5, 2), {"stride": (1, 2)}),
}
OVERLAPS = {
    "overlap": ((2, 3, 8, 8), (5, 3, 3, 3), {}),
    "rest": ((2, 3, 9, 8), (5, 3, 4, 4), {"stride": 4}),
    "padded": ((2, 3, 8, 8), (5, 3, 4, 4), {"stride": 4, "padding": 2}),
    "dilated": ((2, 3, 8, 8), (5, 3, 2, 2), {"stride": 2, "dilation": 2}),
    "points": ((2, 3, 8, 8), (5, 3, 1, 1), {}),
}


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", PATCHES | OVERLAPS)
def test_convolutions_over_patches_are_products(name, bias, last):
    size, filters, options = (PATCHES | OVERLAPS)[name]
    x, w, b = torch.randn(size), torch.randn(filters), torch.randn(filters[0])
    x = x.contiguous(memory_format=torch.channels_last) if last else x

    def fn(x, w, b):
        y = torch.conv2d(x, w, b if bias else None, **options)
        return y.relu(), y.flatten(2).transpose(1, 2)

    passes = [PatchProducts(device="cpu", dtypes=(torch.float32,))]
    calls = rewritten(fn, x, w, b, passes=passes, rtol=1e-4, atol=1e-4)
    left = [n for n in calls if n.target is aten.convolution.default]
    assert len(left) == (name in OVERLAPS)


def tokens_of_patches(x, w, b, scale):
    h = torch.conv2d(x, w, b, stride=4).flatten(2).transpose(1, 2)
    h = h + scale * torch.nn.functional.layer_norm(h, h.shape[2:])
    h = h + torch.bernoulli(h.sin(), 0.0)
    return linear(h, torch.ones(3, 6)), h[:, :1]


@pytest.mark.parametrize("same_draws", [False, True])
def test_tokens_of_patches_lie_in_rows(same_draws):
    inputs = (torch.randn(n) for n in ((2, 3, 8, 12), (6, 3, 4, 4), (6,), (6,)))
    passes = [PatchProducts(device="cpu", dtypes=(torch.float32,), same_draws=same_draws)]
    calls = rewritten(tokens_of_patches, *inputs, passes=passes, rtol=1e-4, atol=1e-4)
    first, *_ = (n for n in calls if n.target is aten.add.Tensor)
    (drawn,) = (n for n in calls if n.target is aten.bernoulli.p)
    assert first.meta["val"].is_contiguous()
    assert drawn.args[0].meta["val"].is_contiguous() is not same_draws


def heads(x):
    return x.unflatten(-1, (2, -1)).transpose(1, 2)


BATCHES = {  # -> how many operands are copied
    "heads": (lambda x, y: heads(x) @ heads(y).mT, 2),
    "computed heads": (lambda x, y: (heads(x).sin() @ heads(y).mT) * 2, 2),
    "rows": (lambda x, y: x.view(2, 2, 3, 8) @ y.view(2, 2, 8, 3), 0),
    "columns": (lambda x, y: x.view(2, 2, 3, 8) @ y.view(2, 2, 3, 8).mT, 0),
    "one head": (lambda x, y: x[:, None] @ y[:, None].mT, 0),
    "one image": (lambda x, y: heads(x[:1]) @ heads(y[:1]).mT, 0),
    "five axes": (
        lambda x, y: x.view(2, 2, 3, 2, 4).permute(3, 0, 1, 2, 4) @ y.view(2, 2, 2, 4, 3),
        1,
    ),
    "expanded": (lambda x, y: x.view(2, 2, 3, 8) @ y[0].t().expand(2, 2, 8, 6), 0),
}
OTHERS = {
    "three axes": lambda x, y: x @ y.mT,
    "spread": lambda x, y: heads(x) @ heads(y[:1]).mT,
    "one matrix": lambda x, y: heads(x) @ y[0, :4],
}


@pytest.mark.parametrize("name", BATCHES)
def test_batches_of_several_axes_are_merged(name):
    fn, copied = BATCHES[name]
    x, y = torch.randn(2, 6, 8), torch.randn(2, 6, 8)
    calls = rewritten(fn, x, y, passes=[BatchedProducts()], rtol=1e-5, atol=1e-5)
    assert not any(n.target is aten.matmul.default for n in calls)
    assert sum(n.target is aten.clone.default for n in calls) == copied


@pytest.mark.parametrize("name", OTHERS)
def test_other_products_of_batches_stay(name):
    x, y = torch.randn(2, 6, 8), torch.randn(2, 6, 8)
    calls = rewritten(OTHERS[name], x, y, passes=[BatchedProducts()], rtol=1e-5, atol=1e-5)
    assert any(n.target is aten.matmul.default for n in calls)


ROWS = {  # -> how many operands are copied
    "transposed": (lambda x, y: linear(x.mT.sin(), y[0, :, :6]), 1),
    "shared": (lambda x, y: linear(x.mT, y[0, :, :6]) + linear(x.mT, y[1, :, :6]), 1),
    "as they lie": (lambda x, y: linear(x.sin(), y[0]), 0),
    "viewed": (lambda x, y: linear(x[:, None], y[0]), 0),
    "one image": (lambda x, y: linear(x[:1].mT, y[0, :, :6]), 0),
    "a matrix": (lambda x, y: linear(x[0].t(), y[0, :, :6]), 0),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_of_products_are_copied_where_they_would_be(name):
    fn, copied = ROWS[name]
    x, y = torch.randn(2, 6, 8), torch.randn(2, 6, 8)
    passes = [CommonSubexpressions(), BatchedProducts()]
    calls = rewritten(fn, x, y, passes=passes, rtol=1e-5, atol=1e-5)
    products = [n for n in calls if n.target is aten.linear.default]
    assert products and sum(n.target is aten.clone.default for n in calls) == copied
