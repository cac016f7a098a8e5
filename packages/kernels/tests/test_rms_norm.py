"""``rms_norm`` against float64 and against eager, on every path that exists here.

On the CPU the reference runs, or with ``TRITON_INTERPRET=1`` the kernels under Triton's
interpreter (``test_interpreted.py`` starts that); with a GPU the compiled kernels run as well.
"""

from __future__ import annotations

import math
import os
import warnings

import pytest
import torch
import torch.nn.functional as F
import torchsmith_kernels as tk
from torch import Tensor
from torchsmith_kernels import RMSNorm, rms_norm
from torchsmith_kernels._src.rms_norm import reference
from torchsmith_kernels._src.rms_norm.op import backward_op, op
from torchsmith_kernels._src.rms_norm.run import row_stride

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() and not INTERPRETED else [])
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
# Unit roundoff; the interpreter truncates to bfloat16 where hardware rounds.
EPS = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float64: 1e-8}

devices = pytest.mark.parametrize("device", DEVICES)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))


def make(*shape: int, dtype: torch.dtype, device: str, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape, dtype=torch.float64) * scale).to(dtype).to(device)


def exact(x: Tensor, shape: tuple[int, ...], weight: Tensor | None, eps: float) -> Tensor:
    return reference.forward(x.double(), shape, None if weight is None else weight.double(), eps)


def close(got: Tensor, want: Tensor, dtype: torch.dtype, factor: float = 2.0) -> None:
    limit = factor * EPS[dtype]
    torch.testing.assert_close(got.double(), want.double(), rtol=limit, atol=limit, equal_nan=True)


@devices
@dtypes
@pytest.mark.parametrize("with_weight", [True, False], ids=["weight", "no weight"])
@pytest.mark.parametrize("width", [1, 3, 16, 100, 257, 1024])
def test_forward(width: int, with_weight: bool, dtype: torch.dtype, device: str) -> None:
    torch.manual_seed(width)
    x = make(7, width, dtype=dtype, device=device)
    weight = make(width, dtype=dtype, device=device) if with_weight else None
    y = rms_norm(x, (width,), weight, 1e-5)
    assert (y.dtype, y.shape, y.is_contiguous()) == (dtype, x.shape, True)
    close(y, exact(x, (width,), weight, 1e-5), dtype)


@devices
@dtypes
@pytest.mark.parametrize("with_weight", [True, False], ids=["weight", "no weight"])
@pytest.mark.parametrize(("rows", "width"), [(1, 5), (9, 64), (70, 33), (300, 16)])
def test_backward(
    rows: int, width: int, with_weight: bool, dtype: torch.dtype, device: str
) -> None:
    torch.manual_seed(rows)
    x = make(rows, width, dtype=dtype, device=device).requires_grad_()
    weight = None
    if with_weight:
        weight = make(width, dtype=dtype, device=device).requires_grad_()
    grad = make(rows, width, dtype=dtype, device=device)
    inputs = [t for t in (x, weight) if t is not None]
    got = torch.autograd.grad(rms_norm(x, (width,), weight, 1e-5), inputs, grad)
    doubles = [t.detach().double().requires_grad_() for t in inputs]
    y = exact(doubles[0], (width,), doubles[1] if with_weight else None, 1e-5)
    want = torch.autograd.grad(y, doubles, grad.double())
    for ours, theirs, given in zip(got, want, inputs):
        assert (ours.dtype, ours.shape) == (given.dtype, given.shape)
        close(ours, theirs, dtype, factor=4.0)


@devices
def test_backward_error_is_no_larger_than_eagers(device: str) -> None:
    torch.manual_seed(0)
    x = make(64, 256, dtype=torch.float32, device=device)
    weight = make(256, dtype=torch.float32, device=device)
    grad = make(64, 256, dtype=torch.float32, device=device)

    def grads(function: object, kind: torch.dtype) -> list[Tensor]:
        leaves = [x.to(kind).requires_grad_(), weight.to(kind).requires_grad_()]
        y = function(leaves[0], (256,), leaves[1], 1e-6)  # type: ignore[operator]
        return list(torch.autograd.grad(y, leaves, grad.to(kind)))

    want = grads(F.rms_norm, torch.float64)
    for ours, eager, true in zip(
        grads(rms_norm, torch.float32), grads(F.rms_norm, torch.float32), want
    ):

        def error(g: Tensor, true: Tensor = true) -> float:
            return float((g.double() - true).norm() / true.norm())

        assert error(ours) <= 2 * error(eager) + 1e-7


