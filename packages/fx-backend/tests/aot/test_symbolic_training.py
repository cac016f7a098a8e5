"""Training at sizes that change: what each backward pass needs of a forward half made once."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import torchsmith_guards as guards
from torch import fx
from torch.utils.checkpoint import checkpoint
from torchsmith_fx_backend import Settings
from torchsmith_fx_backend._src import driver
from torchsmith_fx_backend._src.aot.training import Training
from torchsmith_fx_backend._src.driver import compile_training


def compiled(fn, *shapes, **options):
    """``fn`` for a first size of each input that may change."""
    mode = guards.FakeMode(guards.ShapeEnv())
    fakes = [
        mode.fakeify(torch.randn(*shape, requires_grad=wanted), guards.LocalSource(f"x{i}"), {0})
        for i, (shape, wanted) in enumerate(shapes)
    ]
    settings = Settings().with_options(**options)
    return compile_training(fx.symbolic_trace(fn), fakes, settings)


def of_rows(x, w):
    rows = x[:, 0].argsort()
    return (F.gelu(x[rows] @ w), w[rows % 3].sum(1, keepdim=True))


def of_widths(x, w):
    y = (x.unsqueeze(2) * w[:3].sum()).sum(2)
    return (y.view(x.shape[0] * 2, 2), w.square())


def of_means(x, w):
    y = x @ w[:4]
    return (y * (2.0 / x.shape[0]), F.mse_loss(y, x), y.sin().mean(0))


def of_codes(x, w):
    """A kernel that fuses in the backward pass may not run before the number that it reads."""
    y = x @ w
    code = w[(y.detach().unsqueeze(1) - w).square().sum(-1).argmin(1)]
    loss = F.mse_loss(code.detach(), y) * 0.25 + F.mse_loss(code, y.detach())
    return ((y + (code - y).detach()) @ w.T, loss)


def of_labels(x, w):
    """Losses of classes, where a row's labels end at the first -1; lines made longer."""
    y = x @ w
    labels = (x.detach() * 3).long().remainder(5) - 1
    ones = F.multilabel_margin_loss(y, labels, reduction="none")
    lines = F.interpolate(y.expand(2, y.shape[0], 4).permute(1, 2, 0), scale_factor=1.5)
    return (ones, F.multi_margin_loss(y, labels[:, 0].abs()), lines.view(x.shape[0], -1))


def of_images(x, w):
    """Images made larger, row by row and channels last, and smaller."""
    y = (x @ w).view(-1, 1, 2, 2) * w.view(1, 4, 2, 2)
    large = F.interpolate(y, (5, 4), mode="bilinear", align_corners=True)
    last = y.to(memory_format=torch.channels_last)
    small = F.interpolate(large, scale_factor=0.6, mode="bilinear")
    volume = F.interpolate(y.unsqueeze(1), (3, 3, 3), mode="trilinear")
    lines = F.interpolate(y.flatten(2), 7, mode="linear")
    seen = F.interpolate(last, scale_factor=2.0, mode="bilinear").permute(0, 2, 3, 1)
    return (large, seen * w[0], small, volume, lines, F.interpolate(y, (6, 6), mode="bicubic"))


LOSSES = {
    "of all": lambda outputs: sum(o.cos().sum() for o in outputs),
    "of sums": lambda outputs: sum(o.sum() for o in outputs),
    "of the first": lambda outputs: outputs[0].sum(),
    "of the second": lambda outputs: outputs[1].square().sum(),
}


@pytest.mark.parametrize("fn", [of_rows, of_widths, of_means, of_codes, of_labels, of_images])
def test_each_backward_pass_has_the_sizes_it_needs(fn):
    run = compiled(fn, ((6, 4), False), ((4, 4), True))
    for name, loss in LOSSES.items():
        for size in (6, 9):
            x, w = torch.randn(size, 4), torch.randn(4, 4)
            grads = []
            for f in (run, fn):
                given = w.clone().requires_grad_()
                loss(f(x, given)).backward()
                grads.append(given.grad)
            torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5, msg=name)


def gradients(f, loss, size):
    torch.manual_seed(size)
    x, w = torch.randn(size, 4), torch.randn(4, 4, requires_grad=True)
    loss(f(x, w)).backward()
    return w.grad


@pytest.mark.parametrize("fn", [of_rows, of_widths, of_means, of_codes])
def test_halves_of_all_sizes_come_from_the_cache(fn, monkeypatch, tmp_path):
    """A later process has other sizes first, and lowers neither half again."""
    monkeypatch.setenv("TORCHSMITH_CACHE_DIR", str(tmp_path))
    scheduled = []
    original = driver.schedule_graph
    spy = lambda *args, **more: (scheduled.append(args), original(*args, **more))[1]  # noqa: E731
    monkeypatch.setattr(driver, "schedule_graph", spy)
    for first, count in ((6, 2), (11, 2)):
        run = compiled(fn, ((first, 4), False), ((4, 4), True))
        for size in (first, 9, 5):
            mine, true = (gradients(f, LOSSES["of all"], size) for f in (run, fn))
            torch.testing.assert_close(mine, true, rtol=1e-4, atol=1e-5)
        assert len(scheduled) == count


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_mask_that_is_drawn_again_is_the_first_one(depth):
    def block(x, w):
        return F.dropout(x @ w, 0.5) @ w.T

    def fn(x, w):
        for _ in range(depth):
            x = x + checkpoint(block, x, w, use_reentrant=False)
        return (x,)

    mode = guards.FakeMode(guards.ShapeEnv())
    shapes = {"x": (6, 4), "w": (4, 4)}
    fakes = [
        mode.fakeify(torch.randn(*shape, requires_grad=True), guards.LocalSource(name), {0})
        for name, shape in shapes.items()
    ]
    run = compile_training(fn, fakes, Settings().with_options(rng="eager"))
    for size in (6, 9):
        x, w = torch.randn(size, 4), torch.randn(4, 4)
        sides = []
        for f in (run, fn):
            inputs = [x.clone().requires_grad_(), w.clone().requires_grad_()]
            torch.manual_seed(3)
            (y,) = f(*inputs)
            y.sin().sum().backward()
            sides.append([y.detach(), *(i.grad for i in inputs)])
        torch.testing.assert_close(*sides, rtol=1e-4, atol=1e-5)


