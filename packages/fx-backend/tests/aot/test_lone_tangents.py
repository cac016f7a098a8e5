"""A backward half frees its tangents as early as eager does, and only those that nobody reads."""

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torchsmith_fx_backend import Settings
from torchsmith_fx_backend._src.aot.lone import LEAST
from torchsmith_fx_backend._src.driver import compile_training

SETTINGS = Settings(graph_cache=False, verify=True, strict=True)
SIZE = 256
assert SIZE * SIZE * 4 >= LEAST


pytestmark = pytest.mark.usefixtures("reference_machine")


def leaves():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(SIZE, SIZE, generator=generator).div_(16).requires_grad_() for _ in "xwv"]


def program(x, w, v):
    h = (x @ w).tanh() @ v
    return h, (x * 2).exp()


class Tangent(torch.autograd.Function):
    """Gives its own tangent on, and says where it lies."""

    @staticmethod
    def forward(ctx, x, told):
        ctx.told = told
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        fresh = grad.clone()
        ctx.told.append(StorageWeakRef(fresh.untyped_storage()))
        return fresh, None


class Products(TorchDispatchMode):
    """Whether the tangent lives at each matrix product of the backward pass."""

    def __init__(self, told):
        super().__init__()
        self.told, self.alive = told, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if self.told and func in (torch.ops.aten.mm.default, torch.ops.aten.mm.out):
            self.alive.append(not self.told[0].expired())
        return func(*args, **(kwargs or {}))


def lives(function, retain=False):
    told = []
    given = leaves()
    h, _ = function(*given)
    mode = Products(told)
    with mode:
        Tangent.apply(h, told).sum().backward(retain_graph=retain)
    assert len(mode.alive) == 4
    return mode.alive, [x.grad for x in given]


@pytest.mark.parametrize("retain", [False, True])
def test_a_tangent_goes_after_it_was_read_for_the_last_time(retain):
    run = compile_training(program, leaves(), SETTINGS)
    ours, theirs = lives(run, retain), lives(program, retain)
    assert theirs[0] == [True, True, False, False] == ours[0]
    torch.testing.assert_close(ours[1], theirs[1])


def hooked(h, kept):
    h.register_hook(kept.append)
    return h * 1


def hooked_before(h, kept):
    h.grad_fn.register_prehook(kept.extend)
    return h * 1


def hooked_after(h, kept):
    h.grad_fn.register_hook(lambda grads, tangents: kept.extend(tangents))
    return h * 1


def retained(h, kept):
    h.retain_grad()
    kept.append(lambda: h.grad)
    return h * 1


def shared(h, kept):
    """One tangent goes to two nodes, the second of which runs later."""
    other = torch.ones_like(h).requires_grad_()
    kept.append(lambda: other.grad)
    return h + other * 1


def a_view(h, kept):
    h.register_hook(lambda grad: kept.append(grad[1:]))
    return h * 1


def in_a_cell(h, kept):
    def hook(grad):
        kept.append(lambda: grad)

    h.register_hook(hook)
    return h * 1


HOLDERS = [hooked, hooked_before, hooked_after, retained, shared, a_view, in_a_cell]


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("retain", [False, True])
def test_who_holds_a_tangent_keeps_it(holder, retain):
    run = compile_training(program, leaves(), SETTINGS)
    sides = []
    for function in (run, program):
        kept, given = [], leaves()
        h, e = function(*given)
        ((holder(h, kept) * h.detach()).sum() + (e * 3).sum()).backward(retain_graph=retain)
        assert len([each for each in kept if each is not None]) >= 1
        kept = [each() if callable(each) else each for each in kept]
        shown = [each for each in kept if each is not None]
        sides.append(([x.grad for x in given], shown[:1]))
    torch.testing.assert_close(*sides)
    assert sides[0][1][0].numel()


@pytest.mark.parametrize("call", ["backward", "grad", "grad of it, too", "hook"])
def test_tangents_of_the_caller_stay(call):
    run = compile_training(program, leaves(), SETTINGS)
    given = leaves()
    for tangent in (
        torch.ones(SIZE, SIZE),
        torch.ones(SIZE, SIZE).t(),
        torch.ones(1).expand(SIZE, SIZE),
    ):
        h, _ = run(*given)
        if call == "backward":
            h.backward(tangent)
        elif call == "grad":
            torch.autograd.grad(h, given, tangent, allow_unused=True)
        elif call == "grad of it, too":
            *_, found = torch.autograd.grad(h * 1, [*given, h], tangent, allow_unused=True)
            assert torch.equal(found, torch.ones(SIZE, SIZE))
        else:
            h.register_hook(lambda grad: tangent)  # noqa: B023 - called within the turn
            h.sum().backward()
        assert torch.equal(tangent, torch.ones(SIZE, SIZE))
