"""Floats given to operators that are others at each call: two versions for all, and eager's
results, gradients and random numbers."""

import copy
import functools

import pytest
import torch
import torch.nn.functional as F
import torchsmith
import torchsmith_fx_backend
from torch import nn

LABELS = torch.tensor([0, 1, 2, 3, 3, 7])
SHARES = torch.linspace(0, 1, 48).view(6, 8)
WEIGHTS = torch.linspace(0.5, 1.5, 8)
SIGNS = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0, 1.0])
BY_ROW = SIGNS[:, None].expand(6, 8)


def batch_norm(x, v):
    mean, variance = torch.zeros(8), torch.ones(8)
    return F.batch_norm(x, mean, variance, training=True, momentum=v), mean, variance


PROGRAMS = {
    "label_smoothing": lambda x, v: F.cross_entropy(x, LABELS, label_smoothing=v),
    "shares": lambda x, v: F.cross_entropy(x, SHARES, WEIGHTS, label_smoothing=v),
    "no shares": lambda x, v: F.cross_entropy(x, SHARES, reduction="none", label_smoothing=v),
    "weights": lambda x, v: F.cross_entropy(x, LABELS, WEIGHTS, ignore_index=3, label_smoothing=v),
    "every loss": lambda x, v: F.cross_entropy(
        x.view(6, 2, 4), LABELS[:4].expand(6, 4) % 2, reduction="none", label_smoothing=v
    ),
    "dropout": lambda x, v: F.dropout(x, v) + 1,
    "dropout of columns": lambda x, v: F.dropout(x.t(), v) + 1,
    "two dropouts": lambda x, v: F.dropout(F.dropout(x, v) + 1, p=v / 2),
    "dropout in place": lambda x, v: F.dropout(x * 2, v, inplace=True),
    "dropout1d": lambda x, v: F.dropout1d(x, v),
    "dropout2d": lambda x, v: F.dropout2d(x.view(2, 3, 2, 4), v),
    "dropout3d": lambda x, v: F.dropout3d(x.view(2, 3, 2, 4), v),
    "alpha_dropout": lambda x, v: F.alpha_dropout(x, v, training=True),
    "alpha_dropout of channels": lambda x, v: F.feature_alpha_dropout(
        x.view(2, 3, 8), v, training=True
    ),
    "evaluation": lambda x, v: F.dropout(x, v, training=False) + 1,
    "batch_norm": batch_norm,
    "batch_norm's eps": lambda x, v: F.batch_norm(x, None, None, WEIGHTS, training=True, eps=v),
    "layer_norm": lambda x, v: F.layer_norm(x, (8,), WEIGHTS, SHARES[1], v * 1e-3),
    "rms_norm": lambda x, v: F.rms_norm(x, (8,), WEIGHTS, eps=v / 9),
    "group_norm": lambda x, v: F.group_norm(x.view(2, 4, 6), 2, eps=v),
    "instance_norm": lambda x, v: F.instance_norm(x.view(2, 3, 8), eps=v),
    "nearest": lambda x, v: F.interpolate(x.view(2, 3, 8), scale_factor=v * 2 + 0.45),
    "nearest-exact": lambda x, v: F.interpolate(
        x.view(1, 2, 3, 8), scale_factor=(1.5, v + 1), mode="nearest-exact"
    ),
    "linear": lambda x, v: F.interpolate(x.view(2, 3, 8), scale_factor=[v + 1.2], mode="linear"),
    "bilinear": lambda x, v: F.interpolate(
        x.view(1, 2, 4, 6), None, v * 3 + 0.5, "bilinear", False
    ),
    "trilinear": lambda x, v: F.interpolate(
        x.view(1, 2, 2, 3, 4), scale_factor=v + 1.5, mode="trilinear"
    ),
    "corners": lambda x, v: (
        F.interpolate(x.view(1, 2, 4, 6), scale_factor=2, mode="bilinear", align_corners=True) * v
    ),
    "sizes alone": lambda x, v: F.interpolate(
        x.view(1, 2, 4, 6), scale_factor=v + 1.2, mode="bicubic", recompute_scale_factor=True
    ),
    "attention": lambda x, v: F.scaled_dot_product_attention(x, x + 1, x, scale=v),
    "causal attention": lambda x, v: F.scaled_dot_product_attention(
        x[None, None], x[None, None], x[None, None], is_causal=True, scale=v
    ),
    "dropout in attention": lambda x, v: F.scaled_dot_product_attention(x, x + 1, x, None, v),
    "dropout in causal attention": lambda x, v: F.scaled_dot_product_attention(
        x[None], x[None], x[None], dropout_p=v, is_causal=True, scale=v + 1
    ),
    "dropout in masked attention": lambda x, v: F.scaled_dot_product_attention(
        x.view(2, 1, 3, 8), x.view(1, 2, 3, 8), x.view(2, 1, 3, 8), SHARES[:3, :3] > 0.01, v
    ),
    "dropout in grouped attention": lambda x, v: F.scaled_dot_product_attention(
        x.view(1, 2, 3, 8), x[:3].view(1, 1, 3, 8), x[3:].view(1, 1, 3, 8), None, v, enable_gqa=True
    ),
    "huber_loss": lambda x, v: F.huber_loss(x, SHARES, delta=v),
    "weighted huber_loss": lambda x, v: F.huber_loss(x, SHARES, delta=v, weight=SHARES),
    "smooth_l1_loss": lambda x, v: F.smooth_l1_loss(x, SHARES, beta=v, reduction="sum"),
    "margin_ranking_loss": lambda x, v: F.margin_ranking_loss(x, SHARES, BY_ROW, v),
    "hinge_embedding_loss": lambda x, v: F.hinge_embedding_loss(x, BY_ROW, v),
    "triplet_margin_loss": lambda x, v: F.triplet_margin_loss(x, SHARES, x.flip(0), v, swap=True),
    "cosine_embedding_loss": lambda x, v: F.cosine_embedding_loss(x, SHARES, SIGNS, v),
    "pad": lambda x, v: F.pad(x, (1, 2), value=v),
    "quantile": lambda x, v: torch.quantile(x, v, dim=1) + x.quantile(v),
    "bernoulli_": lambda x, v: torch.empty(6, 8).bernoulli_(v) * x,
    "uniform_": lambda x, v: torch.empty(6, 8).uniform_(-v, to=v) * x,
    "normal_": lambda x, v: torch.empty(6, 8).normal_(std=v) * x,
    "exponential_": lambda x, v: (x * 2).exponential_(v) * x,
    "normal": lambda x, v: torch.normal(0.0, v, (6, 8)) * x,
    "pow": lambda x, v: x.abs() ** v + v**x + x.abs().pow(-v),
    "lerp": lambda x, v: x.lerp(SHARES, v),
    "celu": lambda x, v: F.celu(x * 200, v),
}


