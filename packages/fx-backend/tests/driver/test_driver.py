"""The compile driver: results equal eager's through all stages, and odd inputs are handled."""

import contextlib
import logging
import operator

import pytest
import torch
import torch.nn.functional as F
import torchsmith_guards as guards
from torch import fx
from torchsmith_fx_backend import Settings, compile_graph, smith
from torchsmith_fx_backend._src import backend, driver, graph_key, settings
from torchsmith_fx_backend._src.aot import frame
from torchsmith_fx_backend._src.runtime.cache import default_cache
from torchsmith_fx_backend.errors import SettingError, StageError, UnsupportedError


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHSMITH_CACHE_DIR", str(tmp_path / "cache"))
    cached = default_cache
    if hasattr(cached, "cache_clear"):
        cached.cache_clear()
    yield
    if hasattr(cached, "cache_clear"):
        cached.cache_clear()


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)
        self.norm = torch.nn.LayerNorm(32)

    def forward(self, x):
        return F.softmax(self.down(F.gelu(self.norm(self.up(x)))) + x, -1)


def traced(fn):
    return fx.symbolic_trace(fn)


def same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_block_equals_eager():
    block, x = Block().eval(), torch.randn(4, 16)
    with torch.no_grad():
        compiled = smith(traced(block), [x])
        same(compiled(x), block(x))
        same(compiled(x * 3), block(x * 3))
    assert "def " in compiled.source
    assert compiled.kernels and all(isinstance(text, str) for _, text in compiled.kernels)


def test_result_structures():
    x = torch.randn(3)
    with torch.no_grad():
        assert torch.equal(smith(traced(lambda a: a + 1), [x])(x), x + 1)
        pair = smith(traced(lambda a: (a + 1, a)), [x])(x)
        assert isinstance(pair, tuple) and pair[1] is x
        assert isinstance(smith(traced(lambda a: [a + 1]), [x])(x), list)
        nested = smith(traced(lambda a: {"k": [a + 1, (a * 2, None, 3)]}), [x])(x)
        assert torch.equal(nested["k"][1][0], x * 2) and nested["k"][1][1:] == (None, 3)


def test_flat_tuple_is_called_without_a_layer_between():
    x = torch.randn(3)
    with torch.no_grad():
        compiled = smith(traced(lambda a: (a + 1,)), [x])
    assert (
        compiled.__code__.co_filename.endswith("wrapper.py")
        or "torchsmith" in compiled.__code__.co_filename
    )


def test_writes_and_aliases_reach_the_caller():
    def fn(a, b):
        a.add_(1)
        b[0] = 0.0 if False else a[0]
        return a, b.t(), a.view(-1)

    gm = traced_by_hand_setitem()
    x = torch.randn(3, 3)
    with torch.no_grad():
        compiled = smith(gm, [x.clone(), x.clone()])
        a, b = x.clone(), x.clone()
        out = compiled(a, b)
    expected_b = x.clone()
    expected_b[0] = x[0] + 1
    assert torch.equal(a, x + 1) and torch.equal(b, expected_b)
    assert out[0] is a
    assert out[1].data_ptr() == b.data_ptr() and out[1].stride() == (1, 3)
    assert out[2].data_ptr() == a.data_ptr()


def traced_by_hand_setitem():
    graph = fx.Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    graph.call_method("add_", (a, 1))
    row = graph.call_function(operator.getitem, (a, 0))
    graph.call_function(operator.setitem, (b, 0, row))
    graph.output((a, graph.call_method("t", (b,)), graph.call_method("view", (a, -1))))
    return fx.GraphModule(torch.nn.Module(), graph)


def test_a_write_that_eager_refuses_leaves_no_write_before_it(capfd):
    """A program that is run again from its beginning then finds everything as it was."""

    def program(a, b):
        b.mul_(2)
        a.add_(b)
        return a

    with torch.no_grad():
        compiled = compile_graph(traced(program), [torch.randn(4), torch.randn(4)])
        whole = torch.arange(6.0)
        a, b = whole[:4], whole[2:]
        with pytest.raises(RuntimeError, match="unsupported operation: some elements"):
            compiled(a, b)
    assert torch.equal(whole, torch.arange(6.0)) and whole._version == 0
    assert capfd.readouterr().err == ""


