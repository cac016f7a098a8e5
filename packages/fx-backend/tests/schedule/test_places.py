"""Parts of a concatenation are stored where they belong in it."""

import random

import pytest
import torch
import torch.nn.functional as F
from plans import kernels, run_plan, trace
from torch import fx
from torchsmith_fx_backend import smith
from torchsmith_fx_backend._src.loops.ir import Load, Store
from torchsmith_fx_backend._src.schedule import facts, inlining
from torchsmith_fx_backend._src.schedule.facts import Facts
from torchsmith_fx_backend._src.schedule.plan import Allocate, ExternCall
from torchsmith_fx_backend._src.schedule.scheduler import POLICIES, plan_with, schedule_graph

ROWS, WIDTH = 24, 32


def given(seed=0, rows=ROWS):
    generator = torch.Generator().manual_seed(seed)
    tables = torch.randn(3, 10, WIDTH, generator=generator)
    ids = torch.randint(10, (rows, 3), generator=generator)
    return [*tables, ids, torch.randn(WIDTH, WIDTH, generator=generator)]


def stacked(a, b, c, ids, w):
    found = torch.stack([F.embedding(ids[:, i], t) for i, t in enumerate((a, b, c))], 1)
    return found @ found.transpose(1, 2)


def side_by_side(a, b, c, ids, w):
    y = torch.cat([F.embedding(ids[:, 0], a), b[ids[:, 1]].sin(), c[ids[:, 2]]], -1)
    return y @ y.t(), y.relu()


def below(a, b, c, ids, w):
    y = torch.cat([a[ids[:, 0]], torch.index_select(b, 0, ids[:5, 1]) * 2, c[ids[:, 2]]])
    return (y @ w).tanh()


def reduced(a, b, c, ids, w):
    parts = [F.softmax(t, 0) for t in (a, b, c)]
    return torch.cat(parts, 0) @ w


def gathered(a, b, c, ids, w):
    found = [t.gather(0, ids[:, i : i + 1].expand(-1, WIDTH)) for i, t in enumerate((a, b, c))]
    return torch.cat(found, 1) @ torch.cat([w, w, w])


def returned(a, b, c, ids, w):
    return torch.cat([a[ids[:, 0]], b[ids[:, 1]]], 1)


def middle(a, b, c, ids, w):
    parts = [t[ids[:, :2]] for t in (a, b, c)]
    return torch.cat(parts, 1) @ w


TAKEN = [stacked, side_by_side, below, reduced, gathered, returned, middle]


def twice(a, b, c, ids, w):
    part = a[ids[:, 0]]
    return torch.cat([part, part], 1) @ torch.cat([w, w])


def read_apart(a, b, c, ids, w):
    part = a[ids[:, 0]]
    return torch.cat([part, b[ids[:, 1]]], 1) @ torch.cat([w, w]), part @ w


def part_returned(a, b, c, ids, w):
    part = a[ids[:, 0]]
    return torch.cat([part, b[ids[:, 1]]], 1), part


def with_an_input(a, b, c, ids, w):
    return torch.cat([a[ids[:, 0]], a, b[ids[:, 1]]]) @ w


def far_apart(a, b, c, ids, w):
    part = a[ids[:, 0]]
    return torch.cat([part, b[ids[:, 1]] @ w, c[ids[:, 2]]], 1).sin()


def two_dtypes(a, b, c, ids, w):
    return torch.cat([a[ids[:, 0]].double(), b[ids[:, 1]]], 1).sum(0)


def narrow(a, b, c, ids, w):
    return torch.cat([a[ids[:, 0], 3:5], b[ids[:, 1], 1:3]], 1).contiguous(), w


def nested(a, b, c, ids, w):
    inner = torch.cat([a[ids[:, 0]], b[ids[:, 1]]], 1)
    return torch.cat([inner, c[ids[:, 2]].sin()], 1) @ torch.cat([w, w, w])


OTHERS = [twice, read_apart, part_returned, with_an_input, far_apart, two_dtypes, narrow, nested]


def listed(result):
    return list(result) if isinstance(result, tuple) else [result]


def planned(gm, monkeypatch):
    """The plan; it holds no more than one that copies parts."""
    peak, plan = plan_with(Facts(gm), POLICIES[0])
    with monkeypatch.context() as patch:
        patch.setattr(facts, "places", lambda *given: {})
        assert peak <= plan_with(Facts(gm), POLICIES[0])[0]
    return plan


@pytest.mark.parametrize("fn", [*TAKEN, *OTHERS])
@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_values_and_peaks(fn, mode, monkeypatch):
    plan = planned(trace(fn, *given(), mode=mode), monkeypatch)
    for seed in (0, 1):
        got, wanted = run_plan(plan, given(seed)), listed(fn(*given(seed)))
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
        assert [t.stride() for t in got] == [t.stride() for t in wanted]


