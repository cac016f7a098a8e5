"""The plan: what the runtime executes, in order. The hand-over from scheduling to code generation.

A plan is straight-line: allocate, launch, call, free, return. Names are those of the generated
wrapper's local variables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from torchsmith_fx_backend._src.loops.index import Index
from torchsmith_fx_backend._src.loops.ir import Kernel

# An argument of an extern call: a Name, a symbol expression, a Python constant, or nested tuples
# and lists of these.
Argument = object


@dataclass(frozen=True, slots=True)
class Name:
    """A reference to a local of the wrapper (graph input, buffer, or extern result)."""

    name: str


@dataclass(frozen=True, slots=True)
class Layout:
    """Dtype, device, sizes and strides (elements) of a dense strided tensor."""

    dtype: torch.dtype
    device: torch.device
    size: tuple[Index, ...]
    stride: tuple[Index, ...]


@dataclass(frozen=True, slots=True)
class Allocate:
    """``name = empty_strided(layout)``; with ``reuse``, a view of that dead buffer's storage, or
    (``as_is``) that very tensor, which has this layout."""

    name: str
    layout: Layout
    reuse: str | None = None
    as_is: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """Run ``kernel`` with pointers of ``args`` (tensor names; their storage offset counts) and the
    values of ``kernel.symbols``. ``origins`` are user source lines or op names, for the comment;
    ``sizes`` says how many elements each argument reaches over; ``nodes`` are the names of the
    graph nodes that are computed here; ``starts``, where given, are the elements of each argument
    at which its pointer starts; ``numbers``, where given, are the names of the kernel's symbols in
    the wrapper, which has others for what tensors hold."""

    kernel: Kernel
    args: tuple[str, ...]
    device: torch.device
    origins: tuple[str, ...] = ()
    sizes: tuple[Index, ...] = ()
    nodes: tuple[str, ...] = ()
    starts: tuple[int, ...] = ()
    numbers: tuple[str, ...] = ()

    def moved_bytes(self, number: Callable[[Index], int | None]) -> int | None:
        """What is read and written, each tensor once; None where ``number`` knows no size."""
        if len(self.sizes) != len(self.kernel.args):
            return None
        total = {}
        for name, arg, size in zip(self.args, self.kernel.args, self.sizes):
            count = number(size)
            if count is None:
                return None
            total[name] = count * arg.dtype.itemsize * (arg.read + arg.written)
        return sum(total.values())


@dataclass(frozen=True, slots=True)
class ExternCall:
    """``results = target(*args, **kwargs)`` through aten (GEMM, convolution, attention, views,
    unknown ops). With ``out`` the result is written into that allocated buffer when the overload
    has an out variant; otherwise results are fresh. A tuple result unpacks into ``results``;
    entries may be None for unused elements."""

    target: object
    args: tuple[Argument, ...]
    kwargs: tuple[tuple[str, Argument], ...]
    results: tuple[str | None, ...]
    unpack: bool = False
    out: str | None = None
    origins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BindSymbol:
    """``symbol = tensor.size(axis)`` (or stride): gives a size symbol its value; ``item`` is what
    a tensor of one element holds."""

    symbol: str
    tensor: str
    what: Literal["size", "stride", "storage_offset", "item"]
    axis: int = 0

    @property
    def call(self) -> str:
        """The method that gives the value, with its argument."""
        return f"{self.what}({self.axis if self.what in ('size', 'stride') else ''})"


@dataclass(frozen=True, slots=True)
class Free:
    """``del name``: the last use has passed."""

    name: str


@dataclass(frozen=True, slots=True)
class Bump:
    """``name``, which the caller sees, has been written: its version counter is to be advanced by
    ``times``, as eager's writes would."""

    name: str
    times: int


Step = Allocate | Launch | ExternCall | BindSymbol | Free | Bump


@dataclass(frozen=True, slots=True)
class Plan:
    """Inputs, steps and outputs of one compiled graph.

    Attributes:
        inputs: wrapper parameter names in order (tensors, or ints for symbol inputs).
        constants: tensors lifted out of the graph, by name; live as long as the callable.
        steps: in execution order.
        outputs: one per graph output: a Name, a symbol expression, or a Python constant.
        boxed: inputs come in one list, which is emptied, and are freed after their last use.
    """

    inputs: tuple[str, ...]
    constants: tuple[tuple[str, torch.Tensor], ...]
    steps: tuple[Step, ...]
    outputs: tuple[Argument, ...]
    boxed: bool = False
