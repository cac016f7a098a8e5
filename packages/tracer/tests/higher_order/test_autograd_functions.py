"""``autograd.Function.apply``: traced where no gradient is recorded, right everywhere."""

import functools

import pytest
import torch
import torch.utils.checkpoint
import torchsmith_tracer as tracer


class Scale(torch.autograd.Function):
    """Saves, reads ``ctx`` back and asks what torch tells a forward."""

    @staticmethod
    def forward(ctx, x, factor=2):
        ctx.save_for_backward(x)
        ctx.factor = factor
        ctx.set_materialize_grads(False)
        assert ctx.saved_tensors == ()
        grad = 100 if torch.is_grad_enabled() else 1
        return x * ctx.factor * grad + ctx.needs_input_grad[0]

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor, None


class WithSetup(torch.autograd.Function):
    @staticmethod
    def forward(x, factor=3):
        return x * factor, factor

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.factor = inputs
        ctx.count = len(output)

    @staticmethod
    def backward(ctx, grad, _):
        return grad * ctx.factor, None


class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x, x + 1, None, [x]

    @staticmethod
    def backward(ctx, *grads):
        return grads[0]


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        x.add_(1)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


@pytest.mark.parametrize(
    "program",
    [
        lambda x: Scale.apply(x),
        lambda x: Scale.apply(x, 5) + Scale.apply(x + 1),
        lambda x: Scale.apply(x, factor=5),
        lambda x: WithSetup.apply(x),
        lambda x: WithSetup.apply(x, 7),
        lambda x: [type(out).__name__ for out in Same.apply(x)],
        lambda x: [(out is x, out) for out in Same.apply(x)[:2]],
        lambda x: (InPlace.apply(x) is x, x),
    ],
)
def test_a_forward_without_gradients_is_one_graph(check, program):
    check(program, torch.ones(3), graphs=1, fullgraph=True)


def test_no_grad_makes_a_leaf_that_requires_gradients_one_graph_as_well(check):
    def program(x):
        with torch.no_grad():
            return Scale.apply(x)

    check(program, torch.ones(3, requires_grad=True), graphs=1, fullgraph=True)


def test_keywords_reach_a_forward_with_its_own_setup(check):
    check(lambda x: WithSetup.apply(x, factor=7), torch.ones(3), breaks=["opaque-call"])


def test_gradients_come_back_through_the_users_backward():
    compiled = tracer.compile(lambda x: Scale.apply(x * 2, 4).sum(), backend="eager")
    x = torch.ones(3, requires_grad=True)
    compiled(x).backward()
    assert torch.equal(x.grad, torch.full((3,), 8.0))


