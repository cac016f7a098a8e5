"""``kl_div`` against eager and float64, on every path that exists here."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import kernel_testing as kt
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchsmith_kernels import ArgumentTypeError, DeviceError, DtypeError, ShapeError, kl_div
from torchsmith_kernels._src.kl_div import op, run
from torchsmith_kernels._src.kl_div.config import Case, Config, candidates, table

REDUCTIONS = ["none", "batchmean", "sum", "mean"]
reductions = pytest.mark.parametrize("reduction", REDUCTIONS)
pytestmark = pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")


def pair(
    *shape: int, log: bool, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Logarithms of random distributions, and random distributions or their logarithms."""
    x, t = (kt.make(*shape).log_softmax(-1) for _ in range(2))
    return x.to(dtype).to(device), (t if log else t.exp()).to(dtype).to(device)


@kt.devices
@kt.dtypes
@pytest.mark.parametrize("log", [False, True])
@reductions
def test_results_and_gradients(reduction: str, log: bool, dtype: torch.dtype, device: str) -> None:
    torch.manual_seed(0)
    for shape in ((97,), (3, 100), (2, 5, 3001)):
        kt.no_worse_than_eager(
            lambda x, t: kl_div(x, t, reduction=reduction, log_target=log),
            lambda x, t: F.kl_div(x, t, reduction=reduction, log_target=log),
            list(pair(*shape, log=log, dtype=dtype, device=device)),
            slack=1.0 if reduction == "none" else 2.0,  # the error of one number is luck
        )


@kt.devices
@settings(max_examples=10, deadline=None)
@given(shape=st.lists(st.integers(0, 9), max_size=4), data=st.data())
def test_any_shape(shape: list[int], data: st.DataObject, device: str) -> None:
    reduction = data.draw(st.sampled_from(REDUCTIONS))
    x, t = kt.make(*shape, device=device), kt.make(*shape, device=device).exp()
    results = []
    for function in (kl_div, F.kl_div):
        a, b = x.clone().requires_grad_(), t.clone().requires_grad_()
        y = function(a, b, reduction=reduction)
        results.append([y, *torch.autograd.grad(y.sum(), [a, b])])
    for got, want in zip(*results, strict=True):
        kt.same(got, want, 1e-4)
        assert got.shape == want.shape


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda t: t.transpose(0, 1),
    "sliced": lambda t: t[:, ::2],
    "shifted": lambda t: t[:, :-1],
    "unaligned": lambda t: t[..., 1:],
    "every other": lambda t: t[..., ::2],
    "expanded": lambda t: t[:1].expand(5, -1, -1),
}


@kt.devices
@reductions
@pytest.mark.parametrize("which", ["both", "input", "target"])
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_layouts_are_those_of_eager(layout: str, which: str, reduction: str, device: str) -> None:
    x, t = pair(4, 6, 10, log=True, device=device)
    x, t = LAYOUTS[layout](x), LAYOUTS[layout](t)
    x = x.contiguous() if which == "target" else x
    t = t.contiguous() if which == "input" else t
    x, t = x.detach().requires_grad_(), t.detach().requires_grad_()
    y = kl_div(x, t, reduction=reduction, log_target=True)
    want = F.kl_div(x, t, reduction=reduction, log_target=True)
    assert y.stride() == want.stride()
    kt.same(y, want)
    g = kt.make(*y.shape, device=device)
    for got, other in zip(
        torch.autograd.grad(y, [x, t], g), torch.autograd.grad(want, [x, t], g), strict=True
    ):
        kt.same(got, other)


@kt.devices
def test_shapes_are_broadcast_as_in_eager(device: str) -> None:
    x, t = kt.make(4, 6, device=device), kt.make(6, device=device).exp()
    for a, b in ((x, t), (t.log(), x.exp()), (x, torch.tensor(0.5, device=device))):
        for reduction in REDUCTIONS:
            ours, eager = (f(a, b, reduction=reduction) for f in (kl_div, F.kl_div))
            assert ours.dtype is eager.dtype
            kt.same(ours, eager)
    mixed = kl_div(x.bfloat16(), t.expand(4, 6), reduction="none")
    kt.same(mixed, F.kl_div(x.bfloat16(), t.expand(4, 6), reduction="none"), 1e-2, 1e-2)
    assert mixed.dtype is torch.float32
    for a, b in ((x, t.double()[0]), (x[0, 0].double(), t.bfloat16()), (x, t.bfloat16())):
        assert kl_div(a, b, reduction="none").dtype is torch.result_type(a, b)


