"""Random draws by key: repeatable, fused, the same numbers however they are computed."""

import re
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torchsmith_fx_backend import Settings, compile_graph
from torchsmith_fx_backend._src import graph_key, keyed
from torchsmith_fx_backend.errors import SettingError

STRICT = Settings(graph_cache=False, verify=True, strict=True)
X = torch.randn(64, 500)


def compiled(fn, *args, settings=STRICT):
    return compile_graph(fx.symbolic_trace(fn), args, settings)


def draw(run, *args, seed=3):
    torch.manual_seed(seed)
    return [run(*args) for _ in range(2)]


def seeds_of(seed, count):
    torch.manual_seed(seed)
    return keyed.seeds(count, torch.device("cpu"))


def test_the_seed_repeats_and_the_generator_advances():
    run = compiled(lambda x: (F.dropout(x, 0.25, True), torch.rand_like(x)), X)
    (a, b), (c, d) = draw(run, X), draw(run, X)
    for number in range(2):
        assert torch.equal(a[number], c[number]) and torch.equal(b[number], d[number])
        assert not torch.equal(a[number], b[number])
    assert not torch.equal(a[0], draw(run, X, seed=4)[0][0])


def test_dropout_is_one_kernel():
    run = compiled(lambda x: (F.dropout(x.relu(), 0.25, True) * 2,), X)
    assert len(run.kernels) == 1
    (y,) = draw(run, X)[0]
    kept = y != 0
    torch.testing.assert_close(y[kept], (X.relu() / 0.75 * 2)[kept])
    assert abs(float((y == 0)[X > 0].float().mean()) - 0.25) < 0.02


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_numbers_are_uniform(dtype):
    given = torch.zeros(400, 500, dtype=dtype)
    run = compiled(lambda x: (torch.rand_like(x), torch.rand_like(x)), given)
    x, other = (t.double() for t in draw(run, given)[0])
    assert float(x.min()) >= 0 and float(x.max()) < 1
    counts = torch.histc(x, 16, 0, 1) / x.numel()
    assert float((counts - 1 / 16).abs().max()) < 3e-3
    for a, b in ((x[:, 1:], x[:, :-1]), (x[1:], x[:-1]), (x, other)):
        assert abs(float(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1])) < 0.02


def test_fusion_changes_no_draw():
    alone = compiled(lambda x: (torch.rand_like(x),), X)
    within = compiled(lambda x: ((torch.rand_like(x) + x.sum(1, True)).t() * 2,), X)
    (plain,), (fused,) = draw(alone, X)[0], draw(within, X)[0]
    # A sum in another order differs in its last bits; another draw differs in its first.
    torch.testing.assert_close(fused, (plain + X.sum(1, True)).t() * 2, rtol=1e-4, atol=1e-4)


def test_kernels_compute_what_the_functions_do():
    run = compiled(
        lambda x: (
            *(torch.rand_like(x), torch.bernoulli(x, 0.3), torch.randn_like(x)),
            *(torch.randint_like(x, 2, 99), torch.rand_like(x.double())),
        ),
        X,
    )
    (u, b, n, i, d), seeds = draw(run, X)[0], seeds_of(3, 5)
    assert len(set(map(int, seeds))) == 5
    torch.testing.assert_close(n, keyed.normal(seeds[2], [64, 500], torch.float32))
    assert torch.equal(i, keyed.integers(seeds[3], [64, 500], torch.float32, 2, 99))
    assert torch.equal(d, keyed.uniform(seeds[4], [64, 500], torch.float64))
    assert torch.equal(u, keyed.uniform(seeds[0], [64, 500], torch.float32))
    assert torch.equal(b, keyed.bernoulli(seeds[1], [64, 500], torch.float32, 0.3))


def test_draws_of_equal_layers_have_the_same_kernels():
    def layers(depth):
        def fn(x, w):
            for _ in range(depth):
                x = F.dropout((x @ w).relu(), 0.3, True)
            return (x,)

        return fn

    w = torch.randn(500, 500) / 20
    runs = [compiled(layers(depth), X, w) for depth in (2, 6)]
    few, many = ({name for name, _ in run.kernels} for run in runs)
    assert few and few == many
    (first,), (second,) = draw(runs[1], X, w)
    assert not torch.equal(first, second)


NORMAL = {
    "randn": lambda x: torch.randn((x.size(0), 400)),
    "randn_like": lambda x: torch.randn_like(x),
    "normal": lambda x: (torch.normal(1.0, 3.0, (x.size(0), 400)) - 1) / 3,
    "normal_": lambda x: (x.clone().normal_(2, 0.5) - 2) * 2,
}


@pytest.mark.parametrize("name", NORMAL)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_numbers_are_normal(name, dtype):
    given = torch.zeros(300, 400, dtype=dtype)
    run = compiled(lambda x: (NORMAL[name](x), NORMAL[name](x)), given)
    assert set(re.findall(r"ops\.aten\.(\w+)", run.source)) <= {"randint", "detach"}  # the seed
    x, other = (t.double() for t in draw(run, given)[0])
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3)):
        assert abs(float((x**power).mean()) - moment) < 0.06
    assert 4 < float(x.abs().max()) < 7
    below = torch.tensor([float((x < at).double().mean()) for at in (-2.0, -1.0, 0.0, 1.0, 2.0)])
    torch.testing.assert_close(
        below, torch.special.ndtr(torch.tensor([-2.0, -1, 0, 1, 2])), atol=5e-3, rtol=0
    )
    for a, b in ((x[:, 1:], x[:, :-1]), (x[1:], x[:-1]), (x, other)):
        assert abs(float(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1])) < 0.02


