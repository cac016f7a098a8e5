"""What a compiled graph says that it runs: counts that can be worked out by hand."""

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torchsmith_fx_backend import Settings, smith
from torchsmith_fx_backend._src.page import roof, summary
from torchsmith_fx_backend._src.runtime.cache import default_cache
from torchsmith_guards import FakeMode, ShapeEnv
from torchsmith_guards.records import recorder


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHSMITH_CACHE_DIR", str(tmp_path / "cache"))
    if hasattr(default_cache, "cache_clear"):
        default_cache.cache_clear()
    yield
    if hasattr(default_cache, "cache_clear"):
        default_cache.cache_clear()


def compiled(fn, *inputs, **options):
    parameters = [f"a{n}" for n in range(len(inputs))]
    names = ", ".join(parameters)
    # Builtins have no code to trace; a caller of them does.
    gm = fx.symbolic_trace(eval(f"lambda {names}: fn({names})", {"fn": fn}))
    return smith(gm, list(inputs), **options), gm


def the_schedule(fn, *inputs, **options):
    (schedule,) = compiled(fn, *inputs, **options)[0].schedules()
    return schedule


X = torch.ones(8, 32)
KERNELS = {
    # bytes: 1,024 read, 1,024 written; two operations for each of 256 elements
    "pointwise": (lambda x: x * 2 + 1, (X,), 2048, 512),
    # comparisons and choices are no arithmetic
    "choice": (lambda x: torch.where(x > 0, x, -x), (X,), 2048, 256),
    # one addition for each element read
    "reduction": (lambda x: x.sum(-1), (X,), 1024 + 32, 256),
    "two inputs": (lambda x, y: x + y, (X, X.double()), 1024 + 2048 + 2048, 256),
    # a row of 32 is read for all of 8
    "broadcast": (lambda x, y: x + y, (X, torch.ones(32)), 1024 + 128 + 1024, 256),
}


@pytest.mark.parametrize("case", KERNELS)
def test_bytes_and_arithmetic_of_kernels(case):
    fn, inputs, moved, flops = KERNELS[case]
    schedule = the_schedule(fn, *inputs)
    (step,) = schedule["steps"]
    assert (step["kernel"], step["bytes"], step["flops"]) == (0, moved, flops)
    assert [k["language"] for k in schedule["kernels"]] == ["C"]
    assert schedule["kernels"][0]["name"] in schedule["kernels"][0]["source"]
    assert schedule["device"] == "cpu" and schedule["roof"] is None


def test_what_has_no_elements_moves_nothing():
    schedule = the_schedule(lambda x: x + 1, torch.ones(0, 4))
    assert [step["bytes"] for step in schedule["steps"]] == [0] and schedule["peak"] == 0


A, B = torch.ones(4, 6), torch.ones(6, 10)
EXTERNS = {
    "mm": (lambda a, b: a @ b, (A, B), 2 * 4 * 6 * 10),
    "bmm": (torch.bmm, (A[None].repeat(3, 1, 1), B[None].repeat(3, 1, 1)), 3 * 2 * 4 * 6 * 10),
    "mv": (torch.mv, (A, torch.ones(6)), 2 * 4 * 6),
    "linear": (F.linear, (A, B.t().contiguous()), 2 * 4 * 6 * 10),
    "addmm": (torch.addmm, (torch.ones(10), A, B), 2 * 4 * 6 * 10),
    "convolution": (
        F.conv2d,
        (torch.ones(2, 3, 8, 8), torch.ones(5, 3, 3, 3)),
        2 * (2 * 5 * 6 * 6) * (3 * 3 * 3),
    ),
    "attention": (
        F.scaled_dot_product_attention,
        (torch.ones(2, 3, 7, 4), torch.ones(2, 3, 9, 4), torch.ones(2, 3, 9, 4)),
        2 * 2 * 3 * 7 * 9 * (4 + 4),
    ),
    "not known": (lambda a, b: torch.linalg.matrix_exp(a @ b), (A, B[:, :4]), None),
}


@pytest.mark.parametrize("case", EXTERNS)
def test_arithmetic_of_library_calls(case):
    fn, inputs, flops = EXTERNS[case]
    steps = [s for s in the_schedule(fn, *inputs)["steps"] if s["kernel"] is None]
    assert steps[-1]["flops"] == flops
    assert steps[-1]["bytes"] > 0


def test_every_operator_is_in_a_step_also_those_that_live_in_registers():
    def fn(x, w):
        a = x * 2
        b = F.gelu(a) + a
        c = F.layer_norm(b, (32,))
        return torch.softmax(c @ w, -1).sum()

    found, gm = compiled(fn, X, torch.ones(32, 32))
    (schedule,) = found.schedules()
    covered = {name for step in schedule["steps"] for name in step["nodes"]}
    assert covered == {n.name for n in gm.graph.nodes if n.op.startswith("call")}


def test_memory_over_the_steps():
    def fn(x, w):
        a = (x @ w).relu()
        b = (a @ w).relu()
        return (b @ w).sum()

    schedule = the_schedule(fn, X, torch.ones(32, 32))
    held = [step["live"] for step in schedule["steps"]]
    # Each product is written anew, worked on in place, and dropped after the next product.
    assert max(held) == schedule["peak"] == 2 * 1024
    assert held[0] == 1024 and held[-1] <= 1024 + 4


