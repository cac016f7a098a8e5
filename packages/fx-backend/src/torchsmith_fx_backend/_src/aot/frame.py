"""What stands between the caller and a generated wrapper: structure of the result, inputs that are
literals in the graph, and writes to inputs that share memory."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, cast

import torch

from torchsmith_fx_backend._src.capture.torch_private import pytree

log = logging.getLogger("torchsmith.backend")


@dataclass(frozen=True, slots=True)
class Frame:
    """How a flat compiled graph is called like the graph it came from.

    Attributes:
        out_spec: structure of the result.
        mutated: positions of inputs that the graph writes.
        frozen: Python values that the graph has as literals, by position.
        attributes: names of the plan's constants that are attributes of the captured graph, with
            their paths.
    """

    out_spec: Any
    mutated: tuple[int, ...]
    frozen: tuple[tuple[int, object], ...]
    attributes: tuple[tuple[str, str], ...] = ()

    def dump(self) -> bytes:
        """A text form of the frame."""
        record = {
            "out_spec": pytree.treespec_dumps(self.out_spec),
            "mutated": list(self.mutated),
            "frozen": [list(pair) for pair in self.frozen],
            "attributes": [list(pair) for pair in self.attributes],
        }
        return json.dumps(record).encode()

    @staticmethod
    def load(data: bytes) -> Frame:
        """The frame that ``dump`` wrote."""
        record = json.loads(data)
        return Frame(
            pytree.treespec_loads(record["out_spec"]),
            tuple(record["mutated"]),
            tuple((position, value) for position, value in record["frozen"]),
            tuple((name, path) for name, path in record["attributes"]),
        )

    def wrap(
        self,
        built: Any,
        eager: Callable[..., Any],
        examples: Sequence[object],
        ambient: Callable[[], AbstractContextManager[object]] | None,
    ) -> Any:
        """Make ``built`` callable as ``eager`` is; ``built`` itself where nothing is needed.

        Args:
            built: takes the graph's inputs and returns a flat tuple.
            eager: the graph as captured; it runs when written inputs share memory with others, or
                when a literal input has another value.
            examples: the example inputs.
            ambient: makes a context to run in.
        """
        call: Any = built
        if ambient is not None:
            call = _inside(ambient, call)
        call = _restructured(call, self.out_spec)
        shared = _may_share(examples, self.mutated)
        if shared or self.frozen:
            call = _checked(call, eager, shared, self.mutated, self.frozen)
        if call is not built:
            call.source, call.kernels = built.source, built.kernels
        return call


def _inside(
    ambient: Callable[[], AbstractContextManager[object]], call: Callable[..., Any]
) -> Callable[..., Any]:
    def run(*inputs: object) -> Any:
        with ambient():
            return call(*inputs)

    return run


def _restructured(call: Callable[..., Any], spec: Any) -> Callable[..., Any]:
    children = spec.children()
    if spec.type is tuple and all(child.is_leaf() for child in children):
        return call
    if spec.is_leaf():
        return lambda *inputs: call(*inputs)[0]
    if spec.type is list and all(child.is_leaf() for child in children):
        return lambda *inputs: list(call(*inputs))
    return lambda *inputs: pytree.tree_unflatten(list(call(*inputs)), spec)


def _may_share(examples: Sequence[object], mutated: Sequence[int]) -> tuple[int, ...]:
    """Positions whose memory must be compared with that of written inputs before each call.

    Parameters are left out: a parameter that shares memory with an activation would have to be
    made so on purpose.
    """
    if not mutated:
        return ()
    found = tuple(
        i
        for i, x in enumerate(examples)
        if isinstance(x, torch.Tensor)
        and not isinstance(x, torch.nn.Parameter)
        and all(x is not y for y in examples[:i])
    )
    return found if len(found) > 1 else ()


def _checked(
    call: Callable[..., Any],
    eager: Callable[..., Any],
    compared: tuple[int, ...],
    mutated: tuple[int, ...],
    frozen: tuple[tuple[int, object], ...],
) -> Callable[..., Any]:
    others = tuple(i for i in compared if i not in mutated)
    written = tuple(i for i in compared if i in mutated)

    def run(*inputs: object) -> Any:
        for position, value in frozen:
            given = inputs[position]
            if type(given) is not type(value) or not (given == value or given != given):
                log.info("input %d is %r, not %r: running as captured", position, given, value)
                return eager(*inputs)
        pointers = {_pointer(inputs[i]) for i in written}
        if len(pointers) < len(written) or any(_pointer(inputs[i]) in pointers for i in others):
            log.info("written inputs share memory: running as captured")
            return eager(*inputs)
        return call(*inputs)

    return run


def _pointer(tensor: object) -> int:
    return cast(torch.Tensor, tensor).untyped_storage().data_ptr()