def test_integers_fill_their_range():
    def fn(x):
        return (
            torch.randint(-3, 4, (x.size(0), 900)),
            torch.randint_like(x, 5),
            torch.randint(7, (x.size(0), 900), dtype=torch.int8),
        )

    run = compiled(fn, X)
    for drawn, (low, high), true in zip(draw(run, X)[0], ((-3, 4), (0, 5), (0, 7)), fn(X)):
        assert drawn.dtype is true.dtype and drawn.shape == true.shape
        counts = torch.bincount((drawn - low).flatten().long(), minlength=high - low)
        assert len(counts) == high - low
        assert float((counts / drawn.numel() * (high - low) - 1).abs().max()) < 0.05


def test_one_graph_draws_for_all_sizes():
    def fn(x):
        return torch.rand_like(x) + 1, torch.randn(x.shape[0], 7), F.dropout(x, 0.5, True)

    torch._dynamo.reset()
    run = torch.compile(fn, backend="smith", dynamic=True)
    for rows in (40, 50):
        mine, true = draw(run, X[:rows, :rows])[1], fn(X[:rows, :rows])
        assert [t.shape for t in mine] == [t.shape for t in true]
        assert all(
            torch.equal(a, b) for a, b in zip(mine, draw(run, X[:rows, :rows])[1], strict=True)
        )
        assert 1 <= float(mine[0].min()) < float(mine[0].max()) < 2


def test_layouts_and_dtypes_are_eagers():
    def fn(x):
        return (
            torch.rand_like(x),
            torch.rand_like(x.double()),
            F.dropout(x.half(), 0.5, True),
        )

    x = X.t()
    for mine, true in zip(compiled(fn, x)(x), fn(x)):
        assert (mine.dtype, mine.shape, mine.stride()) == (true.dtype, true.shape, true.stride())


def test_what_is_not_keyed_draws_eagers_stream():
    def fn(x):
        return (
            torch.randperm(x.size(0)),
            torch.bernoulli(x.sigmoid()),
            x.new_empty(9).exponential_(),
        )

    run = compiled(fn, X)
    for mine, true in zip(draw(run, X)[1], draw(fn, X)[1]):
        assert torch.equal(mine, true)


def test_one_kernel_that_cannot_be_built_draws_the_same(monkeypatch):
    run = compiled(lambda x: (F.dropout(x, 0.5, True),), X)
    from torchsmith_fx_backend._src.loops.registry import LOWERINGS

    monkeypatch.delitem(LOWERINGS, keyed.bernoulli)
    without = compiled(lambda x: (F.dropout(x, 0.5, True),), X)
    assert "keyed" in without.source
    torch.testing.assert_close(draw(without, X), draw(run, X))


def test_the_setting_is_checked_and_part_of_the_key():
    with pytest.raises(SettingError, match="rng"):
        Settings(rng="fast")
    gm = fx.symbolic_trace(lambda x: torch.rand_like(x))
    assert graph_key.of(gm, [X], "keyed") != graph_key.of(gm, [X], "eager")
    run = compiled(lambda x: (F.dropout(x, 0.5, True),), X, settings=Settings(rng="eager"))
    assert torch.equal(draw(run, X)[1][0], draw(lambda x: F.dropout(x, 0.5, True), X)[1])


def unused(x):
    skipped = torch.rand_like(x[0]) < 0.5  # noqa: F841 - nothing looks at it
    return x.sin() * torch.rand_like(x)


@pytest.mark.parametrize("grads", [False, True])
def test_a_draw_that_nothing_uses_is_drawn_only_where_it_moves_the_others(grads):
    x = X.clone().requires_grad_(grads)

    def alone(x):
        return x.sin() * torch.rand_like(x)

    keyed_draws = [draw(compiled(fn, x), x) for fn in (unused, alone)]
    exact = compiled(unused, x, settings=replace(STRICT, rng="eager"))
    for (first, last), (ours, our_last) in (keyed_draws, (draw(unused, x), draw(exact, x))):
        torch.testing.assert_close(first, ours)
        torch.testing.assert_close(last, our_last)


@pytest.mark.parametrize(
    "draws",
    [
        lambda x: (x.clone().random_(0, 5),),
        lambda x: (x.clone().random_(2, 9) + torch.rand_like(x), x.clone().random_(7)),
        lambda x: (x.new_empty(3).uniform_(2, 3), x.clone().random_(0, 5).int()),
    ],
)
def test_operators_whose_names_are_keywords(draws):
    exact = Settings(graph_cache=False, verify=True, strict=True, rng="eager")
    run = compiled(draws, X, settings=exact)
    for got, expected in zip(draw(run, X), draw(draws, X), strict=True):
        assert all(map(torch.equal, got, expected))
