"""``fused_linear_cross_entropy`` against eager and float64, on every path that exists here."""

from __future__ import annotations

import math
from typing import Any

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
    FusedLinearCrossEntropyLoss,
    ShapeError,
    cross_entropy,
    fused_linear_cross_entropy,
)
from torchsmith_kernels._src.cross_entropy.config import Case, Config, candidates
from torchsmith_kernels._src.fused_linear_cross_entropy import op, plan, run

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none", "label_smoothing": 0.1},
    "all": {"softcap": 3.0, "label_smoothing": 0.1, "z_loss": 1e-2, "class_weight": True},
    "all, none": {
        "softcap": 3.0, "label_smoothing": 0.1, "z_loss": 1e-2, "class_weight": True,
        "reduction": "none",
    },
}  # fmt: skip


def eager(x: Tensor, w: Tensor, b: Tensor | None, target: Tensor, **kinds: Any) -> Tensor:
    logits = F.linear(x, w, b)
    softcap, z_loss = kinds.pop("softcap", None), kinds.pop("z_loss", 0.0)
    weight = kinds.pop("class_weight", None)
    weight = None if weight is None else weight.to(x.dtype)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    loss = F.cross_entropy(logits, target, weight, **kinds)
    used = target != -100
    extra = z_loss * logits.logsumexp(-1).square() * used
    if kinds.get("reduction") == "none":
        return loss + extra
    if kinds.get("reduction") == "sum":
        return loss + extra.sum()
    weights = used.to(x.dtype) if weight is None else weight[target.clamp_min(0)] * used
    return loss + extra.sum() / weights.sum()


def problem(
    rows: int, hidden: int, classes: int, dtype: torch.dtype, device: str
) -> tuple[list[Tensor], Tensor]:
    """Input, weight and bias, and targets of which some are ignored."""
    torch.manual_seed(0)
    x = kt.make(rows, hidden, dtype=dtype, device=device)
    w = kt.make(classes, hidden, dtype=dtype, device=device, scale=hidden**-0.5)
    b = kt.make(classes, dtype=dtype, device=device)
    target = torch.randint(0, classes, (rows,))
    target[1::4] = -100
    return [x, w, b], target.to(device)


@kt.devices
@kt.dtypes
@pytest.mark.parametrize("chunk_size", [None, 8])
@pytest.mark.parametrize("options", list(OPTIONS))
def test_results_and_gradients(
    options: str, chunk_size: int | None, dtype: torch.dtype, device: str
) -> None:
    tensors, target = problem(19, 24, 83, dtype, device)
    kinds = dict(OPTIONS[options])
    if "class_weight" in kinds:
        kinds["class_weight"] = torch.rand(83).to(device)
    kt.no_worse_than_eager(
        lambda x, w, b: fused_linear_cross_entropy(x, w, target, b, chunk_size=chunk_size, **kinds),
        lambda x, w, b: eager(x, w, b, target, **kinds),
        tensors,
        slack=4.0 if dtype is torch.float32 else 1.0,
    )


@kt.devices
@kt.dtypes
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_nothing_is_read_that_was_not_written(
    reduction: str, dtype: torch.dtype, device: str
) -> None:
    """Deterministic mode fills new tensors with NaN."""
    tensors, target = problem(64, 24, 83, dtype, device)
    upstream = [kt.make(*([64] if reduction == "none" else []), device=device)]
    torch.use_deterministic_algorithms(True)
    try:
        found = kt.grads(
            lambda x, w, b: fused_linear_cross_entropy(x, w, target, b, reduction=reduction),
            tensors,
            upstream,
        )
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.isfinite(tensor).all() for tensor in found)


@kt.devices
def test_rows_of_many_blocks(device: str) -> None:
    (x, w, _), target = problem(6, 8, 33001, torch.bfloat16, device)
    kt.no_worse_than_eager(
        lambda x, w: fused_linear_cross_entropy(x, w, target, chunk_size=4),
        lambda x, w: eager(x, w, None, target),
        [x, w],
    )