def test_a_graph_from_the_cache_says_the_same_under_its_own_names():
    def first(x, w):
        return (x @ w).relu() + 1

    def second(left, right):
        return (left @ right).relu() + 1

    fresh = the_schedule(first, X, torch.ones(32, 32))
    again, gm = compiled(second, X, torch.ones(32, 32))
    (stored,) = again.schedules()
    assert stored["kernels"] == fresh["kernels"] and stored["peak"] == fresh["peak"]
    for one, other in zip(fresh["steps"], stored["steps"], strict=True):
        assert {**one, "nodes": 0} == {**other, "nodes": 0}
    names = {node.name for node in gm.graph.nodes}
    assert all(name in names for step in stored["steps"] for name in step["nodes"])


def test_writes_into_inputs_and_calls_of_several_results_are_steps_of_their_nodes():
    def fn(x, y):
        values, places = torch.topk(x, 3)
        y.copy_(torch.linalg.matrix_exp(y))
        return values * 2, places

    found, gm = compiled(fn, X, torch.ones(4, 4))
    (schedule,) = found.schedules()
    covered = {name for step in schedule["steps"] for name in step["nodes"]}
    assert {"topk", "linalg_matrix_exp", "mul"} <= covered
    assert all(step["bytes"] for step in schedule["steps"])


def test_training_has_a_forward_and_then_a_backward_half():
    w = torch.ones(32, 32, requires_grad=True)
    found, _ = compiled(lambda x, w: torch.tanh(x @ w).sum(), X, w)
    assert [s["name"] for s in found.schedules()] == ["forward"]
    found(X, w).backward()
    names = [s["name"] for s in found.schedules()]
    assert names == ["forward", "backward"]
    forward, backward = found.schedules()
    assert {n for s in forward["steps"] for n in s["nodes"]} >= {"matmul", "tanh", "sum_1"}
    assert any(step["flops"] for step in backward["steps"]) and backward["peak"] > 0
    assert {n for s in backward["steps"] for n in s["nodes"]} >= {"matmul", "tanh"}


GRADIENTS = {
    # what is computed -> a step of the backward half, and the captured nodes it comes from
    "a chain": (lambda w: torch.exp(w).sin() * 3, "cos", {"sin", "exp", "mul"}),
    "an operator that is no node of autograd": (
        lambda w: torch.special.erf(w * (w.detach() > 0)).sinh(),
        "cosh",
        {"erf", "special_erf", "sinh"},
    ),
    "a library call": (lambda w: torch.tanh(w @ w.relu()), "mm", {"matmul"}),
}


@pytest.mark.parametrize("case", GRADIENTS)
def test_steps_of_a_backward_half_belong_to_the_nodes_that_they_differentiate(case):
    fn, word, expected = GRADIENTS[case]
    w = torch.ones(16, 16, requires_grad=True)
    gm = fx.symbolic_trace(fn)
    for number, node in enumerate(gm.graph.nodes, 1):
        node.meta["stack_trace"] = f'  File "user.py", line {number}, in f\n    code\n'
    found = smith(gm, [w])
    found(w).sum().backward()
    (_, backward) = found.schedules()
    steps = [step for step in backward["steps"] if word in step["label"]]
    names = {n for step in steps for n in step["nodes"]}
    assert steps and names & expected, (backward["steps"], gm.code)
    assert names <= {node.name for node in gm.graph.nodes}
    told = [graph for graph in recorder.metrics().graphs if graph.kind == "backward"][-1]
    assert all(any("user.py:" in line for line in kernel.lines) for kernel in told.kernels)


def test_symbolic_sizes_count_as_in_the_call_that_was_compiled():
    mode = FakeMode(ShapeEnv())
    from torchsmith_guards import LocalSource

    x = mode.fakeify(X, LocalSource("x"), dynamic_dims=(0,))
    gm = fx.symbolic_trace(lambda x: x * 2 + 1)
    (schedule,) = smith(gm, [x]).schedules()
    (step,) = schedule["steps"]
    assert (step["bytes"], step["flops"], step["live"]) == (2048, 512, 1024)


def test_a_summary_that_fails_costs_nothing_but_itself(monkeypatch):
    monkeypatch.setenv("TORCHSMITH_STRICT", "0")
    monkeypatch.setattr(summary, "summary", lambda *args: 1 / 0)
    found, _ = compiled(lambda x: x * 2, X, options={"strict": False})
    assert torch.equal(found(X), X * 2)
    assert found.schedules() == []
    again, _ = compiled(lambda x: x * 2, X, options={"strict": False})
    assert torch.equal(again(X), X * 2)
    assert again.schedules() == []


def test_verified_graphs_and_recorded_settings_name_the_right_kernels():
    def fn(x):
        return torch.softmax(x * 3, -1), (x + 1).sum(0)

    plain = the_schedule(fn, X, options={"graph_cache": False})
    checked = the_schedule(fn, X, options={"verify": True, "graph_cache": False})
    named = lambda s: [s["kernels"][step["kernel"]]["name"] for step in s["steps"]]
    assert named(plain) == named(checked)
    assert len(set(named(plain))) == len(plain["kernels"])
    assert Settings().verify in (True, False)


class _Device:
    name, major, minor = "Test GPU", 9, 0
    memory_clock_rate, memory_bus_width = 1_000_000, 1024  # kHz, bits
    clock_rate, multi_processor_count = 2_000_000, 10


def test_the_roof_comes_from_what_the_device_says(monkeypatch):
    roof.roof.cache_clear()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: _Device)
    found = roof.roof("cuda:0")
    assert found["bandwidth"] == 2 * 1e9 * 128
    assert found["flops"] == 2 * 128 * 10 * 2e9
    assert "Test GPU" in found["basis"]
    roof.roof.cache_clear()
    monkeypatch.setattr(_Device, "memory_clock_rate", 0)
    assert roof.roof("cuda:0") is None
    roof.roof.cache_clear()
    assert roof.roof("cpu") is None
