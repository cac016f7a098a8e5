"""Values that are written part by part, forward and in gradients."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "aot"))

import pytest
import torch
from differential import check
from torchsmith_fx_backend import make_fx
from torchsmith_fx_backend._src import driver
from torchsmith_fx_backend._src.passes import DeadCode, written
from torchsmith_fx_backend._src.passes.base import run_passes
from torchsmith_fx_backend._src.settings import Settings

aten = torch.ops.aten


def rewritten(fn, *inputs):
    """How often each operator is called after the pass, once it is known to do what ``fn`` does."""

    def transform(module):
        run_passes(module.graph, [written.WrittenParts(), DeadCode()], check=True)
        module.recompile()

    graph = check(fn, *inputs, transform=transform)
    found = [n.target for n in graph.module.graph.nodes if n.op == "call_function"]
    return {target: found.count(target) for target in found}


def stored(x):
    y = x.clone()
    for t in range(1, 6):
        y[:, t] = y[:, t - 1] * 0.5 + x[:, t]
    return (y * 2,)


def last_alone(x):
    y = torch.zeros_like(x)
    for t in range(6):
        y[:, t] = x[:, t].sin()
    return y[:, 5] + y[:, 2], y[:, -1:] + 1


def from_before(x):
    y = x * 2
    y[:, 1] = 0
    y[:, 3:5] = 1
    return y[:, 2] + 1, y[:, 5:] + 1, y[:, 0:1] + 1


def overlapping(x):
    y = x * 2
    y[:, 1:4] = 0
    y[2] = 5
    return y[:, 3] + 1, y[:, 2:5] + 1, y[1] + 1, y[:, :1] + 1


def returned(x):
    y = x.clone()
    y[:, 1] = 0
    return y[:, 2], y


def of_other_sizes(x):
    zero = torch.zeros(1, 6, 4)
    one = torch.select_scatter(zero, x[:1, 0], 1, 0)
    return (one + torch.select_scatter(torch.zeros_like(x), x[:, 1], 1, 1),)


PROGRAMS = [stored, last_alone, from_before, overlapping, returned, of_other_sizes]
X = torch.randn(3, 6, 4)


@pytest.mark.parametrize("fn", PROGRAMS)
def test_values_and_layouts(fn):
    rewritten(fn, X)


def test_a_part_is_read_where_it_was_written():
    def fn(x):
        y = torch.zeros(6)
        for t in range(6):
            y[t] = x[t].sin()
        return y[5] + y[2], y[4:] + 1

    x = torch.randn(6)
    assert rewritten(fn, x)[aten.select_scatter.default] == 6  # ``y[4:]`` is a part of another kind
    assert aten.select_scatter.default not in rewritten(lambda x: fn(x)[:1], x)


def test_another_part_is_read_from_what_was_there_before():
    assert not {aten.select_scatter.default, aten.slice_scatter.default} & {
        *rewritten(from_before, X)
    }


def test_parts_that_overlap_wait_for_the_writes():
    calls = rewritten(overlapping, X)
    assert calls[aten.slice_scatter.default] == calls[aten.select_scatter.default] == 1


def by_steps(x):
    h = x[:, 0]
    for t in range(1, 6):
        h = (h * x[:, t]).tanh()
    return (h,)


def by_pairs(x):
    return (sum((x[:, t : t + 2].sin() * (t + 1)).sum(1) for t in range(0, 6, 2)),)


def twice(x):
    return (sum(x[:, t].sin() * x[:, 5 - t].cos() for t in range(6)),)


def by_batches_and_steps(x):
    return (sum(x[b, :, 1:] * x[:, b, 1:].mean() for b in range(3)),)


@pytest.mark.parametrize("special", [1.0, 0.0, -0.0, float("inf"), float("nan")])
@pytest.mark.parametrize("fn", [by_steps, by_pairs, twice, by_batches_and_steps])
def test_gradients_of_what_is_read_in_parts(fn, special):
    gradients = []
    x = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(1))
    x[:, 2, :2] *= special
    example = x.clone().requires_grad_()
    run = driver.compile_training(make_fx(fn)(example), (example,), Settings(strict=True))
    for call in (run, fn):
        leaf = x.clone().requires_grad_()
        (call(leaf)[0].sum(-1, keepdim=True) * torch.linspace(-1, 1, 4)).sum().backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(*gradients, equal_nan=True)
    ours, theirs = gradients
    zero = theirs == 0
    assert torch.equal(ours[zero].signbit(), theirs[zero].signbit())


def test_gradients_of_steps_are_one_chain_of_writes(monkeypatch):
    calls, original = [], written.WrittenParts.run

    def run(self, graph):
        original(self, graph)
        DeadCode().run(graph)
        whole = [
            n.target for n in graph.nodes if getattr(n.meta.get("val"), "shape", ()) == X.shape
        ]
        calls.append(whole)

    monkeypatch.setattr(written.WrittenParts, "run", run)
    example = X.clone().requires_grad_()
    call = driver.compile_training(make_fx(by_steps)(example), (example,), Settings(strict=True))
    call(example)[0].sum().backward()
    counts = [found.count(aten.select_scatter.default) for found in calls]
    sums = [found.count(aten.add.Tensor) for found in calls]
    assert max(counts) == 6 and max(sums) == 1
