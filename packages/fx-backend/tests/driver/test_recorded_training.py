"""Both halves of a differentiated graph from recordings, on a recorder that plays a device."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torchsmith_fx_backend import smith
from torchsmith_fx_backend._src import driver, modes


class Played:
    """Writes a recorded run's results, at each replay, where the first ones lay."""

    made: list["Played"] = []
    touched: list[torch.Tensor] = []

    def __init__(self, device, *, private=False):
        assert private
        self.made.append(self)
        self.recorded = self.replayed = 0

    def ready(self):
        return True

    def turn(self):
        return contextlib.nullcontext()

    def random_state(self):
        return None

    def record(self, run):
        old = [(tensor, tensor.clone()) for tensor in self.touched]
        places = run()
        for tensor, value in old:
            tensor.data.copy_(value)  # recording does not do the work
        self.recorded += 1

        def replay():
            self.replayed += 1
            versions = [(t, t._version) for t in self.touched]
            for place, fresh in zip(places, run(), strict=True):
                if isinstance(place, torch.Tensor) and place.data_ptr() != fresh.data_ptr():
                    place.detach().copy_(fresh)
            for tensor, version in versions:
                torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))

        return replay, places


@pytest.fixture(autouse=True)
def played(monkeypatch):
    monkeypatch.setattr(driver, "obstacle", lambda graph: "")
    monkeypatch.setattr(driver, "CudaRecorder", Played)
    modes.not_recorded.cache_clear()
    monkeypatch.setattr(Played, "made", [])
    monkeypatch.setattr(Played, "touched", [])


def program(x, first, first_bias, scale, shift, last, last_bias, mean, variance, count):
    count.add_(1)
    hidden = F.linear(x, first, first_bias)
    hidden = F.batch_norm(hidden, mean, variance, scale, shift, training=True)
    return torch.sin(F.linear(torch.tanh(hidden), last, last_bias)).exp()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.call = program

    def forward(self, x):
        return self.call(x, *self.parameters(), *self.buffers())


def pair():
    """A model whose program is compiled, and its twin for eager."""
    torch.manual_seed(0)
    model, twin = Net(), Net()
    twin.load_state_dict(model.state_dict())
    examples = [torch.randn(4, 6), *model.parameters(), *model.buffers()]
    model.call = smith(fx.symbolic_trace(program), examples, mode="reduce-overhead")
    Played.touched[:] = list(model.buffers())
    return model, twin


def inputs(count):
    torch.manual_seed(1)
    return [torch.randn(4, 6) for _ in range(count)]


def same(model, twin, grads=True):
    state, wanted = model.state_dict(), twin.state_dict()
    for name, value in state.items():
        torch.testing.assert_close(value, wanted[name], msg=name)
    if grads:
        pairs = zip(model.named_parameters(), twin.parameters(), strict=True)
        for (name, a), b in pairs:
            # A batch norm takes the bias before it away: its gradient is zero but for rounding.
            atol = 1e-4 if name == "first.bias" else 1e-5
            torch.testing.assert_close(a.grad, b.grad, rtol=1.3e-6, atol=atol, msg=name)


def test_a_training_loop_is_replayed_and_stays_on_eagers_way():
    model, twin = pair()
    ways = [(m, torch.optim.SGD(m.parameters(), 0.1, momentum=0.9)) for m in (model, twin)]
    kept = []
    for x in inputs(7):
        losses = []
        for module, optimizer in ways:
            loss = module(x).square().mean()
            loss.backward()
            kept.append([p.grad for p in module.parameters()])
            losses.append(loss)
            optimizer.step()
            optimizer.zero_grad()
        torch.testing.assert_close(*losses)
        same(model, twin, grads=False)
    for ours, wanted in zip(kept[::2], kept[1::2], strict=True):  # later steps left them alone
        for a, b in zip(ours, wanted, strict=True):
            torch.testing.assert_close(a, b)
    (recorder,) = Played.made
    assert recorder.recorded == 2
    assert recorder.replayed == 6 + 5  # the forward half from call 2 on, the backward half from 3


def _twice_before_backward(call, xs):
    for a, b in zip(xs[::2], xs[1::2], strict=True):
        first, second = call(a), call(b)
        (first.sum() + 2 * second.square().sum()).backward()


def _second_first(call, xs):
    for a, b in zip(xs[::2], xs[1::2], strict=True):
        first, second = call(a), call(b)
        second.square().sum().backward()
        first.sum().backward()


def _retained(call, xs):
    for x in xs:
        loss = call(x).square().sum()
        loss.backward(retain_graph=True)
        call(x + 1).sum().backward()
        loss.backward()


def _never_backward(call, xs):
    alive = []
    for number, x in enumerate(xs):
        loss = call(x).square().sum()
        if number % 2:
            alive.append(loss)  # a loss that is kept holds what was saved for it
        else:
            loss.backward()
    del alive[::2]
    for loss in alive:
        loss.backward()


def _offloaded(call, xs):
    for x in xs:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
            call(x).square().sum().backward()


def _without_gradients_between(call, xs):
    for x in xs:
        loss = call(x).square().sum()
        with torch.no_grad():
            call(x + 1)
        loss.backward()


def _other_tangents(call, xs):
    for x in xs:
        call(x).backward(torch.ones(4, 1).expand(4, 3))
        call(x).t().backward(torch.ones(3, 4))


WAYS = [
    _twice_before_backward,
    _second_first,
    _retained,
    _never_backward,
    _offloaded,
    _without_gradients_between,
    _other_tangents,
]


@pytest.mark.parametrize("way", WAYS)
def test_what_is_saved_is_read_before_it_is_overwritten(way):
    model, twin = pair()
    xs = inputs(8)
    way(model, xs)
    way(twin, xs)
    same(model, twin)
    assert bool(Played.made[0].replayed) == (way is not _offloaded)  # hooks may keep what they get


def test_a_second_backward_pass_is_refused_as_eagers():
    model, _ = pair()
    for x in inputs(4):
        loss = model(x).sum()
        loss.backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            loss.backward()


def test_parameters_that_get_other_memory_are_read_there():
    model, twin = pair()
    for number, x in enumerate(inputs(6)):
        model(x).sum().backward()
        twin(x).sum().backward()
        if number in (2, 4):
            for module in (model, twin):
                module.last.weight.data = module.last.weight.data * 2
    same(model, twin)


def test_memory_is_given_back_when_a_backward_pass_fails():
    model, twin = pair()
    for number, x in enumerate(inputs(8)):
        loss = model(x).square().sum()
        if number == 4:
            handle = model.last.bias.register_hook(_raise)
            with pytest.raises(ValueError, match="of the hook"):
                loss.backward()
            handle.remove()
            model.zero_grad()
        else:
            loss.backward()
        twin.zero_grad() if number == 4 else twin(x).square().sum().backward()
        if number == 4:
            with torch.no_grad():
                twin(x)
        del loss
    same(model, twin)
    assert Played.made[0].replayed > 10


def _raise(grad):
    raise ValueError("of the hook")


def test_if_one_half_cannot_be_recorded_neither_is(monkeypatch):
    reasons = iter(["", "the backward pass asks the host"])
    monkeypatch.setattr(driver, "obstacle", lambda graph: next(reasons))
    model, twin = pair()
    with pytest.warns(modes.ModeWarning, match="asks the host") as said:
        for x in inputs(4):
            model(x).sum().backward()
            twin(x).sum().backward()
    same(model, twin)
    assert (len(said), Played.made[0].recorded) == (1, 0)
