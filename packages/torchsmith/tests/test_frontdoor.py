"""The front door: names, defaults, and one program all the way through."""

import importlib.metadata
import inspect
import subprocess
import sys

import pytest
import torch
import torchsmith
import torchsmith_tracer.errors


def test_public_names() -> None:
    own = {"compile", "explain", "make_fx", "reset", "same"}
    own |= {"metrics", "clear_metrics", "set_metrics_limit"}
    marks = "allow_in_graph disable mark_dynamic mark_static mark_unbacked maybe_mark_dynamic"
    assert set(torchsmith.__all__) == own | {*marks.split(), "set_stance", "substitute_in_graph"}
    assert all(getattr(torchsmith, name).__doc__ for name in torchsmith.__all__)
    parameters = inspect.signature(torchsmith.compile).parameters
    names = "model backend fullgraph dynamic mode options verify"
    assert list(parameters) == names.split()
    assert parameters["backend"].default == "smith"


def test_function() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 2 + y, -1)

    x, y = torch.randn(4, 8), torch.randn(8)
    torch.testing.assert_close(torchsmith.compile(f, fullgraph=True)(x, y), f(x, y))


def test_decorators() -> None:
    @torchsmith.compile
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.exp() + 1

    @torchsmith.compile(fullgraph=True)
    def g(x: torch.Tensor) -> torch.Tensor:
        return x.exp() + 1

    x = torch.randn(5)
    torch.testing.assert_close(f(x), x.exp() + 1)
    torch.testing.assert_close(g(x), x.exp() + 1)


def test_module_stays_itself() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()).eval()
    compiled = torchsmith.compile(model)
    x = torch.randn(2, 4)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
    assert isinstance(compiled, torch.nn.Sequential)
    assert list(compiled.state_dict()) == list(model.state_dict())


def test_gradients_are_right() -> None:
    model = torch.nn.Linear(4, 4)
    x = torch.randn(2, 4)
    torchsmith.compile(model)(x).sum().backward()
    got = model.weight.grad
    model.weight.grad = None
    model(x).sum().backward()
    torch.testing.assert_close(got, model.weight.grad)


def test_explain_lists_kernels() -> None:
    report = torchsmith.explain(lambda x: torch.softmax(x, -1))(torch.randn(4, 8))
    assert report.graph_count == 1
    assert len(report.kernels) == 1
    assert report.kernels[0].source


def test_make_fx() -> None:
    graph = torchsmith.make_fx(lambda x: x.sin() + 1)(torch.randn(3))
    targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert targets == [torch.ops.aten.sin.default, torch.ops.aten.add.Tensor]


def test_bad_arguments() -> None:
    with pytest.raises(TypeError):
        torchsmith.compile(3)  # type: ignore[type-var]
    with pytest.raises(Exception, match="smith"):
        torchsmith.compile(lambda x: x, backend="nonesuch")(torch.ones(1))
    with pytest.raises(Exception, match="nonesuch"):
        torchsmith.compile(lambda x: x, options={"nonesuch": 1})(torch.ones(1))


def test_user_exceptions_arrive_unchanged() -> None:
    class Mine(ValueError):
        pass

    @torchsmith.compile
    def f(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 2:
            raise Mine("too long")
        return x + 1

    with pytest.raises(Mine, match="too long"):
        f(torch.ones(3))
    assert torch.equal(f(torch.ones(2)), torch.full((2,), 2.0))


def test_marks_steer_the_front_doors_own_compile():
    @torchsmith.allow_in_graph
    def opaque(a):
        return a.sin() + 1

    graphs = []

    def backend(gm, inputs):
        graphs.append(gm)
        return gm.forward

    run = torchsmith.compile(lambda a: opaque(a) * 2, backend=backend, dynamic=False)
    torch.testing.assert_close(
        torchsmith.compile(run)(torch.ones(3)), (torch.ones(3).sin() + 1) * 2
    )
    with torchsmith.set_stance("force_eager"):
        run(torch.ones(3))
    assert graphs == []
    run(torch.ones(3))
    assert [n.target for n in graphs[0].graph.nodes if n.op == "call_function"][0] is opaque


def test_an_import_starts_no_passes_of_the_collector() -> None:
    program = """
import gc, torch, torchsmith_guards
before = gc.get_stats()[0]["collections"]
import torchsmith
print(gc.isenabled(), gc.get_stats()[0]["collections"] - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    enabled, passes = done.stdout.split()
    assert enabled == "True"
    assert int(passes) < 3, done.stderr


def test_graphs_are_kept_apart_by_the_default_device():
    compiled = torchsmith.compile(lambda: torch.ones(2) * 2)
    try:
        for device in ("cpu", "meta", None, "meta"):
            torch.set_default_device(device)
            assert compiled().device.type == (device or "cpu")
    finally:
        torch.set_default_device(None)


def test_lists_and_tuples_are_different_indices():
    def f(x, i):
        x[i] = 3.0
        return x[i]

    for i in ([0, 1], (0, 1), [0, 1]):
        x, y = torch.zeros(2, 2), torch.zeros(2, 2)
        assert torch.equal(torchsmith.compile(f)(x, i), f(y, i)) and torch.equal(x, y)


def test_what_an_import_makes_is_old() -> None:
    program = (
        "import gc, torch\n"
        "before = len(gc.get_objects())\n"
        "import torchsmith\n"
        "young = len(gc.get_objects(generation=0)) + len(gc.get_objects(generation=1))\n"
        "print(young, len(gc.get_objects()) - before)"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    young, made = map(int, out.stdout.split())
    assert young < made / 20


def test_its_own_backend_is_not_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    real, asked = importlib.metadata.entry_points, []
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda **by: (asked.append(by["group"]), real(**by))[1]
    )
    compiled = torchsmith.compile(lambda x: x.sin() + 1)
    x = torch.randn(4)
    assert torch.allclose(compiled(x), x.sin() + 1)
    assert "torchsmith.backends" not in asked
    with pytest.raises(torchsmith_tracer.errors.UnknownBackendError):
        torchsmith.compile(lambda x: x, backend="nobody's")
    assert "torchsmith.backends" in asked
