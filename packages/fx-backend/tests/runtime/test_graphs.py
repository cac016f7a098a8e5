"""Plans to callables: wrapper text, externs, reuse, symbols, warm starts, fallbacks."""

from __future__ import annotations

import linecache
import operator
import subprocess
import sys
import traceback
import warnings
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torchsmith_fx_backend._src.codegen.wrapper import out_variant
from torchsmith_fx_backend._src.loops.index import Sym, add, const, mul, var
from torchsmith_fx_backend._src.loops.ir import BufferArg, Kernel, Load, Store
from torchsmith_fx_backend._src.runtime.build import build
from torchsmith_fx_backend._src.runtime.cache import Cache, CacheWarning
from torchsmith_fx_backend._src.runtime.graphs import load_graph, save_graph
from torchsmith_fx_backend._src.runtime.launchers import Unavailable
from torchsmith_fx_backend._src.runtime.native import NoCompilerWarning
from torchsmith_fx_backend._src.schedule.plan import (
    Allocate,
    BindSymbol,
    ExternCall,
    Free,
    Launch,
    Layout,
    Name,
    Plan,
)

aten = torch.ops.aten


def extern(target: object, *args: object, out: str | None = None, **kwargs: object) -> ExternCall:
    return ExternCall(target, args, tuple(kwargs.items()), ("r",), out=out)


def call_plan(step: ExternCall, *inputs: str, outputs: tuple[object, ...] = (Name("r"),)) -> Plan:
    return Plan(inputs or ("x",), (), (step,), outputs)


def test_pointwise_graph(cache: Cache, plans) -> None:
    graph = build(plans.plus(1.0), cache=cache)
    x = torch.randn(8)
    (y,) = graph(x)
    assert torch.equal(y, x + 1)


def test_source_reads_like_a_program(cache: Cache, plans) -> None:
    graph = build(plans.plus(1.0), cache=cache, name="forward")
    assert "def forward(x):" in graph.source
    assert "    # y = x + value\n    kernel_0(x.data_ptr(), buf0.data_ptr())" in graph.source
    ((name, text),) = graph.kernels
    assert f"void {name}(const float *a0, float *a1)" in text
    assert graph.storable


def test_equal_launches_share_a_kernel(cache: Cache, plans) -> None:
    kernel = plans.add(2.0, 8)
    layout = plans.layout(8)
    steps = (
        Allocate("a", layout),
        Launch(kernel, ("x", "a"), plans.cpu),
        Allocate("b", layout),
        Launch(kernel, ("a", "b"), plans.cpu),
        Free("a"),
    )
    graph = build(Plan(("x",), (), steps, (Name("b"),)), cache=cache)
    assert len(graph.kernels) == 1
    assert torch.equal(graph(torch.zeros(8))[0], torch.full((8,), 4.0))


def test_source_is_a_real_file_for_debuggers(cache: Cache) -> None:
    graph = build(call_plan(extern(aten.mm.default, Name("x"), Name("x"))), cache=cache)
    filename = graph.__code__.co_filename
    assert Path(filename).read_text() == graph.source
    with pytest.raises(RuntimeError) as caught:
        graph(torch.randn(2, 3))
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert frames[-1].line == "r = mm(x, x)"


