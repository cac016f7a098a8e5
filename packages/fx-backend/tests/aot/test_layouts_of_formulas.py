"""Operators that formulas stand for lay out results and gradients as eager's own kernels do,
whatever the order of their arguments' elements and of the tangent's."""

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torchsmith_fx_backend import Settings
from torchsmith_fx_backend._src.backend import compile_graph
from torchsmith_fx_backend._src.driver import compile_training

SETTINGS = Settings(graph_cache=False, verify=True, strict=True)
pytestmark = pytest.mark.usefixtures("reference_machine")


def evaluated(x):
    ones = torch.ones(x.shape[1])
    return F.batch_norm(x, ones, ones * 2, ones * 3, ones)


FORMULAS = {
    "batch norm": evaluated,
    "logsigmoid": F.logsigmoid,
    "hardtanh": F.hardtanh,
    "relu6": lambda x: F.relu6(x * 9),
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "leaky relu": F.leaky_relu,
    "elu": F.elu,
    "selu": F.selu,
    "gelu": F.gelu,
    "silu": F.silu,
    "mish": F.mish,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "threshold": lambda x: F.threshold(x, 0.1, 2.0),
    "softplus": F.softplus,
    "squares": lambda x: F.mse_loss(x, x.detach().flip(0), reduction="none"),
    "entropy": lambda x: F.binary_cross_entropy(
        x.sigmoid(), x.detach().sigmoid(), reduction="none"
    ),
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
}
ORDERS = {
    "rows": lambda: torch.randn(2, 3, 4, 5),
    "columns": lambda: torch.randn(6, 4).t(),
    "turned": lambda: torch.randn(5, 4, 3, 2).permute(3, 2, 1, 0),
    "swapped": lambda: torch.randn(4, 3, 6).transpose(1, 2),
    "channels last": lambda: torch.randn(2, 4, 3, 5).to(memory_format=torch.channels_last),
    "every other": lambda: torch.randn(3, 8)[:, ::2],
}
NARROW = {
    "one column": lambda: torch.randn(4, 4, 6).unsqueeze(-3).transpose(-1, 1),
    "one channel": lambda: torch.randn(4, 1, 4).unfold(0, 3, 2),
    "one image": lambda: torch.randn(5, 4, 3, 1).permute(3, 2, 1, 0),
    "one row": lambda: torch.randn(3, 1, 5, 4).transpose(1, 3)[:, :, :1],
}
TANGENTS = {
    "rows": lambda y: torch.ones(y.shape) / 3,
    "as the result": lambda y: torch.full_like(y, 0.25),
    "one value": lambda y: torch.full((), 0.5).expand(y.shape),
}


def agree(ours, eager):
    torch.testing.assert_close(ours, eager)
    assert ours.stride() == eager.stride()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", FORMULAS)
def test_results_and_gradients_lie_as_eagers(name, order):
    torch.manual_seed(0)
    x = ORDERS[order]()
    program = fx.symbolic_trace(lambda x: (FORMULAS[name](x),))
    with torch.no_grad():
        agree(compile_graph(program, [x], SETTINGS)(x)[0], FORMULAS[name](x))
    mine, true = (x.clone(memory_format=torch.preserve_format).requires_grad_() for _ in "ab")
    compiled = compile_training(program, [mine], SETTINGS)
    for tangent in TANGENTS.values():
        ours, eager = compiled(mine)[0], FORMULAS[name](true)
        agree(ours.detach(), eager.detach())
        pair = zip((ours, eager), (mine, true))
        agree(*(torch.autograd.grad(y, leaf, tangent(eager))[0] for y, leaf in pair))


@pytest.mark.parametrize("order", NARROW)
def test_batch_norms_of_images_with_an_axis_of_one(order):
    x = NARROW[order]()
    program = fx.symbolic_trace(lambda x: (evaluated(x),))
    agree(compile_graph(program, [x], SETTINGS)(x)[0], evaluated(x))
