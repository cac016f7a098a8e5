"""Parts of graphs that are compiled when they first run, after the guards of their frame."""

import pytest
import torch
import torchsmith_guards as guards
from torch import fx
from torchsmith_fx_backend._src import native_nodes
from torchsmith_fx_backend._src.backend import smith


def graph_of_a_part(x):
    """``x * 2 + rows``, whose input's example has a varying number of rows."""
    env = guards.ShapeEnv()
    example = guards.FakeMode(env).fakeify(x, guards.LocalSource("x"), dynamic_dims=[0])
    part = fx.symbolic_trace(lambda x: x * 2 + x.shape[0])
    for node in part.graph.nodes:
        if node.op == "placeholder":
            node.meta["example_value"] = example
    return part, env


@pytest.mark.parametrize("training", [False, True])
def test_what_is_assumed_of_sizes_is_checked_at_each_call(training):
    compiled_for = []

    def compile_part(part, inputs):
        rows = int(inputs[0].shape[0])  # as something that takes no symbol
        compiled_for.append(rows)
        return lambda x: x * 2 + rows

    part, env = graph_of_a_part(torch.ones(3, 4))
    late = native_nodes._Later(part, compile_part)
    for rows in (3, 5, 3, 2, 5):
        x = torch.randn(rows, 4, requires_grad=training)
        torch.testing.assert_close(late(x), x * 2 + rows)
    assert compiled_for == [3, 5, 2]
    assert not env.guards  # those of the frame are made


def test_a_part_for_all_sizes_is_compiled_once():
    made = []

    def compile_part(part, inputs):
        made.append(smith(part, inputs))
        return made[-1]

    part, _ = graph_of_a_part(torch.ones(3, 4))
    late = native_nodes._Later(part, compile_part)
    with torch.no_grad():
        for rows in (3, 5, 2, 7):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(late(x), x * 2 + rows)
    assert len(made) == 1 and made[0].kernels


def test_a_part_with_a_tensor_that_has_no_fake_runs_as_captured():
    part, _ = graph_of_a_part(torch.ones(3, 4))
    late = native_nodes._Later(part, smith)
    for rows in (3, 5):
        x = torch.eye(rows, 4).to_sparse()
        with pytest.raises(RuntimeError, match="spars") as theirs:
            x * 2 + rows
        with pytest.raises(RuntimeError) as mine:
            late(x)
        assert str(mine.value) == str(theirs.value)
