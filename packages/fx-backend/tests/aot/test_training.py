"""Graphs compiled for training do what eager does, in every way that a caller can see."""

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
import torchsmith_guards as guards
from composition.machines import Reference
from torch import fx
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torchsmith_fx_backend import Settings
from torchsmith_fx_backend._src.aot import attention
from torchsmith_fx_backend._src.aot.joint import Joint
from torchsmith_fx_backend._src.aot.partition import number_of_bytes
from torchsmith_fx_backend._src.driver import compile_training
from torchsmith_fx_backend.errors import StageError, UnsupportedError

SETTINGS = Settings(graph_cache=False, verify=True, strict=True)


pytestmark = pytest.mark.usefixtures("reference_machine")


def leaf(*size, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*size, generator=generator).to(dtype).requires_grad_()


def compiled(fn, *examples, **settings):
    return compile_training(fn, examples, SETTINGS.with_options(**settings))


@pytest.mark.parametrize("chosen", [None, 0, 1, 3])
def test_attention_takes_the_kernel_that_eager_chooses(chosen, monkeypatch, recwarn):
    """3 is a kernel that refuses these operands: another one that is allowed takes them."""
    monkeypatch.setattr(attention, "fused_attention_choice", lambda *args, **more: chosen)
    fn = lambda x: (F.scaled_dot_product_attention(x, x * 2, x.sin(), is_causal=True),)  # noqa: E731
    inputs = [leaf(1, 2, 8, 4)]
    run = compiled(fn, *inputs)
    ours, theirs = again(inputs), again(inputs)
    for given, f in ((ours, run), (theirs, fn)):
        f(*given)[0].square().sum().backward()
    close(ours[0].grad, theirs[0].grad)
    assert not [w for w in recwarn if "kernel" in str(w.message)]


def everywhere(q):
    return q.new_ones((), dtype=torch.bool).expand(2, 1, 4, 4)


def positions(q):
    return q.new_ones(4, dtype=torch.long).cumsum(0)


MASKS = {
    "nothing hidden": (everywhere, False),
    "causal": (lambda q: positions(q) <= positions(q)[:, None], False),
    "zeros": (lambda q: q.new_zeros(1, 1, 4, 4), False),
    "the next one, too": (lambda q: positions(q) <= positions(q)[:, None] + 1, True),
    "of values": (lambda q: everywhere(q) & (q.detach()[:, :1] < 9), True),
}


