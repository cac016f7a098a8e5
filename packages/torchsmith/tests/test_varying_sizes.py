"""Programs whose sizes are others at each call: two versions for all, with eager's results."""

import random
import re

import pytest
import torch
import torch.nn.functional as F
import torchsmith

FILTER = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))


def padded(sequences):
    longest = max(len(s) for s in sequences)
    return torch.stack([F.pad(s, (0, longest - len(s))) for s in sequences]) + 1


def cropped(sequences):
    shortest = min([s.size(0) for s in sequences])
    return torch.stack([s[:shortest] for s in sequences]) * 2


def window(name, **named):
    return lambda x: getattr(torch, name)(x.shape[-1], **named) * x


def filled(x):
    y = x * 2
    assert y.fill_diagonal_(3.0) is y
    return y


VECTORS = [(5,), (6,), (9,), (14,), (4,), (11,)]
IMAGES = [(2, 3, 8, 8), (3, 3, 9, 12), (4, 3, 12, 9), (5, 3, 16, 7), (2, 3, 5, 5)]
MATRICES = [(5, 5), (6, 9), (9, 6), (12, 12), (4, 7)]
SIZED = {
    "hann": (window("hann_window"), VECTORS),
    "hann of filters": (window("hann_window", periodic=False), VECTORS),
    "hamming": (window("hamming_window", dtype=torch.float64), VECTORS),
    "blackman": (window("blackman_window"), VECTORS),
    "bartlett": (window("bartlett_window"), VECTORS),
    "bartlett of filters": (window("bartlett_window", periodic=False), VECTORS),
    "logspace": (lambda x: torch.logspace(-1, 2, len(x)) * x, VECTORS),
    "logspace of base 2": (lambda x: torch.logspace(0, 3, len(x), base=2.0) * x, VECTORS),
    "fill_diagonal": (filled, MATRICES),
    "joined": (lambda x: torch.cat([x, x.sin(), x[1:], x * 2]) + 1, MATRICES),
    "joined columns": (lambda x: torch.cat([x.cos(), x, x[:, :3], x], -1) * 2, MATRICES),
    **{
        f"interpolate {mode}": (
            lambda x, mode=mode: F.interpolate(x, size=(x.shape[2] + 3, 10), mode=mode),
            IMAGES,
        )
        for mode in ("nearest", "bilinear", "bicubic", "area")
    },
}


def compared(fn, calls, limit, gradients=True):
    """Compare with eager, and count."""
    compiled = torchsmith.compile(fn)
    torchsmith.clear_metrics()
    for args in calls:
        sides = []
        for run in (fn, compiled):
            given = torch.utils._pytree.tree_map_only(
                torch.Tensor, lambda t: t.clone().requires_grad_(gradients), args
            )
            tensors = [t for t in torch.utils._pytree.tree_leaves(given) if torch.is_tensor(t)]
            result = run(*given)
            found = torch.autograd.grad(result.sin().sum(), tensors) if result.requires_grad else ()
            sides.append([result.detach(), *found])
        torch.testing.assert_close(*sides[::-1], rtol=1e-4, atol=1e-5, check_stride=True)
    metrics = torchsmith.metrics()
    assert len(metrics.frames) <= limit, [f.recompiled for f in metrics.frames]
    assert {g.outcome for g in metrics.graphs} == {"compiled"}


@pytest.mark.parametrize("name", SIZED)
def test_a_size_has_no_version_of_its_own(name):
    fn, sizes = SIZED[name]
    torch.manual_seed(0)
    compared(fn, [(torch.randn(size),) for size in sizes], 2)


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_a_size_to_interpolate_to_may_vary_alone(mode):
    torch.manual_seed(0)
    fn = lambda x, n: F.interpolate(x, size=n, mode=mode) + 1  # noqa: E731
    compared(fn, [(torch.randn(1, 2, 6, 6), n) for n in (9, 4, 7, 12, 5)], 2)


