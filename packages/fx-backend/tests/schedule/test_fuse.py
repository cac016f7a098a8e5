"""What becomes one kernel, what must not, and that results stay right."""

import math

import pytest
import torch
import torch.nn.functional as F
from plans import check, externs, graph_of, kernels, run_plan, trace
from torch._decomp import core_aten_decompositions
from torchsmith_fx_backend._src.codegen.triton.config import can_split
from torchsmith_fx_backend._src.loops import verify
from torchsmith_fx_backend._src.loops.index import const
from torchsmith_fx_backend._src.loops.ir import Op, Reduce
from torchsmith_fx_backend._src.schedule import fuse, inlining, schedule_graph, serial
from torchsmith_fx_backend._src.schedule.plan import Launch

DECOMPOSED = core_aten_decompositions()
TABLES = [pytest.param({}, id="composite"), pytest.param(DECOMPOSED, id="decomposed")]
X = torch.randn(2, 5, 16)
W, B = torch.randn(16), torch.randn(16)


def one_kernel(fn, *args, outputs=1, **kwargs):
    plan = check(fn, *args, **kwargs)
    assert len(kernels(plan)) == 1, [s.origins for s in plan.steps if isinstance(s, Launch)]
    (kernel,) = kernels(plan)
    assert sum(a.written for a in kernel.args) == outputs
    return kernel


def rms_norm(x, w):
    h = x.float()
    return w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


@pytest.mark.parametrize("table", TABLES)
def test_softmax_with_scale_and_mask(table):
    def fn(x, mask):
        return F.softmax(x / math.sqrt(8) + mask, -1)

    kernel = one_kernel(fn, torch.randn(2, 4, 6, 6), torch.randn(2, 1, 6, 6), decompose=table)
    assert sum(isinstance(n, Reduce) for n in kernel.body) == 2


@pytest.mark.parametrize("table", TABLES)
def test_layer_norm(table):
    one_kernel(lambda x, w, b: F.layer_norm(x, (16,), w, b), X, W, B, decompose=table)


@pytest.mark.parametrize("table", TABLES)
def test_residual_and_layer_norm_is_one_kernel_with_two_outputs(table):
    def fn(x, y, w, b):
        h = x + y
        return h, F.layer_norm(h, (16,), w, b)

    one_kernel(fn, X, X * 2, W, B, outputs=2, decompose=table)


def test_a_reduction_that_nothing_needs_leaves_no_axis():
    """Where the largest element lies does not matter among rows that are one row."""

    def fn(x):
        return x.gather(0, x.argmax(0, keepdim=True)) + 1

    kernel = one_kernel(fn, torch.randn(1, 16).expand(5, 16))
    assert kernel.reduce_from == len(kernel.ranges)


@pytest.mark.parametrize("shape", [(4,), (3, 4)])
def test_what_is_stored_along_a_reduction_that_nothing_needs_is_stored(shape):
    def fn(x):
        return torch.where(x != x.sum(-1, keepdim=True), x, x)

    for kernel in kernels(check(fn, torch.randn(shape))):
        assert kernel.reduce_from == len(kernel.ranges)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_residual_and_rms_norm(dtype):
    def fn(x, y, w):
        h = x + y
        return h, rms_norm(h, w)

    one_kernel(fn, X.to(dtype), X.to(dtype) * 2, W.to(dtype), outputs=2)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_mlp_piece(approximate):
    def fn(x, w1, w2):
        return F.gelu(x @ w1, approximate=approximate) @ w2

    plan = check(fn, X, torch.randn(16, 32), torch.randn(32, 16), tolerance=1e-4)
    assert len(kernels(plan)) == 1


def test_hand_written_gelu():
    def fn(x):
        return 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * torch.pow(x, 3))))

    one_kernel(fn, X)


def test_gated_mlp_piece():
    def fn(x, gate, up, down):
        return (F.silu(x @ gate) * (x @ up)) @ down

    plan = check(
        fn, X, torch.randn(16, 24), torch.randn(16, 24), torch.randn(24, 16), tolerance=1e-4
    )
    assert len(kernels(plan)) == 1


def test_gate_in_halves_of_one_product():
    def fn(x):
        gate, up = x.chunk(2, -1)
        return F.silu(gate) * up

    one_kernel(fn, X)


