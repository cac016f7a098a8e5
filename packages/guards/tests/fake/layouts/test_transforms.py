"""Fourier transforms along any dimensions, of tensors in any order, lie as the kernels lay them."""

import random

import pytest
import torch
from torchsmith_guards import FakeMode, LocalSource, ShapeEnv, hint_of, is_symbolic, layout_of

aten = torch.ops.aten
KINDS = {"_fft_r2c": torch.float64, "_fft_c2c": torch.complex64, "_fft_c2r": torch.complex128}


def strided(choose, size, dtype):
    """A tensor of some layout: permuted, with gaps, expanded."""
    order = choose.sample(range(len(size)), len(size))
    wide = [size[i] * choose.choice((1, 1, 2)) for i in order]
    x = torch.ones(wide, dtype=dtype).permute([order.index(i) for i in range(len(size))])
    x = x[tuple(slice(n) for n in size)]
    if choose.random() < 0.2:
        x = x[tuple(slice(1) if choose.random() < 0.5 else slice(None) for _ in size)].expand(size)
    return x


def calls(kind, count):
    """Arguments of a transform."""
    choose = random.Random(count)
    for _ in range(count):
        size = [choose.choice((1, 2, 3, 4, 5)) for _ in range(choose.choice((1, 2, 3, 4)))]
        dims = choose.sample(range(len(size)), choose.randint(1, len(size)))
        last = {"_fft_r2c": choose.random() < 0.6, "_fft_c2c": True, "_fft_c2r": size[dims[-1]]}
        yield choose, strided(choose, size, KINDS[kind]), (dims, 0, last[kind])


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="another library's layouts")
@pytest.mark.parametrize("kind", KINDS)
def test_transforms_lie_as_the_kernels_lay_them(kind):
    op = getattr(aten, kind).default
    for _, x, rest in calls(kind, 400):
        mode = FakeMode()
        fake, true = mode.fakeify(x), op(x, *rest)
        assert layout_of(op, (fake, *rest)) is not None
        with mode.mode:
            got = op(fake, *rest)
        facts = [(t.shape, t.stride(), t.dtype) for t in (got, true)]
        assert facts[0] == facts[1], (x.shape, x.stride(), rest)


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="another library's layouts")
@pytest.mark.parametrize("kind", KINDS)
def test_transforms_of_symbolic_sizes_lie_so_too(kind):
    op, answered = getattr(aten, kind).default, 0
    for choose, x, rest in calls(kind, 200):
        env = ShapeEnv()
        dims = {d for d, n in enumerate(x.shape) if n > 1 and choose.random() < 0.5}
        fake = FakeMode(env).fakeify(x, LocalSource("x"), dims)
        before, found = list(env.guards), layout_of(op, (fake, *rest))
        assert env.guards == before
        if found is None:
            continue
        answered += dims != set()
        true = op(x, *rest)
        got = [[hint_of(n) if is_symbolic(n) else n for n in part] for part in found[:2]]
        assert got[0] == list(true.shape)
        wide = [(a, b) for n, a, b in zip(true.shape, got[1], true.stride()) if n > 1]
        assert all(a == b for a, b in wide), (x.shape, x.stride(), rest)
    assert answered > 50