def test_written_inputs_that_share_memory_run_as_captured():
    fn = lambda a, b: (a.add_(1), b * 2)
    x = torch.randn(4, 4)
    with torch.no_grad():
        compiled = smith(traced(fn), [x.clone(), x.clone()])
        mine, theirs = x.clone(), x.clone()
        ours, eager = compiled(mine, mine[1:]), fn(theirs, theirs[1:])
    same(ours[1], eager[1])
    same(mine, theirs)


def test_input_that_is_a_literal():
    fn = lambda a, n: a * n
    x = torch.randn(3)
    with torch.no_grad():
        compiled = smith(traced(fn), [x, 3])
        assert torch.equal(compiled(x, 3), x * 3)
        assert torch.equal(compiled(x, 4), x * 4)
        assert torch.equal(compiled(x, 3.0), x * 3.0)


def test_gradients_are_compiled_or_run_as_captured(caplog):
    backend._say_once.cache_clear()
    weight = torch.randn(3, requires_grad=True)
    gm = traced(lambda a, w: (a * w).sum())
    with caplog.at_level(logging.INFO, "torchsmith.backend"):
        captured = smith(gm, [torch.randn(3), weight], options={"training": "eager"})
        smith(gm, [torch.randn(3), weight], options={"training": "eager"})
    compiled = smith(gm, [torch.randn(3), weight])
    assert captured is gm
    assert compiled is not gm
    x = torch.randn(3)
    for run in (captured, compiled):
        weight.grad = None
        run(x, weight).backward()
        same(weight.grad, x)
    assert sum("require gradients" in r.message for r in caplog.records) == 1
    with torch.no_grad():
        assert hasattr(smith(gm, [x, weight]), "source")


def test_unsupported_graphs_run_as_captured(caplog):
    backend._say_once.cache_clear()
    x = torch.tensor([0.0, 1.0, 2.0])
    gm = traced(lambda a: a.nonzero())
    with torch.no_grad(), caplog.at_level(logging.WARNING, "torchsmith.backend"):
        compiled = smith(gm, [x])
        assert torch.equal(compiled(x), x.nonzero())
        with pytest.raises(UnsupportedError, match="tensor contents"):
            compile_graph(gm, [x])
    assert any("not compiled" in r.message for r in caplog.records)


def test_failing_stage_is_named(monkeypatch):
    def broken(graph, **options):
        raise ZeroDivisionError("no plan")

    monkeypatch.setattr(driver, "schedule_graph", broken)
    with (
        torch.no_grad(),
        pytest.raises(StageError, match=r"`schedule`.*ZeroDivisionError: no plan"),
    ):
        smith(traced(lambda a: a + 1), [torch.randn(3)], graph_cache=False)


def test_error_in_capture_names_the_node():
    gm = traced(lambda a: a.view(7))
    with torch.no_grad(), pytest.raises(StageError, match="`capture`") as caught:
        smith(gm, [torch.randn(3)])
    assert any(
        "while compiling the graph node" in note for note in caught.value.__cause__.__notes__
    )


def test_unknown_option():
    with pytest.raises(SettingError, match="graph_cache, strict, verify, training, memory_budget"):
        smith(traced(lambda a: a), [torch.randn(3)], fast=True)
    with pytest.raises(SettingError), settings.patch(fast=True):
        pass


def test_settings_patch_and_environment(monkeypatch):
    before = settings.current()
    with settings.patch(verify=True) as inner:
        assert inner.verify and settings.current() is inner
    assert settings.current() == before
    for options in ({"verify": True, "rng": "eager"}, {"speed": 1}):
        with torch.no_grad(), contextlib.suppress(SettingError):
            smith(traced(lambda a: a + 1), [torch.randn(3)], options=options)
        assert settings.current() == before
    monkeypatch.setenv("TORCHSMITH_VERIFY", "1")
    monkeypatch.setenv("TORCHSMITH_GRAPH_CACHE", "0")
    monkeypatch.setenv("TORCHSMITH_STRICT", "0")
    assert Settings.from_environment() == Settings(graph_cache=False, verify=True)


