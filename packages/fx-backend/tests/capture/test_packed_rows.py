"""Rows that do not lie contiguously, copied on a GPU where eager copies them: kernels fuse it."""

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torchsmith_fx_backend._src.driver import functional_graph

aten = torch.ops.aten


def gradient_of_rows(x):
    statistics = x.new_zeros(2, 4, 5, 1), x.new_ones(2, 4, 5, 1)
    return aten.native_layer_norm_backward(
        x * 2, x, [3], *statistics, x.new_ones(3), x.new_ones(3), [True, True, True]
    )


PROGRAMS = {
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(1),
    "group_norm": lambda x: F.group_norm(x, 2),
    "layer_norm_backward": gradient_of_rows,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_rows_are_formulas_however_they_lie(name):
    fn, real = PROGRAMS[name], torch.randn(2, 3, 4, 5).permute(0, 2, 3, 1)
    fake = FakeTensor(FakeTensorMode(), real.to("meta"), torch.device("cuda:0"))
    graph = functional_graph(fn, [fake]).module.graph
    called = {str(n.target) for n in graph.nodes}
    assert not [name for name in called if "softmax" in name or "_norm" in name]
    values = graph.output_node().args[0]
    for want, node in zip(torch.utils._pytree.tree_leaves(fn(real)), values, strict=True):
        got = node.meta["val"]
        assert (got.shape, got.stride(), got.dtype) == (want.shape, want.stride(), want.dtype)


@pytest.mark.parametrize("mask", [[True, True, True], [False, False, True], [True, False, False]])
def test_gradients_of_biases_are_sums_on_a_gpu(mask):
    mode = FakeTensorMode()

    def backward(grad, x, weight):
        settings = [6], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, mask
        found = aten.convolution_backward(grad, x, weight, *settings)
        return [each for each, wanted in zip(found, mask) if wanted]

    real = torch.randn(2, 6, 8, 8), torch.randn(2, 3, 8, 8), torch.randn(6, 3, 3, 3)
    real = [each.bfloat16() for each in real]
    fake = [FakeTensor(mode, each.to("meta"), torch.device("cuda:0")) for each in real]
    graph = functional_graph(backward, fake).module.graph
    calls = graph.find_nodes(op="call_function", target=aten.convolution_backward.default)
    assert [n.args[-1] for n in calls] == ([[*mask[:2], False]] if any(mask[:2]) else [])
    sums = graph.find_nodes(op="call_function", target=aten.sum.dim_IntList)
    assert len(sums) == mask[2]
    values = graph.output_node().args[0]
    for want, node in zip(backward(*real), values, strict=True):
        assert (node.meta["val"].shape, node.meta["val"].dtype) == (want.shape, want.dtype)
