"""``js_div`` against its formula in float64, on every path that exists here."""

from __future__ import annotations

import math

import kernel_testing as kt
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchsmith_kernels import (
    ArgumentTypeError,
    ArgumentValueError,
    DtypeError,
    ShapeError,
    js_div,
)
from torchsmith_kernels._src.js_div import op, reference
from torchsmith_kernels._src.kl_div import run

REDUCTIONS = ["none", "batchmean", "sum", "mean"]
reductions = pytest.mark.parametrize("reduction", REDUCTIONS)
betas = pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 1.0])


def pair(
    *shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Logarithms of two random distributions."""
    x, t = (kt.make(*shape).log_softmax(-1).to(dtype).to(device) for _ in range(2))
    return x, t


def eager(x: Tensor, t: Tensor, beta: float, reduction: str) -> Tensor:
    """The definition in terms of ``F.kl_div``, with a mixture that is formed."""
    kinds = {"log_target": True, "reduction": reduction}
    if beta == 0:
        return F.kl_div(x, t, **kinds)  # type: ignore[arg-type]
    if beta == 1:
        return F.kl_div(t, x, **kinds)  # type: ignore[arg-type]
    mean = (beta * t.exp() + (1 - beta) * x.exp()).log()
    first = F.kl_div(mean, t, **kinds)  # type: ignore[arg-type]
    return beta * first + (1 - beta) * F.kl_div(mean, x, **kinds)  # type: ignore[arg-type]


@kt.devices
@kt.dtypes
@betas
@reductions
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
def test_results_and_gradients(
    reduction: str, beta: float, dtype: torch.dtype, device: str
) -> None:
    torch.manual_seed(0)
    for shape in ((3, 100), (2, 2, 3001)):
        kt.no_worse_than_eager(
            lambda x, t: js_div(x, t, beta, reduction),
            lambda x, t: eager(x, t, beta, reduction),
            list(pair(*shape, dtype=dtype, device=device)),
            slack=1.0 if reduction == "none" else 2.0,  # the error of one number is luck
        )


@kt.devices
@settings(max_examples=8, deadline=None)
@given(shape=st.lists(st.integers(0, 9), max_size=3), data=st.data())
def test_any_shape(shape: list[int], data: st.DataObject, device: str) -> None:
    reduction = data.draw(st.sampled_from(REDUCTIONS))
    beta = data.draw(st.floats(0, 1))
    x, t = kt.make(*shape, device=device), kt.make(*shape, device=device)
    a, b = x.clone().requires_grad_(), t.clone().requires_grad_()
    y = js_div(a, b, beta, reduction)
    kt.same(y, reference.forward(x, t, beta, reduction), 1e-4, 1e-4)
    grads = torch.autograd.grad(y.sum(), [a, b])
    g = torch.ones_like(y)
    for got, want in zip(grads, reference.backward(g, x, t, beta, reduction), strict=True):
        kt.same(got, want, 1e-4, 1e-4)


@kt.devices
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_it_is(dtype: torch.dtype, device: str) -> None:
    x, t = pair(4, 60, dtype=dtype, device=device)
    tolerance = 4 * kt.ROUNDOFF[dtype]
    kt.same(js_div(x, t), js_div(t, x), tolerance, 1e-6)
    kt.same(js_div(x, x), torch.zeros((), dtype=dtype, device=device), 0, 2e-6)
    kt.same(js_div(x, t, 0.3), js_div(t, x, 0.7), tolerance, 1e-6)
    apart = torch.full((2, 8), -math.inf, dtype=dtype, device=device)
    apart[0, 0] = apart[1, 1] = 0.0
    # Distributions without overlap have the largest divergence there is.
    found = js_div(apart[:1], apart[1:])
    kt.same(found, torch.tensor(math.log(2), dtype=dtype, device=device), tolerance, 1e-6)


@kt.devices
@betas
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nan_and_infinity_behave_as_in_the_reference(
    dtype: torch.dtype, beta: float, device: str
) -> None:
    values = torch.tensor([0.0, -1.0, -3.0, math.nan, -math.inf, -200.0], device=device)
    x, t = (v.to(dtype).contiguous() for v in torch.meshgrid(values, values, indexing="ij"))
    tolerance = 4 * kt.ROUNDOFF[dtype]
    want = reference.forward(x, t, beta, "none")
    kt.same(js_div(x, t, beta, "none"), want, tolerance, tolerance)
    g = torch.ones_like(x)
    found = op.backward_op(g, x, t, beta, "none", True, True)
    for got, expected in zip(found, reference.backward(g, x, t, beta, "none"), strict=True):
        kt.same(got, expected, tolerance, tolerance)


@kt.devices
@reductions
@pytest.mark.parametrize("beta", [0.5, 1.0])
def test_layouts(beta: float, reduction: str, device: str) -> None:
    x, t = pair(4, 6, 10, device=device)
    for a, b in (
        (x.transpose(0, 1), t.transpose(0, 1)),
        (x[:, :-1], t[:, 1:]),
        (x[..., ::2], t[..., ::2]),
        (x.transpose(0, 2), t.transpose(0, 2).contiguous()),
    ):
        a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
        y = js_div(a, b, beta, reduction)
        kt.same(y, reference.forward(a, b, beta, reduction))
        g = kt.make(*y.shape, device=device)
        found = torch.autograd.grad(y, [a, b], g)
        expected = reference.backward(g, a, b, beta, reduction)
        for got, want in zip(found, expected, strict=True):
            kt.same(got, want)


@kt.devices
def test_two_runs_are_bit_equal(device: str) -> None:
    x, t = pair(3, 20000, device=device)
    kt.bit_equal(lambda: [js_div(x, t)])


@kt.devices
def test_operators_are_registered_completely(device: str) -> None:
    x, t = pair(3, 5, device=device)
    leaves = [v.clone().requires_grad_() for v in (x, t)]
    torch.library.opcheck(op.op.overload, (*leaves, 0.5, "batchmean"))
    torch.library.opcheck(op.op.overload, (*leaves, 1.0, "none"))
    g = torch.ones((), device=device)
    torch.library.opcheck(op.backward_op.overload, (g, x, t, 0.5, "sum", True, True))
    torch.library.opcheck(op.backward_op.overload, (x, x, t, 0.0, "none", False, True))


@betas
def test_gradients_are_right(beta: float) -> None:
    x, t = pair(3, 4, dtype=torch.float64)
    kt.gradcheck(
        lambda a, b: js_div(a, b, beta),
        x.clone().requires_grad_(),
        t.clone().requires_grad_(),
    )


def test_function_transforms() -> None:
    x, t = pair(3, 4)
    found = torch.func.grad(lambda a: js_div(a, t, reduction="sum"))(x)
    kt.same(found, reference.backward(torch.ones(()), x, t, 0.5, "sum")[0])


@kt.devices
def test_torch_compile_calls_the_operator(device: str) -> None:
    x, t = pair(3, 4, device=device)
    x.requires_grad_()
    torch._dynamo.reset()
    y = torch.compile(js_div, backend="aot_eager", fullgraph=True)(x, t)
    y.backward()
    kt.same(y, eager(x, t, 0.5, "batchmean"))
    assert x.grad is not None
    one = torch.ones((), device=device)
    kt.same(x.grad, reference.backward(one, x.detach(), t, 0.5, "batchmean")[0])


def test_errors_name_the_argument() -> None:
    x, t = pair(3, 4)
    with pytest.raises(ArgumentTypeError, match="`target` is of type list; it must be a tensor"):
        js_div(x, [1.0])  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="`beta` is of type str; it must be a number"):
        js_div(x, t, "half")  # type: ignore[arg-type]
    with pytest.raises(ArgumentValueError, match="`beta` is 1.5; it must be from 0 to 1"):
        js_div(x, t, 1.5)
    with pytest.raises(ArgumentTypeError, match="`reduction` is 'avg'; it must be 'none' or"):
        js_div(x, t, reduction="avg")
    with pytest.raises(DtypeError, match="`input` has dtype torch.int64; accepted are float16"):
        js_div(x.long(), t)
    with pytest.raises(ShapeError, match=r"`target` has shape \(4,\); it must be the shape of"):
        js_div(x, t[0])


@kt.large
def test_more_than_2_to_the_31_elements() -> None:
    x = torch.full((2**15 + 1, 2**16), -math.inf, dtype=torch.bfloat16, device="cuda")
    t = x.clone()
    x[-1] = t[-1] = 0.0
    x[-1, ::2] = -math.inf
    want = 2**15 * 0.5 * math.log(2)
    assert float(js_div(x[-1:], t[-1:], reduction="sum")) == pytest.approx(want, rel=1e-2)
    assert float(js_div(x, t, reduction="sum")) == pytest.approx(want, rel=1e-2)
    g = torch.ones((), dtype=torch.bfloat16, device="cuda")
    _, dt = op.backward_op(g, x, t, 0.5, "sum", False, True)
    assert float(dt[-1, 0]) == pytest.approx(0.5 * math.log(2), rel=1e-2)
    assert float(dt[0, 0]) == pytest.approx(0, abs=1e-30)


@kt.needs_compiler
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_resources(dtype: torch.dtype) -> None:
    x = torch.empty(1024, 4096, dtype=dtype)
    g = torch.empty((), dtype=dtype)
    name = str(dtype).removeprefix("torch.")
    for reduction in ("sum", "none"):
        kt.check_resources(
            "js_div",
            f"{reduction} {name}",
            lambda r=reduction: run.forward(x, x, r, run.mixture(0.5)),
        )
    kt.check_resources(
        "js_div",
        f"backward {name}",
        lambda: run.backward(g, x, x, "sum", run.mixture(0.5), (True, True)),
    )
