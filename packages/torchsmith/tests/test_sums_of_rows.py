"""Gradients of indexing by one sort of each index, as on a GPU, tried on a CPU."""

import pytest
import torch
import torch.nn.functional as F
import torchsmith
from torchsmith_fx_backend._src import driver, passes, switches
from torchsmith_fx_backend._src.passes import templates
from torchsmith_fx_backend._src.passes.templates import SummedRows
from torchsmith_kernels import sum_rows_template
from torchsmith_kernels._src.sum_rows import rewrite

SORT, SUM = torch.ops.torchsmith.sort_rows.default, torch.ops.torchsmith.sum_rows.default


@pytest.fixture
def graphs(monkeypatch):
    """The graphs of what is compiled, once passes ran that replace sums of rows on a CPU."""
    torchsmith.reset()
    torchsmith.clear_metrics()
    there = SummedRows("cpu", lambda: (sum_rows_template,))
    mine = tuple(there if isinstance(p, SummedRows) else p for p in passes.PASSES)
    assert there in mine
    monkeypatch.setattr(switches, "PASSES", mine)
    monkeypatch.setattr(rewrite, "_TWO", 1)  # small programs shall do
    monkeypatch.setattr(templates, "rule_for", lambda node: None)  # as where many points meet
    found, run = [], driver.run_passes

    def noting(graph, *args, **kwargs):
        run(graph, *args, **kwargs)
        found.append([n.target for n in graph.nodes if n.op == "call_function"])

    monkeypatch.setattr(driver, "run_passes", noting)
    return found


def compared(fn, *inputs, calls=1):
    """Values and gradients of ``fn`` against eager mode, of one compiled function."""
    compiled = torchsmith.compile(fn, options={"strict": True, "graph_cache": False})
    for _ in range(calls):
        sides = []
        for run in (compiled, fn):
            given = [
                t.detach().clone().requires_grad_(t.dtype.is_floating_point or t.dtype.is_complex)
                for t in inputs
            ]
            result = run(*given)
            leaves = [t for t in given if t.requires_grad]
            sides.append((result, *torch.autograd.grad(result.abs().square().sum(), leaves)))
        for got, want in zip(*sides, strict=True):
            wide = 2e-2 if got.dtype is torch.bfloat16 else 1e-4
            torch.testing.assert_close(got, want, rtol=wide, atol=wide)
    return compiled


def numbers(graphs):
    """How many sorts and sums each graph has."""
    return [(targets.count(SORT), targets.count(SUM)) for targets in graphs]


H, W = torch.randn(10, 4), torch.randn(9, 6)
EDGES, TOKENS = torch.randint(0, 10, (2, 40)), torch.randint(0, 9, (3, 7))


def layers(h, e):
    for _ in range(3):
        message = torch.cat([h[e[0]], h[e[1]].sin()], 1).sin()
        h = h + torch.zeros(10, 8).index_add(0, e[0], message)[:, :4].tanh()
    return h


def selected(h, e):
    for _ in range(3):
        message = h.index_select(0, e[0]).sin()
        rows = e[1].unsqueeze(-1).expand_as(message)
        h = h + torch.zeros_like(h).scatter_add_(0, rows, message).tanh()
    return h


def mixed(h, e):
    return h[e[0]].sin() * h.index_select(0, e[0]).cos() + h[e[0] - 10].exp()


def twice(h, e):
    return h[e[0]][e[1]] + h[e[1]][e[0]]


def one_dimension(h, e):
    return h[:, 0][e[0]] * h.t()[1][e[1]]


def images(h, e):
    return h.view(10, 2, 2)[e].sin()