@devices
def test_several_normalized_dimensions(device: str) -> None:
    x = make(3, 4, 5, 6, dtype=torch.float32, device=device).requires_grad_()
    weight = make(5, 6, dtype=torch.float32, device=device).requires_grad_()
    y = rms_norm(x, (5, 6), weight, 1e-6)
    want = F.rms_norm(x, (5, 6), weight, 1e-6)
    close(y, want, torch.float32)
    got = torch.autograd.grad(y.sum(), (x, weight))
    for ours, eager in zip(got, torch.autograd.grad(want.sum(), (x, weight))):
        close(ours, eager, torch.float32, factor=20)


@devices
@dtypes
def test_missing_eps_is_that_of_the_computing_type(dtype: torch.dtype, device: str) -> None:
    x = torch.full((2, 8), 1e-4, dtype=dtype, device=device)
    close(rms_norm(x, (8,)), F.rms_norm(x, (8,)), dtype)


@devices
@pytest.mark.parametrize("weight_dtype", DTYPES, ids=str)
def test_weight_of_another_dtype(weight_dtype: torch.dtype, device: str) -> None:
    x = make(5, 32, dtype=torch.bfloat16, device=device).requires_grad_()
    weight = make(32, dtype=weight_dtype, device=device).requires_grad_()
    y = rms_norm(x, (32,), weight, 1e-6)
    assert y.dtype is torch.bfloat16
    close(y, exact(x, (32,), weight, 1e-6), torch.bfloat16)
    y.sum().backward()
    assert x.grad is not None and x.grad.dtype is torch.bfloat16
    assert weight.grad is not None and weight.grad.dtype is weight_dtype


@devices
def test_nan_and_infinity_behave_as_in_the_reference(device: str) -> None:
    x = make(6, 40, dtype=torch.float32, device=device)
    x[0, 3], x[1, 5], x[2, 6] = math.nan, math.inf, -math.inf
    x[3] = 0.0
    x[4, 0] = 1e30  # its square overflows
    weight = make(40, dtype=torch.float32, device=device)
    weight[7] = math.nan
    for eps in (1e-6, 0.0):
        got, want = rms_norm(x, (40,), weight, eps), reference.forward(x, (40,), weight, eps)
        close(got, want, torch.float32)
        grad = make(6, 40, dtype=torch.float32, device=device)
        ours = backward_op(grad, x, (40,), weight, eps, True, True)
        theirs = reference.backward(grad, x, (40,), weight, eps)
        for a, b in zip(ours, theirs):
            assert b is not None
            close(a, b, torch.float32, factor=20)


LAYOUTS = {
    "sliced rows": lambda t: t[:, ::2],
    "sliced columns": lambda t: t[..., 4:36],
    "unaligned": lambda t: t[..., 1:33],
    "transposed": lambda t: t.transpose(0, 1),
    "transposed inside": lambda t: t.transpose(1, 2),
    "expanded": lambda t: t[:1].expand(5, -1, -1),
    "one row": lambda t: t[2, 3],
    "steps in a row": lambda t: t[..., ::2],
}


@devices
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_strided_inputs(layout: str, device: str) -> None:
    torch.manual_seed(0)
    base = make(4, 6, 40, dtype=torch.float32, device=device)
    x = LAYOUTS[layout](base)
    width = x.shape[-1]
    weight = make(width, dtype=torch.float32, device=device)
    y = rms_norm(x, (width,), weight, 1e-6)
    assert y.is_contiguous()
    close(y, exact(x, (width,), weight, 1e-6), torch.float32)
    grad = LAYOUTS[layout](make(4, 6, 40, dtype=torch.float32, device=device))
    ours = backward_op(grad, x, (width,), weight, 1e-6, True, True)
    theirs = reference.backward(grad.double(), x.double(), (width,), weight.double(), 1e-6)
    for a, b in zip(ours, theirs):
        assert b is not None
        close(a, b, torch.float32, factor=20)


