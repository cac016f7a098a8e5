"""Hooks of tensors that compiled code registers, against eager."""

import pytest
import torch
import torchsmith_tracer
from torch import nn

SEEN = []
SCALE = 2.0


def times(by):
    return lambda grad: grad * by


def module_level(grad):
    return grad.clamp(max=3)


def reads_a_global(grad):
    return grad * SCALE


def on_intermediate(x):
    y = x * 2
    y.register_hook(times(3))
    return (y * y).sum()


def several_in_order(x):
    y = x * 2
    y.register_hook(times(3))
    y.register_hook(lambda grad: grad + 1)
    y.register_hook(module_level)
    return (y * y).sum()


def around_a_write(x):
    y = x * 2
    y.register_hook(times(3))
    y.mul_(2)
    y.register_hook(lambda grad: grad + 1)
    return (y * y).sum()


def with_tensors_of_the_forward(x):
    y = x * 2
    w = y.detach().sin()
    y.register_hook(lambda grad: grad * w + y.detach())
    return (y * y).sum()


def gives_nothing(x):
    y = x * 2
    y.register_hook(lambda grad: None)
    return (y * y).sum()


def removed(x):
    y = x * 2
    first = y.register_hook(times(3))
    y.register_hook(times(5))
    first.remove()
    first.remove()
    return (y * y).sum()


def result_with_a_hook(x):
    y = x * 2
    y.register_hook(times(3))
    return (y * y).sum(), y


def backward_inside(x):
    y = x * 2
    handle = y.register_hook(times(3))
    (y * y).sum().backward(retain_graph=True)
    handle.remove()
    (y * y).sum().backward()
    return x.grad * 1


def grad_inside(x):
    y = x * 2
    y.register_hook(times(3))
    return torch.autograd.grad((y * y).sum(), x)


def on_leaf(x):
    x.register_hook(times(3))
    return (x * x).sum()


def on_leaf_removed(x):
    handle = x.register_hook(times(3))
    x.register_hook(lambda grad: grad + 1)
    handle.remove()
    return (x * x).sum()


def on_leaf_with_effect(x):
    y = x.detach() + 1
    x.register_hook(lambda grad: SEEN.append(grad + y))
    return (x * x).sum()


def after_accumulation(x):
    x.register_post_accumulate_grad_hook(lambda leaf: SEEN.append(leaf.grad * 2))
    return (x * x).sum()


def leaf_retains(x):
    x.retain_grad()
    return (x * x).sum()


def without_gradient(x):
    y = x.detach() * 2
    try:
        y.register_hook(times(3))
    except RuntimeError as e:
        return (x * x).sum(), str(e)


def with_effect(x):
    y = x * 2
    y.register_hook(SEEN.append)
    return (y * y).sum()


def reading_data(x):
    y = x * 2
    y.register_hook(lambda grad: SEEN.append(grad.sum().item()))
    return (y * y).sum()


def with_global(x):
    y = x * 2
    y.register_hook(reads_a_global)
    return (y * y).sum()


def writing_the_gradient(x):
    y = x * 2
    y.register_hook(lambda grad: grad.mul_(2))
    return (y * y).sum()


def of_another_shape(x):
    y = x * 2
    y.register_hook(lambda grad: grad.sum())
    return (y * y).sum()


def raising(x):
    y = x * 2
    y.register_hook(lambda grad: grad.nonsense)
    return (y * y).sum()


def handle_given_back(x):
    y = x * 2
    handle = y.register_hook(times(3))
    return (y * y).sum(), handle


def leaf_handle_given_back(x):
    handle = x.register_hook(times(3))
    return (x * x).sum(), handle


def leaf_then_backward(x):
    handle = x.register_hook(times(3))
    (x * x).sum().backward()
    handle.remove()
    return x.grad


def leaf_then_grad(x):
    x.register_hook(times(3))
    return torch.autograd.grad((x * x).sum(), x)


def retained(x):
    y = x * 2
    y.retain_grad()
    (y * y).sum().backward()
    return y.grad


def with_variables_as_they_are(x):
    by = 2
    by = by + 1
    y = x * 2
    y = y + by
    y.register_hook(lambda grad: grad * by + y.detach())
    return (y * y).sum()


