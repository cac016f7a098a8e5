"""At sizes that change: what torch's own definitions in Python leave out, and tangents without
memory; and graphs that fail. Values, gradients and random numbers that are left equal eager's."""

import pytest
import torch
import torchsmith
from torch import nn
from torch.func import functional_call, grad, jvp

NETWORKS = {
    "lstm, batch first": lambda: nn.LSTM(3, 4, 2, dropout=0.5, batch_first=True),
    "lstm, both ways": lambda: nn.LSTM(3, 4, 2, dropout=0.4, bidirectional=True, proj_size=2),
    "gru": lambda: nn.GRU(3, 4, 2, dropout=0.5, bias=False),
    "tanh": lambda: nn.RNN(3, 4, 2, dropout=0.5, bidirectional=True),
    "relu": lambda: nn.RNN(3, 4, 2, dropout=0.5, nonlinearity="relu"),
}


def ran(fn, batches, *, gradients, parameters=()):
    results = []
    torch.manual_seed(3)
    for n in batches:
        x = torch.randn(2, n, 3, requires_grad=gradients)
        for p in parameters:
            p.grad = None
        with torch.set_grad_enabled(gradients):
            y, state = fn(x)
        if gradients:
            y.square().sum().backward()
        states = state if isinstance(state, tuple) else (state,)
        results.append((y, *states, x.grad, *(p.grad for p in parameters), torch.rand(1)))
    return results


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_dropout_between_the_layers_of_a_recurrent_network(name, gradients):
    net = NETWORKS[name]()
    parameters = tuple(net.parameters())
    calls = dict(gradients=gradients, parameters=parameters)
    expected = ran(net, (5, 4), **calls)
    compiled = torchsmith.compile(net, options={"rng": "eager"})
    for results in zip(ran(compiled, (5, 4), **calls), expected, strict=True):
        for ours, eager in zip(*results, strict=True):
            assert (ours is None) == (eager is None)
            if ours is not None:
                assert ours.stride() == eager.stride()
                torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(x)))


def of_inputs(net, x, v):
    return jvp(net, (x,), (v,))


def of_gradients(net, x, v):
    return jvp(grad(lambda t: net(t).square().sum()), (x,), (v,))


def of_one_parameter(net, x, v):
    def run(weight):
        return functional_call(net, {"inner.weight": weight}, (x,))

    weight = net.inner.weight
    return jvp(run, (weight,), (torch.ones_like(weight),))


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("program", [of_inputs, of_gradients, of_one_parameter])
def test_tangents_that_are_not_there(program, trained):
    net = Net().requires_grad_(trained)
    compiled = torchsmith.compile(program, dynamic=True)
    for shape in ((4,), (2, 4), (3, 4)):
        x, v = torch.randn(shape), torch.randn(shape)
        gradients = []
        for run in (compiled, program):
            net.zero_grad()
            value, tangent = run(net, x, v)
            if trained:
                (value.sum() + tangent.sum()).backward()
            gradients.append([value, tangent, *(p.grad for p in net.parameters())])
        torch.testing.assert_close(*gradients)


def indexed_after_a_write(x, i):
    x.add_(1)
    return x[i]


@pytest.mark.parametrize("backend", ["smith", "eager", lambda gm, example_inputs: gm])
def test_what_a_graph_raises_is_not_printed(backend, capfd):
    compiled = torchsmith.compile(indexed_after_a_write, backend=backend)
    for n in (3, 4):
        x, i = torch.randn(n, requires_grad=True), torch.tensor([0])
        compiled(x * 1, i).sum().backward()
        capfd.readouterr()
        with pytest.raises(RuntimeError, match="leaf Variable"):
            compiled(torch.randn(n, requires_grad=True), i)
        with pytest.raises(IndexError):
            compiled(torch.randn(n), i + n)
        assert not "".join(capfd.readouterr())
