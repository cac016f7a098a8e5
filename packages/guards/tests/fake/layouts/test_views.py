"""Views with other shapes lie as torch lays them, whatever the order of their input is."""

import math
import random

import pytest
import torch
from torchsmith_guards import FakeMode, LocalSource, ShapeEnv, hint_of, is_symbolic, layout_of

VIEW = torch.ops.aten.view.default


def stored_in_some_order(choose, size):
    """A tensor of this size whose axes lie in some order, some of them with gaps."""
    order = choose.choice([sorted, lambda axes: choose.sample(axes, len(axes))])(range(len(size)))
    wide = [size[i] * choose.choice((1, 1, 1, 2)) for i in order]
    x = torch.empty(wide).permute([order.index(i) for i in range(len(size))])
    return x[tuple(slice(n) for n in size)]


def merged(choose, size):
    """Neighbouring sizes as one, and axes of one in between; places, to do so with symbols too."""
    groups = [[axis] for axis in range(len(size))]
    for _ in range(choose.randint(0, 2)):
        at = choose.randrange(len(groups))
        if at and choose.random() < 0.8:
            groups[at - 1 : at + 1] = [groups[at - 1] + groups[at]]
        else:
            groups.insert(at, [])
    return groups


def test_views_of_symbolic_sizes_have_the_strides_of_eager_and_no_guards():
    choose = random.Random(0)
    views, copies = 0, 0
    for _ in range(2000):
        size = [choose.choice((1, 1, 2, 3, 4)) for _ in range(choose.randint(1, 5))]
        real = stored_in_some_order(choose, size)
        env = ShapeEnv()
        dims = {d for d, n in enumerate(size) if n > 1 and choose.random() < 0.4}
        fake = FakeMode(env).fakeify(real, LocalSource("x"), dims)
        groups = merged(choose, size)
        new, ours = ([math.prod(n[a] for a in g) for g in groups] for n in (size, fake.shape))
        try:
            wanted = list(real.view(new).stride())
        except RuntimeError:
            wanted = None
        before = list(env.guards)
        found = layout_of(VIEW, (fake, ours))
        assert env.guards == before
        got = found and [hint_of(n) if is_symbolic(n) else n for n in found[1]]
        if got is not None:
            assert got == wanted, (size, dims, real.stride(), new)
        views += bool(dims) and got is not None and not real.is_contiguous()
        copies += wanted is None
    assert views > 250
    assert copies > 100


IN_CHUNKS = {
    "counted": lambda x: x.view(2, 3, x.shape[2] // 4, 4, 5),
    "rest": lambda x: x.view(2, 3, -1, 4, 5),
    "first": lambda x: x.reshape(2, 3, 4, -1, 5),
    "merged": lambda x: x.view(6, x.shape[2] // 4, 2, 10),
    "within": lambda x: x.transpose(0, 1).reshape(3, 2, x.shape[2] // 4, 4, 5),
    "unfolded": lambda x: x.unflatten(2, (-1, 4)),
}


@pytest.mark.parametrize("name", IN_CHUNKS)
def test_views_in_chunks_have_the_sizes_that_were_asked_for(name):
    view = IN_CHUNKS[name]
    env = ShapeEnv()
    fakes = FakeMode(env)
    x = fakes.fakeify(torch.empty(2, 3, 12, 5), LocalSource("x"), {2})
    with fakes.mode:
        result = view(x)
    wanted = view(torch.empty(2, 3, 12, 5))
    assert [hint_of(n) for n in result.shape] == list(wanted.shape)
    assert [hint_of(n) for n in result.stride()] == list(wanted.stride())
    varying = [str(n) for n in result.shape if is_symbolic(n)]
    assert varying == ["s0//4"], "the length of a chunk is a number"
    texts = [guard.condition.text() for guard in env.guards]
    assert "s0 == 4*(s0//4)" in texts and not any("//(" in text for text in texts)
