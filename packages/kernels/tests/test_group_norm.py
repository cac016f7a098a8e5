"""``group_norm`` against eager and float64, on every path that exists here."""

from __future__ import annotations

import math
from collections.abc import Callable

import kernel_testing as kt
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional
from torchsmith_kernels import (
    ArgumentTypeError,
    ArgumentValueError,
    DtypeError,
    GroupNorm,
    ShapeError,
    group_norm,
)
from torchsmith_kernels._src.group_norm import op, reference, run
from torchsmith_kernels._src.group_norm.config import LARGEST, Case, Config, candidates

EPS = 1e-5


def with_groups(function: Callable[..., Tensor], groups: int) -> Callable[..., Tensor]:
    return lambda x, weight, bias: function(x, groups, weight, bias)


def formula(x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    return reference.forward(x, groups, weight, bias, EPS)[0]


def affine(channels: int, **options: object) -> list[Tensor]:
    return [kt.make(channels, **options), kt.make(channels, **options)]


#: Shape and groups of each way through the kernels, from small groups to ones in pieces.
SHAPES = {
    "several a program": ((5, 12, 7), 4),
    "two dimensions": ((9, 12), 3),
    "one a program": ((2, 6, 5, 7, 6), 2),
    "one channel a group": ((2, 5, 6, 4), 5),
    "one group": ((3, 10, 8, 8), 1),
    "loop": ((2, 24, 53, 31), 4),
    "shared": ((1, 6, 170, 100), 1),
}


@kt.devices
@kt.dtypes
@pytest.mark.parametrize("name", list(SHAPES))
def test_results_and_gradients(name: str, dtype: torch.dtype, device: str) -> None:
    torch.manual_seed(0)
    shape, groups = SHAPES[name]
    x = kt.make(*shape, dtype=dtype, device=device, scale=2) + 1
    tensors = [x, *affine(shape[1], dtype=dtype, device=device)]
    ours, eager = (with_groups(f, groups) for f in (group_norm, functional.group_norm))
    kt.no_worse_than_eager(ours, eager, tensors)


@kt.devices
@kt.dtypes
@pytest.mark.parametrize("shape", [(2, 12, 9, 5), (1, 40, 3, 2, 4), (2, 300, 3, 3)])
def test_channels_last(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
    torch.manual_seed(0)
    layout = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    x = kt.make(*shape, dtype=dtype, device=device).contiguous(memory_format=layout)
    weight, bias = affine(shape[1], dtype=dtype, device=device)
    ours, eager = (with_groups(f, 4) for f in (group_norm, functional.group_norm))
    kt.no_worse_than_eager(ours, eager, [x, weight, bias])
    y = ours(x.requires_grad_(), weight, bias)
    assert y.is_contiguous(memory_format=layout)
    (dx,) = torch.autograd.grad(y.sum(), x)
    assert dx.is_contiguous(memory_format=layout)


@kt.devices
@pytest.mark.parametrize("layout", ["contiguous", "last"])
@pytest.mark.parametrize("pixels", [(6, 6), (150, 120)])
def test_a_large_mean_costs_no_precision(pixels: tuple[int, int], layout: str, device: str) -> None:
    torch.manual_seed(0)
    x = kt.make(1, 2, *pixels, device=device) + 1000
    if layout == "last":
        x = x.contiguous(memory_format=torch.channels_last)
    want = functional.group_norm(x.double(), 1)
    # The input's own rounding is 2**-15; a variance from squares would be off by far more.
    assert kt.error(group_norm(x, 1), want) < 1e-4


@pytest.mark.skipif(not kt.INTERPRETED, reason="stands in for a GPU's approximate instruction")
@pytest.mark.parametrize("name", ["one a program", "loop", "shared"])
def test_an_approximate_root_costs_no_precision(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def create_rsqrt(builder: object, arg: TensorHandle) -> TensorHandle:
        return TensorHandle(np.float32(1 + 1e-6) / np.sqrt(arg.data), arg.dtype.scalar)

    monkeypatch.setattr(InterpreterBuilder, "create_rsqrt", create_rsqrt)
    shape, groups = SHAPES[name]
    x = kt.make(*shape)
    want = functional.group_norm(x.double(), groups)
    assert kt.error(group_norm(x, groups), want) < 2e-7


@kt.devices
@pytest.mark.parametrize("given_weight", [False, True])
@pytest.mark.parametrize("given_bias", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_without_weight_or_bias(
    given_weight: bool, given_bias: bool, last: bool, device: str
) -> None:
    x = kt.make(2, 6, 4, 3, device=device)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    vectors = affine(6, device=device)
    keep = [v for v, wanted in zip(vectors, (given_weight, given_bias), strict=True) if wanted]

    def call(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def apply(x: Tensor, *rest: Tensor) -> Tensor:
            left = list(rest)
            weight = left.pop(0) if given_weight else None
            return function(x, 3, weight, left.pop(0) if given_bias else None)

        return apply

    # Eager raises for channels last with a bias but no weight.
    kt.no_worse_than_eager(call(group_norm), call(formula), [x, *keep])


@kt.devices
@settings(max_examples=20, deadline=None)
@given(
    batch=st.integers(0, 3),
    groups=st.integers(1, 4),
    per_group=st.integers(0, 5),
    pixels=st.lists(st.integers(0, 6), max_size=3),
)
def test_any_shape(batch: int, groups: int, per_group: int, pixels: list[int], device: str) -> None:
    x = kt.make(batch, groups * per_group, *pixels, device=device).requires_grad_()
    weight, bias = (t.requires_grad_() for t in affine(groups * per_group, device=device))
    y = group_norm(x, groups, weight, bias)
    assert y.shape == x.shape
    upstream = kt.make(*y.shape, device=device)
    got = torch.autograd.grad(y, [x, weight, bias], upstream)
    if x.numel() == 0:
        assert not any(g.any() for g in got)
        return
    want_y = reference.forward(x, groups, weight, bias, EPS)[0]
    kt.same(y, want_y, rtol=1e-4, atol=1e-4)
    want = torch.autograd.grad(want_y, [x, weight, bias], upstream)
    for mine, theirs in zip(got, want, strict=True):
        kt.same(mine, theirs, rtol=2e-2, atol=2e-2)  # groups of one have a deviation of 0.003


LAYOUTS = {
    "transposed": lambda t: t.transpose(2, 3),
    "sliced": lambda t: t[:, :, ::2],
    "unaligned": lambda t: t[..., 1:],
    "expanded": lambda t: t[:1].expand(3, -1, -1, -1),
    "last, sliced": lambda t: t.contiguous(memory_format=torch.channels_last)[:, :, 1:],
}


@kt.devices
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_other_layouts_give_contiguous_results(layout: str, device: str) -> None:
    x = LAYOUTS[layout](kt.make(2, 6, 5, 8, device=device))
    y = group_norm(x, 3)
    kt.same(y, functional.group_norm(x, 3))
    assert y.is_contiguous()
    upstream = LAYOUTS[layout](kt.make(2, 6, 5, 8, device=device))
    leaf = x.detach().clone().requires_grad_()
    (got,) = torch.autograd.grad(group_norm(leaf, 3), leaf, upstream)
    (want,) = torch.autograd.grad(functional.group_norm(leaf, 3), leaf, upstream)
    kt.same(got, want, rtol=1e-4, atol=1e-5)


@kt.devices
def test_strided_weight_and_bias(device: str) -> None:
    x = kt.make(2, 6, 5, device=device).requires_grad_()
    weight, bias = kt.make(6, 2, device=device).requires_grad_().unbind(1)
    got, want = (f(x, 2, weight, bias) for f in (group_norm, formula))
    kt.same(got, want)
    ours, theirs = (
        torch.autograd.grad(t.sin().sum(), [x, weight, bias], retain_graph=True)
        for t in (got, want)
    )
    for mine, eager in zip(ours, theirs, strict=True):
        kt.same(mine, eager, rtol=1e-4, atol=1e-5)


@kt.devices
@pytest.mark.parametrize("shape", [(2, 4, 6), (1, 2, 170, 101)])
def test_nan_and_infinity_stay_in_their_group(shape: tuple[int, ...], device: str) -> None:
    for value in (math.nan, math.inf):
        x = kt.make(*shape, device=device)
        x[0, 0, 1] = value
        y = group_norm(x, 2)
        assert y[0, : shape[1] // 2].isnan().all() and y[0, shape[1] // 2 :].isfinite().all()


@kt.devices
@pytest.mark.parametrize("name", list(SHAPES))
def test_two_runs_are_bit_equal(name: str, device: str) -> None:
    shape, groups = SHAPES[name]
    x = kt.make(*shape, device=device)
    weight, bias = affine(shape[1], device=device)

    def call() -> tuple[Tensor, ...]:
        y, mean, rstd = op.op(x, groups, weight, bias, EPS)
        return y, *op.backward_op(y, x, mean, rstd, weight, EPS, True)

    kt.bit_equal(call)


@kt.devices
@kt.needs_kernels
def test_every_configuration_gives_the_same(device: str) -> None:
    x = kt.make(3, 10, 7, 12, device=device)
    weight, bias = affine(10, device=device)
    want = reference.forward(x, 2, weight, bias, EPS)
    grads = reference.backward(x, x, weight, 2, EPS)
    for config in (Config(128, 1), Config(512, 2), Config(1024, 4), Config(4096, 4)):
        for layout in (torch.contiguous_format, torch.channels_last):
            z = x.contiguous(memory_format=layout)
            got = run.forward(z, 2, weight, bias, EPS, config)
            for mine, theirs in zip(got, want, strict=True):
                kt.same(mine, theirs)
            got = run.backward(z, z, want[1], want[2], weight, True, config)
            for mine, theirs in zip(got, grads, strict=True):
                kt.same(mine, theirs, rtol=1e-4, atol=1e-4)


@kt.devices
def test_sums_over_many_samples(device: str) -> None:
    x = kt.make(700, 6, device=device)
    y, mean, rstd = op.op(x, 2, None, None, EPS)
    _, dw, db = op.backward_op(x, x, mean, rstd, None, EPS, True)
    kt.same(dw, (x * y).sum(0), rtol=1e-4, atol=1e-3)
    kt.same(db, x.sum(0), rtol=1e-4, atol=1e-3)


@kt.devices
def test_operators_are_registered_completely(device: str) -> None:
    x = kt.make(2, 6, 5, device=device)
    weight, bias = affine(6, device=device)
    given = [t.requires_grad_() for t in (x, weight, bias)]
    torch.library.opcheck(op.op.overload, (given[0], 3, given[1], given[2], EPS))
    x, weight = x.detach(), weight.detach()
    _, mean, rstd = op.op(x, 3, weight, None, EPS)
    torch.library.opcheck(op.backward_op.overload, (x, x, mean, rstd, weight, EPS, True))


def test_gradients_are_right() -> None:
    x, weight, bias = (
        kt.make(*shape, dtype=torch.float64).requires_grad_() for shape in ((2, 4, 3), (4,), (4,))
    )
    kt.gradcheck(lambda x, w, b: group_norm(x, 2, w, b), x, weight, bias)


def test_function_transforms() -> None:
    x, weight = kt.make(2, 4, 3), kt.make(4)
    found, want = (
        torch.func.grad(lambda t: function(t, 2, weight).square().sum())(x)  # noqa: B023
        for function in (group_norm, functional.group_norm)
    )
    kt.same(found, want, rtol=1e-4, atol=1e-5)


@kt.devices
def test_torch_compile_calls_the_operator(device: str) -> None:
    module = GroupNorm(2, 4, device=device)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True, dynamic=True)
    x = kt.make(3, 4, 6, device=device).requires_grad_()
    got, want = compiled(x), torch.nn.GroupNorm.forward(module, x)
    kt.same(got, want)
    leaves = [x, module.weight, module.bias]
    ours, theirs = (torch.autograd.grad(t.sin().sum(), leaves) for t in (got, want))
    for mine, eager in zip(ours, theirs, strict=True):
        kt.same(mine, eager, rtol=1e-4, atol=1e-5)


@kt.devices
def test_autocast_computes_in_float32(device: str) -> None:
    module = GroupNorm(2, 4, device=device)
    x = kt.make(3, 4, 6, dtype=torch.bfloat16, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert module(x).dtype is torch.float32


def test_module_is_torchs() -> None:
    ours, theirs = GroupNorm(2, 4, eps=1e-3), torch.nn.GroupNorm(2, 4, eps=1e-3)
    torch.nn.init.normal_(theirs.weight)
    ours.load_state_dict(theirs.state_dict())
    x = kt.make(3, 4, 6)
    kt.same(ours(x), theirs(x))


def test_errors_name_the_argument() -> None:
    x = torch.ones(2, 4, 3)
    with pytest.raises(ArgumentTypeError, match="`input` is of type list; it must be a tensor"):
        group_norm([1.0], 2)
    with pytest.raises(DtypeError, match="`input` has dtype torch.int64"):
        group_norm(x.long(), 2)
    with pytest.raises(ShapeError, match="`input` has shape .* at least 2 dimensions"):
        group_norm(x[0, 0], 1)
    with pytest.raises(ArgumentValueError, match="`num_groups` is 3; it must divide"):
        group_norm(x, 3)
    with pytest.raises(ArgumentTypeError, match="`num_groups` is of type float"):
        group_norm(x, 2.0)
    with pytest.raises(ShapeError, match="`weight` has shape .* one value per channel"):
        group_norm(x, 2, torch.ones(3))
    with pytest.raises(ArgumentTypeError, match="`eps` is of type str"):
        group_norm(x, 2, eps="small")


@kt.large
@pytest.mark.parametrize("shape", [(2**15 + 1, 64, 32, 32), (1, 33, 2**13, 2**13)])
def test_more_than_2_to_the_31_elements(shape: tuple[int, ...]) -> None:
    x = torch.ones(shape, dtype=torch.bfloat16, device="cuda")
    x[-1, -1, :, ::2] = 3  # mean 2, deviation 1
    groups = shape[1]
    y, mean, rstd = op.op(x, groups, None, None, EPS)
    assert torch.all(y[-1, -1, :, ::2] == 1) and torch.all(y[-1, -1, :, 1::2] == -1)
    assert not y[-1, :-1].any() and not y[0, 0].any()
    dx, _, db = op.backward_op(y, x, mean, rstd, None, EPS, True)
    assert dx[-1, -1].abs().max() < 1e-2
    assert torch.all(db == 0)


def _large(last: bool, pixels: int, dtype: torch.dtype) -> Tensor:
    x = torch.empty(1, 64, pixels, pixels, dtype=dtype)
    return x.contiguous(memory_format=torch.channels_last) if last else x


#: Pixels per side, groups, and layout.
RESOURCES = {
    "registers": (16, 8, False),
    "loop": (256, 64, False),
    "shared": (256, 4, False),
    "last": (64, 8, True),
}


@kt.needs_compiler
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", list(RESOURCES))
def test_resources(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels, groups, last = RESOURCES[name]
    if name == "loop":
        monkeypatch.setattr(run, "_shared", lambda *args: False)
    x = _large(last, pixels, dtype)
    vector = torch.empty(64, dtype=dtype)
    moments = torch.empty(1, groups)
    case = f"{name} {str(dtype).removeprefix('torch.')}"
    kernels = kt.check_resources(
        "group_norm",
        f"{case} forward",
        lambda: run.forward(x, groups, vector, vector, EPS),
    )
    assert "ld.global.v4.b32" in kernels[-1].asm["ptx"], "16 bytes a thread"
    kt.check_resources(
        "group_norm",
        f"{case} backward",
        lambda: run.backward(x, x, moments, moments, vector, True),
    )


@kt.needs_compiler
@pytest.mark.parametrize("size", [2**11, 2**14, LARGEST])
@pytest.mark.parametrize("kernel", ["forward", "backward"])
def test_no_candidate_spills(kernel: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_shared", lambda *args: False)
    x = torch.empty(1, 64, size // 8, dtype=torch.bfloat16)
    vector, moments = torch.empty(64, dtype=torch.bfloat16), torch.empty(1, 8)
    for config in candidates(Case(kernel, size, torch.bfloat16)):
        with kt.compiled_for_sm90() as kernels:
            if kernel == "forward":
                run.forward(x, 8, vector, vector, EPS, config)
            else:
                run.backward(x, x, moments, moments, vector, False, config)
        for name, compiled in kernels:
            assert kt._usage(compiled)["stack"] == 0, (name, config)


@kt.needs_compiler
@pytest.mark.parametrize("last", [False, True])
def test_no_candidate_of_shared_groups_spills(last: bool) -> None:
    x = _large(last, 256, torch.bfloat16)
    vector, moments = torch.empty(64, dtype=torch.bfloat16), torch.empty(1, 2)
    for config in candidates(Case("sums", 0, torch.bfloat16)):
        with kt.compiled_for_sm90() as kernels:
            run.forward(x, 2, vector, vector, EPS, config)
            run.backward(x, x, moments, moments, vector, False, config)
        for name, compiled in kernels:
            assert kt._usage(compiled)["stack"] == 0, (name, config)