@kt.devices
@pytest.mark.parametrize("accumulate", [None, torch.float32, torch.bfloat16])
def test_accumulation_types(accumulate: torch.dtype | None, device: str) -> None:
    (x, w, _), target = problem(32, 16, 40, torch.bfloat16, device)
    w.requires_grad_()
    loss = fused_linear_cross_entropy(
        x, w, target, chunk_size=8, accumulate_dtype=accumulate, reduction="sum"
    )
    (dw,) = torch.autograd.grad(loss, w)
    want = torch.autograd.grad(eager(x.double(), w.double(), None, target, reduction="sum"), w)[0]
    assert dw.dtype == torch.bfloat16
    assert kt.error(dw, want) < (4e-2 if accumulate is torch.bfloat16 else 2e-2)


@kt.devices
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_only_wanted_gradients_are_computed(reduction: str, device: str) -> None:
    tensors, target = problem(9, 8, 20, torch.float32, device)
    want = torch.autograd.grad(
        eager(*[t.requires_grad_() for t in tensors], target, reduction=reduction).sum(), tensors
    )
    for place in range(3):
        given = [t.detach().requires_grad_(i == place) for i, t in enumerate(tensors)]
        x, w, b = given
        loss = fused_linear_cross_entropy(x, w, target, b, reduction=reduction, chunk_size=4)
        kt.same(torch.autograd.grad(loss.sum(), given[place])[0], want[place])
    loss = fused_linear_cross_entropy(
        *[t.detach() for t in tensors[:2]], target, tensors[2].detach()
    )
    assert not loss.requires_grad
    kt.same(loss, eager(*tensors, target).detach())


@kt.devices
@pytest.mark.parametrize("chunk_size", [None, 4])
def test_gradient_scaling_and_repeated_backward(chunk_size: int | None, device: str) -> None:
    (x, w, _), target = problem(12, 8, 20, torch.bfloat16, device)
    x.requires_grad_(), w.requires_grad_()
    loss = fused_linear_cross_entropy(x, w, target, chunk_size=chunk_size)
    scale = torch.tensor(1024.0, device=device, dtype=torch.bfloat16)
    first = torch.autograd.grad(loss, [x, w], scale, retain_graph=True)
    kept = [gradient.clone() for gradient in first]
    for gradient in first:
        gradient.zero_()  # a gradient is the caller's own
    second = torch.autograd.grad(loss, [x, w], scale, retain_graph=True)
    plain = torch.autograd.grad(loss, [x, w])
    for one, two, unscaled in zip(kept, second, plain, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, unscaled * 1024)


def test_float16_keeps_gradients_that_a_mean_makes_tiny() -> None:
    rows = 256
    x = torch.ones(rows, 4, dtype=torch.float16)
    w = torch.zeros(64, 4, dtype=torch.float16, requires_grad=True)
    target = torch.zeros(rows, dtype=torch.int64)
    loss = fused_linear_cross_entropy(x, w, target)
    (dw,) = torch.autograd.grad(loss, w)
    kt.same(dw[1:], torch.full_like(dw[1:], 1 / 64), rtol=2e-3, atol=0)


@kt.devices
@settings(max_examples=8, deadline=None)
@given(
    rows=st.integers(0, 9),
    hidden=st.integers(1, 9),
    classes=st.integers(1, 40),
    chunk=st.integers(1, 10),
)
def test_any_shape(rows: int, hidden: int, classes: int, chunk: int, device: str) -> None:
    tensors, target = problem(rows, hidden, classes, torch.float32, device)
    x, w, b = [t.requires_grad_() for t in tensors]
    for reduction in ("mean", "none"):
        kinds = {"reduction": reduction}
        loss = fused_linear_cross_entropy(x, w, target, b, chunk_size=chunk, **kinds)
        want = F.cross_entropy(F.linear(x, w, b), target, **kinds)
        kt.same(loss, want)
        for got, true in zip(
            torch.autograd.grad(loss.sum(), [x, w, b]),
            torch.autograd.grad(want.sum(), [x, w, b]),
            strict=True,
        ):
            kt.same(got, true)