@pytest.mark.parametrize("rng", ["keyed", "eager"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("chosen", [None, 0, 2])
def test_masks_that_say_nothing_leave_attention_that_is_differentiated(
    name, dropout, rng, chosen, monkeypatch
):
    monkeypatch.setattr(attention, "fused_attention_choice", lambda *args, **more: chosen)
    make, masked = MASKS[name]
    calls = []

    def fn(x):
        q = x.transpose(1, 2)
        return (F.scaled_dot_product_attention(q, q * 2, q.sin(), make(q), dropout),)

    inputs = [leaf(2, 4, 2, 4)]
    with pytest.MonkeyPatch.context() as patch:
        call = attention.scaled_dot_product_attention
        spy = lambda *args, **more: calls.append(args) or call(*args, **more)  # noqa: E731
        patch.setattr(attention, "scaled_dot_product_attention", spy)
        run = compiled(fx.symbolic_trace(fn), *inputs, rng=rng)
    kept = calls[-1][3] is not None
    assert kept == (masked or (dropout > 0 and rng == "eager"))
    ours, theirs = again(inputs), again(inputs)
    mine, true = run(*ours)[0], fn(*theirs)[0]
    for given, result in ((ours, mine), (theirs, true)):
        result.square().sum().backward()
    same = torch.testing.assert_close if chosen == 0 else close  # 0 lays its result out otherwise
    if not dropout:
        same(mine.detach(), true.detach())
        same(ours[0].grad, theirs[0].grad)
    assert chosen == 0 or mine.stride() == true.stride()


def choose(query, key, value, mask, *rest, **more):
    """As eager on a GPU: scores are stored (0) where the mask's rows are not dense."""
    return 0 if mask is not None and mask.stride(-1) != 1 else 2


SPREAD = {
    "one value a row": lambda rows, table: rows[:, None, :, None].expand(2, 2, 4, 4),
    "one value a row, no batches": lambda rows, table: rows[0][:, None].expand(4, 4),
    "columns": lambda rows, table: table.t().expand(2, 1, 4, 4),
    "every batch its own": lambda rows, table: table.repeat(2, 1, 1, 1).mT,
}


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("rng", ["keyed", "eager"])
@pytest.mark.parametrize("name", SPREAD)
def test_masks_without_dense_rows_are_laid_out_for_fused_kernels(name, rng, dropout, monkeypatch):
    monkeypatch.setattr(attention, "fused_attention_choice", choose)
    masks, call = [], attention.scaled_dot_product_attention
    spy = lambda *args, **more: masks.append(args[3]) or call(*args, **more)  # noqa: E731
    monkeypatch.setattr(attention, "scaled_dot_product_attention", spy)

    def fn(x, rows, table):
        q = x.transpose(1, 2)
        mask = SPREAD[name](rows, table)
        return (F.scaled_dot_product_attention(q, q * 2, q.sin(), mask, dropout),)

    inputs = [leaf(2, 4, 2, 4), torch.randn(2, 4), torch.randn(4, 4)]
    run = compiled(fx.symbolic_trace(fn), *inputs, rng=rng)
    dense = all(m.stride(-1) == 1 for m in masks[-1:])
    assert dense == (not dropout or rng == "keyed")
    if dropout:
        return
    for seed in (1, 2):
        again_inputs = [leaf(2, 4, 2, 4, seed=seed), *inputs[1:]]
        ours, theirs = again(again_inputs), again(again_inputs)
        with sdpa_kernel(SDPBackend.MATH):
            mine, true = run(*ours)[0], fn(*theirs)[0]
        mine.square().sum().backward()
        true.square().sum().backward()
        close(mine.detach(), true.detach())
        close(ours[0].grad, theirs[0].grad)
        assert mine.stride() == true.stride()


@pytest.mark.parametrize("shared", [(2, 1), (1, 3), (1, 1)])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("needed", [False, True])
def test_keys_that_heads_share_by_broadcasting_take_a_fused_kernel(
    shared, needed, masked, monkeypatch
):
    def choose(q, k, v, mask, *rest, **more):
        return 2 if q.shape[:2] == k.shape[:2] == v.shape[:2] else 0

    monkeypatch.setattr(attention, "fused_attention_choice", choose)
    taken, call = [], attention.scaled_dot_product_attention
    spy = lambda *args, **more: taken.append(args) or call(*args, **more)  # noqa: E731
    monkeypatch.setattr(attention, "scaled_dot_product_attention", spy)

    def fn(q, k, v, mask):
        mask = mask if masked else None
        return (F.scaled_dot_product_attention(q.transpose(1, 2), k, v, mask),)

    mask = torch.ones(4, 4, dtype=torch.bool).tril()
    inputs = [leaf(2, 4, 3, 8), leaf(*shared, 4, 8, seed=1), leaf(*shared, 4, 8, seed=2), mask]
    inputs = inputs if needed else [t.detach() for t in inputs]
    run = compiled(fx.symbolic_trace(fn), *inputs)
    assert choose(*taken[-1]) == 2
    with sdpa_kernel(SDPBackend.MATH):
        ours, theirs = again(inputs), again(inputs)
        mine, true = run(*ours)[0], fn(*theirs)[0]
    close(mine.detach(), true.detach())
    assert mine.stride() == true.stride()
    if needed:
        mine.square().sum().backward()
        true.square().sum().backward()
        for one, other in zip(ours[:3], theirs[:3], strict=True):
            close(one.grad, other.grad)


LEADING = {
    "none": ((), ()),
    "batches alone": ((3,), (3,)),
    "windows of batches": ((2, 3, 2), (2, 3, 2)),
    "windows, a mask of heads": ((2, 3, 2), (2,)),
    "windows, a mask of all of them": ((2, 3, 2), (1, 1, 2)),
    "windows, a mask of batches": ((2, 3, 2), (2, 1, 1)),
    "six axes": ((2, 1, 3, 2), ()),
}


@pytest.mark.parametrize("needed", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", LEADING)
def test_operands_of_any_number_of_axes_take_a_fused_kernel(name, masked, needed, monkeypatch):
    lead, of_mask = LEADING[name]
    monkeypatch.setattr(
        attention, "fused_attention_choice", lambda q, *rest, **more: 2 if q.dim() == 4 else 0
    )
    taken, call = [], attention.scaled_dot_product_attention
    spy = lambda *args, **more: taken.append(args) or call(*args, **more)  # noqa: E731
    monkeypatch.setattr(attention, "scaled_dot_product_attention", spy)

    def fn(q, k, v, mask):
        return (
            F.scaled_dot_product_attention(q.mT.contiguous().mT, k, v, mask if masked else None),
        )

    sides = [leaf(*lead, n, width, seed=n) for n, width in ((4, 8), (5, 8), (5, 6))]
    inputs = [*sides, leaf(*of_mask, 4, 5, seed=3).detach()]
    inputs = inputs if needed else [t.detach() for t in inputs]
    run = compiled(fx.symbolic_trace(fn), *inputs)
    alone = masked and name == "windows, a mask of batches"  # it would have to be written out
    assert (taken[-1][0].dim() == 4) == (not alone)
    with sdpa_kernel(SDPBackend.MATH):
        ours, theirs = again(inputs), again(inputs)
        mine, true = run(*ours)[0], fn(*theirs)[0]
    close(mine.detach(), true.detach())
    assert mine.stride() == true.stride()
    if needed:
        mine.square().sum().backward()
        true.square().sum().backward()
        for one, other in zip(ours[:3], theirs[:3], strict=True):
            close(one.grad, other.grad)


def test_a_mask_without_elements_stays_as_it_is(monkeypatch):
    monkeypatch.setattr(attention, "fused_attention_choice", choose)

    def fn(x, row):
        mask = row[:, None, :, None].expand(0, 2, 4, 4)
        return (F.scaled_dot_product_attention(x, x * 2, x.sin(), mask),)

    inputs = [leaf(0, 2, 4, 4), torch.empty(1, 4)[:, :1].expand(0, 4)]
    run = compiled(fx.symbolic_trace(fn), *inputs)
    (result,) = run(*inputs)
    result.sum().backward()
    assert result.shape == inputs[0].grad.shape == (0, 2, 4, 4)


def test_a_mask_that_eager_refuses_is_not_left_out():
    def fn(q):
        return (F.scaled_dot_product_attention(q, q, q, q.new_zeros(1, 1, 4, 4).double()),)

    with pytest.raises((StageError, RuntimeError), match="dtype"):
        compiled(fx.symbolic_trace(fn), leaf(2, 2, 4, 4))


def test_a_mask_of_more_rows_than_queries_is_not_left_out(monkeypatch):
    """Without it the result would have other sizes."""
    masks, call = [], attention.scaled_dot_product_attention
    spy = lambda *args, **more: masks.append(args[3]) or call(*args, **more)  # noqa: E731
    monkeypatch.setattr(attention, "scaled_dot_product_attention", spy)

    def fn(k):
        mask = k.new_ones((), dtype=torch.bool).expand(4, 4)
        return (F.scaled_dot_product_attention(k[:, :, :1], k, k, mask),)

    compiled(fx.symbolic_trace(fn), leaf(2, 2, 4, 4))
    assert masks and None not in masks


def halves(run):
    """The compiled forward half, then the backward ones."""
    return [run.training.forward, *(half for half, _ in run.training.backwards.values())]


def again(inputs):
    """Equal inputs of their own."""
    return [
        x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x
        for x in inputs
    ]


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert (a is None) == (b is None)
    if a is not None:
        assert a.stride() == b.stride()


def no_grad_part(x, w):
    y = x * w
    before = torch.is_grad_enabled()
    torch._C._set_grad_enabled(False)
    scale = y.abs().amax()
    torch._C._set_grad_enabled(True)
    return (y / scale, scale)


def inner_write(x, w):
    y = x * 2
    y[0] = w[0] * 3
    y[:, 1].mul_(2)
    return (y.exp(), y)


def detached(x, w):
    y = x * w
    return (y.detach() + x, y.detach())


CASES = {
    "pointwise": lambda x, w: (F.gelu(x) * w.tanh(),),
    "linear": lambda x, w: (F.linear(x, w).relu().softmax(-1),),
    "norms": lambda x, w: (F.layer_norm(x, [4], w[0], w[1]), F.rms_norm(x, [4], w[2])),
    "reductions": lambda x, w: (x.var(), (x * w).mean(0), x.amax(1), w.logsumexp(0)),
    "attention": lambda x, w: (F.scaled_dot_product_attention(x[None], w[None], x[None] * w),),
    "loss": lambda x, w: (F.cross_entropy(x @ w, torch.tensor([0, 3, 1, 2])), F.mse_loss(x, w)),
    "indexing": lambda x, w: (x[torch.tensor([0, 2, 0])] * 2, w.gather(1, x.argsort(1))),
    "views": lambda x, w: ((x * w).t(), (x + w).view(2, 8), x.t(), w[1:3]),
    "views of one tensor": lambda x, w: (x * w).unbind(0),
    "the input itself": lambda x, w: (x, x * w, x),
    "no gradient": lambda x, w: (x.sign(), x > 0, w.detach()),
    "no_grad inside": no_grad_part,
    "detach": detached,
    "writes inside": inner_write,
    "convolution": lambda x, w: (F.conv1d(x[None], w[:, :, None]).relu(),),
    "double": lambda x, w: (x.double() @ w.double(), x.bfloat16() * w),
}


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients(name):
    fn = CASES[name]
    inputs = [leaf(4, 4), leaf(4, 4, seed=1)]
    run = compiled(fn, *inputs)
    assert hasattr(run, "training")
    ours, theirs = again(inputs), again(inputs)
    results = [(f(*given), given) for f, given in ((run, ours), (fn, theirs))]
    (mine, _), (true, _) = results
    assert len(mine) == len(true)
    for m, t in zip(mine, true):
        close(m.detach(), t.detach())
        assert (m.requires_grad, m._is_view()) == (t.requires_grad, t._is_view())
        assert m.dtype is t.dtype
    for outputs, _ in results:
        loss = sum((o.double() * o.double().cos()).sum() for o in outputs if o.requires_grad)
        if isinstance(loss, torch.Tensor):
            loss.backward()
    for m, t in zip(ours, theirs):
        close(m.grad, t.grad)


def test_undefined_tangents_leave_no_gradient():
    fn = lambda x, w: (x.exp(), w.log())  # noqa: E731
    inputs = [leaf(3), leaf(3, seed=1).detach().zero_().requires_grad_()]
    run = compiled(fn, *inputs)
    ours = again(inputs)
    run(*ours)[0].sum().backward()
    assert ours[1].grad is None  # zeros would be wrong, and NaN worse: 0 / 0
    close(ours[0].grad, ours[0].detach().exp())


@pytest.mark.parametrize(
    "tangent",
    [
        lambda y: torch.ones(()).expand(y.shape),
        lambda y: torch.randn(y.shape[::-1]).t(),
        lambda y: torch.randn(*y.shape, 2)[..., 0],
    ],
    ids=["expanded", "transposed", "stepped"],
)
@pytest.mark.parametrize(
    "fn",
    [lambda x: (x.sin() * 2,), lambda x: (x.sign().abs().log1p(),)],
    ids=["smooth", "flat: other layouts need what was not saved"],
)
def test_tangents_of_any_layout(fn, tangent):
    run = compiled(fn, leaf(3, 5))
    x = leaf(3, 5)
    torch.manual_seed(0)
    t = tangent(x)
    mine, true = (torch.autograd.grad(f(x)[0], x, t)[0] for f in (run, fn))
    torch.testing.assert_close(mine, true, rtol=1e-4, atol=1e-5)


def test_the_gradient_of_a_masked_tensor_is_laid_out_as_its_tangent():
    fn = lambda x: (x.masked_fill(x > 1, 2),)  # noqa: E731
    x = leaf(3, 5).detach().t().requires_grad_()
    run = compiled(fn, x)
    for t in (torch.ones(5, 3), torch.ones(3, 5).t()):
        close(*(torch.autograd.grad(f(x)[0], x, t)[0] for f in (run, fn)))


def _write_input(x, y):
    x.add_(1)


def _write_output(x, y):
    y.add_(1)


@pytest.mark.parametrize("write", [_write_input, _write_output])
@pytest.mark.parametrize(
    "fn",
    [lambda x: (x * x,), lambda x: (x.exp(),), lambda x: (x + 1,), lambda x: (x.clone().sin(),)],
    ids=["input saved", "output saved", "nothing saved", "copy saved"],
)
def test_writes_to_what_eager_saved_are_errors(fn, write):
    outcomes = []
    for f in (compiled(fn, leaf(3)), fn):
        x = leaf(3)
        (y,) = f(x)
        with torch.no_grad():
            write(x, y)
        try:
            y.sum().backward()
            outcomes.append(x.grad)
        except RuntimeError as error:
            outcomes.append("modified by an inplace operation" in str(error))
    assert type(outcomes[0]) is type(outcomes[1])
    if isinstance(outcomes[0], torch.Tensor):
        close(*outcomes)
    else:
        assert outcomes == [True, True]


def _assign(w):
    w.data = w.data * 3


def _assign_and_write(w):
    w.data = w.data * 3
    with torch.no_grad():
        w.add_(1)


@pytest.mark.parametrize("act", [_assign, _assign_and_write])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w: (x @ w,),
        lambda x, w: (F.linear(x, w),),
        lambda x, w: (x * w,),
        lambda x, w: (x * w.t(), x + w),
        lambda x, w: (F.gelu(x @ w[:2].t()),),
        lambda x, w: (x + w,),
    ],
    ids=["product", "linear", "itself", "view", "part", "not saved"],
)
def test_data_that_is_assigned_between_the_passes(fn, act):
    """A tensor that eager saved has what was assigned; a view of it has what there was before."""
    run = compiled(fn, leaf(4, 4), leaf(4, 4, seed=1))
    outcomes = []
    for f in (run, fn):
        x, w = leaf(4, 4), leaf(4, 4, seed=1)
        outputs = f(x, w)
        act(w)
        try:
            sum(y.square().sum() for y in outputs).backward()
            outcomes.append([x.grad, w.grad])
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
            outcomes.append([])
    assert len(outcomes[0]) == len(outcomes[1])
    for mine, true in zip(*outcomes):
        close(mine, true)


def test_a_second_backward_pass_needs_a_retained_graph():
    run = compiled(lambda x: (x.sin(),), leaf(3))
    x = leaf(3)
    y = run(x)[0].sum()
    y.backward(retain_graph=True)
    y.backward()
    close(x.grad, 2 * x.detach().cos())
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


def test_other_calls_run_as_captured():
    fn = lambda x, w: (x * w,)  # noqa: E731
    run = compiled(fn, leaf(3), leaf(3).detach())
    x, w = leaf(3).detach(), leaf(3, seed=1)
    run(x, w)[0].sum().backward()
    close(w.grad, x)
    with torch.no_grad():
        assert not run(leaf(3), x)[0].requires_grad


def test_batch_norm_updates_its_statistics_once():
    torch.manual_seed(0)
    module = torch.nn.BatchNorm1d(4)
    fn = lambda x, w, b, mean, var: (F.batch_norm(x.t(), mean, var, w, b, True, 0.1),)  # noqa: E731
    state = [p.detach().clone() for p in (module.weight, module.bias)]
    sides = []
    for f in (None, fn):
        x = leaf(4, 8)
        given = [x, *(p.clone().requires_grad_() for p in state), torch.zeros(4), torch.ones(4)]
        f = compiled(fn, *given) if f is None else f
        versions = [t._version for t in given]
        (f(*given)[0] ** 2).sum().backward()
        written = [t._version > v for t, v in zip(given, versions)]
        sides.append(([t.grad for t in given], given[3:], written))
    for mine, true in zip(sides[0][0] + sides[0][1], sides[1][0] + sides[1][1]):
        close(mine, true)
    assert sides[0][2] == sides[1][2]


def test_dropout_draws_eagers_stream_and_keeps_its_mask():
    fn = lambda x: (F.dropout(x * 2, 0.5, True).sin(), F.dropout(x, 0.3, True))  # noqa: E731
    run = compiled(fn, leaf(40), rng="eager")
    sides = []
    for f in (run, fn):
        torch.manual_seed(7)
        x = leaf(40)
        outputs = f(x)
        torch.rand(3)  # what is drawn between the passes changes nothing
        sum(o.sum() for o in outputs).backward()
        sides.append((*(o.detach() for o in outputs), x.grad))
    for mine, true in zip(*sides):
        close(mine, true)


def test_keyed_dropout_keeps_its_mask():
    run = compiled(lambda x: (F.dropout(x * 2, 0.25, True),), leaf(400))
    grads = []
    for _ in range(2):
        torch.manual_seed(7)
        x = leaf(400)
        (y,) = run(x)
        y.sum().backward()
        close(x.grad, (y.detach() != 0) * (2 / 0.75))
        grads.append(x.grad)
    assert torch.equal(*grads) and 60 < int((grads[0] == 0).sum()) < 140


@pytest.mark.parametrize("size", [(400,), (20, 1), (20, 20)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_of_a_gpu_is_a_loop_by_key(size, dtype):
    def fn(x):
        y = x.expand(20, 20) if x.dim() == 2 else x
        dropped, mask = torch.native_dropout(y, 0.25, True)
        return (dropped * 2, mask)

    x = leaf(*size, dtype=dtype)
    run = compiled(fn, x)
    torch.manual_seed(3)
    y, mask = run(x)
    expected = (x.detach().double() * mask * 2 / 0.75).to(dtype)
    torch.testing.assert_close(y.detach(), expected, rtol=1e-2, atol=1e-3)
    assert y.stride() == fn(x)[0].stride() and mask.dtype is torch.bool
    assert 60 < int((~mask).sum()) < 140
    y.sum().backward()
    slope = torch.where(mask, 2 / 0.75, 0.0).to(dtype)
    expected = slope.sum(1, keepdim=True) if size == (20, 1) else slope
    torch.testing.assert_close(x.grad, expected, rtol=2e-2, atol=1e-3)
    assert all("native_dropout" not in half.source for half in halves(run))


def test_keyed_dropout_has_one_mask_in_both_passes():
    run = compiled(lambda x: (F.dropout(x, 0.5, True),), torch.ones(200).requires_grad_())
    for seed in (0, 1):
        torch.manual_seed(seed)
        x = torch.ones(200).requires_grad_()
        (y,) = run(x)
        y.sum().backward()
        close(x.grad, y.detach())
        assert 0 < int((y == 0).sum()) < 200


def test_hooks_and_saved_tensor_hooks_run():
    run = compiled(lambda x: (x.sin() * x,), leaf(5))
    packed, seen = [], []
    x = leaf(5)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: packed.append(t.shape) or t.clone(), lambda t: t
    ):
        (y,) = run(x)
    y.register_hook(lambda g: seen.append(g.clone()) or g * 2)
    x.register_hook(lambda g: seen.append(g.clone()))
    y.sum().backward()
    assert packed
    close(seen[0], torch.ones(5))
    close(x.grad, 2 * (x.detach().cos() * x.detach() + x.detach().sin()))


def test_autocast_is_in_the_graph_once():
    fn = lambda x, w: (F.linear(x, w).float().relu(),)  # noqa: E731
    with torch.autocast("cpu", torch.bfloat16):
        run = compiled(fn, leaf(4, 4), leaf(4, 4, seed=1))
    sides = []
    for f in (run, fn):
        inputs = [leaf(4, 4), leaf(4, 4, seed=1)]
        with torch.autocast("cpu", torch.bfloat16):
            (y,) = f(*inputs)
        y.sum().backward()
        sides.append((y.detach(), *(i.grad for i in inputs)))
    for mine, true in zip(*sides):
        close(mine, true)


class GivenBack(torch.autograd.Function):
    """A derivative of the user's own between an input and a view of it."""

    @staticmethod
    def forward(ctx, x):
        return x.view(-1)

    @staticmethod
    def backward(ctx, grad):
        return grad * 7


@pytest.mark.parametrize(
    "program",
    [
        lambda x: (GivenBack.apply(x),),
        lambda x: (GivenBack.apply(x * 2)[1:],),
        lambda x: (GivenBack.apply(x).view(2, 2).t(),),
    ],
)
def test_a_view_by_an_autograd_function_keeps_its_derivative(program):
    x = leaf(4)
    try:
        (y,) = compiled(program, leaf(4))(x)
    except UnsupportedError as error:
        assert "autograd function" in str(error)
        return
    y.sum().backward()
    want = leaf(4)
    program(want)[0].sum().backward()
    assert torch.equal(x.grad, want.grad)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w: (x.mul_(2), w * 3),
        lambda x, w: (torch.fft.fft(x).real * w,),
    ],
    ids=["written input", "complex"],
)
def test_what_is_not_differentiated_here_says_so(fn):
    try:
        run = compiled(fn, leaf(4), leaf(4, seed=1).detach())
    except UnsupportedError as error:
        assert "not compiled" in str(error)
        return
    x = leaf(4)
    run(x, torch.ones(4))[0].sum().backward()
    assert x.grad is not None


