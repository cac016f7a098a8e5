"""Graphs that are called with containers or return them, and graphs without operators."""

import operator

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx as torch_make_fx
from torchsmith_fx_backend import compile_graph, make_fx, smith
from torchsmith_fx_backend._src.nested import Nested
from torchsmith_guards.records import recorder


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHSMITH_CACHE_DIR", str(tmp_path / "cache"))
    recorder.clear()


def random(training=False):
    return torch.randn(3, 4, requires_grad=training)


def assert_same(got, want):
    """Types of containers among it: those in fx's nodes cannot be changed."""
    assert type(got) is type(want)
    if isinstance(want, torch.Tensor):
        torch.testing.assert_close(got, want)
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want)
        for mine, theirs in zip(got, want):
            assert_same(mine, theirs)
    elif isinstance(want, dict):
        assert list(got) == list(want)
        assert_same([*got.values()], [*want.values()])
    else:
        assert got == want


def tensors_in(result):
    return [x for x in torch.utils._pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]


GIVES = {
    "a tensor": lambda a, b: a.sin() * b,
    "a list": lambda a, b: [a.sin() * b, b + 1],
    "a dict of containers": lambda a, b: {"r": [a * b, (b.sin(), None)], "s": (a + b, [3])},
    "a list of containers": lambda a, b: [a * b, [b.sin(), (a + b,)], {"k": [a.exp()]}],
    "a tuple of containers": lambda a, b: (a * b, [b.sin()], a, [[a], []]),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", GIVES)
def test_results_have_the_structure_of_the_graph(name, training):
    gm = fx.symbolic_trace(GIVES[name])
    with torch.set_grad_enabled(training):
        compiled = smith(gm, [random(training), random(training)])
        assert compiled.source
        for _ in range(3):
            a, b = random(training), random(training)
            got, want = compiled(a, b), gm(a, b)
            assert_same(got, want)
            if training:
                total = [sum(t.sum() for t in tensors_in(result)) for result in (got, want)]
                mine, theirs = (torch.autograd.grad(t, (a, b)) for t in total)
                assert_same(mine, theirs)
    if isinstance(got, list):
        got.append(1)


def written(items, y):
    items[0].add_(1)
    return torch.cat(items) * y[0], items[0]


TAKES = {
    "a list": (lambda items: items[0] * items[1].sin(), lambda t: [[random(t), random(t)]]),
    "a tuple beside a tensor": (
        lambda pair, y: (pair[0] * y, pair[1] + y),
        lambda t: [(random(t), random(t)), random(t)],
    ),
    "a dict of containers": (
        lambda d: {"r": d["a"] * d["b"][0], "s": d["b"][1][0] * d["n"]},
        lambda t: [{"a": random(t), "b": [random(t), (random(t),)], "n": 3}],
    ),
    "a list that is written": (written, lambda t: [[random(), random()], random(t)]),
}


def copied(values):
    return torch.utils._pytree.tree_map_only(
        torch.Tensor, lambda x: x.detach().clone().requires_grad_(x.requires_grad), values
    )


@pytest.mark.parametrize(
    ("compile_it", "training"), [(smith, False), (smith, True), (compile_graph, False)]
)
@pytest.mark.parametrize("name", TAKES)
def test_arguments_may_be_containers(name, training, compile_it):
    fn, make = TAKES[name]
    gm = fx.symbolic_trace(fn)
    with torch.set_grad_enabled(training):
        compiled = compile_it(gm, make(training))
        assert isinstance(compiled, Nested) and "def " in compiled.source
        for _ in range(3):
            mine = make(training)
            theirs = copied(mine)
            got, want = compiled(*mine), gm(*theirs)
            assert_same(got, want)
            assert_same(mine, theirs)
            if training:
                for result in (got, want):
                    sum(t.sum() for t in tensors_in(result)).backward()
                grads = [[x.grad for x in tensors_in(args)] for args in (mine, theirs)]
                assert_same(*grads)


def test_another_structure_runs_as_captured():
    gm = fx.symbolic_trace(lambda items: items[0] + items[-1])
    with torch.no_grad():
        compiled = smith(gm, [[random(), random()]])
        for count in (2, 3, 1, 2):
            items = [random() for _ in range(count)]
            torch.testing.assert_close(compiled(items), items[0] + items[-1])
        torch.testing.assert_close(compiled(tuple(items)), items[0] + items[-1])
        with pytest.raises(IndexError):
            compiled([])


def appended(items, y):
    items.append(y * 2)
    return items[0] + y


def appended_within(items, y):
    items[1].extend([y, y + 1])
    return items[0] + y


def replaced(d, y):
    d["a"] = y + 1
    return d["a"] * 2


def returned(items, y):
    return items[1], y * 2, items


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("fn", [appended, appended_within, replaced, returned])
def test_what_is_done_to_a_container_is_done_to_the_callers(fn, training):
    graph = fx.Graph()
    first, y = graph.placeholder("first"), graph.placeholder("y")
    if fn is replaced:  # by a tracer that sees stores
        graph.call_function(operator.setitem, (first, "a", graph.call_function(torch.add, (y, 1))))
        read = graph.call_function(operator.getitem, (first, "a"))
        graph.output(graph.call_function(torch.mul, (read, 2)))
        gm = fx.GraphModule(torch.nn.Module(), graph)
    else:
        gm = fx.symbolic_trace(fn)

    def given():
        x = random(training)
        return {"a": x} if fn is replaced else [x, [x.detach() + 1]]

    with torch.set_grad_enabled(training):
        compiled = smith(gm, [given(), random(training)])
        for _ in range(3):
            mine, y = given(), random(training)
            theirs = copied(mine)
            assert_same(compiled(mine, y), fn(theirs, y))
            assert_same(mine, theirs)
            if fn is returned:
                got = compiled(mine, y)
                assert got[0] is mine[1] and got[2] is mine
    assert recorder.metrics().graphs[-1].outcome == "eager"


def test_parameters_are_those_that_the_graph_has_at_the_call():
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)
            self.scale = torch.nn.Parameter(torch.ones(4))

        def forward(self, items):
            return self.linear(items[0]) * self.scale + items[1]

    class Leaf(fx.Tracer):
        def is_leaf_module(self, module, name):
            return False

    root = Scaled()
    gm = fx.GraphModule(root, Leaf().trace(root))
    with torch.no_grad():
        compiled = smith(gm, [[random(), random()]])
        for change in range(4):
            items = [random(), random()]
            torch.testing.assert_close(compiled(items), gm(items))
            state = {name: value + change for name, value in gm.state_dict().items()}
            gm.load_state_dict(state, assign=change % 2 == 1)


