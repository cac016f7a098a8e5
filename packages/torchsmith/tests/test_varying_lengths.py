"""Recurrent networks over sequences of any length: two versions for all, with eager's results."""

import copy

import pytest
import torch
import torchsmith
from torch import nn


class Tagger(nn.Module):
    """A network between an embedding and a linear layer, as it is used."""

    def __init__(self, network):
        super().__init__()
        self.embedding, self.network = nn.Embedding(9, 6), network
        width = network.hidden_size * (2 if network.bidirectional else 1)
        self.out = nn.Linear(width, 3)

    def forward(self, tokens):
        states, last = self.network(self.embedding(tokens))
        return self.out(states), last


NETWORKS = {
    "gru": lambda: nn.GRU(6, 5),
    "gru, batch first": lambda: nn.GRU(6, 5, batch_first=True),
    "gru, both ways, layers": lambda: nn.GRU(6, 5, 2, bidirectional=True, batch_first=True),
    "gru, no bias": lambda: nn.GRU(6, 5, bias=False, bidirectional=True),
    "gru, double": lambda: nn.GRU(6, 5).double(),
    "lstm, layers": lambda: nn.LSTM(6, 5, 2, batch_first=True),
    "lstm, both ways": lambda: nn.LSTM(6, 5, 2, bidirectional=True),
    "lstm, no bias": lambda: nn.LSTM(6, 5, 2, bias=False),
    "tanh": lambda: nn.RNN(6, 5, 2, batch_first=True),
    "relu, both ways": lambda: nn.RNN(6, 5, nonlinearity="relu", bidirectional=True),
    "tanh, no bias": lambda: nn.RNN(6, 5, bias=False),
}
SIZES = [(3, 2), (5, 4), (9, 3), (2, 5), (12, 3)]


def flat(value):
    return [value] if isinstance(value, torch.Tensor) else [t for v in value for t in flat(v)]