def test_parameters_of_the_graph_itself_get_gradients():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.arange(4.0))

        def forward(self, x):
            return (x * self.weight,)

    model = fx.symbolic_trace(Model())
    run = compiled(model, leaf(4))
    for _ in range(2):
        run(leaf(4))[0].sum().backward()
    close(model.weight.grad, 2 * leaf(4).detach())
    model.weight = torch.nn.Parameter(torch.ones(4))
    close(run(leaf(4))[0].detach(), leaf(4).detach())


def test_nothing_is_kept_alive_after_the_backward_pass():
    run = compiled(lambda x, w: ((x * w).exp().sin(),), leaf(8), leaf(8))
    x, w = leaf(8), leaf(8)
    (y,) = run(x, w)
    watched = [weakref.ref(t) for t in (x, y)]
    y.sum().backward()
    del x, y
    gc.collect()
    assert [r() for r in watched] == [None, None]


def mlp(x, a, b, g):
    h = F.layer_norm(x, [16], g)
    return (x + F.linear(F.gelu(F.linear(h, a)), b),)


@pytest.mark.parametrize("budget", [0.0, 0.5, 1.0])
def test_no_more_is_saved_than_eager_saves(budget):
    inputs = [leaf(8, 16), leaf(64, 16, seed=1), leaf(16, 64, seed=2), leaf(16, seed=3)]
    run = compiled(mlp, *inputs, memory_budget=budget)
    sizes = []
    for f in (run, mlp):
        saved = {}
        own = {x.untyped_storage().data_ptr() for x in inputs}

        def pack(t, saved=saved):
            saved[t.untyped_storage().data_ptr()] = (t.untyped_storage().nbytes(), t)
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            f(*inputs)
        sizes.append(sum(n for p, (n, _) in saved.items() if p not in own))
    assert sizes[0] <= sizes[1]


