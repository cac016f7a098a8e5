"""Branches and sizes that depend on a number in a buffer: guarded, not a break."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchsmith_tracer
from torch import nn


class Compiled:
    """A compiled copy of a module beside the module; counts graphs."""

    def __init__(self, module):
        self.eager, self.ours, self.graphs = module, copy.deepcopy(module), 0
        self.call = torchsmith_tracer.compile(self.ours, backend=self.backend)

    def backend(self, graph, inputs):
        self.graphs += 1
        return graph

    def each(self, change):
        for module in (self.eager, self.ours):
            change(module)

    def agree(self, *args):
        """Call both and compare results and buffers; how many graphs were made for it."""
        before = self.graphs
        mine, theirs = self.call(*copy.deepcopy(args)), self.eager(*copy.deepcopy(args))
        assert torch.equal(mine, theirs) and mine.stride() == theirs.stride()
        assert all(map(torch.equal, self.ours.buffers(), self.eager.buffers()))
        return self.graphs - before


class Held(nn.Module):
    def __init__(self, body, **buffers):
        super().__init__()
        self.body = body
        for name, value in buffers.items():
            self.register_buffer(name, torch.as_tensor(value))

    def forward(self, *args):
        return self.body(self, *args)


def padded(self, x):
    length = x.shape[-1]
    steps = torch.ceil((length - self.size + self.total) / self.stride + 1).to(torch.int64) - 1
    extra = steps * self.stride + self.size - self.total - length
    left, right = self.total - self.total // 2, self.total // 2 + extra
    most, more = max(left, right), 0
    if length <= most:
        more = most - length + 1
        x = F.pad(x, (0, more))
    y = F.pad(x, (left, right), "reflect")
    return y[..., : y.shape[-1] - more] * 2


def flagged(self, x):
    return x + 1 if self.ready else x - 1


def item(self, x):
    return x.sum(self.axis.item()) * int(self.times)


def sized(self, x):
    return x.view(self.rows, -1)[: self.rows - 1] * 1.5


def compared(self, x):
    if self.low < self.high and not bool(self.high == 9):
        return x.clamp(0, 1)
    return x * 2


PROGRAMS = {
    "padded": (padded, {"size": 4, "total": 2, "stride": 2}),
    "flagged": (flagged, {"ready": True}),
    "flagged by a float": (flagged, {"ready": [1.0]}),
    "item": (item, {"axis": 1, "times": 3}),
    "sized": (sized, {"rows": 4}),
    "compared": (compared, {"low": 1, "high": 3}),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph_until_the_number_changes(name):
    body, buffers = PROGRAMS[name]
    module = Compiled(Held(body, **buffers))
    x = torch.randn(2, 6, 8)
    assert [module.agree(x) for _ in range(3)] == [1, 0, 0]
    module.each(lambda m: [b.copy_(b.clone()) for b in m.buffers()])
    assert module.agree(x) == 0


CHANGES = {
    "in place": lambda m: m.ready.fill_(False),
    "through data": lambda m: m.ready.data.zero_(),
    "through NumPy": lambda m: m.ready.numpy().fill(False),
    "another tensor": lambda m: setattr(m, "ready", torch.tensor(False)),
    "its data": lambda m: setattr(m.ready, "data", torch.tensor(False)),
    "a state": lambda m: m.load_state_dict({"ready": torch.tensor(False)}),
    "a number": lambda m: (delattr(m, "ready"), setattr(m, "ready", 0)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_number_is_seen_however_it_changes(name):
    module, x = Compiled(Held(flagged, ready=True)), torch.randn(3)
    assert [module.agree(x), module.agree(x)] == [1, 0]
    module.each(CHANGES[name])
    assert [module.agree(x), module.agree(x)] == [1, 0]


def test_a_flag_that_the_call_sets_is_read_before():
    def initialized(self, x):
        if not self.ready:
            self.mean.copy_(x.mean())
            self.ready.fill_(True)
        return x - self.mean

    module = Compiled(Held(initialized, ready=False, mean=0.0))
    found = [module.agree(torch.randn(4)) for _ in range(5)]
    assert found[0] >= 1 and found[1] == 1 and found[2:] == [0, 0, 0]


WRITES = {
    "in place": lambda self: self.steps.add_(1),
    "augmented": lambda self: self.__setattr__("steps", self.steps + 1),
    "a view": lambda self: self.steps.view(1)[0].add_(1),
    "a detached one": lambda self: self.steps.detach().add_(1),
    "data": lambda self: self.steps.data.add_(1),
    "its data": lambda self: setattr(self.steps, "data", self.steps + 1),
    "out": lambda self: torch.add(self.steps, 1, out=self.steps),
    "an item": lambda self: self.steps.__setitem__((), self.steps + 1),
    "NumPy": lambda self: self.steps.numpy().__setitem__((), 3),
    "the same memory": lambda self: self.same.add_(1),
    "the same array": lambda self: self.apart.add_(1),
    "several at once": lambda self: torch._foreach_add_([self.steps, self.other], 1),
    "without a gradient": lambda self: _without_a_gradient(self.steps),
    "another": lambda self: self._buffers.update(steps=torch.tensor(4)),
}


def _without_a_gradient(steps):
    with torch.no_grad():
        steps.copy_(steps + 1)


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("after", [True, False])
def test_what_is_written_before_is_not_what_it_was(name, after):
    def counted(self, x):
        doubled = self.steps * 2
        WRITES[name](self)
        return x * 2 if (self.steps if after else doubled) > 2 else x

    module = Compiled(Held(counted, steps=0, other=0))
    module.each(share)
    for _ in range(5):
        module.agree(torch.randn(3))


def share(module):
    """Give it two more buffers in the memory of its first, one through NumPy."""
    array = np.zeros(3, dtype=np.int64)
    for name, tensor in {"steps": array[1:2].reshape(()), "apart": array}.items():
        module.register_buffer(name, torch.from_numpy(tensor))
    module.register_buffer("same", module.steps.view(1))


def test_a_counter_is_not_compiled_for_at_each_call():
    def counted(self, x):
        result = x * 2 if self.steps > 2 else x + 1
        self.steps += 1
        return result

    module = Compiled(Held(counted, steps=0))
    found = [module.agree(torch.randn(3)) for _ in range(9)]
    assert not any(found[5:])


def test_a_queue_moves_on():
    def queued(self, x):
        at = int(self.at)
        self.queue[at : at + 2] = x
        self.at[0] = (at + 2) % 8
        return self.queue.sum() + x.sum()

    module = Compiled(Held(queued, at=[0], queue=torch.zeros(8)))
    found = [module.agree(torch.randn(2)) for _ in range(9)]
    assert not any(found[6:])


def test_an_index_stays_in_the_graph():
    module = Compiled(Held(lambda self, x: x[self.at] + 1, at=0))
    assert module.agree(torch.randn(4)) == 1
    for place in range(1, 4):
        module.each(lambda m, place=place: m.at.fill_(place))
        assert module.agree(torch.randn(4)) == 0


def test_layers_have_numbers_of_their_own():
    layers = nn.Sequential(*(Held(padded, size=4, total=2, stride=n) for n in (1, 2, 3, 4)))
    module = Compiled(layers)
    x = torch.randn(2, 6, 9)
    assert [module.agree(x) for _ in range(2)] == [1, 0]
    module.each(lambda m: m[2].stride.fill_(1))
    assert [module.agree(x) for _ in range(2)] == [1, 0]


def test_arguments_are_data():
    def chosen(x, flag):
        return x + 1 if flag else x - 1

    compiled = torchsmith_tracer.compile(chosen, backend="eager")
    x = torch.randn(3)
    for flag in (True, False, True):
        assert torch.equal(compiled(x, torch.tensor(flag)), chosen(x, torch.tensor(flag)))
    with pytest.raises(torchsmith_tracer.errors.FullGraphError):
        torchsmith_tracer.compile(chosen, fullgraph=True)(x, torch.tensor(True))