def test_rotary_embedding():
    def fn(q, cos, sin):
        q = q.view(2, 5, 2, 8).transpose(1, 2)
        turned = torch.cat((-q[..., 4:], q[..., :4]), -1)
        return q * cos + turned * sin

    one_kernel(fn, X, torch.randn(5, 8), torch.randn(5, 8))


def test_group_norm_splits_the_channel_axis():
    def fn(x, w, b):
        g = x.view(2, 4, -1)
        y = (g - g.mean(-1, keepdim=True)) * torch.rsqrt(
            g.var(-1, correction=0, keepdim=True) + 1e-5
        )
        return y.view(2, 8, 3, 3) * w.view(1, 8, 1, 1) + b.view(1, 8, 1, 1)

    one_kernel(fn, torch.randn(2, 8, 3, 3), torch.randn(8), torch.randn(8))
    one_kernel(
        lambda x, w, b: fn(x * 2, w, b), torch.randn(2, 8, 3, 3), torch.randn(8), torch.randn(8)
    )


def test_window_partition_joins_the_norm_before_it():
    def fn(x, w, b):
        h = F.layer_norm(x, (16,), w, b).view(1, 4, 4, 16).roll((-1, -1), (1, 2))
        h = h.view(1, 2, 2, 2, 2, 16).permute(0, 1, 3, 2, 4, 5).contiguous()
        return h.view(-1, 4, 16)

    one_kernel(fn, torch.randn(1, 16, 16), W, B, decompose={})


def normed(x, scale):
    return (x - 0.5) * scale[0] + scale[1] * 2 - scale[2]


SCALE = torch.rand(3, 1, 8, 1, 1)
POOLS = {
    # points of a window that see an element: nine, a quarter of nine, one
    "same size": (lambda y: F.avg_pool2d(y, 3, 1, 1, count_include_pad=False) - y, 2),
    "half the size": (lambda y: F.max_pool2d(y, 3, 2, 1), 1),
    "apart": (lambda y: F.avg_pool2d(y, 2), 1),
}


@pytest.mark.parametrize("name", POOLS)
def test_what_windows_would_do_again_many_times_is_stored(name):
    pool, launches = POOLS[name]
    plan = check(lambda x, scale: pool(normed(x, scale)), torch.randn(2, 8, 12, 12), SCALE)
    assert len(kernels(plan)) == launches


def test_one_relu_before_a_window_is_done_again():
    one_kernel(lambda x: F.max_pool2d(torch.relu(x), 3, 1, 1), torch.randn(2, 8, 12, 12))


@pytest.mark.parametrize("few", [True, False])
def test_long_bodies_are_not_walked_by_few_rows(few, monkeypatch):
    monkeypatch.setattr(serial, "ROWS", {"cpu": (4, 512)})

    def fn(x):
        y = F.avg_pool2d(x, 3, 1, 1, count_include_pad=False) + x
        return y, y.sum((1, 2, 3)), y.amax((1, 2, 3))

    plan = check(fn, torch.randn(2 if few else 8, 8, 12, 12))
    assert len(kernels(plan)) == (2 if few else 1)


def test_batch_norm_scale_is_not_a_kernel_of_its_own():
    def fn(x, w, b, m, v):
        scale = w * torch.rsqrt(v + 1e-5)
        shift = b - m * scale
        y = x * scale.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1)
        return torch.relu(y)

    c = [torch.rand(4) + 0.5 for _ in range(4)]
    one_kernel(fn, torch.randn(2, 4, 8, 8), *c)


def test_log_softmax_and_mean():
    one_kernel(lambda x: F.log_softmax(x, -1).mean(-1), X)


def test_two_norms_added_are_one_kernel():
    def fn(x, y, w):
        return rms_norm(x, w) + rms_norm(y, w)

    one_kernel(fn, X, torch.randn(2, 5, 16), W)


def test_siblings_that_read_the_same_values_share_a_kernel():
    one_kernel(lambda x: (x.sin(), x.cos()), X, outputs=2)
    one_kernel(lambda x: (x.exp(), x.sum(-1)), X, outputs=2)
    one_kernel(lambda x, y: ((x + y).exp(), (x * y).sin()), X, X + 1, outputs=2)