def test_source_without_a_file_is_in_linecache(
    plans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Cache(tmp_path / "cache")
    monkeypatch.setattr(store, "put", lambda key, files: False)
    monkeypatch.setattr(store, "get", lambda key: None)
    graph = build(plans.plus(1.0), cache=store)
    assert torch.equal(graph(torch.zeros(8))[0], torch.ones(8))
    assert "".join(linecache.getlines(graph.__code__.co_filename)) == graph.source


class OwnError(Exception):
    pass


def raise_own_error(x: torch.Tensor) -> torch.Tensor:
    raise OwnError("from inside")


def test_exceptions_of_externs_arrive_unchanged(cache: Cache) -> None:
    graph = build(call_plan(extern(raise_own_error, Name("x"))), cache=cache)
    assert not graph.storable  # a user's function is not found again by its name
    with pytest.raises(OwnError, match="from inside"):
        graph(torch.zeros(2))
    x = torch.zeros(2, 3)
    graph = build(call_plan(extern(aten.mm.default, Name("x"), Name("x"))), cache=cache)
    with pytest.raises(RuntimeError) as ours:
        graph(x)
    with pytest.raises(RuntimeError) as eager:
        torch.mm(x, x)
    assert str(ours.value) == str(eager.value)
    assert torch.is_grad_enabled()


def test_out_variants_write_into_the_buffer(cache: Cache, plans) -> None:
    for step in (
        extern(aten.mm.default, Name("x"), Name("x"), out="buf0"),
        extern(aten.addmm.default, Name("x"), Name("x"), Name("x"), out="buf0", beta=2),
        extern(aten.cumsum.default, Name("x"), 0, out="buf0"),
    ):
        plan = Plan(("x",), (), (Allocate("buf0", plans.layout(4, 4)), step), (Name("r"),))
        graph = build(plan, cache=cache)
        assert "out=buf0" in graph.source
        x = torch.randn(4, 4)
        arguments = [x if isinstance(a, Name) else a for a in step.args]
        assert torch.equal(graph(x)[0], step.target(*arguments, **dict(step.kwargs)))


def test_out_without_a_variant_still_names_the_buffer(cache: Cache, plans) -> None:
    step = ExternCall(aten.view.default, (Name("x"), [16]), (), ("r",), out="buf0")
    graph = build(Plan(("x",), (), (step,), (Name("buf0"),)), cache=cache)
    x = torch.randn(4, 4)
    assert torch.equal(graph(x)[0], x.view(16))


def test_out_variant_lookup() -> None:
    assert out_variant(aten.mm.default) is aten.mm.out
    assert out_variant(aten.cumsum.default) is aten.cumsum.out
    assert out_variant(aten.view.default) is None
    assert out_variant(aten.topk.default) is None


# Those that write the memory of their first argument, with what else they take.
WRITES = {
    "select_scatter.out": (torch.ones(4), 1, 2),
    "slice_scatter.out": (torch.ones(4, 2), 1, 1, 3),
}


@pytest.mark.parametrize("name", WRITES)
def test_every_direct_write_equals_its_overload(name: str, cache: Cache) -> None:
    packet, _, overload = name.partition(".")
    part, *where = WRITES[name]
    call = extern(getattr(getattr(aten, packet), overload), Name("x"), Name("y"), *where)
    call = replace(call, kwargs=(("out", Name("x")),))
    x = torch.randn(4, 4)
    want = getattr(aten, packet)(x, part, *where)
    (got,) = build(Plan(("x", "y"), (), (call,), (Name("r"),)), cache=cache)(x, part)
    assert torch.equal(got, want) and torch.equal(x, want)
    assert got.data_ptr() == x.data_ptr()


def test_every_direct_function_equals_its_overload(cache: Cache) -> None:
    """The cheaper call of the table takes the same arguments and gives the same result."""
    from torchsmith_fx_backend._src.codegen.wrapper import _DIRECT

    x, y = torch.randn(4, 4), torch.randn(4, 4)
    b, z = torch.randn(2, 4, 4), torch.randn(2, 4, 4, dtype=torch.complex64)
    image, grid = torch.randn(2, 4, 6, 6), torch.rand(2, 3, 3, 2) * 2 - 1
    index, places = torch.tensor([3, 0, 3]), torch.tensor([[0, 1], [2, 3], [1, 1], [3, 0]])
    statistics = x[0], x[1], x[2].clone(), x[3].exp()
    samples: dict[str, tuple[object, ...]] = {
        "mm.default": (x, y),
        "addmm.default": (x, x, y),
        "bmm.default": (b, b),
        "baddbmm.default": (b, b, b),
        "mv.default": (x, y[0]),
        "dot.default": (x[0], y[0]),
        "matmul.default": (b, x),
        "cat.default": ([x, y], 1),
        "convolution.default": (
            torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3), None,
            [1, 1], [1, 1], [1, 1], False, [0, 0], 1,
        ),
        "embedding.default": (x, torch.tensor([1, 3])),
        "linear.default": (x, y, y[0]),
        "scaled_dot_product_attention.default": (b[None], b[None], b[None], None, 0.0, True),
        "view.default": (x, [2, 8]),
        "permute.default": (b, [2, 0, 1]),
        "transpose.int": (b, 0, 2),
        "t.default": (x,),
        "expand.default": (x, [3, 4, 4]),
        "unsqueeze.default": (x, 1),
        "squeeze.dim": (x[None], 0),
        "select.int": (b, 0, 1),
        "as_strided.default": (x, [2, 2], [1, 4]),
        "_adaptive_avg_pool2d.default": (image, [2, 3]),
        "_embedding_bag.default": (x, index, torch.tensor([0, 2]), False, 1, False, None, True, 0),
        "_fft_c2c.default": (z, [1, 2], 0, True),
        "_fft_c2r.default": (z, [1, 2], 2, 6),
        "_fft_r2c.default": (b, [1, 2], 0, True),
        "clone.default": (b.transpose(0, 2),),
        "cumsum.default": (b, -1),
        "gather.default": (x, 1, places),
        "grid_sampler_2d.default": (image, grid, 0, 1, False),
        "index_add.default": (x, 0, index, y[:3]),
        "index_select.default": (x, 1, index),
        "logcumsumexp.default": (b, 1),
        "native_batch_norm.default": (image, *statistics, False, 0.1, 1e-5),
        "native_group_norm.default": (image, x[0], x[1], 2, 4, 36, 2, 1e-5),
        "native_layer_norm.default": (b, [4], x[0], None, 1e-5),
        "nonzero.default": (x > 0,),
        "scatter_add.default": (x, 1, places, y),
        "sort.default": (x, 0, True),
        "topk.default": (x, 2, 1, False, True),
        "add.Tensor": (z, z[0]),
        "sub.Tensor": (z, z[0]),
        "mul.Tensor": (z, z[0]),
        "div.Tensor": (z, z[0]),
        "abs.default": (z,),
        **{f"{f}.default": (z,) for f in ("cos", "exp", "log", "log2", "sin", "sqrt", "tanh")},
        "complex.default": (x, y[0]),
        "_conj.default": (z,),
        "view_as_complex.default": (torch.randn(3, 2),),
        "view_as_real.default": (z,),
        "zeros_like.default": (z.transpose(0, 2),),
        "bincount.default": (index, x[0, :3], 5),
        "flip.default": (b, [0, 2]),
        "roll.default": (b, [1, -2], [0, 2]),
        "tril.default": (b, -1),
        "triu.default": (b, 1),
        "index_copy.default": (x, 0, torch.tensor([3, 0]), y[:2]),
        "_linalg_eigh.default": (x @ x.T, "U"),
        "_linalg_solve_ex.default": (x, y),
        "linalg_cholesky_ex.default": (x @ x.T + 4 * torch.eye(4),),
        "linalg_inv_ex.default": (b,),
        "linalg_lu_factor_ex.default": (b,),
        "linalg_qr.default": (b, "complete"),
    }  # fmt: skip
    assert {f"aten.{name}" for name in (*samples, *WRITES)} == set(_DIRECT)
    for name, arguments in samples.items():
        packet, _, overload = name.partition(".")
        target = getattr(getattr(aten, packet), overload)
        names = [f"in{n}" for n, a in enumerate(arguments) if isinstance(a, torch.Tensor)]
        tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
        values: list[object] = []
        for argument in arguments:
            if isinstance(argument, torch.Tensor):
                values.append(Name(names[len([v for v in values if isinstance(v, Name)])]))
            elif isinstance(argument, list) and argument and isinstance(argument[0], torch.Tensor):
                values.append([Name("p"), Name("q")])
            else:
                values.append(argument)
        if [Name("p"), Name("q")] in values:
            names, tensors = ["p", "q"], [x, y]
        plan = Plan(tuple(names), (), (extern(target, *values),), (Name("r"),))
        (got,) = build(plan, cache=cache)(*tensors)
        want = target(*arguments)
        several = isinstance(want, tuple)
        for mine, its in zip(got if several else [got], want if several else [want], strict=True):
            assert torch.equal(mine, its), name
            assert (mine.dtype, mine.stride()) == (its.dtype, its.stride()), name


