"""``relu_squared`` against eager and float64, on every path that exists here."""

from __future__ import annotations

import math

import kernel_testing as kt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import forward_ad
from torchsmith_kernels import ArgumentTypeError, DtypeError, relu_squared
from torchsmith_kernels._src.pointwise.config import Case, candidates
from torchsmith_kernels._src.pointwise.layout import plan
from torchsmith_kernels._src.relu_squared import op, reference, run


def eager(x: Tensor) -> Tensor:
    return torch.relu(x).square()


@kt.devices
@kt.dtypes
@pytest.mark.parametrize("shape", [(7,), (3, 100), (2, 5, 4099)])
def test_results_and_gradients(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
    torch.manual_seed(0)
    kt.no_worse_than_eager(relu_squared, eager, [kt.make(*shape, dtype=dtype, device=device)])


@kt.devices
@settings(max_examples=10, deadline=None)
@given(shape=st.lists(st.integers(0, 9), max_size=4))
def test_any_shape(shape: list[int], device: str) -> None:
    x = kt.make(*shape, device=device).requires_grad_()
    y = relu_squared(x)
    kt.same(y, eager(x))
    assert y.shape == x.shape
    y.sum().backward()
    assert x.grad is not None
    kt.same(x.grad, 2 * x.relu())


LAYOUTS = {
    "transposed": lambda t: t.transpose(0, 1),
    "sliced": lambda t: t[:, ::2],
    "unaligned": lambda t: t[..., 1:],
    "expanded": lambda t: t[:1].expand(5, -1, -1),
    "half": lambda t: t.chunk(2, -1)[1],
    "one row": lambda t: t[1:2, 2:3, ::2],
}


@kt.devices
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_layouts_are_those_of_eager(layout: str, device: str) -> None:
    x = LAYOUTS[layout](kt.make(4, 6, 10, device=device))
    assert relu_squared(x).stride() == eager(x).stride()
    kt.no_worse_than_eager(relu_squared, eager, [x])
    kt.same(op.backward_op(LAYOUTS[layout](torch.ones(4, 6, 10, device=device)), x), 2 * x.relu())


@kt.devices
def test_nan_and_infinity_behave_as_in_the_reference(device: str) -> None:
    x = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 1e30], device=device)
    kt.same(relu_squared(x), eager(x))
    kt.same(op.backward_op(torch.ones_like(x), x), reference.backward(torch.ones_like(x), x))


@kt.devices
def test_two_runs_are_bit_equal(device: str) -> None:
    x = kt.make(3, 1000, device=device)
    kt.bit_equal(lambda: [relu_squared(x), op.backward_op(x, x)])


@kt.devices
def test_operator_is_registered_completely(device: str) -> None:
    x = kt.make(3, 5, device=device)
    torch.library.opcheck(op.op.overload, (x.requires_grad_(),))
    torch.library.opcheck(op.backward_op.overload, (x.detach(), x.detach()))


def test_gradients_are_right() -> None:
    kt.gradcheck(relu_squared, kt.make(3, 4, dtype=torch.float64).requires_grad_())


def test_function_transforms() -> None:
    x = kt.make(3, 4)
    found = torch.func.grad(lambda t: relu_squared(t).sum())(x)
    kt.same(found, 2 * x.relu())


@kt.devices
def test_forward_mode_is_refused(device: str) -> None:
    x = kt.make(4, 8, device=device)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        with pytest.raises(NotImplementedError, match="forward mode"):
            relu_squared(dual)
        kt.same(relu_squared(x), x.relu().square())


@kt.devices
def test_batches_of_gradients(device: str) -> None:
    x = kt.make(3, 4, device=device)
    found = torch.autograd.functional.jacobian(relu_squared, x, vectorize=True)
    kt.same(found, torch.autograd.functional.jacobian(relu_squared, x))


@kt.devices
def test_torch_compile_calls_the_operator(device: str) -> None:
    x = kt.make(3, 4, device=device).requires_grad_()
    y = torch.compile(relu_squared, backend="aot_eager", fullgraph=True)(x)
    y.sum().backward()
    kt.same(y, eager(x))
    kt.same(x.grad, 2 * x.relu())


def test_errors_name_the_argument() -> None:
    with pytest.raises(ArgumentTypeError, match="`input` is of type list; it must be a tensor"):
        relu_squared([1.0])
    with pytest.raises(ArgumentTypeError, match="layout torch.sparse_coo; it must be a dense tens"):
        relu_squared(torch.eye(3).to_sparse())
    with pytest.raises(DtypeError, match="`input` has dtype torch.int64; accepted are float16"):
        relu_squared(torch.ones(3, dtype=torch.int64))


@kt.large
def test_more_than_2_to_the_31_elements() -> None:
    x = torch.full((2**31 + 100,), 2.0, dtype=torch.bfloat16, device="cuda")
    y = relu_squared(x)
    assert torch.all(y[-1000:] == 4) and torch.all(y[:1000] == 4)
    dx = op.backward_op(y, x)
    assert torch.all(dx[-1000:] == 16)


@kt.devices
def test_rows_at_regular_places_are_not_copied(device: str) -> None:
    x = kt.make(4, 6, 64, device=device)[:, :, :40]
    layout = plan(torch.empty_like(x), x)
    assert (layout.rows, layout.width, layout.strides) == (24, 40, [64])
    assert layout.inputs[0] is x


@kt.needs_compiler
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_resources(dtype: torch.dtype) -> None:
    x = torch.empty(1024, dtype=dtype)
    rows = torch.empty(64, 256, dtype=dtype)[:, :128]
    name = str(dtype).removeprefix("torch.")
    for walk, input in (("flat", x), ("rows", rows)):
        case = f"forward {walk} {name}"
        (kernel,) = kt.check_resources("relu_squared", case, lambda: run.forward(input))
        assert "ld.global.v4.b32" in kernel.asm["ptx"], "16 bytes a thread"
    kt.check_resources("relu_squared", f"backward flat {name}", lambda: run.backward(x, x))


@kt.needs_compiler
@pytest.mark.parametrize("kernel", ["forward", "backward"])
def test_no_candidate_spills(kernel: str) -> None:
    x = torch.empty(1024, dtype=torch.bfloat16)
    for config in candidates(Case(kernel, torch.bfloat16)):
        call = run.forward if kernel == "forward" else run.backward
        args = (x,) if kernel == "forward" else (x, x)
        with kt.compiled_for_sm90() as kernels:
            call(*args, config)
        assert kt._usage(kernels[0][1])["stack"] == 0, config
