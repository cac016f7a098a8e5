"""``matmul`` against eager and float64, on every path that exists here."""

from __future__ import annotations

import math
from collections.abc import Callable

import kernel_testing as kt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchsmith_kernels import ArgumentTypeError, DeviceError, DtypeError, ShapeError
from torchsmith_kernels._src.matmul import op, reference, run
from torchsmith_kernels._src.matmul.config import Case, Config, accepts, candidates, derived
from torchsmith_kernels._src.matmul.op import matmul

PLAIN = Config(32, 32, 32, 2, 4, 2)
SPLIT = Config(32, 32, 16, 2, 4, 2, split=3)
PERSISTENT = Config(64, 64, 64, 2, 4, 2, persistent=True, pieces=2)
ACTIVATIONS = [name for name in reference.ACTIVATIONS if name is not None]

# Said by aten when autograd's thread is the first to call cuBLAS.
pytestmark = pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")


def eager(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    residual: Tensor | None = None,
    scale: float = 1.0,
) -> Tensor:
    """Separate ops, each rounded."""
    y = torch.matmul(x, w)
    if scale != 1:
        y = y * scale
    if bias is not None:
        y = y + bias
    y = reference.activate(y, activation)
    return y if residual is None else y + residual


@kt.devices
@kt.dtypes
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_results_and_gradients(activation: str, dtype: torch.dtype, device: str) -> None:
    torch.manual_seed(0)
    m, k, n = (37, 70, 45) if device == "cpu" else (1037, 1030, 1045)
    kt.no_worse_than_eager(
        lambda x, w, b, r: matmul(x, w.t(), b, activation, r, scale=0.5),
        lambda x, w, b, r: eager(x, w.t(), b, activation, r, 0.5),
        [
            kt.make(m, k, dtype=dtype, device=device),
            kt.make(n, k, dtype=dtype, device=device, scale=k**-0.5),
            kt.make(n, dtype=dtype, device=device),
            kt.make(m, n, dtype=dtype, device=device),
        ],
    )


@kt.devices
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("parts", ["", "bias", "residual", "bias residual", "scale", "bias scale"])
def test_any_part_may_be_missing(parts: str, dtype: torch.dtype, device: str) -> None:
    torch.manual_seed(0)
    x, w = kt.make(5, 24, dtype=dtype, device=device), kt.make(24, 16, dtype=dtype, device=device)
    extra = [kt.make(16, dtype=dtype, device=device)] if "bias" in parts else []
    extra += [kt.make(5, 16, dtype=dtype, device=device)] if "residual" in parts else []
    scale = 0.25 if "scale" in parts else 1.0

    def split(rest: tuple[Tensor, ...]) -> tuple[Tensor | None, Tensor | None]:
        return (
            rest[0] if "bias" in parts else None,
            rest[-1] if "residual" in parts else None,
        )

    def ours(x: Tensor, w: Tensor, *rest: Tensor) -> Tensor:
        bias, residual = split(rest)
        return matmul(x, w, bias, None, residual, scale=scale)

    def theirs(x: Tensor, w: Tensor, *rest: Tensor) -> Tensor:
        bias, residual = split(rest)
        return eager(x, w, bias, None, residual, scale)

    kt.no_worse_than_eager(ours, theirs, [x, w, *extra])


SHAPES = {
    "vector": ((8,), (8, 5)),
    "3-d": ((2, 3, 8), (8, 5)),
    "batched": ((2, 3, 8), (2, 8, 5)),
    "broadcast": ((3, 8), (2, 8, 5)),
    "both broadcast": ((2, 1, 3, 8), (4, 8, 5)),
    "vector and batch": ((8,), (2, 8, 5)),
    "one": ((1, 1), (1, 1)),
}


@kt.devices
@pytest.mark.parametrize("case", list(SHAPES))
def test_shapes_are_those_of_torch_matmul(case: str, device: str) -> None:
    torch.manual_seed(0)
    left, right = SHAPES[case]
    x, w = kt.make(*left, device=device), kt.make(*right, device=device)
    bias = kt.make(right[-1], device=device)
    residual = kt.make(*eager(x, w).shape, device=device)
    slack = 4.0 if case == "one" else 1.0  # nothing averages the roundings of a single product
    for dtype in (torch.float32, torch.float16):
        tensors = [t.to(dtype) for t in (x, w, bias, residual)]
        kt.no_worse_than_eager(
            lambda x, w, b, r: matmul(x, w, b, "silu", r, scale=2),
            lambda x, w, b, r: eager(x, w, b, "silu", r, 2),
            tensors,
            slack=slack,
        )
        assert matmul(*tensors[:2]).shape == eager(*tensors[:2]).shape


