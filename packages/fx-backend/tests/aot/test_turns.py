"""Gradients reach leaves in eager's order: what hooks see, and what is left when one raises."""

import pytest
import torch
from torch import fx
from torchsmith_fx_backend import Settings
from torchsmith_fx_backend._src.aot import lone, turns
from torchsmith_fx_backend._src.driver import compile_training

SETTINGS = Settings(graph_cache=False, verify=True, strict=True)


pytestmark = pytest.mark.usefixtures("reference_machine")


def layers(x, *weights):
    for w in weights:
        x = (x @ w).tanh()
    return (x.sum(),)


def skips(x, *weights):
    for number, w in enumerate(weights):
        x = x + (x @ w if number % 2 else x * w).sin()
    return (x.square().sum(),)


def shared(x, *weights):
    for w in (*weights, *weights[::-1]):
        x = (x @ w).tanh()
    return (x.sum(),)


def two_results(x, *weights):
    first, second = x, x
    for w in weights[::2]:
        first = (first @ w).tanh()
    for w in weights[1::2]:
        second = (second * w).sin()
    return first.sum(), second.sum()


PROGRAMS = [layers, skips, shared, two_results]


def given(count, kinds):
    generator = torch.Generator().manual_seed(count)
    tensors = []
    for number in range(count + 1):
        x = torch.randn(3, 3, generator=generator, dtype=torch.float64)
        kind = kinds[number % len(kinds)]
        tensors.append(x.requires_grad_(kind != "constant"))
    return tensors


def play(function, count, kinds, bad=None):
    """The numbers of the inputs in the order of their hooks, and their gradients."""
    calls = []

    def note(number):
        def hook(grad):
            calls.append(number)
            if number == bad:
                raise KeyError(number)

        return hook

    leaves = given(count, kinds)
    args = []
    for number, x in enumerate(leaves):
        if x.requires_grad:
            x.register_hook(note(number))
        inner = kinds[number % len(kinds)] == "inner"
        args.append(x * 2 if inner else x)
    results = function(*args)
    try:
        sum(y for y in results if y.requires_grad).backward()
    except KeyError:
        calls.append("raised")
    return calls, [x.grad for x in leaves]


@pytest.mark.parametrize("kinds", [["leaf"], ["constant", "leaf"], ["inner", "leaf", "leaf"]])
@pytest.mark.parametrize("count", [1, 2, 3, 6, 13])
@pytest.mark.parametrize("program", PROGRAMS)
def test_order_of_hooks(program, count, kinds):
    examples = given(count, kinds)
    inner = [x * 2 if kinds[i % len(kinds)] == "inner" else x for i, x in enumerate(examples)]
    compiled = compile_training(lambda *args: program(*args), inner, SETTINGS)
    for _ in range(2):
        order, grads = play(compiled, count, kinds)
        expected, eager = play(program, count, kinds)
        leaves = [i for i in expected if kinds[i % len(kinds)] == "leaf"]
        if program is not two_results:
            assert [i for i in order if i in leaves] == leaves
        assert sorted(order) == sorted(expected)
        torch.testing.assert_close(grads, eager)


@pytest.mark.parametrize("bad", [0, 1, 3, 5])
def test_a_hook_that_raises_leaves_the_gradients_before_it(bad):
    compiled = compile_training(lambda *args: layers(*args), given(5, ["leaf"]), SETTINGS)
    ours, eager = play(compiled, 5, ["leaf"], bad), play(layers, 5, ["leaf"], bad)
    assert ours[0] == eager[0]
    assert [g is None for g in ours[1]] == [g is None for g in eager[1]]


