"""Nodes of recorded graphs."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx
from torchsmith_fx_backend._src.capture.recorder import Recorder, copy_node

aten = torch.ops.aten


def recorded() -> list[fx.Node]:
    """One node of each shape of arguments."""
    graph = Recorder().graph
    x = graph.placeholder("x", default_value=None)
    calls = [
        graph.call_function(aten.add.Tensor, (x, 1), {"alpha": 2}),
        graph.call_function(aten.cat.default, ([x, x], -1)),
        graph.call_function(operator.getitem, (x, (slice(0, None, 2), None))),
        graph.call_function(aten.rand.default, ([2, 3],), {"dtype": torch.float32}),
        graph.call_function(torch.get_num_threads),
    ]
    return [x, *calls, graph.output((calls[0], [calls[1]]))]


@pytest.mark.parametrize("place", range(7))
def test_a_copied_node_is_what_fx_makes_of_it(place: int) -> None:
    copies = []
    for copy in (fx.Graph.node_copy, copy_node):
        nodes = recorded()
        nodes[place].meta["val"] = 1
        graph = fx.Graph()
        env = {nodes[0]: graph.placeholder("given")} | {
            n: graph.placeholder(n.name) for n in nodes[1:place]
        }
        made = copy(graph, nodes[place], env.__getitem__)
        made.meta["own"] = True
        assert nodes[place].meta == {"val": 1}
        copies.append((made.format_node(), made.name, made.meta, str(made.kwargs)))
        assert all(made in arg.users for arg in made.all_input_nodes)
    assert copies[0] == copies[1]


def test_a_recorded_call_uses_its_arguments() -> None:
    recorder = Recorder()
    x = recorder.placeholder("x", None)
    node = recorder.call(aten.cat.default, ([x, x],), {"dim": 1}, "value", "joined")
    assert (node.name, node.args, node.kwargs) == ("joined", ([x, x],), {"dim": 1})
    assert list(x.users) == [node]
    assert node.meta["val"] == "value"
