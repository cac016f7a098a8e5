"""A backend under test: what it made is run once on copies of the inputs, and its results and what
became of the inputs are compared with those of the graph as it was captured."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import fx

from torchsmith_tracer.errors import BackendError

Compiled = Callable[..., object]
Compile = Callable[[fx.GraphModule, list[object]], object]


def compile_verified(
    name: str, compile_graph: Compile, gm: fx.GraphModule, example_inputs: list[object]
) -> object:
    """What ``compile_graph`` makes of ``gm``; the graph's own forward when it makes nothing.

    Raises:
        BackendError: the results differ.
    """
    forward: Compiled = gm.forward
    expected = _run(forward, example_inputs)  # before the backend may change the graph
    compiled = compile_graph(gm, example_inputs)
    if compiled is None:
        return forward
    if callable(compiled):
        try:
            torch.testing.assert_close(
                _run(compiled, example_inputs), expected, equal_nan=True, check_stride=True
            )
        except AssertionError as e:
            raise BackendError(name, f"gives incorrect results: {e}") from e
    return compiled


def _run(fn: Compiled, inputs: Sequence[object]) -> list[object]:
    copies = [_copy(x) if isinstance(x, torch.Tensor) else x for x in inputs]
    result = fn(*copies)
    results = list(result) if isinstance(result, tuple | list) else [result]
    return [x.detach() if isinstance(x, torch.Tensor) else x for x in (*results, *copies)]


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(
        tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    made.copy_(tensor.detach())
    if not tensor.requires_grad:
        return made
    made.requires_grad_()
    return made if tensor.is_leaf else made.view_as(made)  # a leaf cannot be written to
