"""Graphs with symbolic sizes from the cache: not lowered again, right where they are taken."""

from __future__ import annotations

import pytest
import torch
import torchsmith_guards as guards
from torch import fx
from torchsmith_fx_backend._src import backend, driver, graph_key
from torchsmith_fx_backend._src.settings import Settings


@pytest.fixture
def lowered(monkeypatch, tmp_path):
    """Every graph that is captured and lowered, in a cache of its own."""
    monkeypatch.setenv("TORCHSMITH_CACHE_DIR", str(tmp_path / "cache"))
    seen: list[object] = []
    original = driver.functional_graph
    monkeypatch.setattr(
        driver, "functional_graph", lambda *a, **k: (seen.append(a[0]), original(*a, **k))[1]
    )
    return seen


class Process:
    """What a new process would know: nothing but the example."""

    def __init__(self, program, *tensors, dims=None, before=()):
        self.env = guards.ShapeEnv()
        mode = guards.FakeMode(self.env)
        self.names = [f"a{i}" for i in range(len(tensors))]
        self.inputs = [
            mode.fakeify(x, guards.LocalSource(name), set(range(x.dim())) if dims is None else dims)
            for name, x in zip(self.names, tensors)
        ]
        for assume in before:
            bool(assume(*self.inputs))
        self.gm = fx.symbolic_trace(program)
        with torch.no_grad():
            self.compiled = backend.compile_graph(
                self.gm, self.inputs, Settings(graph_cache=True, strict=True)
            )
        self.check = guards.GuardSet(self.env.shape_guards()).compile(self.names).check
        self.key = graph_key.of(self.gm, self.inputs)

    def agrees(self, program, *tensors):
        torch.testing.assert_close(self.compiled(*tensors), program(*tensors))


def joined(a, b):
    z = torch.cat([a, b])
    return z.softmax(-1), z.sum(0), a.reshape(-1).flip(0)


def halves(a):
    return a.reshape(2, -1) + 1


def by_size(a):
    return a.sin() * a.shape[0] + a.numel()


def broadcast(a, b):
    return a * b


def as_the_longer(a, b):
    return a.new_zeros(torch.sym_max(a.shape[0], b.shape[0]) - 2, 3) + b.sum()


X, Y = torch.randn(4, 6), torch.randn(7, 6)
PROGRAMS = {
    "several symbols": (joined, (X, Y), (torch.randn(5, 3), torch.randn(9, 3))),
    "a guard on divisibility": (halves, (X,), (torch.randn(6, 5),)),
    "sizes as numbers": (by_size, (X,), (torch.randn(3, 3),)),
    "the greater of two": (as_the_longer, (X, Y), (torch.randn(9, 3), torch.randn(5, 3))),
    "equal sizes": (broadcast, (X, X + 1), (torch.randn(3, 2), torch.randn(3, 2))),
}


def relations(env):
    return [
        g.expected.text()
        for g in env.shape_guards()
        if isinstance(g.expected, guards.ShapeRelation)
    ]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_second_process_lowers_nothing(lowered, name):
    program, first, later = PROGRAMS[name]
    cold = Process(program, *first)
    warm = Process(program, *first)
    assert len(lowered) == 1
    assert relations(warm.env) == relations(cold.env)
    for process in (cold, warm):
        process.agrees(program, *first)
        assert process.check(*later)
        process.agrees(program, *later)


def test_other_hints_take_the_same_graph(lowered):
    Process(joined, X, Y)
    other = Process(joined, torch.randn(11, 3), torch.randn(2, 3))
    assert len(lowered) == 1
    other.agrees(joined, torch.randn(3, 5), torch.randn(4, 5))


def test_each_set_of_assumptions_has_its_entry(lowered):
    """A slice that ends before the tensor does, or after it."""

    def program(a):
        return a[:4] + 1

    for rows, count in ((6, 1), (3, 2), (9, 2), (2, 2), (7, 2)):
        Process(program, torch.randn(rows, 5)).agrees(program, torch.randn(rows, 5))
        assert len(lowered) == count


def test_what_is_known_is_part_of_the_key():
    plain = Process(by_size, X).key
    assert plain == Process(by_size, torch.randn(9, 2)).key
    known = Process(by_size, X, before=[lambda a: a.shape[0] % 4 == 0]).key
    static = Process(by_size, X, dims={0}).key
    assert len({plain, known, static, Process(by_size, X[:, :2]).key}) == 4


def test_symbols_of_which_nothing_is_known_have_no_key():
    process = Process(by_size, X)
    for node, value in zip(process.gm.graph.find_nodes(op="placeholder"), process.inputs):
        node.meta["val"] = value
    assert graph_key.of(process.gm, ()) is None
    assert graph_key.of(process.gm, process.inputs) is not None


def test_sizes_that_were_not_assumed_are_refused(lowered):
    Process(halves, X, dims={0, 1})
    warm = Process(halves, X, dims={0, 1})
    assert len(lowered) == 1
    assert warm.check(torch.randn(6, 3)) and not warm.check(torch.randn(3, 3))
