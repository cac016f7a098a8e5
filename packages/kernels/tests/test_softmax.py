"""``softmax`` and ``log_softmax`` against eager and float64, on every path that exists here."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import kernel_testing as kt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchsmith_kernels import (
    ArgumentTypeError,
    DeviceError,
    DimensionError,
    DtypeError,
    LogSoftmax,
    ShapeError,
    Softmax,
    log_softmax,
    softmax,
)
from torchsmith_kernels._src.softmax import op, reference, run
from torchsmith_kernels._src.softmax.config import Case, Config, candidates, table

FUNCTIONS = {"softmax": (softmax, torch.softmax), "log_softmax": (log_softmax, torch.log_softmax)}
BACKWARDS = {"softmax": op.softmax_backward_op, "log_softmax": op.log_softmax_backward_op}
functions = pytest.mark.parametrize("name", list(FUNCTIONS))
Function = Callable[..., Tensor]


def masked(name: str, scale: float = 1.0) -> Function:
    """The formula with a mask in eager PyTorch, rounded once."""
    eager = FUNCTIONS[name][1]

    def function(x: Tensor, mask: Tensor, dim: int = -1) -> Tensor:
        compute = torch.promote_types(x.dtype, torch.float32)
        scores = x.to(compute) * scale
        if mask.dtype is torch.bool:
            scores = scores.masked_fill(~mask, -math.inf)
        else:
            scores = scores + mask.to(compute)
        return eager(scores, dim).to(x.dtype)

    return function


@kt.devices
@kt.dtypes
@functions
@pytest.mark.parametrize(
    ("shape", "dim"),
    [((7,), 0), ((3, 100), -1), ((2, 5, 1031), 2), ((3, 40, 17), 1), ((130, 5), 0), ((), 0)],
)
def test_results_and_gradients(
    shape: tuple[int, ...], dim: int, name: str, dtype: torch.dtype, device: str
) -> None:
    torch.manual_seed(0)
    ours, eager = FUNCTIONS[name]
    x = kt.make(*shape, dtype=dtype, device=device)
    kt.no_worse_than_eager(lambda t: ours(t, dim), lambda t: eager(t, dim), [x])


#: Configurations that take the other kernels for small shapes: several blocks per line.
LOOPS = {
    "rows": ((5, 333), 1, Config(1, 64, 4)),
    "several rows": ((5, 333), 1, Config(4, 64, 4)),
    "whole blocks": ((3, 256), 1, Config(1, 64, 4)),
    "one block": ((3, 128), 1, Config(1, 128, 4, twice=True)),
    "limited registers": ((3, 128), 1, Config(1, 64, 4, registers=64)),
    "columns": ((2, 140, 20), 1, Config(8, 32, 4)),
    "parts": ((3, 33000), 1, Config(1, 8192, 4)),
    "parts of columns": ((600, 3), 0, Config(4, 64, 4)),
}


@kt.devices
@functions
@pytest.mark.parametrize("loop", list(LOOPS))
@pytest.mark.parametrize("kind", ["plain", "infinite", "masked"])
def test_lines_longer_than_a_block(loop: str, kind: str, name: str, device: str) -> None:
    if kt.DEVICES == ["cpu"] and not kt.INTERPRETED:
        pytest.skip("about kernels")
    torch.manual_seed(0)
    shape, dim, config = LOOPS[loop]
    log = name == "log_softmax"
    x, g = kt.make(*shape, device=device, scale=3.0), kt.make(*shape, device=device)
    mask, scale = None, 1.0
    if kind == "masked":
        mask, scale = torch.rand(shape[-1], device=device) > 0.3, 0.5
    if kind == "infinite":
        x[..., -1, -1] = -math.inf
        x[0, 1] = -math.inf
        x.select(dim, 0).copy_(-math.inf)
        lowest = torch.finfo(torch.float32).min
        x.movedim(dim, -1)[..., 1:][-1] = lowest
    y = run.forward(x, dim, torch.float32, mask, scale, log, config)
    kt.same(y, reference.forward(x, dim, None, mask, scale, log))
    dx = run.backward(g, y, dim, torch.float32, mask, scale, log, config)
    kt.same(dx, reference.backward(g, y, dim, torch.float32, mask, scale, log))


@kt.devices
@functions
@settings(max_examples=12, deadline=None)
@given(shape=st.lists(st.integers(0, 9), min_size=1, max_size=4), data=st.data())
def test_any_shape(name: str, shape: list[int], data: st.DataObject, device: str) -> None:
    ours, eager = FUNCTIONS[name]
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = kt.make(*shape, device=device).requires_grad_()
    twin = x.detach().clone().requires_grad_()
    y, want = ours(x, dim), eager(twin, dim)
    kt.same(y, want)
    g = kt.make(*shape, device=device)
    y.backward(g)
    want.backward(g)
    assert x.grad is not None and twin.grad is not None
    kt.same(x.grad, twin.grad)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda t: t.transpose(0, 1),
    "transposed rows": lambda t: t.transpose(1, 2),
    "sliced": lambda t: t[:, ::2],
    "every other": lambda t: t[..., ::2],
    "unaligned": lambda t: t[..., 1:],
    "expanded": lambda t: t[:1].expand(5, -1, -1),
}


@kt.devices
@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_layouts_are_those_of_eager(layout: str, dim: int, device: str) -> None:
    x = LAYOUTS[layout](kt.make(4, 6, 10, device=device))
    y = softmax(x, dim)
    assert y.stride() == torch.softmax(x, dim).stride()
    kt.same(y, torch.softmax(x, dim))
    g = LAYOUTS[layout](kt.make(4, 6, 10, device=device))
    kt.same(
        op.softmax_backward_op(g, y, dim, torch.float32, None, 1.0),
        reference.backward(g, y, dim, torch.float32),
    )


MASKS: dict[str, Callable[[], Tensor]] = {
    "full": lambda: torch.rand(2, 3, 5, 40) > 0.3,
    "broadcast heads": lambda: torch.rand(2, 1, 5, 40) > 0.3,
    "padding": lambda: torch.rand(2, 1, 1, 40) > 0.3,
    "rows": lambda: torch.tensor([True, True, True, False, True])[:, None],
    "shared": lambda: torch.rand(40) > 0.3,
    "strided": lambda: (torch.rand(2, 1, 40, 5) > 0.3).transpose(-1, -2),
    "none left": lambda: torch.zeros(2, 3, 5, 40, dtype=torch.bool),
}


@kt.devices
@functions
@pytest.mark.parametrize("mask", list(MASKS))
@pytest.mark.parametrize("dim", [-1, 1])
def test_boolean_masks(mask: str, dim: int, name: str, device: str) -> None:
    torch.manual_seed(1)
    keep = MASKS[mask]().to(device)
    x = kt.make(2, 3, 5, 40, device=device).requires_grad_()
    twin = x.detach().clone().requires_grad_()
    y = FUNCTIONS[name][0](x, dim, mask=keep, scale=0.7)
    want = masked(name, 0.7)(twin, keep, dim)
    kt.same(y, want)
    g = kt.make(2, 3, 5, 40, device=device)
    (dx,) = torch.autograd.grad(y, [x], g)
    (twin_dx,) = torch.autograd.grad(want, [twin], g)
    kt.same(dx, twin_dx)


@kt.devices
@kt.dtypes
@functions
@pytest.mark.parametrize("shape", [(2, 1, 5, 40), (1, 40), (3, 1, 40)])
def test_added_masks(shape: tuple[int, ...], name: str, dtype: torch.dtype, device: str) -> None:
    torch.manual_seed(0)
    x = kt.make(2, 3, 5, 40, dtype=dtype, device=device)
    mask = kt.make(*shape, dtype=dtype, device=device)
    kt.no_worse_than_eager(
        lambda t, m: FUNCTIONS[name][0](t, -1, mask=m, scale=0.25),
        masked(name, 0.25),
        [x, mask],
    )


@kt.devices
def test_masks_of_another_type(device: str) -> None:
    x = kt.make(3, 40, dtype=torch.bfloat16, device=device)
    mask = torch.where(torch.rand(3, 40) > 0.3, 0.0, -math.inf).to(device)
    kt.same(softmax(x, 1, mask=mask), masked("softmax")(x, mask), 2e-2, 1e-3)
    wide = softmax(x, 1, mask=mask.double())
    kt.same(wide, masked("softmax")(x, mask), 2e-2, 1e-3)


@kt.devices
@functions
def test_type_of_the_result(name: str, device: str) -> None:
    ours, eager = FUNCTIONS[name]
    for given_type, wanted in (
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float16),
        (torch.float16, torch.bfloat16),
        (torch.float32, torch.float64),
    ):
        x = kt.make(3, 40, dtype=given_type, device=device).requires_grad_()
        y = ours(x, 1, wanted)
        want = eager(x, 1, wanted)
        tolerance = 4 * kt.ROUNDOFF[wanted] if wanted is not torch.float64 else 1e-12
        assert y.dtype is wanted
        kt.same(y, want, tolerance, tolerance)
        g = kt.make(3, 40, dtype=wanted, device=device)
        (dx,) = torch.autograd.grad(y, [x], g)
        (want_dx,) = torch.autograd.grad(want, [x], g)
        kt.same(dx, want_dx, 2e-2, 2e-2)
    whole = torch.arange(6, device=device).view(2, 3)
    kt.same(ours(whole, 1, torch.float32), eager(whole, 1, torch.float32))


@kt.devices
@functions
def test_nan_and_infinity_behave_as_in_eager(name: str, device: str) -> None:
    nan, inf = math.nan, math.inf
    x = torch.tensor(
        [
            [0, nan, 1],
            [0, inf, 1],
            [inf, inf, 0],
            [-inf, 0, 1],
            [-inf, -inf, -inf],
            [1e30, 0, -1e30],
        ],
        device=device,
    )
    ours, eager = FUNCTIONS[name]
    kt.same(ours(x, 1), eager(x, 1))
    kt.same(ours(x.T, 0), eager(x.T, 0))
    long = torch.cat([x, torch.zeros(6, 125, device=device)], 1)
    kt.same(ours(long, 1), eager(long, 1))
    if launched(device):
        looped = run.forward(long, 1, x.dtype, None, 1.0, name != "softmax", Config(1, 32, 1))
        kt.same(looped, eager(long, 1))


def launched(device: str) -> bool:
    """Whether kernels run here, interpreted or not."""
    return device == "cuda" or kt.INTERPRETED


@kt.devices
def test_two_runs_are_bit_equal(device: str) -> None:
    x = kt.make(3, 33000, device=device)
    y = softmax(x, 1)
    kt.bit_equal(lambda: [softmax(x, 1), op.softmax_backward_op(x, y, 1, torch.float32, None, 1.0)])


@kt.devices
@functions
def test_operators_are_registered_completely(name: str, device: str) -> None:
    forward = {"softmax": op.softmax_op, "log_softmax": op.log_softmax_op}[name].overload
    x = kt.make(3, 5, device=device)
    mask = torch.rand(3, 5, device=device) > 0.2
    mask[:, 0] = True
    torch.library.opcheck(forward, (x.clone().requires_grad_(), 1))
    torch.library.opcheck(forward, (x.bfloat16(), 0, torch.float32, mask, 0.5))
    y = FUNCTIONS[name][0](x, 1)
    torch.library.opcheck(BACKWARDS[name].overload, (x, y, 1, torch.float32))
    torch.library.opcheck(BACKWARDS[name].overload, (x, y, -1, torch.bfloat16, mask, 0.5))


@functions
def test_gradients_are_right(name: str) -> None:
    x = kt.make(3, 4, dtype=torch.float64).requires_grad_()
    mask = kt.make(1, 4, dtype=torch.float64).requires_grad_()
    keep = torch.tensor([True, True, False, True])
    ours = FUNCTIONS[name][0]
    kt.gradcheck(lambda t: ours(t, 0), x)
    kt.gradcheck(lambda t, m: ours(t, -1, mask=m, scale=0.5), x, mask)
    if name == "softmax":
        kt.gradcheck(lambda t: ours(t, -1, mask=keep, scale=2.0), x)


@functions
def test_function_transforms(name: str) -> None:
    x = kt.make(3, 4)
    ours, eager = FUNCTIONS[name]
    found = torch.func.grad(lambda t: ours(t, 1).square().sum())(x)
    kt.same(found, torch.func.grad(lambda t: eager(t, 1).square().sum())(x))


@kt.devices
@pytest.mark.parametrize("dynamic", [False, True])
def test_torch_compile_calls_the_operator(dynamic: bool, device: str) -> None:
    x = kt.make(3, 4, device=device).requires_grad_()
    torch._dynamo.reset()
    function = torch.compile(
        lambda t: softmax(t, 1, scale=0.5), backend="aot_eager", fullgraph=True, dynamic=dynamic
    )
    y = function(x)
    (dx,) = torch.autograd.grad(y.square().sum(), [x])
    want = torch.softmax(x * 0.5, 1)
    kt.same(y, want)
    kt.same(dx, torch.autograd.grad(want.square().sum(), [x])[0])


@kt.devices
def test_autocast_gives_float32_as_eager(device: str) -> None:
    x = kt.make(3, 40, dtype=torch.bfloat16, device=device).requires_grad_()
    with torch.autocast(device, torch.bfloat16):
        y = softmax(x, 1)
        kept = softmax(x, 1, torch.bfloat16)
    assert y.dtype is torch.float32 and kept.dtype is torch.bfloat16
    kt.same(y, torch.softmax(x.float(), 1))
    y.sum().backward()
    assert x.grad is not None and x.grad.dtype is torch.bfloat16


def test_modules_stand_in_for_those_of_torch() -> None:
    x = kt.make(3, 4)
    for module, twin in (
        (Softmax(1), torch.nn.Softmax(1)),
        (LogSoftmax(0), torch.nn.LogSoftmax(0)),
    ):
        assert isinstance(module, type(twin))
        kt.same(module(x), twin(x))
        assert repr(module) == repr(twin)


def test_errors_name_the_argument() -> None:
    x: Any = torch.ones(2, 3)
    with pytest.raises(ArgumentTypeError, match="`input` is of type list; it must be a tensor"):
        softmax([1.0], 0)  # type: ignore[arg-type]
    with pytest.raises(DtypeError, match="`input` has dtype torch.int64; accepted are float16"):
        softmax(torch.ones(3, dtype=torch.int64), 0)
    with pytest.raises(DtypeError, match="`dtype` has dtype torch.int32; accepted are float16"):
        log_softmax(x, 0, torch.int32)
    with pytest.raises(ArgumentTypeError, match="`dtype` is of type str"):
        softmax(x, 0, "float32")  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="`dim` is of type float; it must be an int"):
        softmax(x, 1.0)  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="`scale` is of type str; it must be a number"):
        softmax(x, 1, scale="1")  # type: ignore[arg-type]
    with pytest.raises(DimensionError, match=r"`dim` is 2; for this input it must be from -2 to 1"):
        softmax(x, 2)
    with pytest.raises(IndexError):
        log_softmax(x, -3)
    with pytest.raises(ShapeError, match=r"`mask` has shape \(2,\); it must be broadcastable"):
        softmax(x, 1, mask=torch.ones(2, dtype=torch.bool))
    with pytest.raises(DtypeError, match=r"`mask` has dtype torch.int64; accepted are bool"):
        softmax(x, 1, mask=torch.ones(3, dtype=torch.int64))
    with pytest.raises(DeviceError, match="`mask` is on meta; it must be on cpu"):
        softmax(x, 1, mask=torch.ones(3, dtype=torch.bool, device="meta"))


@kt.large
@pytest.mark.parametrize(("shape", "dim"), [((2**15 + 2, 2**16), 1), ((2**16 + 4, 2**15), 0)])
def test_more_than_2_to_the_31_elements(shape: tuple[int, int], dim: int) -> None:
    x = torch.zeros(shape, dtype=torch.bfloat16, device="cuda")
    x.select(1 - dim, -1).normal_()
    y = softmax(x, dim)
    last = x.select(1 - dim, -1)
    kt.same(y.select(1 - dim, -1), torch.softmax(last, 0), 1e-2, 1e-6)
    kt.same(y.select(1 - dim, 0), torch.full_like(last, 1 / shape[dim]), 1e-2, 1e-6)
    dx = op.softmax_backward_op(x, y, dim, torch.bfloat16, None, 1.0)
    want = torch._softmax_backward_data(last[None], torch.softmax(last, 0)[None], 1, torch.bfloat16)
    kt.same(dx.select(1 - dim, -1), want[0], 2e-2, 1e-6)


@kt.large
def test_one_line_of_more_than_2_to_the_31_elements() -> None:
    x = torch.full((2**31 + 100,), -100.0, dtype=torch.bfloat16, device="cuda")
    x[-1] = x[0] = 0.0
    y = softmax(x, 0)
    assert float(y[-1]) == float(y[0]) == 0.5 and float(y[2**31]) == 0
    dx = op.softmax_backward_op(y, y, 0, torch.bfloat16, None, 1.0)
    assert abs(float(dx[-1])) < 1e-6


@kt.needs_compiler
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_resources(dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    for case, shape, dim in (
        ("rows of 512", (1024, 512), 1),
        ("rows of 4096", (1024, 4096), 1),
        ("long rows", (1024, 128256), 1),
        ("few rows", (64, 131072), 1),
        ("columns", (64, 128, 1024), 1),
        ("long columns", (64, 4096, 1024), 1),
    ):
        x = torch.empty(shape, dtype=dtype)  # never touched
        compiled = kt.check_resources(
            "softmax",
            f"{case} {name}",
            lambda x=x, dim=dim: run.forward(x, dim, dtype, None, 1.0, False),
        )
        assert ".v4.b32" in compiled[0].asm["ptx"], "16 bytes a thread"
        kt.check_resources(
            "softmax",
            f"{case} {name}",
            lambda x=x, dim=dim: run.backward(x, x, dim, dtype, None, 1.0, False),
        )


@kt.needs_compiler
@pytest.mark.parametrize("kernel", ["forward", "backward"])
@pytest.mark.parametrize("width", [1024, 32768, 65536])
def test_no_candidate_spills(width: int, kernel: str) -> None:
    dtype = torch.bfloat16
    x = torch.empty(512, width, dtype=dtype)
    for config in candidates(Case(kernel, "rows", width, False, dtype)):
        with kt.compiled_for_sm90() as kernels:
            if kernel == "forward":
                run.forward(x, 1, dtype, None, 1.0, True, config)
            else:
                run.backward(x, x, 1, dtype, None, 1.0, True, config)
        assert kt._usage(kernels[0][1])["stack"] == 0, config


def test_stored_configurations_are_checked() -> None:
    case = Case("forward", "rows", 4096, False, torch.bfloat16)
    assert table.accepts(case, Config(1, 4096, 8))
    assert not table.accepts(case, Config(3, 4096, 8))
    assert not table.accepts(case, Config(1, 4096, 64))
