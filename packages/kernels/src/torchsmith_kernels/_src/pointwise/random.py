"""The random numbers of dropout: drawing a stream, and what its words are.

A call of dropout has a *stream*: a 64-bit key and a 64-bit offset. Element ``e`` has 16 random
bits: half ``e % 2`` of word ``e // 2 % 4`` of Philox 4x32-10 (Salmon et al., 2011, "Parallel random
numbers: as easy as 1, 2, 3") with that key and the counter ``(e // 8, offset)``. Any element's bits
can so be computed anywhere, in forward, backward or the reference, and none repeat below 2**65
elements. Where 16 bits do not resolve the probability, a second call with another counter gives 16
more. The counter's highest bit is set, which torch's own kernels never do: the bits of a call are
never those of another torch function under the same seed.
"""

from __future__ import annotations

import threading
from functools import lru_cache

import torch
from torch import Tensor

from torchsmith_kernels._src import check, private
from torchsmith_kernels._src.launch import Word
from torchsmith_kernels.errors import ArgumentValueError

#: A stream as arguments of an operator: ``key`` and ``offset`` in a tensor on the device or, where
#: that is None, as two numbers.
Stream = tuple[Tensor | None, int, int]
#: Where nothing is dropped.
NONE: Stream = None, 0, 0

MOST = 2**63 - 1
ROUNDS = 10
OWN_STREAM = 0x80000000
SECOND_CALL = 1 << 62
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
KEY_STEPS = 0x9E3779B9, 0xBB67AE85
MASK = 0xFFFFFFFF
STEP = 4  # torch's generators on GPUs count in fours

_lock = threading.Lock()


def draw(device: torch.device) -> Stream:
    """A stream from the default generator of ``device``, which moves on.

    On a GPU the generator's seed and offset are read and advanced on the host, without a kernel.
    Where the call is recorded to run again (``torch.compile``, CUDA graphs, tracing), a tensor is
    drawn on the device instead, so that every run has a stream of its own.
    """
    if torch.compiler.is_compiling() or private.recording() or private.transforms_active():
        return _drawn(device), 0, 0
    if device.type == "cuda":
        if torch.cuda.is_current_stream_capturing():
            return _drawn(device), 0, 0
        index = device.index if device.index is not None else torch.cuda.current_device()
        generator = torch.cuda.default_generators[index]
        with _lock:
            offset = generator.get_offset()
            generator.set_offset(offset + STEP)
        key = generator.initial_seed()
        return None, key if key <= MOST else key - 2**64, offset
    if device.type == "cpu":
        key, offset = _drawn(device).tolist()
        return None, key, offset
    return _drawn(device), 0, 0


def _drawn(device: torch.device) -> Tensor:
    return torch.randint(MOST, (2,), dtype=torch.int64, device=device)


def arguments(stream: Stream) -> tuple[Tensor | None, Word, Word]:
    """The stream as arguments of a kernel, which is not specialised on the numbers."""
    return stream[0], Word(stream[1]), Word(stream[2])


@lru_cache(maxsize=64)
def law(p: float) -> tuple[bool, Word, float]:
    """How elements are dropped with probability ``p``.

    Returns:
        Whether words of 32 bits are needed, since ``p`` or ``1 - p`` in multiples of 2**-16 would
        be wrong by more than a thousandth; the word below which elements are dropped; and what the
        others are multiplied by, 0 when all are dropped.
    """
    steps = round(p * 2**16)
    wide = abs(steps / 2**16 - p) > min(p, 1 - p) / 1000
    dropped = min(round(p * 2**32) if wide else steps << 16, MASK)
    return wide, Word(dropped), 0.0 if p == 1 else 1 / (1 - p)


def words(count: int, stream: Stream, wide: bool, device: torch.device) -> Tensor:
    """The first ``count`` random words of a stream, as int64; the definition in plain PyTorch."""
    group = torch.arange((count + 7) // 8, dtype=torch.int64, device=device)
    first = _philox(group, stream)
    result = torch.stack([first & 0xFFFF, first >> 16], 2) << 16
    if wide:
        second = _philox(group | SECOND_CALL, stream)
        result |= torch.stack([second & 0xFFFF, second >> 16], 2)
    return result.flatten()[:count]


def _philox(group: Tensor, stream: Stream) -> Tensor:
    """Four words per group."""
    seed, key, offset = stream
    numbers: Tensor | tuple[int, int] = (key, offset) if seed is None else seed
    zero = torch.zeros_like(group)
    c0, c1 = group & MASK, group >> 32
    c2, c3 = zero + (numbers[1] & MASK), zero + (((numbers[1] >> 32) & MASK) ^ OWN_STREAM)
    k0, k1 = numbers[0] & MASK, (numbers[0] >> 32) & MASK
    for _ in range(ROUNDS):
        high_a, low_a = _product(c0, MULTIPLIERS[0])
        high_b, low_b = _product(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high_b ^ c1 ^ k0, low_b, high_a ^ c3 ^ k1, low_a
        k0, k1 = (k0 + KEY_STEPS[0]) & MASK, (k1 + KEY_STEPS[1]) & MASK
    return torch.stack([c0, c1, c2, c3], 1)


def _product(a: Tensor, b: int) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of the product of 32-bit words, in signed 64-bit arithmetic."""
    low, high = a & 0xFFFF, a >> 16
    bottom, middle = low * b, high * b  # below 2**48
    total = bottom + ((middle & 0xFFFF) << 16)
    return (middle >> 16) + (total >> 32), total & MASK


def factors(
    count: int, p: float, stream: Stream, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """What the elements of a dropout of ``count`` elements are multiplied by."""
    wide, threshold, scale = law(p)
    kept = words(count, stream, wide, device) >= threshold
    # Of two numbers, torch.where would round to the default type.
    return kept.to(dtype) * scale


def checked(op: str, p: float) -> float:
    """The probability ``p`` as a float; raises where it is none."""
    check.is_number(op, "p", p)
    if not 0 <= p <= 1:  # also true for NaN
        raise ArgumentValueError(
            op=op, argument="p", given=p, accepted="it must be a probability from 0 to 1"
        )
    return float(p)
