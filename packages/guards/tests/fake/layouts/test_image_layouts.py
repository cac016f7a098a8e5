"""Pads, shuffles and norms of images and volumes lie as the CPU's kernels lay them."""

import random

import pytest
import torch
from torchsmith_guards import FakeMode, LocalSource, ShapeEnv, hint_of, is_symbolic, layout_of

aten = torch.ops.aten
CHANNELS_LAST = {4: (0, 2, 3, 1), 5: (0, 2, 3, 4, 1)}


def image(choose, size):
    """A tensor of this size in channels-last order, row-major, or in any order."""
    own = CHANNELS_LAST.get(len(size), range(len(size)))
    order = choose.choice([own, own, range(len(size)), choose.sample(range(len(size)), len(size))])
    stored = torch.rand([size[i] for i in order])
    return stored.permute([order.index(i) for i in range(len(size))])


def pads(choose, backward):
    """A pad of one, two or three axes, or its gradient."""
    count = choose.choice((1, 2, 3))
    kind = choose.choice(("reflection", "replication"))
    size = [choose.choice((1, 2, 3)), choose.choice((1, 2, 4))][choose.randint(0, 1) :]
    x = image(choose, [*size, *(choose.choice((2, 3, 4)) for _ in range(count))])
    padding = [choose.randint(0, 1) for _ in range(2 * count)]
    op = getattr(aten, f"{kind}_pad{count}d").default
    if not backward:
        return op, (x, padding)
    grad = image(choose, list(op(x, padding).shape))
    return getattr(aten, f"{kind}_pad{count}d_backward").default, (grad, x, padding)


def shuffles(choose):
    size = [choose.choice((1, 2, 3)), 6, *(choose.choice((1, 2, 3)) for _ in range(3))]
    return aten.channel_shuffle.default, (image(choose, size[: choose.choice((3, 4, 5))]), 3)


def crops(choose):
    """A pad by less than nothing, which clones what is left."""
    size = [choose.choice((1, 1, 3, 4)) for _ in range(choose.randint(2, 5))]
    x = image(choose, size)
    x = x[:, :1].expand(size) if choose.random() < 0.2 else x
    room = [n - 1 for n in reversed(size[1:]) for _ in (0, 1)]
    pad = [-choose.randint(0, min(1, most if i % 2 else most - 1)) if most else 0
           for i, most in enumerate(room)]  # fmt: skip
    return aten.constant_pad_nd.default, (x, pad, 0.5)


def gates(choose):
    x = image(choose, [choose.choice((1, 2)), 4, 3, 2])
    return aten.glu_backward.default, (image(choose, [x.shape[0], 2, 3, 2]), x, 1)


def norms(choose):
    """The gradient of a batch norm over images or volumes without axes of one."""
    x, grad = (image(choose, [2, 4, 3, 2, 5][: choose.choice((4, 5))]) for _ in range(2))
    grad = image(choose, list(x.shape))
    weight, mean, deviation = torch.rand(3, 4)
    rest = (weight, None, None, mean, deviation, True, 1e-5, [True] * 3)
    return aten.native_batch_norm_backward.default, (grad, x, *rest)


@pytest.mark.parametrize("varies", [False, True])
@pytest.mark.parametrize(
    "calls", [lambda c: pads(c, False), lambda c: pads(c, True), shuffles, crops, gates, norms]
)
def test_they_lie_in_the_order_that_eager_gives_them(calls, varies):
    choose, answered = random.Random(0), 0
    for _ in range(400):
        op, args = calls(choose)
        env = ShapeEnv()
        mode = FakeMode(env)
        fakes = [
            mode.fakeify(
                a,
                LocalSource(f"x{i}"),
                {d for d in (0, 2, 3) if varies and a.dim() > max(d, 3) and a.shape[d] > 1},
            )
            if isinstance(a, torch.Tensor)
            else a
            for i, a in enumerate(args)
        ]
        before, found, true = list(env.guards), layout_of(op, fakes), op(*args)
        assert env.guards == before
        if found is None:
            continue
        found, true = (v[0] if isinstance(true, tuple) else v for v in (found, true))
        answered += 1
        sizes = [[hint_of(n) if is_symbolic(n) else n for n in part] for part in found[:2]]
        given = [(a.shape, a.stride()) for a in args if isinstance(a, torch.Tensor)]
        assert sizes == [list(true.shape), list(true.stride())], (op, given)
    assert answered > 200
