"""Inputs that a program writes values with gradients into, and graphs that it has used up."""

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint
from torchsmith_fx_backend import Settings
from torchsmith_fx_backend._src.driver import compile_training

SETTINGS = Settings(graph_cache=False, verify=True, strict=True)


pytestmark = pytest.mark.usefixtures("reference_machine")


def whole(b, x):
    return (b.copy_(x * 2), x * 3)


def part(b, x):
    b[1:3, 0] = x[0, 1:3].exp()
    return (b.t(), x * 2)


def several(b, x):
    b.mul_(x).add_(1)
    b[0].sin_()
    return (b[1:], x.sum())


def saved(b, x):
    b.mul_(x)
    b.exp_()
    return (x * 2,)


def early_view(b, x):
    y = b[1]
    b.mul_(x)
    return (y, b, b.t())


def nothing(b, x):
    b.add_(x)
    return (x.detach(),)


def listed(b, x):
    y = x * 2
    torch._foreach_mul_([y[0], y[1]], 3)
    torch._foreach_add_([b], [y])
    return (y.exp(),)


def scattered(b, x):
    b.index_add_(0, torch.tensor([0, 2, 0]), x[:3])
    return (b.unsqueeze(0),)


PROGRAMS = [whole, part, several, saved, early_view, nothing, listed, scattered]
BUFFERS = {
    "a plain tensor": lambda w: torch.ones(4, 4),
    "a tensor with a history": lambda w: w * 2,
    "a view": lambda w: torch.ones(3, 4, 4)[1],
    "a view with a history": lambda w: (w * 2)[None].expand(2, 4, 4).clone()[1],
    "a transposed tensor": lambda w: (w * 3).t(),
}


def leaves():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(4, 4, generator=generator).requires_grad_() for _ in range(2)]


def outcome(run, make):
    x, w = leaves()
    b = make(w)
    version = b._version
    outputs = run(b, x)
    base = b if b._base is None else b._base
    seen = [*outputs, b, base]
    loss = sum((o * torch.linspace(0, 1, o.numel()).view_as(o)).sum() for o in seen)
    flags = [(o.requires_grad, o.is_leaf, o._is_view(), o.stride()) for o in seen]
    loss.backward()
    return flags, b._version - version, [o.detach() for o in seen], [x.grad, w.grad]


