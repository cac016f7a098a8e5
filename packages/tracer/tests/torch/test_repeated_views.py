"""Views that a trace has made before: results, and everything that tells a view from a copy."""

import pytest
import torch
import torchsmith_tracer

WEIGHT = torch.nn.Parameter(torch.arange(1.0, 9.0))


def twice(view):
    """Two views of the same kind of two tensors, so that the second is remembered."""

    def program(x):
        first, second = x * 2, x + 1
        return view(first), view(second), first, second

    return program


VIEWS = {
    "view": lambda x: x.view(4, 2),
    "transpose": lambda x: x.t(),
    "slice": lambda x: x[1:, ::2],
    "expand": lambda x: x.unsqueeze(0).expand(3, 2, 4),
    "split": lambda x: x.split(2, 1),
    "unbind": lambda x: list(x.unbind(0)),
    "reshape": lambda x: x.t().reshape(8),
    "real": lambda x: x.view(torch.int32),
    "detach": lambda x: x.detach(),
    "same": lambda x: x.view_as(x).contiguous(),
    "diagonal": lambda x: x.diagonal().view(2, 1),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", VIEWS)
def test_equal_views(name, grad, agree):
    agree(twice(VIEWS[name]), torch.arange(8.0).view(2, 4).requires_grad_(grad))
    with torch.no_grad():
        agree(twice(VIEWS[name]), torch.arange(8.0).view(2, 4).requires_grad_(grad))


def written(x):
    first, second = x * 2, x + 1
    first.view(8).add_(1)
    second.view(8).add_(2)
    return first, second, first.sum() + second.sum()


def base_written(x):
    views = [t.view(8) for t in (x * 2, x * 3, x)]
    x.add_(1)
    return views[0] * views[2], views[1] + views[2]


def gets_a_gradient(x):
    a, b = torch.zeros(2, 4), torch.zeros(2, 4)
    a.view(8).add_(1)
    b.view(8).mul_(WEIGHT)
    return a.requires_grad, b.requires_grad, (a + b).sum()


def gets_a_gradient_by_a_copy(x):
    made = [torch.zeros(2, 4) for _ in range(3)]
    for n, t in enumerate(made):
        t[0].copy_(WEIGHT[:4] * n)
    return [t.requires_grad for t in made], sum(made)


def written_through_out(x):
    a, b = torch.zeros(8), torch.zeros(8)
    torch.mul(x.view(8), 2, out=a.view(8))
    torch.add(x.view(8), 2, out=b.view(8))
    return a, b


def later_a_leaf(x):
    a, b = (x * 2).view(8), (x * 3).view(8)
    b.requires_grad_()
    loss = (a * b).sum()
    return torch.autograd.grad(loss, b), b.is_leaf


def asks(x):
    a, b = (x * 2).view(8), (x * 3).view(8)
    return a if a._is_view() and b._is_view() and not (x * 2)._is_view() else x


def detaches(x):
    a, b = (x * 2).view(8), (x * 3).view(8)
    return a + b.detach_()


def without_gradients_first(x):
    with torch.no_grad():
        a, b = torch.zeros(2, 4), torch.zeros(2, 4)
        a, b = a.view(8), b.view(8)
    b.mul_(WEIGHT)
    return a, b


PROGRAMS = [written, base_written, gets_a_gradient, gets_a_gradient_by_a_copy]
PROGRAMS += [written_through_out, later_a_leaf, asks]


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_tells_a_view_from_a_copy(program, agree):
    agree(program, torch.arange(8.0).view(2, 4), calls=3)


@pytest.mark.parametrize("program", [detaches, without_gradients_first])
def test_writes_that_views_refuse(program):
    x = torch.arange(8.0).view(2, 4)
    compiled = torchsmith_tracer.compile(program, backend="eager")
    for _ in range(2):
        with pytest.raises(RuntimeError) as expected:
            program(x)
        with pytest.raises(RuntimeError) as found:
            compiled(x)
        assert str(found.value).splitlines()[0] == str(expected.value).splitlines()[0]


def test_gradients_through_repeated_views():
    x = torch.randn(2, 4, requires_grad=True)
    y = torch.randn(2, 4, requires_grad=True)

    def program(x):
        a, b = torch.zeros(2, 4), torch.zeros(2, 4)
        a.view(8)[2:].copy_(x.view(8)[2:])
        b.view(8)[2:].copy_((x * 2).view(8)[2:])
        return (a * b).sum()

    with torch.no_grad():
        y.copy_(x)
    program(x).backward()
    compiled = torchsmith_tracer.compile(program, backend="eager")
    for calls in range(1, 3):
        compiled(y).backward()
        torch.testing.assert_close(y.grad, x.grad * calls)


WHERE_THEY_BEGIN = {
    "input": lambda x: x.storage_offset() + x,
    "view": lambda x: (x[1:].storage_offset(), x.view(-1).storage_offset(), x * 1),
    "as_strided": lambda x: x.detach().as_strided((2,), (1,)).storage_offset() * x,
    "own memory": lambda x: (x.clone()[1:].storage_offset(), x * 1),
    "branch": lambda x: x + 1 if x.unsqueeze(0)[:, 1:].storage_offset() > 5 else x - 1,
}


@pytest.mark.parametrize("name", WHERE_THEY_BEGIN)
def test_views_begin_where_those_of_this_call_do(name):
    """An input may lie anywhere in its memory, and no other guard says where."""
    fn, memory = WHERE_THEY_BEGIN[name], torch.arange(36.0).view(9, 4)
    compiled = torchsmith_tracer.compile(fn, fullgraph=True)
    for start in (0, 1, 4, 2, 0):
        x = memory[start : start + 3]
        torch.testing.assert_close(compiled(x), fn(x), rtol=0, atol=0)
    torch.testing.assert_close(compiled(x.clone()), fn(x.clone()), rtol=0, atol=0)