def test_the_budget_is_monotonic():
    inputs = [leaf(8, 16), leaf(64, 16, seed=1), leaf(16, 64, seed=2), leaf(16, seed=3)]
    saved = []
    for budget in (0.0, 0.3, 0.7, 1.0):
        training = compiled(mlp, *inputs, memory_budget=budget).training
        saved.append(sum(number_of_bytes(v) for v in training._given.values()))
    assert saved == sorted(saved)
    assert saved[0] < saved[-1]


def residual_stack(depth):
    def run(x, *weights):
        for weight in weights[:depth]:
            x = x + torch.tanh(F.linear(F.layer_norm(x, (16,)), weight))
        return (x,)

    return run


class Widths(Reference):
    """Notes how many tensors each kernel takes."""

    def __init__(self):
        super().__init__()
        self.found = []

    def kernel(self, kernel, tensors, symbols):
        self.found.append(len(tensors))
        super().kernel(kernel, tensors, symbols)


def test_what_a_layer_reads_again_does_not_grow_with_the_depth():
    widest = []
    for depth in (6, 18):
        inputs = [leaf(8, 16), *(leaf(16, 16, seed=n) for n in range(depth))]
        machine = Widths()
        with machine.installed():
            run = compiled(residual_stack(depth), *inputs)
            loss = run(*inputs)[0].square().sum()
            loss.backward()
        widest.append(max(machine.found))
    assert widest[1] <= widest[0]


