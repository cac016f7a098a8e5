"""A failure is small: what cannot be built goes through aten alone, and something says so."""

import logging

import pytest
import torch
from torch import fx
from torchsmith_fx_backend import Settings, compile_graph, smith
from torchsmith_fx_backend._src import backend, driver, settings
from torchsmith_fx_backend._src.codegen import c
from torchsmith_fx_backend._src.runtime import native
from torchsmith_fx_backend.errors import StageError


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    """No kernel or graph of an earlier test."""
    monkeypatch.setenv("TORCHSMITH_CACHE_DIR", str(tmp_path / "cache"))
    backend._say_once.cache_clear()


def program(x, w):
    a = torch.sin(x).sum(-1, keepdim=True)
    b = (a + x) @ w
    x.mul_(2)
    return torch.softmax(b * 1.7, -1), torch.tanh(x)


def inputs():
    return [torch.arange(12.0).reshape(3, 4), torch.ones(4, 4)]


def check(**options):
    gm = fx.symbolic_trace(program)
    mine, theirs = inputs(), inputs()
    with torch.no_grad():
        compiled = compile_graph(gm, mine, Settings(graph_cache=False, **options))
        for got, want in zip(compiled(*mine), program(*theirs)):
            torch.testing.assert_close(got, want)
    assert torch.equal(mine[0], theirs[0])
    return compiled


@pytest.mark.parametrize("broken", ["sin", "tanh", "exp_down"])
def test_a_kernel_that_does_not_print_leaves_only_its_nodes_to_aten(broken, monkeypatch, caplog):
    whole = len(check().kernels)
    known = c.kernel_function

    def printing(kernel, name):
        text = known(kernel, name)
        if f"ts_{broken}(" in text:
            raise IndexError("planted")
        return text

    monkeypatch.setattr(c, "kernel_function", printing)
    native_launcher(monkeypatch)
    with caplog.at_level(logging.WARNING, "torchsmith.backend"):
        compiled = check()
    assert 0 < len(compiled.kernels) and len(compiled.kernels) >= whole - 1
    assert f"ts_{broken}(" not in "".join(text for _, text in compiled.kernels)
    said = [r.message for r in caplog.records if "run through aten" in r.message]
    assert said and "planted" in said[0] and "aten." in said[0]
    with pytest.raises(StageError, match="planted"):
        check(strict=True)


def native_launcher(monkeypatch):
    """A launcher that has printed nothing yet."""
    from torchsmith_fx_backend._src.runtime import launchers

    monkeypatch.setitem(launchers._instances, "cpu", native.NativeLauncher())


def test_a_kernel_that_does_not_compile_leaves_only_its_nodes_to_aten(monkeypatch, caplog):
    known = c.kernel_function
    spoil = lambda kernel, name: known(kernel, name).replace("ts_tanh(", "not C ts_tanh(")
    monkeypatch.setattr(c, "kernel_function", spoil)
    native_launcher(monkeypatch)
    with caplog.at_level(logging.WARNING, "torchsmith.backend"):
        compiled = check()
    assert compiled.kernels
    assert any("run through aten" in r.message for r in caplog.records)


def test_without_a_compiler_the_graph_runs_as_captured(monkeypatch):
    monkeypatch.setattr(native, "find_compiler", lambda: None)
    native_launcher(monkeypatch)
    with pytest.warns(native.NoCompilerWarning):
        compiled = check()
    assert compiled.kernels == ()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        x, w = torch.ones(2, 2), torch.ones(2, 2)
        compiled = compile_graph(fx.symbolic_trace(lambda x, w: x @ w), [x, w])
        assert compiled(x, w).dtype is torch.bfloat16


def test_a_stage_that_fails_is_a_warning_unless_strict(monkeypatch, caplog):
    def broken(*args, **kwargs):
        raise KeyError("planted")

    monkeypatch.setattr(driver, "schedule_graph", broken)
    gm = fx.symbolic_trace(lambda x: x + 1)
    with torch.no_grad(), caplog.at_level(logging.WARNING, "torchsmith.backend"):
        with settings.patch(strict=False, graph_cache=False):
            assert torch.equal(smith(gm, [torch.ones(2)])(torch.ones(2)), torch.full((2,), 2.0))
        with settings.patch(strict=True, graph_cache=False), pytest.raises(StageError):
            smith(gm, [torch.ones(2)])
    assert any("planted" in r.message for r in caplog.records)


