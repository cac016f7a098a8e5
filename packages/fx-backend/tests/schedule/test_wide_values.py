"""Wide values of narrow operands are computed again on a GPU where that saves most of the bytes."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from plans import kernels, run_plan, trace
from torchsmith_fx_backend._src.loops.ir import Op
from torchsmith_fx_backend._src.schedule import inlining, scheduler
from torchsmith_fx_backend._src.schedule.facts import Facts
from torchsmith_fx_backend._src.schedule.memory import eager_peak
from torchsmith_fx_backend._src.schedule.plan import Allocate
from torchsmith_fx_backend._src.schedule.scheduler import POLICIES, Policy, plan_with

LOW = torch.bfloat16


def gate(x, w):
    """The gate is needed before a product and after it."""
    wide = x.double() * 2 + 1
    open_ = torch.sigmoid(wide)
    y = (wide * open_).to(LOW) @ w
    return (y.double() * open_ * (1 + wide * (1 - open_))).to(LOW)


def narrow(x, w):
    """The same in float32, which is half as wide only."""
    wide = x.float() * 2 + 1
    open_ = torch.sigmoid(wide)
    y = (wide * open_).to(LOW) @ w
    return (y.float() * open_ * (1 + wide * (1 - open_))).to(LOW)


def sums(x, w):
    """Reduced along both axes."""
    wide = (x.float() * 1.5).tanh() * torch.sigmoid(x.float())
    return wide.sum(0), wide.sum(1), (wide - wide.mean()).to(LOW) @ w


def picked(x, w):
    """Read at other places than it is computed at."""
    wide = F.silu(x.float() * 0.5 - 1)
    return (wide.flip(0).to(LOW) @ w) * wide.t(), wide[::2].sum(1)


def normed(x, w):
    grouped = x.float().view(8, 8, -1)
    centred = (grouped - grouped.mean((1, 2), keepdim=True)) * (x.float().var() + 1).rsqrt()
    y = centred.view_as(x).to(LOW) @ w
    return (y.float().view_as(centred) * centred).sum((1, 2)), (centred * 3).sum(2)


PROGRAMS = [gate, narrow, sums, picked, normed]


def planned(fn, given, monkeypatch, fast):
    monkeypatch.setattr(inlining, "FAST", frozenset({"cpu"} if fast else ()))
    gm = trace(fn, *given)
    peak, plan = plan_with(Facts(gm), POLICIES[0])
    return peak, plan, eager_peak(Facts(gm))


def wide_bytes(plan):
    made = [s.layout for s in plan.steps if isinstance(s, Allocate)]
    return sum(1 for one in made if one.dtype.itemsize > 2 and len(one.size) > 1)


def alike(x, w):
    gated = torch.sigmoid(x * 2 + 1)
    return ((x * gated) @ w) * gated * (1 + x * (1 - gated))


@pytest.mark.parametrize("fn", PROGRAMS)
def test_values_stay_and_peaks_do_not_rise(fn, monkeypatch):
    given = [torch.randn(64, 64).to(LOW), (torch.randn(64, 64) * 0.1).to(LOW)]
    before, plain, eager = planned(fn, given, monkeypatch, fast=False)
    after, plan, _ = planned(fn, given, monkeypatch, fast=True)
    assert after <= before <= eager
    for step in range(3):
        inputs = [given[0] * (step + 1), given[1].flip(0)]
        wanted = fn(*inputs)
        wanted = list(wanted) if isinstance(wanted, tuple) else [wanted]
        for each in (plain, plan):
            torch.testing.assert_close(run_plan(each, inputs), wanted, rtol=0.03, atol=0.03)


@pytest.mark.parametrize("fn", [gate, narrow])
def test_no_wide_value_waits_for_a_product(fn, monkeypatch):
    given = [torch.randn(64, 64).to(LOW), torch.randn(64, 64).to(LOW)]
    before, plain, _ = planned(fn, given, monkeypatch, fast=False)
    after, plan, _ = planned(fn, given, monkeypatch, fast=True)
    assert after < before and wide_bytes(plan) == 0 < wide_bytes(plain)


def test_a_wide_value_waits_where_its_operand_would_hold_too_much(monkeypatch):
    """The peak of what is computed again comes first, and what is left out when it is too high."""
    monkeypatch.setattr(inlining, "FAST", frozenset({"cpu"}))
    gm = trace(narrow, torch.randn(64, 64).to(LOW), torch.randn(64, 64).to(LOW))
    facts = Facts(gm)
    again, once = (plan_with(Facts(gm, again=a), Policy(again=a)) for a in (True, False))
    assert facts.computes_again and wide_bytes(again[1]) == 0 < wide_bytes(once[1])
    tried = []
    monkeypatch.setattr(scheduler, "eager_peak", lambda facts: -scheduler.SLACK)
    monkeypatch.setattr(
        scheduler, "plan_with", lambda facts, p, limit: tried.append(p) or plan_with(facts, p)
    )
    scheduler.schedule_graph(gm)
    assert [p.again for p in tried] == [True] + [False] * (len(tried) - 1) and len(tried) > 4
    tried.clear()
    monkeypatch.setattr(inlining, "FAST", frozenset())
    scheduler.schedule_graph(gm)
    assert len(tried) == len({replace(p, again=True) for p in tried})


def test_operands_that_are_as_wide_are_stored_as_before(monkeypatch):
    given = [torch.randn(64, 64).double(), torch.randn(64, 64).double() * 0.1]
    before, plain, _ = planned(alike, given, monkeypatch, fast=False)
    after, plan, _ = planned(alike, given, monkeypatch, fast=True)
    assert after == before and len(kernels(plan)) == len(kernels(plain))


def octaves(x, w):
    """Sines and cosines of coordinates, read by two products, once beside something wider."""
    parts = [f(x * 2.0**k) for k in range(8) for f in (torch.sin, torch.cos)]
    coded = torch.cat([x, *parts], -1)
    y = coded @ w
    return torch.cat([coded, y], -1) @ torch.cat([w, w, w])[: coded.shape[1] + y.shape[1]]


def test_costly_pieces_are_not_computed_at_each_point_of_the_whole(monkeypatch):
    given = [torch.randn(16, 3), torch.randn(51, 51)]
    _, plan, _ = planned(octaves, given, monkeypatch, fast=True)
    sines = [sum(getattr(n, "op", None) in (Op.SIN, Op.COS) for n in k.body) for k in kernels(plan)]
    assert sorted(sines)[-1] == sum(sines) == 16
    for step in range(2):
        inputs = [given[0] * (step + 1), given[1]]
        torch.testing.assert_close(
            run_plan(plan, inputs)[0], octaves(*inputs), rtol=1e-4, atol=1e-4
        )
