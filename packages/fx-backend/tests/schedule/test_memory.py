"""Buffers: layouts, in place, reuse, frees, written inputs, and the peak against eager."""

import math

import pytest
import torch
import torch.nn.functional as F
from plans import check, externs, kernels, run_plan, trace
from torchsmith_fx_backend._src import by_rows
from torchsmith_fx_backend._src.loops import canonical
from torchsmith_fx_backend._src.loops.index import Const
from torchsmith_fx_backend._src.loops.verify import read_before
from torchsmith_fx_backend._src.passes import padding
from torchsmith_fx_backend._src.schedule import schedule_graph
from torchsmith_fx_backend._src.schedule.facts import Facts
from torchsmith_fx_backend._src.schedule.fuse import Fuser
from torchsmith_fx_backend._src.schedule.memory import eager_peak
from torchsmith_fx_backend._src.schedule.plan import Allocate, ExternCall, Free, Launch
from torchsmith_fx_backend._src.schedule.scheduler import POLICIES, Policy, plan_with

A, W = torch.randn(8, 8), torch.randn(8, 8) * 0.1


def allocations(plan):
    return [s for s in plan.steps if isinstance(s, Allocate)]


def test_pointwise_runs_in_place_on_a_dying_result():
    plan = check(lambda x, w: torch.mm(torch.mm(x, w).relu() + 1, w), A, W, tolerance=1e-4)
    (kernel,) = kernels(plan)
    assert [a.inplace for a in kernel.args] == [True]
    (allocation,) = allocations(plan)
    assert allocation.reuse is not None


def test_levels_are_counted_once_however_many_inputs_die(monkeypatch):
    counted = []
    monkeypatch.setattr(
        canonical, "read_before", lambda *given: counted.append(given[0]) or read_before(*given)
    )

    def fn(x, w):
        parts = [torch.mm(x, w * i).softmax(-1) for i in range(1, 9)]
        return sum(torch.mm(part, w) for part in parts).softmax(-1)

    check(fn, A, W, tolerance=1e-4)
    assert len(counted) == len({id(body) for body in counted}) > 0


H, V = torch.randn(2, 3, 8), torch.randn(8, 6)


@pytest.mark.parametrize(
    ("fn", "layouts", "calls"),
    [
        (lambda h, v: h.sin().view(6, 8) @ v, [(8, 1)], ["mm"]),
        (lambda h, v: v @ h.sin().view(6, 8), [(8, 1)], ["mm"]),
        (lambda h, v: h.cos().view(6, 8) @ v.sin().t().t(), [(8, 1), (6, 1)], ["mm"]),
        (lambda h, v: h.cos().view(6, 8).t() @ v.sin().t(), [(1, 8), (1, 6)], ["mm"]),
        # Two layouts: one of them is a view; and none is what a caller gets as it is.
        (
            lambda h, v: (
                (b := h.sin()).view(6, 8) @ v,
                v @ b.view(6, 8),
                b.view(6, 8).t() @ v.t(),
            ),
            [(8, 1)],
            ["mm", "mm", "as_strided", "t", "mm"],
        ),
        (lambda h, v: ((b := h.sin()), b.view(6, 8) @ v), [(24, 8, 1)], ["view", "mm"]),
        (
            lambda h, v: ((b := h.sin()).sum(1), b[:, 1:].exp()),
            [(24, 8, 1), (8, 1), (16, 8, 1)],
            [],
        ),
        # A part is no layout of the whole.
        (lambda h, v: h.sin()[0] @ v, [(24, 8, 1)], ["select", "mm"]),
    ],
)
def test_buffers_have_the_layout_that_calls_view_them_in(fn, layouts, calls):
    plan = check(fn, H, V, decompose={}, tolerance=1e-4)
    assert [tuple(n.value for n in s.layout.stride) for s in allocations(plan)] == layouts
    assert [s.target._opname for s in externs(plan)] == calls