def from_dict(d):
    return {"r": d["a"] + d["b"][0].sin(), "l": [d["a"] * 2, (d["b"][0] + 1,)]}


def alone(d):
    return d["a"] * d["b"][0]


@pytest.mark.parametrize("make", [make_fx, torch_make_fx])
@pytest.mark.parametrize("fn", [from_dict, alone])
def test_graphs_whose_code_takes_containers_apart(make, fn):
    """Examples are the graph's arguments or, as exporters give them, the tensors in them."""
    x, y = random(), random()
    gm = make(fn)({"a": x, "b": [y]})
    for examples in ([{"a": x, "b": [y]}], [x, y]):
        with torch.no_grad():
            compiled = smith(gm, examples)
            assert compiled.kernels
            for a, b in ((x, y), (y, x), (random(), random())):
                assert_same(compiled({"a": a, "b": [b]}), fn({"a": a, "b": [b]}))
            with pytest.raises(Exception) as theirs:
                gm({"a": x})
            with pytest.raises(type(theirs.value)):
                compiled({"a": x})
    a = random(True)
    trained = smith(gm, [a, y])({"a": a, "b": [y]})
    sum(t.sum() for t in tensors_in(trained)).backward()
    mine, a.grad = a.grad, None
    sum(t.sum() for t in tensors_in(fn({"a": a, "b": [y]}))).backward()
    torch.testing.assert_close(mine, a.grad)


@pytest.mark.parametrize("grad", [False, True])
def test_a_graph_without_operators_is_not_compiled(grad):
    gm = fx.symbolic_trace(lambda a, b: (b, [a]))
    a, b = random(grad), random(grad)
    with torch.set_grad_enabled(grad):
        run = smith(gm, [a, b])
        for left, right in ((a, b), (b, a), (random(), torch.ones(2))):
            found = run(left, right)
            assert found[0] is right and found[1][0] is left
    metrics = recorder.metrics()
    assert "cache" not in metrics.counters
    assert metrics.graphs[-1].outcome == "eager" and "operator" in metrics.graphs[-1].reason


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(
    "fn", [lambda a, b, c: (a * 2, b * 3 + c), lambda a, b, c: (a.sin_(), b + c)]
)
def test_a_tensor_that_is_given_twice(fn, gradients):
    def make():
        p, q = torch.arange(4.0) / 4, torch.arange(4.0)
        if gradients:
            p, q = p.requires_grad_() * 1, q.requires_grad_() * 1
        return p, q

    x, y = make()
    compiled = smith(fx.symbolic_trace(fn), [x, x, y])
    for choice in ((0, 0, 1), (0, 1, 1), (0, 0, 0), (1, 1, 0)):
        mine, true = make(), make()
        with torch.set_grad_enabled(gradients):
            results = compiled(*(mine[i] for i in choice))
            expected = fn(*(true[i] for i in choice))
        for got, right in zip((*results, *mine), (*expected, *true), strict=True):
            torch.testing.assert_close(got, right)