def test_verify_option_accepts_good_graphs():
    block, x = Block().eval(), torch.randn(4, 16)
    with torch.no_grad():
        same(smith(traced(block), [x], verify=True)(x), block(x))


def test_autocast_is_off_while_a_graph_runs():
    assert frame.ambient_guard() is None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with frame.ambient_guard()():
            assert not torch.is_autocast_enabled("cpu")
        assert torch.is_autocast_enabled("cpu")


def test_autocast_is_not_applied_twice():
    def fn(a):
        return (a @ a.t()).float() @ a.float()

    x = torch.randn(4, 4)
    with torch.no_grad():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            compiled = smith(traced(fn), [x])
            same(compiled(x), fn(x))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert compiled(x).dtype is fn(x).dtype is torch.bfloat16


def test_inside_inference_mode():
    block, x = Block().eval(), torch.randn(4, 16)
    with torch.inference_mode():
        compiled = smith(traced(block), [x])
        same(compiled(x), block(x))


def test_grad_mode_is_restored_and_rng_untouched():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    with torch.no_grad():
        smith(traced(lambda a: a + 1), [torch.randn(0)])
    assert torch.is_grad_enabled()
    assert torch.equal(torch.rand(1), expected)


def test_random_operators_draw_as_eager_does_if_asked():
    fn = lambda a: F.dropout(a, 0.5, True) + torch.rand_like(a)
    x = torch.randn(64)
    with torch.no_grad():
        compiled = smith(traced(fn), [x], options={"rng": "eager"})
        torch.manual_seed(1)
        expected = fn(x)
        torch.manual_seed(1)
        same(compiled(x), expected)


def test_training_batch_norm_updates_its_statistics():
    norm, reference = torch.nn.BatchNorm1d(4), torch.nn.BatchNorm1d(4)
    x = torch.randn(8, 4)
    with torch.no_grad():
        compiled = smith(traced(torch.nn.Sequential(norm)), [x])
        same(compiled(x), reference(x))
    same(norm.running_mean, reference.running_mean)
    same(norm.running_var, reference.running_var)
    assert int(norm.num_batches_tracked) == 1


def test_custom_operator_that_writes():
    with torch.library._scoped_library("smithtest", "FRAGMENT") as lib:
        lib.define("bump(Tensor(a!) x, int n) -> ()")
        lib.impl("bump", lambda x, n: (x.add_(n), None)[1], "CPU")
        lib.impl("bump", lambda x, n: None, "Meta")

        def fn(a):
            b = a * 2
            torch.ops.smithtest.bump(b, 3)
            return b

        x = torch.randn(3)
        with torch.no_grad():
            same(smith(traced(fn), [x])(x), x * 2 + 3)


SYMBOLIC = {
    "pointwise": (lambda a: a.sin() + 1, {0, 1}),
    "softmax": (lambda a: F.softmax(a, -1), {0, 1}),
    "norm": (lambda a: F.layer_norm(a, (4,)), {0}),
    "mean": (lambda a: a.mean(0) + a.sum(), {0, 1}),
    "view": (lambda a: a.view(a.shape[0], 2, 2).transpose(0, 1) * 2, {0}),
    "cat": (lambda a: torch.cat([a, a + 1], 1).relu(), {0}),
    "size": (lambda a: a * a.shape[0], {0}),
    "write": (lambda a: (a.add_(1), a * 2), {0, 1}),
    "matmul": (lambda a: a @ a.transpose(0, 1), {0}),
    "sizes_out": (lambda a: (a.shape[0] * 2 + 1, a + 1), {0}),
}


@pytest.mark.parametrize("name", SYMBOLIC)
def test_symbolic_sizes(name):
    fn, dims = SYMBOLIC[name]
    env = guards.ShapeEnv()
    fake = guards.FakeMode(env).fakeify(torch.randn(3, 4), guards.LocalSource("a"), dims)
    with torch.no_grad():
        compiled = compile_graph(traced(fn), [fake])
        for rows in (3, 5, 9):
            x = torch.randn(rows, 4)
            same(compiled(x.clone()), fn(x.clone()))