@kt.devices
def test_batches_and_layouts(device: str) -> None:
    tensors, target = problem(12, 8, 20, torch.float32, device)
    x, w, b = tensors
    kinds = {"reduction": "none"}
    loss = fused_linear_cross_entropy(x.view(3, 4, 8), w, target.view(3, 4), b, **kinds)
    assert loss.shape == (3, 4)
    kt.same(loss.flatten(), eager(x, w, b, target, **kinds))
    kt.same(fused_linear_cross_entropy(x[0], w, target[0]), eager(x[:1], w, None, target[:1]))
    wide, tall = torch.cat([x, x], 1)[:, :8], w.t().contiguous().t()
    twice = target.repeat_interleave(2)[::2]
    kt.no_worse_than_eager(
        lambda x, w: fused_linear_cross_entropy(x, w, twice),
        lambda x, w: eager(x, w, None, target),
        [wide, tall],
        slack=4.0,
    )


@kt.devices
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_nothing_counts(dtype: torch.dtype, device: str) -> None:
    tensors, _ = problem(5, 4, 7, dtype, device)
    target = torch.full((5,), -100, device=device)
    x, w, b = [t.requires_grad_() for t in tensors]
    loss = fused_linear_cross_entropy(x, w, target, b, chunk_size=2)
    assert loss.isnan()
    for gradient in torch.autograd.grad(loss, [x, w, b]):
        kt.same(gradient, torch.zeros_like(gradient))


@kt.devices
def test_nan_and_infinity_behave_as_in_eager(device: str) -> None:
    (x, w, _), _ = problem(4, 4, 7, torch.float32, device)
    x[0, 0], x[2, 1] = math.nan, math.inf
    target = torch.tensor([1, 2, 3, 4], device=device)
    x.requires_grad_()
    got = fused_linear_cross_entropy(x, w, target, reduction="none")
    want = eager(x, w, None, target, reduction="none")
    kt.same(got, want)
    kt.same(torch.autograd.grad(got.sum(), x)[0], torch.autograd.grad(want.sum(), x)[0])


@kt.devices
@pytest.mark.skipif(not (kt.COMPILED or kt.INTERPRETED), reason="about the kernels")
def test_classes_that_do_not_exist_are_not_read(device: str) -> None:
    (x, w, _), _ = problem(4, 4, 7, torch.float32, device)
    x.requires_grad_()
    target = torch.tensor([1, 2**40, -5, 6], device=device)
    loss = fused_linear_cross_entropy(x, w, target, reduction="sum")
    assert loss.isnan()
    (dx,) = torch.autograd.grad(loss, x)
    assert dx.isnan().all(1).tolist() == [False, True, True, False]


@kt.devices
def test_bytes_as_classes_do_not_wrap_around(device: str) -> None:
    tensors, _ = problem(4, 8, 200, torch.float32, device)
    target = torch.tensor([156, 3, 156, 199], dtype=torch.uint8, device=device)  # 156 = 256 - 100
    kt.no_worse_than_eager(
        lambda x, w, b: fused_linear_cross_entropy(x, w, target, b),
        lambda x, w, b: eager(x, w, b, target.long()),
        tensors,
        slack=4.0,
    )


@pytest.mark.parametrize("reduction", ["mean", "none"])
@kt.devices
def test_a_hidden_size_of_zero(reduction: str, device: str) -> None:
    x = torch.zeros(2, 3, 0, device=device, requires_grad=True)
    w = torch.zeros(7, 0, device=device, requires_grad=True)
    target = torch.zeros(2, 3, dtype=torch.int64, device=device)
    loss = fused_linear_cross_entropy(x, w, target, reduction=reduction)
    kt.same(loss, torch.full_like(loss, math.log(7)))
    assert loss.shape == (() if reduction == "mean" else (2, 3))
    loss.sum().backward()
    assert x.grad is not None and x.grad.shape == x.shape
    assert w.grad is not None and w.grad.shape == w.shape


