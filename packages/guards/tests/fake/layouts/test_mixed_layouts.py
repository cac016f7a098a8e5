"""Fake tensors lie as those of kernels where operands lie in different ways."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torchsmith_guards import FakeMode, LocalSource, ShapeEnv

aten = torch.ops.aten


def lie(way, *size):
    x = torch.randn(*size)
    if way == "turned":
        return x.mT.contiguous().mT
    if way == "reversed":
        order = tuple(range(len(size)))[::-1]
        return x.permute(order).contiguous().permute(order)
    if way == "stepped":
        return torch.empty_strided(size, [2 * n for n in x.stride()]).copy_(x)
    return x


def chances(x):
    return x.sigmoid()


#: Of a gradient and two more tensors of one size.
CALLS = {
    "smooth_l1_loss": lambda g, x, y: aten.smooth_l1_loss(x, y, 0, 1.0),
    "huber_loss": lambda g, x, y: aten.huber_loss(x, y, 0, 1.0),
    "mse_loss": lambda g, x, y: aten.mse_loss(x, y, 0),
    "soft_margin_loss": lambda g, x, y: aten.soft_margin_loss(x, y, 0),
    "entropy": lambda g, x, y: aten.binary_cross_entropy(chances(x), chances(y), None, 0),
    "entropy of logits": lambda g, x, y: aten.binary_cross_entropy_with_logits(
        x, chances(y), None, None, 0
    ),
    "smooth_l1_loss_backward": lambda g, x, y: aten.smooth_l1_loss_backward(g, x, y, 0, 1.0),
    "huber_loss_backward": lambda g, x, y: aten.huber_loss_backward(g, x, y, 0, 1.0),
    "mse_loss_backward": lambda g, x, y: aten.mse_loss_backward(g, x, y, 0),
    "soft_margin_loss_backward": lambda g, x, y: aten.soft_margin_loss_backward(g, x, y, 0),
    "entropy_backward": lambda g, x, y: aten.binary_cross_entropy_backward(
        g, chances(x), chances(y), None, 0
    ),
    "gelu_backward": lambda g, x, y: aten.gelu_backward(g, x),
    "silu_backward": lambda g, x, y: aten.silu_backward(g, x),
    "threshold_backward": lambda g, x, y: aten.threshold_backward(g, x, 0),
    "tanh_backward": lambda g, x, y: aten.tanh_backward(g, x),
    "sigmoid_backward": lambda g, x, y: aten.sigmoid_backward(g, x),
    "elu_backward": lambda g, x, y: aten.elu_backward(g, 1, 1, 1, False, x),
    "leaky_relu_backward": lambda g, x, y: aten.leaky_relu_backward(g, x, 0.1, False),
    "hardtanh_backward": lambda g, x, y: aten.hardtanh_backward(g, x, -1, 1),
    "hardsigmoid_backward": lambda g, x, y: aten.hardsigmoid_backward(g, x),
    "hardswish_backward": lambda g, x, y: aten.hardswish_backward(g, x),
    "hardshrink_backward": lambda g, x, y: aten.hardshrink_backward(g, x, 0.5),
    "softshrink_backward": lambda g, x, y: aten.softshrink_backward(g, x, 0.5),
    "softplus_backward": lambda g, x, y: aten.softplus_backward(g, x, 1, 20),
    "mish_backward": lambda g, x, y: aten.mish_backward(g, x),
    "logit_backward": lambda g, x, y: aten.logit_backward(g, x),
    "log_sigmoid": lambda g, x, y: aten.log_sigmoid_forward(x)[0],
    "glu_backward": lambda g, x, y: aten.glu_backward(g[..., :2], x, -1),
    "softmax": lambda g, x, y: aten._softmax(x, 0, False),
    "log_softmax": lambda g, x, y: aten._log_softmax(x, -1, False),
    "softmax_backward": lambda g, x, y: aten._softmax_backward_data(g, x, -1, x.dtype),
    "log_softmax_backward": lambda g, x, y: aten._log_softmax_backward_data(g, x, 0, x.dtype),
    "reflection_pad1d": lambda g, x, y: aten.reflection_pad1d(x, [1, 1]),
    "reflection_pad1d_backward": lambda g, x, y: aten.reflection_pad1d_backward(
        F.pad(g, [1, 1]), x, [1, 1]
    ),
    "replication_pad1d_backward": lambda g, x, y: aten.replication_pad1d_backward(
        F.pad(g, [1, 1]), x, [1, 1]
    ),
    "addcmul": lambda g, x, y: aten.addcmul(g, x, y),
    "lerp": lambda g, x, y: aten.lerp(g, x, y),
    "where": lambda g, x, y: aten.where(g > 0, x, y),
    "cumsum": lambda g, x, y: aten.cumsum(x, 0),
    "cumprod": lambda g, x, y: aten.cumprod(x, 0),
    "flip": lambda g, x, y: aten.flip(x, [0]),
    "roll": lambda g, x, y: aten.roll(x, [1], [0]),
    "triu": lambda g, x, y: aten.triu(x),
    "sort": lambda g, x, y: aten.sort(x, 0)[0],
    "topk": lambda g, x, y: aten.topk(x, 2, 0)[0],
    "index_select": lambda g, x, y: aten.index_select(x, 0, torch.tensor([0, 1])),
    "index_put": lambda g, x, y: aten.index_put(x, [g > 0], torch.tensor(1.0)),
    "masked_fill": lambda g, x, y: aten.masked_fill(x, g > 0, 1.0),
    "masked_scatter": lambda g, x, y: aten.masked_scatter(x, g > 0, y),
    "index_add": lambda g, x, y: aten.index_add(x, 0, torch.tensor([0]), y[:1]),
    "index_copy": lambda g, x, y: aten.index_copy(x, 0, torch.tensor([0]), y[:1]),
    "pow": lambda g, x, y: aten.pow(x, y),
    "std": lambda g, x, y: aten.std(x, [0], correction=1, keepdim=True),
    "median": lambda g, x, y: aten.median(x, 0)[0],
    "vector norm": lambda g, x, y: aten.linalg_vector_norm(x, 2.0, [0], True),
}


@pytest.mark.parametrize("name", CALLS)
def test_fakes_lie_as_results_of_kernels_do(name):
    call, wrong = CALLS[name], []
    for size in ((3, 4, 4), (4, 6)):
        for ways in itertools.product(("row-major", "turned", "reversed", "stepped"), repeat=3):
            given = [lie(way, *size) for way in ways]
            try:
                true = call(*given).stride()
            except RuntimeError:
                continue  # not of this rank
            mode = FakeMode(ShapeEnv())
            fakes = [mode.fakeify(x, LocalSource(f"x{i}"), set()) for i, x in enumerate(given)]
            with mode.mode:
                mine = call(*fakes).stride()
            if mine != true:
                wrong.append((size, ways, mine, true))
    assert wrong == []


@pytest.mark.parametrize("call", [aten.floor_divide, lambda x, y: x.div(y, rounding_mode="floor")])
def test_floored_quotients_of_varying_sizes(call):
    for ways in itertools.product(("row-major", "reversed", "stepped"), repeat=2):
        given = [lie(way, 4, 4, 1, 6) for way in ways]
        mode = FakeMode(ShapeEnv())
        fakes = [mode.fakeify(x, LocalSource(f"x{i}"), {0, 1, 3}) for i, x in enumerate(given)]
        with mode.mode:
            mine = call(*fakes)
        assert [int(n) for n in mine.stride()] == list(call(*given).stride()), ways
