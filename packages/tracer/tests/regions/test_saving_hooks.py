"""Hooks that take what autograd saves may raise: once, and to the caller."""

import functools

import pytest
import torch
import torchsmith_tracer
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint


class Enough(Exception):
    pass


class Taker:
    """Packs two tensors, then raises."""

    def __init__(self):
        self.taken = []

    def pack(self, tensor):
        self.taken.append(tuple(tensor.shape))
        if len(self.taken) == 2:
            raise Enough
        return tensor

    __call__ = pack


def _wrapped(taker):
    @functools.wraps(taker.pack)
    def pack(tensor):
        return taker.pack(tensor)

    return pack


HOOKS = {
    "method": lambda taker: taker.pack,
    "object": lambda taker: taker,
    "function": lambda taker: lambda tensor: taker.pack(tensor),
    "wrapped": _wrapped,
}


def program(x):
    y = x.sin() * x
    try:
        return y.exp()
    except ValueError:  # not what the hook raises
        return x


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_that_raises_is_asked_once(hook):
    outcomes = []
    for fn in (torchsmith_tracer.compile(program, backend="eager"), program):
        fn(torch.ones(3, requires_grad=True))
        taker = Taker()
        with pytest.raises(Enough), saved_tensors_hooks(HOOKS[hook](taker), lambda t: t):
            fn(torch.ones(3, requires_grad=True))
        outcomes.append(taker.taken)
    assert outcomes[0] == outcomes[1]


def test_an_operator_that_raises_under_hooks_meets_the_handlers_of_the_program():
    def fn(x):
        try:
            return torch.linalg.cholesky(x) * 2
        except RuntimeError:
            return x.sin()

    compiled = torchsmith_tracer.compile(fn, backend="eager")
    compiled(torch.eye(2, requires_grad=True))
    with saved_tensors_hooks(lambda t: t, lambda t: t):
        y = compiled((-torch.eye(2)).requires_grad_())
    assert torch.equal(y, (-torch.eye(2)).sin())


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_around_compiled_code(reentrant, early):
    """Recomputation ends by an exception from the hook that takes the last tensor."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    grads = []
    for fn in (torchsmith_tracer.compile(model, backend="eager"), model):
        for _ in range(2):
            model.zero_grad()
            x = torch.ones(2, 4, requires_grad=True)
            more = {} if reentrant else {"early_stop": early}
            checkpoint(fn, x, use_reentrant=reentrant, **more).square().sum().backward()
            grads.append([x.grad, *(p.grad for p in model.parameters())])
    for one, other in zip(grads[0] + grads[1], grads[2] + grads[3]):
        torch.testing.assert_close(one, other)
