"""Backward hooks of modules and ``retain_grad``: nodes that do what eager does, for backends that
run them as they are; what changes between calls, and what is left behind."""

import gc
import weakref

import pytest
import torch
import torchsmith_tracer
from torch import nn


@pytest.fixture(autouse=True)
def native(capture):
    capture.native_nodes = True


def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def note(log):
    def hook(module, *gradients):
        log.append((type(module).__name__, *gradients))

    return hook


def counting():
    calls = []

    def hook(module, inputs, outputs):
        calls.append(1)
        return (inputs[0] * len(calls),)

    return hook


HOOKS = {
    "hook": lambda m, log: [m[2].register_full_backward_hook(note(log))],
    "pre-hook": lambda m, log: [m[2].register_full_backward_pre_hook(note(log))],
    "new gradient": lambda m, log: [m[2].register_full_backward_hook(counting())],
    "new gradient before": lambda m, log: [
        m[2].register_full_backward_pre_hook(lambda mod, grads: (grads[0] * 3,))
    ],
    "first module": lambda m, log: [m[0].register_full_backward_hook(note(log))],
    "all modules": lambda m, log: [
        register(note(log))
        for each in m
        for register in (each.register_full_backward_hook, each.register_full_backward_pre_hook)
    ],
    "compiled module": lambda m, log: [
        m.register_full_backward_hook(note(log)),
        m.register_full_backward_pre_hook(note(log)),
    ],
    "for every module": lambda m, log: [
        nn.modules.module.register_module_full_backward_hook(note(log))
    ],
}


@pytest.mark.parametrize("register", HOOKS.values(), ids=HOOKS)
@pytest.mark.parametrize("needs", [True, False])
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_hooks_of_modules_are_in_one_graph(program, capture, register, needs):
    def body(C):
        m, log, seen = net(), [], []
        handles, run = register(m, log), C(m)
        for i in range(3):
            x = torch.full((2, 3), 1.0 + i, requires_grad=needs)
            y = run(x)
            y.sum().backward()
            seen.append((y, x.grad, [p.grad.clone() for p in m.parameters()]))
        for handle in handles:
            handle.remove()
        return seen, log

    assert program(body) == 1 and capture.n == 1


def test_hooks_change_between_calls(program):
    def body(C):
        m, log, seen = net(), [], []
        handles, run = [m[2].register_full_backward_hook(note(log))], C(m)
        changes = {
            1: lambda: handles.append(m[2].register_full_backward_hook(counting())),
            2: lambda: m[2]._backward_hooks.__setitem__(handles[0].id, counting()),
            3: lambda: handles[0].remove(),
            4: lambda: handles[1].remove(),
            5: lambda: handles.append(m[0].register_full_backward_pre_hook(note(log))),
        }
        for i in range(7):
            changes.get(i, int)()
            x = torch.ones(2, 3, requires_grad=True)
            run(x).sum().backward()
            seen.append(x.grad)
        return seen, log

    assert program(body) <= 6  # each state once


def test_two_modules_of_a_class_have_hooks_of_their_own(program):
    def body(C):
        run, log = C(lambda m, x: m(x) * 2), []
        for i in (0, 1, 0):
            m = net()[0]
            m.register_full_backward_hook(lambda mod, gi, go, i=i: log.append((i, go[0])))
            run(m, torch.ones(1, 3)).sum().backward()
        return log

    program(body)


def test_no_hooks_without_gradients(program):
    def body(C):
        m, log = net(), []
        m[2].register_full_backward_hook(note(log))
        run, seen = C(m), []
        for _ in range(2):
            with torch.no_grad():
                seen.append(run(torch.ones(1, 3)))
            run(torch.ones(1, 3)).sum().backward()
        return seen, log

    assert program(body) == 2


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x, scale=None):
        return self.inner(x), "text", x * 2


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.two = Two()

    def forward(self, x):
        a, _, b = self.two(x, scale=2)
        return a + b


def test_results_that_are_no_tensors(program):
    def body(C):
        m, log, seen = Outer(), [], []
        m.two.register_full_backward_hook(note(log))
        run = C(m)
        for _ in range(2):
            x = torch.ones(2, 3, requires_grad=True)
            run(x).sum().backward()
            seen.append(x.grad)
        return seen, log

    assert program(body) == 1


def test_a_hook_that_raises(program):
    def body(C):
        def refuse(module, *gradients):
            raise ValueError("no gradient")

        m, seen = net(), []
        m[2].register_full_backward_hook(refuse)
        run = C(m)
        for _ in range(2):
            try:
                run(torch.ones(1, 3)).sum().backward()
            except ValueError as e:
                seen.append(str(e))
        return seen

    program(body)


def retained(x):
    y = x * 2
    y.retain_grad()
    return y, (y**2).sum()


def retained_then_changed(x):
    y = x * 2
    y.retain_grad()
    y.mul_(3)
    return y, y.sum()


def retained_input(y):
    y.retain_grad()
    return y, (y**2).sum(), y.retains_grad


class Keeps(nn.Module):
    def forward(self, x):
        self.hidden = x * 3
        self.hidden.retain_grad()
        return self.hidden, self.hidden.relu().sum()


@pytest.mark.parametrize("fn", [retained, retained_then_changed, retained_input, Keeps()])
def test_retained_gradients(program, capture, fn):
    def body(C):
        run, seen = C(fn), []
        for i in range(3):
            x = torch.arange(3.0 + i, requires_grad=True)
            y, z, *rest = run(x + 1)
            z.backward()
            seen.append((y.grad, y.retains_grad, x.grad, rest))
        return seen

    program(body)


def test_a_backward_pass_in_the_graph_waits_for_them(program):
    def body(C):
        m, log = net(), []
        m[2].register_full_backward_hook(lambda *args: log.append(list(log)))

        def step(x):
            log.append("before")
            y = m(x) * 2
            y.retain_grad()
            y.sum().backward()
            return x.grad, y.grad

        run = C(step)
        return [run(torch.ones(2, 3, requires_grad=True)) for _ in range(2)], log

    program(body, broken=True)


def test_other_backends_are_not_given_such_nodes(program, capture):
    del capture.native_nodes

    def body(C):
        m, log, seen = net(), [], []
        m[2].register_full_backward_hook(note(log))
        run, keep = C(m), C(retained)
        for _ in range(2):
            x = torch.ones(2, 3, requires_grad=True)
            y, z = keep(run(x))
            z.backward()
            seen.append((x.grad, y.grad))
        return seen, log

    program(body, broken=True)
    names = {getattr(t, "__name__", t) for i in range(capture.n) for t in capture.targets(i)}
    assert not names & {"set_up_hooks", "retain_grad"}


def test_the_graph_does_not_keep_the_module():
    def make():
        m = net()
        m[2].register_full_backward_hook(lambda *args: None)
        compiled = torchsmith_tracer.compile(lambda m, x: m(x), backend="eager")
        compiled(m, torch.ones(1, 3)).sum().backward()
        return weakref.ref(m[2]), compiled

    gone, compiled = make()
    gc.collect()
    assert gone() is None and compiled
