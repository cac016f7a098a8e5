"""Recurrent modules, lazy modules, ``functional_call``, parametrizations, hooks set inside."""

import pytest
import torch
import torch.nn.functional as F
import torchsmith_guards
import torchsmith_tracer
from torch import nn
from torch.nn.utils import parametrizations, parametrize, rnn
from torchsmith_tracer._src.graph import fakes

X, Y = (torch.randn(3, 4, generator=torch.Generator().manual_seed(i)) for i in (0, 1))


def lstm(C):
    m = nn.LSTM(4, 3, num_layers=2, batch_first=True, bidirectional=True)
    f = C(lambda x, state=None: m(x, state))
    seen = [f(torch.randn(2, 5, 4)), f(torch.randn(2, 5, 4))]
    seen.append(f(torch.randn(2, 5, 4), seen[0][1]))
    m.eval()
    seen.append(f(torch.randn(2, 6, 4)))
    m.double()
    seen.append(f(torch.randn(2, 6, 4).double()))
    return seen


def gru_and_cells(C):
    ms = [nn.GRU(4, 3), nn.RNN(4, 3, nonlinearity="relu")]
    cells = [nn.LSTMCell(4, 3), nn.GRUCell(4, 3), nn.RNNCell(4, 3)]
    f = C(lambda x: ([m(x) for m in ms], [cell(x[0]) for cell in cells]))
    return f(torch.randn(5, 2, 4)), f(torch.randn(5, 2, 4))


def trained_lstm(C):
    m = nn.LSTM(4, 3, dropout=0.5, num_layers=2)
    optimizer = torch.optim.SGD(m.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = m(x)[0].square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    f = C(step)
    return [f(torch.randn(5, 2, 4)) for _ in range(4)], dict(m.state_dict())


def wrong_sizes(C):
    m, seen = nn.LSTM(4, 3), []
    f = C(lambda x: m(x))
    for size in (4, 5, 4):
        try:
            seen.append(f(torch.ones(2, 1, size))[0])
        except RuntimeError as e:
            seen.append(str(e))
    return seen


def functional_call(C):
    m = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    f = C(lambda p, x: torch.func.functional_call(m, p, (x,)))
    own = {k: v.clone() for k, v in m.state_dict().items()}
    twice = {k: v * 2 for k, v in own.items()}
    return f(own, X), f(twice, Y), f({}, X), dict(m.state_dict()), own, twice


def gradient_of_functional_call(C):
    m = nn.Linear(4, 2)

    def loss(p, x, y):
        return F.mse_loss(torch.func.functional_call(m, p, (x,)), y)

    f = C(lambda p, x, y: torch.func.grad(loss)(p, x, y))
    p = {k: v.detach() for k, v in m.named_parameters()}
    return f(p, X, torch.zeros(3, 2)), f(p, Y, torch.ones(3, 2))


class Symmetric(nn.Module):
    def forward(self, w):
        return w.triu() + w.triu(1).t()


def parametrized(C):
    m = nn.Linear(4, 4)
    parametrize.register_parametrization(m, "weight", Symmetric())
    f = C(lambda x: m(x))
    seen = [f(X)]
    with torch.no_grad():
        m.weight = torch.ones(4, 4)
    seen.append(f(Y))
    parametrize.remove_parametrizations(m, "weight")
    return [*seen, f(Y)]


def torchs_parametrizations(C):
    m = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(4, 4)),
        parametrizations.spectral_norm(nn.Linear(4, 4)),
        parametrizations.orthogonal(nn.Linear(4, 4)),
    )
    f = C(lambda x: m(x))
    seen = [f(X), f(Y)]
    m.eval()
    return [*seen, f(X)], dict(m.state_dict())


def hook_set_inside(C):
    m = nn.Linear(4, 4)

    def run(x):
        handle = m.register_forward_hook(lambda mod, args, out: out * 10)
        y = m(x)
        handle.remove()
        return y, m(x)

    f = C(run)
    return f(X), f(Y), len(m._forward_hooks)


def hooks_set_between(C):
    m, calls = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), []
    f = C(lambda x: m(x))
    seen = [f(X)]
    handles = [
        m.register_forward_pre_hook(lambda mod, args: (args[0] * 2,)),
        m[0].register_forward_hook(lambda mod, args, out: out + 1),
        m[1].register_forward_hook(
            lambda mod, args, kwargs, out: (calls.append(1), out * 3)[1], with_kwargs=True
        ),
    ]
    seen.append(f(X))
    for handle in handles:
        handle.remove()
        seen.append(f(X))
    everywhere = nn.modules.module.register_module_forward_hook(lambda mod, args, out: out * 2)
    seen.append(f(X))
    everywhere.remove()
    return [*seen, f(X)], calls


def averaged(C):
    m = nn.Linear(4, 4)
    average = torch.optim.swa_utils.AveragedModel(m, avg_fn=lambda a, b, n: 0.9 * a + 0.1 * b)
    f = C(lambda x: average(x))
    seen = [f(X)]
    average.update_parameters(m)
    return [*seen, f(Y)]