@kt.devices
@settings(max_examples=10, deadline=None)
@given(m=st.integers(0, 40), k=st.integers(0, 40), n=st.integers(0, 40), residual=st.booleans())
def test_any_size(m: int, k: int, n: int, residual: bool, device: str) -> None:
    x = kt.make(m, k, dtype=torch.float16, device=device).requires_grad_()
    w = kt.make(k, n, dtype=torch.float16, device=device).requires_grad_()
    bias = kt.make(n, dtype=torch.float16, device=device)
    r = kt.make(m, n, dtype=torch.float16, device=device) if residual else None
    y = matmul(x, w, bias, "silu", r)
    kt.same(y, eager(x, w, bias, "silu", r), 2e-2, 2e-2)
    (dx, dw) = torch.autograd.grad(y.sum(), [x, w])
    (ex, ew) = torch.autograd.grad(eager(x, w, bias, "silu", r).sum(), [x, w])
    kt.same(dx, ex, 5e-2, 5e-2)
    kt.same(dw, ew, 5e-2, 5e-2)


@kt.devices
@kt.needs_kernels
@pytest.mark.parametrize("transposed", ["nn", "nt", "tn", "tt", "strided"])
@pytest.mark.parametrize("config", [PLAIN, SPLIT, PERSISTENT], ids=["plain", "split", "persistent"])
def test_every_kernel_and_layout(config: Config, transposed: str, device: str) -> None:
    torch.manual_seed(0)
    dtype = torch.float16
    m, k, n = 72, 80, 88

    def make(rows: int, columns: int, way: str) -> Tensor:
        if way == "t":
            return kt.make(columns, rows, dtype=dtype, device=device).t()
        if way == "s":
            return kt.make(2 * rows, 3 * columns, dtype=dtype, device=device)[::2, ::3]
        return kt.make(rows, columns, dtype=dtype, device=device)

    x, w = make(m, k, transposed[0]), make(k, n, transposed[1])
    if config.persistent and transposed == "strided":
        assert not run.case_of(x, w).descriptors
        assert not accepts(run.case_of(x, w), config)
        return
    bias, residual = kt.make(n, dtype=dtype, device=device), make(m, n, "n")
    for r in (residual, residual.t().contiguous().t(), residual.float(), None):
        y, pre = run.forward(x, w, bias, "gelu_tanh", r, 0.5, True, config)
        want, want_pre = reference.forward(x, w, bias, "gelu_tanh", r, 0.5)
        assert y.is_contiguous()
        kt.same(y, want, 4e-3, 4e-3)
        kt.same(pre, want_pre, 4e-3, 4e-3)


@kt.devices
@kt.needs_kernels
@pytest.mark.parametrize("pieces", [1, 2, 4])
def test_persistent_kernel_in_pieces(pieces: int, device: str) -> None:
    torch.manual_seed(0)
    x = kt.make(300, 72, dtype=torch.float16, device=device)
    w = kt.make(72, 136, dtype=torch.float16, device=device)
    for flatten in (False, True):
        config = Config(
            64, 64, 32, 2, 4, 3, persistent=True, pieces=pieces, flatten=flatten, waves=2
        )
        y, _ = run.forward(x, w, activation="relu", config=config)
        kt.same(y, (x.float() @ w.float()).relu().half(), 4e-3, 4e-3)


@kt.devices
@kt.needs_kernels
def test_float32_is_exact_unless_tf32_is_allowed(device: str) -> None:
    torch.manual_seed(0)
    x, w = kt.make(40, 50, device=device), kt.make(50, 30, device=device)
    want = (x.double() @ w.double()).relu()
    for config in (PLAIN, SPLIT, derived(run.case_of(x, w))):
        assert kt.error(run.forward(x, w, activation="relu", config=config)[0], want) < 1e-6
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        assert run.precision(torch.float32) == "tf32"
        assert kt.error(run.forward(x, w, activation="relu", config=PLAIN)[0], want) < 1e-2
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