def test_meta_tensors_give_shapes() -> None:
    x = torch.zeros(4, 8, device="meta", requires_grad=True)
    w = torch.zeros(20, 8, device="meta", requires_grad=True)
    loss = fused_linear_cross_entropy(x, w, torch.zeros(4, dtype=torch.int64, device="meta"))
    loss.backward()
    assert loss.shape == () and x.grad is not None and w.grad is not None


@kt.devices
def test_two_runs_are_bit_equal(device: str) -> None:
    (x, w, _), target = problem(40, 32, 1000, torch.bfloat16, device)
    x.requires_grad_(), w.requires_grad_()

    def both() -> list[Tensor]:
        loss = fused_linear_cross_entropy(x, w, target, chunk_size=16)
        return [loss.detach(), *torch.autograd.grad(loss, [x, w])]

    kt.bit_equal(both)


@kt.devices
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_operators_are_registered_completely(reduction: str, device: str) -> None:
    tensors, target = problem(3, 4, 7, torch.float32, device)
    weight = torch.rand(7, device=device)
    kinds = (-100, reduction, 0.1, 0.01, 30.0, 2, None, True, True, True)
    x, w, b = [t.requires_grad_() for t in tensors]
    torch.library.opcheck(op.op.overload, (x, w, b, target, weight, None, *kinds))
    x, w, b = [t.detach() for t in (x, w, b)]
    loss, saved, *sums = op.op(x, w, b, target, weight, None, *kinds)
    grad = torch.ones_like(loss)
    if reduction == "none":
        args = (grad, saved, x, w, b, target, weight, *kinds)
        torch.library.opcheck(op.rows_op.overload, args)
    else:
        torch.library.opcheck(op.scale_op.overload, (grad, saved, *sums, True, torch.float32))


@pytest.mark.parametrize("options", list(OPTIONS))
def test_gradients_are_right(options: str) -> None:
    tensors, target = problem(3, 3, 4, torch.float64, "cpu")
    kinds = dict(OPTIONS[options])
    if "class_weight" in kinds:
        kinds["class_weight"] = torch.rand(4, dtype=torch.float64)
    kt.gradcheck(
        lambda x, w, b: fused_linear_cross_entropy(x, w, target, b, chunk_size=2, **kinds),
        *[t.requires_grad_() for t in tensors],
    )


def test_function_transforms() -> None:
    (x, w, _), target = problem(5, 4, 7, torch.float32, "cpu")
    found = torch.func.grad(lambda w: fused_linear_cross_entropy(x, w, target))(w)
    kt.same(found, torch.func.grad(lambda w: eager(x, w, None, target))(w))


@kt.devices
@pytest.mark.parametrize("dynamic", [False, True])
def test_torch_compile_calls_the_operator(dynamic: bool, device: str) -> None:
    compiled = torch.compile(
        fused_linear_cross_entropy, backend="aot_eager", fullgraph=True, dynamic=dynamic
    )
    for rows in (5, 6):
        tensors, target = problem(rows, 4, 7, torch.float32, device)
        x, w, b = [t.requires_grad_() for t in tensors]
        loss, want = compiled(x, w, target, b), eager(x, w, b, target)
        kt.same(loss, want)
        for got, true in zip(
            torch.autograd.grad(loss, [x, w, b]),
            torch.autograd.grad(want, [x, w, b]),
            strict=True,
        ):
            kt.same(got, true)