def test_rows_and_columns_do_not_share_for_a_scale():
    """A walk along the rows of one memory is one across the other's."""

    def fn(x, y, scale):
        return (x * scale.exp()).softmax(-1), (y.mT * scale.exp()).softmax(-1)

    x = torch.randn(96, 96)
    assert len(kernels(check(fn, x, x + 1, X[0, 0, :1], tolerance=1e-5))) == 2
    one_kernel(lambda x, y: (x.softmax(-1), (x * y).softmax(-1)), x, x + 1, outputs=2)


def test_different_reductions_do_not_share():
    plan = check(lambda x: (x.sum(-1), x.sum(0)), X)
    assert len(kernels(plan)) == 2


def test_no_cycle_through_an_extern():
    def fn(x, w):
        h = x.exp()
        return h + torch.mm(h, w)

    plan = check(fn, torch.randn(4, 4), torch.randn(4, 4), tolerance=1e-4)
    assert len(kernels(plan)) == 2


def test_no_cycle_through_two_externs():
    def fn(x, w):
        a, b = x.exp(), x.sin()
        m = torch.mm(a, w)
        n = torch.mm((b + m).cos(), w)
        return (a * n).tanh() + b

    check(fn, torch.randn(4, 4), torch.randn(4, 4) * 0.1, tolerance=1e-4)


def test_cheap_producers_are_recomputed_and_dear_ones_are_not():
    def fn(x, w, cheap):
        h = x.neg() if cheap else x.sin()
        return torch.mm(x, w) + h, torch.mm(w, x) * h

    square = torch.randn(8, 8)
    plan = check(lambda x, w: fn(x, w, True), square, square * 0.1, tolerance=1e-4)
    # No kernel only negates: each that does also reads a product.
    assert all(sum(a.read for a in k.args) >= 2 for k in kernels(plan))
    plan = check(lambda x, w: fn(x, w, False), square, square * 0.1, tolerance=1e-4)
    sines = sum(getattr(n, "op", None) is Op.SIN for k in kernels(plan) for n in k.body)
    assert sines == 1


def test_few_long_rows_are_not_walked_twice():
    plan = check(lambda x: x - x.sum(), torch.randn(1 << 17), tolerance=1e-3)
    assert len(kernels(plan)) == 2
    # What does not wait for a sum is walked with it.
    plan = check(lambda x: (x.sum(), x.cos().sum(), x + 1), torch.randn(1 << 17), tolerance=1e-3)
    assert len(kernels(plan)) == 1


@pytest.mark.parametrize("rows", [1, 3])
def test_rows_that_are_not_held_are_walked_a_few_times(rows):
    """What each walk computes again would grow with the square of their number."""

    def chain(x):
        for i in range(20):
            x = (x * 0.5 + i * 0.01).sin() + x.mean(-1, keepdim=True) * 0.1
        return x

    for size, held in ((600, True), (5000, False)):
        plan = check(chain, torch.randn(rows, size), tolerance=1e-5)
        levels = [max(verify.reduce_levels(kernel.body)) for kernel in kernels(plan)]
        assert sum(levels) >= 20 and (max(levels) <= serial.MOST_WALKS + 1) is not held


def test_rows_that_leave_a_gpu_idle_are_not_walked_twice(monkeypatch):
    x = torch.randn(64, 1 << 15)
    both = lambda x: x * x.sum(1, keepdim=True)  # noqa: E731
    assert len(kernels(check(both, x, tolerance=1e-3))) == 1
    monkeypatch.setattr(serial, "OTHERS", serial.ROWS["cuda"])
    assert len(kernels(check(both, x, tolerance=1e-3))) == 2
    assert len(kernels(check(both, x[:, : 1 << 14].clone(), tolerance=1e-3))) == 1


def test_columns_that_leave_a_gpu_idle_are_not_walked_twice(monkeypatch):
    """Statistics of channels-last images, sums of them, and concatenations of many of them."""

    def normal(x):
        away = x - x.mean((0, 2, 3), keepdim=True)
        return away * away.square().mean((0, 2, 3), keepdim=True).rsqrt()

    def chain(x, y):
        return normal(normal(x) + normal(y).relu())

    def many(*parts):
        return normal(torch.cat(parts, 1))

    images = [torch.randn(4, 8, 12, 12) for _ in range(10)]
    last = [x.contiguous(memory_format=torch.channels_last) for x in images]
    monkeypatch.setattr(serial, "COLUMNS", {"cpu": (128, 512)})
    monkeypatch.setattr(inlining, "FAST", frozenset({"cpu"}))
    for fn, number in ((normal, 1), (chain, 2), (many, 10)):
        rows = kernels(check(fn, *images[:number], tolerance=1e-3))
        assert not all(map(can_split, rows))
        columns = kernels(check(fn, *last[:number], tolerance=1e-3))
        assert all(map(can_split, columns))
    wide = [k for k in kernels(check(many, *last, tolerance=1e-3)) if len(k.args) > 10]
    assert len(wide) == 1