def test_example_values_on_placeholders_win():
    env = guards.ShapeEnv()
    fake = guards.FakeMode(env).fakeify(torch.randn(3, 4), guards.LocalSource("a"), {0})
    gm = traced(lambda a: a + 1)
    next(iter(gm.graph.nodes)).meta["example_value"] = fake
    with torch.no_grad():
        compiled = compile_graph(gm, [torch.randn(3, 4)])
        assert compiled(torch.randn(7, 4)).shape == (7, 4)


def test_as_backend_of_torch_compile():
    torch._dynamo.reset()
    block, x = Block().eval(), torch.randn(4, 16)
    with torch.no_grad():
        same(torch.compile(block, backend="smith", fullgraph=True)(x), block(x))
        write = torch.compile(lambda a: (a.add_(1), a.t()), backend="smith", dynamic=False)
        mine = x.clone()
        out = write(mine)
    assert out[0] is mine and torch.equal(mine, x + 1) and out[1].stride() == (1, 16)


def test_overlapping_write_raises_eagers_error():
    compiled = smith(traced(lambda a: a.expand(3, 4).add_(1)), [torch.randn(1, 4)])
    with torch.no_grad(), pytest.raises(RuntimeError, match="written-to tensor"):
        compiled(torch.randn(1, 4))


# The graph cache.


def test_warm_graph_skips_every_stage(monkeypatch):
    x, w = torch.randn(4, 16), torch.randn(8, 16)
    gm = traced(lambda a, w: F.gelu(F.linear(a, w)) + 1)
    with torch.no_grad():
        cold = compile_graph(gm, [x, w])

        def never(*args):
            raise AssertionError("the graph was lowered again")

        monkeypatch.setattr(driver, "schedule_graph", never)
        monkeypatch.setattr(driver, "functionalize", never)
        warm = compile_graph(gm, [x, w])
        same(warm(x, w), cold(x, w))
        assert warm.source == cold.source
        with pytest.raises(StageError):
            compile_graph(gm, [x[:2], w])


def test_cached_graph_uses_the_attributes_of_this_module():
    class Scale(torch.nn.Module):
        def __init__(self, value):
            super().__init__()
            self.inner = torch.nn.Module()
            self.inner.register_buffer("scale", torch.full((3,), value))

        def forward(self, x):
            self.inner.scale.add_(1)
            return x * self.inner.scale

    x = torch.randn(3)
    with torch.no_grad():
        for value in (2.0, 5.0):
            scale = Scale(value)
            same(compile_graph(traced(scale), [x])(x), x * (value + 1))
            assert torch.equal(scale.inner.scale, torch.full((3,), value + 1))


def test_cache_keeps_frames():
    fn = lambda a: {"k": [a.add_(1), a * 2]}
    with torch.no_grad():
        compile_graph(traced(fn), [torch.randn(3)])
        warm = compile_graph(traced(fn), [torch.randn(3)])
        x = torch.zeros(3)
        out = warm(x)
    assert out["k"][0] is x and torch.equal(out["k"][1], torch.full((3,), 2.0))


def key(fn, *inputs):
    return graph_key.of(traced(fn), inputs)


def test_key_covers_what_matters(monkeypatch):
    x = torch.randn(3, 4)
    base = key(lambda a: a + 1, x)
    assert base == key(lambda b: b + 1, torch.zeros(3, 4))
    different = [
        key(lambda a: a + 2, x),
        key(lambda a: a + 1.0, x),
        key(lambda a: a + True, x),
        key(lambda a: a - 1, x),
        key(lambda a: a + 1, x.double()),
        key(lambda a: a + 1, x.t().contiguous().t()),
        key(lambda a: a + 1, x[:2]),
        key(lambda a: (a + 1,), x),
        key(lambda a: a[[0, 1]], x),
        key(lambda a: a[0, 1], x),
    ]
    assert None not in different and base not in different
    assert len(set(different)) == len(different)
    torch.set_default_dtype(torch.float64)
    try:
        assert key(lambda a: a + 1, x) != base
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.device("meta"):
        assert key(lambda a: a + 1, x) != base


