"""What changes between the calls of a compiled step of an optimizer is seen, as eager sees it."""

import copy
import time

import pytest
import torch
import torchsmith
from torch import nn
from torchsmith_guards import native_library

O = torch.optim
SIZES = ((3,), (2, 3), (4,), (3, 3), (), (2, 3), (3,), (3, 3), (4,), (2, 3))
OPTIMIZERS = {
    "AdamW": lambda ps: O.AdamW(ps, lr=0.1),
    "amsgrad": lambda ps: O.Adam(ps, lr=0.1, amsgrad=True),
    "momentum": lambda ps: O.SGD(ps, lr=0.1, momentum=0.9, weight_decay=0.1),
    "RMSprop": lambda ps: O.RMSprop(ps, lr=0.1, momentum=0.5),
    "Adagrad": lambda ps: O.Adagrad(ps, lr=0.1),
}


class Marked(torch.Tensor):
    """A tensor that says that it is one."""


class Side:
    """Parameters and their optimizer."""

    def __init__(self, make, compiled):
        torch.manual_seed(0)
        self.params = [nn.Parameter(torch.randn(size)) for size in SIZES]
        self.optimizer = make(self.params)
        step = self.optimizer.step
        self.step = torchsmith.compile(lambda: step()) if compiled else step
        self.random = torch.Generator().manual_seed(1)
        self.gradients()

    def gradients(self):
        """New ones, as a backward pass makes them."""
        for p in self.params:
            p.grad = torch.randn(p.shape, generator=self.random).to(p.dtype)

    @property
    def group(self):
        return self.optimizer.param_groups[0]

    def states(self):
        return [self.optimizer.state[p] for p in self.params if p in self.optimizer.state]

    def seen(self):
        kept = [[v for k, v in sorted(s.items())] for s in self.states()]
        return [p.detach().clone() for p in self.params], copy.deepcopy(kept)


def no_gradient(side):
    side.params[3].grad = None


def some_gradients(side):
    for p in side.params[::2]:
        p.grad = None


def one_gradient_twice(side):
    side.params[0].grad = side.params[6].grad


def gradients_that_overlap(side):
    both = torch.randn(5, generator=side.random)
    side.params[0].grad, side.params[6].grad = both[:3], both[2:]


def a_gradient_that_is_the_parameter(side):
    side.params[3].grad = side.params[3].data


def a_gradient_that_is_a_state(side):
    side.params[3].grad = [v for v in side.states()[3].values() if v.shape == (3, 3)][0]


def transposed_gradient(side):
    side.params[3].grad = side.params[3].grad.t()


def negated_gradient(side):
    side.params[3].grad = torch._neg_view(side.params[3].grad)


def gradient_of_a_subclass(side):
    side.params[3].grad = side.params[3].grad.as_subclass(Marked)


def differentiable_gradient(side):
    side.params[3].grad.requires_grad_()


def other_type(side):
    for p, state in zip(side.params, side.states()):
        p.data = p.data.double()
        p.grad = torch.randn(p.shape, generator=side.random).double()
        for name, value in state.items():
            if name != "step" and value is not None:
                state[name] = value.double()


def other_memory(side):
    for p in side.params:
        p.data = p.data.clone()


def memory_of_another_parameter(side):
    side.params[3].data = side.params[7].data


def states_replaced(side):
    for state in side.states():
        for name, value in state.items():
            state[name] = value if value is None else value.clone() + 1


def state_shared(side):
    first, second = side.states()[3], side.states()[7]
    for name, value in first.items():
        if value is not None and value.shape == (3, 3):
            second[name] = value


def state_dropped(side):
    side.optimizer.state.clear()


def state_loaded(side):
    saved = copy.deepcopy(side.optimizer.state_dict())
    saved["param_groups"][0]["lr"] = 0.3
    side.optimizer.load_state_dict(saved)


def group_added(side):
    side.params.append(nn.Parameter(torch.ones(3)))
    side.params[-1].grad = torch.ones(3)
    side.optimizer.add_param_group({"params": side.params[-1:], "lr": 0.5})


def parameter_replaced(side):
    old = side.params[3]
    side.params[3] = side.group["params"][3] = nn.Parameter(torch.ones(3, 3))
    side.params[3].grad = torch.ones(3, 3)
    side.optimizer.state[side.params[3]] = side.optimizer.state.pop(old)


CHANGES = {
    "lr": lambda side: side.group.update(lr=0.01),
    "weight_decay": lambda side: side.group.update(weight_decay=0.5),
    "maximize": lambda side: side.group.update(maximize=True),
    "new gradients": Side.gradients,
    "gradients written": lambda side: [p.grad.add_(1) for p in side.params],
    "no gradients": lambda side: side.optimizer.zero_grad(),
}
CHANGES |= {
    f.__name__: f
    for f in (
        *(no_gradient, some_gradients, one_gradient_twice, gradients_that_overlap),
        *(a_gradient_that_is_the_parameter, a_gradient_that_is_a_state, transposed_gradient),
        *(negated_gradient, gradient_of_a_subclass, differentiable_gradient, other_type),
        *(other_memory, memory_of_another_parameter, states_replaced, state_shared),
        *(state_dropped, state_loaded, group_added, parameter_replaced),
    )
}


@pytest.fixture(scope="module", autouse=True)
def native():
    """Checks are native in every test here, not from some time on."""
    end = time.monotonic() + 60
    while native_library() is None and time.monotonic() < end:
        time.sleep(0.05)


CASES = [
    (name, change)
    for name in OPTIMIZERS
    for number, change in enumerate(CHANGES)
    if name in ("AdamW", "momentum") or number % 3 == 0
]


@pytest.mark.parametrize(("name", "change"), CASES)
def test_a_change_is_seen(name, change):
    mine, theirs = (Side(OPTIMIZERS[name], compiled) for compiled in (True, False))
    for round_ in range(9):
        for side in (mine, theirs):
            if round_ == 6:
                CHANGES[change](side)
            side.step()
            if round_ % 2:
                side.gradients()
        torch.testing.assert_close(mine.seen(), theirs.seen(), rtol=1e-5, atol=1e-6)
