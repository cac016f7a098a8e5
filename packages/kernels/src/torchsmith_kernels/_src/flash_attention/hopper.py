"""What the Hopper kernels share: Gluon's names in all versions of Triton, and their barriers.

Gluon is Triton's lower level: layouts, shared memory, barriers and the roles of warps are written
out. The kernels here use what Triton 3.6 and later have in common.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

Function = TypeVar("Function", bound=Callable[..., object])
jit: Callable[[Function], Function] = gluon.jit

# Under other names in Triton 3.6.
tma_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
tma_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


@jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr) -> gl.shared_memory_descriptor:
    """``COUNT`` barriers that complete a phase after ``ARRIVALS`` arrivals each."""
    bars = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(bars.index(i), count=ARRIVALS)
    return bars


@jit
def advance(slot: gl.tensor, phase: gl.tensor, STAGES: gl.constexpr) -> tuple[gl.tensor, gl.tensor]:
    """The next slot of a ring of buffers, and the phase of its barriers."""
    slot += 1
    wrap = slot == STAGES
    return gl.where(wrap, 0, slot), gl.where(wrap, phase ^ 1, phase)


@jit
def give(number: gl.tensor, turn: gl.tensor, numbers: gl.tensor, bars: gl.tuple) -> None:
    """Tells the other roles of a program which tile is next; called by one warp."""
    full, empty = bars
    i = turn & 1
    mbarrier.wait(empty.index(i), ((turn >> 1) & 1) ^ 1)
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    numbers.index(i).store(gl.full([1], 0, gl.int32, layout) + number)
    mbarrier.arrive(full.index(i), count=1)


@jit
def take(turn: gl.tensor, numbers: gl.tensor, bars: gl.tuple, WARPS: gl.constexpr) -> gl.tensor:
    """What ``give`` told, for a role of ``WARPS`` warps."""
    full, empty = bars
    i = turn & 1
    mbarrier.wait(full.index(i), (turn >> 1) & 1)
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    number = gl.max(numbers.index(i).load(layout), 0)
    mbarrier.arrive(empty.index(i), count=1)
    return number
