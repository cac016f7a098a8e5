"""The numbers that a plan's symbols had when its graph was captured."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torchsmith_guards import hint_of

from torchsmith_fx_backend._src.loops.index import Index, evaluate
from torchsmith_fx_backend._src.schedule.plan import BindSymbol, ExternCall, Plan


def hints(plan: Plan, graph: fx.Graph) -> dict[str, Any]:
    """By the name of the symbol or of the input; what only data decides is left out.

    Args:
        plan: the steps.
        graph: the functional graph that they compute.
    """
    places = dict(zip(plan.inputs, graph.find_nodes(op="placeholder")))
    nodes = {node.name: node for node in graph.nodes} | places
    found: dict[str, Any] = {}
    for name, node in places.items():
        value = node.meta.get("val")
        if isinstance(value, int | float | torch.SymInt | torch.SymFloat):
            found[name] = hint_of(value)
    for step in plan.steps:
        match step:
            case BindSymbol(symbol, _, "item"):
                found[symbol] = 1  # which one it is hardly matters
            case BindSymbol(symbol, tensor, what, axis):
                layout = getattr(nodes[tensor].meta["val"], what)()
                found[symbol] = hint_of(layout if what == "storage_offset" else layout[axis])
            case ExternCall(operator.floordiv, (Index() as above, int(below)), _, (str(name),)):
                try:
                    found[name] = evaluate(above, (), found) // below
                except (KeyError, TypeError):
                    continue
    return {name: number for name, number in found.items() if number is not None}
