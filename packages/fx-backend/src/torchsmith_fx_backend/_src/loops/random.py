"""Lowerings of keyed random numbers: the formula of ``keyed.random_bits`` at one place."""

from __future__ import annotations

import math

import torch

from torchsmith_fx_backend._src import keyed
from torchsmith_fx_backend._src.loops import index as ix
from torchsmith_fx_backend._src.loops.body import Point, Value, compute_dtype
from torchsmith_fx_backend._src.loops.ir import Op
from torchsmith_fx_backend._src.loops.registry import lowering

_LOW_WORD = 0xFFFFFFFF


def _high(x: Value) -> Value:
    return x.op(Op.SHR, 32) & x.body.literal(_LOW_WORD, torch.int64)


def _swapped_square(x: Value) -> Value:
    """The square of ``x`` with its two words swapped; gcc does not vectorise a rotation itself."""
    high = _high(x)
    return high * high + (high * x).op(Op.SHL, 33)


def _word(p: Point, word: int = 0) -> Value:
    """32 random bits."""
    key = p.read(p.node.args[0], torch.int64) | p.body.literal(1, torch.int64)
    place: ix.Index = ix.ZERO
    for coordinate, size in zip(p.at, p.shape):
        place = ix.add(ix.mul(place, size), coordinate)
    counter = p.body.index_value(place) + (word << keyed.WORD_BITS)
    y = counter * key
    z = y + key
    x = _swapped_square(y * y + y) + z
    x = _swapped_square(x) + y
    return _high(_swapped_square(x) + z)


def _long(p: Point, word: int) -> Value:
    """53 random bits, from two words, in float64."""
    both = _word(p, word).op(Op.SHL, 21) | _word(p, word + 1).op(Op.SHR, 11)
    return both.cast(torch.float64)


def _float(bits: Value) -> Value:
    """Fewer than 32 bits in float32; vectors of 64-bit integers convert with AVX-512 alone."""
    return bits.cast(torch.int32).cast(torch.float32)


def _word_as_float(p: Point, word: int) -> Value:
    """32 random bits in float32, rounded once: the product is exact."""
    both = _word(p, word)
    low = both & p.body.literal(0xFFFF, torch.int64)
    return _float(both.op(Op.SHR, 16)) * 65536.0 + _float(low)


def _uniform(p: Point, bits: int) -> Value:
    """A number in [0, 1) of so many random bits."""
    if bits == 53:
        return _long(p, 0) * 2.0**-53
    return _float(_word(p).op(Op.SHR, 32 - bits)) * 2.0**-bits


@lowering(keyed.uniform, cost=30, applies=lambda node: node.args[2] in keyed.BITS)
def uniform(p: Point) -> Value:
    return _uniform(p, keyed.BITS[p.dtype])


@lowering(keyed.normal, cost=160)
def normal(p: Point) -> Value:
    if p.dtype is torch.float64:
        u, v = (_long(p, 0) + 0.5) * 2.0**-53, _long(p, 2) * 2.0**-53
    else:
        u, v = (_word_as_float(p, n) for n in (0, 1))
        u, v = (u + 0.5) * 2.0**-32, v * 2.0**-32
    return (u.op(Op.LOG) * -2.0).op(Op.SQRT) * (v * (2 * math.pi)).op(Op.COS)


@lowering(keyed.integers, cost=64)
def integers(p: Point) -> Value:
    low, high = p.node.args[3:5]
    assert isinstance(low, int) and isinstance(high, int)
    first, second = (_word(p, n) * (high - low) for n in (0, 1))
    drawn = (first + second.op(Op.SHR, 32)).op(Op.SHR, 32) + low
    return p.convert(drawn, torch.int64, p.dtype)


@lowering(keyed.bernoulli, cost=32)
def bernoulli(p: Point) -> Value:
    probability = p.read(p.node.args[3], torch.float32)
    return (_uniform(p, keyed.BITS[torch.float32]) < probability).cast(compute_dtype(p.dtype))