def test_symbolic_sizes_compile_once():
    env = guards.ShapeEnv()
    mode = guards.FakeMode(env)
    fakes = [
        mode.fakeify(leaf(6, 4), guards.LocalSource("x"), {0}),
        mode.fakeify(leaf(4, 4, seed=1), guards.LocalSource("w"), set()),
    ]

    def fn(x, w):
        y = F.linear(x, w).softmax(-1)
        return (y.view(x.shape[0] * 2, 2), y.sum(0))

    gm = fx.symbolic_trace(fn)
    run = compiled(gm, *fakes)
    for size in (6, 9, 5):
        sides = []
        for f in (run, fn):
            x, w = leaf(size, 4), leaf(4, 4, seed=1)
            a, b = f(x, w)
            (a.sin().sum() + b.cos().sum()).backward()
            sides.append((a.detach(), b.detach(), x.grad, w.grad))
        for mine, true in zip(*sides):
            close(mine, true)


COMPLEX = {
    "transform": lambda x, w: (torch.fft.fft(x).abs(), w * 2),
    "transform and back": lambda x, w: (torch.fft.irfft(torch.fft.rfft(x) * 2j) * w,),
    "divided by a number": lambda x, w: ((torch.complex(x, w) / (1 + 2j)).real * 2,),
    "product": lambda x, w: ((torch.complex(x, w) @ torch.complex(w, -x)).imag * 2,),
    "conjugate": lambda x, w: ((torch.complex(x, w).conj() * torch.polar(x.abs(), w)).real * 2,),
    "pairs": lambda x, w: (torch.view_as_real(torch.view_as_complex(x * w).exp()) * 2,),
}


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_numbers_inside(name):
    size = (4, 2) if name == "pairs" else (4, 4)
    run = compiled(COMPLEX[name], leaf(*size), leaf(*size, seed=1))
    sides = []
    for f in (run, COMPLEX[name]):
        inputs = [leaf(*size), leaf(*size, seed=1)]
        sum((o * o.cos()).sum() for o in f(*inputs)).backward()
        sides.append([i.grad for i in inputs])
    for mine, true in zip(*sides):
        close(mine, true)


