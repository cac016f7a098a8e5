"""What does not change between calls is computed once, and held: here, what a CPU hands over."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "schedule"))

import pytest
import torch
from plans import trace
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torchsmith_fx_backend import make_fx
from torchsmith_fx_backend._src import backend, driver
from torchsmith_fx_backend._src.passes import once
from torchsmith_fx_backend._src.settings import Settings


def buckets(n):
    """Whose logarithms no other device computes to the last bit."""
    at = torch.arange(n)
    apart = (at[None] - at[:, None]).abs()
    return ((apart + 1).float().log() * 3).long().clamp(max=9)


MOVED = {
    "buckets": (lambda x: x * buckets(8).to("cuda:0"), 1),
    "several": (lambda x: x * buckets(8).to("cuda:0") * torch.arange(8.0).to("cuda:0"), 2),
    "of several results": (lambda x: x * buckets(8).float().max(-1).values.to("cuda:0"), 1),
    "what is returned": (lambda x: (x + 1, buckets(8).to("cuda:0")), 0),
    "a view of which is returned": (lambda x: (x + 1, buckets(8).to("cuda:0").view(64)), 0),
    "random numbers": (lambda x: x * torch.rand(8).to("cuda:0"), 0),
    "of an input": (lambda x: x * x.cpu().sin().to("cuda:0"), 0),
    "too much": (lambda x: x * buckets(8).expand(1 << 16, 8, 8).contiguous().to("cuda:0"), 0),
    "on the other device alone": (lambda x: x * torch.arange(8, device="cuda:0").sin(), 0),
}


@pytest.mark.parametrize(("fn", "count"), MOVED.values(), ids=MOVED)
def test_which_copies_are_held(fn, count):
    mode = FakeTensorMode()
    x = FakeTensor(mode, torch.empty(8, 8, device="meta"), torch.device("cuda:0"))
    graph = trace(fn, x).graph
    assert len(once._moved(graph, 1 << 24)) == count


@pytest.fixture
def wide_is_elsewhere(monkeypatch, tmp_path):
    """Doubles stand for another device's numbers; counts what the processes compute."""
    monkeypatch.setenv("TORCHSMITH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(once, "is_elsewhere", lambda value: value.dtype is torch.double)
    captured, original = [], driver.functional_graph
    monkeypatch.setattr(
        driver, "functional_graph", lambda *a, **k: captured.append(a) or original(*a, **k)
    )
    return captured


def biased(x):
    return (x + buckets(16).double()).sin(), x * buckets(16).double()


def compiled(fn, x):
    chosen = Settings(graph_cache=True, strict=True)
    gm = make_fx(fn)(x)
    if x.requires_grad:
        return driver.compile_training(gm, (x,), chosen)
    with torch.no_grad():
        return backend.compile_graph(gm, (x,), chosen)


def test_it_is_not_computed_at_a_call_and_again_by_another_process(wide_is_elsewhere):
    x = torch.randn(16, 16, dtype=torch.double)
    for _ in range(2):  # processes, as far as the graph knows
        call = compiled(biased, x)
        assert "log" not in call.source + "".join(text for _, text in call.kernels)
        for factor in (1, 2):
            torch.testing.assert_close(call(x * factor), biased(x * factor), rtol=0, atol=1e-12)
    assert len(wide_is_elsewhere) == 1  # the other process found the graph


def test_nothing_writes_into_it(wide_is_elsewhere):
    def fn(x):
        table = buckets(16).double()
        table[0] = x[0]
        return table + 1, table.mul_(2).sum(0)

    x = torch.randn(16, 16, dtype=torch.double)
    call = compiled(fn, x)
    for factor in (1, 2, 3):
        torch.testing.assert_close(call(x * factor), fn(x * factor))


def test_both_halves_of_a_differentiated_graph_read_it(wide_is_elsewhere):
    x = torch.randn(16, 16, dtype=torch.double, requires_grad=True)
    for _ in range(2):
        call = compiled(biased, x)
        for factor in (1, 2):
            sides = []
            for run in (call, biased):
                leaf = (x.detach() * factor).requires_grad_()
                sum(y.sum() for y in run(leaf)).backward()
                sides.append(leaf.grad)
            torch.testing.assert_close(*sides)