def test_dead_code_makes_no_kernel():
    def fn(x):
        x.exp().sum()
        return x + 1

    one_kernel(fn, X)


def test_square_transposes_are_not_confused():
    check(lambda x: x.exp() + x.exp().t(), torch.randn(6, 6))
    check(lambda x: (x.exp() + x.exp().t()).sum(0), torch.randn(6, 6))
    check(lambda x: F.softmax(x.exp().t(), -1) + F.softmax(x.exp(), -1), torch.randn(6, 6))


def test_unknown_operators_are_calls():
    plan = check(lambda x: torch.renorm(x * 2, 2, 0, 1.0) + 1, X)
    assert [str(e.target) for e in externs(plan)] == ["aten.renorm.default"]
    check(lambda x: torch.sort(x * 2, -1)[1] + 1, X)
    check(lambda x: torch.topk(x * 2, 3, -1), X)


def test_unsupported_dtypes_are_calls():
    z = torch.randn(4, dtype=torch.complex64)
    plan = check(lambda x: (x * 2).abs() + 1, z)
    assert {str(e.target) for e in externs(plan)} == {"aten.mul.Tensor", "aten.abs.default"}


def test_views_of_results_alias():
    def fn(x):
        y = x * 2
        return y, y.view(-1), y.transpose(0, 1)

    gm = trace(fn, X)
    y, flat, turned = run_plan(schedule_graph(gm), [X])
    assert y.data_ptr() == flat.data_ptr() == turned.data_ptr()


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: [(x * 2).view(-1)] * 2,
        lambda x: (lambda y: (y.view(-1), y.view(-1)))(x * 2),
        lambda x: (lambda y: (y.mT, y.mT, y.view(-1)))(x * 2),
        lambda x: (lambda y: (y, y.view_as(y), y.mT.mT))((x * 2).detach()),
    ],
    ids=["one", "flat", "turned", "equal"],
)
def test_each_result_is_the_tensor_that_it_is_in_eager(fn):
    wanted, found = fn(X), run_plan(schedule_graph(trace(fn, X)), [X])
    assert [[a is b for a in found] for b in found] == [[a is b for a in wanted] for b in wanted]
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)


def _block(x, w, n1, n2):
    h = x + torch.mm(rms_norm(x, n1), w)
    return h + torch.mm(F.gelu(torch.mm(rms_norm(h, n2), w)), w)


@pytest.mark.parametrize("layers", [2, 6])
def test_equal_layers_share_kernels(layers):
    def fn(x, w, n1, n2):
        for _ in range(layers):
            x = _block(x, w, n1, n2)
        return x

    plan = check(fn, torch.randn(8, 16), torch.randn(16, 16) * 0.1, W, B, tolerance=1e-4)
    assert len(set(kernels(plan))) == 5  # first norm, norm 1, norm 2, gelu, last add
    assert len(kernels(plan)) == 3 * layers + 1


def test_splits_that_an_extern_takes():
    gm = graph_of(torch.ops.aten.split.Tensor, torch.randn(6, 4), 2)
    x = torch.randn(6, 4)
    got = run_plan(schedule_graph(gm), [x])
    for mine, theirs in zip(got, x.split(2)):
        assert torch.equal(mine, theirs) and mine.data_ptr() == theirs.data_ptr()
    check(
        lambda x: torch.mm(x.split(2, 1)[1].contiguous(), x.unbind(0)[1].view(2, 2)),
        torch.randn(6, 4),
        tolerance=1e-4,
    )


def test_mixed_devices_of_scalars():
    check(lambda x, s: x * s + s, X, torch.tensor(2.5))