@kt.on_gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("activation", run.FUSED_BY_LIBRARY)
def test_the_librarys_own_epilogue(activation: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = kt.make(3, 100, 72, dtype=dtype, device="cuda")
    w = kt.make(88, 72, dtype=dtype, device="cuda", scale=0.1)
    bias = kt.make(88, dtype=dtype, device="cuda")
    run.plans.clear()
    with torch.no_grad():
        for _ in range(2):  # the second call finds the plan
            kt.no_worse_than_eager(
                lambda x, w, b: matmul(x, w.t(), b, activation, scale=0.5),
                lambda x, w, b: eager(x, w.t(), b, activation, None, 0.5),
                [x, w, bias],
                backward=False,
            )
        assert any(plan.fused_by_library for plan in run.plans.values())
        x[0, 0, 0], x[1, 0, 0] = math.nan, math.inf
        got = matmul(x, w.t(), bias, activation)
        want = eager(x.float(), w.t().float(), bias.float(), activation).to(dtype)
    kt.same(got, want, 2e-2, 2e-2)


@kt.devices
@kt.needs_kernels
def test_products_by_the_library_are_not_rounded_in_between(device: str) -> None:
    torch.manual_seed(0)
    for batch in ((), (3,)):
        x = kt.make(*batch, 20, 30, dtype=torch.bfloat16, device=device)
        w = kt.make(*batch, 30, 40, dtype=torch.bfloat16, device=device)
        y, _ = run.forward(x, w, activation="silu", config=Config(library=True))
        want = torch.nn.functional.silu(x.double() @ w.double())
        assert kt.error(y, want) < kt.ROUNDOFF[torch.bfloat16]


@kt.devices
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nan_and_infinity_behave_as_in_the_reference(activation: str, device: str) -> None:
    x = torch.tensor([[math.nan], [math.inf], [-math.inf], [-0.0], [1e30]], device=device)
    w = torch.eye(1, device=device)
    want = eager(x.double(), w.double(), None, activation).float()  # exact: aten's float32 GELU
    if kt.INTERPRETED or kt.COMPILED:  # gives NaN at infinity on CPUs
        kt.same(matmul(x, w, None, activation), want)
    ones = torch.ones_like(x)
    finite = x[[0, 3]] if activation != "relu" else x[[3]]
    kt.same(
        op.gradient_op(ones[: len(finite)], finite, activation),
        reference.activation_gradient(ones[: len(finite)], finite, activation),
    )


@kt.devices
def test_two_runs_are_bit_equal(device: str) -> None:
    x = kt.make(20, 300, dtype=torch.float16, device=device)
    w = kt.make(300, 40, dtype=torch.float16, device=device)
    kt.bit_equal(lambda: matmul(x, w, activation="gelu"))
    if kt.INTERPRETED or kt.COMPILED:
        kt.bit_equal(lambda: run.forward(x, w, config=SPLIT)[0])


@kt.devices
def test_operators_are_registered_completely(device: str) -> None:
    x = kt.make(3, 8, device=device).requires_grad_()
    w = kt.make(8, 5, device=device).requires_grad_()
    bias = kt.make(5, device=device).requires_grad_()
    torch.library.opcheck(op.op.overload, (x, w, bias, "gelu", None, 0.5, True))
    torch.library.opcheck(op.op.overload, (x, w, None, "relu", None, 1.0, False))
    y = kt.make(3, 5, device=device)
    torch.library.opcheck(op.gradient_op.overload, (y, y, "silu"))


@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
def test_gradients_are_right(activation: str | None) -> None:
    torch.manual_seed(0)
    x, w, bias, residual = (
        kt.make(*shape, dtype=torch.float64).requires_grad_()
        for shape in ((3, 4), (4, 2), (2,), (3, 2))
    )
    kt.gradcheck(
        lambda *t: matmul(t[0], t[1], t[2], activation, t[3], scale=0.5), x, w, bias, residual
    )


def test_gradients_of_a_batch_are_right() -> None:
    x = kt.make(2, 1, 3, 4, dtype=torch.float64).requires_grad_()
    w = kt.make(2, 4, 2, dtype=torch.float64).requires_grad_()
    kt.gradcheck(lambda *t: matmul(*t, None, "silu", scale=2), x, w, second=False)


@kt.devices
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_backward_when_nothing_was_saved(activation: str, device: str) -> None:
    torch.manual_seed(0)
    x = kt.make(6, 8, device=device).requires_grad_()
    w = kt.make(8, 5, device=device)
    for residual in (None, kt.make(6, 5, device=device)):
        y = op.op(x, w, None, activation, residual, 1.0, False)[0]
        (found,) = torch.autograd.grad(y.sum(), x)
        (want,) = torch.autograd.grad(eager(x, w, None, activation, residual).sum(), x)
        kt.same(found, want)


def test_function_transforms() -> None:
    x, w = kt.make(3, 4), kt.make(4, 5)
    found = torch.func.grad(lambda t: matmul(t, w, activation="silu").sum())(x)
    want = torch.func.grad(lambda t: eager(t, w, activation="silu").sum())(x)
    kt.same(found, want)


@kt.devices
def test_autocast_computes_in_low_precision(device: str) -> None:
    x = kt.make(3, 8, device=device).requires_grad_()
    w = kt.make(8, 5, device=device)
    with torch.autocast(device, torch.bfloat16):
        y = matmul(x, w, activation="gelu")
        assert matmul(x, w.bfloat16()).dtype is torch.bfloat16
    assert y.dtype is torch.bfloat16
    y.sum().backward()
    assert x.grad is not None and x.grad.dtype is torch.float32


@kt.devices
@pytest.mark.parametrize("dynamic", [False, True])
def test_torch_compile_calls_the_operator(dynamic: bool, device: str) -> None:
    x = kt.make(3, 8, device=device).requires_grad_()
    w = kt.make(5, 8, device=device).requires_grad_()

    def function(x: Tensor, w: Tensor) -> Tensor:
        return matmul(x, w.t(), activation="gelu")

    y = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=dynamic)(x, w)
    found = torch.autograd.grad(y.sum(), [x, w])
    want = torch.autograd.grad(eager(x, w.t(), activation="gelu").sum(), [x, w])
    kt.same(y, eager(x, w.t(), activation="gelu"))
    for ours, theirs in zip(found, want, strict=True):
        kt.same(ours, theirs)


