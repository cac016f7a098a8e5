"""What the printer hands on: module text and all that a launcher must know about it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch

from torchsmith_fx_backend._src.codegen.triton.config import Config
from torchsmith_fx_backend._src.loops.ir import Kernel


@dataclass(frozen=True, slots=True)
class Stage:
    """One ``@triton.jit`` function of the module and the grid to launch it on.

    ``grid`` holds two Python expressions over the parameter names of the symbols.
    """

    function: str
    grid: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Workspace:
    """A temporary of ``length`` (Python expression over symbols) elements, allocated per launch."""

    name: str
    dtype: torch.dtype
    length: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """A scalar parameter: ``name`` in the text, ``kind`` its Triton type (i64 or fp64)."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class TritonSource:
    """A printed kernel and what a launcher needs to know about it.

    Attributes:
        text: the module's source.
        stages: functions in launch order; all take the same parameters.
        pointers: (name, dtype) of the kernel's buffers, in launch order.
        workspaces: temporaries, after the pointers.
        symbols: scalar parameters, last, in the order of ``kernel.symbols``.
        offset_bound: Python expression over the symbols that bounds every offset.
        config: the configuration that was printed.
        wide: whether addresses are 64-bit.
    """

    text: str
    stages: tuple[Stage, ...]
    pointers: tuple[tuple[str, torch.dtype], ...]
    workspaces: tuple[Workspace, ...]
    symbols: tuple[Symbol, ...]
    offset_bound: str
    config: Config
    wide: bool


def content_hash(kernel: Kernel) -> str:
    """Hexadecimal digest of the loop IR; equal kernels of different graphs share it."""
    return hashlib.sha256(repr(kernel).encode()).hexdigest()