def test_views_in_a_row_of_planned_memory_are_one_call():
    def fn(x, w):
        return torch.mm(x, w).view(2, 4, 2, 8).transpose(1, 2)[:, 1:]

    plan = check(fn, torch.randn(8, 16), torch.randn(16, 16), tolerance=1e-4)
    assert [str(e.target) for e in externs(plan)] == ["aten.mm.default", "aten.as_strided.default"]
    x = torch.randn(50)[2:].view(6, 8)  # an input may start anywhere: its views stay views
    plan = check(lambda x: (x.view(2, 3, 8).transpose(0, 1), x + 1), x)
    assert all("as_strided" not in str(e.target) for e in externs(plan))


def test_small_neighbours_share_a_launch():
    def fn(x, y):
        return x.sigmoid(), y.erf()

    one_kernel(fn, X, X * 2, outputs=2)
    big = torch.randn(1 << 21)
    assert len(kernels(check(fn, big, big * 2, tolerance=1e-5))) == 2


LOW, WEIGHTS = torch.randn(8, 8).bfloat16(), [torch.randn(8, 8) for _ in range(4)]


def through(x, *ws):
    for w in ws:
        x = x @ w.bfloat16()
    return x


def results(x, *ws):
    products = [x @ w.t().bfloat16() for w in ws]
    return [p.float() for p in products]


def sums(x, *ws):  # what they read would be held
    return [(x @ w.t().bfloat16()).sum(0) for w in ws]


def awaited(x, *ws):
    y = x
    for w in ws:
        y = (y @ w.bfloat16()).float().bfloat16()
        y = y * 2
    return y


@pytest.mark.parametrize(
    ("fn", "dear", "cheap"), [(through, 1, 4), (results, 2, 5), (sums, 5, 8), (awaited, 5, 5)]
)
def test_where_a_launch_is_dear_kernels_of_free_order_share_one(monkeypatch, fn, dear, cheap):
    given = (LOW, *WEIGHTS)
    assert len(kernels(check(fn, *given, tolerance=0.1))) == cheap
    monkeypatch.setattr(fuse, "QUICK_LAUNCH", frozenset())
    assert len(kernels(check(fn, *given, tolerance=0.1))) == dear
    monkeypatch.setattr(fuse, "GATHERED_BYTES", 0)
    assert len(kernels(check(fn, *given, tolerance=0.1))) == cheap


def test_counters_share_a_launch_where_it_is_dear(monkeypatch):
    def fn(x, y, *counts):
        for count in counts[:3]:
            count.add_(1)
        z = torch.mm(x, y)
        counts[3].copy_(z.sum().long())  # which waits
        read = counts[4] * 2  # before it is counted
        counts[4].add_(1)
        return z, read

    given = X[0], X[1].t(), *(torch.zeros((), dtype=torch.int64) for _ in range(5))
    cheap = len(kernels(schedule_graph(trace(fn, *given))))
    monkeypatch.setattr(fuse, "QUICK_LAUNCH", frozenset())
    plan = schedule_graph(trace(fn, *given))
    assert len(kernels(plan)) < cheap
    results = run_plan(plan, given)
    assert [int(count) for count in given[2:]] == [1, 1, 1, int(results[0].sum()), 1]
    assert int(results[1]) == 0


def test_what_waits_for_its_launch_does_not_raise_the_peak(monkeypatch):
    monkeypatch.setattr(fuse, "QUICK_LAUNCH", frozenset())
    given = [torch.randn(256, 256) for _ in range(12)]

    def fn(x, *ws):  # eager holds one cast weight at a time
        for w in ws:
            x = x @ w.bfloat16()
        return x

    x = torch.randn(2, 256).bfloat16()
    assert len(kernels(check(fn, x, *given, tolerance=1))) == len(given)


def computed(kernel, *ops):
    return any(getattr(node, "op", None) in ops for node in kernel.body)


def test_tables_of_sines_are_computed_once_for_large_readers():
    def fn(x, angles):
        table = torch.cat((angles, angles), -1)
        cos, sin = table.cos(), table.sin()
        return x * cos + x.flip(-1) * sin

    x, angles = torch.randn(64, 16, 32), torch.randn(16, 16)
    made, read = kernels(check(fn, x, angles, tolerance=1e-5))
    assert computed(made, Op.SIN, Op.COS) and not computed(read, Op.SIN, Op.COS)


