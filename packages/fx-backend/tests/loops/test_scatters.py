"""Operators that write where other tensors say, against eager: values, layouts, order, errors."""

import pytest
import torch
from loop_reader import read_kernel
from loop_reference import evaluate
from plans import externs, kernels
from torch import fx
from torchsmith_fx_backend import Settings, compile_graph
from torchsmith_fx_backend._src.driver import functional_graph
from torchsmith_fx_backend._src.loops.ir import StoreMode
from torchsmith_fx_backend._src.loops.meeting import meeting_stores, owned_axes
from torchsmith_fx_backend._src.passes.scatters import ScatterTargets
from torchsmith_fx_backend._src.records.kernels import print_kernel
from torchsmith_fx_backend._src.schedule import schedule_graph

STRICT = Settings(graph_cache=False, verify=True, strict=True)
I = torch.tensor
X = (torch.arange(6 * 5, dtype=torch.float32).reshape(6, 5) % 7) - 3
S = (torch.arange(4 * 5, dtype=torch.float32).reshape(4, 5) % 5) - 1
K = torch.arange(20).reshape(4, 5) * 7 % 6 // 2 * 2  # the same rows again and again
J = I([0, 3, 3, 1])

CASES = {
    "index_add": (lambda x, j, s: x.index_add(0, j, s), X, J, S),
    "index_add times": (lambda x, j, s: x.index_add(0, j, s, alpha=3) + 1, X, J, S),
    "index_add columns": (lambda x, j, s: x.t().index_add(1, j, s.t()), X, J, S),
    "index_add of what is computed": (lambda x, j, s: x.exp().index_add(0, j, s.exp()), X, J, S),
    "index_add of its own rows": (lambda x, j: x.index_add(0, j, x[j] * 2), X, J),
    "index_copy": (lambda x, j, s: x.index_copy(0, j, s), X, J, S),
    "index_fill": (lambda x, j: x.index_fill(1, j, 2.0), X, I([0, -1])),
    "scatter": (lambda x, k, s: x.scatter(0, k, s), X, K, S),
    "scatter of a number": (lambda k: torch.zeros(4, 6).scatter(1, k, 1.0), K),
    "scatter_add": (lambda x, k, s: x.scatter_add(0, k, s + 1).relu(), X, K, S),
    "scatter_add along rows": (lambda x, k, s: x.scatter_add(1, k % 5, s), X, K, S),
    "scatter_add of more": (lambda x, k, s: x.scatter_add(0, k[:2, :3], s), X, K, S),
    "scatter_add twice": (lambda x, k, s: x.scatter_add(0, k, s).scatter_add(0, k, s), X, K, S),
    "scatter_add to itself": (lambda x, k: x.scatter_add(0, k, x), X, K),
    "put": (lambda x, j, s: x.index_put([j], s), X, I([0, -1, 2, 2]), S),
    "put and add": (lambda x, j, s: x.index_put([j], s, True), X, I([0, -1, 2, 2]), S),
    "put at places": (lambda x, j, v: x.index_put([j, j], v, True), X, I([0, 4, 4]), I(2.0)),
    "put behind": (lambda x, j, s: x.t().index_put([j], s[0, 0], True), X, I([0, 4, 4]), S),
    **{
        f"{reduce} {kept}": (
            lambda x, k, s, reduce=reduce, kept=kept: x.scatter_reduce(
                0, k, s, reduce, include_self=kept
            ),
            *(X, K, S),
        )
        for reduce in ("sum", "prod", "mean", "amax", "amin")
        for kept in (True, False)
    },
    "embedding": (
        lambda g, j: torch.ops.aten.embedding_dense_backward(g, j, 6, 3, False),
        *(S, J),
    ),
}


def _traced(fn, count):
    names = ", ".join(f"x{n}" for n in range(count))
    scope = {"fn": fn}
    exec(f"def call({names}):\n    return (fn({names}),)", scope)
    return fx.symbolic_trace(scope["call"])


def _plan(fn, args):
    module = functional_graph(_traced(fn, len(args)), args, STRICT).module
    ScatterTargets().run(module.graph)
    module.recompile()
    return schedule_graph(module, check=True)


@pytest.mark.parametrize("name", CASES)
def test_scatters_are_kernels(name):
    fn, *args = CASES[name]
    plan = _plan(fn, args)
    assert not externs(plan), externs(plan)
    assert any(meeting_stores(kernel) for kernel in kernels(plan))
    for kernel in kernels(plan):
        assert read_kernel(print_kernel(kernel)) == kernel


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.int32])
@pytest.mark.parametrize("name", CASES)
def test_compiled_against_eager(name, dtype):
    fn, *args = CASES[name]
    if dtype is not None:
        args = [x.to(dtype) if x.dtype is torch.float32 else x for x in args]
    kept = [x.clone() for x in args]
    try:
        want = fn(*args)
    except (RuntimeError, NotImplementedError):
        pytest.skip("eager has no such kernel")
    (got,) = compile_graph(_traced(fn, len(args)), args, STRICT)(*args)
    assert got.stride() == want.stride() and got.dtype is want.dtype
    torch.testing.assert_close(got, want)
    for before, after in zip(kept, args):
        assert torch.equal(before, after)