def test_what_only_kernels_touch_takes_a_tensor_over_as_it_is():
    def fn(h, v):
        return (h.view(6, 8) @ v).view(2, 3, 6).softmax(2).sum(1)

    over, out = allocations(check(fn, H, V, tolerance=1e-4))
    assert over.as_is
    assert over.layout.size == (Const(6), Const(6))
    assert out.reuse is None


def test_inputs_and_outputs_are_never_taken_over():
    def fn(x, w):
        y = torch.mm(x, w)
        return y, y.relu(), x.exp()

    x = A.clone()
    gm = trace(fn, x, W)
    run_plan(schedule_graph(gm), [x, W])
    assert torch.equal(x, A)
    plan = check(fn, A, W, tolerance=1e-4)
    assert not any(a.inplace for k in kernels(plan) for a in k.args)


CAPPED = {
    "in place": (lambda y: (y / 3).tanh() * 3, True),
    "other type": (lambda y: y.float().tanh(), False),
    "shifted": (lambda y: y.flip(0) + 1, False),
    "returned": (lambda y: (y, y.tanh()), False),
    "view returned": (lambda y: (y[1:], y.tanh()), False),
}


@pytest.mark.parametrize("name", CAPPED)
def test_a_product_by_rows_is_memory_of_its_own(name, monkeypatch):
    """What it was computed from dies with it, and what follows may take it over."""
    monkeypatch.setattr(padding, "_pays", lambda *sizes: True)
    monkeypatch.setattr(padding, "_MANY", 1)
    monkeypatch.setattr(padding, "_LAUNCH", 0)
    cap, inplace = CAPPED[name]

    def fn(x, w):
        return cap(F.linear(x.sin(), w))

    x, w = (torch.randn(size).bfloat16() for size in ((24, 16), (17, 16)))
    for _ in range(2):
        gm = trace(fn, x, w)
        padding.AlignedProducts("cpu").run(gm.graph)
        assert gm.graph.find_nodes(op="call_function", target=by_rows.product)
        plan = schedule_graph(gm)
        results = [t for t in run_plan(plan, [x, w]) if isinstance(t, torch.Tensor)]
        wanted = fn(x, w)
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        torch.testing.assert_close(results, list(wanted), rtol=2e-2, atol=2e-2)
        assert [t.stride() for t in results] == [t.stride() for t in wanted]
        names = [call.results[0] for call in externs(plan) if call.results]
        assert any(a.reuse in names for a in allocations(plan)) is inplace
        sine = allocations(plan)[0].name
        free = plan.steps.index(Free(sine))
        assert isinstance(plan.steps[free - 1], ExternCall)  # dropped right behind the product


def test_shifted_read_is_not_in_place():
    plan = check(lambda x, w: torch.mm(torch.mm(x, w).flip(0) + 1, w), A, W, tolerance=1e-4)
    assert not any(a.inplace for k in kernels(plan) for a in k.args)


def test_norm_in_place_keeps_the_residual_apart():
    def fn(x, y, w):
        h = torch.mm(x, w) + y
        z = F.softmax(h, -1)
        return torch.mm(z, w) + h

    check(fn, A, A * 2, W, tolerance=1e-4)


def test_dead_buffers_become_out_arguments():
    def fn(x, w):
        for _ in range(4):
            x = torch.mm(torch.mm(x, w).flip(0), w)
        return x

    plan = check(fn, A, W, tolerance=1e-4)
    assert any(isinstance(s, ExternCall) and s.out for s in plan.steps)


def test_every_temporary_is_freed_once_and_outputs_never():
    def fn(x, w):
        y = torch.mm(x, w).exp()
        z = torch.mm(y, w).view(4, 16).sin()
        return z.sum(1), z

    plan = check(fn, A, W, tolerance=1e-4)
    freed = [s.name for s in plan.steps if isinstance(s, Free)]
    assert len(freed) == len(set(freed))
    made = {s.name for s in allocations(plan)}
    made |= {r for e in externs(plan) for r in e.results if r is not None}
    kept = {o.name for o in plan.outputs}
    assert made - set(freed) == kept
    assert not kept & set(freed)


