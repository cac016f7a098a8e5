"""``backward`` and ``torch.autograd.grad`` inside, ``.grad`` read and written."""

import random
import warnings

import pytest
import torch
import torchsmith_tracer
from torch import nn


def leaf(*sizes):
    return torch.randn(*sizes).requires_grad_()


def accumulates(C):
    w = leaf(3)

    def run(x):
        y = (w * x).sum()
        y.backward()
        return y.detach()

    f, seen = C(run), []
    for _ in range(3):
        seen += [f(torch.randn(3)), w.grad.clone()]
    held = w.grad
    f(torch.ones(3))
    seen += [held is w.grad, held.clone()]
    w.grad = None
    f(torch.ones(3))
    return [*seen, w.grad, held]


def returns_the_gradient(C):
    w = leaf(3)

    def run():
        y = (w * w).sum()
        y.backward(retain_graph=True)
        first = w.grad
        y.backward()
        return first, w.grad

    f = C(run)
    (a, b), (c, d) = f(), f()
    return a is b, c is d, a is w.grad, a


def several_roots(C):
    w, v = leaf(3), leaf(3)

    def run(x):
        torch.autograd.backward([(w * x), (v * w)], [torch.ones(3), x])
        return w.grad, v.grad

    f = C(run)
    return [[t.clone() for t in f(torch.randn(3))] for _ in range(2)]


def only_some_inputs(C):
    w, v = leaf(3), leaf(3)

    def run(x):
        (w * v * x).sum().backward(inputs=[v])
        return w.grad is None, v.grad is None

    f = C(run)
    return f(torch.randn(3)), f(torch.randn(3)), w.grad, v.grad


def shared_gradient(C):
    a, b = leaf(3), leaf(3)

    def run(g):
        (a + b).backward(g)
        a.grad.mul_(2)

    g = torch.ones(3)
    f = C(run)
    f(g)
    f(g)
    return a.grad, b.grad, g, a.grad.data_ptr() == b.grad.data_ptr()


def unused_leaf(C):
    w, v = leaf(3), leaf(3)

    def run(x):
        ((w * x).sum() + v.sum() * 0).backward()
        return v.grad

    f = C(run)
    return f(torch.ones(3)), f(torch.ones(3)), w.grad


def strides_follow_the_leaf(C):
    w = torch.randn(4, 3).t().requires_grad_()

    def run(x):
        (w * x).sum().backward()

    f = C(run)
    f(torch.randn(3, 4))
    return w.grad.stride(), w.grad


def twice_differentiated(C):
    w = leaf(3)

    def run(x):
        (g,) = torch.autograd.grad((w**3 * x).sum(), w, create_graph=True)
        g.sum().backward()
        return g.detach(), w.grad.clone()

    f = C(run)
    return f(torch.randn(3)), f(torch.randn(3))


def grad_of_results(C):
    w = leaf(3)

    def run(x, use):
        mid = w * x
        out = (mid * mid).sum() if use else (mid.detach() * w).sum()
        return torch.autograd.grad(out, [mid, w], allow_unused=True)

    f = C(run)
    x = torch.randn(3)
    return f(x, True), f(x, False), f(x + 1, True)


def born_inside(C):
    def run(x):
        y = x.clone().requires_grad_()
        before = y.grad
        (y * y).sum().backward()
        return before, y.grad, y, y.is_leaf, y.requires_grad

    f = C(run)
    return f(torch.ones(2)), f(torch.zeros(2)), f(torch.ones(2))[2].grad


def asks_for_gradients(C):
    x = torch.randn(3)

    def run(x):
        x.requires_grad_()
        return x * 2

    f = C(run)
    y = f(x)
    y.sum().backward()
    f(x).sum().backward()
    return x.requires_grad, x.grad, y


def takes_them_back(C):
    w = leaf(3)

    def run():
        before = w.requires_grad
        w.requires_grad = False
        w.add_(1)
        return before, (w * 2).requires_grad

    f = C(run)
    return f(), f(), w


def stores_gradients(C):
    w, v = leaf(3), leaf(3)
    v.grad = torch.ones(3)

    def run(x):
        w.grad = x * 2
        old, v.grad = v.grad, None
        with torch.no_grad():
            w.grad.add_(1)
        return w.grad, v.grad, old

    f = C(run)
    a, b = f(torch.ones(3)), f(torch.zeros(3))
    return a, b, w.grad is b[0], v.grad