@kt.devices
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("log", [False, True])
def test_zero_nan_and_infinity_behave_as_in_eager(
    log: bool, dtype: torch.dtype, device: str
) -> None:
    nan, inf = math.nan, math.inf
    values = torch.tensor([0.0, -0.0, 0.5, -0.5, 1.0, nan, inf, -inf, 1e-39], device=device)
    x, t = (v.to(dtype).requires_grad_() for v in torch.meshgrid(values, values, indexing="ij"))
    results = []
    for function in (kl_div, F.kl_div):
        y = function(x, t, reduction="none", log_target=log)
        results.append([y, *torch.autograd.grad(y, [x, t], torch.ones_like(y))])
    for got, want in zip(*results, strict=True):
        kt.same(got, want, 3 * kt.ROUNDOFF[dtype] + 1e-5, 3 * kt.ROUNDOFF[dtype] + 1e-5)


@kt.devices
def test_two_runs_are_bit_equal(device: str) -> None:
    x, t = pair(3, 20000, log=True, device=device)
    kt.bit_equal(lambda: [kl_div(x, t, reduction="batchmean", log_target=True)])


@kt.devices
def test_operators_are_registered_completely(device: str) -> None:
    x, t = pair(3, 5, log=False, device=device)
    leaf = x.clone().requires_grad_()
    torch.library.opcheck(op.op.overload, (leaf, t.clone().requires_grad_(), "mean"))
    torch.library.opcheck(op.op.overload, (leaf, t.log(), "none", True))
    g = torch.ones((), device=device)
    backward = op.backward_op.overload
    torch.library.opcheck(backward, (g, x, t, "sum", False, True, True))
    torch.library.opcheck(backward, (x, x, t.T.contiguous().T, "none", True, True, False))


@pytest.mark.parametrize("log", [False, True])
def test_gradients_are_right(log: bool) -> None:
    x, t = pair(3, 4, log=log, dtype=torch.float64)
    for reduction in ("none", "batchmean"):
        kt.gradcheck(
            lambda a, b, r=reduction: kl_div(a, b, reduction=r, log_target=log),
            x.clone().requires_grad_(),
            t.clone().requires_grad_(),
        )


def test_function_transforms() -> None:
    x, t = pair(3, 4, log=False)
    for function in (kl_div, F.kl_div):
        found = torch.func.grad(lambda a, f=function: f(a, t, reduction="sum"))(x)
        kt.same(found, -t)


@kt.devices
def test_torch_compile_calls_the_operator(device: str) -> None:
    x, t = pair(3, 4, log=False, device=device)
    x.requires_grad_()
    torch._dynamo.reset()
    y = torch.compile(lambda a, b: kl_div(a, b), backend="aot_eager", fullgraph=True)(x, t)
    y.backward()
    kt.same(y, F.kl_div(x, t))
    kt.same(x.grad, -t / 12)


@kt.devices
def test_torch_compile_broadcasts(device: str) -> None:
    x, t = pair(3, 4, log=False, device=device)
    torch._dynamo.reset()

    def function(a: Tensor, b: Tensor) -> Tensor:
        return kl_div(a, b, reduction="sum")

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    kt.same(compiled(x, t[0]), function(x, t[0]))


@kt.devices
def test_autocast_computes_in_float32_as_eager(device: str) -> None:
    x, t = pair(3, 40, log=False, dtype=torch.bfloat16, device=device)
    with torch.autocast(device, torch.bfloat16):
        y = kl_div(x, t, reduction="sum")
    assert y.dtype is torch.float32
    kt.same(y, F.kl_div(x.float(), t.float(), reduction="sum"))


def test_deprecated_arguments_override_the_reduction() -> None:
    x, t = pair(3, 4, log=False)
    for size_average in (None, False, True):
        for reduce in (None, False, True):
            if size_average is reduce is None:
                continue
            with warnings.catch_warnings(record=True) as eager_warnings:
                warnings.simplefilter("always")
                want = F.kl_div(x, t, size_average, reduce, reduction="batchmean")
            with warnings.catch_warnings(record=True) as our_warnings:
                warnings.simplefilter("always")
                got = kl_div(x, t, size_average, reduce, reduction="batchmean")
            kt.same(got, want)
            assert str(our_warnings[0].message) == str(eager_warnings[0].message)
            assert our_warnings[0].filename == __file__


