"""What a compiler needs to know about an op, to put it in place of others: plain attributes.

A template is published under the entry point group ``torchsmith.kernels``. Whoever finds it there
never imports this package by name, so the protocol is structural; the README spells it out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.fx import Node


@dataclass(frozen=True, slots=True)
class Template:
    """An op that can stand for other ops.

    Attributes:
        name: the op's name.
        targets: overload names that it can replace (``aten.rms_norm.default``), each with the
            position of the output that it computes; a target with one output has position 0. A
            target with more outputs may be replaced only where the others are unused. ``attention``
            is no overload: it is what a compiler recognises as two products with a softmax between,
            ``softmax(softcap * tanh(scale * query @ key.mT / softcap) + attn_mask) @ value``, with
            0 for no ``softcap``.
        parameters: names of the op's arguments in order; they are those of ``matches`` as well.
        op: the ``torch.ops`` overload to call, with the target's arguments in the same order.
        matches: whether the op's own kernels take a call, by argument name; tensors may be fake.
        speedup: measured time of the compiler's own fused code over that of this op for a call, or
            None where nobody measured; a compiler keeps its own code unless this exceeds 1.
        epilogue: None, or how to fuse a pointwise function with the op. Given a ``@triton.jit``
            function ``(value, row, column, keep, *pointers) -> value``, or the source text of one
            (the last function in it; ``tl`` and ``triton`` are in scope), it returns
            ``run(arguments, extras) -> Tensor``. ``arguments`` are the op's, ``extras`` the tensors
            whose pointers the function takes. ``value`` is a float32 tile of the op's result
            before rounding, ``row [m, 1]`` (64 bits) and ``column [1, n]`` are its place, and
            ``keep [m, n]`` says which elements exist: every load must be masked with it, a load per
            row or column too (``row + 0 * column``). ``speedup`` of a call with a further key
            ``epilogue`` compares the fused op with the op and a pointwise kernel.
        rewrite: None, or how the op stands for calls that share work. Given a functional graph of
            aten operators, its calls of ``targets``, ``insert(overload, *args)`` for calls with
            metadata at the graph's insertion point, and whether the graph is a backward pass, it
            yields pairs of a call and the node that shall stand for it.
    """

    name: str
    targets: Mapping[str, int]
    parameters: tuple[str, ...]
    op: Any
    matches: Callable[[Mapping[str, object]], bool]
    speedup: Callable[[Mapping[str, object]], float | None]
    epilogue: Callable[[object], Callable[[Sequence[Any], Sequence[Tensor]], Tensor]] | None = None
    rewrite: Callable[..., Iterator[tuple[Node, Node]]] | None = None