@pytest.mark.parametrize("buffer", BUFFERS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_input_gets_value_and_history(program, buffer):
    x, w = leaves()
    run = compile_training(program, [BUFFERS[buffer](w), x], SETTINGS)
    for _ in range(2):
        mine, true = outcome(run, BUFFERS[buffer]), outcome(program, BUFFERS[buffer])
        assert mine[:2] == true[:2]
        for a, b in zip([*mine[2], *mine[3]], [*true[2], *true[3]], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def constant(b, x):
    b.fill_(2)
    return (b * x,)


def constant_alone(b, x):
    b.fill_(2)
    return (b * 3,)


def constant_in_part(b, x):
    b.fill_(3)
    b[1] = x[0]
    return (b.sin(),)


@pytest.mark.parametrize("buffer", [name for name in BUFFERS if "a history" in name])
@pytest.mark.parametrize("program", [constant, constant_alone, constant_in_part])
def test_constants_have_gradients_of_zeros(program, buffer):
    test_the_input_gets_value_and_history(program, buffer)


def test_a_later_write_is_an_error_where_eager_saved_the_input():
    for program, raises in ((saved, True), (whole, False)):
        x, _ = leaves()
        run = compile_training(program, [torch.ones(4, 4), x], SETTINGS)
        for f in (program, run):
            x, b = leaves()[0], torch.ones(4, 4)
            f(b, x)
            y = b * 1
            with torch.no_grad():
                b.add_(1)
            if raises:
                with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                    y.sum().backward()
            else:
                y.sum().backward()


def mean_of_new(b, s, x):
    return (b.mul_(x).sum(),)


def result_and_written(b, s, x):
    return (b.mul_(x), (b + 1).exp().sum())


def written_twice(b, s, x):
    b.mul_(x)
    early = b * 2
    b.add_(1)
    return (early, b.exp())


def one_into_the_other(b, s, x):
    s.add_(x * x)
    b[1:3] = s[1:3]
    return (x.sin(),)


def chain(b, s, x):
    s.mul_(x)
    b.add_(s * s)
    return (b.sigmoid() + s, x * 2, (b * s).detach() * x)


def old_and_new(b, s, x):
    y = s * 3
    s.add_(x)
    return (y * s,)


def under_a_mask(b, s, x):
    s += x
    b[torch.tensor([True, False, True, True])] = s[1:]
    return ()


PASSED = [
    mean_of_new,
    result_and_written,
    written_twice,
    one_into_the_other,
    chain,
    old_and_new,
    under_a_mask,
]


@pytest.mark.parametrize("buffer", ["a plain tensor", "a tensor with a history", "a view"])
@pytest.mark.parametrize("program", PASSED)
def test_results_are_functions_of_what_inputs_became(program, buffer):
    make = BUFFERS[buffer]

    def seen(run, held):
        x, w = leaves()
        b, s = make(w), make(w + 1)
        before = b._version, s._version
        outputs = run(b, s, x)
        flags = [(o.requires_grad, o.is_leaf, o.stride()) for o in (*outputs, b, s)]
        flags += [b._version - before[0], s._version - before[1]]
        if not held:  # what the caller does not hold is not asked for
            loss = sum(o.square().sum() for o in (*outputs, b))
            del b, s, outputs
            loss.backward()
            return flags, [x.grad, w.grad]
        roots = [o for o in (*outputs, b, s) if o.requires_grad]
        ends = [x, w] + [t for t in (b, s) if t.requires_grad]
        found = [
            torch.autograd.grad(r.square().sum(), ends, retain_graph=True, allow_unused=True)
            for r in roots
        ]
        return flags, [o.detach() for o in roots], found

    x, w = leaves()
    run = compile_training(program, [make(w), make(w + 1), x], SETTINGS)
    for held in (True, False, True):
        mine, true = seen(run, held), seen(program, held)
        assert mine[0] == true[0]
        for a, b in zip(_leaves(mine[1:]), _leaves(true[1:]), strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def _leaves(tree):
    return pytree.tree_leaves(tree)


def test_hooks_of_written_inputs_see_what_later_results_give_them():
    def program(s, b, x):
        s.add_(x)
        b.mul_(s)
        return ()

    x, _ = leaves()
    run = compile_training(program, [torch.ones(4, 4), torch.ones(4, 4), x], SETTINGS)
    sides = []
    for f in (run, program):
        x, _ = leaves()
        s, b, seen = torch.ones(4, 4), torch.ones(4, 4), []
        f(s, b, x)
        s.register_hook(lambda g, seen=seen: seen.append(g) or g * 2)
        b.retain_grad()
        (b.sum() + s.sin().sum()).backward()
        sides.append((*seen, b.grad, x.grad))
    torch.testing.assert_close(*sides, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize("program", [whole, several, saved, early_view, listed])
def test_hooks_of_a_view_are_left_behind_by_a_write(program, hooked):
    """Of another tensor they see the gradient for what was there before."""

    def play(run):
        seen = []
        for view in (False, True, False):
            x, leaf = leaves()[1], torch.ones(5, 4, 4, dtype=torch.float64, requires_grad=True)
            b = (leaf * 2)[1] if view else leaf[1] * 2
            if hooked:
                b.register_hook(lambda grad: seen.append(grad.clone()))
            results = [r for r in run(b, x) if r.requires_grad]
            torch.autograd.backward([*results, b], [torch.ones_like(r) for r in (*results, b)])
            seen += [view, leaf.grad, x.grad]
        return seen

    b, x = torch.ones(4, 4, dtype=torch.float64, requires_grad=True) * 2, leaves()[1]
    compiled = compile_training(program, [b, x], SETTINGS)
    torch.testing.assert_close(play(compiled), play(program))


def test_a_write_after_the_call_is_an_error_for_the_results_that_read_it():
    x, _ = leaves()
    run = compile_training(chain, [torch.ones(4, 4), torch.ones(4, 4), x], SETTINGS)
    for number, raises in ((0, True), (1, False)):
        for f in (chain, run):
            x, b, s = leaves()[0], torch.ones(4, 4), torch.ones(4, 4)
            outputs = f(b, s, x)
            with torch.no_grad():
                s.add_(1)
            if raises:
                with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                    outputs[number].sum().backward()
            else:
                outputs[number].sum().backward()


@pytest.mark.parametrize("kind", ["a row of unbind", "a view made without gradients"])
def test_what_eager_refuses_to_write_is_refused(kind):
    x, w = leaves()

    def make():
        if kind == "a row of unbind":
            return (w * torch.ones(2, 4, 4)).unbind(0)[0]
        with torch.no_grad():
            return torch.ones(2, 4, 4)[0]

    run = compile_training(several, [make(), x], SETTINGS)
    errors = []
    for f in (several, run):
        with pytest.raises(RuntimeError) as caught:
            f(make(), x)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


def test_nothing_outlives_the_tensors():
    run = compile_training(saved, [torch.ones(4, 4), leaves()[0]], SETTINGS)
    b = torch.ones(4, 4)
    run(b, leaves()[0])
    gone = weakref.ref(b.untyped_storage())
    del b
    gc.collect()
    assert gone() is None


def spent(x, w):
    y = (x * w).exp()
    loss = y.sum()
    loss.backward()
    return (loss, y, loss.detach(), (x * 2).cos())


def retained(x, w):
    loss = (x * w).exp().sum()
    loss.backward(retain_graph=True)
    return (loss, loss.detach())


def test_a_backward_pass_inside():
    for program, again in ((spent, False), (retained, True)):
        run = compile_training(program, leaves(), SETTINGS)
        assert run.training is not None
        sides = []
        for f in (run, program):
            x, w = leaves()
            outputs = f(x, w)
            flags = [(o.requires_grad, o.is_leaf) for o in outputs]
            if again:
                outputs[0].backward()
            else:
                outputs[-1].sum().backward()
                for o in outputs[:2]:
                    with pytest.raises(RuntimeError, match="through the graph a second time"):
                        o.sum().backward()
            sides.append((flags, [o.detach() for o in outputs]))
        assert sides[0][0] == sides[1][0]
        torch.testing.assert_close(sides[0][1], sides[1][1], rtol=1e-4, atol=1e-5)


def test_statistics_with_a_history():
    """A loss over a buffer that collects values with gradients over several calls."""

    def program(total, x):
        total.mul_(0.5).add_(F.softmax(x, 0))
        return (x.sum(),)

    x, _ = leaves()
    run = compile_training(program, [torch.zeros(4, 4), x], SETTINGS)
    again = compile_training(program, [torch.zeros(4, 4) * x, x], SETTINGS)
    sides = []
    for first, later in ((run, again), (program, program)):
        x, _ = leaves()
        total = torch.zeros(4, 4)
        for step in (first, later, later):
            step(total, x)
        (total**2).sum().backward()
        sides.append((total.detach(), x.grad))
    torch.testing.assert_close(*sides, rtol=1e-4, atol=1e-5)


def filled(b, x):
    made = torch.zeros(4, 4)
    made.copy_(b * x)
    return (made, x * 2)


def filled_in_parts(b, x):
    made = torch.empty_like(b)
    made[:2] = b[:2].exp()
    made[2:] = x[2:]
    return (made[1:3], made)


def added_to_a_view(b, x):
    made = torch.full((16,), 2.0)
    view = made.view(4, 4)
    view.index_add_(0, torch.tensor([0, 2]), (b * x)[:2])
    return (view, made)


def without_history(b, x):
    made = torch.ones(4)
    apart = torch.zeros(4).detach()
    with torch.no_grad():
        made.add_(x[0])
    return (made, apart.add_(1), apart, b * x)


def left_alone(b, x):
    made = torch.arange(4.0)
    other = made.detach()
    made.mul_(x[0])
    return (other, made.detach(), b * made)


@pytest.mark.parametrize(
    "program", [filled, filled_in_parts, added_to_a_view, without_history, left_alone]
)
def test_tensors_made_by_the_program_get_value_and_history(program):
    def seen(run):
        x, w = leaves()
        outputs = run(w, x)
        flags = [(o.requires_grad, o.is_leaf, o._is_view(), o.stride()) for o in outputs]
        sum((o.square().sum() for o in outputs if o.requires_grad)).backward()
        shared = [a.data_ptr() == b.data_ptr() for a in outputs for b in outputs]
        return flags, shared, [o.detach() for o in outputs], [x.grad, w.grad]

    x, w = leaves()
    run = compile_training(program, [w, x], SETTINGS)
    for _ in range(2):
        mine, true = seen(run), seen(program)
        assert mine[:2] == true[:2]
        torch.testing.assert_close(mine[2:], true[2:], rtol=1e-4, atol=1e-5)


def test_what_hooks_have_of_a_written_input_is_not_checked_for_writes():
    """Nor does autograd check it: hooks may have kept a copy."""

    def fn(x, w):
        x.mul_(w)
        return (x.sin(),)

    def gradients(program):
        leaves = [torch.full((3,), n, requires_grad=True) for n in (0.5, 2.0)]
        x = leaves[0] * 1
        with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda saved: saved):
            (result,) = program(x, leaves[1])
        with torch.no_grad():
            x.add_(1)
        return torch.autograd.grad(result.sum(), leaves)

    example = [torch.ones(3, requires_grad=True) * 1, torch.ones(3, requires_grad=True)]
    compiled = compile_training(torch.fx.symbolic_trace(fn), example, SETTINGS)
    torch.testing.assert_close(gradients(compiled), gradients(fn))


LINEAR = {
    "a number": lambda x, n: (n.logical_not_(), x * 2)[1],
    "a complex number": lambda x, n: (n.add_(1), x * 2j)[1],
    "a division": lambda x, n: (n.add_(1), x / 3 + x)[1],
    "nothing": lambda x, n: (n.add_(1), x.t() + 1)[1],
    "parts": lambda x, n: x[1:].copy_(x[1:].flip(0) * 2),
    "a tensor": lambda x, n: (n.add_(1), x * torch.full((), 2.0))[1],
    "the result": lambda x, n: (n.add_(1), (x * 2).exp())[1],
}


@pytest.mark.parametrize("name", LINEAR)
def test_a_checkpoint_runs_again_where_hooks_are_given_something(name):
    """What a program multiplies by is saved, but no hook gets it; where none gets anything, nobody
    notices that an argument was written."""
    fn = LINEAR[name]

    def given():
        x = torch.linspace(0, 1, 12).view(3, 4).requires_grad_()
        return x, x * 1, torch.zeros(3, 4, dtype=torch.int64)

    def play(run):
        seen = []
        for retain in (False, True):
            leaf, x, n = given()
            y = checkpoint(run, x, n, use_reentrant=False).sum()
            for _ in range(2):
                try:
                    y.backward(retain_graph=retain)
                except RuntimeError as error:
                    seen.append("second time" in str(error) or "inplace" in str(error))
                else:
                    seen.append(leaf.grad.clone())
        return seen

    compiled = compile_training(lambda x, n: (fn(x, n),), given()[1:], SETTINGS)
    torch.testing.assert_close(play(lambda x, n: compiled(x, n)[0]), play(fn))
