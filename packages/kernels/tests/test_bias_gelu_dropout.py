"""``bias_gelu_dropout`` against eager, with eager's mask replaced by that of the stream."""

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
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torchsmith_kernels import (
    ArgumentTypeError,
    ArgumentValueError,
    DeviceError,
    DtypeError,
    KernelsError,
    ShapeError,
    bias_gelu_dropout,
)
from torchsmith_kernels._src.bias_gelu_dropout import op, reference, run
from torchsmith_kernels._src.bias_gelu_dropout.config import Case, accepts, candidates
from torchsmith_kernels._src.pointwise import random

STREAM: random.Stream = (None, 77, 2**33 + 4)
approximations = pytest.mark.parametrize("approximate", ["none", "tanh"])


def ours(p: float, approximate: str = "none") -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, b: op.op(x, b, p, *STREAM, approximate)


def eager(p: float, approximate: str = "none") -> Callable[[Tensor, Tensor], Tensor]:
    def function(x: Tensor, b: Tensor) -> Tensor:
        y = F.gelu(x + b, approximate=approximate)
        if p == 0:
            return y
        factors = random.factors(x.numel(), p, STREAM, x.device, torch.float64)
        return y * factors.view(x.shape).to(x.dtype)

    return function


@kt.devices
@kt.dtypes
@approximations
@pytest.mark.parametrize("p", [0.0, 0.25])
@pytest.mark.parametrize("shape", [(7,), (3, 96), (2, 5, 65), (70, 40)])
def test_results_and_gradients(
    shape: tuple[int, ...], p: float, approximate: str, dtype: torch.dtype, device: str
) -> None:
    torch.manual_seed(0)
    tensors = [kt.make(*s, dtype=dtype, device=device) for s in (shape, shape[-1:])]
    kt.no_worse_than_eager(ours(p, approximate), eager(p, approximate), tensors)


@kt.devices
def test_more_rows_than_one_round_of_programs(device: str) -> None:
    torch.manual_seed(0)
    rows = 20000 if device == "cuda" else 700
    x, b = kt.make(rows, 24, device=device), kt.make(24, device=device)
    kt.no_worse_than_eager(ours(0.5), eager(0.5), [x, b])


@kt.devices
@settings(max_examples=10, deadline=None)
@given(shape=st.lists(st.integers(0, 9), min_size=1, max_size=4))
def test_any_shape(shape: list[int], device: str) -> None:
    x = kt.make(*shape, device=device).requires_grad_()
    b = kt.make(shape[-1], device=device).requires_grad_()
    y, want = ours(0.5)(x, b), eager(0.5)(x, b)
    kt.same(y, want)
    weight = torch.ones_like(y)
    for mine, theirs in zip(
        torch.autograd.grad(y, (x, b), weight), torch.autograd.grad(want, (x, b), weight)
    ):
        kt.same(mine, theirs)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda t: t.transpose(0, 1),
    "every other": lambda t: t[..., ::2],
    "unaligned": lambda t: t[..., 1:],
    "expanded": lambda t: t[:1].expand(5, -1, -1),
    "half": lambda t: t.chunk(2, -1)[1],
}


@kt.devices
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_layouts(layout: str, device: str) -> None:
    x = LAYOUTS[layout](kt.make(4, 6, 48, device=device))
    b = kt.make(2 * x.shape[-1], device=device)[::2]
    assert ours(0.3)(x, b).stride() == (x + b).stride()
    kt.no_worse_than_eager(ours(0.3), eager(0.3), [x, b])
    leaf = x.detach().requires_grad_()
    y = ours(0.3)(leaf, b)
    kt.same(*(torch.autograd.grad(f(leaf, b).sum(), leaf)[0] for f in (ours(0.3), eager(0.3))))
    grad = torch.ones_like(y, memory_format=torch.contiguous_format)
    kt.same(
        torch.autograd.grad(y, leaf, grad)[0],
        torch.autograd.grad(eager(0.3)(leaf, b), leaf, grad)[0],
    )


@kt.devices
@approximations
def test_nan_and_infinity_behave_as_in_eager(approximate: str, device: str) -> None:
    values = torch.tensor([math.nan, -math.inf, -0.0, 1e4, -1e4, math.inf], device=device)
    if device == "cpu":  # gelu(inf) is NaN there, for some types and sizes
        values = values[:-1]
    x = values[:, None].expand(-1, 16)
    for b in (torch.zeros(16, device=device), torch.full((16,), -math.inf, device=device)):
        kt.same(ours(0.5, approximate)(x, b), eager(0.5, approximate)(x, b))


