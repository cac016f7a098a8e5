"""Backward formulas give eager's gradients and their layouts."""

import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent.parent))

from composition.machines import Reference
from torchsmith_fx_backend import Settings
from torchsmith_fx_backend._src.driver import compile_training
from torchsmith_fx_backend._src.schedule.plan import ExternCall

aten = torch.ops.aten
SETTINGS = Settings(graph_cache=False, verify=True, strict=True)
TARGET = torch.tensor([1, 0, 5, -100])

# name -> (function, operators that must not be left in the backward half)
ROWS = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "hardswish": F.hardswish,
    "hardtanh": F.hardtanh,
    "hardsigmoid": F.hardsigmoid,
    "threshold": lambda x: F.threshold(x, 0.3, 5.0),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "elu": lambda x: F.elu(x, 0.7),
    "selu": F.selu,
    "softplus": lambda x: F.softplus(x, 2.0, 3.0),
    "softmax": lambda x: x.softmax(-1),
    "softmax over rows": lambda x: x.softmax(0),
    "log_softmax": lambda x: x.log_softmax(1),
    "layer_norm": lambda x: F.layer_norm(x, [6], x[0], x[1]),
    "layer_norm without weights": lambda x: F.layer_norm(x, [6]),
    "group_norm": lambda x: F.group_norm(x.view(2, 4, 3), 2, x[0, :4], x[1, :4]),
    "mse": lambda x: F.mse_loss(x, x.flip(0) * 2),
    "mse sum": lambda x: F.mse_loss(x, x * 3, reduction="sum"),
    "smooth_l1": lambda x: F.smooth_l1_loss(x, x.flip(0) * 2, beta=0.7),
    "huber": lambda x: F.huber_loss(x, x * 3, reduction="none", delta=0.3),
    "binary_cross_entropy": lambda x: F.binary_cross_entropy(x.sigmoid(), (x.detach() > 0).to(x)),
    "binary_cross_entropy sum": lambda x: F.binary_cross_entropy(
        x.clamp(0, 1), x.detach().sigmoid(), reduction="sum"
    ),
    "cross_entropy": lambda x: F.cross_entropy(x, TARGET),
    "cross_entropy sum": lambda x: F.cross_entropy(x, TARGET, x[0].detach(), reduction="sum"),
    "cross_entropy none": lambda x: F.cross_entropy(x, TARGET, reduction="none"),
    "label smoothing": lambda x: F.cross_entropy(x, TARGET, label_smoothing=0.1),
    "reflected rows": lambda x: F.pad(x, (2, 3), mode="reflect"),
    "reflected at one end": lambda x: F.pad(x[None], (0, 5), mode="reflect").sin(),
    "reflected images": lambda x: F.pad(x[None], (1, 2, 3, 0), mode="reflect") * 2,
    "reflected volumes": lambda x: F.pad(x[None, None], (5, 0, 0, 0, 0, 0), mode="reflect"),
    "patches": lambda x: F.unfold(x[None, None], 3, padding=1),
    "patches in steps": lambda x: F.unfold(x[None, None], (2, 3), padding=1, stride=2).sin(),
    "sums of patches": lambda x: F.fold(x, (3, 4), (2, 2), stride=1) * 2,
    "slices": lambda x: x[1:, ::2] * x[:3, 1::2],
    "select": lambda x: x[1] * x[:, 2:3],
}
LEFT_TO_ATEN = (aten.nll_loss_forward.default,)


def example(dtype):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(4, 6, generator=generator) * 2
    x[0, :4] = torch.tensor([3.0, -3.0, 0.0, 1.0])  # where slopes change
    return x.to(dtype).requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", ROWS)
def test_gradients(name, dtype):
    fn = ROWS[name]
    if dtype is torch.bfloat16 and name in ("group_norm", "layer_norm"):
        pytest.skip("statistics of low precision are left to aten")
    grads = []
    with Reference().installed():
        run = compile_training(lambda x: (fn(x),), [example(dtype)], SETTINGS)
        for f in (lambda x: run(x)[0], fn, lambda x: fn(x.double())):
            x = example(dtype)
            y = f(x)
            weights = torch.linspace(-1, 2, y.numel()).view(y.shape).to(y.dtype)
            grads.append(torch.autograd.grad(y, x, weights)[0])
    mine, true, exact = grads
    assert mine.stride() == true.stride()
    assert mine.dtype is true.dtype
    error, theirs = ((g.double() - exact.double()).abs().max() for g in (mine, true))
    # The exact run rounds its gradient to the input's type, too.
    assert error <= 2 * theirs + (1e-5 if dtype is torch.float32 else 2e-2) * exact.abs().max()
    externs = {
        str(step.target)
        for half, _ in run.training.backwards.values()
        for step in half.plan.steps
        if isinstance(step, ExternCall)
        and any(name in str(step.target) for name in ("backward", "im2col", "col2im"))
    }
    assert not externs


@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.l1_loss])
def test_means_of_no_elements(loss):
    x, y = torch.randn(0, 3, requires_grad=True), torch.randn(0, 3)
    run = compile_training(lambda x, y: (loss(x, y),), [x, y], SETTINGS)
    (mean,) = run(x, y)
    (gradient,) = torch.autograd.grad(mean, x)
    assert mean.isnan() and gradient.shape == (0, 3)


# options, and whether a formula gives the gradients
CONVOLUTIONS = {
    "causal": ({"padding": 3}, True),
    "dilated": ({"padding": 4, "dilation": 2}, True),
    "without room": ({}, True),
    "as long": ({"padding": "same", "dilation": 3}, True),
    "far outside": ({"padding": 5}, False),
    "in steps": ({"padding": 1, "stride": 2}, False),
}


@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_gradients_of_convolutions_of_each_channel_alone(name, dtype, layout):
    options, formula = CONVOLUTIONS[name]

    def fn(x, w, b):
        rows = x if layout == "contiguous" else x.mT
        return (F.silu(F.conv1d(rows, w, b, groups=5, **options)[..., :11]),)

    def given(exact=False):
        generator = torch.Generator().manual_seed(0)
        sizes = (2, 5, 14) if layout == "contiguous" else (2, 14, 5), (5, 1, 4), (5,)
        made = (torch.randn(size, generator=generator).to(dtype) for size in sizes)
        return [(x.double() if exact else x).requires_grad_() for x in made]

    found = []
    with Reference().installed():
        run = compile_training(fn, given(), SETTINGS)
        for f, exact in ((run, False), (fn, False), (fn, True)):
            inputs = given(exact)
            (y,) = f(*inputs)
            weights = torch.linspace(-1, 2, y.numel()).view(y.shape).to(y.dtype)
            found.append((y.detach(), *torch.autograd.grad(y, inputs, weights)))
    for mine, eager, true in zip(*found):
        assert mine.stride() == eager.stride() and mine.dtype is eager.dtype
        error, theirs = ((g.double() - true).abs().max() for g in (mine, eager))
        assert error <= 1.5 * theirs + (1e-5 if dtype is torch.float32 else 1e-2) * true.abs().max()
    steps = [s for half, _ in run.training.backwards.values() for s in half.plan.steps]
    calls = [str(s.target) for s in steps if isinstance(s, ExternCall)]
    # On a CPU the library is faster where channels are innermost; what is padded first is copied.
    formula = formula and (layout == "contiguous" or name == "as long")
    assert any("convolution" in call for call in calls) is not formula