@pytest.mark.parametrize("device, matters", [("cuda", True), ("cuda:0", False), ("cpu", False)])
def test_key_covers_the_current_gpu_where_a_graph_names_none(device, matters, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for given in (device, torch.device(device)):
        graph = fx.Graph()
        made = graph.call_function(torch.ones, (3,), {"device": given})
        graph.output(graph.call_method("to", (graph.placeholder("x"), made)))
        keys = set()
        for current in (0, 1):
            monkeypatch.setattr(torch.cuda, "current_device", lambda current=current: current)
            keys.add(graph_key.of(fx.GraphModule({}, graph), [torch.randn(3)]))
        assert None not in keys and len(keys) == 1 + matters


def helper(a):
    return a + 1


fx.wrap("helper")


def test_graphs_without_stable_text_have_no_key():
    x = torch.randn(3)
    assert key(lambda a: helper(a), x) is None
    assert graph_key.of(traced(torch.nn.Sequential(torch.nn.Linear(3, 3))), [x]) is None
    assert graph_key.of(traced(lambda a: a + 1), [guards.ShapeEnv().create_unbacked()]) is None


@pytest.mark.parametrize("divide", [torch.floor_divide, torch.remainder, torch.fmod])
def test_integer_division_by_zero_raises_as_in_eager(divide):
    a, b = torch.tensor([4, 5]), torch.tensor([2, 0])
    with torch.no_grad():
        compiled = smith(traced(lambda a, b: divide(a + 1, b)), [a, b], graph_cache=False)
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            compiled(a, b)


def test_operators_save_what_grad_mode_asks_for():
    """LSTM layers hand over a workspace to their backward pass only where grad mode is on."""
    lstm = torch.nn.LSTM(4, 6, 2)
    sides = []
    for compiled in (True, False):
        x = torch.linspace(-1, 1, 24).reshape(3, 2, 4).requires_grad_()
        run = lambda y: (lstm(y)[0],)  # noqa: E731
        if compiled:
            run = driver.compile_training(run, [x], Settings(strict=True))
        run(x)[0].square().sum().backward()
        sides.append(x.grad)
    torch.testing.assert_close(*sides, rtol=1e-4, atol=1e-5)


def test_a_position_from_a_reduction_of_everything():
    """The axis that is kept has one element: the position differs along it in name only."""
    fn = lambda x: x * x.gather(0, (x > 0.5).max(0, True)[1])  # noqa: E731
    for x in (torch.tensor([0.1, 0.9, 0.3, 0.7]), torch.tensor([0.2])):
        gm = fx.symbolic_trace(fn)
        with torch.no_grad():
            run = compile_graph(gm, [x], Settings(strict=True, verify=True))
            torch.testing.assert_close(run(x), fn(x))


def test_halves_of_training_graphs_are_kept(monkeypatch):
    builds = []
    real = driver._build
    monkeypatch.setattr(driver, "_build", lambda *a: builds.append(a) or real(*a))

    def program(table, times):
        def fn(x, total):
            for _ in range(times):
                total.add_(1)
            return (F.dropout(x.exp() * table, 0.5, True) @ x,)

        return fn

    def played(table, times):
        x = torch.linspace(0, 1, 9).reshape(3, 3).requires_grad_()
        total = torch.zeros(3)
        with settings.patch(strict=True):
            gm = fx.symbolic_trace(program(table, times))
            run = driver.compile_training(gm, [x, total])
        torch.manual_seed(0)
        (y,) = run(x, total)
        y.sum().backward()
        return y.detach(), x.grad, total._version

    table = torch.arange(1.0, 10.0).reshape(3, 3)
    first = played(table, 1)
    assert len(builds) == 2
    second = played(table, 1)
    assert len(builds) == 2
    assert first[2] == second[2] == 1
    torch.testing.assert_close(first[:2], second[:2])
    # Values of constants are no part of the key; how often eager writes an input is.
    other = played(table * 2, 1)
    assert len(builds) == 2
    torch.testing.assert_close(other[:2], tuple(2 * t for t in first[:2]))
    assert played(table, 3)[2] == 3
