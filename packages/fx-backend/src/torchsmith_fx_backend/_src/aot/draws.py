"""Random draws while a program is recorded: one state of the generator stands for one draw.

Activation checkpointing runs a part of the program again, in the backward pass, from the state
that the generator had before the first run. So a recording draws from the real generator, too, if
only to move it on: what is drawn again from a known state is the value that was drawn there.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torchsmith_guards as guards
from torch import fx
from torchsmith_guards import is_contiguous

from torchsmith_fx_backend._src.capture.ops import op_info
from torchsmith_fx_backend._src.capture.recorder import Recorder
from torchsmith_fx_backend._src.capture.torch_private import OpOverload, without_dispatch

_SEEDS = itertools.count()


class Draws:
    """Records calls; a draw from a state that another one was made from is that other one."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._known: dict[tuple[object, ...], fx.Node] = {}

    def call(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], value: Any
    ) -> fx.Node:
        """The node of a call with the result ``value``."""
        info = op_info(func)
        first = value[0] if isinstance(value, (list, tuple)) and value else value
        generator = None
        if info.seeded and kwargs.get("generator") is None and isinstance(first, torch.Tensor):
            generator = _generator(first.device)
        if generator is None:
            return self._recorder.call(func, args, kwargs, value, info.name)
        with without_dispatch():
            state = bytes(generator.get_state().tolist())
            _advance(generator)
        plain = [a for a in (*args, *kwargs.values()) if isinstance(a, (int, float))]
        layout = str((tuple(first.shape), first.stride()))  # sizes may be symbols
        key = (func, state, layout, first.dtype, *plain)
        known = self._known.get(key)
        if known is None:
            known = self._recorder.call(func, args, kwargs, value, info.name)
            self._known[key] = known
        return known


def _generator(device: torch.device) -> torch.Generator | None:
    """The generator that eager draws from on ``device``."""
    if device.type == "cpu":
        return torch.default_generator
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    torch.cuda.init()  # type: ignore[no-untyped-call]
    return torch.cuda.default_generators[device.index or 0]


def _advance(generator: torch.Generator) -> None:
    if generator.device.type == "cuda":
        generator.set_offset(generator.get_offset() + 4)
    else:
        torch.empty(1).random_(generator=generator)


@contextlib.contextmanager
def untouched_generators() -> Iterator[None]:
    """Leave the generators as they are found; meanwhile their states are new ones."""
    used = [torch.device("cpu")]
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        used += [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    found = [g for device in used if (g := _generator(device)) is not None]
    states = [g.get_state() for g in found]
    for generator in found:
        generator.manual_seed(next(_SEEDS))
    try:
        yield
    finally:
        for generator, state in zip(found, states, strict=True):
            generator.set_state(state)


def memory_order(tensor: torch.Tensor) -> list[int] | None:
    """The dimensions from the one with the largest stride on; None for a contiguous tensor."""
    if is_contiguous(tensor):
        return None
    strides = [s if type(s) is int else guards.hint_of(s) or 0 for s in tensor.stride()]
    return sorted(range(tensor.dim()), key=lambda dim: -strides[dim])
