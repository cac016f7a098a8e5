"""From the front door to a GPU and back: memory that begins anywhere, and recorded calls."""

import warnings

import pytest
import torch
import torch.nn.functional as F
import torchsmith
from torchsmith_fx_backend._src import modes

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="runs on a GPU")


@pytest.fixture(autouse=True)
def fresh():
    torchsmith.reset()
    torchsmith.clear_metrics()
    modes.not_recorded.cache_clear()


def close(got, want, wide=None):
    wide = wide or (4e-2 if want.dtype.itemsize == 2 else 1e-4)
    torch.testing.assert_close(got, want, rtol=wide, atol=wide)


def rows(x):
    return F.layer_norm(x.sin() * 2 + x, (x.shape[-1],)), x.amax(0)


def written(x):
    x.mul_(2)
    return (x + 1,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fn", [rows, written])
def test_inputs_that_begin_anywhere(fn, dtype):
    compiled = torchsmith.compile(fn)
    for offset in (0, 1, 3, 0):
        base = torch.randn(64 * 128 + 5, device="cuda").to(dtype)
        mine, theirs = base.clone(), base.clone()
        parts = [t[offset : offset + 64 * 128].view(64, 128) for t in (mine, theirs)]
        with torch.no_grad():
            for got, want in zip(compiled(parts[0]), fn(parts[1]), strict=True):
                close(got, want)
        close(mine, theirs)
    assert {g.outcome for g in torchsmith.metrics().graphs} == {"compiled"}


def of_packed_rows(x, weight):
    x = x.permute(0, 2, 3, 1)
    y = F.layer_norm(x, (x.shape[-1],), weight) + (x * 2).softmax(-1) + x.log_softmax(2)
    return F.group_norm(y.permute(0, 3, 1, 2), 4, weight)


def of_biases(x, weight):
    kernel = weight[:, None, None, None] * weight[None, :, None, None]
    x = F.conv2d(x, kernel.expand(8, 8, 3, 3), weight, padding=1).relu()
    x = F.conv2d(x, kernel[:, :1], weight * 2, groups=8)
    return F.conv_transpose2d(x.sin(), kernel.expand(8, 8, 2, 2), weight, stride=2)


def of_labels(x, weight):
    kernel = (weight[:, None, None, None] * weight[None, :, None, None]).expand(8, 8, 3, 3)
    x = F.conv2d(F.conv2d(x, kernel, padding=1).relu(), kernel, padding=1)
    labels = torch.arange(240, device=x.device).view(4, 12, 5) % 8
    return F.cross_entropy(x, labels) + F.cross_entropy(x, labels, reduction="none").square()


def of_sums(x, weight):
    where = torch.arange(480, device=x.device) * 7 % 8
    rows = x.permute(1, 0, 2, 3).flatten(1)[where]
    sums = torch.zeros_like(rows[:12]).index_add(0, where % 12, rows.sin())
    at = where[:12, None].expand(-1, 240) + torch.arange(12, device=x.device)[:, None] % 4
    return sums.scatter_add(0, at, sums * 2) * weight[where].sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fn", [of_packed_rows, of_biases, of_labels, of_sums])
def test_against_float64(fn, dtype):
    torch.manual_seed(0)
    x = torch.randn(4, 8, 12, 5, device="cuda").to(dtype)
    weight = torch.randn(8, device="cuda").to(dtype)

    def results(fn, kind):
        given = [t.to(kind, copy=True).requires_grad_() for t in (x, weight)]
        with torch.no_grad():
            alone = fn(*given)
        result = fn(*given)
        result.square().sum().backward()
        return alone, result.detach(), *(t.grad for t in given)

    exact, mine = results(fn, torch.float64), results(torchsmith.compile(fn), dtype)
    for got, theirs, right in zip(mine, results(fn, dtype), exact, strict=True):
        assert got.stride() == theirs.stride()
        assert torch.equal(got.isfinite(), theirs.isfinite())
        error, usual = ((each - right).norm() / right.norm() for each in (got, theirs))
        assert error.isnan() or error <= 1.2 * usual + (1e-3 if dtype is torch.bfloat16 else 1e-6)


def recorded(fn, calls, *, says):
    """Call ``fn`` in the mode that records, with new data each time; results outlive the calls."""
    compiled, kept = torchsmith.compile(fn, mode="reduce-overhead"), []
    with warnings.catch_warnings(record=True) as said, torch.no_grad():
        warnings.simplefilter("always")
        for _ in range(calls):
            mine = torch.randn(64, 128, device="cuda")
            theirs = mine.clone()
            kept.append((mine, theirs, compiled(mine), fn(theirs)))
    for mine, theirs, got, want in kept:
        close(mine, theirs)
        for ours, true in zip(got, want, strict=True):
            close(ours, true)
    texts = [str(w.message) for w in said if "[TS-B008]" in str(w.message)]
    assert len(texts) == says
    assert torchsmith.metrics().counter("recordings", "skipped") == says
    return texts


def test_replayed_calls_are_right():
    recorded(rows, 5, says=0)


def test_a_call_that_writes_its_argument_is_replayed_too():
    compiled = torchsmith.compile(written, mode="reduce-overhead")
    mine = torch.randn(64, 128, device="cuda")
    theirs = mine.clone()
    with torch.no_grad():
        for _ in range(5):
            close(compiled(mine)[0], written(theirs)[0])
            close(mine, theirs)
            assert mine._version == theirs._version
    assert torchsmith.metrics().counter("recordings", "skipped") == 0


def test_what_cannot_be_recorded_is_counted_and_says_why():
    (text,) = recorded(lambda x: ((x + 1).sin().cpu(),), 3, says=1)
    assert "is on device 'cpu'" in text


def sampled(x, index):
    normal = torch.distributions.Normal(x, x.abs() + 0.5, validate_args=True)
    classes = torch.distributions.Categorical(logits=x, validate_args=True)
    chosen = classes.log_prob(index)
    return normal.log_prob(x * 2).sum(1) + chosen + normal.entropy().mean()


def test_checks_that_fail_raise_what_eager_raises():
    """And leave the device as it was: an index that is wrong is not looked up."""
    compiled = torchsmith.compile(sampled, fullgraph=True)
    x, index = torch.randn(64, 10, device="cuda"), torch.arange(64, device="cuda") % 10
    for _ in range(2):
        close(compiled(x, index), sampled(x, index))
        for bad in ((x / 0, index), (x, index + 1)):
            with pytest.raises(ValueError, match="Expected") as eager:
                sampled(*bad)
            with pytest.raises(ValueError, match="Expected") as own:
                compiled(*bad)
            assert str(own.value) == str(eager.value)
    close(compiled(x, index), sampled(x, index))
    assert len(torchsmith.metrics().graphs) == 1


def forecast(net, x):
    states, (h, _) = net(x)
    return torch.cat([states, h[0].unsqueeze(1)], 1).tanh() * x.shape[1]


def folded(net, x):
    """Periods of a signal, as images: sizes that are quotients of quotients."""
    length = x.shape[1] - x.shape[1] % 4
    image = x[:, :length].unflatten(1, (length // 4, 4)).permute(0, 3, 1, 2)
    periods = x[0, : 96 // (96 // x.shape[1])].sum(0)
    return F.gelu(image.softmax(2) + periods[None, :, None, None]), image.amax((2, 3))


def of_rows(net, x):
    first = x[0]
    return [row.view(-1, 4)[:2] * 2 for row in (first, x[1], first)], first.view(-1, 4) + 1


def kept_tokens(net, x):
    k = max(1, int(0.5 * x.shape[1]))
    _, places = torch.topk(x.sum(-1), k, 1)
    index = places.unsqueeze(-1).expand(-1, -1, x.shape[2])
    return torch.scatter_add(x, 1, index, x.gather(1, index).exp())


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("fn", [forecast, folded, of_rows, kept_tokens])
def test_sizes_that_vary(fn, training):
    """Each graph compiles, and few times."""
    net = torch.nn.LSTM(16, 16, batch_first=True, device="cuda")
    compiled = torchsmith.compile(lambda x: fn(net, x), options={"strict": True})
    sizes = [(4, 24), (6, 24), (3, 36), (5, 12), (7, 48), (2, 40)]
    for number, size in enumerate(sizes):
        sides = []
        for run in (compiled, lambda x: fn(net, x)):
            generator = torch.Generator("cuda").manual_seed(number)
            x = torch.randn(*size, 16, device="cuda", generator=generator)
            x.requires_grad_(training)
            with torch.set_grad_enabled(training):
                results = torch.utils._pytree.tree_leaves(run(x))
            if training:
                sum(t.sin().sum() for t in results).backward()
                results = [*(t.detach() for t in results), x.grad]
            sides.append(results)
            net.zero_grad()
        for got, want in zip(*sides, strict=True):
            # The library multiplies in TF32 over many steps, where a last bit may grow.
            close(got, want, 2e-3 if fn is forecast else None)
    assert len(torchsmith.metrics().frames) <= 4
    assert not {f.failure for f in torchsmith.metrics().frames if f.failure}


def causal(x, weight):
    """Convolutions of each channel over rows that lie across, as state-space models have them."""
    y = x.transpose(1, 2)
    for _ in range(2):
        y = F.silu(F.conv1d(y, weight[:, None, :4], padding=3, groups=16)[..., : x.shape[1]])
    return F.linear(y.transpose(1, 2), weight)


def of_patches(x, weight):
    image = x.transpose(1, 2).unflatten(2, (4, -1))
    patches = F.unfold(image, 3, padding=1).unflatten(1, (16, 9))
    return F.fold((patches * weight[:, :9, None]).flatten(1, 2), image.shape[2:], 3, padding=1)


def resized(x, weight):
    image = (x @ weight).transpose(1, 2).unflatten(2, (4, -1))
    rows = F.interpolate(image.flatten(2), 37, mode="linear")
    places = torch.tanh(image[:, :2].permute(0, 2, 3, 1))
    sampled = [
        F.grid_sample(image, places, m, p, False)
        for m in ("bilinear", "nearest")
        for p in ("zeros", "border")
    ]
    return rows, F.interpolate(image, (9, 11), mode="bicubic"), *sampled


def pooled(x, weight):
    image = F.pixel_shuffle((x @ weight).transpose(1, 2).unflatten(2, (4, -1)), 2)
    return F.adaptive_avg_pool2d(image, (4, 2)), F.logsigmoid(F.pixel_unshuffle(image, 2))


def edges(x, weight):
    """Messages of a graph: an index for several gathers and sums."""
    points, g = x.flatten(0, 1), torch.Generator().manual_seed(0)
    ends = torch.randint(0, 20, (2, 500), generator=g).to(x.device)
    for _ in range(2):
        messages = F.silu((points[ends[0]] - points[ends[1]]) @ weight)
        points = points + torch.zeros_like(points).index_add(0, ends[1], messages)
    return points, F.embedding(ends[0], points)


def of_shared_keys(x, weight):
    """Two heads of queries, and keys and values of one for both."""
    q, k = (x @ weight).unflatten(-1, (2, 8)).transpose(1, 2), x[:, None, :, :8]
    masked = F.scaled_dot_product_attention(q, k, k.sin(), q.new_ones(24, 24).tril().bool())
    return masked, F.scaled_dot_product_attention(q, k, k.cos())


def of_windows(x, weight):
    """Heads of windows: five axes, and three."""
    q, k = (
        (x @ w).unflatten(1, (3, 8)).unflatten(-1, (2, 8)).transpose(2, 3)
        for w in (weight, weight.sin())
    )
    return F.scaled_dot_product_attention(q, k, k.sin()), F.scaled_dot_product_attention(x, x, x)


def of_odds(x, weight):
    y = x @ weight
    return F.binary_cross_entropy_with_logits(y, x.sigmoid(), pos_weight=weight[0].detach().exp())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "fn", [causal, of_patches, resized, pooled, edges, of_odds, of_shared_keys, of_windows]
)
def test_values_and_gradients(fn, dtype):
    """Beside a reference in double precision, as near as eager."""
    compiled = torchsmith.compile(fn, options={"strict": True})
    x, weight = torch.randn(2, 24, 16, device="cuda"), torch.randn(16, 16, device="cuda") * 0.2
    sides = []
    for run, kind in ((compiled, dtype), (fn, dtype), (fn, torch.double)):
        given = [t.to(dtype).to(kind).requires_grad_() for t in (x, weight)]
        with torch.no_grad():
            plain = torch.utils._pytree.tree_leaves(run(*given))
        results = torch.utils._pytree.tree_leaves(run(*given))
        grads = torch.autograd.grad(sum(t.sin().sum() for t in results), given, allow_unused=True)
        sides.append([t.detach().double() for t in (*plain, *results, *grads)])
    for got, eager, true in zip(*sides, strict=True):
        assert got.shape == true.shape
        size = true.abs().max().clamp(min=1)
        off = [((t - true).abs().max() / size).item() for t in (got, eager)]
        assert off[0] <= 3 * off[1] + (2e-2 if dtype is torch.bfloat16 else 2e-5)


def test_sums_by_one_index_are_the_same_in_every_run():
    """Of one table alone they are the library's, which adds by atomics unless told not to."""
    nets = [torch.nn.Embedding(50, 64, device="cuda") for _ in range(2)]
    weights = [net.weight for net in nets]
    fn = lambda i: (nets[0](i).sin() + nets[1](i).cos()).sum()
    compiled = torchsmith.compile(fn, options={"strict": True})
    index = torch.randint(0, 50, (20_000,), device="cuda")
    runs = [torch.autograd.grad(compiled(index), weights) for _ in range(3)]
    for first, *others in zip(*runs, strict=True):
        assert all(torch.equal(first, other) for other in others)
    for got, want in zip(runs[0], torch.autograd.grad(fn(index), weights), strict=True):
        close(got / 400, want / 400)


def with_tables_of_the_cpu(x, weight):
    at = torch.arange(x.shape[1])
    apart = (at[None] - at[:, None]).abs() + 1
    buckets = (apart.float().log() * 4).long().clamp(max=15).to(x.device)
    return (x @ x.mT + weight.sum(1)[buckets]).softmax(-1) @ (x @ weight)


@pytest.mark.parametrize("grad", [False, True])
def test_what_the_cpu_computes_from_nothing_is_held_on_the_gpu(grad):
    x, weight = torch.randn(3, 48, 16, device="cuda"), torch.randn(16, 16, device="cuda") * 0.2
    for _ in range(2):  # the second time from the cache
        torchsmith.reset()
        compiled = torchsmith.compile(with_tables_of_the_cpu, options={"strict": True})
        for factor in (1, 0.5):
            sides = []
            for run in (compiled, with_tables_of_the_cpu):
                leaf = (x * factor).requires_grad_(grad)
                result = run(leaf, weight)
                sides.append(
                    [result, *torch.autograd.grad(result.sum(), [leaf])] if grad else [result]
                )
            for got, want in zip(*sides, strict=True):
                close(got, want)
    kernels = [k for g in torchsmith.metrics().graphs for k in g.kernels]
    assert kernels and all(k.device.startswith("cuda") for k in kernels)
