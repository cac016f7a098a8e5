"""The order of units: fewer bytes at once, the same results and effects."""

import random

import pytest
import torch
import torch.nn.functional as F
from plans import run_plan, trace
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torchsmith_fx_backend._src.schedule import order, scheduler
from torchsmith_fx_backend._src.schedule.facts import Facts
from torchsmith_fx_backend._src.schedule.fuse import Fuser
from torchsmith_fx_backend._src.schedule.memory import MemoryPlanner
from torchsmith_fx_backend._src.schedule.plan import ExternCall
from torchsmith_fx_backend._src.schedule.scheduler import POLICIES, plan_with

torch.manual_seed(0)
X, W, U = torch.randn(64, 32), torch.randn(32, 32) * 0.1, torch.randn(32, 256) * 0.1


def values_late(x, w, u):
    """Attention with its values computed before the scores, layer by layer."""
    for _ in range(3):
        q, k, v = x @ w, (x @ w.t()).sin(), (x @ (w + 1)).cos()
        x = x + F.softmax((q @ k.t()).tanh() @ x @ x.t(), -1) @ v
    return x


def shrinks_early(x, w, u):
    """What the block began with is wide, and is shrunk for the sum alone."""
    wide = u.t() @ u
    main = (wide @ wide).relu()
    return u @ (main @ main.t()).cos() + (u @ wide).exp()


def both(x, w, u):
    return shrinks_early(x, w, values_late(x, w, u).t() @ x @ u * 0.01)


def views(x, w, u):
    """Views of what is made early are read late, and one is returned."""
    y = (x @ u).view(32, 2, 256)
    v = (x @ (w + 1)).cos().view(2, 32, 32)
    wide = (y[:, 0].sin() @ u.t()) @ u
    return (wide @ u.t()).sum(0) @ v.transpose(1, 2), v[0], (y[:, 1] @ u.t()).exp()


FALLS = {"values": values_late, "shortcut": shrinks_early}


def both_orders(fn, *args, monkeypatch, **more):
    """Peak and plan in the program's order, and as planned."""
    gm = trace(fn, *args, **more)
    with monkeypatch.context() as patch:
        patch.setattr(scheduler, "lower_peak", lambda facts, uses: None)
        before = plan_with(Facts(gm), POLICIES[0])
    return before, plan_with(Facts(gm), POLICIES[0])


def same(plan, fn, *args):
    got = run_plan(plan, args)
    wanted = fn(*args)
    wanted = list(wanted) if isinstance(wanted, tuple) else [wanted]
    for mine, theirs in zip(got, wanted, strict=True):
        assert mine.stride() == theirs.stride()
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", FALLS)
def test_the_peak_falls(name, monkeypatch):
    fn = FALLS[name]
    (before, plain), (after, plan) = both_orders(fn, X, W, U, monkeypatch=monkeypatch)
    assert after < before
    for x in (X, X.flip(0), X * 0.5):
        same(plain, fn, x, W, U)
        same(plan, fn, x, W, U)


def test_views_of_what_moves(monkeypatch):
    (before, _), (after, plan) = both_orders(views, X, W, U, monkeypatch=monkeypatch)
    assert after <= before
    same(plan, views, X, W, U)


def test_a_plan_is_the_same_each_time():
    gm = trace(both, X, W, U)
    first, second = (plan_with(Facts(gm), POLICIES[0])[1] for _ in range(2))
    assert first.steps == second.steps


def test_symbolic_sizes():
    for rows in (64, 48):
        x = X[:rows].clone()
        gm = trace(values_late, x, W, U, mode="symbolic")
        _, plan = plan_with(Facts(gm), POLICIES[0])
        (got,) = run_plan(plan, [x, W, U])
        torch.testing.assert_close(got, values_late(x, W, U), rtol=1e-3, atol=1e-3)


def draws(x, w, u):
    y = x @ u
    a = torch.rand_like(x)
    main = (torch.bernoulli(y.sigmoid()) @ u.t()).sin()
    b = torch.randn_like(w)
    return main @ b, (y @ u.t()).exp() + a


def writes(x, w, u):
    y = x @ u
    early = (x @ w).sum(0)
    x.mul_(2)
    main = ((y.relu() @ u.t()).sin() @ u).cos() @ u.t()
    w.add_(early)
    return main + (y @ u.t()).exp() @ w


def fails(x, w, u):
    y = x @ u
    row = w[torch.arange(len(x)) % 32]
    main = ((y.relu() @ u.t()).sin() @ u).cos() @ u.t()
    return main + (y @ u.t()).exp(), row @ w