def of_padded(x, w):
    """Saved values have sizes that no symbol can be read from."""
    whole = F.pad(x[:, 0], (0, -x.shape[0] % 4))
    low, high = whole[::2], whole[1::2]
    return torch.stack([(low - high).tanh() * w[0, 0], low + high], -1).flatten()


def of_columns(x, w):
    return torch.einsum("rc,cd->dr", x, w).t()


def of_windows(x, w):
    """Sizes that are quotients of products of quotients."""
    rows = x.reshape(x.shape[0], 4, 1).repeat(4, 2, 1).repeat(1, 1, 2)
    height = rows.shape[0]
    parts = rows.view(1, height // 4, 4, 2, 4, 2).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, 2)
    heads = parts.view(-1, parts.shape[0], 1, 16, 2) * w[0, 0]
    mixed = (heads.view(-1, 1, 16, 2).softmax(2) * w[0, 1]).reshape(-1, 4, 4, 2)
    batch = mixed.shape[0] // ((height // 4) * 2)
    whole = mixed.view(batch, height // 4, 2, 4, 4, -1).permute(0, 1, 3, 2, 4, 5)
    return whole.reshape(batch, height, 8, -1).roll(2, 1)[0, :, :, 0]


WAYS = {
    "contiguous": lambda y: (y * torch.ones_like(y).contiguous()).square().sum(),
    "expanded": lambda y: y.sum(),
    "by columns": lambda y: (y.movedim(0, -1).contiguous() * 2).square().sum(),
    "with gaps": lambda y: y.repeat_interleave(2, 0)[::2].square().sum(),
}


@pytest.mark.parametrize(
    "fn", [of_padded, of_columns, of_widths, of_windows], ids=lambda f: f.__name__
)
def test_one_backward_half_serves_all_sizes(fn, monkeypatch):
    made = []
    real = Training._compile_backward
    monkeypatch.setattr(
        Training, "_compile_backward", lambda self, *key: made.append(key) or real(self, *key)
    )
    run = compiled(fn, ((6, 4), True), ((4, 4), True))
    ways = WAYS if fn is of_columns else {"of all": LOSSES["of all"]}
    for name, loss in ways.items():
        before = len(made)
        for rows in (6, 10, 3, 17):
            grads = []
            for each in (fn, run):
                torch.manual_seed(rows)
                x, w = torch.randn(rows, 4, requires_grad=True), torch.randn(4, 4)
                given = (x, w.requires_grad_())
                out = each(*given)
                outputs = out if isinstance(out, tuple) else (out,)
                grads.append(torch.autograd.grad(loss(outputs if name == "of all" else out), given))
            for mine, eager in zip(*grads, strict=True):
                torch.testing.assert_close(mine, eager)
                assert mine.stride() == eager.stride()
        assert len(made) <= before + 1, made


def assert_same_gradients(run, fn, number):
    mine = torch.linspace(-2, 2, 6).requires_grad_()
    theirs = mine.detach().clone().requires_grad_()
    result, expected = run(mine, number), fn(theirs, number)
    torch.testing.assert_close(result, expected)
    result.sin().sum().backward()
    expected.sin().sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, f: x.clamp(-f, f) * x,
        lambda x, f: F.leaky_relu(x, f) + F.elu(x, f),
        lambda x, f: F.softplus(x, beta=f) * f,
        lambda x, f: torch.addcmul(x, x, x, value=f).add(x.sin(), alpha=f),
        lambda x, f: x.mul(f).add_(x, alpha=1 - f).div(f + 1),
        lambda x, f: torch.where(x > f, x * f, x.square()).sub(f).masked_fill(x < -f, f),
        lambda x, f: F.hardtanh(x, -f, f) + F.threshold(x, f, 0.0) * F.celu(x.detach(), f),
    ],
)
def test_numbers_that_a_backward_pass_keeps_stay_symbolic(fn):
    env = guards.ShapeEnv()
    x = guards.FakeMode(env).fakeify(torch.randn(6, requires_grad=True))
    f = env.create_symbol(0.25, guards.LocalSource("f"), "unspecified")
    run = compile_training(fx.symbolic_trace(fn), [x, f])
    for number in (0.25, 0.5, 1.5):
        assert_same_gradients(run, fn, number)
    assert "f == 0.25" not in {str(guard.expected) for guard in env.shape_guards()}


@pytest.mark.parametrize(
    "fn", [lambda x, n: x**n, lambda x, n: n**x, lambda x, n: torch.pow(x, n) + x.lerp(x.sin(), n)]
)
def test_whole_numbers_that_a_backward_pass_keeps_stay_symbolic(fn):
    env = guards.ShapeEnv()
    x = guards.FakeMode(env).fakeify(torch.randn(6, requires_grad=True))
    n = env.create_symbol(2, guards.LocalSource("n"))
    run = compile_training(fx.symbolic_trace(fn), [x, n])
    for number in (2, 3, 6):
        assert_same_gradients(run, fn, number)
