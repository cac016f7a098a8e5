"""Parts of a graph that are equal are planned once, and run as if each had been."""

import pytest
import torch
from plans import run_plan, trace
from torchsmith_fx_backend._src.passes import PASSES
from torchsmith_fx_backend._src.passes.base import run_passes
from torchsmith_fx_backend._src.schedule import schedule_graph, scheduler
from torchsmith_fx_backend._src.schedule.plan import ExternCall, Launch
from torchsmith_fx_backend._src.schedule.repeats import LEAST, find_repeats

SIZES = ((3, 4), (5,), (3, 4), (), (5,), (3, 4), (3, 4), (5,), (5,), ())


def momentum(*given):
    """A step of an optimizer."""
    params, grads, states = (given[i : i + 10] for i in (0, 10, 20))
    for p, g, s in zip(params, grads, states):
        s.mul_(0.9).add_(g)
        p.sub_(s * 0.1)
    return [p.exp() for p in params]


def of_lists(*given):
    params, grads, states = (list(given[i : i + 10]) for i in (0, 10, 20))
    torch._foreach_mul_(states, 0.9)
    torch._foreach_add_(states, grads)
    torch._foreach_add_(params, torch._foreach_div(states, [2.0] * 10), alpha=-0.1)
    return ()


def with_a_rest(*given):
    """Results of several kinds in one order, and something that belongs to no kind."""
    made = [x.sin() + 1 for x in given]
    return [made[4], given[2], given[0] @ given[1].new_ones(4, 2), *made[::-1], None, made[0]]


def shared(*given):
    """All read one input that none writes, and constants that are made for all."""
    factor, zeros = given[0], torch.zeros(3, 4)
    return [(x * factor).exp() + zeros for x in given if x.dim() == 2]


def clipped(*given):
    """What all parts read is made of all gradients, which they write."""
    params, grads = given[:10], given[10:20]
    norm = torch.stack([g.exp().sum() for g in grads]).sum()
    scale = (1.0 / (norm + 1e-6)).clamp(max=1.0)
    for p, g in zip(params, grads):
        g.mul_(scale)
        p.sub_(g * 0.1)
    return norm, [g + 1 for g in grads][0]


def with_other_numbers(*given):
    return [x * (1.0 if i % 2 else 1) + (0.0 if i % 2 else -0.0) for i, x in enumerate(given)]


VALUES = [momentum, of_lists, with_a_rest, shared, clipped, with_other_numbers]


@pytest.mark.parametrize("fn", VALUES)
def test_values_and_writes(fn):
    torch.manual_seed(0)
    given = [torch.randn(size) for _ in range(3) for size in SIZES]
    theirs, mine = ([x.clone() for x in given] for _ in range(2))
    gm = trace(fn, *(x.clone() for x in given))
    run_passes(gm.graph, PASSES[:1], check=True)
    found = find_repeats(gm)
    assert found is not None and len(found.kinds) > 1 or fn in (shared, clipped)
    plan = schedule_graph(gm, check=True)
    got = run_plan(plan, mine)
    for a, b in zip(got, fn(*theirs), strict=True):
        assert (a is None) is (b is None)
        if a is not None:
            torch.testing.assert_close(a, b)
            assert a.stride() == b.stride()
    torch.testing.assert_close(mine, theirs)


def test_each_kind_is_planned_once(monkeypatch):
    gm = trace(momentum, *(torch.randn(size) for _ in range(3) for size in SIZES))
    planned = []
    monkeypatch.setattr(
        scheduler,
        "_best_plan",
        lambda gm, *rest, real=scheduler._best_plan: (
            planned.append(len(gm.graph.nodes)) or real(gm, *rest)
        ),
    )
    plan = schedule_graph(gm)
    assert len(planned) == 3 and max(planned) < len(gm.graph.nodes) / 2  # two kinds and a rest
    launches = [step for step in plan.steps if isinstance(step, Launch)]
    kernels = [step.kernel for step in launches]
    assert kernels[: len(kernels) // 2] != kernels  # equal ones follow each other
    changes = sum(a != b for a, b in zip(kernels, kernels[1:]))
    assert changes < len(set(kernels)) + 4


def no_two_alike(*given):
    return [x.sin() + i for i, x in enumerate(given)]


def chained(*given):
    total = given[0]
    for x in given[2::2]:
        total = total.sum() + x.sin()
    return total


def written_and_read(*given):
    for x in given[1:]:
        x.add_(given[0].sum())
    given[0].zero_()
    return ()


def random(*given):
    return [x * torch.rand(5) for x in given if x.shape == (5,)]


def may_raise(*given):
    return [x[torch.tensor([2, 1])] for x in given if x.dim()]


def through_aten(*given):
    return [x @ x.t() for x in given if x.dim() == 2]


@pytest.mark.parametrize("fn", [no_two_alike, chained, written_and_read, random, through_aten])
def test_what_is_planned_as_a_whole(fn):
    torch.manual_seed(0)
    given = [torch.randn(size) for size in SIZES]
    plan = schedule_graph(trace(fn, *(x.clone() for x in given)))
    if fn is through_aten:
        assert sum(isinstance(step, ExternCall) for step in plan.steps) >= LEAST
    mine, theirs = ([x.clone() for x in given] for _ in range(2))
    if fn is random:
        return
    got, wanted = run_plan(plan, mine), fn(*theirs)
    wanted = wanted if isinstance(wanted, (list, tuple)) else [wanted]
    torch.testing.assert_close(list(got), list(wanted))
    torch.testing.assert_close(mine, theirs)
