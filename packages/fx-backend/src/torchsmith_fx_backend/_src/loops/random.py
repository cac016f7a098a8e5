"""Lowerings of keyed random numbers: the formula of ``keyed.random_bits`` at one place."""

from __future__ import annotations

import torch

from torchsmith_fx_backend._src import keyed
from torchsmith_fx_backend._src.loops import index as ix
from torchsmith_fx_backend._src.loops.body import Point, Value, compute_dtype
from torchsmith_fx_backend._src.loops.ir import Op
from torchsmith_fx_backend._src.loops.registry import lowering

_LOW_WORD = 0xFFFFFFFF


def _high(x: Value) -> Value:
    return x.op(Op.SHR, 32) & x.body.literal(_LOW_WORD, torch.int64)


def _swapped(x: Value) -> Value:
    return _high(x) | x.op(Op.SHL, 32)


def _uniform(p: Point, bits: int) -> Value:
    """A number in [0, 1) of so many random bits."""
    seed, draw = p.node.args[:2]
    key = p.read(seed, torch.int64) | p.body.literal(1, torch.int64)
    place: ix.Index = ix.ZERO
    for coordinate, size in zip(p.at, p.shape):
        place = ix.add(ix.mul(place, size), coordinate)
    assert isinstance(draw, int)
    counter = p.body.index_value(place) + (draw << keyed.DRAW_BITS)
    y = counter * key
    z = y + key
    x = _swapped(y * y + y)
    x = _swapped(x * x + z)
    x = _swapped(x * x + y)
    drawn = _high(x * x + z).op(Op.SHR, 32 - bits)
    return drawn.cast(torch.float32) * 2.0**-bits


@lowering(keyed.uniform, cost=30, applies=lambda node: node.args[3] in keyed.BITS)
def uniform(p: Point) -> Value:
    return _uniform(p, keyed.BITS[p.dtype])


@lowering(keyed.bernoulli, cost=32)
def bernoulli(p: Point) -> Value:
    probability = p.read(p.node.args[4], torch.float32)
    return (_uniform(p, keyed.BITS[torch.float32]) < probability).cast(compute_dtype(p.dtype))