def test_names_are_not_used_after_free():
    """``run_plan`` deletes freed names, so a later use raises; a deep graph exercises it."""

    def fn(x, w):
        outs = []
        for k in range(6):
            y = torch.mm(x, w).relu()
            x = F.layer_norm(x + y, (8,)) * (k + 1)
            outs.append(y.transpose(0, 1))
        return x, outs[2], outs[4]

    check(fn, A, W, tolerance=1e-4)


def test_copy_writes_the_input():
    def fn(x, w):
        y = torch.mm(x, w)
        x.copy_(y.sin() + x)
        return y

    x = A.clone()
    gm = trace(fn, x, W)
    assert any(n.target is torch.ops.aten.copy_.default for n in gm.graph.nodes)
    plan = schedule_graph(gm)
    mine = A.clone()
    (y,) = run_plan(plan, [mine, W])
    torch.testing.assert_close(mine, torch.mm(A, W).sin() + A)
    torch.testing.assert_close(y, torch.mm(A, W))
    assert not [e for e in externs(plan) if "copy_" in str(e.target)]


def test_copy_waits_for_every_reader_of_the_input():
    def fn(x, w):
        y = x.sin()
        z = torch.mm(y, w)
        u = torch.mm(x, w)
        x.copy_(y)
        return z + u

    gm = trace(fn, A.clone(), W)
    mine = A.clone()
    (got,) = run_plan(schedule_graph(gm), [mine, W])
    torch.testing.assert_close(mine, A.sin())
    torch.testing.assert_close(got, torch.mm(A.sin(), W) + torch.mm(A, W))


def test_copy_of_a_shuffled_input_goes_through_a_temporary():
    for shuffle in (lambda x: x.flip(0), lambda x: x.t(), lambda x: x - x.sum(0)):

        def fn(x):
            x.copy_(shuffle(x))
            return x + 1

        mine = A.clone()
        (got,) = run_plan(schedule_graph(trace(fn, A.clone(), decompose={})), [mine])
        torch.testing.assert_close(mine, shuffle(A))
        torch.testing.assert_close(got, shuffle(A) + 1)


def test_copy_that_broadcasts_casts_and_strides():
    def fn(x):
        x.copy_(torch.arange(8))
        return x * 2

    base = torch.zeros(8, 8).t()
    mine = torch.zeros(8, 8).t()
    (got,) = run_plan(schedule_graph(trace(fn, base)), [mine])
    assert torch.equal(mine, torch.arange(8.0).expand(8, 8))
    assert torch.equal(got, mine * 2)


def test_returned_written_input_is_the_input():
    gm = trace(lambda x: x.add_(1), A.clone())
    (copy,) = [n for n in gm.graph.nodes if n.target is torch.ops.aten.copy_.default]
    (output,) = [n for n in gm.graph.nodes if n.op == "output"]
    output.args = ((copy,),)
    mine = A.clone()
    (got,) = run_plan(schedule_graph(gm), [mine])
    assert got is mine
    torch.testing.assert_close(mine, A + 1)


def peak_of(fn, *args):
    facts = Facts(trace(fn, *args))
    peak, _ = plan_with(facts, POLICIES[0])
    return peak, eager_peak(facts)


def test_eager_peak_counts_live_results():
    # Both temporaries of a chain live while the second is made; views and inputs count nothing.
    _, eager = peak_of(lambda x: x.exp().view(-1).sin(), A)
    assert eager == 2 * A.numel() * 4


def test_fusion_lowers_the_peak():
    ours, eager = peak_of(lambda x: ((x + 1).exp() * x.sin()).sum(), torch.randn(64, 64))
    assert ours < eager / 10


