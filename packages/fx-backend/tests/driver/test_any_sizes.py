"""Symbols of ``torch.compile``: one variant for all sizes, others where the program branches."""

import pytest
import torch
from torchsmith_fx_backend import smith
from torchsmith_fx_backend._src import any_sizes
from torchsmith_fx_backend._src.any_sizes import AnySizes


def rows(x, y):
    return torch.softmax(x @ y.t(), -1) * x.shape[0], (x + y).reshape(-1)[1:].sum()


def joined(x, y):
    z = torch.cat([x, y * 2])
    return z.flip(0) + z.mean(0), z.shape[0] + 1


def in_place(x, y):
    x.add_(y)
    return x.t() * 2, x


def branch(x, y):
    return x.sum(0) if x.shape[0] > 6 else x * y


def scaled(x, y, n=3):
    return x * n + y.cumsum(0)


SIZES = ((4, 6), (8, 6), (9, 5), (5, 9), (30, 7))


def compiled_with(fn):
    """``fn`` under torch's front end, and every graph that the backend made for it."""
    torch._dynamo.reset()
    made = []

    def backend(gm, inputs):
        made.append(smith(gm, inputs, options={"graph_cache": False}))
        return made[-1]

    return torch.compile(fn, backend=backend, dynamic=True), made


@pytest.mark.parametrize("fn", [rows, joined, in_place, scaled])
def test_one_variant_for_all_sizes(fn):
    compiled, made = compiled_with(fn)
    with torch.no_grad():
        for size in SIZES:
            mine = [torch.randn(size) for _ in range(2)]
            theirs = [x.clone() for x in mine]
            torch.testing.assert_close(compiled(*mine), fn(*theirs))
            torch.testing.assert_close(mine, theirs)
    (graph,) = made
    assert isinstance(graph, AnySizes) and len(graph._variants) == 1
    assert "kernel_0(" in graph.source


def test_sizes_outside_are_a_variant_of_their_own():
    compiled, made = compiled_with(branch)
    with torch.no_grad():
        for size in (*SIZES, (1, 4), (4, 1), (1, 1), (7, 7)):
            x, y = torch.randn(size), torch.randn(size)
            torch.testing.assert_close(compiled(x, y), branch(x, y))
    assert all(len(graph._variants) <= 4 for graph in made if isinstance(graph, AnySizes))


def test_numbers_are_symbols_too():
    compiled, _ = compiled_with(scaled)
    with torch.no_grad():
        x, y = torch.randn(4, 3), torch.randn(4, 3)
        for n in (3, 5, 0, 1, -2, 7, 2.5, 3.5):
            torch.testing.assert_close(compiled(x, y, n), scaled(x, y, n))


def test_variants_are_bounded(monkeypatch):
    monkeypatch.setattr(any_sizes, "MAX_VARIANTS", 2)
    kept = []

    def backend(gm, inputs):
        kept.append((gm, inputs))
        return gm

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(rows, backend=backend, dynamic=True)(torch.randn(4, 6), torch.randn(4, 6))
        ((gm, inputs),) = kept
        graph = smith(gm, inputs, options={"graph_cache": False})

        def given(x, y):
            tensors = iter((x, y))
            sizes = {hint: n for hint, n in zip((4, 6), x.shape, strict=True)}
            return [
                next(tensors) if isinstance(i, torch.Tensor) else sizes[i.node.hint] for i in inputs
            ]

        for n in (4, 1, 5, 0, 9):
            x, y = torch.randn(n, 6), torch.randn(n, 6)
            torch.testing.assert_close(graph(*given(x, y)), gm(*given(x, y)))
    assert len(graph._variants) == 2


@pytest.mark.parametrize(
    "cut", [lambda n: (8, n, 6), lambda n: (n, 40, n - 1), lambda n: (3, n, n // 2)]
)
def test_strides_of_slices_may_vary(cut):
    """Where no product of sizes gives a stride, it is a symbol of its own."""
    compiled, made = compiled_with(lambda x: (x * 2 + x.sum(1, keepdim=True), x.stride(0)))
    with torch.no_grad():
        for n in (9, 10, 12, 16):
            rows, columns, kept = cut(n)
            x = torch.randn(rows, columns)[:, :kept]
            assert compiled(x)[1] == x.stride(0)
            torch.testing.assert_close(compiled(x)[0], x * 2 + x.sum(1, keepdim=True))
    assert [len(graph._variants) for graph in made] == [1]