def test_arguments_of_all_kinds(cache: Cache) -> None:
    step = ExternCall(
        aten.sum.dim_IntList,
        (Name("x"), [0]),
        (("keepdim", True), ("dtype", torch.float64)),
        ("r",),
    )
    outputs = (
        Name("r"), add(mul(Sym("n"), const(2)), const(1)), None, 2.5, float("inf"), "text",
        (1, [Name("x"), (None,)]), {"key": Name("r")}, torch.bfloat16, torch.device("cpu"),
    )  # fmt: skip
    plan = Plan(("x",), (), (BindSymbol("n", "x", "size", 0), step), outputs)
    x = torch.ones(3, 2)
    got = build(plan, cache=cache)(x)
    assert torch.equal(got[0], torch.full((1, 2), 3.0, dtype=torch.float64))
    assert got[1:6] == (7, None, 2.5, float("inf"), "text")
    assert got[6][1][0] is x
    assert got[7]["key"] is got[0]
    assert got[8:] == (torch.bfloat16, torch.device("cpu"))


def test_unpacked_results(cache: Cache) -> None:
    step = ExternCall(aten.topk.default, (Name("x"), 2), (), (None, "where"), unpack=True)
    plan = Plan(("x",), (), (step,), (Name("where"),))
    assert build(plan, cache=cache)(torch.tensor([1.0, 9.0, 5.0]))[0].tolist() == [1, 2]