@pytest.mark.parametrize("fn", [padded, cropped])
@pytest.mark.parametrize("count", [3, 12])
def test_sizes_that_are_equal_by_chance_are_not_equal_for_good(fn, count):
    """Lists of sequences whose lengths are equal here and there, elsewhere at each call."""
    torch.manual_seed(0)
    lengths = random.Random(0)
    calls = [([torch.randn(lengths.randint(2, 9)) for _ in range(count)],) for _ in range(9)]
    compared(fn, calls, 4)


def test_sizes_that_are_always_equal_share_a_symbol():
    made = []

    def backend(gm, inputs):
        made.append([x for x in inputs if not isinstance(x, torch.Tensor)])
        return gm

    fn = torchsmith.compile(lambda x, y: x.cumsum(0) * y, backend=backend)
    for n in (3, 5, 8, 4):
        fn(torch.ones(n), torch.ones(n))
    assert len(made) == 2


def test_extremes_of_varying_numbers():
    def fn(x, a, b, c):
        return x * max(a, b, c) + min([a, b, c, 4]), max(a, b, c, key=lambda n: -n)

    compiled = torchsmith.compile(fn)
    torchsmith.clear_metrics()
    x = torch.ones(3)
    for a, b, c in ((2, 3, 4), (5, 6, 7), (9, 8, 2), (3, 11, 5), (-2, 4, 6)):
        want, got = fn(x, a, b, c), compiled(x, a, b, c)
        assert torch.equal(want[0], got[0])
        assert want[1] == got[1]
    for values in ((float("nan"), 1.0), (1.0, float("nan")), (2.0, 1.0), (1, 2.0), (2.0, 2)):
        of = torchsmith.compile(lambda x, v: (x + max(v), min(v)))
        eager = (x + max(values), min(values))
        found = of(x, values)
        torch.testing.assert_close(found, eager, equal_nan=True)
        assert type(found[1]) is type(eager[1])


def test_an_axis_that_is_cut_into_varying_parts():
    """As a series is folded by its period; one kernel for all of them."""

    def fn(x, period):
        cut = x.reshape(x.shape[0], x.shape[1] // period, period, x.shape[2])
        return (cut.permute(0, 3, 1, 2) * 2 + 1).sin()

    compiled = torchsmith.compile(fn)
    torchsmith.clear_metrics()
    x = torch.randn(4, 96, 24)
    for period in (8, 12, 6, 24, 32, 2):
        torch.testing.assert_close(compiled(x, period), fn(x, period))
    fixed, varying = torchsmith.metrics().graphs
    assert len(fixed.kernels) == len(varying.kernels) == 1


@pytest.mark.parametrize("fn", [torch.sum, lambda x: x.expand(3, *x.shape) + 1])
def test_what_saves_nothing_is_differentiated_again(fn):
    compiled = torchsmith.compile(fn, dynamic=True)
    for rows in (3, 5):
        x = torch.randn(rows, 4, requires_grad=True)
        results = compiled(x), fn(x)
        for _ in range(2):
            got, want = (torch.autograd.grad(result.sum(), x) for result in results)
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.huber_loss])
def test_the_mean_loss_of_no_elements(loss, dynamic, monkeypatch):
    monkeypatch.setenv("TORCHSMITH_STRICT", "1")
    fn = lambda x, y: loss(x[: x.shape[0] * 0], y[:0]) + loss(x, y)
    compiled = torchsmith.compile(fn, dynamic=dynamic)
    for rows in (4, 0, 3):
        x, y = torch.randn(rows, 8, requires_grad=True), torch.randn(rows, 8)
        got, want = (torch.autograd.grad(f(x, y), x) for f in (compiled, fn))
        torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize("pad", [(-3, 4), (4, -3), (-1, -2), (0, 0, -3, 1)], ids=str)
def test_no_more_is_cut_off_than_there_is(pad, dynamic):
    fn = lambda x: F.pad(x, pad) + 1
    compiled = torchsmith.compile(fn, dynamic=dynamic)
    for size in ((6, 8), (6, 5), (2, 2), (5, 7), (2, 3), (4, 2)):
        x = torch.randn(size)
        try:
            want = fn(x)
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match=re.escape(str(error))):
                compiled(x)
        else:
            torch.testing.assert_close(compiled(x), want)