def test_nan_is_an_extreme():
    x, k, s = X.clone(), K, S.clone()
    s[1, 1] = x[0, 2] = float("nan")
    for reduce in ("amax", "amin"):
        fn = lambda x, k, s, r=reduce: x.scatter_reduce(0, k, s, r)
        (got,) = compile_graph(_traced(fn, 3), [x, k, s], STRICT)(x, k, s)
        torch.testing.assert_close(got, fn(x, k, s), equal_nan=True)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, j: x.index_add(0, j, x[:1]),
        lambda x, j: x.index_copy(0, j, x[:1]),
        lambda x, j: x.index_fill(0, j, 1),
        lambda x, j: x.scatter(0, j[:, None], 1.0),
        lambda x, j: x.scatter_add(0, j[:, None], x),
        lambda x, j: x.index_put([j], x[:1], True),
    ],
)
@pytest.mark.parametrize("index", [6, -1, -7])
def test_positions_outside(fn, index):
    args = [X, I([index])]
    try:
        want = fn(*args)
    except Exception as error:
        with pytest.raises(type(error)) as caught:
            compile_graph(_traced(fn, 2), args, STRICT)(*args)
        assert str(caught.value) == str(error)
    else:
        torch.testing.assert_close(compile_graph(_traced(fn, 2), args, STRICT)(*args)[0], want)


def test_many_points_meet_in_order_whatever_the_threads():
    index = torch.randint(0, 50, (40_000,))
    x, s = torch.randn(50, 24), torch.randn(40_000, 24)
    fn = lambda x, j, s: x.index_add(0, j, s.sin())
    compiled = compile_graph(_traced(fn, 3), [x, index, s], STRICT)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        (one,) = compiled(x, index, s)
        torch.set_num_threads(2)
        (two,) = compiled(x, index, s)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(one, two)
    torch.testing.assert_close(one, fn(x.double(), index, s.double()).float(), atol=1e-3, rtol=0)


ROWS = """
@kernel(ranges=(3, 4, 5), reduce_from=3, args=("int64 read", "float32 read", "float32 written"),
        symbols=())
def _(a0, a1, a2, i0, i1, i2):
    v0 = load(a0, {read})
    v1 = position(v0, 6)
    v2 = load(a1, 20 * i0 + 5 * i1 + i2)
    store(a2, {place}, v2, {mode!r})
"""


@pytest.mark.parametrize(
    ("read", "place", "owned"),
    [
        ("4 * i0 + i1", "5 * at(v1) + i2", [2]),
        ("4 * i0 + i1", "30 * i0 + 5 * at(v1) + i2", [0, 2]),
        ("4 * i0 + i1", "6 * i2 + at(v1)", [2]),
        ("20 * i0 + 5 * i1 + i2", "24 * i0 + 6 * i1 + at(v1)", [0, 1]),
        ("20 * i0 + 5 * i1 + i2", "at(v1)", []),
        ("4 * i0 + i1", "4 * at(v1) + i2", []),  # rows overlap
        ("i0", "at(v1) + i2", []),
    ],
)
def test_axes_that_are_owned(read, place, owned):
    kernel = read_kernel(ROWS.format(read=read, place=place, mode="add"))
    assert owned_axes(kernel) == owned


def test_the_last_point_stays():
    text = ROWS.format(read="4 * i0 + i1", place="5 * at(v1) + i2", mode="last")
    out = torch.zeros(30)
    source = torch.arange(60.0)
    evaluate(read_kernel(text), [torch.zeros(12, dtype=torch.int64), source, out])
    assert out[:5].tolist() == source[-5:].tolist()


def test_what_stays_is_free_where_eager_does_not_say(monkeypatch):
    fn = lambda x, k, s: x.scatter(0, k, s)
    modes = {}
    for ordered in (False, True):
        torch.use_deterministic_algorithms(ordered)
        try:
            args = [x.to("meta") for x in (X, K, S)]
            plan = _plan(fn, args)
        finally:
            torch.use_deterministic_algorithms(False)
        modes[ordered] = {n.mode for k in kernels(plan) for n in k.body if hasattr(n, "mode")}
    assert modes[False] == {StoreMode.SET}
    assert modes[True] == {StoreMode.SET, StoreMode.LAST}


SUMS = {
    "index_add": lambda x, k, s: x.index_add(0, k[:, 0], s, alpha=2),
    "scatter_add": lambda x, k, s: x.scatter_add(0, k, s),
    "scatter_reduce": lambda x, k, s: x.scatter_reduce(0, k, s, "sum"),
    "index_put": lambda x, k, s: x.index_put((k[:, 0],), s, accumulate=True),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("name", SUMS)
def test_a_gpu_adds_in_any_order_where_eager_does(name, dtype):
    """On a device that is no CPU, at more points than may follow each other there."""
    fn, many = SUMS[name], 100
    index = (torch.arange(many * 5).view(many, 5) * 7 % 6).to("meta")
    args = [X.to("meta", dtype), index, torch.ones(many, 5, device="meta", dtype=dtype)]
    for ordered in (False, True):
        torch.use_deterministic_algorithms(ordered)
        try:
            plan = _plan(fn, args)
        finally:
            torch.use_deterministic_algorithms(False)
        modes = {n.mode for k in kernels(plan) for n in k.body if hasattr(n, "mode")}
        at_once = not ordered and dtype is not torch.int8
        assert (StoreMode.SUM in modes) == at_once == (not externs(plan))
        for kernel in kernels(plan):
            assert not meeting_stores(kernel) and read_kernel(print_kernel(kernel)) == kernel


def test_sums_in_any_order_are_of_all_points():
    text = ROWS.format(read="4 * i0 + i1", place="5 * at(v1) + i2", mode="sum")
    index, source, out = torch.arange(12) % 3, torch.arange(60.0), torch.ones(30)
    kernel = read_kernel(text)
    evaluate(kernel, [index, source, out])
    wanted = torch.ones(6, 5).index_add(0, index, source.view(12, 5))
    torch.testing.assert_close(out.view(6, 5), wanted)