def test_symbolic_sizes(cache: Cache, plans) -> None:
    size = Sym("s0")
    kernel = Kernel(
        (mul(size, const(2)),), 1, (Load(0, var(0), torch.float32), Store(1, var(0), 0)),
        (BufferArg(torch.float32, True, False), BufferArg(torch.float32, False, True)), ("s0",),
    )  # fmt: skip
    layout = Layout(torch.float32, plans.cpu, (size, const(2)), (const(2), const(1)))
    steps = (
        BindSymbol("s0", "x", "size", 0),
        Allocate("buf0", layout),
        Launch(kernel, ("x", "buf0"), plans.cpu),
    )
    graph = build(Plan(("x",), (), steps, (Name("buf0"), size)), cache=cache)
    for rows in (0, 1, 5, 1000):
        x = torch.randn(rows, 2)
        y, n = graph(x)
        assert torch.equal(x, y)
        assert n == rows


@pytest.mark.parametrize(
    "second",
    [
        ((8,), (1,), torch.float32),
        ((4, 2), (2, 1), torch.float32),
        ((4,), (1,), torch.float32),
        ((4,), (1,), torch.int64),
        ((16,), (1,), torch.bfloat16),
    ],
)
def test_reused_buffers_share_storage(cache: Cache, plans, second) -> None:
    size, stride, dtype = second
    layout = Layout(dtype, plans.cpu, tuple(map(const, size)), tuple(map(const, stride)))
    steps = (
        Allocate("a", plans.layout(8)),
        ExternCall(aten.copy_.default, (Name("a"), Name("x")), (), ()),
        Allocate("b", layout, reuse="a"),
        Free("a"),
    )
    graph = build(Plan(("x",), (), steps, (Name("b"),)), cache=cache)
    (b,) = graph(torch.arange(8.0))
    assert (tuple(b.shape), b.stride(), b.dtype) == (size, stride, dtype)
    assert b.untyped_storage().nbytes() == 32
    expected = torch.arange(8.0).view(dtype)[: b.numel()].reshape(size)
    assert torch.equal(b.view(torch.uint8), expected.view(torch.uint8))


