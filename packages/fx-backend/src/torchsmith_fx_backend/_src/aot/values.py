"""What a trace knows of the program's storages and tensors while it makes them functional."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from torchsmith_fx_backend._src.aot.views import Step


@dataclass(slots=True, eq=False)
class Base:
    """A storage.

    Attributes:
        node: its current value.
        origin: the placeholder or ``get_attr`` node when the storage belongs to the caller.
        generation: number of writes so far.
        exact: ``node`` has the strides that eager's tensor has.
        root: the tensor object that came with a storage of the program's own, while it has the
            layout of its birth.
        unseen: number of writes that eager's version counter does not count.
    """

    node: fx.Node
    origin: fx.Node | None
    generation: int = 0
    exact: bool = True
    root: torch.Tensor | None = None
    unseen: int = 0


@dataclass(slots=True, eq=False)
class Value:
    """A tensor object of the program: where its data is and which node holds it now; ``born`` is
    the generation of its base in which it was made as a view."""

    tensor: torch.Tensor
    base: Base
    steps: tuple[Step, ...]
    node: fx.Node
    generation: int
    exact: bool
    born: int = 0


@dataclass(slots=True)
class Call:
    """One operator's arguments, for the program and for the graph."""

    args: list[Any]  # fake tensors
    kwargs: dict[str, Any]
    node_args: list[Any]  # nodes
    node_kwargs: dict[str, Any]
    values: list[Value] = field(default_factory=list)  # one per tensor argument, in order
    exact: bool = True