@kt.devices
def test_a_bias_that_is_not_finite_spoils_its_column_only(device: str) -> None:
    x = kt.make(5, 16, device=device)
    b = torch.zeros(16, device=device)
    b[3] = math.nan
    grad = torch.ones_like(x)
    dx, dbias = op.backward_op(grad, x, b, 0.5, *STREAM, "none")
    assert dbias.isnan().nonzero().tolist() == [[3]]
    assert dx.isnan().any(0).nonzero().tolist() == [[3]]


@kt.devices
def test_two_runs_are_bit_equal(device: str) -> None:
    rows = 5000 if device == "cuda" else 50
    x = kt.make(rows, 72, dtype=torch.bfloat16, device=device).requires_grad_()
    b = kt.make(72, dtype=torch.bfloat16, device=device).requires_grad_()
    kt.bit_equal(lambda: torch.autograd.grad(ours(0.5)(x, b).sum(), (x, b)))


@kt.devices
def test_public_function_draws_a_stream(device: str) -> None:
    x, b = kt.make(40, 64, device=device).requires_grad_(), kt.make(64, device=device)
    torch.manual_seed(1)
    first, second = bias_gelu_dropout(x, b, 0.5), bias_gelu_dropout(x, b, 0.5)
    torch.manual_seed(1)
    assert torch.equal(first, bias_gelu_dropout(x, b, 0.5)) and not torch.equal(first, second)
    assert 0.4 < float((first == 0).double().mean()) < 0.6
    kept = first != 0
    kt.same(first[kept], 2 * F.gelu(x + b)[kept])
    (grad,) = torch.autograd.grad(first.sum(), x)
    assert torch.equal(grad != 0, kept)
    for y in (bias_gelu_dropout(x, b, 0.5, training=False), bias_gelu_dropout(x, b, 0)):
        kt.same(y, F.gelu(x + b))
    assert not bias_gelu_dropout(x, b, 1).any()


@kt.devices
def test_activation_checkpointing_recomputes_the_same_mask(device: str) -> None:
    x = kt.make(20, 64, device=device).requires_grad_()
    b = torch.zeros(64, device=device)
    y = checkpoint(lambda t: bias_gelu_dropout(t.sin(), b), x, use_reentrant=False)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad != 0, y != 0)


@kt.devices
@approximations
def test_torch_compile(approximate: str, device: str) -> None:
    def function(x: Tensor, b: Tensor) -> Tensor:
        return bias_gelu_dropout(x, b, 0.5, approximate=approximate)

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    x, b = kt.make(30, 64, device=device).requires_grad_(), kt.make(64, device=device)
    torch.manual_seed(2)
    first, second = compiled(x, b), compiled(x, b)
    torch.manual_seed(2)
    assert torch.equal(first, compiled(x, b)) and not torch.equal(first, second)
    (grad,) = torch.autograd.grad(first.sum(), x)
    assert torch.equal(grad != 0, first != 0)


@kt.on_gpu
def test_replays_of_a_cuda_graph_differ() -> None:
    x = torch.ones(64, 256, device="cuda", requires_grad=True)
    b = torch.ones(256, device="cuda", requires_grad=True)
    torch.autograd.grad(bias_gelu_dropout(x, b).sum(), (x, b))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = bias_gelu_dropout(x, b)
        dx, db = torch.autograd.grad(y.sum(), (x, b))
    graph.replay()
    first = y.detach().clone()
    assert torch.equal(dx != 0, y != 0)
    kt.same(db, dx.sum(0), rtol=1e-4)
    graph.replay()
    assert not torch.equal(first, y)


@kt.devices
def test_operators_are_registered_completely(device: str) -> None:
    x, b, grad = (kt.make(*s, device=device) for s in ((3, 8), (8,), (3, 8)))
    torch.library.opcheck(op.backward_op.overload, (grad, x, b, 0.5, None, 1, 4, "none"))
    x.requires_grad_(), b.requires_grad_()
    torch.library.opcheck(op.op.overload, (x, b, 0.5, None, 1, 4, "tanh"))
    seed = torch.tensor([1, 4], device=device)
    torch.library.opcheck(op.op.overload, (x, b, 0.5, seed, 0, 0, "none"))


@approximations
def test_gradients_are_right(approximate: str) -> None:
    x, b = (kt.make(*s, dtype=torch.float64).requires_grad_() for s in ((2, 3), (3,)))
    kt.gradcheck(ours(0.5, approximate), x, b)