def test_row_stride() -> None:
    base = torch.empty(4, 6, 40)
    assert row_stride(base, 40, 1) == 40
    assert row_stride(base[..., :32], 32, 1) == 40
    assert row_stride(base[:, 0], 40, 1) == 240
    assert row_stride(base[:, ::2], 40, 1) == 80
    assert row_stride(base[:, :5], 40, 1) is None
    assert row_stride(base[..., ::2], 20, 1) is None
    assert row_stride(base[:, :3], 120, 2) == 240
    assert row_stride(base[:1].expand(5, 6, 40), 40, 1) is None
    assert row_stride(base[0, :1].expand(9, 40), 40, 1) == 0
    assert row_stride(base[0, 0], 40, 1) == 40


@devices
@pytest.mark.parametrize("width", [32768, 40000, 70001])
def test_wide_rows(width: int, device: str) -> None:
    torch.manual_seed(1)
    x = make(2, width, dtype=torch.float32, device=device).requires_grad_()
    weight = make(width, dtype=torch.float32, device=device).requires_grad_()
    y = rms_norm(x, (width,), weight, 1e-6)
    close(y, exact(x.detach(), (width,), weight.detach(), 1e-6), torch.float32)
    grad = make(2, width, dtype=torch.float32, device=device)
    got = torch.autograd.grad(y, (x, weight), grad)
    want = reference.backward(
        grad.double(), x.detach().double(), (width,), weight.detach().double(), 1e-6
    )
    for a, b in zip(got, want):
        assert b is not None
        close(a, b, torch.float32, factor=20)


@devices
@pytest.mark.parametrize(
    ("shape", "normalized"), [((0, 8), (8,)), ((3, 0), (0,)), ((2, 0, 8), (8,)), ((0, 0), (0,))]
)
def test_empty_inputs(shape: tuple[int, ...], normalized: tuple[int, ...], device: str) -> None:
    x = torch.empty(shape, device=device, requires_grad=True)
    weight = torch.randn(normalized, device=device, requires_grad=True)
    y = rms_norm(x, normalized, weight)
    assert y.shape == x.shape
    y.sum().backward()
    assert x.grad is not None and x.grad.shape == x.shape
    assert weight.grad is not None and torch.equal(weight.grad, torch.zeros_like(weight))


@devices
def test_gradients_are_bitwise_reproducible(device: str) -> None:
    x = make(500, 96, dtype=torch.float32, device=device)
    weight = make(96, dtype=torch.float32, device=device)
    grad = make(500, 96, dtype=torch.float32, device=device)
    first = backward_op(grad, x, (96,), weight, 1e-6, True, True)
    for _ in range(3):
        again = backward_op(grad, x, (96,), weight, 1e-6, True, True)
        assert all(torch.equal(a, b) for a, b in zip(first, again))


@devices
@pytest.mark.parametrize(("need_x", "need_w"), [(True, False), (False, True), (False, False)])
def test_only_the_needed_gradients(need_x: bool, need_w: bool, device: str) -> None:
    x = make(4, 16, dtype=torch.float32, device=device).requires_grad_(need_x)
    weight = make(16, dtype=torch.float32, device=device).requires_grad_(need_w)
    y = rms_norm(x, (16,), weight, 1e-6)
    assert y.requires_grad == (need_x or need_w)
    if y.requires_grad:
        y.sum().backward()
    assert (x.grad is not None, weight.grad is not None) == (need_x, need_w)
    with torch.no_grad():
        assert not rms_norm(x, (16,), weight).requires_grad
    with torch.inference_mode():
        assert rms_norm(x, (16,), weight).is_inference()