def test_the_mean_over_elements_warns_as_eager_does() -> None:
    x, t = pair(3, 4, log=False)
    messages = []
    for function in (kl_div, F.kl_div):
        with pytest.warns(UserWarning, match="'batchmean' divides only by the batch size") as found:
            function(x, t)
        messages.append(str(found[0].message))
    assert messages[0] == messages[1]


def test_errors_name_the_argument() -> None:
    x, t = pair(3, 4, log=False)
    with pytest.raises(ArgumentTypeError, match="`input` is of type list; it must be a tensor"):
        kl_div([1.0], t, reduction="sum")  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="`target` is of type float"):
        kl_div(x, 1.0, reduction="sum")  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="`reduction` is 'avg'; it must be 'none' or"):
        kl_div(x, t, reduction="avg")
    with pytest.raises(ArgumentTypeError, match="`log_target` is of type str; it must be a bool"):
        kl_div(x, t, reduction="sum", log_target="no")  # type: ignore[arg-type]
    for wrong in (t.long(), t[0].long()):
        with pytest.raises(DtypeError, match="`target` has dtype torch.int64; accepted are floa"):
            kl_div(x, wrong, reduction="sum")
    with pytest.raises(ShapeError, match=r"`target` has shape \(5,\); it must be broadcastable"):
        kl_div(x, torch.ones(5), reduction="sum")
    with pytest.raises(ShapeError, match=r"`target` has shape \(4,\); it must be the shape of"):
        torch.ops.torchsmith.kl_div(x, torch.ones(4), "sum")
    with pytest.raises(DeviceError, match="`target` is on meta; it must be on cpu"):
        kl_div(x, t.to("meta"), reduction="sum")


@kt.large
def test_more_than_2_to_the_31_elements() -> None:
    x = torch.full((2**15 + 1, 2**16), -1.0, dtype=torch.bfloat16, device="cuda")
    t = torch.zeros_like(x)
    t[-1] = 1.0
    assert float(kl_div(x, t, reduction="sum")) == 2**16
    each = kl_div(x, t, reduction="none")
    assert torch.all(each[-1] == 1) and torch.all(each[:-1] == 0)
    g = torch.ones((), dtype=torch.bfloat16, device="cuda")
    dx, _ = op.backward_op(g, x, t, "sum", False, True, False)
    assert torch.all(dx[-1] == -1) and torch.all(dx[0] == 0)
    rows, targets = x[:, :-1], t[:, :-1]
    assert float(kl_div(rows, targets, reduction="sum")) == 2**16  # rounded from 2**16 - 1


@kt.needs_compiler
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("log", [False, True])
def test_resources(log: bool, dtype: torch.dtype) -> None:
    x = torch.empty(1024, 4096, dtype=dtype)
    divergence = run.LOGARITHMS if log else run.PROBABILITIES
    name = f"{'log' if log else 'p'} {str(dtype).removeprefix('torch.')}"
    for reduction in ("sum", "none"):
        compiled = kt.check_resources(
            "kl_div",
            f"{reduction} {name}",
            lambda r=reduction: run.forward(x, x, r, divergence),
        )
        ptx = compiled[0].asm["ptx"]
        assert "ld.global.v4.b32" in ptx or "cp.async.cg" in ptx, "16 bytes a thread"
    g = torch.empty((), dtype=dtype)
    for needed in ((True, False), (True, True)):
        kt.check_resources(
            "kl_div",
            f"backward of {sum(needed)} {name}",
            lambda n=needed: run.backward(g, x, x, "sum", divergence, n),
        )


@kt.needs_compiler
@pytest.mark.parametrize("divergence", ["kl", "js"])
def test_no_candidate_spills(divergence: str) -> None:
    x = torch.empty(1024, 4096, dtype=torch.bfloat16)
    which = run.mixture(0.5) if divergence == "js" else run.PROBABILITIES
    g = torch.empty((), dtype=torch.bfloat16)
    for kernel in ("sum", "each", "backward"):
        for config in candidates(Case(kernel, divergence, torch.bfloat16)):
            with kt.compiled_for_sm90() as kernels:
                if kernel == "backward":
                    run.backward(g, x, x, "sum", which, (True, True), config)
                else:
                    run.forward(x, x, "none" if kernel == "each" else "sum", which, config)
            assert kt._usage(kernels[0][1])["stack"] == 0, config


def test_stored_configurations_are_checked() -> None:
    case = Case("sum", "kl", torch.bfloat16)
    assert table.accepts(case, Config(4096, 8))
    assert not table.accepts(case, Config(4095, 8))
    assert not table.accepts(case, Config(4096, 8, programs=0))
