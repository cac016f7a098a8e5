"""Parts of the compiler that are left out: results stay, and the part does not run."""

import pytest
import torch
from torchsmith_fx_backend import SWITCHES, Settings, compile_graph, make_fx, on_failure, smith
from torchsmith_fx_backend._src import driver
from torchsmith_fx_backend._src.schedule import scheduler
from torchsmith_fx_backend.errors import SettingError, StageError

NUMBERS = torch.Generator().manual_seed(0)
X, W = torch.rand(6, 8, generator=NUMBERS), torch.rand(8, 8, generator=NUMBERS) / 8


def program(x, w):
    a = torch.nn.functional.layer_norm(x @ w, (8,))
    b = (torch.softmax(a, -1) * 2 + x.double().float()).t()
    picked = b.index_add(0, torch.tensor([0, 2]), torch.ones(2, 6))
    x.add_(1)
    return picked, a.sum(0), torch.cat([a, x]).relu() @ w


def graph(*inputs):
    return torch.fx.symbolic_trace(program)


def every():
    yield from ([name] for name in SWITCHES)
    yield list(SWITCHES)
    yield ["fusion", "reuse"]
    yield ["lowering:aten.exp.default", "lowering:aten.copy_.default"]


@pytest.mark.parametrize("disable", list(every()), ids=",".join)
def test_results_stay(disable):
    x, mine = X.clone(), X.clone()
    expected = program(x, W)
    compiled = smith(graph(), [mine, W], options={"disable": disable, "strict": True})
    for a, b in zip(compiled(mine, W), expected):
        torch.testing.assert_close(a, b, check_stride=True)
    assert torch.equal(mine, x)
    leaves = [X.clone().requires_grad_(), W.clone().requires_grad_()]
    theirs = [X.clone().requires_grad_(), W.clone().requires_grad_()]
    fn = lambda x, w: torch.softmax(x @ w, -1).exp() * w.sum()
    module = torch.fx.symbolic_trace(fn)
    half = smith(module, leaves, options={"disable": disable, "strict": True})
    half(*leaves).square().sum().backward()
    fn(*theirs).square().sum().backward()
    for a, b in zip(leaves, theirs):
        torch.testing.assert_close(a.grad, b.grad)


def kernels(disable, fn, *inputs):
    gm = make_fx(fn)(*inputs)
    compiled = compile_graph(gm, inputs, Settings(strict=True, disable=disable))
    torch.testing.assert_close(compiled(*inputs), fn(*inputs))
    return compiled


def test_parts_are_left_out():
    fn = lambda x: (x.exp() + 1).sin()
    assert len(kernels((), fn, X).kernels) == 1
    alone = kernels(("fusion",), fn, X)
    assert len(alone.kernels) == 3
    one = kernels(("lowering:aten.exp.default",), fn, X)
    assert len(one.kernels) == 1 and "aten.exp" in one.source
    assert kernels(("lowerings",), fn, X).kernels == ()
    long = lambda x: (x @ x).exp() @ x
    square = torch.randn(4, 4)
    taken = kernels((), long, square).source
    fresh = kernels(("reuse",), long, square).source
    assert fresh.count("empty_strided") > taken.count("empty_strided")
    composite = lambda x: torch.nn.functional.gelu(x)
    assert "aten.gelu" in kernels(("decompositions", "lowerings"), composite, X).source
    assert "aten.gelu" not in kernels(("lowerings",), composite, X).source
    assert scheduler.POLICIES  # the usual ones are as they were


def test_names():
    assert len(set(SWITCHES)) == len(SWITCHES)
    with pytest.raises(SettingError, match=r"disable='nonesuch'.*fusion"):
        smith(graph(), [X, W], options={"disable": ["nonesuch"]})
    assert Settings(disable="fusion, reuse").disable == ("fusion", "reuse")


def test_from_the_environment(monkeypatch):
    monkeypatch.setenv("TORCHSMITH_DISABLE", "fusion,reuse")
    assert Settings.from_environment().disable == ("fusion", "reuse")
    monkeypatch.delenv("TORCHSMITH_DISABLE")
    assert Settings.from_environment().disable == ()


@pytest.mark.parametrize("name", ["dead-code", "scatter-targets"])
def test_a_pass_that_fails_is_named(name, monkeypatch):
    from torchsmith_fx_backend._src.passes import DeadCode
    from torchsmith_fx_backend._src.passes.scatters import ScatterTargets

    def fails(self, graph):
        raise KeyError("planted")

    kind = {"dead-code": DeadCode, "scatter-targets": ScatterTargets}[name]
    monkeypatch.setattr(kind, "run", fails)
    gm = make_fx(lambda x: x + 1)(X)
    with pytest.raises(StageError, match=f"pass {name}.*KeyError: 'planted'"):
        compile_graph(gm, [X], Settings(strict=True, graph_cache=False))
    compile_graph(gm, [X], Settings(strict=True, graph_cache=False, disable=(name,)))


def fails(*args, **kwargs):
    raise KeyError("planted")


def test_listeners_hear_of_failures(monkeypatch):
    from torchsmith_fx_backend._src.passes import DeadCode

    heard = []
    stop = on_failure(lambda gm, error: heard.append((gm, type(error).__name__)))
    module = torch.fx.symbolic_trace(lambda x: (x @ x).sin() * 3)
    options = {"graph_cache": False, "strict": False}
    leaf = torch.randn(4, 4, requires_grad=True)
    for x in (torch.randn(4, 4), leaf):
        for place, name in ((DeadCode, "run"), (driver, "schedule_graph")):
            with monkeypatch.context() as patched:
                patched.setattr(place, name, fails)
                compiled = smith(module, [x], options=options)
                assert torch.equal(compiled(x), module(x))
                assert heard == [(module, "StageError")]
                with pytest.raises(StageError):
                    smith(module, [x], options={**options, "strict": True})
            assert heard == [(module, "StageError")] * 2
            del heard[:]
    compiled = smith(module, [leaf], options=options)
    with monkeypatch.context() as patched:  # the backward half is compiled when it is asked for
        patched.setattr(DeadCode, "run", fails)
        with pytest.raises(StageError):
            compiled(leaf).sum().backward()
    assert heard == [(module, "StageError")]
    stop()
    with monkeypatch.context() as patched:
        patched.setattr(DeadCode, "run", fails)
        smith(module, [leaf], options=options)
    assert len(heard) == 1


def test_a_listener_that_fails_is_a_warning(monkeypatch):
    from torchsmith_fx_backend._src.passes import DeadCode

    monkeypatch.setattr(DeadCode, "run", fails)
    stop = on_failure(lambda gm, error: {}[error])
    module = torch.fx.symbolic_trace(lambda x: x + 1)
    with pytest.warns(UserWarning, match="not recorded"):
        smith(module, [X], options={"graph_cache": False, "strict": False})
    stop()
