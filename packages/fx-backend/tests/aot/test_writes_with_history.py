"""Inputs that a program writes values with gradients into, and graphs that it has used up."""

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torchsmith_fx_backend import Settings
from torchsmith_fx_backend._src.driver import compile_training
from torchsmith_fx_backend.errors import UnsupportedError

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


def scattered(b, x):
    b.index_add_(0, torch.tensor([0, 2, 0]), x[:3])
    return (b.unsqueeze(0),)


PROGRAMS = [whole, part, several, saved, early_view, nothing, scattered]
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


def test_results_of_the_new_value_are_left_to_aten():
    """Their gradients with respect to the input are asked of the input as it is afterwards."""
    x, _ = leaves()
    for program in (lambda b, x: (b.mul_(x).sum(),), lambda b, x: (b.mul_(x), (b + 1).sum())):
        with pytest.raises(UnsupportedError, match="got into an input"):
            compile_training(program, [torch.ones(4, 4), x], SETTINGS)


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