@pytest.mark.parametrize("program", [layers, skips, shared])
def test_steps_taken_in_hooks(program):
    def train(function):
        leaves, calls = given(6, ["leaf"]), []
        numbers = {x: number for number, x in enumerate(leaves)}

        def step(leaf):
            calls.append(numbers[leaf])
            with torch.no_grad():
                leaf.sub_(leaf.grad, alpha=0.1)
            leaf.grad = None

        for x in leaves:
            x.register_post_accumulate_grad_hook(step)
        for _ in range(3):
            function(*leaves)[0].backward()
        return calls, [x.detach() for x in leaves], [x.grad for x in leaves]

    compiled = compile_training(lambda *args: program(*args), given(6, ["leaf"]), SETTINGS)
    ours, eager = train(compiled), train(program)
    assert ours[0] == eager[0]
    torch.testing.assert_close(ours[1:], eager[1:])


@pytest.mark.parametrize("graph", [layers, shared, two_results])
def test_no_number_of_a_hook_is_taken(graph):
    """Programs read the counter when they register a hook, and guards hold what they read."""
    lone.alone.cache_clear()
    turns._queue.cache_clear()
    before = torch.utils.hooks.RemovableHandle.next_id
    leaves = given(3, ["leaf"])
    compiled = compile_training(lambda *args: graph(*args), leaves, SETTINGS)
    sum(compiled(*leaves)).backward()
    assert torch.utils.hooks.RemovableHandle.next_id == before
    assert all(x.grad is not None for x in leaves)


APART = {
    "view first": lambda x, y: (x.t(), (y + 9).sin().exp()),
    "view last": lambda x, y: ((x + 9).sin().exp(), y.t()),
    "view between": lambda x, y: (z := x.sin(), y.t(), z.exp())[1:],
    "inner nodes": lambda x, y: ((v := x.t(), y.flatten()[[3, 2]])[1], v - v),
    "first begun, last done": lambda x, y: ((v := x.sin(), y.cos())[1], v.exp()),
    "one after the other": lambda x, y: (x.sin().exp(), y.cos().exp()),
    "parts and a view": lambda x, y: (x.sin(), y.t(), (x * 2).exp()),
}


@pytest.mark.parametrize("name", APART)
@pytest.mark.parametrize("order", [1, -1])
def test_results_that_share_nothing_reach_their_leaves_in_turn(name, order):
    def heard(function):
        calls = []
        leaves = [torch.ones(2, 2, requires_grad=True) for _ in "xy"]
        for number, leaf in enumerate(leaves):
            leaf.register_hook(lambda grad, number=number: calls.append(number))
        results = function(*leaves)[::order]
        torch.autograd.backward(results, [torch.ones_like(r) for r in results])
        return calls, [leaf.grad for leaf in leaves]

    fn = APART[name]
    example = [torch.ones(2, 2, requires_grad=True) for _ in "xy"]
    compiled = compile_training(torch.fx.symbolic_trace(fn), example, SETTINGS)
    (mine, ours), (true, eager) = heard(compiled), heard(fn)
    assert mine == true
    torch.testing.assert_close(ours, eager)


def views_as_made(a, b, c):
    p, q = a.t(), b.t()
    return q, p, c.sin()


def views_of_views_around(a, b, c):
    q = b.t()
    r = c.sin()
    return q.unsqueeze(0), r, a.t()


def lists_of_views(a, b, c):
    parts, r = a.unbind(), c.sin()
    q = b.chunk(2)
    return q[1], parts[0], q[0][0], r, parts[2]


def views_alone(a, b, c):
    q, p, r = b.t(), a.t(), c.t()
    return r[0], q[0], p


VIEWS = [views_as_made, views_of_views_around, lists_of_views, views_alone]


@pytest.mark.parametrize("program", VIEWS)
def test_leaves_of_which_results_are_views(program):
    def order(function):
        seen = []
        leaves = [torch.ones(3, 3, requires_grad=True) for _ in range(3)]
        for number, leaf in enumerate(leaves):
            leaf.register_post_accumulate_grad_hook(lambda _, number=number: seen.append(number))
        results = function(*leaves)
        torch.autograd.backward(results, [torch.ones_like(x) for x in results])
        return seen

    examples = [torch.ones(3, 3, requires_grad=True) for _ in range(3)]
    compiled = compile_training(fx.symbolic_trace(program), examples, SETTINGS)
    assert order(compiled) == order(program)