def test_stages_are_printed_for_a_graph_that_is_in_the_cache(monkeypatch, caplog):
    gm = fx.symbolic_trace(lambda x: x.sin() + 1)
    with torch.no_grad():
        compile_graph(gm, [torch.ones(3)])
        for stage in ("aot", "loops", "schedule", "code"):
            caplog.clear()
            with caplog.at_level(logging.DEBUG, f"torchsmith.{stage}"):
                compile_graph(gm, [torch.ones(3)])
            assert any(r.name == f"torchsmith.{stage}" for r in caplog.records), stage


@pytest.mark.parametrize("nested", [False, True])
def test_a_graph_that_changes_a_setting_runs_its_operators_under_it(nested):
    graph, seen = fx.Graph(), []

    def look(x):
        seen.append(torch.backends.mkldnn.enabled)
        return x * 2

    x = graph.placeholder("x")
    graph.call_function(torch._C._set_mkldnn_enabled, (False,))
    y = graph.call_function(look, (x,))
    graph.call_function(torch._C._set_mkldnn_enabled, (True,))
    graph.output((y,))
    gm = fx.GraphModule({}, graph)
    if nested:
        outer = fx.Graph()
        outer.output(outer.call_module("body", (outer.placeholder("x"),)))
        gm = fx.GraphModule({"body": gm}, outer)
    compiled = smith(gm, inputs()[:1])
    compiled(*inputs()[:1])
    seen.clear()
    torch.testing.assert_close(compiled(inputs()[0])[0], inputs()[0] * 2)
    assert seen == [False] and torch.backends.mkldnn.enabled


def test_results_that_need_gradients_of_nothing_given(caplog):
    """A parameter is made inside, and nothing outside reaches it."""

    def made_inside(x):
        return (x @ x.new_ones(4, 2).requires_grad_()).sum()

    x = torch.randn(3, 4)
    graph = fx.symbolic_trace(made_inside)
    graph.graph.output_node().args[0].meta["example_value"] = made_inside(x)
    with caplog.at_level(logging.WARNING, "torchsmith.backend"):
        found = smith(graph, [x])(x)
    torch.testing.assert_close(found, made_inside(x))
    found.backward()
    assert "results that need gradients of which no input is given" in caplog.text


@pytest.mark.parametrize("several", [False, True])
def test_results_whose_gradients_reach_no_input(several):
    """The leaf of what is differentiated is made inside; the input wants gradients all the same."""

    def of_a_copy(x):
        made = x.detach().clone().requires_grad_()
        return (made * 2, x * 3) if several else (made * 2,)

    x = torch.randn(3, requires_grad=True)
    graph = fx.symbolic_trace(of_a_copy)
    for node, value in zip(graph.graph.output_node().args[0], of_a_copy(x)):
        node.meta["example_value"] = value
    found, want = smith(graph, [x])(x), of_a_copy(x)
    for mine, eager in zip(found, want, strict=True):
        torch.testing.assert_close(mine, eager)
        mine.sum().backward()
    assert several is (x.grad is not None)


@pytest.mark.parametrize("written", [False, True])
def test_a_gradient_that_is_kept_after_its_tensor_was_used_is_whole(written):
    """It is that of the tensor as it is when it is kept, after what was written to it."""
    held = []

    def program(x):
        y = x * 2
        z = y + 1
        if written:
            y.mul_(3)
        y.retain_grad()
        return y, z * y

    class Noting(fx.Interpreter):
        def run_node(self, n):
            n.meta["example_value"] = found = super().run_node(n)
            return found

    graph, example = fx.symbolic_trace(program), torch.randn(3, requires_grad=True)
    Noting(graph).run(example)
    for run in (program, smith(graph, [example])):
        x = torch.linspace(-1, 1, 3).requires_grad_()
        y, z = run(x)
        z.sum().backward()
        held.append((y.grad, x.grad))
    torch.testing.assert_close(held[1], held[0])
