"""``torch.Generator``: objects of the graph, for backends that run such nodes as they are.

One that exists is an input of the graph; one that traced code makes is made by a node. What seeds
or draws from it is a node that takes it, in order.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx
from torchsmith_guards import AttrSource, GuardKind, Source

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.emitter import Emitter
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import MethodOf, Value
from torchsmith_tracer._src.values.builtins.registry import constructor
from torchsmith_tracer._src.values.constants import NONE, ConstantValue

_METHODS = ("get_state", "initial_seed", "manual_seed", "set_state")


class RandomGenerator(Value):
    """A generator of random numbers.

    Attributes:
        node: what gives it in the graph.
        fake: one on the same device, which nothing draws from.
        seed: what it was seeded with last, where that is a known number.
    """

    __slots__ = ("fake", "node", "seed")
    cls = torch.Generator

    def __init__(self, node: fx.Node, fake: torch.Generator, source: Source | None = None) -> None:
        super().__init__(source)
        self.node, self.fake = node, fake
        self.seed: int | None = None

    def describe(self) -> str:
        return "a generator of random numbers"

    def as_proxy(self) -> fx.Node:
        return self.node

    def getattr(self, tx: Trace, name: str) -> Value:
        if name == "device":
            return ConstantValue(self.fake.device)
        if name not in _METHODS:
            raise Unsupported("opaque-attribute", what=name, object=self.describe())
        return _Method(self, name)

    def reconstruct(self, cg: Emitter) -> str:
        return cg.graph_output(self)


class _Method(MethodOf["RandomGenerator"]):
    """A method of a generator, bound."""

    __slots__ = ()

    def call(self, tx: Trace, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        owner, graph = self.owner, tx.graph
        given = [*args, *kwargs.values()]
        if len(given) != int(self.name in ("manual_seed", "set_state")):
            raise Unsupported("opaque-call", what=f"{self.describe()} with these arguments")
        seed = owner.seed
        if self.name == "initial_seed":
            if seed is None:
                raise Unsupported("opaque-call", what=self.describe())
            return ConstantValue(seed)
        node_args = (owner.node, *map(graph.argument, given))
        if self.name == "get_state":
            with graph.fake.mode:
                state = torch.empty(owner.fake.get_state().shape, dtype=torch.uint8, device="cpu")
            node = graph.add_call("call_method", self.name, node_args, {}, state)
            return graph.wrap_result(node, state)
        known = given[0].is_constant() and self.name == "manual_seed"
        if known:
            tx.interp.hosted(owner.fake.manual_seed, given[0].as_constant())
        tx.journal.assign(owner, "seed", owner.fake.initial_seed() if known else None)
        node = graph.add_call("call_method", self.name, node_args, {}, owner.fake)
        tx.journal.assign(owner, "node", node)
        return owner if self.name == "manual_seed" else NONE


def existing(tx: Trace, obj: torch.Generator, source: Source) -> RandomGenerator:
    """The value of a generator from before the trace."""
    tx.builder.guard(source, GuardKind.TYPE, type(obj), "generator of random numbers")
    tx.builder.wrap(obj.device, AttrSource(source, "device"))
    fake = torch.Generator(obj.device)
    return RandomGenerator(tx.graph.add_input(source, fake, obj), fake, source)


@constructor(torch.Generator)
def _generator(tx: Trace, device: Value | None = None) -> Value:
    if not tx.native_nodes:
        raise Unsupported("opaque-call", what="torch.Generator, which this backend does not take")
    place = "cpu" if device is None else tx.interp.concrete(device)
    fake = tx.interp.hosted(torch.Generator, place)
    node = tx.graph.add_call("call_function", torch.Generator, (place,), {}, fake)
    value = RandomGenerator(node, fake)
    value.seed = fake.initial_seed()
    return value