@devices
@pytest.mark.parametrize("with_weight", [True, False])
def test_gradcheck(with_weight: bool, device: str) -> None:
    torch.manual_seed(0)
    x = make(3, 5, dtype=torch.float64, device=device).requires_grad_()
    weight = make(5, dtype=torch.float64, device=device).requires_grad_()
    inputs = (x, weight) if with_weight else (x,)

    def call(x: Tensor, weight: Tensor | None = None) -> Tensor:
        return rms_norm(x, (5,), weight, 1e-3)

    assert torch.autograd.gradcheck(call, inputs)
    assert torch.autograd.gradgradcheck(call, inputs)


@devices
def test_double_backward_equals_eagers(device: str) -> None:
    torch.manual_seed(0)
    x = make(3, 5, dtype=torch.float64, device=device).requires_grad_()
    weight = make(5, dtype=torch.float64, device=device).requires_grad_()

    def second(function: object) -> Tensor:
        y = function(x, (5,), weight, 1e-3)  # type: ignore[operator]
        (first,) = torch.autograd.grad(y.pow(2).sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]

    close(second(rms_norm), second(F.rms_norm), torch.float64)


OPCHECKS = (
    "test_schema",
    "test_autograd_registration",
    "test_faketensor",
    "test_aot_dispatch_dynamic",
)


@devices
@pytest.mark.parametrize("requires_grad", [True, False])
def test_opcheck(requires_grad: bool, device: str) -> None:
    x = torch.randn(4, 6, 16, device=device, requires_grad=requires_grad)
    weight = torch.randn(16, device=device, requires_grad=requires_grad)
    samples = [
        ((x, (16,), weight, 1e-6), {}),
        ((x, (16,)), {}),
        ((x.transpose(0, 1), (16,), weight), {"eps": 1e-5}),
        ((x, (6, 16)), {}),
        ((x[:, :0], (16,), weight), {}),
    ]
    for args, kwargs in samples:
        torch.library.opcheck(op, args, kwargs, test_utils=OPCHECKS)


@devices
@pytest.mark.parametrize("need_weight", [True, False])
def test_opcheck_backward(need_weight: bool, device: str) -> None:
    x, grad = torch.randn(4, 16, device=device), torch.randn(4, 16, device=device)
    weight = torch.randn(16, device=device)
    for given in (weight, None):
        torch.library.opcheck(
            backward_op, (grad, x, (16,), given, 1e-6, True, need_weight), test_utils=OPCHECKS
        )


@devices
def test_functional_transforms(device: str) -> None:
    x, weight = torch.randn(4, 8, device=device), torch.randn(8, device=device)
    got = torch.func.grad(lambda t: rms_norm(t, (8,), weight, 1e-6).sum())(x)
    want = torch.func.grad(lambda t: F.rms_norm(t, (8,), weight, 1e-6).sum())(x)
    close(got, want, torch.float32, factor=20)


@devices
def test_module_shares_checkpoints_with_torch(device: str) -> None:
    ours = RMSNorm(32, eps=1e-5, device=device)
    theirs = torch.nn.RMSNorm(32, eps=1e-5, device=device)
    torch.nn.init.normal_(theirs.weight)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(4, 32, device=device)
    close(ours(x), theirs(x), torch.float32)
    assert isinstance(ours, torch.nn.RMSNorm)
    assert RMSNorm(32, elementwise_affine=False)(x).shape == x.shape


