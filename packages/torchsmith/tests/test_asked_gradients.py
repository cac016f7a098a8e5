"""Backward passes that ask for some gradients, or for gradients that are differentiated again."""

import copy

import pytest
import torch
import torchsmith
from torch import nn
from torch.profiler import profile


def network():
    torch.manual_seed(0)
    layers = nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 1)
    return nn.Sequential(*layers).double()


def discriminator():
    torch.manual_seed(0)
    layers = nn.Conv1d(3, 8, 3), nn.LeakyReLU(0.2), nn.GroupNorm(2, 8), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(8 * 4, 1)).double()


def penalty(run, x):
    """Two plain calls and one whose gradient is differentiated again."""
    between = (x * 0.5).detach().requires_grad_()
    scores = run(between)
    (grad,) = torch.autograd.grad(scores, between, torch.ones_like(scores), create_graph=True)
    return run(x).mean() - run(x.sin()).mean() + (grad.flatten(1).norm(2, 1) - 1).square().mean()


def physics(run, x):
    """Nothing but derivatives, also of derivatives."""
    x = x.requires_grad_()
    u = run(x)
    (first,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first[:, 0].sum(), x, create_graph=True)
    return (first[:, 1] + u[:, 0] - 0.1 * second[:, 0]).square().mean()


def alternating(run, x):
    """Other gradients at each call."""
    x = x.requires_grad_()
    (grad,) = torch.autograd.grad(run(x).sum(), x)
    return run(x + 0.1 * grad.sign()).square().mean()


@pytest.fixture(autouse=True)
def fresh():
    torchsmith.clear_metrics()


@pytest.mark.parametrize("rows", [(5, 5, 5, 5), (5, 6, 9, 4, 5, 7)])
@pytest.mark.parametrize(
    ("make", "loss", "size"),
    [
        (network, penalty, (3,)),
        (discriminator, penalty, (3, 6)),
        (network, physics, (3,)),
        (network, alternating, (3,)),
        (discriminator, alternating, (3, 6)),
    ],
)
def test_steps_are_eagers(make, loss, size, rows):
    model = make()
    reference = copy.deepcopy(model)
    compiled = torchsmith.compile(model, options={"strict": True})
    for number, n in enumerate(rows):
        sides = []
        for run, net in ((compiled, model), (reference, reference)):
            x = torch.randn(n, *size, dtype=torch.double, generator=torch.manual_seed(number))
            net.zero_grad(set_to_none=True)
            total = loss(run, x)
            total.backward()
            sides.append([total.detach(), x.grad, *(p.grad for p in net.parameters())])
            with torch.no_grad():
                for p in net.parameters():
                    p -= 0.05 * p.grad
        for got, want in zip(*sides, strict=True):
            assert (got is None) == (want is None)
            if want is not None:
                torch.testing.assert_close(got, want)


def test_what_is_always_differentiated_again_runs_as_captured():
    model = network()
    compiled = torchsmith.compile(model, options={"strict": True})
    for _ in range(4):
        x = torch.randn(4, 3, dtype=torch.double)
        physics(compiled, x).backward()
    assert type(compiled(x).grad_fn).__name__ == "AddmmBackward0"  # eager's own
    assert type(compiled(x.detach()).grad_fn).__name__ != "AddmmBackward0"


def test_a_habit_is_of_calls_and_ends():
    model = network()
    compiled = torchsmith.compile(model, options={"strict": True})

    def is_captured():
        x = torch.randn(4, 3, dtype=torch.double)
        return type(compiled(x).grad_fn).__name__ == "AddmmBackward0"  # eager's own

    x = torch.randn(4, 3, dtype=torch.double)
    loss = compiled(x).square().sum()  # rows of a Hessian: one call
    grads = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    for grad in grads[:3]:
        torch.autograd.grad(grad.sum(), list(model.parameters()), retain_graph=True)
    torch.autograd.grad(loss, model[0].weight, create_graph=True)
    assert not is_captured()

    for _ in range(6):  # a warm-up
        grads = torch.autograd.grad(compiled(x).sum(), model[0].weight, create_graph=True)
    assert is_captured()
    assert not all(is_captured() for _ in range(60))


def test_each_of_many_sets_is_no_compile_of_its_own():
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(20)))
    compiled = torchsmith.compile(model, options={"strict": True})
    weights = [layer.weight for layer in model]
    for _ in range(3):
        loss = compiled(torch.ones(2, 4)).square().sum()
        want = torch.autograd.grad(loss, weights, retain_graph=True)
        for weight, other in zip(weights, want, strict=True):
            (got,) = torch.autograd.grad(loss, weight, retain_graph=True)
            torch.testing.assert_close(got, other)
    kinds = [g.kind for g in torchsmith.metrics().graphs]
    assert kinds.count("backward") <= 10


def products(step):
    with profile() as seen:
        step()
    return sum(event.count for event in seen.key_averages() if event.key == "aten::mm")


def test_gradients_that_nobody_asks_for_are_not_computed():
    model = network()
    compiled = torchsmith.compile(model, options={"strict": True})
    x = torch.randn(4, 3, dtype=torch.double, requires_grad=True)
    first = model[0].weight
    asked = ([x], [first], [x, first], list(model.parameters()))
    for inputs in asked:
        for _ in range(3):
            got = torch.autograd.grad(compiled(x).sum(), inputs)
            for mine, true in zip(got, torch.autograd.grad(model(x).sum(), inputs), strict=True):
                torch.testing.assert_close(mine, true)
        counts = [
            products(lambda run=run, inputs=inputs: torch.autograd.grad(run(x).sum(), inputs))
            for run in (compiled, model)
        ]
        assert counts[0] <= counts[1]
    compiled(x).sum().backward(inputs=[x])
    assert first.grad is None and x.grad is not None


def test_a_program_that_turns_from_all_gradients_to_some_is_noticed():
    model = network()
    compiled = torchsmith.compile(model, options={"strict": True})
    x = torch.randn(4, 3, dtype=torch.double, requires_grad=True)
    for _ in range(30):
        compiled(x).sum().backward()
    for _ in range(12):
        (got,) = torch.autograd.grad(compiled(x).sum(), x)
        torch.testing.assert_close(got, torch.autograd.grad(model(x).sum(), x)[0])
    counts = [
        products(lambda run=run: torch.autograd.grad(run(x).sum(), x)) for run in (compiled, model)
    ]
    assert counts[0] <= counts[1]


def test_a_hook_sees_a_gradient_that_is_asked_for_on_the_way():
    model = network()
    compiled = torchsmith.compile(model, options={"strict": True})
    x = torch.randn(4, 3, dtype=torch.double, requires_grad=True)
    for _ in range(3):
        seen = []
        y = x * 2
        y.register_hook(lambda grad, seen=seen: seen.append(grad))
        torch.autograd.grad(compiled(y).sum(), x)
        assert len(seen) == 1
