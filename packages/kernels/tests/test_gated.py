"""``swiglu`` and ``geglu`` against eager and float64, on every path that exists here."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable
from typing import Any

import kernel_testing as kt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F
from torchsmith_kernels import (
    ArgumentTypeError,
    DeviceError,
    DtypeError,
    GeGLU,
    ShapeError,
    SwiGLU,
    geglu,
    swiglu,
)
from torchsmith_kernels._src.gated import reference, run
from torchsmith_kernels._src.geglu import op as geglu_op
from torchsmith_kernels._src.pointwise.config import Case, accepts, candidates, tile
from torchsmith_kernels._src.pointwise.layout import plan
from torchsmith_kernels._src.swiglu import op as swiglu_op
from torchsmith_kernels._src.swiglu.config import table

Binary = Callable[[Tensor, Tensor], Tensor]


def geglu_tanh(gate: Tensor, up: Tensor) -> Tensor:
    return geglu(gate, up, "tanh")


OURS: dict[str, Binary] = {"silu": swiglu, "gelu": geglu, "gelu_tanh": geglu_tanh}
EAGER: dict[str, Binary] = {
    "silu": lambda gate, up: F.silu(gate) * up,
    "gelu": lambda gate, up: F.gelu(gate) * up,
    "gelu_tanh": lambda gate, up: F.gelu(gate, approximate="tanh") * up,
}
kinds = pytest.mark.parametrize("kind", list(OURS))


@kt.devices
@kt.dtypes
@kinds
@pytest.mark.parametrize("shape", [(7,), (3, 100), (2, 5, 1029)])
def test_results_and_gradients(
    shape: tuple[int, ...], kind: str, dtype: torch.dtype, device: str
) -> None:
    torch.manual_seed(0)
    tensors = [kt.make(*shape, dtype=dtype, device=device, scale=2) for _ in range(2)]
    kt.no_worse_than_eager(OURS[kind], EAGER[kind], tensors)


@kt.devices
@kinds
def test_every_bfloat16_gate(kind: str, device: str) -> None:
    bits = torch.arange(2**16, dtype=torch.int32).to(torch.int16)
    gate = bits.view(torch.bfloat16).to(device)
    gate = gate[(gate.float().abs() < 1e4) & (gate.float().abs() > 1e-30)]
    one = torch.ones_like(gate)
    exact = EAGER[kind](gate.double(), one.double())
    difference = (OURS[kind](gate, one).double() - exact).abs()
    # One rounding; below zero the function itself has an absolute error in float32.
    limit = exact.abs() * 2 * kt.ROUNDOFF[torch.bfloat16] + 4e-7 * gate.double().abs().clamp_max(1)
    assert torch.all(difference <= limit)


@kt.devices
@kinds
@settings(max_examples=10, deadline=None)
@given(shape=st.lists(st.integers(0, 9), max_size=4))
def test_any_shape(kind: str, shape: list[int], device: str) -> None:
    gate, up = (kt.make(*shape, device=device).requires_grad_() for _ in range(2))
    y, want = OURS[kind](gate, up), EAGER[kind](gate, up)
    kt.same(y, want)
    assert y.shape == gate.shape
    ones = torch.ones_like(y)
    for ours, theirs in zip(
        torch.autograd.grad(y, (gate, up), ones), torch.autograd.grad(want, (gate, up), ones)
    ):
        kt.same(ours, theirs)


LAYOUTS: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, ...]]] = {
    "halves": lambda a, b: a.chunk(2, -1),
    "interleaved": lambda a, b: (a[..., ::2], a[..., 1::2]),
    "transposed": lambda a, b: (a.transpose(0, 1), b.transpose(0, 1)),
    "one transposed": lambda a, b: (a.transpose(0, 1), b.transpose(0, 1).contiguous()),
    "other transposed": lambda a, b: (a.transpose(0, 1).contiguous(), b.transpose(0, 1)),
    "unaligned": lambda a, b: (a[..., 1:], b[..., 1:]),
    "expanded": lambda a, b: (a[:1].expand(4, -1, -1), b),
    "half and whole": lambda a, b: (a.chunk(2, -1)[1], b.chunk(2, -1)[0].contiguous()),
    "cut rows": lambda a, b: (a[:, 1:4], b[:, 1:4]),
}


@kt.devices
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_layouts(layout: str, device: str) -> None:
    pair = kt.make(4, 6, 20, device=device), kt.make(4, 6, 20, device=device)
    gate, up = LAYOUTS[layout](*pair)
    assert swiglu(gate, up).stride() == EAGER["silu"](gate, up).stride()
    kt.no_worse_than_eager(swiglu, EAGER["silu"], [gate, up])
    grad = LAYOUTS[layout](*(torch.ones_like(t) for t in pair))[1]
    for ours, theirs in zip(
        swiglu_op.backward_op(grad, gate, up), reference.backward(grad, gate, up, "silu")
    ):
        kt.same(ours, theirs)
        assert ours.stride() == torch.empty_like(gate).stride()


def test_halves_are_not_copied() -> None:
    both = kt.make(3, 5, 64)
    gate, up = both.chunk(2, -1)
    layout = plan(torch.empty_like(gate), gate, up)
    assert (layout.rows, layout.width, layout.strides) == (15, 32, [64, 64])
    assert layout.inputs[0] is gate and layout.inputs[1] is up


@kt.devices
@kinds
def test_nan_and_infinity_behave_as_in_eager(kind: str, device: str) -> None:
    special = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 1e4, -1e4], device=device)
    for dtype in kt.DTYPES:
        gate, up = special.to(dtype).repeat_interleave(6), special.to(dtype).repeat(6)
        if kind == "gelu" and device == "cpu":  # gelu(inf) is NaN there, for some types and sizes
            finite = gate != math.inf
            gate, up = gate[finite], up[finite]
        kt.same(OURS[kind](gate, up), EAGER[kind](gate, up))


@kt.devices
@kinds
def test_two_runs_are_bit_equal(kind: str, device: str) -> None:
    gate, up = (kt.make(3, 1000, device=device).requires_grad_() for _ in range(2))
    kt.bit_equal(lambda: torch.autograd.grad(OURS[kind](gate, up).sum(), (gate, up)))


@kt.devices
def test_operators_are_registered_completely(device: str) -> None:
    gate, up, grad = (kt.make(3, 5, device=device) for _ in range(3))
    torch.library.opcheck(swiglu_op.backward_op.overload, (grad, gate, up))
    torch.library.opcheck(geglu_op.backward_op.overload, (grad, gate, up, "tanh"))
    gate.requires_grad_(), up.requires_grad_()
    torch.library.opcheck(swiglu_op.op.overload, (gate, up))
    torch.library.opcheck(geglu_op.op.overload, (gate, up, "none"))


@kinds
def test_gradients_are_right(kind: str) -> None:
    gate, up = (kt.make(3, 4, dtype=torch.float64).requires_grad_() for _ in range(2))
    kt.gradcheck(OURS[kind], gate, up)


@kinds
def test_function_transforms(kind: str) -> None:
    gate, up = kt.make(3, 4), kt.make(3, 4)
    found = torch.func.grad(lambda a, b: OURS[kind](a, b).sum(), (0, 1))(gate, up)
    want = torch.func.grad(lambda a, b: EAGER[kind](a, b).sum(), (0, 1))(gate, up)
    for ours, theirs in zip(found, want):
        kt.same(ours, theirs)


@kt.devices
@kinds
def test_torch_compile_calls_the_operator(kind: str, device: str) -> None:
    both = kt.make(3, 8, device=device).requires_grad_()

    def of_halves(function: Binary) -> Callable[[Tensor], Tensor]:
        return lambda t: function(*t.chunk(2, -1))

    compiled = torch.compile(of_halves(OURS[kind]), backend="aot_eager", fullgraph=True)
    y, want = compiled(both), of_halves(EAGER[kind])(both)
    kt.same(y, want)
    kt.same(*(torch.autograd.grad(t.sum(), both)[0] for t in (y, want)))


def test_torch_compile_with_dynamic_shapes() -> None:
    compiled = torch.compile(swiglu, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows in (3, 5):
        gate, up = kt.make(rows, 8), kt.make(rows, 8)
        kt.same(compiled(gate, up), swiglu(gate, up))


@kt.devices
@pytest.mark.parametrize("module", [SwiGLU, GeGLU])
def test_modules_are_the_gated_layers_of_models(module: Any, device: str) -> None:
    layer = module(6, 10, bias=True, device=device)
    names = ["gate_proj", "up_proj", "down_proj"]
    assert list(layer.state_dict()) == [f"{n}.{k}" for n in names for k in ("weight", "bias")]
    x = kt.make(3, 6, device=device)
    act = F.silu if module is SwiGLU else F.gelu
    kt.same(layer(x), layer.down_proj(act(layer.gate_proj(x)) * layer.up_proj(x)))
    assert module(6, 10, 4)(kt.make(2, 6)).shape == (2, 4)


def test_module_with_the_tanh_form() -> None:
    layer = GeGLU(6, 10, approximate="tanh")
    x = kt.make(3, 6)
    inner = F.gelu(layer.gate_proj(x), approximate="tanh") * layer.up_proj(x)
    kt.same(layer(x), layer.down_proj(inner))


WRONG: list[tuple[tuple[Any, ...], type[Exception], str]] = [
    (([1.0], torch.ones(1)), ArgumentTypeError, "`gate` is of type list; it must be a tensor"),
    ((torch.ones(1), 2.0), ArgumentTypeError, "`up` is of type float; it must be a tensor"),
    ((torch.ones(1).int(),) * 2, DtypeError, "`gate` has dtype torch.int32; accepted are float16"),
    ((torch.ones(1), torch.ones(1).half()), DtypeError, "`up` has .*float16; accepted are float32"),
    ((torch.ones(2, 3), torch.ones(3)), ShapeError, r"`up` has shape \(3,\); .*`gate`, \(2, 3\)"),
    (
        (torch.ones(2), torch.ones(2, device="meta")),
        DeviceError,
        "`up` is on meta; it must be on cpu, where `gate` is",
    ),
]


@pytest.mark.parametrize("args, error, message", WRONG)
def test_errors_name_the_argument(
    args: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    for function in (swiglu, geglu):
        with pytest.raises(error, match=message):
            function(*args)


def test_unknown_approximation() -> None:
    with pytest.raises(ArgumentTypeError, match="`approximate` is 'exact'; .*'none' or 'tanh'"):
        geglu(torch.ones(1), torch.ones(1), "exact")
    for context in (contextlib.nullcontext(), torch.autocast("cpu")):
        with context, pytest.raises(ArgumentTypeError, match="`approximate` is None"):
            geglu(torch.ones(1), torch.ones(1), None)  # type: ignore[arg-type]


@kt.large
@kinds
def test_more_than_2_to_the_31_elements(kind: str) -> None:
    count = 2**31 + 4096
    both = torch.full((2, count), 2.0, dtype=torch.bfloat16, device="cuda")
    want = EAGER[kind](both[0, :4], both[1, :4])
    y = OURS[kind](both[0], both[1])
    assert torch.all(y[-1000:] == want[0]) and torch.all(y[:1000] == want[0])
    backward = swiglu_op.backward_op if kind == "silu" else geglu_op.backward_op
    extra = () if kind == "silu" else ("none" if kind == "gelu" else "tanh",)
    dgate, dup = backward(y, both[0], both[1], *extra)
    for grad in (dgate, dup):
        assert grad[-1] != 0 and torch.all(grad[-1000:] == grad[0])


@kt.large
def test_halves_of_more_than_2_to_the_31_elements() -> None:
    both = torch.ones(2**20 + 1, 4096, dtype=torch.bfloat16, device="cuda")
    both[-1] = 3
    gate, up = both.chunk(2, -1)
    y = swiglu(gate, up)
    assert torch.all(y[-1] == EAGER["silu"](gate[-1], up[-1])) and torch.all(y[0] == y[-2])


@pytest.mark.parametrize("width", [1, 3, 64, 100, 128, 1408, 4096, 11008, 14336, 50257])
@pytest.mark.parametrize("block", [1024, 4096])
def test_tiles_cover_everything_and_waste_little(width: int, block: int) -> None:
    height, columns, programs = tile(100, width, block)
    across = -(-width // columns)
    assert height * columns == block
    assert programs == -(-100 // height) * across
    assert across * columns <= max(1.07 * width, width + 63)


@pytest.mark.parametrize("kernel", ["forward", "backward"])
def test_candidates_are_accepted(kernel: str) -> None:
    for dtype in kt.DTYPES:
        case = Case(kernel, dtype)
        assert all(accepts(case, config) for config in candidates(case))


@kt.needs_compiler
@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh"])
def test_resources(kind: Any) -> None:
    op = "swiglu" if kind == "silu" else "geglu"
    both = torch.empty(64, 2048, dtype=torch.bfloat16)
    halves, wide = both.chunk(2, -1), torch.empty(1024)
    inputs = {"flat": (both, both), "rows": halves}
    for walk, (gate, up) in inputs.items():
        (kernel,) = kt.check_resources(
            op, f"forward {kind} {walk}", lambda: run.forward(gate, up, kind, table)
        )
        accesses = re.findall(r"(?:ld|st)\.global\.(\S+)", kernel.asm["ptx"])
        assert len(accesses) >= 3 and set(accesses) == {"v4.b32"}, "16 bytes a thread"
    kt.check_resources(
        op, f"backward {kind} flat", lambda: run.backward(both, both, both, kind, table)
    )
    kt.check_resources(
        op, f"forward {kind} flat float32", lambda: run.forward(wide, wide, kind, table)
    )


@kt.needs_compiler
def test_no_candidate_spills() -> None:
    x = torch.empty(1024, dtype=torch.bfloat16)
    for config in candidates(Case("backward", torch.bfloat16)):
        with kt.compiled_for_sm90() as kernels:
            run.backward(x, x, x, "gelu", table, config)
        assert kt._usage(kernels[0][1])["stack"] == 0, config