def counted(**options):
    """A backend, and the list that grows by one at each compile."""
    made = []

    @functools.wraps(torchsmith_fx_backend.smith)
    def backend(gm, inputs, **named):
        made.append(gm)
        return torchsmith_fx_backend.smith(gm, inputs, **named, **options)

    return backend, made


def run(fn, x, v, gradient):
    """Results, gradient, and the random numbers that come next."""
    x = x.clone().requires_grad_(gradient)
    torch.manual_seed(3)
    found = fn(x, v)
    results = list(found) if isinstance(found, tuple) else [found]
    total = [r.cos().sum() for r in results if r.requires_grad]
    grads = torch.autograd.grad(sum(total), x) if total else ()
    return [*(r.detach() for r in results), *grads, torch.rand(2)]


@pytest.mark.parametrize(("dynamic", "gradient"), [(None, True), (True, False)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_float_has_no_version_of_its_own(name, dynamic, gradient):
    fn = PROGRAMS[name]
    torch.manual_seed(0)
    x = torch.randn(6, 8)
    backend, made = counted(rng="eager")
    compiled = torchsmith.compile(fn, backend=backend, dynamic=dynamic)
    for v in (0.05, 0.12, 0.37, 0.5, 0.98):
        want, got = run(fn, x, v, gradient), run(compiled, x, v, gradient)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5, check_stride=True)
    assert len(made) == (1 if dynamic else 2)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if "loss" in name or "share" in name])