X, W = torch.ones(3, 4), torch.ones(4, 5)
MISTAKES: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "type": (lambda: matmul([1.0], W), ArgumentTypeError, "`input` is of type list"),  # type: ignore[arg-type]
    "activation": (lambda: matmul(X, W, activation="elu"), ArgumentTypeError, "`activation` is"),
    "scale": (lambda: matmul(X, W, scale="1"), ArgumentTypeError, "`scale` is of type str"),  # type: ignore[arg-type]
    "dtype": (lambda: matmul(X.int(), W), DtypeError, "`input` has dtype torch.int32"),
    "dtypes": (lambda: matmul(X, W.half()), DtypeError, "`other` has dtype torch.float16; acc.*32"),
    "bias dtype": (lambda: matmul(X, W, torch.ones(5).int()), DtypeError, "`bias` has dtype"),
    "device": (lambda: matmul(X, W.to("meta")), DeviceError, "`other` is on meta"),
    "no rows": (lambda: matmul(torch.ones(()), W), ShapeError, "`input` has shape ()"),
    "one dim": (lambda: matmul(X, torch.ones(4)), ShapeError, "`other` has shape (4,); it must"),
    "k": (lambda: matmul(X, W.t()), ShapeError, "`other` has shape (5, 4).*columns, 4"),
    "batch": (
        lambda: matmul(torch.ones(2, 3, 4), torch.ones(3, 4, 5)),
        ShapeError,
        "leading dimensions must broadcast",
    ),
    "bias": (lambda: matmul(X, W, torch.ones(4)), ShapeError, "`bias` has shape (4,); .* (5,)"),
    "residual": (
        lambda: matmul(X, W, residual=torch.ones(5)),
        ShapeError,
        "`residual` has shape (5,); it must be the shape of the result, (3, 5)",
    ),
}


@pytest.mark.parametrize("mistake", list(MISTAKES))
def test_errors_name_the_argument(mistake: str) -> None:
    call, error, message = MISTAKES[mistake]
    with pytest.raises(error, match=message.replace("(", r"\(").replace(")", r"\)")):
        call()


