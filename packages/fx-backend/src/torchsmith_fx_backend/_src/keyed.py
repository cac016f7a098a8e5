"""Random numbers by key and counter: what a draw gives depends on nothing but a seed and its place.

A graph draws one seed per call from torch's generator, which so advances: ``torch.manual_seed``
repeats what follows. Number ``i`` of draw ``n`` is a function of the seed, ``n`` and ``i`` alone,
so that neither fusion nor computing it again can change it. The generator is Squares (Widynski,
"Squares: A Fast Counter-Based RNG", 2020), which passes BigCrush.

These functions are what aten has no operators for: nodes of graphs. They compute what the loops do
(``loops/random.py``), and stand in for them where a kernel cannot be built.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

DRAW_BITS = 40  # counters of a draw: more than any tensor has elements
_LOW_WORD = 0xFFFFFFFF
# Random bits that a number of each dtype is made of: so many that it is exact and never one.
BITS = {torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}


def _swapped(x: torch.Tensor) -> torch.Tensor:
    return ((x >> 32) & _LOW_WORD) | (x << 32)


def random_bits(seed: torch.Tensor, counter: torch.Tensor) -> torch.Tensor:
    """32 random bits per counter, as int64; products wrap."""
    key = seed | 1
    y = counter * key
    z = y + key
    x = _swapped(y * y + y)
    x = _swapped(x * x + z)
    x = _swapped(x * x + y)
    return ((x * x + z) >> 32) & _LOW_WORD


def _counters(seed: torch.Tensor, draw: int, size: Sequence[int]) -> torch.Tensor:
    count = 1
    for n in size:
        count *= n
    places = torch.arange(count, device=seed.device).reshape(tuple(size))
    return places + (draw << DRAW_BITS)


def uniform(seed: torch.Tensor, draw: int, size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Numbers in [0, 1): draw number ``draw`` of the call that ``seed`` (int64, 0-d) is for."""
    bits = random_bits(seed, _counters(seed, draw, size)) >> (32 - BITS[dtype])
    return (bits.to(torch.float32) * 2.0 ** -BITS[dtype]).to(dtype)


def bernoulli(
    seed: torch.Tensor, draw: int, size: Sequence[int], dtype: torch.dtype, probability: float
) -> torch.Tensor:
    """Ones with ``probability``, else zeros."""
    return (uniform(seed, draw, size, torch.float32) < probability).to(dtype)


PURE = frozenset({uniform, bernoulli})
