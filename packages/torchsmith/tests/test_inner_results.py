"""Results that other results are computed from: whoever watches their gradient gets eager's, or is
told that it does not come by."""

import pytest
import torch
import torchsmith


def plain(x):
    a = x * 2
    return a, a.exp(), x.cos()


def pieces(x):
    a, c = (x * 2).chunk(2)
    return a, a.exp(), c.sin()


def twice(x):
    a = x * 2
    b = a.sin()
    return a, b.exp(), b


def retained(result):
    result.retain_grad()
    return lambda: result.grad


def doubled(result):
    seen = []

    def hook(grad):
        seen.append(grad)
        return None if grad is None else grad * 2

    result.register_hook(hook)
    return lambda: seen[-1] if seen else None


def gradients(fn, watch, watched, differentiated):
    x = torch.linspace(-1, 1, 4, requires_grad=True)
    results = fn(x)
    look = watch(results[watched])
    sum(results[i].sum() for i in differentiated).backward()
    return x.grad, look()


@pytest.mark.parametrize("watch", [retained, doubled])
@pytest.mark.parametrize("differentiated", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2)])
@pytest.mark.parametrize("watched", [0, 1, 2])
@pytest.mark.parametrize("fn", [plain, pieces, twice])
def test_gradients_are_eagers_or_refused(fn, watch, watched, differentiated):
    expected = gradients(fn, watch, watched, differentiated)
    inner = {plain: {0: {1}}, pieces: {0: {1}}, twice: {0: {1, 2}, 2: {1}}}[fn]
    if inner.get(watched, set()).isdisjoint(differentiated):
        found = gradients(torchsmith.compile(fn), watch, watched, differentiated)
        torch.testing.assert_close(found, expected)
    else:
        with pytest.raises(RuntimeError, match="does not come by the first"):
            gradients(torchsmith.compile(fn), watch, watched, differentiated)
    eagerly = torchsmith.compile(fn, options={"training": "eager"})
    torch.testing.assert_close(gradients(eagerly, watch, watched, differentiated), expected)


def test_who_does_not_watch_gets_eagers():
    def gradient(fn):
        x = torch.linspace(-1, 1, 4, requires_grad=True)
        a, b, _ = fn(x)
        handle = a.register_hook(lambda grad: grad * 2)
        handle.remove()
        (a + b).sum().backward()
        return x.grad

    torch.testing.assert_close(gradient(torchsmith.compile(plain)), gradient(plain))


@pytest.mark.parametrize("sizes", [(3,), (3, 4, 5)])
def test_a_hook_that_breaks_the_graph_sees_all_of_a_gradient(sizes):
    seen = []

    def note(grad):
        seen.append(grad)
        return grad * 2

    def program(x):
        y = x * 2
        z = y.sin()
        y.register_hook(note)
        return z * y + z.cos()

    compiled = torchsmith.compile(program)
    for size in sizes:
        sides = []
        for fn in (program, compiled):
            seen.clear()
            x = torch.linspace(-1, 1, size, requires_grad=True)
            fn(x).sum().backward()
            sides.append((x.grad, *seen))
        torch.testing.assert_close(*sides)
        assert len(seen) == 1


def one_by_one(x, note):
    a = x * 2
    b = a.sin()
    c = b * x
    for name, tensor in (("a", a), ("c", c), ("b", b)):
        tensor.register_hook(lambda grad, name=name: note(name, grad))
    return c.sum()


def from_a_list(x, note):
    found = [x * 2]
    for _ in range(2):
        found.append(found[-1].tanh() * 3)
    for number, tensor in enumerate(found):
        tensor.register_hook(lambda grad, number=number: note(number, grad))
    return found[-1].exp().sum()


@pytest.mark.parametrize("program", [one_by_one, from_a_list])
def test_hooks_on_several_results_of_what_comes_before_them(program):
    sides = []
    for fn in (program, torchsmith.compile(program)):
        seen = []

        def note(name, grad):
            seen.append((name, grad.clone()))
            return grad * 2

        for size in (3, 3, 4):
            x = torch.linspace(-1, 1, size, requires_grad=True)
            fn(x, note).backward()
            seen.append(("x", x.grad))
        sides.append(([name for name, _ in seen], [grad for _, grad in seen]))
    assert sides[0][0] == sides[1][0]
    torch.testing.assert_close(sides[1][1], sides[0][1])