def test_what_is_small_beside_a_value_is_no_reason_to_store_it():
    def fn(x, labels):
        shifted = F.pad(labels, (0, 1), value=-1)[1:]
        kept = shifted.clamp_min(0)[:, None] == torch.arange(64)
        chosen = torch.where(kept & (shifted >= 0)[:, None], x.exp(), 0.0)
        return chosen.sum(1), F.pad(chosen, (3, 3))

    labels = torch.randint(-1, 64, (32,))
    plan = check(fn, torch.randn(32, 64), labels, tolerance=1e-5)
    assert all(a.dtype is not torch.bool for kernel in kernels(plan) for a in kernel.args)


def _blur(x):
    return x[:, 2:] + x[:, :-2] * 0.5 - x[:, 1:-1] * 0.25


STENCILS = {
    "padded": (lambda x: F.pad(_blur(x), (1, 1)), 3),
    "padded at both ends and scaled": (lambda x: F.pad(_blur(x) * 2 + 1, (1, 1)), 3),
    "rolled": (lambda x: x + x.roll(1, 1) * 0.5 + x.roll(-1, 1) + x.roll(2, 1), 3),
    "shrinking": (_blur, 3),
}


@pytest.mark.parametrize("name", STENCILS)
def test_steps_of_a_stencil_do_not_multiply(name):
    """Neighbours that are read are values of an earlier step: each recomputed one costs its own."""
    step, times = STENCILS[name]

    def fn(x):
        for _ in range(times):
            x = step(x)
        return x

    x = torch.randn(64, 80)
    once = sum(len(k.body) for k in kernels(check(step, x, tolerance=1e-4)))
    whole = sum(len(k.body) for k in kernels(check(fn, x, tolerance=1e-3)))
    assert whole <= 3 * times * once


def test_what_is_only_padded_is_computed_where_it_is_padded():
    def fn(x, y, w):
        p = (x - y).exp() * x.sigmoid().tanh() + y
        return F.pad(p, (0, 3)) @ w

    plan = check(fn, torch.randn(32, 61), torch.randn(32, 1), torch.randn(64, 8), tolerance=1e-4)
    (kernel,) = kernels(plan)
    assert computed(kernel, Op.EXP) and str(kernel.ranges[-1]) == str(const(64))


LARGE = torch.rand(64, 64) + 0.5


def test_a_function_on_its_own_is_left_to_the_library():
    """On a CPU, where a library's code for one function beats vectors that a compiler makes."""
    for name in ("exp", "log", "log2", "tanh", "sqrt"):
        plan = check(lambda x, fn=getattr(torch, name): fn(x.mm(x)), LARGE)
        targets = ["aten.mm.default", f"aten.{name}.default"]
        assert [str(s.target) for s in externs(plan)] == targets
    own = [torch.expm1, torch.sigmoid, torch.sin, torch.erf, lambda x: x.bfloat16().exp()]
    small, strided = (lambda x: x[:8].exp()), (lambda x: x[:, ::2].exp())
    fused = [lambda x: x.exp() * 2, lambda x: (x + 1).exp(), lambda x: x.exp().sum(-1)]
    for fn in [*own, small, strided, *fused]:
        assert not externs(check(fn, LARGE))


def test_what_is_written_back_is_no_call_and_a_copy():
    x = LARGE.clone()
    plan = schedule_graph(trace(lambda x: x.exp_(), x))
    assert len(kernels(plan)) == 1 and not externs(plan)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_powers_of_doubles_are_left_to_the_library(dtype):
    """Even between others: the C library has no vector code for them."""
    plan = check(lambda x: (x * 3) ** 0.7 + 1, LARGE.to(dtype))
    assert len(externs(plan)) == (dtype is torch.float64)
    assert not externs(check(lambda x: (x * 3) ** 0.7 + 1, LARGE[:4].to(dtype)))


@pytest.mark.parametrize(("rows", "launches"), [(8, 1), (64, 2)])
def test_small_tables_are_computed_once_unless_they_cost_nothing(rows, launches):
    """A vector may be computed in each reader; of a table each point of a row is another."""

    def costly(x, table):
        return (x + table.sigmoid()).softmax(-1)

    def cheap(x, table):
        return (x + table * 2).softmax(-1)

    x, table = torch.randn(16, rows, 128), torch.randn(rows, 128)
    assert len(kernels(check(costly, x, table))) == launches
    assert len(kernels(check(cheap, x, table))) == 1