def test_dead_buffers_are_freed_before_the_next_call(cache: Cache, plans) -> None:
    seen: list[weakref.ref[torch.Tensor]] = []

    def watch(x: torch.Tensor) -> None:
        seen.append(weakref.ref(x))

    def check_gone() -> None:
        assert seen[0]() is None

    steps = (
        Allocate("a", plans.layout(8)),
        ExternCall(watch, (Name("a"),), (), ()),
        Free("a"),
        ExternCall(check_gone, (), (), ()),
    )
    graph = build(Plan((), (), steps, ()), cache=cache)
    assert graph() == ()
    assert not graph.storable


def test_parameters_that_require_grad_record_nothing(cache: Cache) -> None:
    graph = build(call_plan(extern(aten.mm.default, Name("x"), Name("x"))), cache=cache)
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            (y,) = graph(torch.randn(2, 2, requires_grad=True))
            assert not y.requires_grad
            assert torch.is_grad_enabled() is enabled


def test_locals_may_be_called_like_functions(cache: Cache, plans) -> None:
    step = ExternCall(aten.mm.default, (Name("x"), Name("x")), (), ("mm",))
    steps = (
        step,
        Allocate("empty_strided", plans.layout(4)),
        Allocate("float32", plans.layout(4)),
        Launch(plans.add(1.0, 4), ("mm", "float32"), plans.cpu),
    )
    graph = build(Plan(("x",), (), steps, (Name("mm"), Name("float32"))), cache=cache)
    x = torch.randn(2, 2)
    product, plus = graph(x)
    assert torch.equal(product, x @ x)
    assert torch.equal(plus, (x @ x).reshape(4) + 1)


def test_empty_ranges_launch_nothing(cache: Cache, plans) -> None:
    graph = build(plans.plus(1.0, size=0), cache=cache)
    assert "kernel_0(" not in graph.source
    assert graph(torch.zeros(0))[0].shape == (0,)


def test_constants(cache: Cache, plans) -> None:
    steps = (
        Allocate("buf0", plans.layout(4)),
        Launch(plans.add(1.0, 4), ("weight", "buf0"), plans.cpu),
    )
    weight = torch.arange(4.0)
    plan = Plan((), (("weight", weight),), steps, (Name("buf0"), Name("weight")))
    plus, same = build(plan, cache=cache)()
    assert torch.equal(plus, weight + 1)
    assert same is weight


def test_default_device_and_dtype_do_not_leak_in(cache: Cache, plans) -> None:
    graph = build(plans.plus(1.0), cache=cache)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            (y,) = graph(torch.zeros(8, dtype=torch.float32, device="cpu"))
    finally:
        torch.set_default_dtype(torch.float32)
    assert (y.dtype, y.device.type) == (torch.float32, "cpu")


def test_large_buffers(cache: Cache, plans) -> None:
    size = 3_000_001
    graph = build(plans.plus(1.0, size=size), cache=cache)
    assert "advise_huge(buf0.data_ptr()" in graph.source
    x = torch.randn(size)
    assert torch.equal(graph(x)[0], x + 1)


def rich_plan(plans) -> Plan:
    steps = (
        ExternCall(aten.mm.default, (Name("x"), Name("weight")), (), ("h",), origins=("x @ w",)),
        Allocate("buf0", plans.layout(16)),
        Launch(plans.add(3.0, 16), ("h", "buf0"), plans.cpu),
        Free("h"),
    )
    weight = torch.arange(16.0).reshape(4, 4).t()
    return Plan(("x",), (("weight", weight), ("n", torch.tensor([], dtype=torch.int64))),
                steps, (Name("buf0"), Name("n")))  # fmt: skip


def test_saved_graph_loads_and_runs(cache: Cache, plans) -> None:
    graph = build(rich_plan(plans), cache=cache)
    x = torch.randn(4, 4)
    assert save_graph("model", graph, cache=cache)
    loaded = load_graph("model", cache=Cache(cache.root))
    assert loaded is not None
    for want, got in zip(graph(x), loaded(x), strict=True):
        assert torch.equal(want, got)
    assert loaded.source == graph.source
    assert loaded.kernels == graph.kernels
    other = load_graph("model", cache=cache, constants={"weight": torch.zeros(4, 4)})
    assert other is not None
    assert torch.equal(other(x)[0], torch.full((16,), 3.0))


