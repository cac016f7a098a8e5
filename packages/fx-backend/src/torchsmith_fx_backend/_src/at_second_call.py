"""Graphs that are likely called once: the first call runs them as they were captured.

The first step of an optimizer makes its state, and the next finds another program: compiling the
first costs as much as compiling all that follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from torchsmith_fx_backend._src.captured import is_symbolic
from torchsmith_fx_backend._src.nested import Around


def is_static(gm: fx.GraphModule) -> bool:
    """Whether no size is a symbol, for which compiling may ask guards that come too late then."""
    return not any(is_symbolic(node.meta.get("example_value")) for node in gm.graph.nodes)


class AtSecondCall(Around):
    """A graph as a callable of its inputs; it tells nothing before it is compiled."""

    def __init__(
        self, gm: fx.GraphModule, build: Callable[[Sequence[Any]], Callable[..., Any]]
    ) -> None:
        """``build`` compiles ``gm`` for the inputs of a call."""
        self._gm, self._build = gm, build
        self.compiled = None
        self._called = False

    def __call__(self, *inputs: Any) -> Any:
        """Run the graph."""
        if self.compiled is not None:
            return self.compiled(*inputs)
        if self._called:
            self.compiled = self._build(inputs)
            return self.compiled(*inputs)
        self._called = True
        tracked = [x for x in inputs if isinstance(x, torch.Tensor) and not x.is_inference()]
        versions = [x._version for x in tracked]
        try:
            # Python's code of a graph takes longer to make than the graph to run once.
            once = fx.Interpreter(self._gm)
            once.extra_traceback = False
            return once.run(*inputs, enable_io_processing=False)
        except BaseException as error:
            pairs = zip(tracked, versions, strict=True)
            error.written = [x for x, v in pairs if x._version != v]  # type: ignore[attr-defined]
            raise