# -- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "error", "words"),
    [
        ((torch.randn(2, 8), (7,)), tk.ShapeError, r"TS-K001.*`input` has shape \(2, 8\).*\(7,\)"),
        ((torch.randn(8), (2, 8)), tk.ShapeError, r"`input` has shape \(8,\)"),
        ((torch.randn(2, 8), (8,), torch.randn(7)), tk.ShapeError, r"`weight` has shape \(7,\)"),
        ((torch.randn(2, 8), (8,), torch.randn(1, 8)), tk.ShapeError, r"`weight`"),
        ((torch.randn(2, 8), ()), tk.ArgumentTypeError, r"TS-K002.*`normalized_shape` is empty"),
        ((torch.randn(2, 8), 8), tk.ArgumentTypeError, r"`normalized_shape` is int.*tuple or list"),
        (("x", (8,)), tk.ArgumentTypeError, r"`input` is str"),
        ((torch.randn(2, 8), (8,), 1.0), tk.ArgumentTypeError, r"`weight` is float"),
        ((torch.randn(2, 8), (8,), None, "a"), tk.ArgumentTypeError, r"`eps` is str"),
        ((torch.ones(2, 8).int(), (8,)), tk.DtypeError, r"TS-K003.*`input` has dtype torch.int32"),
        ((torch.randn(2, 8), (8,), torch.ones(8).bool()), tk.DtypeError, r"`weight` has dtype"),
        (
            (torch.randn(2, 8), (8,), torch.randn(8, device="meta")),
            tk.DeviceError,
            r"TS-K004.*`weight` is on meta.*on cpu",
        ),
    ],
)
def test_errors_name_the_argument(
    args: tuple[object, ...], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        rms_norm(*args)  # type: ignore[arg-type]
    assert issubclass(error, RuntimeError)


def test_the_registered_op_checks_too() -> None:
    with pytest.raises(tk.ShapeError, match="`input`"):
        torch.ops.torchsmith.rms_norm(torch.randn(2, 8), (7,))


def test_meta_tensors_have_shape_without_data() -> None:
    y = rms_norm(torch.randn(2, 8, device="meta"), (8,))
    assert (y.device.type, y.shape) == ("meta", (2, 8))


def test_no_warning_on_a_cpu() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rms_norm(torch.randn(2, 8), (8,))


# -- sizes that only a GPU can hold --------------------------------------------------------------


@pytest.mark.skipif("cuda" not in DEVICES, reason="needs 20 GB of GPU memory")
def test_more_than_two_to_the_31_elements() -> None:
    rows, width = 2**31 // 4096 + 3, 4096
    x = torch.randn(rows, width, dtype=torch.bfloat16, device="cuda")
    weight = torch.randn(width, dtype=torch.bfloat16, device="cuda")
    y = rms_norm(x, (width,), weight, 1e-6)
    for part in (slice(0, 4), slice(-4, None)):
        close(y[part], exact(x[part], (width,), weight, 1e-6), torch.bfloat16)
    grad_x, _ = backward_op(y, x, (width,), weight, 1e-6, True, False)
    want, _ = reference.backward(y[-4:].double(), x[-4:].double(), (width,), weight.double(), 1e-6)
    close(grad_x[-4:], want, torch.bfloat16, factor=4)


@pytest.mark.skipif("cuda" not in DEVICES, reason="real sizes take a GPU")
@pytest.mark.parametrize("width", [64, 768, 1024, 4096, 5120, 8192, 16384, 32768, 65536, 131072])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_real_sizes(width: int, dtype: torch.dtype) -> None:
    rows = max(3, 2**24 // width + 1)
    x = torch.randn(rows, width, dtype=dtype, device="cuda")
    weight = torch.randn(width, dtype=dtype, device="cuda")
    grad = torch.randn_like(x)
    close(rms_norm(x, (width,), weight, 1e-6), exact(x, (width,), weight, 1e-6), dtype)
    ours = backward_op(grad, x, (width,), weight, 1e-6, True, True)
    theirs = reference.backward(grad.double(), x.double(), (width,), weight.double(), 1e-6)
    for a, b in zip(ours, theirs):
        assert b is not None
        assert float((a.double() - b).norm() / b.norm()) < 2 * EPS[dtype]


@pytest.mark.skipif("cuda" not in DEVICES, reason="streams and graphs exist on GPUs only")
def test_current_stream_and_graph_capture() -> None:
    x, weight = torch.randn(64, 512, device="cuda"), torch.randn(512, device="cuda")
    want = rms_norm(x, (512,), weight)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        got = rms_norm(x, (512,), weight)
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(got, want)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = rms_norm(x, (512,), weight)
    captured.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(captured, want)