def test_a_fault_while_dividing_is_a_fault_of_a_stage(monkeypatch):
    def broken(self, strides):
        raise IndexError("broken")

    monkeypatch.setattr(Joint, "backward", broken)
    with pytest.raises(StageError, match="broken"):
        compiled(lambda x: (x.sin(),), leaf(3))


class Products(TorchDispatchMode):
    """How many of some storages live at each matrix product."""

    def __init__(self, storages):
        super().__init__()
        self.storages, self.counts = storages, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.mm.default, torch.ops.aten.mm.out):
            self.counts.append(sum(not s.expired() for s in self.storages))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("known", [True, False])
def test_a_backward_pass_frees_what_it_has_read(known):
    """All that is saved lives on where the graph is retained, and for tangents that are laid out
    in a way that the graph was not compiled for, less and less is left, too."""

    def fn(x, *weights):
        for weight in weights:
            x = torch.tanh(x @ weight)
        return (x,)

    inputs = [leaf(8, 8, seed=n) for n in range(7)]
    run = compiled(fn, *inputs)
    run(*inputs)[0].sum().backward() if known else None
    tangent = torch.randn(8, 8) if known else torch.randn(8, 8).t()

    def living(retain):
        result = run(*inputs)[0]
        saved = {t.untyped_storage().data_ptr(): t for t in result.grad_fn.saved_tensors}
        given = {x.untyped_storage().data_ptr() for x in (*inputs, result)}
        mode = Products(
            [StorageWeakRef(t.untyped_storage()) for p, t in saved.items() if p not in given]
        )
        del saved
        with mode:
            result.backward(tangent, retain_graph=retain)
        return mode.counts

    kept, freed = living(True), living(False)
    assert freed[-1] <= 1 < freed[0] == max(freed)
    assert set(kept) == {freed[0]}
    wanted = again(inputs)
    fn(*wanted)[0].backward(tangent)
    for x in inputs:
        x.grad = None
    run(*inputs)[0].backward(tangent)
    for ours, theirs in zip(inputs, wanted, strict=True):
        close(ours.grad, theirs.grad)


def test_autograd_calls_the_backward_pass_itself():
    """Torch's own class between them looks for another name of it in each pass."""
    fn = lambda x: (x.sin() * x.cos(),)  # noqa: E731
    x = leaf(4)
    run = compiled(fn, x)
    for _ in range(3):  # most of its calls are differentiated once
        run(x)
    for _ in range(2):
        (result,) = run(x)
        (first,) = torch.autograd.grad(result.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        close(first.detach(), (2 * x).cos().detach())
        close(second, (-2 * (2 * x).sin()).detach())
    (result,) = run(x)
    result.sum().backward()
    with pytest.raises(RuntimeError, match="second time") as raised:
        result.sum().backward()
    files = {str(entry.path) for entry in raised.traceback}
    assert any(file.endswith("aot/training.py") for file in files)
    assert not any(file.endswith("autograd/function.py") for file in files)