WHOLE = [
    lstm, gru_and_cells, trained_lstm, functional_call, gradient_of_functional_call, parametrized,
    torchs_parametrizations, hook_set_inside, hooks_set_between, averaged,
]  # fmt: skip


@pytest.mark.parametrize("body", WHOLE, ids=lambda f: f.__name__)
def test_in_one_graph(program, body):
    program(body)


def packed(C):
    m = nn.LSTM(4, 3)

    def run(x, lengths):
        sequence = nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
        out, state = m(sequence)
        return nn.utils.rnn.pad_packed_sequence(out), state

    f = C(run)
    return [f(torch.randn(5, 2, 4), torch.tensor(n)) for n in ([3, 5], [4, 2])]


def lazy(C):
    m = nn.Sequential(nn.LazyLinear(5), nn.LazyBatchNorm1d())
    f = C(lambda x: m(x))
    return [f(X), f(Y)], type(m[0]), dict(m.state_dict())


def backward_hooks(C):
    m = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    f, seen = C(lambda x: m(x)), []
    for register in (
        lambda: m.register_full_backward_hook(lambda mod, gi, go: (gi[0] * 2,)),
        lambda: m.register_full_backward_pre_hook(lambda mod, go: (go[0] * 3,)),
    ):
        handle = register()
        x = X.clone().requires_grad_()
        f(x).sum().backward()
        handle.remove()
        f(x).sum().backward()
        seen.append(x.grad)
    return seen


@pytest.mark.parametrize(
    "body", [wrong_sizes, packed, lazy, backward_hooks], ids=lambda f: f.__name__
)
def test_agrees_across_breaks(program, body):
    program(body, broken=True)


def packed(i):
    sequences = [torch.randn(n, 4) for n in ((4, 3, 2), (5, 3, 1), (4, 4, 2))[i]]
    return rnn.pack_sequence(sequences[::-1], enforce_sorted=False)


def packed_in_a_function(C):
    m = nn.LSTM(4, 3)

    def run(p):
        out, (h, c) = m(rnn.PackedSequence(p.data * 2, *p[1:]))
        return out.data + 1, out.batch_sizes, h, c

    f = C(run)
    return [f(packed(i)) for i in range(3)]


def packed_to_the_module(C):
    m, seen = nn.GRU(4, 3), []
    f = C(m)
    for i in range(3):
        out, h = f(packed(i))
        out.data.sum().backward()
        seen += [out.data, h, [p.grad.clone() for p in m.parameters()], f(torch.ones(5, 2, 4))]
    return seen


def padded_and_unpadded(C):
    m = nn.GRU(4, 3)

    def run(x, lengths):
        out, _ = m(rnn.pack_padded_sequence(x, lengths, enforce_sorted=False))
        return rnn.pad_packed_sequence(out, batch_first=True)

    f = C(run)
    return [f(torch.randn(5, 3, 4), lengths) for lengths in ([5, 3, 2], [1, 5, 2], [5, 3, 2])]


PACKED = {packed_in_a_function: 2, packed_to_the_module: 0, padded_and_unpadded: 4}


@pytest.mark.parametrize("body", PACKED, ids=lambda f: f.__name__)
def test_packed_sequences_break_once_at_each_call(program, body):
    compiled = []

    def noted(C):
        def compile_noted(fn):
            compiled.append(C(fn))
            return compiled[-1]

        return body(compile_noted)

    program(noted, broken=True)
    breaks = compiled[-1]._torchsmith_region.log.breaks if PACKED[body] else []
    assert {b.name for b in breaks} <= {"data-dependent-op"}
    assert len({b.place.line for b in breaks}) <= PACKED[body]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_one_compile_takes_any_length(device):
    network, found = nn.GRU(4, 8, device=device), []

    def note(gm, examples):
        found.append([x.shape for x in examples if isinstance(x, torch.Tensor) and x.dim() == 3])
        return gm.forward

    compiled = torchsmith_tracer.compile(network, backend=note)
    for length in (5, 6, 7):
        states, last = compiled(torch.randn(length, 2, 4, device=device))
        assert states.shape == (length, 2, 8) and last.shape == (1, 2, 8)
    assert len(found) == 2


@pytest.mark.skipif(torch.version.cuda is None, reason="needs a build for GPUs, but none of them")
@pytest.mark.parametrize("training", [False, True])
def test_lengths_on_a_gpu_are_not_settled(training):
    env = torchsmith_guards.ShapeEnv()
    fake = torchsmith_guards.FakeMode(env)
    source = torchsmith_guards.LocalSource("x")
    symbols = fake.fakeify(torch.ones(3, 10, 6), source, dynamic_dims=[0, 1]).shape
    device = torch.device("cuda", 0)
    with fake.mode:
        x, h = torch.empty(symbols, device=device), torch.zeros(1, symbols[0], 6, device=device)
        weights = [torch.empty(s, device=device, requires_grad=training) for s in ((24, 6),) * 2]
        states, *last = fakes._recurrent(
            torch.lstm, x, (h, h), weights, False, 1, 0.0, training, False, True
        )
    assert states.shape == symbols and states.requires_grad is training
    assert [one.shape for one in last] == [h.shape, h.shape]
    assert not env.guards
