"""Writes that a trace has made before, to tensors that lie alike, and known numbers made again."""

import operator

import pytest
import torch
from torchsmith_tracer._src.graph.fakes import FakeRunner

WEIGHT = torch.nn.Parameter(torch.arange(1.0, 9.0).view(2, 4))

WRITES = {
    "number": lambda a, b: a.add_(1),
    "tensor": lambda a, b: a.mul_(b),
    "itself": lambda a, b: a.add_(a),
    "own alias": lambda a, b: a.add_(a.detach()),
    "own data": lambda a, b: a.add_(a.data),
    "operator": lambda a, b: operator.iadd(a, b),
    "fused": lambda a, b: a.addcmul_(b, b, value=0.5),
    "view": lambda a, b: a[0].lerp_(b[1], 0.25),
    "filled": lambda a, b: a.zero_(),
    "copied": lambda a, b: a.copy_(b.double()),
    "transposed": lambda a, b: a.t_().add_(1),
    "detached": lambda a, b: a.detach_().add_(1),
    "resized": lambda a, b: a.resize_(2, 4).add_(1),
    "set": lambda a, b: a.set_(b).add_(1),
}


def three_times(write):
    """One write to three pairs of tensors; what it returns, and how often each was written."""

    def program(x):
        pairs = [(x * n, x + n) for n in range(3)]
        found = [write(a, b) for a, b in pairs]
        same = [result is a for result, (a, _) in zip(found, pairs)]
        return found, same, [(a, b, a._version - b._version) for a, b in pairs]

    return program


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", WRITES)
def test_equal_writes(name, grad, agree):
    given = torch.arange(8.0).view(2, 4)
    agree(three_times(WRITES[name]), given)
    with torch.set_grad_enabled(grad):
        agree(three_times(WRITES[name]), given.clone().requires_grad_(not grad))


def of_inputs(a, b, c):
    for tensor in (a, b, c):
        tensor.mul_(0.5)
        tensor.add_(WEIGHT.detach())
    return a + b + c


def test_inputs_are_written_alike(agree):
    agree(of_inputs, *(torch.full((2, 4), float(n)) for n in range(3)))


def gets_a_gradient(x):
    a, b = torch.zeros(2, 4), torch.zeros(2, 4)
    a.mul_(x)
    b.mul_(WEIGHT)
    return a.requires_grad, b.requires_grad, (a + b).sum()


def views_count(x):
    a, b = x + 1, x + 1
    views = a.view(8), b.view(8)
    a.add_(1)
    b.add_(1)
    return [v._version for v in views], views[0] * views[1]


def overlapping(x):
    a, b = x.expand(3, 2, 4).clone(), x.expand(3, 2, 4)
    a.add_(1)
    try:
        b.add_(1)
    except RuntimeError as error:
        return a, str(error)
    return a, b


@pytest.mark.parametrize("program", [gets_a_gradient, views_count, overlapping])
def test_what_else_depends_on_writes(program, agree):
    agree(program, torch.arange(8.0).view(2, 4))


def counted(x):
    found = []
    for start in (0.0, 0.0, 2.0):
        step = torch.tensor(start)
        step += 1
        half = 1 - 0.5**step
        half += 1
        found += [step.item(), half.item()]
    return x * found[1], found


def views_of_numbers(x):
    first, second = torch.tensor(1.0), torch.tensor(1.0)
    parts = first.view(1), second.view(1)
    parts[1].add_(1)
    return x * second.item(), first.item(), parts


def made_again(x):
    first, second = torch.tensor(1.0), torch.tensor(1.0)
    copies = first + 1, second + 1
    copies[0].mul_(3)
    return x * copies[1].item(), copies[0].item(), copies[1].item()


@pytest.mark.parametrize("program", [counted, views_of_numbers, made_again])
def test_known_numbers(program, agree):
    agree(program, torch.arange(8.0))


def test_each_kind_runs_once(agree, monkeypatch):
    ran = []
    run = FakeRunner._call
    monkeypatch.setattr(FakeRunner, "_call", lambda self, *a: ran.append(a[1]) or run(self, *a))
    agree(of_inputs, *(torch.full((2, 4), float(n)) for n in range(3)))
    agree(counted, torch.arange(8.0))
    assert ran.count("mul_") == ran.count("add_") == 1
    assert ran.count(torch.tensor) == 2
