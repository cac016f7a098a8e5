"""Gradients that are differentiated again, through compiled graphs, as in eager."""

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torchsmith_fx_backend import Settings
from torchsmith_fx_backend._src.driver import compile_training

SETTINGS = Settings(graph_cache=False, verify=True, strict=True)


pytestmark = pytest.mark.usefixtures("reference_machine")


def leaf(*size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*size, generator=generator, dtype=torch.float64).add_(0.1).requires_grad_()


class Doubled(torch.autograd.Function):
    """A derivative of its own, which is not that of its forward pass."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x.pow(3)


def without_history(x, w):
    with torch.no_grad():
        scale = (x * w).abs().amax()
    return x.pow(3) * w / (1 + scale) + x.detach() * w.square()


# Each gives a tuple of results from x and w, 4 x 6 both.
PROGRAMS = {
    "pointwise": lambda x, w: (x.sin() * w.exp(),),
    "matmul": lambda x, w: ((x @ w.t()).tanh(),),
    "norms": lambda x, w: (F.layer_norm(x, (6,), w[0], w[1]), x.softmax(-1) * w),
    "views of one result": lambda x, w: (lambda y: (y[0], y.t(), y))((x * w).sigmoid()),
    "only views": lambda x, w: ((x.pow(3) * w).t()[1:],),
    "detached beside": lambda x, w: (lambda y: (y.detach(), y))(x.pow(3) * w),
    "no history": lambda x, w: (without_history(x, w),),
    "integers beside": lambda x, w: (x.argmax(1), x.pow(3) * w),
    "an input returned": lambda x, w: (x, x.pow(3) * w),
    "a write in between": lambda x, w: ((x * w).clone().mul_(x).add_(w.pow(2)),),
    "a derivative of its own": lambda x, w: (Doubled.apply(x) * w,),
    "only one used": lambda x, w: (w.pow(3),),
    "convolution": lambda x, w: (F.conv1d(x[None], w[:, None, :3], groups=4).relu().pow(2),),
}


def second_order(function, x, w, inner=False, same=False):
    """A penalty on a gradient, its gradients, and those of a third order."""
    a, b = (x * 1, w * 2) if inner else (x, w)
    b = a * 3 if inner and not same else a if same else b  # one may be computed from another
    results = [r for r in function(a, b) if r.requires_grad]
    loss = sum((r * r.detach().cos()).sum() for r in results)
    first = torch.autograd.grad(loss, (x, w), create_graph=True, allow_unused=True)
    penalty = loss + sum(g.square().sum() for g in first if g is not None)
    second = torch.autograd.grad(penalty, (x, w), create_graph=True, allow_unused=True)
    more = sum((g.sin().sum() for g in second if g is not None and g.requires_grad), x.sum() * 0)
    return [*first, *second, *torch.autograd.grad(more, (x, w), allow_unused=True)]


def check(got, want):
    for mine, true in zip(got, want, strict=True):
        assert (mine is None) == (true is None)
        if true is not None:
            torch.testing.assert_close(mine, true, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("how", ["leaves", "inner", "same"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_derivatives_of_derivatives(name, how):
    x, w = leaf(4, 6), leaf(4, 6, seed=1)
    more = {"inner": how == "inner", "same": how == "same"}
    example = x * 1
    examples = {"leaves": (x, w), "inner": (example, example * 3), "same": (x, x)}[how]
    run = compile_training(PROGRAMS[name], examples, SETTINGS)
    check(second_order(run, x, w, **more), second_order(PROGRAMS[name], x, w, **more))


class Shifted(torch.nn.Module):
    """Reads tensors of its own: one that gradients need, one that they do not."""

    def __init__(self):
        super().__init__()
        self.scale, self.shift = leaf(6, seed=3).detach(), leaf(6, seed=4).detach()

    def forward(self, x, y):
        return ((x * self.scale + self.shift).sin() * y, y.sum(0) + self.shift)


@pytest.mark.parametrize("used", [[0], [0, 1]])
@pytest.mark.parametrize("history", [False, True])
def test_constants_of_the_graph_and_of_the_call(history, used):
    graph = torch.fx.symbolic_trace(Shifted())
    run = compile_training(graph, [leaf(4, 6), leaf(4, 6, seed=1).detach()], SETTINGS)
    sides = []
    for each in (graph, run):
        x, y = leaf(4, 6), leaf(4, 6, seed=1).detach()
        results = each(x * 1 if history else x, y)
        total = sum(results[i].sum() for i in used)
        (first,) = torch.autograd.grad(total, x, create_graph=True)
        sides.append((first.detach(), *torch.autograd.grad(first.pow(2).sum(), x)))
    torch.testing.assert_close(*sides)


def test_statistics_are_written_once():
    def program(x, w, mean, var, count):
        count.add_(1)
        return (F.batch_norm(x, mean, var, w, None, True, 0.1).sigmoid(),)

    sides = []
    for compiled in (False, True):
        given = [leaf(8, 3), leaf(3, seed=1), *torch.eye(2, 3).double(), torch.tensor(0)]
        run = compile_training(program, given, SETTINGS) if compiled else program
        (grad,) = torch.autograd.grad(run(*given)[0].sum(), given[0], create_graph=True)
        grad.square().sum().backward()
        sides.append([given[0].grad, given[1].grad, *given[2:]])
    check(*sides)


def test_the_cast_of_the_time_of_the_capture():
    program = lambda x, w: (x @ w.t(),)  # noqa: E731
    sides = []
    for compiled in (False, True):
        x, w = leaf(4, 6), leaf(4, 6, seed=1)
        with torch.autocast("cpu", torch.bfloat16):
            x, w = x.float().detach().requires_grad_(), w.float().detach().requires_grad_()
            run = compile_training(program, (x, w), SETTINGS) if compiled else program
            loss = run(x, w)[0].float().pow(3).sum()
        (grad,) = torch.autograd.grad(loss, x, create_graph=True)
        sides.append(torch.autograd.grad(grad.square().sum(), (x, w)))
    for mine, true in zip(*sides):
        torch.testing.assert_close(mine, true, rtol=2e-2, atol=2e-1)


def test_what_was_written_or_freed_since_is_eagers_error():
    run = compile_training(lambda x, w: (x.pow(3) * w,), (leaf(3), leaf(3)), SETTINGS)
    x, w = leaf(3), leaf(3, seed=1)
    y = run(x, w)[0].sum()
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(y, x, create_graph=True)
    y = run(x, w)[0].sum()
    torch.autograd.grad(y, x)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y, x, create_graph=True)


REFUSED = {
    "random numbers": (lambda x, s: (F.dropout(x, 0.5).pow(2),), None),
    "writes into what": (lambda x, s: (x.mul_(2),), None),
    "depends on what it overwrites": (lambda x, s: (x.pow(2) * s.add_(1),), None),
    "hooks": (lambda x, s: (x.pow(3),), torch.autograd.graph.save_on_cpu),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_run_again_is_an_error_that_says_why(reason):
    program, context = REFUSED[reason]
    x, s = leaf(5) * 1, torch.ones(5)
    run = compile_training(program, (x, s), SETTINGS)
    leaves = leaf(5)
    given = leaves * 1
    with context() if context else torch.enable_grad():
        y = run(given, s)[0].sum()
    (grad,) = torch.autograd.grad(y, leaves, create_graph=True)  # which is right
    with pytest.raises(RuntimeError, match=f"differentiated twice.*{reason}.*training"):
        grad.sum().backward()


def test_nothing_outlives_the_backward_pass():
    run = compile_training(lambda x, s: (x.pow(3) * s,), (leaf(5) * 1, torch.ones(5)), SETTINGS)
    x = leaf(5)
    for retain in (True, False):
        inner = x * 2
        y = run(inner, torch.ones(5))[0].sum()
        memory = weakref.ref(inner.untyped_storage())
        del inner
        y.backward(retain_graph=retain)
        gc.collect()
        assert (memory() is not None) == retain


def test_an_input_that_gets_a_history_later_is_let_go_of():
    x, w = torch.ones(5), leaf(5)
    run = compile_training(lambda x, w: (w.pow(3) + x,), (x, w), SETTINGS)
    y = run(x, w)[0]
    memory = weakref.ref(x.untyped_storage())
    x.add_(y)
    del x, y
    gc.collect()
    assert memory() is None


def test_inputs_without_versions():
    program = lambda x, w: (w.pow(3) + x,)  # noqa: E731
    with torch.inference_mode():
        x = torch.ones(5)
    sides = []
    for compiled in (False, True):
        w = leaf(5)
        run = compile_training(program, (x, w), SETTINGS) if compiled else program
        sides.append(torch.autograd.grad(run(x, w)[0].sum(), w))
    check(*sides)


@pytest.mark.parametrize("name", ["pointwise", "matmul", "norms", "views of one result"])
def test_tangents_of_many_backward_passes_at_once(name):
    """``is_grads_batched`` hands over tensors without memory of their own."""
    function = PROGRAMS[name]
    run = compile_training(function, (leaf(4, 6), leaf(4, 6, seed=1)), SETTINGS)
    found = []
    for f in (run, function):
        x, w = leaf(4, 6), leaf(4, 6, seed=1)
        y = f(x, w)[0]
        many = torch.eye(y.numel(), dtype=y.dtype)[:3].view(3, *y.shape)
        more = {"is_grads_batched": True, "allow_unused": True}
        found.append(torch.autograd.grad(y, (x, w), many, **more))
        jacobian = torch.autograd.functional.jacobian
        found[-1] += jacobian(lambda a, b, f=f: f(a, b)[0], (x, w), vectorize=True)
    for mine, true in zip(*found):
        torch.testing.assert_close(mine, true)
        assert mine is None or not mine.requires_grad


def layers(x, first, second):
    """Eager saves ``x`` itself, and of the second weight a view."""
    return (F.linear(F.linear(x, first).relu(), second),)


@pytest.mark.parametrize("kind", ["leaves", "weights with a history"])
def test_each_tensor_is_saved_once_and_a_second_run_finds_it(kind):
    run = compile_training(layers, (leaf(4, 6).detach(), leaf(5, 6), leaf(3, 5)), SETTINGS)
    sides = []
    for each in (layers, run):
        x, first, second = leaf(4, 6).detach(), leaf(5, 6, seed=1), leaf(3, 5, seed=2)
        given = [x, first, second]
        if kind == "weights with a history":
            given = [x, first * 2, second * 2]
        (result,) = each(*given)
        if each is run:
            places = [t.data_ptr() for t in result.grad_fn.saved_tensors]
            assert len(places) == len(set(places)) == 3
        wanted = (first, second)
        one = torch.autograd.grad(result.sin().sum(), wanted, create_graph=True)
        sides.append([*one, *torch.autograd.grad(sum(g.pow(2).sum() for g in one), wanted)])
        (result,) = each(*given)
        with torch.no_grad():
            given[2].add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()
        (result,) = each(*given)
        with torch.no_grad():
            given[2].add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(result.sum(), wanted, create_graph=True)
    check(sides[1], sides[0])


def overwritten(x):
    x.exp_()
    return (x,)


def dropped(x):
    return (torch.nn.functional.dropout(x.sin(), 0.5),)


@pytest.mark.parametrize("program", [overwritten, dropped])
@pytest.mark.parametrize("wanted", ["leaf", "tangent"])
def test_what_cannot_run_again_is_an_error_where_unused_inputs_are_allowed(program, wanted):
    """Not a derivative that is missing as if there were none."""
    leaf, tangent = (torch.ones(4, 3, requires_grad=True) for _ in "ab")
    compiled = compile_training(program, [leaf * 1], SETTINGS)
    (found,) = torch.autograd.grad(compiled(leaf * 1), leaf, (tangent,), create_graph=True)
    sources = {"leaf": leaf, "tangent": tangent}
    with pytest.raises(RuntimeError, match="differentiated twice"):
        torch.autograd.grad(found.sum(), sources[wanted], allow_unused=True)


@pytest.mark.parametrize("program", [overwritten, dropped])
def test_what_cannot_run_again_says_so_of_tangents_in_a_batch(program):
    leaf = torch.ones(4, 3, requires_grad=True)
    result = compile_training(program, [leaf * 1], SETTINGS)(leaf * 1)
    with pytest.raises(RuntimeError, match="for tangents in a batch"):
        torch.autograd.grad(result, leaf, (torch.ones(2, 4, 3),), is_grads_batched=True)