def test_peak_is_never_above_eager():
    """Fusing a sum of dead inputs with a far reader would keep the inputs; it is not done."""

    def fn(x, w):
        total = None
        parts = []
        for _ in range(4):
            a, b = torch.mm(x, w), torch.mm(w, x)
            parts.append((a.flip(0) + b.flip(1)))
        deep = x
        for _ in range(3):
            deep = torch.mm(deep, w)
        for part in parts:
            total = part if total is None else total + part
        return total + deep

    x = torch.randn(256, 256) * 0.1
    gm = trace(fn, x, x)
    facts = Facts(gm)
    plan = schedule_graph(gm)
    live = peak = 0
    sizes = {}
    for step in plan.steps:
        if isinstance(step, Allocate):
            if step.reuse is None:
                sizes[step.name] = 256 * 256 * 4
            else:
                sizes[step.name] = sizes.pop(step.reuse)
        elif isinstance(step, ExternCall) and step.out is None:
            sizes[step.results[0]] = 256 * 256 * 4
        elif isinstance(step, Free):
            sizes.pop(step.name, None)
        live = sum(sizes.values())
        peak = max(peak, live)
    assert peak <= eager_peak(facts)
    (got,) = run_plan(plan, [x, x])
    torch.testing.assert_close(got, fn(x, x), rtol=1e-4, atol=1e-4)


def test_launches_keep_to_eager_order_between_externs():
    facts = Facts(trace(lambda x, w: torch.mm(x.exp(), w).sin(), A, W))
    kinds = ["nest" if u.nest is not None else "call" for u in Fuser(facts).run()]
    assert kinds == ["nest", "call", "nest"]


def test_plan_has_no_steps_for_identity():
    plan = schedule_graph(trace(lambda x: x, A))
    assert not [s for s in plan.steps if isinstance(s, (Launch, ExternCall))]


def _there_and_back(x, wide, narrow):
    """The first and the last product are of one size; between them is a larger one."""
    first = torch.mm(x, x)
    second = torch.mm(torch.mm(first, narrow), wide)
    return torch.mm(torch.mm(torch.mm(second, wide.t()), narrow.t()).flip(0), narrow)


def held(plan, inputs):
    """Most bytes that a run of ``plan`` holds at once beyond its inputs, step by step."""
    now = peak = 0
    sizes = {}
    for step in plan.steps:
        before = sum(sizes.values())
        if isinstance(step, Allocate):
            count = math.prod(n.value for n in step.layout.size)
            sizes[step.name] = count * step.layout.dtype.itemsize
            if step.reuse is not None:
                del sizes[step.reuse]
        elif isinstance(step, ExternCall) and step.out is None and step.target not in VIEWS:
            (name,) = step.results
            sizes[name] = inputs[name]
        elif isinstance(step, Free):
            sizes.pop(step.name, None)
        now = sum(sizes.values())
        peak = max(peak, now, before)
    return peak


VIEWS = (torch.ops.aten.t.default, torch.ops.aten.as_strided.default)


def test_dead_buffers_wait_where_the_peak_is_no_higher():
    x, wide, narrow = torch.randn(64, 64), torch.randn(8, 128), torch.randn(64, 8)
    gm = trace(_there_and_back, x, wide, narrow)
    values = ((n.name, n.meta["val"]) for n in gm.graph.nodes if n.op == "call_function")
    sizes = {name: value.numel() * value.element_size() for name, value in values}
    wanted = _there_and_back(x, wide, narrow)
    found = {}
    for limit in (0, 1 << 30):
        peak, plan = plan_with(Facts(gm), Policy(), limit)
        assert peak == held(plan, sizes)
        found[limit] = peak, sum(a.reuse is not None for a in allocations(plan))
        (got,) = run_plan(plan, [x, wide, narrow])
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-2)
    eager = eager_peak(Facts(gm))
    assert found[0][0] <= eager < found[1 << 30][0]
    assert found[0][1] < found[1 << 30][1]  # the first product's buffer did not wait for the last
    _, plan = plan_with(Facts(gm), Policy(), eager)
    assert held(plan, sizes) <= eager
