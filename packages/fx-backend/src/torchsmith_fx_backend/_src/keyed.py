"""Random numbers by key and counter: what a draw gives depends on nothing but a seed and its place.

A graph takes a seed for each of its draws from torch's generator, all at once at each call, which
so advances: ``torch.manual_seed`` repeats what follows. Number ``i`` of a draw is a function of its
seed and ``i`` alone, so that neither fusion nor computing it again can change it, and that draws of
equal layers have the same kernels. The generator is Squares (Widynski,
"Squares: A Fast Counter-Based RNG", 2020), which passes BigCrush.

These functions are what aten has no operators for: nodes of graphs. They compute what the loops do
(``loops/random.py``), and stand in for them where a kernel cannot be built.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

WORD_BITS = 38  # counters of a word: one for each element of the largest tensor
_LOW_WORD = 0xFFFFFFFF
# Random bits that a number of each dtype is made of: so many that it is exact and never one.
BITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
MOST_INTEGERS = 1 << 31  # of a range that integers are drawn from


_SEEDS = 1 << 62


def seeds(count: int, device: torch.device) -> list[torch.Tensor]:
    """New seeds from torch's generator; each at an address that kernels take to be aligned."""
    drawn = torch.randint(-_SEEDS, _SEEDS, (count, 2), dtype=torch.int64, device=device)
    return list(drawn[:, 0].unbind())


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


def _counters(seed: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    return torch.arange(math.prod(size), device=seed.device).reshape(tuple(size))


def _words(seed: torch.Tensor, size: Sequence[int], word: int) -> torch.Tensor:
    return random_bits(seed, _counters(seed, size) + (word << WORD_BITS))


def _long(seed: torch.Tensor, size: Sequence[int], word: int) -> torch.Tensor:
    """53 random bits, from two words."""
    high, low = (_words(seed, size, n) for n in (word, word + 1))
    return (high << 21) | (low >> 11)


def uniform(seed: torch.Tensor, size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Numbers in [0, 1): those of ``seed`` (int64, 0-d)."""
    if dtype is torch.float64:
        return _long(seed, size, 0).to(dtype) * 2.0**-53
    bits = random_bits(seed, _counters(seed, size)) >> (32 - BITS[dtype])
    return (bits.to(torch.float32) * 2.0 ** -BITS[dtype]).to(dtype)


def bernoulli(
    seed: torch.Tensor, size: Sequence[int], dtype: torch.dtype, probability: float
) -> torch.Tensor:
    """Ones with ``probability``, else zeros."""
    return (uniform(seed, size, torch.float32) < probability).to(dtype)


def normal(seed: torch.Tensor, size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Standard normal numbers, each by the formula of Box and Muller from two uniform ones."""
    if dtype is torch.float64:
        u = (_long(seed, size, 0).to(dtype) + 0.5) * 2.0**-53
        v = _long(seed, size, 2).to(dtype) * 2.0**-53
    else:
        u, v = (_words(seed, size, n).to(torch.float32) for n in (0, 1))
        u, v = (u + 0.5) * 2.0**-32, v * 2.0**-32
    return (torch.sqrt(torch.log(u) * -2.0) * torch.cos(v * (2 * math.pi))).to(dtype)


def integers(
    seed: torch.Tensor, size: Sequence[int], dtype: torch.dtype, low: int, high: int
) -> torch.Tensor:
    """Integers in ``low .. high-1``: a 64-bit number times the range, without its low bits."""
    first, second = (_words(seed, size, n) for n in (0, 1))
    count = high - low
    return (((first * count + ((second * count) >> 32)) >> 32) + low).to(dtype)


PURE = frozenset({uniform, bernoulli, normal, integers})
