"""Graphs whose sizes are symbols of another library: those that ``torch.compile`` captures.

Such symbols cannot be lowered, but the graph says where they are. It is captured once more with
symbols of ``torchsmith_guards`` in their places, and compiled for all sizes that its branches on
sizes allow; a call with sizes outside makes another variant.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torchsmith_guards as guards
from torch import fx

from torchsmith_fx_backend._src.captured import example_of, is_foreign
from torchsmith_fx_backend._src.nested import Around, Compile

log = logging.getLogger("torchsmith.backend")

MAX_VARIANTS = 8
_Check = Callable[[Sequence[Any]], bool]


def has_foreign_symbols(gm: fx.GraphModule, inputs: Sequence[object]) -> bool:
    """Whether an input of ``gm`` is, or has a size that is, a symbol of another library."""
    return any(map(is_foreign, map(example_of, gm.graph.find_nodes(op="placeholder"), inputs)))


class AnySizes(Around):
    """A graph of foreign symbols, as a callable of the graph's inputs; it tells what the first
    variant tells."""

    def __init__(self, gm: fx.GraphModule, inputs: Sequence[object], build: Compile) -> None:
        """Compile the first variant.

        Args:
            gm: the captured graph.
            inputs: real tensors; for symbolic numbers, those of the other library.
            build: compiles a graph for example inputs with symbols of ours.

        Raises:
            UnsupportedError, StageError: as ``build`` does.
        """
        self._gm = gm
        self._build = build
        self._names = [f"arg{i}" for i in range(len(inputs))]
        examples = map(example_of, gm.graph.find_nodes(op="placeholder"), inputs)
        self._dynamic = [_symbolic(example) for example in examples]
        self._variants: list[tuple[_Check, Callable[..., Any]]] = []
        symbols = (torch.SymInt, torch.SymFloat)  # of the other library
        hinted: list[Any] = [x.node.hint if isinstance(x, symbols) else x for x in inputs]
        self.compiled = self._variant(hinted)

    def __call__(self, *inputs: Any) -> Any:
        """Run the variant that takes these sizes."""
        for takes, compiled in self._variants:
            if takes(inputs):
                return compiled(*inputs)
        if len(self._variants) >= MAX_VARIANTS:
            log.info("%d variants do not take these sizes: running as captured", MAX_VARIANTS)
            return self._gm.forward(*inputs)
        return self._variant(inputs)(*inputs)

    def _variant(self, inputs: Sequence[Any]) -> Any:
        env = guards.ShapeEnv()
        mode = guards.FakeMode(env)
        examples: list[Any] = []
        fixed: list[tuple[int, str, int, object]] = []  # input, what of it, dimension, its number
        for position, (x, symbols) in enumerate(zip(inputs, self._dynamic)):
            source = guards.LocalSource(self._names[position])
            if isinstance(x, torch.Tensor):
                fake = mode.fakeify(x, source, symbols["size"], (), symbols["stride"])
                for what, dims in symbols.items():
                    layout = getattr(fake, what)()
                    known = [d for d in dims if type(layout[d]) is int]
                    fixed += [(position, what, d, layout[d]) for d in known]
                examples.append(fake)
            elif symbols and type(x) in (int, float):
                number = env.create_symbol(x, source, "unspecified")
                if not isinstance(number, torch.SymInt | torch.SymFloat):
                    fixed.append((position, "", 0, x))
                examples.append(number)
            else:
                examples.append(x)
        compiled = self._build(_without_examples(self._gm), examples)
        conditions = guards.GuardSet(env.shape_guards()).compile(self._names).check
        env.close()

        def takes(inputs: Sequence[Any]) -> bool:
            for position, what, dim, number in fixed:
                given = inputs[position]
                if (getattr(given, what)(dim) if what else given) != number:
                    return False
            return bool(conditions(*inputs))

        self._variants.append((takes, compiled))
        return compiled


def _symbolic(example: object) -> dict[str, set[int]]:
    """Dimensions of a tensor whose size is a symbol, and those whose stride is one; for a number
    that is a symbol, something."""
    if isinstance(example, torch.Tensor):
        layout = {"size": example.size(), "stride": example.stride()}
        return {k: {d for d, n in enumerate(v) if type(n) is not int} for k, v in layout.items()}
    return {"": set()} if is_foreign(example) else {}


def _without_examples(gm: fx.GraphModule) -> fx.GraphModule:
    """A copy of ``gm`` whose placeholders do not say what they were traced with."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    for node in graph.nodes:
        node.meta.pop("example_value", None)
        node.meta.pop("val", None)
    return fx.GraphModule(gm, graph, type(gm).__name__)
