"""Layouts of advanced indexing beside eager's, which torch's own fakes do not always know."""

from __future__ import annotations

import random

import pytest
import torch
import torchsmith_guards as guards
from torchsmith_guards._src.fake.layouts.base import layout_of

index = torch.ops.aten.index.Tensor


def permuted(rng: random.Random, size: list[int], dtype: torch.dtype) -> torch.Tensor:
    order = rng.sample(range(len(size)), len(size))
    made = torch.zeros([size[axis] for axis in order], dtype=dtype)
    return made.permute([order.index(axis) for axis in range(len(size))])


def source(rng: random.Random) -> torch.Tensor:
    x = permuted(rng, [rng.choice((1, 2, 3, 4)) for _ in range(rng.randint(1, 4))], torch.float32)
    if rng.random() < 0.2:
        x = x[..., ::2]
    return x[:1].expand(x.shape) if rng.random() < 0.1 else x


def positions(rng: random.Random, size: list[int]) -> torch.Tensor:
    where = permuted(rng, size, torch.int64)
    if size and rng.random() < 0.2:
        where = where[:1]
    if size and rng.random() < 0.15:
        where = where[..., ::2]
    return where[0] if len(size) > 1 and rng.random() < 0.2 else where


@pytest.mark.parametrize("seed", range(6))
def test_any_order_of_elements_and_indices(seed: int) -> None:
    rng = random.Random(seed)
    compared = 0
    for _ in range(700):
        x = source(rng)
        size = [rng.choice((1, 2, 3)) for _ in range(rng.randint(0, 3))]
        count = rng.randint(1, x.dim())
        given = [positions(rng, size) if rng.random() < 0.7 else None for _ in range(count)]
        if all(each is None for each in given):
            continue
        try:
            wanted = index(x, given)
        except IndexError:  # they do not broadcast
            continue
        found = layout_of(index, (x, given))
        assert found is not None
        assert isinstance(found, tuple)
        assert (found[0], found[1]) == (tuple(wanted.shape), wanted.stride()), (x.stride(), given)
        compared += 1
    assert compared > 400


def test_orders_at_symbolic_sizes() -> None:
    """Where every size is a symbol, the order is that of the sizes at hand."""
    rng = random.Random(0)
    for _ in range(60):
        x = permuted(rng, rng.sample((5, 6, 7, 9), 2), torch.float32)
        where = permuted(rng, rng.sample((2, 3, 4, 8), rng.randint(1, 3)), torch.int64)
        given = rng.choice(([where], [None, where], [where, where]))
        mode = guards.FakeMode(guards.ShapeEnv())
        fakes = {
            id(t): mode.fakeify(t, guards.LocalSource(name), set(range(t.dim())))
            for name, t in (("x", x), ("where", where))
        }
        with mode.mode:
            found = index(fakes[id(x)], [None if t is None else fakes[id(t)] for t in given])
        assert tuple(map(int, found.stride())) == index(x, given).stride(), (x.stride(), given)