def test_a_replaced_forward_is_seen():
    class Mine(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x + 1

    compiled = tracer.compile(lambda x: Mine.apply(x), backend="eager")
    assert compiled(torch.zeros(1)).item() == 1
    Mine.forward = staticmethod(lambda ctx, x: x + 10)
    assert compiled(torch.zeros(1)).item() == 10


# --- where gradients are recorded -----------------------------------------------------------------


class Saves(torch.autograd.Function):
    """Saves an input, an intermediate and a number; one input takes no gradient."""

    @staticmethod
    def forward(ctx, x, w, power, mask=None):
        y = x.exp()
        ctx.save_for_backward(y, w)
        ctx.power = power
        ctx.shape = x.shape
        out = y * w**power
        return out, (y * 2).detach()

    @staticmethod
    def backward(ctx, grad, other):
        y, w = ctx.saved_tensors
        extra = [grad.new_ones(ctx.shape)]
        extra.append(extra[0] * 2)
        gw = grad * y * ctx.power if ctx.needs_input_grad[1] else None
        return grad * y * w**ctx.power + other * y * 2 + extra[1], gw, None, None


class Constant(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        big = x > 0
        ctx.mark_non_differentiable(big)
        ctx.save_for_backward(big)
        return x.clamp(min=0), big

    @staticmethod
    def backward(ctx, grad, _):
        return grad * ctx.saved_tensors[0] * 10


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.exp()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return grad * 5


OUTSIDE = torch.full((3,), 7.0)


class UsesOutside(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * OUTSIDE

    @staticmethod
    def backward(ctx, grad):
        return grad * OUTSIDE * 2


class NoTensors(torch.autograd.Function):
    """Numbers, words and nothing among the results."""

    @staticmethod
    def forward(ctx, x):
        y = x * 2
        ctx.save_for_backward(y, x, y * 3)
        return y, 5, "word", None, y + 1

    @staticmethod
    def backward(ctx, grad, *others):
        assert others[:3] == (None, None, None)
        y, x, z = ctx.saved_tensors
        return grad * y + others[3] * x + z


RECORDED = {
    "no tensors": lambda x, w: NoTensors.apply(x * w)[::4],
    "once": lambda x, w: Once.apply(x * w),
    "saves": lambda x, w: Saves.apply(x, w, 3),
    "saves, no gradient for one": lambda x, w: Saves.apply(x, w.detach(), 2)[0] * w,
    "twice": lambda x, w: Saves.apply(Saves.apply(x, w, 1)[0] / 100, w, 2),
    "constant": lambda x, w: Constant.apply(x - 1)[0] * w,
    "tensors from outside": lambda x, w: UsesOutside.apply(x * w),
    "scale": lambda x, w: Scale.apply(x * w, 4),
    "setup": lambda x, w: WithSetup.apply(x * w, 4)[0],
}


def leaves():
    return torch.linspace(0.5, 1.5, 3).requires_grad_(), torch.arange(1.0, 4).requires_grad_()


def gradients(function, tensors, create_graph=False):
    found = function(*tensors)
    found = found if isinstance(found, tuple) else (found,)
    loss = sum((t * t).sum() for t in found if t.requires_grad)
    return [t.detach() for t in found], torch.autograd.grad(
        loss, tensors, allow_unused=True, create_graph=create_graph
    )


@pytest.mark.parametrize("name", RECORDED)
def test_both_directions_are_in_the_graph(capture, name):
    compiled = tracer.compile(RECORDED[name], backend=capture, fullgraph=True)
    for _ in range(2):
        want, got = gradients(RECORDED[name], leaves()), gradients(compiled, leaves())
        torch.testing.assert_close(got, want)
    assert capture.n == 1


class WithSizes(torch.autograd.Function):
    """Numbers that vary are an argument, are kept, and are made by ``forward``."""

    @staticmethod
    def forward(ctx, x, rows):
        ctx.rows, ctx.shape = rows, x.shape
        ctx.cells = rows * x.shape[1]
        return x.sum(0) * rows, x.flatten()

    @staticmethod
    def backward(ctx, grad, flat):
        return grad.expand(ctx.shape) * ctx.rows + flat.view(ctx.shape) * ctx.cells, None


@pytest.mark.parametrize("backend", ["eager", "smith"])
def test_sizes_that_vary_reach_the_users_backward(backend):
    if backend == "smith":
        pytest.importorskip("torchsmith_fx_backend")

    def program(x):
        first, flat = WithSizes.apply(x * 2, x.shape[0])
        return first * flat.shape[0] + flat.sum()

    compiled = tracer.compile(program, backend=backend, fullgraph=True)
    for rows in (3, 4, 5, 6):
        x = [torch.linspace(0, 1, rows * 2).view(rows, 2).requires_grad_()]
        torch.testing.assert_close(gradients(compiled, x), gradients(program, x))
    assert len(compiled._torchsmith_region.log.frames) == 2


def test_second_derivatives_go_through_the_users_backward():
    def program(x, w):
        return Scale.apply(x.exp(), 3) * w

    compiled = tracer.compile(program, backend="eager", fullgraph=True)
    results = []
    for function in (program, compiled):
        x, w = leaves()
        _, (gx, gw) = gradients(function, (x, w), create_graph=True)
        results.append(torch.autograd.grad(gx.sum() + gw.sum(), (x, w)))
    torch.testing.assert_close(results[1], results[0])


def test_what_may_be_differentiated_once_raises_the_second_time():
    compiled = tracer.compile(lambda x: Once.apply(x), backend="eager", fullgraph=True)
    x = torch.ones(2, requires_grad=True)
    (first,) = torch.autograd.grad(compiled(x).pow(2).sum(), x, create_graph=True)
    torch.testing.assert_close(first, 10 * torch.ones(2).exp())
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def test_a_store_in_forward_happens_in_every_call():
    calls = []

    class Counts(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            calls.append(1)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    compiled = tracer.compile(lambda x: Counts.apply(x), backend="eager")
    for n in range(1, 4):
        compiled(torch.ones(2, requires_grad=True)).sum().backward()
        assert len(calls) == n


def test_results_that_are_no_tensors_stay(check):
    check(lambda x: NoTensors.apply(x)[1:4], leaves()[0], fullgraph=True)


class Sine(torch.autograd.Function):
    """In the form that ``torch.func`` takes, with a derivative of its own."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, power):
        y = x.sin() ** power
        return y, y * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], output[1])
        ctx.power = inputs[1]

    @staticmethod
    def backward(ctx, grad, other):
        x, twice = ctx.saved_tensors
        return (grad + other) * x.cos() * ctx.power + twice, None


def of_sine(x):
    return Sine.apply(x, 2)[0].sum()


TRANSFORMED = {
    "grad": lambda x: torch.func.grad(of_sine)(x),
    "grad of grad": lambda x: torch.func.grad(lambda a: torch.func.grad(of_sine)(a).sum())(x),
    "vmap of grad": lambda x: torch.vmap(torch.func.grad(of_sine))(x.expand(2, 3)),
    "vjp": lambda x: torch.func.vjp(of_sine, x)[1](torch.tensor(2.0)),
    "jacrev": lambda x: torch.func.jacrev(lambda a: Sine.apply(a, 3)[1])(x),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_a_transform_of_a_function_is_in_the_graph(check, name):
    check(TRANSFORMED[name], leaves()[0].detach(), graphs=1, fullgraph=True)


class TooMany(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad, grad


class RaisesBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError("in the backward pass only")


def handles_too_early(x, w):
    try:
        return RaisesBackward.apply(x)
    except RuntimeError:
        return x * w


class TooFew(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        return x * w

    @staticmethod
    def backward(ctx, grad):
        return grad


@pytest.mark.parametrize(
    "program",
    [
        lambda x, w: TooMany.apply(x),
        handles_too_early,
        lambda x, w: TooFew.apply(x, w),
        lambda x, w: torch.func.grad(lambda a: Scale.apply(a, 3).sum())(x.detach()) * w,
    ],
)
def test_misuse_raises_what_eager_raises(program):
    def run(function):
        with pytest.raises(RuntimeError) as found:
            function(*leaves()).sum().backward()
        return str(found.value)

    assert run(tracer.compile(program, backend="eager")) == run(program)


class RecordsInForward(torch.autograd.Function):
    """Differentiates in ``backward`` what ``forward`` has recorded."""

    @staticmethod
    def forward(ctx, x, w):
        with torch.enable_grad():
            ctx.leaves = x.detach().requires_grad_(), w.detach().requires_grad_()
            ctx.out = (ctx.leaves[0] @ ctx.leaves[1]).tanh()
        return ctx.out.detach()

    @staticmethod
    def backward(ctx, grad):
        return torch.autograd.grad(ctx.out, ctx.leaves, grad)


class AccumulatesInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        with torch.enable_grad():
            ctx.leaf = x.detach().requires_grad_()
            ctx.out = (ctx.leaf * w.detach()).exp()
        return ctx.out * 1

    @staticmethod
    def backward(ctx, grad):
        ctx.out.backward(grad)
        return ctx.leaf.grad, None


class RecordsAgain(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return (x @ w).tanh()

    @staticmethod
    def backward(ctx, grad):
        x, w = (t.detach().requires_grad_() for t in ctx.saved_tensors)
        with torch.enable_grad():
            out = (x @ w).tanh()
        return torch.autograd.grad(out, (x, w), grad)


@pytest.mark.parametrize("function", [RecordsInForward, AccumulatesInBackward, RecordsAgain])
def test_a_backward_that_differentiates_itself(function):
    def program(x, w):
        return function.apply(x.sin(), w).cos().sum()

    compiled = tracer.compile(program, backend="eager")
    for frozen in (False, True, False):
        sides = []
        for f in (program, compiled):
            x, w = (torch.linspace(-1, 1, 9).view(3, 3) + i for i in range(2))
            x.requires_grad_()
            w.requires_grad_(not frozen)
            f(x, w).backward()
            sides.append((x.grad, w.grad))
        torch.testing.assert_close(*sides)


class Solves(torch.autograd.Function):
    """Where ``function`` gives ``x``, by steps, with an implicit derivative."""

    @staticmethod
    def forward(ctx, function, x, *parameters):
        root = x
        for _ in range(2):
            root = torch.where(function(root) < x, root + 1, root)
        ctx.function = function
        ctx.save_for_backward(root, *parameters)
        return root

    @staticmethod
    def backward(ctx, grad):
        root, *parameters = ctx.saved_tensors
        with torch.enable_grad():
            root = root.detach().requires_grad_()
            found = ctx.function(root)
        (slope,) = torch.autograd.grad(found, root, torch.ones_like(found), retain_graph=True)
        return None, grad / slope, *torch.autograd.grad(found, parameters, -grad / slope)


def test_a_trace_that_is_given_up_in_a_function_leaves_no_mode():
    def program(x, w):
        w = w * 2
        scale = w.exp()  # in the derivative for ``w`` once more
        return Solves.apply(lambda root: (root[..., None] * scale).mean(-1), x, w).cos()

    compiled = tracer.compile(program, backend="eager")
    for _ in range(2):
        sides = []
        for f in (program, compiled):
            w = torch.linspace(-1, 1, 3, requires_grad=True)
            out = f(torch.zeros(3), w)
            assert out.requires_grad and torch.is_grad_enabled()
            out.sum().backward()
            sides.append(w.grad)
        torch.testing.assert_close(*sides)


class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return half_done(x)

    @staticmethod
    def backward(ctx, grad):
        return grad


def half_done(x):
    x.sin()
    raise ValueError("half done")


@pytest.mark.parametrize(
    "apply",
    [
        Raises.apply,
        torch.func.grad(half_done),
        torch.vmap(half_done),
        functools.partial(torch.utils.checkpoint.checkpoint, half_done, use_reentrant=False),
    ],
    ids=["function", "grad", "vmap", "checkpoint"],
)
def test_a_handler_goes_on_outside_of_what_raised(apply):
    modes = []

    def backend(graph, inputs):
        modes.append(torch.is_grad_enabled())
        assert "body_input" not in graph.code
        return graph.forward

    def program(x):
        y = x * 2
        try:
            y = apply(y)
        except ValueError as error:
            y = y * len(str(error))
        return y.cos()

    compiled = tracer.compile(program, backend=backend)
    for _ in range(2):
        sides = []
        for f in (program, compiled):
            x = torch.linspace(-1, 1, 3, requires_grad=True)
            out = f(x)
            out.sum().backward()
            sides.append((out, x.grad))
        torch.testing.assert_close(*sides)
    assert modes and all(modes)


class SavesViews(torch.autograd.Function):
    """Saves views of its inputs, which count as leaves while no gradients are recorded."""

    @staticmethod
    def forward(ctx, x, w):
        rows, turned = x.view(-1, x.shape[-1]), w.t()
        ctx.save_for_backward(rows, turned, rows[0])
        ctx.shape = x.shape
        return (rows @ turned).reshape(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx, grad):
        rows, turned, first = ctx.saved_tensors
        grad = grad.reshape(-1, grad.shape[-1])
        if not (rows.requires_grad and rows.is_leaf):
            grad = grad * 2
        return (grad @ turned.t()).view(ctx.shape), grad.t() @ rows + first * grad.sum()


class RecordsOnSaved(SavesViews):
    @staticmethod
    def backward(ctx, grad):
        rows, turned, _ = ctx.saved_tensors
        with torch.enable_grad():
            out = rows @ turned
        assert out.requires_grad
        return (grad @ turned.t()).view(ctx.shape), grad.reshape(-1, 3).t() @ rows


@pytest.mark.parametrize("function", [SavesViews, RecordsOnSaved])
@pytest.mark.parametrize("written", [False, True])
def test_views_of_inputs_are_saved(function, written):
    whole = function is SavesViews
    compiled = tracer.compile(
        lambda x, w: function.apply(x, w).cos(), backend="eager", fullgraph=whole
    )
    for size in (2, 3):
        sides = []
        for f in (lambda x, w: function.apply(x, w).cos(), compiled):
            x, w = (torch.linspace(-1, 1, 9 * n).view(-1, 3, 3) for n in (size, 1))
            x, w = x.clone().requires_grad_(), w[0].clone().requires_grad_()
            y = f(x, w).sin().sum()
            if written:
                with torch.no_grad():
                    x.mul_(2)
                with pytest.raises(RuntimeError, match="modified inplace") as caught:
                    y.backward()
                sides.append(str(caught.value)[:100])  # what it was made by differs
                continue
            (first,) = torch.autograd.grad(y, x, create_graph=True)
            first.sum().backward()
            sides.append((first, x.grad, w.grad))
        if written:
            assert sides[0] == sides[1]
        else:
            torch.testing.assert_close(*sides)


class AskedForLeaves(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * (2 if x.is_leaf else 7)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (3 if x.is_leaf else 5)


@pytest.mark.parametrize("inside", [lambda x: x, lambda x: x * 1])
@pytest.mark.parametrize("before", [lambda x: x, lambda x: x * 1])
def test_what_is_a_leaf_outside_is_one_within(inside, before):
    def fn(x):
        return AskedForLeaves.apply(inside(x)).sum()

    compiled = tracer.compile(fn, backend="eager", fullgraph=True)
    for start in (before, lambda x: x, lambda x: x * 1):  # which changes between calls
        found = []
        for run in (fn, compiled):
            x = torch.ones(2, 3, requires_grad=True)
            result = run(start(x))
            result.backward()
            found.append((result.item(), x.grad[0, 0].item()))
        assert found[0] == found[1]