@pytest.mark.parametrize("kind", ["inference", "step", "dynamic"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_length_has_no_version_of_its_own(name, kind):
    torch.manual_seed(0)
    model = Tagger(NETWORKS[name]())
    if name.endswith("double"):
        model.double()
    models = [model, copy.deepcopy(model)]
    optimizers = [torch.optim.SGD(m.parameters(), 0.01) for m in models]

    def step(place, run, tokens):
        model, gradients = models[place], kind != "inference"
        with torch.set_grad_enabled(gradients):
            found = flat(run(tokens))
        if not gradients:
            return found
        sum(t.sin().sum() for t in found).backward()
        grads = [p.grad.clone() for p in model.parameters()]
        if kind == "step":
            optimizers[place].step()
        optimizers[place].zero_grad()
        return [t.detach() for t in found] + grads

    run = torchsmith.compile(models[1], dynamic=True if kind == "dynamic" else None)
    torchsmith.clear_metrics()
    for size in SIZES:
        tokens = torch.randint(9, size)
        want, got = step(0, models[0], tokens), step(1, run, tokens)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    frames = torchsmith.metrics().frames
    assert len(frames) <= (1 if kind == "dynamic" else 2), [f.recompiled for f in frames]
    assert {g.outcome for g in torchsmith.metrics().graphs} == {"compiled"}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("network", [nn.LSTM, nn.GRU, nn.RNN])
def test_last_states_have_memory_of_their_own(network, reverse):
    net = network(6, 5, bidirectional=reverse)
    run = torchsmith.compile(net, dynamic=True)
    for length in (4, 7):
        results = flat(run(torch.randn(length, 2, 6)))
        assert len({t.untyped_storage().data_ptr() for t in results}) == len(results)
        before = results[0].detach().clone()
        with torch.no_grad():
            results[1].zero_()
        assert torch.equal(results[0], before)


@pytest.mark.parametrize("network", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_first_state_and_its_gradient(network):
    torch.manual_seed(0)
    net = network(6, 5, batch_first=True)
    compiled = torchsmith.compile(net)
    torchsmith.clear_metrics()
    for length in (3, 5, 8, 4):
        sides = []
        values = [torch.randn(2, length, 6), torch.randn(1, 2, 5), torch.randn(1, 2, 5)]
        for run in (net, compiled):
            x, h, c = (v.clone().requires_grad_() for v in values)
            states, last = run(x, (h, c) if network is nn.LSTM else h)
            flat(last)[0].cos().sum().backward()
            sides.append([states.detach(), x.grad, h.grad, *[p.grad for p in net.parameters()]])
            net.zero_grad()
        torch.testing.assert_close(*sides, rtol=1e-4, atol=1e-5)
    assert len(torchsmith.metrics().frames) == 2


@pytest.mark.parametrize("network", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_batch_that_varies_beside_one_length(network):
    """The last states go on into a cell; nothing is unrolled."""
    torch.manual_seed(0)
    net, cell = network(6, 5, 2, batch_first=True), nn.GRUCell(6, 5)
    model = nn.ModuleList([net, cell])

    def step(x):
        states, last = net(x)
        hidden = (last[0] if network is nn.LSTM else last)[-1]
        assert hidden.dim() == 2
        return states.sin().sum() + cell(x[:, 0], hidden).cos().sum()

    compiled = torchsmith.compile(step)
    compiled(torch.randn(4, 40, 6))
    torchsmith.clear_metrics()
    for batch in (3, 5, 2, 7):
        x, sides = torch.randn(batch, 40, 6), []
        for run in (step, compiled):
            loss = run(x)
            loss.backward()
            sides.append([loss.detach(), *(p.grad for p in model.parameters())])
            model.zero_grad()
        torch.testing.assert_close(*sides, rtol=1e-4, atol=1e-5)
    assert len(torchsmith.metrics().frames) == 1
    assert max(graph.nodes for graph in torchsmith.metrics().graphs) < 150


def test_dropout_between_layers_of_any_length():
    net = nn.GRU(6, 5, 3, dropout=0.5)
    compiled = torchsmith.compile(net, options={"rng": "eager"})
    torchsmith.clear_metrics()
    for length in (3, 5, 8, 4):
        x = torch.randn(length, 2, 6)
        sides = []
        for run in (net, compiled):
            torch.manual_seed(1)
            sides.append(run(x)[0].detach())
        torch.testing.assert_close(*sides)
    assert len(torchsmith.metrics().frames) == 2


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("make", [lambda: nn.GRU(3, 4, bidirectional=True), lambda: nn.RNN(3, 4)])
def test_second_gradients_through_any_length(make, inside):
    net = make()

    def penalty(x, forward=net):
        y = forward(x)[0].square().sum()
        (slope,) = torch.autograd.grad(y, x, create_graph=True)
        return slope.square().sum()

    compiled = torchsmith.compile(penalty if inside else net)
    for length in (3, 5, 4):
        value = torch.randn(length, 2, 3)
        sides = []
        for run in (penalty, compiled if inside else lambda x: penalty(x, compiled)):
            x = value.clone().requires_grad_()
            run(x).backward()
            sides.append([x.grad, *[p.grad for p in net.parameters()]])
            net.zero_grad()
        torch.testing.assert_close(*sides, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("low", [False, True], ids=["autocast", "bfloat16"])
@pytest.mark.parametrize("network", [nn.LSTM, nn.GRU, nn.RNN])
def test_low_precision(network, low):
    if network is nn.LSTM and not (low or torch.ops.mkldnn._is_mkldnn_bf16_supported()):
        pytest.skip("eager has no kernel for it on this processor")
    dtype = torch.bfloat16 if low else torch.float32
    models = [Tagger(network(6, 5, 2, bidirectional=True)).to(dtype)]
    models.append(copy.deepcopy(models[0]))
    run = torchsmith.compile(models[1])
    for size in [*SIZES[:3], SIZES[0]]:
        tokens, sides = torch.randint(9, size), []
        for model, call in zip(models, (models[0], run)):
            with torch.autocast("cpu", enabled=not low):
                results = flat(call(tokens))
            sum(t.float().sin().sum() for t in results).backward()
            sides.append([t.detach() for t in results] + [p.grad for p in model.parameters()])
            model.zero_grad()
        assert [t.dtype for t in sides[0]] == [t.dtype for t in sides[1]]
        for mine, true in zip(*reversed(sides)):
            assert (mine - true).norm() <= 4e-2 * true.norm() + 1e-3
