"""Values of tensors that are made of constants are known while tracing; those of others are not."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchsmith_tracer import compile, explain

X = torch.randn(4, 4)


def pieces(fn, *args):
    found = explain(fn)(*args)
    return found.graph_count, found.break_count


def timesteps(x):
    for t in torch.linspace(9, 0, 4).long().tolist():
        x = x * t + 1
    return x


def drop_rates(x):
    for p in torch.linspace(0, 0.3, 3):
        x = x * p.item() + 1
    return x


def causal(x):
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True, device=x.device)
    with torch.no_grad():
        for p in layer.parameters():
            p.fill_(0.25)
    mask = nn.Transformer.generate_square_subsequent_mask(x.size(0))
    made = nn.Transformer.generate_square_subsequent_mask(x.size(0))
    return x + 1 if bool((mask == made).all()) else x - 1


def largest(x):
    labels = torch.cat([torch.arange(2) for _ in range(2)])
    return x + labels.max() if labels.max() > 0 else x


def place(x):
    for i, t in enumerate(torch.arange(4).flip(0)):
        x = x * x[t] + int(t) + i
    return x


def crops(x):
    counts = torch.unique_consecutive(torch.tensor([8, 8, 4, x.size(0)]), return_counts=True)[1]
    return [x * end for end in torch.cumsum(counts, 0).tolist()]


def repeated(x):
    return x[torch.repeat_interleave(torch.tensor([1, 0, 2]))], torch.tensor([0.0, 3.0]).nonzero()


def off_diagonal(x):
    eye = torch.eye(x.size(0), dtype=torch.bool)
    return x[~eye].view(x.size(0), -1), x[eye]


def indexed(x):
    layers = [torch.sin, torch.cos, torch.tanh]
    for i in torch.tensor([0.2, 0.1]).sort().indices:
        x = layers[i](x)
    for _ in range(torch.tensor(2)):
        x = layers[torch.arange(3)[1:2]](x)
    del layers[torch.tensor(True)]
    return layers[1:][torch.tensor(0)](x)


KNOWN = [timesteps, drop_rates, causal, largest, place, crops, repeated, off_diagonal, indexed]


@pytest.mark.parametrize("fn", KNOWN)
def test_constants_are_read_without_a_break(fn):
    assert pieces(fn, X) == (1, 0)
    compiled = compile(fn)
    for x in (X, torch.randn(5, 5), X):
        torch.testing.assert_close(compiled(x), fn(x), rtol=0, atol=0)


def test_gradients_of_elements_off_the_diagonal():
    def loss(x):
        return off_diagonal(x)[0].logsumexp(1).sum()

    grads = []
    for run in (loss, compile(loss)):
        x = X.clone().requires_grad_()
        run(x).backward()
        grads.append(x.grad)
    torch.testing.assert_close(grads[1], grads[0])


def empty(x):
    zeros = torch.zeros(2, 3)
    return zeros.nonzero(), zeros[zeros > 0]


def drawn(x):
    return x + 1 if torch.randn(4).sum() > 0 else x - 1


def written(x):
    z = torch.zeros(3)
    view = z[1:]
    view.add_(2)
    return x + 1 if z.sum() > 1 else x - 1


def written_later(x):
    z = torch.arange(3)
    before = (z * 2).tolist()
    z += 1
    return x + before[1], (z * 2).tolist()


def replaced(x):
    z = torch.zeros(3)
    z.data = torch.ones(3)
    return x + 1 if z.sum() > 1 else x - 1


def through_numpy(x):
    z = torch.arange(3)
    z.numpy()[1] = 7
    return x + 1 if z.sum() > 5 else x - 1


def of_data(x):
    return x + 1 if (x[:, 0] * torch.arange(4)).sum() > 0 else x - 1


def uninitialized(x):
    return x + 1 if torch.empty(3).fill_(2).sum() > 1 else x


@pytest.mark.parametrize(
    "fn",
    [empty, drawn, written, written_later, replaced, through_numpy, of_data, uninitialized],
)
def test_others_are_read_when_they_are_there(fn):
    compiled = compile(fn)
    for seed in range(4):
        outcomes = []
        for run in (fn, compiled):
            torch.manual_seed(seed)
            outcomes.append((run(torch.full((4, 4), seed - 1.5)), torch.rand(1)))
        torch.testing.assert_close(outcomes[1], outcomes[0], rtol=0, atol=0)


def norms(x):
    found = []
    for norm in (F.batch_norm, torch.batch_norm, torch.native_batch_norm, torch.instance_norm):
        mean, var = torch.zeros(4), torch.ones(4)
        rows = x if "batch" in norm.__name__ else x[None]
        if norm is F.batch_norm:
            norm(rows, mean, var, training=True)
        elif norm is torch.native_batch_norm:
            norm(rows, None, None, mean, var, True, 0.5, 1e-5)
        else:
            norm(rows, None, None, mean, var, True, 0.5, 1e-5, False)
        found += [mean.tolist(), var.tolist()]
    return found


def scales(x):
    scale, tracker = torch.ones(1), torch.zeros(1, dtype=torch.int32)
    found, grads = torch.zeros(1), [torch.full((1,), torch.inf)]
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found, scale)
    torch._amp_update_scale_(scale, tracker, found, 2.0, 0.5, 4)
    return x + 1, found.tolist(), scale.tolist()


def observed(x):
    flag, zero = torch.ones(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int32)
    low, high, scale = torch.zeros(1), torch.ones(1), torch.ones(1)
    quantize = torch.fused_moving_avg_obs_fake_quant
    y = quantize(x, flag, flag, low, high, scale, zero, 0.5, 0, 255, 0)
    return y, low.tolist(), high.tolist(), scale.tolist(), zero.tolist()


def without_versions(x):
    with torch.inference_mode():
        t = torch.zeros(4, 4)
        torch.add(x, 1, out=t)
        return t.tolist()


@pytest.mark.parametrize("fn", [norms, scales, observed, without_versions])
def test_what_is_written_without_a_version_is_not_known(fn):
    assert str(compile(fn)(X)) == str(fn(X))


@pytest.mark.parametrize("index", [1.0, 1j, [0, 1], 3])
def test_what_is_no_index_raises_as_in_eager(index):
    def f(x):
        return [x, x + 1][torch.tensor(index)]

    raised = []
    for run in (f, compile(f)):
        with pytest.raises((TypeError, IndexError)) as error:
            run(X)
        raised.append((type(error.value), str(error.value)))
    assert raised[0] == raised[1]


def test_results_go_where_each_call_says():
    def f(x):
        t, u = torch.ones(4), torch.zeros(4)
        torch.add(t, x, out=t)
        return torch.add(t, x, out=u) is u, torch.mul(input=t, other=x, out=u) is u, t, u

    for x in X:
        assert str(compile(f, fullgraph=True)(x)) == str(f(x))