def test_loading_needs_no_compiler_in_a_new_process(cache: Cache, plans) -> None:
    graph = build(rich_plan(plans), cache=cache)
    save_graph("model", graph, cache=cache)
    script = (
        "import sys, torch\n"
        "from torchsmith_fx_backend._src.runtime.cache import Cache\n"
        "from torchsmith_fx_backend._src.runtime.graphs import load_graph\n"
        "graph = load_graph('model', cache=Cache(sys.argv[1]))\n"
        "print(graph(torch.eye(4))[0].tolist())\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", script, str(cache.root)],
        capture_output=True, env={"PATH": "", "OMP_NUM_THREADS": "1"}, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().strip() == str(graph(torch.eye(4))[0].tolist())


def test_functions_of_known_modules_are_named(cache: Cache) -> None:
    step = ExternCall(operator.add, (Name("n"), 3), (), ("r",))
    graph = build(Plan(("n",), (), (step,), (Name("r"),)), cache=cache)
    assert graph.storable
    save_graph("add", graph, cache=cache)
    loaded = load_graph("add", cache=cache)
    assert loaded is not None
    assert loaded(4) == (7,)


def test_graphs_that_cannot_be_kept(cache: Cache, plans) -> None:
    graph = build(call_plan(extern(lambda x: x, Name("x"))), cache=cache)
    assert not graph.storable
    assert not save_graph("lambda", graph, cache=cache)
    assert load_graph("lambda", cache=cache) is None
    big = Plan((), (("c", torch.zeros(8_000_000)),), (), (Name("c"),))
    assert not save_graph("big", build(big, cache=cache), cache=cache)


@pytest.mark.parametrize("victim", ["graph.json", "wrapper.py", "constant0.bin"])
def test_damaged_graph_is_not_loaded(cache: Cache, plans, victim: str) -> None:
    save_graph("model", build(rich_plan(plans), cache=cache), cache=cache)
    path = cache.path("graph model", victim)
    path.write_bytes(b"x" + path.read_bytes())
    assert load_graph("model", cache=cache) is None
    assert cache.misses[-1].reason.startswith("corrupt")


def test_graph_whose_kernel_is_gone_is_not_loaded(
    cache: Cache, plans, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_graph("model", build(rich_plan(plans), cache=cache), cache=cache)
    from torchsmith_fx_backend._src.runtime import launchers

    monkeypatch.setattr(launchers, "_instances", {})
    for path in cache.root.glob("v1/*/*/unit.so"):
        path.unlink()
    assert load_graph("model", cache=Cache(cache.root)) is None


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)


@pytest.mark.usefixtures("no_compiler")
def test_without_compiler_the_fallback_runs(cache: Cache, plans) -> None:
    with pytest.warns(NoCompilerWarning) as caught:
        graph = build(plans.plus(1.0), cache=cache, fallback=lambda x: [x + 1])
    assert len(caught) == 1
    x = torch.randn(8)
    assert torch.equal(graph(x)[0], x + 1)
    assert graph.kernels == ()
    assert "aten" in graph.source
    assert not save_graph("model", graph, cache=cache)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build(plans.plus(2.0), cache=cache, fallback=lambda x: [x + 2])


@pytest.mark.usefixtures("no_compiler")
def test_without_compiler_and_fallback_nothing_is_built(cache: Cache, plans) -> None:
    with pytest.warns(NoCompilerWarning), pytest.raises(Unavailable, match="no C compiler"):
        build(rich_plan(plans), cache=cache)


def test_unusable_cache_directory_is_one_warning(plans, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Cache(tmp_path / "file" / "cache")
    with pytest.warns(CacheWarning) as caught:
        graph = build(plans.plus(1.0), cache=store)
    assert len(caught) == 1
    assert torch.equal(graph(torch.zeros(8))[0], torch.ones(8))