@kt.large
def test_more_than_2_to_the_31_elements() -> None:
    rows = 2**31 // 4096 + 300
    w = torch.randn(64, 4096, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(rows, 64, device="cuda", dtype=torch.bfloat16)
    bias = torch.randn(4096, device="cuda", dtype=torch.bfloat16)
    residual = torch.ones(1, 4096, device="cuda", dtype=torch.bfloat16).expand(rows, 4096)
    want = eager(x[-500:].float(), w.float(), bias.float(), "relu") + 1
    for config in (None, Config(128, 128, 64), Config(128, 128, 64, persistent=True, pieces=2)):
        y, _ = run.forward(x, w, bias, "relu", residual, config=config)
        assert kt.error(y[-500:], want) < 1e-2
    del y
    tall = torch.randn(rows, 4096, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(4096, 16, device="cuda", dtype=torch.bfloat16)
    y = matmul(tall, w, activation="relu")
    assert kt.error(y[-500:], eager(tall[-500:], w, activation="relu")) < 1e-2
    wide = matmul(x[:500, :1].t().contiguous(), tall[:500], activation="relu")
    assert wide.shape == (1, 4096)
    z = run.activation_gradient(tall, tall, "relu_squared")
    kt.same(z[-5:], 2 * tall[-5:] * tall[-5:].relu(), 1e-2, 1e-2)


def test_derived_configurations_are_accepted() -> None:
    for m in (16, 64, 128, 1024, 8192):
        for descriptors in (False, True):
            for dtype in (torch.bfloat16, torch.float32):
                case = Case.of(m, 4096, 4096, dtype, "nt", descriptors, False)
                for config in (derived(case), *candidates(case)):
                    assert accepts(case, config), (case, config)
    assert not accepts(
        Case.of(64, 64, 64, torch.bfloat16, "nn", False, False), Config(persistent=True)
    )
    assert not accepts(Case.of(64, 64, 64, torch.bfloat16, "nn", True, False), Config(100))


BIG = {
    "persistent": Case.of(8192, 8192, 8192, torch.bfloat16, "nt", True, False),
    "small": Case.of(16, 4096, 4096, torch.bfloat16, "nt", True, False),
    "pointers": Case.of(4096, 4096, 4096, torch.bfloat16, "nn", False, False),
}


def _operands(case: Case) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    m, n, k = min(case.m, 256), 512, 512
    x = torch.empty(m, k, dtype=case.dtype)
    w = torch.empty(n, k, dtype=case.dtype).t() if case.layout[1] == "t" else x.new_empty(k, n)
    return x, w, x.new_empty(n), x.new_empty(m, n)


@kt.needs_compiler
@pytest.mark.parametrize("name", list(BIG))
def test_resources(name: str) -> None:
    case = BIG[name]
    x, w, bias, residual = _operands(case)
    kernels = kt.check_resources(
        "matmul",
        f"{name} gelu_tanh",
        lambda: run.forward(x, w, bias, "gelu_tanh", None, 1.0, config=derived(case)),
    )
    if name != "small":
        assert "wgmma.mma_async" in kernels[0].asm["ptx"]
    if name == "persistent":
        assert "cp.async.bulk.tensor" in kernels[0].asm["ptx"]
        kt.check_resources(
            "matmul",
            f"{name} gelu saved, residual",
            lambda: run.forward(x, w, bias, "gelu", residual, 0.5, True, derived(case)),
        )
        kt.check_resources(
            "matmul", "gradient", lambda: run.activation_gradient(residual, residual, "gelu")
        )


@kt.needs_compiler
@pytest.mark.parametrize("name", ["persistent", "small"])
def test_float64_terms_compile(name: str) -> None:
    case = BIG[name]
    x, w, bias, residual = _operands(case)
    with kt.compiled_for_sm90() as kernels:
        run.forward(x, w, bias.double(), "gelu", residual.double(), 0.5, config=derived(case))
    assert kernels


@kt.needs_compiler
@pytest.mark.parametrize("name", list(BIG))
def test_no_candidate_spills(name: str) -> None:
    case = BIG[name]
    x, w, bias, _ = _operands(case)
    for config in candidates(case):
        with kt.compiled_for_sm90() as kernels:
            run.forward(x, w, bias, "gelu_tanh", config=config)
        for kernel, compiled in kernels:
            assert kt._usage(compiled)["stack"] == 0, (kernel, config)