def with_a_variable_stored_later(x):
    by = 2
    y = x * 2
    y.register_hook(lambda grad: grad * by)
    by = 5
    return (y * y).sum()


def with_a_tensor_stored_later(x):
    y = x * 2
    y.register_hook(lambda grad: grad + y.detach())
    y = y + 1
    return (y * y).sum()


def with_a_variable_of_the_loop(x):
    for number in range(3):
        x = x * 2
        x.register_hook(lambda grad: grad * (number + 1))
    return (x * x).sum()


def with_a_variable_stored_by_another(x):
    by = 2

    def more():
        nonlocal by
        by += 1

    y = x * 2
    y.register_hook(lambda grad: grad * by)
    more()
    return (y * y).sum()


def with_a_variable_stored_after_a_break(x):
    by = 2
    y = x * 2
    y.register_hook(lambda grad: grad * by)
    SEEN.append(y.sum().item())
    by = 5
    return (y * y).sum()


def with_a_list(x):
    by = [2]
    y = x * 2
    y.register_hook(lambda grad: grad * by[0])
    by[0] = 5
    return (y * y).sum()


def with_an_object(x):
    layer = nn.Identity()
    layer.by = 2
    y = x * 2
    y.register_hook(lambda grad: grad * layer.by)
    layer.by = 5
    return (y * y).sum()


CHANGING = [
    with_a_variable_stored_later, with_a_tensor_stored_later, with_a_variable_of_the_loop,
    with_a_variable_stored_by_another, with_a_variable_stored_after_a_break, with_a_list,
    with_an_object,
]  # fmt: skip
WHOLE = [
    on_intermediate, several_in_order, around_a_write, with_tensors_of_the_forward, gives_nothing,
    removed, result_with_a_hook, backward_inside, grad_inside, on_leaf, on_leaf_removed,
    on_leaf_with_effect, after_accumulation, leaf_retains, without_gradient,
    leaf_handle_given_back, with_variables_as_they_are,
]  # fmt: skip
BROKEN = [
    with_effect, reading_data, with_global, writing_the_gradient, of_another_shape, raising,
    handle_given_back, leaf_then_backward, leaf_then_grad, retained, *CHANGING,
]  # fmt: skip


def shown(value):
    if isinstance(value, torch.Tensor):
        return value.dtype, value.requires_grad, value.tolist()
    return [shown(v) for v in value] if isinstance(value, tuple | list) else type(value)


def outcome(fn, *, removing=False):
    """Result, gradients and effects, or the exception."""
    SEEN.clear()
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    try:
        result = fn(x)
        first, *rest = result if isinstance(result, tuple) else (result,)
        if removing:
            rest[0].remove()
        if first.requires_grad:
            roots = [first.sum(), *(t.sum() for t in rest if isinstance(t, torch.Tensor))]
            torch.autograd.backward(roots)
    except Exception as e:
        return type(e), SEEN
    return shown(result), shown(x.grad), shown(SEEN)


@pytest.mark.parametrize("fn", WHOLE, ids=lambda fn: fn.__name__)
def test_one_graph(fn, capture):
    compiled = torchsmith_tracer.compile(fn, backend=capture, fullgraph=True)
    for _ in range(2):
        assert outcome(compiled) == outcome(fn)
    assert capture.n == 1


@pytest.mark.parametrize("fn", BROKEN, ids=lambda fn: fn.__name__)
def test_breaks_are_right(fn):
    compiled = torchsmith_tracer.compile(fn, backend="eager")
    for _ in range(2):
        assert outcome(compiled) == outcome(fn)
    assert compiled._torchsmith_region.log.breaks


def test_the_handle_of_a_leafs_hook_is_the_hooks():
    compiled = torchsmith_tracer.compile(leaf_handle_given_back, backend="eager", fullgraph=True)
    for removing in (False, True):
        expected = outcome(leaf_handle_given_back, removing=removing)
        assert outcome(compiled, removing=removing) == expected


def with_a_global_read_before(x):
    y = x * 2 * (SCALE > 0)
    y.register_hook(reads_a_global)
    return (y * y).sum()