@pytest.mark.parametrize("fn", TAKEN)
def test_no_part_has_memory_of_its_own(fn):
    gm = trace(fn, *given())
    _, plan = plan_with(Facts(gm), POLICIES[0])
    wholes = [n.name for n in gm.graph.nodes if n.target is torch.ops.aten.cat.default]
    stored = {name for s in plan.steps if isinstance(s, Allocate) for name in [s.name]}
    assert wholes[0] in stored
    parts = {a.name for n in gm.graph.nodes if n.name == wholes[0] for a in n.all_input_nodes}
    assert parts.isdisjoint(stored)
    assert all(len(k.args) < 20 for k in kernels(plan))


@pytest.mark.parametrize("fn", [*TAKEN, *OTHERS])
def test_compiled(fn):
    compiled = smith(fx.symbolic_trace(fn), given())
    assert hasattr(compiled, "source")
    for seed in (0, 1, 2):
        got, wanted = listed(compiled(*given(seed))), listed(fn(*given(seed)))
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
        again = [t.clone() for t in got]
        compiled(*given(seed + 5))
        torch.testing.assert_close(got, again)  # the memory is the caller's


@pytest.mark.parametrize("fn", [stacked, side_by_side, below, gathered, nested])
@pytest.mark.parametrize("column", [0, 1, 2])
def test_a_position_that_is_not_there_raises_and_writes_nothing(fn, column):
    def written(a, b, c, ids, w):
        result = fn(a, b, c, ids, w)
        w.mul_(2)
        return result

    compiled = smith(fx.symbolic_trace(written), given())
    good, bad = given(3), given(3)
    bad[3][2, column] = 10
    errors = []
    for call in (compiled, written):
        before = [t.clone() for t in bad]
        with pytest.raises((IndexError, RuntimeError)) as raised:
            call(*bad)
        errors.append(raised.type)
        torch.testing.assert_close(bad, before)
    assert errors[0] is errors[1]
    wanted = listed(written(*[t.clone() for t in good]))
    torch.testing.assert_close(listed(compiled(*good)), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed, monkeypatch):
    def fn(a, b, c, ids, w):
        rng = random.Random(seed)
        pool = [t[ids[:, i]] for i, t in enumerate((a, b, c))]
        outputs = []
        for _ in range(4):
            kind = rng.choice(("cat", "rows", "stack"))
            parts = [rng.choice(pool) * rng.random() for _ in range(rng.randint(2, 4))]
            made = [rng.choice((torch.sin, lambda t: F.softmax(t, -1)))(t) for t in parts]
            dim = rng.randrange(2)
            whole = torch.stack(made, dim).flatten(0, 1) if kind == "stack" else None
            whole = torch.cat(made, 0 if kind == "rows" else dim) if whole is None else whole
            outputs.append(whole @ whole.t() if rng.random() < 0.5 else whole.cos())
            pool.append(rng.choice(made))
        return tuple(outputs)

    plan = planned(trace(fn, *given()), monkeypatch)
    got, wanted = run_plan(plan, given(seed)), listed(fn(*given(seed)))
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def shifted_products(a, b):
    """A cost volume: what stands between is pointwise, so the whole is no result."""
    wide = F.pad(b, (1, 1, 1, 1))
    parts = [(a * wide[:, i : i + 16, j : j + 24]).mean(0) for i in range(3) for j in range(3)]
    return F.leaky_relu(torch.stack(parts, 0), 0.1)


def many_inputs(*parts):
    return F.leaky_relu(torch.cat(parts, 1), 0.1)


@pytest.mark.parametrize(
    ("fn", "most"), [(shifted_products, 8), (shifted_products, 48), (many_inputs, 8)]
)
def test_many_parts_are_not_told_apart_at_each_point(fn, most, monkeypatch):
    """They are stored where they belong, or aten puts them there. Those that must be stored are
    also where a kernel could tell them apart."""
    monkeypatch.setattr(inlining, "FAST", {"cpu"})
    monkeypatch.setattr(facts, "FEW_PARTS", 4)
    monkeypatch.setattr(facts, "MANY_PARTS", most)
    inputs = list(torch.randn(9 if fn is many_inputs else 2, 4, 16, 24))
    plan = schedule_graph(trace(fn, *inputs), check=True)
    assert all(sum(type(n) is Store for n in k.body) in (1, 9) for k in kernels(plan))
    loads = [sum(type(n) is Load for n in k.body) for k in kernels(plan)]
    assert max(loads) < 20 and (fn is many_inputs or loads[-1] == 1)
    calls = [s.target for s in plan.steps if isinstance(s, ExternCall)]
    assert (torch.ops.aten.cat.default in calls) is (fn is many_inputs)
    torch.testing.assert_close(run_plan(plan, inputs), [fn(*inputs)])


def test_many_parts_on_a_cpu_are_stored_where_they_belong():
    """More than what loops in C are cut into: each point would tell them apart."""
    table = torch.randn(7, 32)

    def fn(x, y):
        one, other = (
            torch.cat([F.embedding(z[:, i], table) for i in range(40)], -1) for z in (x, y)
        )
        return one + other

    inputs = [torch.randint(7, (3, 40)), torch.randint(7, (3, 40))]
    plan = schedule_graph(trace(fn, *inputs), check=True)
    assert all(sum(type(n) is Load for n in k.body) <= 10 for k in kernels(plan))
    torch.testing.assert_close(run_plan(plan, inputs), [fn(*inputs)])