@kt.devices
def test_autocast_computes_logits_in_low_precision(device: str) -> None:
    (x, w, _), target = problem(5, 4, 7, torch.float32, device)
    x.requires_grad_(), w.requires_grad_()
    with torch.autocast(device, torch.bfloat16):
        loss = fused_linear_cross_entropy(x, w, target)
        want = F.cross_entropy(F.linear(x, w), target)
    assert loss.dtype == want.dtype == torch.float32
    kt.same(loss, want, rtol=1e-3)
    for got, true in zip(
        torch.autograd.grad(loss, [x, w]), torch.autograd.grad(want, [x, w]), strict=True
    ):
        assert got.dtype == torch.float32
        kt.same(got, true, rtol=2e-2, atol=2e-3)


def test_module() -> None:
    module = FusedLinearCrossEntropyLoss(8, 20, bias=True, label_smoothing=0.1)
    assert list(module.state_dict()) == ["weight", "bias"]
    (x, _, _), target = problem(5, 8, 20, torch.float32, "cpu")
    logits = F.linear(x, module.weight, module.bias)
    kt.same(module(x, target), cross_entropy(logits, target, label_smoothing=0.1))
    with pytest.raises(ArgumentTypeError, match="`reduction` is 'max'"):
        FusedLinearCrossEntropyLoss(8, 20, reduction="max")


def test_errors_name_the_argument() -> None:
    (x, w, b), target = problem(5, 8, 20, torch.float32, "cpu")
    with pytest.raises(ArgumentTypeError, match="`weight` is of type NoneType; it must be a te"):
        fused_linear_cross_entropy(x, None, target)
    with pytest.raises(ShapeError, match=r"`weight` has shape \(8, 20\); .* of \(5, 8\)"):
        fused_linear_cross_entropy(x, w.t(), target)
    with pytest.raises(ShapeError, match=r"`target` has shape \(3,\); .*, \(5,\)"):
        fused_linear_cross_entropy(x, w, target[:3])
    with pytest.raises(ShapeError, match=r"`bias` has shape \(3,\); it must be one value per"):
        fused_linear_cross_entropy(x, w, target, b[:3])
    with pytest.raises(ShapeError, match=r"`class_weight` has shape \(3,\)"):
        fused_linear_cross_entropy(x, w, target, class_weight=b[:3])
    with pytest.raises(DtypeError, match="`weight` has dtype torch.float16; accepted are float32"):
        fused_linear_cross_entropy(x, w.half(), target)
    with pytest.raises(DtypeError, match="`target` has dtype torch.float32"):
        fused_linear_cross_entropy(x, w, target.float())
    for wrong in (0, True, 1.0):
        with pytest.raises(ArgumentValueError, match=f"`chunk_size` is {wrong}; it must be a posi"):
            fused_linear_cross_entropy(x, w, target, chunk_size=wrong)
    with pytest.raises(ArgumentTypeError, match="`ignore_index` is of type NoneType"):
        fused_linear_cross_entropy(x, w, target, ignore_index=None)
    with pytest.raises(ArgumentValueError, match="`accumulate_dtype` is torch.float16"):
        fused_linear_cross_entropy(x, w, target, accumulate_dtype=torch.float16)