CASES = {
    "layers": (layers, (H, EDGES), [(1, 3), (2, 6)]),
    "selected": (selected, (H, EDGES), [(1, 3), (1, 3)]),
    "selected too few times": (lambda h, e: h.index_select(0, e[0]), (H, EDGES), [(0, 0)] * 2),
    "mixed": (mixed, (H, EDGES), [(0, 0), (2, 3)]),
    "negative": (lambda h, e: h[e - 10], (H, EDGES), [(0, 0), (1, 1)]),
    "of what is indexed": (twice, (H, EDGES), [(0, 0), (4, 4)]),
    "one dimension": (one_dimension, (H, EDGES), [(0, 0), (2, 2)]),
    "images": (images, (H, EDGES), [(0, 0), (1, 1)]),
    "32 bits": (lambda h, e: h[e[0]], (H, EDGES.int()), [(0, 0), (1, 1)]),
    "bfloat16": (lambda h, e: h[e[0]], (H.bfloat16(), EDGES), [(0, 0), (1, 1)]),
    "float64": (lambda h, e: h[e[0]], (H.double(), EDGES), [(0, 0), (1, 1)]),
    "complex": (lambda h, e: h[e[0]].abs(), (H.cfloat(), EDGES), [(0, 0)] * 2),
    "several indices": (
        lambda w, t: w[t[0], t[1] - 6],
        (W.t()[:6, :6], TOKENS % 6),
        [(0, 0), (1, 1)],
    ),
    "points": (
        lambda p, t: p[torch.arange(3)[:, None], t],
        (torch.randn(3, 9, 4), TOKENS),
        [(0, 0), (1, 1)],
    ),
    "behind a dimension": (lambda w, t: w[:, t % 6], (W, TOKENS), [(0, 0)] * 2),
    "an embedding": (lambda w, t: F.embedding(t, w), (W, TOKENS), [(0, 0), (1, 1)]),
    "padding": (lambda w, t: F.embedding(t, w, padding_idx=3), (W, TOKENS), [(0, 0), (1, 1)]),
    "by frequency": (
        lambda w, t: F.embedding(t, w, scale_grad_by_freq=True),
        (W, TOKENS),
        [(0, 0)] * 2,
    ),
    "none": (lambda h, e: h[e[0][:0]], (H, EDGES), [(0, 0), (1, 1)]),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients(name, graphs):
    fn, inputs, wanted = CASES[name]
    compared(fn, *inputs)
    assert numbers(graphs) == wanted


@pytest.mark.parametrize("times", [1, 2])
def test_one_sum_by_an_index_stays_with_the_library(times, graphs, monkeypatch):
    """Its kernels take longer to compile than most trainings gain by them."""
    monkeypatch.setattr(rewrite, "_TWO", 2)
    compared(
        lambda h, e: sum(h.sin()[e[0]] * (n + h[e[0]]) for n in range(times - 1)) + h[e[0]],
        H,
        EDGES,
    )
    (_, (sorts, sums)) = numbers(graphs)
    assert (sorts, sums > 1) == ((0, False) if times == 1 else (1, True))


def test_sums_that_are_to_be_in_order(graphs):
    torch.use_deterministic_algorithms(True)
    try:
        compared(lambda h, e: h.index_select(0, e[0]), H, EDGES)
    finally:
        torch.use_deterministic_algorithms(False)
    assert numbers(graphs) == [(0, 0), (1, 1)]


def test_sums_into_what_is_there_stay(graphs):
    fn = lambda h, e: (h * 2).index_put((e[0],), h[e[1]], accumulate=True)
    compared(fn, H, EDGES)
    assert numbers(graphs) == [(0, 0), (1, 1)]


def test_sums_that_take_no_negative_index_share_the_sort_of_others(graphs):
    def fn(h, e):
        put = torch.zeros(10, 4).index_put((e[0],), h[e[1]], accumulate=True)
        return put * torch.zeros(10, 4).index_add(0, e[0], h[e[1]].sin())

    compared(fn, H, EDGES)
    assert numbers(graphs) == [(1, 2), (1, 2)]
    for run in (fn, torchsmith.compile(fn)):
        with pytest.raises((IndexError, RuntimeError), match="index"):
            run(H, torch.stack((EDGES[0] - 10, EDGES[1])))


def test_sizes_that_vary(graphs):
    compiled = torchsmith.compile(layers, options={"strict": True}, dynamic=True)
    for count in (40, 33, 50, 20):
        edges = torch.randint(0, 10, (2, count))
        sides = []
        for run in (compiled, layers):
            h = H.clone().requires_grad_()
            result = run(h, edges)
            sides.append((result, *torch.autograd.grad(result.sin().sum(), h)))
        for got, want in zip(*sides, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert numbers(graphs) == [(1, 3), (2, 6)]


def test_an_index_that_is_no_row_is_an_error(graphs):
    compiled = torchsmith.compile(layers)
    with pytest.raises(IndexError, match="out of"):
        compiled(H.clone().requires_grad_(), EDGES + 10)


def test_rows_that_a_scatter_leaves_out(graphs):
    def fn(h, e):
        narrow = e[0][:, None].expand(40, 3)
        sums = [torch.zeros(10, 4).scatter_add(0, narrow, (h * n)[e[1]]) for n in (1, 2, 3)]
        return sums[0] * sums[1] + sums[2]

    with torch.no_grad():
        got = torchsmith.compile(fn, options={"strict": True, "graph_cache": False})(H, EDGES)
        torch.testing.assert_close(got, fn(H, EDGES))
    assert numbers(graphs) == [(0, 0)]


class Added(torch.autograd.Function):
    """A derivative of the user's own, with indices that were not looked up before."""

    @staticmethod
    def forward(ctx, x, i, j, way):
        ctx.save_for_backward(i, j)
        ctx.way = way
        return x.sin()

    @staticmethod
    def backward(ctx, grad):
        (i, j), zeros = ctx.saved_tensors, torch.zeros(6, 6)
        if ctx.way == "add":
            return zeros.index_add(0, i, grad), None, None, None
        return zeros.index_put((i, j), grad[:, 0], accumulate=True), None, None, None


@pytest.mark.parametrize("way", ["add", "put"])
def test_wrong_indices_of_a_backward_pass_are_errors(way, graphs, monkeypatch):
    torch.use_deterministic_algorithms(way == "add")  # so that one sum is enough
    try:
        compiled = torchsmith.compile(lambda x, i, j: Added.apply(x, i, j, way))
        right = torch.tensor([0, 5, 2, 2, 1, 0])
        for wrong in (right - 7, right + 2) if way == "put" else (right - 1, right + 2):
            x = torch.randn(6, 6, requires_grad=True)
            for pair in ((right, right), (right, wrong), (wrong, right))[
                :: 2 if way == "add" else 1
            ]:
                result = compiled(x, *pair)
                if pair[0] is pair[1]:
                    (grad,) = torch.autograd.grad(result, x, torch.ones(6, 6))
                    (want,) = torch.autograd.grad(Added.apply(x, *pair, way), x, torch.ones(6, 6))
                    torch.testing.assert_close(grad, want)
                else:
                    with pytest.raises((IndexError, RuntimeError), match="index"):
                        torch.autograd.grad(result, x, torch.ones(6, 6))
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("graphs")
def test_numbers_of_another_type_are_eagers_error():
    def fn(h, e):
        for _ in range(3):
            h = h + torch.zeros_like(h).index_add(0, e[0], h[e[1]].double())
        return h

    message = r"index_add_\(\): self \(Float\) and source \(Double\) must have the same scalar type"
    with pytest.raises(RuntimeError, match=message):
        fn(H, EDGES)
    with pytest.raises(RuntimeError, match=message), torch.no_grad():
        torchsmith.compile(fn, options={"graph_cache": False})(H, EDGES)
