"""Hooks on saved tensors that give back what lies otherwise, or has another type."""

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch.autograd.graph import saved_tensors_hooks
from torchsmith_fx_backend import Settings
from torchsmith_fx_backend._src.driver import compile_training

STRICT = Settings(graph_cache=False, verify=True, strict=True)


def same(x):
    return x


HOOKS = {
    "copied": (torch.clone, torch.clone),
    "row by row": (torch.Tensor.contiguous, same),
    "as on another device": (lambda x: torch.empty(x.size(), dtype=x.dtype).copy_(x), same),
    "turned": (lambda x: x.t().contiguous().t() if x.dim() == 2 else x, same),
    "wider": (lambda x: x.double() if x.is_floating_point() else x, same),
}
PROGRAMS = {
    "every other": (lambda x, w: x[:, ::2].atan() * w, (6, 8), (4,)),
    "turned": (lambda x, w: (x.t().exp() @ w).sin(), (4, 6), (4, 5)),
    "expanded": (lambda x, w: (x.sum(1, keepdim=True).expand(4, 6) * x).exp() * w, (4, 6), (6,)),
    "image": (lambda x, w: F.conv2d(x, w).relu().square(), (2, 3, 5, 5), (4, 3, 2, 2)),
    "several results": (lambda x, w: (x.exp(), (x @ w).tanh()), (4, 6), (6, 3)),
}


def compiled(function, *inputs):
    return compile_training(fx.symbolic_trace(function), inputs, STRICT)


@pytest.mark.parametrize("kind", HOOKS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_of_what_was_saved(name, kind):
    function, *sizes = PROGRAMS[name]
    torch.manual_seed(0)
    given = [torch.randn(size) for size in sizes]
    if name == "image":
        given[0] = given[0].contiguous(memory_format=torch.channels_last)
    ours, theirs = ([x.clone().requires_grad_() for x in given] for _ in range(2))
    with saved_tensors_hooks(*HOOKS[kind]):
        found = compiled(function, *ours)(*ours)
    wanted = function(*theirs)
    for results in (found, wanted):
        results = results if isinstance(results, tuple) else (results,)
        sum(r.square().sum() for r in results).backward()
    for x, y in zip(ours, theirs):
        torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize("name", ["exp", "softmax", "product"])
def test_hooks_take_nothing_twice(name):
    """What autograd would save to see writes: it sees none where hooks have what was saved."""
    programs = {
        "exp": lambda x: (x.exp(), x.exp().sum()),
        "softmax": lambda x: x.softmax(1),
        "product": lambda x: (x * x.exp()).sin(),
    }
    taken = []
    x = torch.randn(4, 6, requires_grad=True)
    run = compiled(programs[name], x)
    for function in (programs[name], run):
        with saved_tensors_hooks(lambda t: taken[-1].append(t.data_ptr()) or t, same):
            taken.append([])
            function(x)
    assert len(taken[1]) == len({*taken[1]}) <= len(taken[0])


def test_another_size_is_an_error():
    x = torch.randn(4, 6, requires_grad=True)
    with saved_tensors_hooks(same, lambda x: x[:2]):
        y = compiled(lambda x: (x.exp() * x).sin(), x)(x)
    with pytest.raises(RuntimeError, match="came out of its hooks as"):
        y.sum().backward()


def test_programs_that_allow_no_hooks_are_compiled():
    """What a write through a view saves is seen by a hook of ours."""

    def function(x):
        y = x * 2
        y[0].mul_(x[1])
        return y.sin()

    x = torch.randn(4, 6, requires_grad=True)
    with torch.autograd.graph.disable_saved_tensors_hooks("no hooks here"):
        y = compiled(function, x)(x)
        with pytest.raises(RuntimeError, match="no hooks here"), saved_tensors_hooks(same, same):
            pass
    wanted = torch.autograd.grad(function(x).sum(), x)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x), wanted)


def test_a_product_whose_gradient_nothing_needs():
    def function(x):
        return torch.linalg.vector_norm(x.prod(0), 0, 0)

    x = torch.tensor(2.0, requires_grad=True)
    compiled(function, x)(x).backward()
    assert x.grad is None or x.grad == 0