def test_function_transforms() -> None:
    x, b = kt.make(3, 16), kt.make(16)
    found = torch.func.grad(lambda t: ours(0.5)(t, b).sum())(x)
    kt.same(found, torch.func.grad(lambda t: eager(0.5)(t, b).sum())(x))


WRONG: list[tuple[tuple[Any, ...], type[KernelsError], str]] = [
    (([1.0], torch.ones(1)), ArgumentTypeError, "`input` is of type list; it must be a tensor"),
    ((torch.ones(1), 1.0), ArgumentTypeError, "`bias` is of type float; it must be a tensor"),
    ((torch.ones(1).int(),) * 2, DtypeError, "`input` has dtype torch.int32; accepted are float16"),
    ((torch.ones(1), torch.ones(1).half()), DtypeError, "`bias` has dtype .*; accepted are float3"),
    ((torch.ones(2, 3), torch.ones(2)), ShapeError, r"`bias` has shape \(2,\); .*last .* \(3,\)"),
    ((torch.ones(()), torch.ones(1)), ShapeError, r"`input` has shape \(\); .*one dimension"),
    ((torch.ones(2), torch.ones(2, device="meta")), DeviceError, "`bias` is on meta; .* on cpu"),
    ((torch.ones(1), torch.ones(1), 2), ArgumentValueError, "`p` is 2; .* from 0 to 1"),
    ((torch.ones(1), torch.ones(1), "a"), ArgumentTypeError, "`p` is of type str"),
    (
        (torch.ones(1), torch.ones(1), 0.5, None),
        ArgumentTypeError,
        "`training` is of type NoneType",
    ),
    ((torch.ones(1), torch.ones(1), 0.5, True, "fast"), ArgumentTypeError, "`approximate` is 'fas"),
    (
        (torch.ones(1), torch.ones(1), 0.5, True, ["none"]),
        ArgumentTypeError,
        "`approximate` is \\[",
    ),
]


@pytest.mark.parametrize("args, error, message", WRONG)
def test_errors_name_the_argument(
    args: tuple[Any, ...], error: type[KernelsError], message: str
) -> None:
    with pytest.raises(error, match=message):
        bias_gelu_dropout(*args)


@kt.large
def test_more_than_2_to_the_31_elements() -> None:
    rows, width = 2**19 + 5, 4096 + 8
    x = torch.ones(rows, width, dtype=torch.bfloat16, device="cuda")
    b = torch.zeros(width, dtype=torch.bfloat16, device="cuda")
    y = ours(0.5)(x, b)
    last = slice((rows - 2) * width, rows * width)
    words = random._philox(torch.arange(last.start // 8, last.stop // 8, dtype=torch.int64), STREAM)
    kept = torch.stack([words & 0xFFFF, words >> 16], 2).flatten() >= 2**15
    assert torch.equal((y.view(-1)[last] != 0).cpu(), kept)
    dx, dbias = op.backward_op(torch.ones_like(y), x, b, 0.5, *STREAM, "none")
    assert torch.equal((dx.view(-1)[last] != 0).cpu(), kept)
    slope = float(reference.derivative(torch.ones(1, dtype=torch.float64), "gelu"))
    assert torch.all((dbias.double() / (rows * slope) - 1).abs() < 0.02)


@kt.needs_compiler
@pytest.mark.parametrize("kind", ["gelu", "gelu_tanh"])
def test_resources(kind: Any) -> None:
    x = torch.empty(256, 1024, dtype=torch.bfloat16)
    (kernel,) = kt.check_resources(
        "bias_gelu_dropout", f"forward {kind}", lambda: run.forward(x, x[0], 0.1, STREAM, kind)
    )
    assert "st.global.v4.b32" in kernel.asm["ptx"], "16 bytes a thread"
    kt.check_resources(
        "bias_gelu_dropout", f"backward {kind}", lambda: run.backward(x, x, x[0], 0.1, STREAM, kind)
    )


@kt.needs_compiler
@pytest.mark.parametrize("kernel", ["forward", "backward"])
def test_no_candidate_spills(kernel: str) -> None:
    x = torch.empty(256, 1024, dtype=torch.bfloat16)
    case = Case(kernel, torch.bfloat16)
    for config in candidates(case):
        assert accepts(case, config)
        with kt.compiled_for_sm90() as kernels:
            if kernel == "forward":
                run.forward(x, x[0], 0.1, STREAM, "gelu", config)
            else:
                run.backward(x, x, x[0], 0.1, STREAM, "gelu", config)
        assert kt._usage(kernels[0][1])["stack"] == 0, config