def test_autocast_gives_results_of_its_type(name):
    def fn(x, v):
        with torch.autocast("cpu", torch.bfloat16):
            return PROGRAMS[name](x, v)

    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(0), dtype=torch.bfloat16)
    compiled = torchsmith.compile(fn)
    for v in (0.1, 0.2, 0.35):
        want, got = run(fn, x, v, True), run(compiled, x, v, True)
        torch.testing.assert_close(got, want, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear"])
def test_results_as_large_as_the_image_or_twice_as_large(mode):
    """There torch's kernels leave the scale out."""
    compiled = torchsmith.compile(lambda x, s: F.interpolate(x, scale_factor=s, mode=mode))
    for s in (1.3, 1.7, 1.04, 2.04, 2.3, 1.06, 2.0, 0.55):
        x = torch.randn(1, 2, 8)
        found = compiled(x, s)
        torch.testing.assert_close(found, F.interpolate(x, scale_factor=s, mode=mode))
        assert found.data_ptr() != x.data_ptr()  # a copy, also when it is as large


@pytest.mark.parametrize("p", [0.0, 1.0, 1, -0.1, 1.5])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x, p: F.dropout(x, p),
        lambda x, p: F.dropout(x, p, training=False),
        lambda x, p: F.dropout1d(x, p),
        lambda x, p: F.scaled_dot_product_attention(x, x, x, dropout_p=p),
        lambda x, p: F.alpha_dropout(x, p, training=True),
        lambda x, p: x.clone().bernoulli_(p),
        lambda x, p: F.cross_entropy(x, LABELS, label_smoothing=p),
        lambda x, p: x.quantile(p),
        lambda x, p: F.smooth_l1_loss(x, SHARES, beta=p),
        lambda x, p: F.triplet_margin_loss(x, SHARES, x.flip(0), p),
        lambda x, p: x.clone().normal_(0, p),
    ],
)
def test_the_ends_of_a_range_are_no_part_of_it(fn, p):
    """There functions take other paths or refuse: never by the version made for what is between."""
    torch.manual_seed(0)
    x = torch.randn(6, 8)
    compiled = torchsmith.compile(fn, options={"rng": "eager"})

    def outcome(f, v):
        torch.manual_seed(3)
        y = x.clone()
        try:
            result = f(y, v)
        except (ValueError, RuntimeError) as error:
            return type(error)
        return result.clone(), result is y, torch.rand(1)

    for v in (0.25, 0.5, 0.75, p, 0.3, p):
        want, got = outcome(fn, v), outcome(compiled, v)
        if isinstance(want, type):
            assert got is want
        else:
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_branches_on_such_a_float_are_guards():
    def fn(x, p):
        dropped = F.dropout(x, p)
        return dropped * 2 if p > 0.4 else dropped

    x = torch.ones(64)
    backend, made = counted(rng="eager")
    compiled = torchsmith.compile(fn, backend=backend)
    for p in (0.1, 0.2, 0.5, 0.3, 0.6, 0.39, 0.41):
        torch.manual_seed(0)
        want = fn(x, p)
        torch.manual_seed(0)
        assert torch.equal(compiled(x, p), want)
    assert len(made) == 3


def test_draws_by_key_take_the_probability_of_the_call():
    backend, made = counted()
    compiled = torchsmith.compile(lambda x, p: F.dropout(x, p), backend=backend)
    for p in (0.05, 0.2, 0.6, 0.95):
        x = torch.full((100, 1000), 2.0, requires_grad=True)
        y = compiled(x, p)
        kept = y.detach() != 0
        torch.testing.assert_close(y.detach()[kept], torch.full((kept.sum(),), 2 / (1 - p)))
        assert abs(kept.float().mean() - (1 - p)) < 0.01
        torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], y.detach() / 2)
    assert len(made) == 2


BATCH = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0))
MODULES = {
    "Dropout": (lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)), "p", (BATCH,)),
    "Dropout2d": (lambda: nn.Sequential(nn.Dropout2d()), "p", (BATCH[None],)),
    "TransformerEncoderLayer": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        "p",
        (BATCH,),
    ),
    "CrossEntropyLoss": (
        lambda: nn.CrossEntropyLoss(label_smoothing=0.1),
        "label_smoothing",
        (BATCH.view(8, 8)[:6], LABELS),
    ),
    "BatchNorm1d": (lambda: nn.Sequential(nn.BatchNorm1d(4)), "momentum", (BATCH,)),
    "SmoothL1Loss": (lambda: nn.SmoothL1Loss(), "beta", (BATCH, BATCH.flip(0))),
    "HuberLoss": (lambda: nn.HuberLoss(), "delta", (BATCH, BATCH.flip(0))),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", MODULES)