def accumulates_by_hand(C):
    w = leaf(3)

    def run(x):
        w.grad = None
        (w * x).sum().backward()
        g = w.grad
        w.grad = None
        (w * x * 2).sum().backward()
        w.grad = w.grad + g

    f = C(run)
    f(torch.ones(3))
    f(torch.randn(3))
    return w.grad


def clips(C):
    m = nn.Linear(3, 2)

    def run():
        norm = nn.utils.clip_grad_norm_(m.parameters(), 0.5)
        nn.utils.clip_grad_value_(m.parameters(), 0.1)
        return norm

    f, seen = C(run), []
    for _ in range(2):
        m(torch.ones(1, 3)).sum().backward()
        seen += [f(), m.weight.grad.clone()]
    return seen


def dropout_and_buffers(C):
    m = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))

    def run(x):
        loss = m(x).square().mean()
        loss.backward()
        return loss.detach()

    f = C(run)
    seen = [f(torch.randn(6, 4)) for _ in range(3)]
    return seen, dict(m.state_dict()), [p.grad for p in m.parameters()]


class Triple(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 + x


def through_a_function_of_the_users(C):
    w = leaf(3)

    def run(x):
        Triple.apply(w * x).sum().backward()
        return w.grad.clone()

    f = C(run)
    return f(torch.randn(3)), f(torch.randn(3))


def _go_back(loss, how, weights):
    """The function that is compiled does not name what this does."""
    if how == "backward":
        loss.backward()
        return [w.grad.clone() for w in weights]
    return torch.autograd.grad(loss, weights)


def _repeated(how):
    """Equal operators, whose results are remembered, then a look at where these came from."""

    def program(C):
        layer = nn.Linear(3, 3)
        weights = list(layer.parameters())

        def run(x):
            seen = []
            for _ in range(3):
                x = layer(torch.tanh(x)) + 1
                values, places = x.max(dim=0)
                x.mul_(2)
                seen += [x.is_leaf, x.requires_grad, places.requires_grad, values.output_nr]
                with torch.no_grad():
                    seen += [layer(x).requires_grad, x.detach().is_leaf]
                x = x + values + torch.std_mean(x, dim=0)[1]
            return seen, _go_back(x.sum(), how, weights)

        f = C(run)
        return f(torch.ones(2, 3)), f(torch.ones(2, 3))

    program.__name__ = f"repeated_{how}"
    return program


WHOLE = [
    _repeated("backward"),
    _repeated("grad"),
    accumulates, returns_the_gradient, several_roots, only_some_inputs, shared_gradient,
    unused_leaf, strides_follow_the_leaf, twice_differentiated, grad_of_results, born_inside,
    asks_for_gradients, takes_them_back, stores_gradients, accumulates_by_hand, clips,
    dropout_and_buffers, through_a_function_of_the_users,
]  # fmt: skip


@pytest.mark.parametrize("body", WHOLE, ids=lambda f: f.__name__)
def test_in_one_graph(program, body):
    program(body)


def history_from_outside(C):
    w = leaf(3)
    f = C(lambda x: x.sum().backward())
    f(w * 2)
    f(w * 3)
    return w.grad


def hooks_of_the_users(C):
    w, calls = leaf(3), []
    w.register_hook(lambda g: g * 2)
    w.register_post_accumulate_grad_hook(lambda p: calls.append(p.grad.clone()))

    def run(x):
        calls.append("before")
        (w * x).sum().backward()
        calls.append("after")

    f = C(run)
    f(torch.ones(3))
    f(torch.ones(3))
    return calls, w.grad


def hook_that_comes_later(C):
    w = leaf(3)
    f = C(lambda x: (w * x).sum().backward())
    f(torch.ones(3))
    handle = w.register_hook(lambda g: g * 10)
    f(torch.ones(3))
    handle.remove()
    f(torch.ones(3))
    return w.grad


def wrong_uses(C):
    w, seen = leaf(3), []

    def without_history(x):
        x.sum().backward()

    def freed(x):
        y = (w * w).sum()
        y.backward()
        y.backward()

    def not_a_scalar(x):
        (w * x).backward()

    def wrong_grad(x):
        w.grad = x[:2]

    for fn in (without_history, freed, not_a_scalar, wrong_grad):
        f = C(fn)
        for _ in range(2):
            try:
                f(torch.ones(3))
            except RuntimeError as e:
                seen.append(str(e)[:40])
    return seen, w.grad


def grad_of_a_result(C):
    w = leaf(3)

    def run(x):
        y = w * x
        return y.grad

    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        C(run)(torch.ones(3))
    return [str(w.message)[:40] for w in shown]


def an_operator_fails_after_it(C):
    w, v = leaf(3), leaf(3)
    v.grad = torch.ones(3)

    def run(x, i):
        ((w + v) * x).sum().backward()
        return x[i]

    f, seen = C(run), []
    for at in (1, 7, 2):
        try:
            seen.append(f(torch.ones(3), torch.tensor([at])))
        except IndexError:
            seen.append("out of range")
    return seen, w.grad, v.grad


BROKEN = [
    history_from_outside, hooks_of_the_users, hook_that_comes_later, wrong_uses, grad_of_a_result,
    an_operator_fails_after_it,
]  # fmt: skip


@pytest.mark.parametrize("body", BROKEN, ids=lambda f: f.__name__)
def test_agrees_across_breaks(program, body):
    program(body, broken=True)


@pytest.mark.parametrize(
    "write",
    [
        lambda y: y.add_(1),
        lambda y: y.view(-1).mul_(2),
        lambda y: y[0].add_(y[1].detach()),
        lambda y: y.t().sin_(),
        lambda y: y[:, ::2].exp_(),
    ],
)
@pytest.mark.parametrize("make", [lambda w: w * 2, lambda w: (w * 2)[1:], lambda w: w @ w.t() @ w])
def test_a_computed_argument_is_written(make, write):
    """What comes out of an earlier graph may be written, though it requires gradients."""

    def fn(y):
        write(y)
        return y * y

    w = torch.randn(4, 3, requires_grad=True)
    compiled = torchsmith_tracer.compile(fn, backend="eager", fullgraph=True)
    sides = []
    for f in (compiled, fn):
        y = make(w)
        out = f(y)
        (grad,) = torch.autograd.grad(out.sum() + y.cos().sum(), w)
        sides.append((out, y, grad))
    for mine, true in zip(*sides):
        assert torch.equal(mine, true)


FROM_OUTSIDE = {
    # name -> (what asks for gradients of w and y, which is computed from w before, one graph)
    "of what is behind": (lambda w, y: torch.autograd.grad(y, [w]), False),
    "unused allowed": (lambda w, y: torch.autograd.grad(y, [w], allow_unused=True), False),
    "one of two ways": (lambda w, y: torch.autograd.grad(y * w.sum(), [w]), False),
    "both": (lambda w, y: torch.autograd.grad(y * 2, [w, y], allow_unused=True), False),
    "by keywords": (lambda w, y: torch.autograd.grad(inputs=w, outputs=y * 2), False),
    "of itself alone": (lambda w, y: torch.autograd.grad(y * w.sum(), y), True),
    "of what is made here": (
        lambda w, y: torch.autograd.grad((m := y * w).sum(), [m, w * 2], allow_unused=True),
        True,
    ),
    "of its own": (lambda w, y: torch.autograd.grad(y.detach() * w.sum(), w), True),
}


@pytest.mark.parametrize("name", FROM_OUTSIDE)
def test_gradients_through_what_was_computed_before(name):
    fn, one_graph = FROM_OUTSIDE[name]
    compiled = torchsmith_tracer.compile(fn, backend="eager", fullgraph=one_graph)
    for _ in range(2):
        w = leaf(3)
        expected, found = (f(w, w.square().sum()) for f in (fn, compiled))
        torch.testing.assert_close(found, expected)


def test_gradients_behind_a_break():
    rng = [random.Random(4) for _ in range(2)]
    model = nn.Linear(3, 2)

    def fn(x, rng):
        loss = model(x).square().sum()
        chosen = [p for p in model.parameters() if rng.random() < 2]
        torch._dynamo.graph_break()
        return torch.autograd.grad(loss, chosen, allow_unused=True)

    x = torch.randn(4, 3)
    compiled = torchsmith_tracer.compile(fn, backend="eager")
    torch.testing.assert_close(compiled(x, rng[0]), fn(x, rng[1]))