def _peaks(rows: int, hidden: int, classes: int) -> tuple[float, float, int]:
    """Modelled peak over eager's, the same without the gradients themselves, and the chunk."""
    size, dtype = 2, torch.bfloat16
    chunk = plan.chunk_rows(rows, hidden, classes, dtype, None)
    dx, dw = size * rows * hidden, size * classes * hidden
    summed = plan.accumulator(dtype, -(-rows // chunk), None).itemsize * classes * hidden
    forward = summed + dx + size * min(chunk, rows) * classes
    ours, eager_peak = max(forward, summed + dw + dx), 3 * size * rows * classes
    return ours / eager_peak, (ours - dx - dw) / (eager_peak - dx - dw), chunk


@pytest.mark.parametrize("classes", [32000, 128256])
def test_chunks_keep_memory_to_a_quarter_of_that_of_eager(classes: int) -> None:
    whole, beside, chunk = _peaks(32768, 4096, classes)
    assert whole <= 0.25 and beside <= 0.25
    assert chunk == 4096, "matrix products stay large"
    assert _peaks(16384, 4096, classes)[1] <= 0.25
    # The gradients alone are more than a quarter of eager's memory: one chunk is least.
    assert _peaks(4096, 4096, classes)[2] == 4096
    assert plan.chunk_rows(5000, 512, classes, torch.bfloat16, None) == 2560, "equal chunks"
    assert plan.chunk_rows(0, 512, classes, torch.bfloat16, None) == 1


@kt.on_gpu
def test_peak_memory_is_that_of_the_plan() -> None:
    rows, hidden, classes = 32768, 512, 32000
    (x, w, _), target = problem(rows, hidden, classes, torch.bfloat16, "cuda")
    x.requires_grad_(), w.requires_grad_()

    def peak(function: Any) -> int:
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        torch.autograd.grad(function(), [x, w])
        return torch.cuda.max_memory_allocated() - before

    ours = peak(lambda: fused_linear_cross_entropy(x, w, target))
    theirs = peak(lambda: eager(x, w, None, target))
    assert ours <= theirs / 4


@kt.large
def test_more_than_2_to_the_31_logits_in_a_chunk() -> None:
    rows, hidden, classes = 16500, 16, 131072 + 8
    (x, w, _), target = problem(rows, hidden, classes, torch.bfloat16, "cuda")
    x.requires_grad_()
    found = []
    for chunk_size in (rows, 4096):
        loss = fused_linear_cross_entropy(x, w, target, chunk_size=chunk_size, reduction="sum")
        found.append((loss.detach(), torch.autograd.grad(loss, x)[0][-1000:]))
    kt.same(found[0][0], found[1][0], rtol=1e-2)
    assert kt.error(found[0][1], found[1][1]) < 1e-2
    rest = fused_linear_cross_entropy(x.detach(), w, target, chunk_size=rows, reduction="none")[
        -1000:
    ]
    want = eager(x.detach()[-1000:], w, None, target[-1000:], reduction="none")
    kt.same(rest, want, rtol=2e-2, atol=1e-2)


def _launch(
    width: int, config: Config | None = None, smoothing: float = 0.0, softcap: float | None = None
) -> None:
    x = torch.empty(1, dtype=torch.bfloat16)
    target, saved = torch.zeros(8, dtype=torch.int64), torch.ones(17)
    kinds = run.Settings(-100, "mean", smoothing, 0.0, softcap, None, None, True, True, False)
    buffer = run._logits_buffer(8, width, x)
    run.gradient_chunk(buffer, target, None, None, saved, 0, 8, kinds, config)


@kt.needs_compiler
@pytest.mark.parametrize("width", [50257, 128256])
def test_resources(width: int) -> None:
    (kernel,) = kt.check_resources(
        "fused_linear_cross_entropy", f"gradient {width}", lambda: _launch(width)
    )
    assert "ld.global.v4.b32" in kernel.asm["ptx"], "16 bytes a thread"


@kt.needs_compiler
def test_resources_with_everything() -> None:
    kt.check_resources(
        "fused_linear_cross_entropy",
        "gradient softcap smoothing",
        lambda: _launch(128256, smoothing=0.1, softcap=30.0),
    )
    value = torch.empty(4096, dtype=torch.float32)
    kt.check_resources(
        "fused_linear_cross_entropy",
        "scale",
        lambda: run.scale(torch.ones(()), torch.ones(17), value, True, torch.bfloat16, True),
    )


@kt.needs_compiler
def test_no_candidate_spills() -> None:
    for config in candidates(Case("gradient", 131072, torch.bfloat16)):
        with kt.compiled_for_sm90() as kernels:
            _launch(128256, config)
        assert kt._usage(kernels[0][1])["stack"] == 0, config