EFFECTS = {"draws": draws, "writes": writes, "fails": fails}
WALKS = {
    "late": lambda uses: order._late(uses, range(len(uses))),
    "early": lambda uses: order._early(uses, range(len(uses))),
    "both": lambda uses: order._early(uses, order._late(uses, range(len(uses)))),
}


@pytest.fixture(params=WALKS)
def moved(request, monkeypatch):
    """Units in another order even where that holds no less; the orders of effects as they were."""
    orders = []

    class Moved(Fuser):
        def run(self):
            units = super().run()
            uses = MemoryPlanner(self.facts, units, {n: n.name for n in self.facts.nodes}).uses()
            order._link(self.facts, uses)
            found = WALKS[request.param](uses)
            assert sorted(found) == list(range(len(uses))) and order._legal(uses, found)
            orders.append(found)
            return [units[n] for n in found]

    monkeypatch.setattr(scheduler, "Fuser", Moved)
    return orders


@pytest.mark.parametrize("name", EFFECTS)
def test_effects_keep_their_order(name, moved):
    fn = EFFECTS[name]
    results = []
    for run in ("eager", "plan"):
        given = [X.clone(), W.clone(), U.clone()]
        torch.manual_seed(5)
        if run == "eager":
            found = fn(*given)
            found = list(found) if isinstance(found, tuple) else [found]
        else:
            gm = trace(fn, *(g.clone() for g in given))
            found = run_plan(plan_with(Facts(gm), POLICIES[0])[1], given)
        results.append([*found, *given])
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("seed", range(6))
def test_random_programs(seed, moved):
    """Products, sums and views of whatever there is, some of it returned, some written."""

    def fn(x, w, u):
        rng = random.Random(seed)
        pool = [x, w]
        for _ in range(14):
            a = rng.choice(pool[-5:])
            kind = rng.choice(("wide", "square", "sin", "view", "rows", "add"))
            if kind == "wide":
                pool.append(((a @ u).tanh() @ u.t()) * 0.1)
            elif kind == "square":
                pool.append(a @ w)
            elif kind == "sin":
                pool.append(a.sin())
            elif kind == "view":
                pool.append((a.t() @ a).t())
            elif kind == "rows":
                pool.append(a.flip(0)[: len(a) // 2].repeat(2, 1) if len(a) % 2 == 0 else a)
            else:
                pool.append(a + rng.choice([b for b in pool if b.shape == a.shape]))
        if seed % 3 == 0:
            x.copy_(x.sin())
        return tuple(rng.sample(pool[2:], 3))

    given, theirs = [X.clone(), W, U], [X.clone(), W, U]
    gm = trace(fn, X.clone(), W, U)
    got, wanted = run_plan(plan_with(Facts(gm), POLICIES[0])[1], given), fn(*theirs)
    torch.testing.assert_close(got, list(wanted), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(given, theirs)
    assert [t.stride() for t in got] == [t.stride() for t in wanted]


@pytest.mark.parametrize("device", ["cuda:0", "cpu"])
def test_what_convolutions_copy_counts_on_a_gpu(device):
    """A library holds a copy of each image in half precision, and of the result."""

    def fn(x, wide, grouped, short):
        x = x.sin()
        y = F.conv2d(x, wide).relu()
        main = F.conv2d(y, grouped, padding=1, groups=4).relu()
        return F.avg_pool2d(main, 2) + F.conv2d(x, short, stride=2)

    sizes = (4, 64, 32, 32), (128, 64, 1, 1), (64, 32, 3, 3), (64, 64, 1, 1)
    mode = FakeTensorMode()
    metas = [torch.empty(size, dtype=torch.float16, device="meta") for size in sizes]
    facts = Facts(trace(fn, *(FakeTensor(mode, meta, torch.device(device)) for meta in metas)))
    uses = MemoryPlanner(facts, Fuser(facts).run(), {n: n.name for n in facts.nodes}).uses()
    order._link(facts, uses)
    pixels = 2 * 4 * 32 * 32
    copied = [pixels * n for n in (64 + 128, 128 + 64, 64 + 16)] if device != "cpu" else []
    assert [use.scratch for use in uses if use.scratch] == copied
    _, plan = plan_with(facts, POLICIES[0])
    calls = [s for s in plan.steps if isinstance(s, ExternCall) and "convolution" in str(s.target)]
    assert [call.args[1].name for call in calls] == [plan.inputs[n] for n in (1, 3, 2)]