@pytest.mark.parametrize("fn", [with_global, with_a_global_read_before])
def test_what_a_hook_reads_is_as_it_is_in_the_backward_pass(fn, monkeypatch):
    compiled = torchsmith_tracer.compile(fn, backend="eager")
    for scale in (2.0, 5.0):
        x = torch.ones(2, requires_grad=True)
        loss = compiled(x)
        monkeypatch.setitem(globals(), "SCALE", scale * 2)
        loss.backward()
        assert x.grad.tolist() == [8 * scale * 2] * 2


READ_BEFORE = {
    "attribute": lambda box, y: y.register_hook(lambda grad: grad * box.by),
    "item": lambda box, y: y.register_hook(lambda grad: grad * box.table["by"]),
    "buffer": lambda box, y: y.register_hook(lambda grad: grad * box.scale),
}


@pytest.mark.parametrize("name", READ_BEFORE)
def test_what_was_read_before_a_hook_may_change_until_it_runs(name):
    box = nn.Module()
    box.register_buffer("scale", torch.ones(2))

    def fn(x):
        y = x * box.by * box.table["by"] * box.scale
        READ_BEFORE[name](box, y)
        return y.sum()

    compiled = torchsmith_tracer.compile(fn, backend="eager")
    for turn in range(3):
        sides = []
        for run in (fn, compiled):
            box.by, box.table, box.scale = 2, {"by": 3}, torch.ones(2)
            x = torch.ones(2, requires_grad=True)
            loss = run(x)
            box.by, box.scale, box.table["by"] = turn, torch.full((2,), 7.0), turn + 1
            loss.backward()
            sides.append(x.grad)
        torch.testing.assert_close(*sides)


def hooks_of_tensors_first(x, layer):
    y = layer(x)
    y.register_hook(times(3))
    y.register_hook(times(5))
    handle = layer.register_forward_hook(lambda module, args, out: out * 2)
    z = layer(x)
    handle.remove()
    return y, z


def hook_of_a_module_first(x, layer):
    handle = layer.register_forward_hook(lambda module, args, out: out * 2)
    y = layer(x)
    handle.remove()
    y.register_hook(times(3))
    y.register_hook(times(5))
    return y, y


def hook_of_a_leaf_between(x, layer):
    x.register_hook(times(3))
    handle = layer.register_forward_hook(lambda module, args, out: out * 2)
    y = layer(x)
    x.register_hook(times(5))
    handle.remove()
    return x, y


@pytest.mark.parametrize(
    "fn", [hooks_of_tensors_first, hook_of_a_module_first, hook_of_a_leaf_between]
)
def test_no_two_hooks_of_a_tensor_have_the_same_number(fn):
    torch.manual_seed(0)
    layer = nn.Linear(2, 2)
    compiled = torchsmith_tracer.compile(fn, backend="eager")

    def gradient(run):
        x = torch.ones(2, requires_grad=True)
        y, z = run(x, layer)
        y.register_hook(times(7))
        (y + z).sum().backward()
        return x.grad.tolist(), dict(layer._forward_hooks)

    for _ in range(3):
        assert gradient(compiled) == gradient(fn)


class Refuses(nn.Module):
    """A module that fails in a way of choice on inputs of three columns."""

    def __init__(self, how):
        super().__init__()
        self.layer, self.how = nn.Linear(4, 3), how

    def forward(self, x):
        if self.how == "raises" and x.shape[1] == 3:
            raise ValueError("three")
        if self.how == "breaks" and x.sum() > 0:
            return self.layer(x)
        return self.layer(x)


@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize("how", ["raises", "breaks", "operator"])
def test_hooks_that_are_always_called_run_after_errors(how, everywhere):
    net = Refuses(how)
    register = nn.modules.module.register_module_forward_hook if everywhere else None
    seen = []

    def note(module, args, result):
        seen.append((type(module).__name__, result is None))

    def outcomes(run):
        seen.clear()
        found = []
        for columns in (4, 3, 4, 3):
            try:
                run(torch.ones(2, columns))
            except Exception as error:
                found.append(type(error))
        return found, list(seen)

    hook = (register or net.register_forward_hook)(note, always_call=True)
    try:
        for program in (net, nn.Sequential(net), lambda x: net(x) + 1):
            compiled = torchsmith_tracer.compile(program, backend="eager")
            assert outcomes(compiled) == outcomes(program)
            assert (type(net).__name__, True) in seen
    finally:
        hook.remove()