def test_what_is_scheduled_on_modules_of_torch(name, training):
    make, attribute, inputs = MODULES[name]
    torch.manual_seed(0)
    module = make().train(training)
    twin = copy.deepcopy(module)
    backend, made = counted(rng="eager")
    compiled = torchsmith.compile(twin, backend=backend)
    for v in (0.05, 0.12, 0.37, 0.98):
        found = []
        for each, fn in ((module, module), (twin, compiled)):
            for part in each.modules():
                if hasattr(part, attribute):
                    setattr(part, attribute, v)
            torch.manual_seed(3)
            x = inputs[0].clone().requires_grad_()
            y = fn(x, *inputs[1:])
            grads = torch.autograd.grad(y.cos().sum(), x)
            found.append([y.detach(), *grads, *(b.clone() for b in each.buffers())])
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
    assert len(made) <= 2


def divided_by_name(name):
    """A function of a tensor and a float that is called ``name``."""
    made = {}
    text = f"def f(x, {name}):\n    return (x / {name}).exp().sum(0) * x.shape[0] + {name} * 0.5"
    exec(text, made)
    return made["f"]


def divided_by_largest(x):
    largest = x.detach().abs().max().item()
    return x / largest * x.shape[0] + largest


def divided_by_two(x):
    high, low = x.detach().max().item(), x.detach().min().item()
    return (x - low) / (high - low) * x.shape[1]


def divided_in_loop(x):
    for _ in range(2):
        x = x / (x.detach().norm().item() + 1) + x.shape[0]
    return x


NAMED = {name: divided_by_name(name) for name in ("s0", "s1", "s0_", "zf0", "a0", "t0", "low")}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "fn", [*NAMED.values(), divided_by_largest, divided_by_two, divided_in_loop]
)
def test_floats_are_told_from_sizes_whatever_their_names(fn, dynamic):
    compiled = torchsmith.compile(fn, dynamic=dynamic)
    for n in (4, 5, 7, 3):
        x = torch.randn(n, n + 2, requires_grad=True)
        args = (x, n + 0.25) if fn in NAMED.values() else (x,)
        found, wanted = compiled(*args), fn(*args)
        torch.testing.assert_close(found, wanted)
        grads = [torch.autograd.grad(y.sum(), x)[0] for y in (found, wanted)]
        torch.testing.assert_close(*grads)


WHOLE = {dtype: torch.arange(4).to(dtype) for dtype in (torch.uint8, torch.int64, torch.float32)}
FROM_NUMBERS = {
    "of a size": lambda x, k: torch.arange(float(x.shape[0])),
    "of half a size": lambda x, k: torch.arange(x.shape[0] / 2),
    "up to a float": lambda x, k: torch.arange(0, k),
    "from a float": lambda x, k: torch.arange(k, 10),
    "by a float": lambda x, k: torch.arange(0, 10, k),
    "difference": lambda x, k: k - x,
    "rsub": lambda x, k: torch.rsub(x, k),
    "deviation": lambda x, k: torch.std(x * 1.0, correction=k),
    "of few": lambda x, k: torch.var(x * 1.0, correction=5),
}


@pytest.mark.parametrize("dtype", WHOLE)
@pytest.mark.parametrize("name", FROM_NUMBERS)
@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_types_that_numbers_give(name, dtype):
    fn = FROM_NUMBERS[name]
    compiled = torchsmith.compile(fn)
    for n, k in ((4, 1.5), (3, 2.5), (2, 5.5), (4, 0.5), (3, 4.25)):
        x = WHOLE[dtype][:n]
        torch.testing.assert_close(compiled(x, k), fn(x, k))


@pytest.mark.parametrize("affine", [True, False])
def test_an_average_of_all_batches_knows_no_empty_one(affine):
    """``momentum=None`` makes a factor that varies; an empty batch leaves the statistics alone."""
    ours, theirs = (nn.BatchNorm1d(4, momentum=None, affine=affine) for _ in range(2))
    compiled = torchsmith.compile(ours)
    for rows in (3, 0, 2, 0, 5):
        x = torch.arange(4.0 * rows).reshape(rows, 4)
        torch.testing.assert_close(compiled(x), theirs(x))
        torch.testing.assert_close(dict(ours.named_buffers()), dict(theirs.named_buffers()))
