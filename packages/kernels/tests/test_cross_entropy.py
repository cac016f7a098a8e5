"""``cross_entropy`` against eager and float64, on every path that exists here."""

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
    CrossEntropyLoss,
    DtypeError,
    ShapeError,
    cross_entropy,
)
from torchsmith_kernels._src.cross_entropy import op, run
from torchsmith_kernels._src.cross_entropy.config import (
    Case,
    Config,
    accepts,
    candidates,
    derived,
    size_class,
)


def eager(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
) -> Tensor:
    if softcap is not None:
        x = softcap * torch.tanh(x / softcap)
    weight = None if weight is None else weight.to(x.dtype)
    kinds: dict[str, Any] = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
    loss = F.cross_entropy(x, target, weight, reduction=reduction, **kinds)
    if not z_loss:
        return loss
    used = target != ignore_index
    extra = z_loss * x.logsumexp(-1).square() * used
    if reduction == "none":
        return loss + extra
    if reduction == "sum":
        return loss + extra.sum()
    weights = used.to(x.dtype) if weight is None else weight[target.clamp_min(0)] * used
    return loss + extra.sum() / weights.sum()


def labels(*shape: int, classes: int, device: str = "cpu") -> Tensor:
    """Random classes, about a fifth of them ignored."""
    target = torch.randint(0, classes, shape)
    return torch.where(torch.rand(shape) < 0.2, -100, target).to(device)


def compare(ours: kt.Function, theirs: kt.Function, tensors: list[Tensor]) -> None:
    """Eager's float32 scalar is sometimes right to the last bit by luck: four roundings then."""
    slack = 4.0 if tensors[0].dtype is torch.float32 else 1.0
    kt.no_worse_than_eager(ours, theirs, tensors, slack=slack)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none", "label_smoothing": 0.1},
    "weights": {"weight": True},
    "weights, smoothing": {"weight": True, "label_smoothing": 0.2},
    "z-loss": {"z_loss": 1e-2},
    "z-loss, weights, none": {"z_loss": 1e-2, "weight": True, "reduction": "none"},
    "softcap, smoothing": {"softcap": 3.0, "label_smoothing": 0.1},
    "all": {"softcap": 3.0, "label_smoothing": 0.1, "z_loss": 1e-2, "weight": True},
}


def arguments(options: dict[str, Any], classes: int, device: str = "cpu") -> dict[str, Any]:
    """``options`` with class weights in place of True."""
    if "weight" not in options:
        return options
    return {**options, "weight": torch.rand(classes).to(device)}


@kt.devices
@kt.dtypes
@pytest.mark.parametrize("options", list(OPTIONS))
@pytest.mark.parametrize("shape", [(6, 33), (3, 1024)])
def test_results_and_gradients(
    shape: tuple[int, int], options: str, dtype: torch.dtype, device: str
) -> None:
    torch.manual_seed(0)
    kinds = arguments(OPTIONS[options], shape[1], device)
    target = labels(shape[0], classes=shape[1], device=device)
    target[0] = 3
    x = kt.make(*shape, dtype=dtype, device=device, scale=2.0)
    compare(lambda x: cross_entropy(x, target, **kinds), lambda x: eager(x, target, **kinds), [x])


@kt.devices
@pytest.mark.parametrize("options", ["plain", "all"])
@pytest.mark.parametrize("width", [4096, 4099, 16400, 20001])
def test_rows_of_many_blocks(width: int, options: str, device: str) -> None:
    torch.manual_seed(0)
    kinds = arguments(OPTIONS[options], width, device)
    target = torch.tensor([0, width - 1, -100, 5], device=device)
    x = kt.make(4, width, dtype=torch.bfloat16, device=device)
    compare(lambda x: cross_entropy(x, target, **kinds), lambda x: eager(x, target, **kinds), [x])


LAYOUTS = {
    "transposed": lambda t: t.t().contiguous().t(),
    "rows apart": lambda t: torch.cat([t, t], 1)[:, : t.shape[1]],
    "every other": lambda t: t.repeat_interleave(2, 1)[:, ::2],
    "unaligned": lambda t: torch.cat([t.flatten()[:1], t.flatten()])[1:].view(t.shape),
    "expanded": lambda t: t[:1].expand(t.shape),
}


@kt.devices
@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("width", [64, 67])
def test_layouts(width: int, layout: str, device: str) -> None:
    torch.manual_seed(0)
    x = LAYOUTS[layout](kt.make(5, width, device=device))
    target = labels(10, classes=width, device=device)[::2]
    target[0] = 1
    compare(lambda x: cross_entropy(x, target), lambda x: F.cross_entropy(x, target), [x])


@kt.devices
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("shape", [(7,), (3, 7, 4), (2, 7, 3, 2)])
def test_other_dimensions(shape: tuple[int, ...], reduction: str, device: str) -> None:
    torch.manual_seed(0)
    rest = () if len(shape) == 1 else (shape[0], *shape[2:])
    target = torch.randint(0, 7, rest, device=device)
    compare(
        lambda x: cross_entropy(x, target, reduction=reduction),
        lambda x: F.cross_entropy(x, target, reduction=reduction),
        [kt.make(*shape, device=device)],
    )


@kt.devices
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(7,), (3, 7), (3, 7, 4)])
def test_class_probabilities(shape: tuple[int, ...], reduction: str, device: str) -> None:
    torch.manual_seed(0)
    weight = torch.rand(7, device=device)
    kinds: dict[str, Any] = {"weight": weight, "reduction": reduction, "label_smoothing": 0.1}
    probabilities = kt.make(*shape, device=device).softmax(0 if len(shape) == 1 else 1)
    x = kt.make(*shape, device=device)
    loss = cross_entropy(x, probabilities, **kinds)
    kt.same(loss, F.cross_entropy(x, probabilities, **kinds))
    with_z = cross_entropy(x, probabilities, z_loss=0.5, softcap=2.0, reduction="none")
    bent = 2 * torch.tanh(x / 2)
    axis = 0 if len(shape) == 1 else 1
    plain = F.cross_entropy(bent, probabilities, reduction="none")
    kt.same(with_z, plain + 0.5 * bent.logsumexp(axis).square())
    kinds = {"z_loss": 0.5, "softcap": 2.0}
    kt.same(cross_entropy(x, probabilities, **kinds), with_z.mean())
    kt.same(cross_entropy(x, probabilities, reduction="sum", **kinds), with_z.sum())


@kt.devices
@settings(max_examples=10, deadline=None)
@given(rows=st.integers(0, 5), width=st.integers(1, 70), seed=st.integers(0, 9))
def test_any_shape(rows: int, width: int, seed: int, device: str) -> None:
    torch.manual_seed(seed)
    x = kt.make(rows, width, device=device).requires_grad_()
    target = labels(rows, classes=width, device=device)
    for reduction in ("none", "mean"):
        got, want = (f(x, target, reduction=reduction) for f in (cross_entropy, F.cross_entropy))
        kt.same(got, want)
        found, expected = (torch.autograd.grad(loss.sum(), x)[0] for loss in (got, want))
        kt.same(found, expected)


@kt.devices
@pytest.mark.filterwarnings("ignore:size_average and reduce args")
def test_legacy_reductions_and_target_types(device: str) -> None:
    x = kt.make(4, 5, device=device)
    target = torch.tensor([1, 2, 3, 4], device=device)
    kt.same(cross_entropy(x, target.int(), reduce=False), F.cross_entropy(x, target, reduce=False))
    found = cross_entropy(x, target.to(torch.uint8), size_average=False)
    kt.same(found, F.cross_entropy(x, target, size_average=False))
    other = cross_entropy(x, target, ignore_index=2)
    kt.same(other, F.cross_entropy(x, target, ignore_index=2))


@kt.devices
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize(("scale", "offset"), [(30, 0), (100, 0), (1, 1000)])
def test_large_logits_cost_no_precision(
    scale: float, offset: float, reduction: str, device: str
) -> None:
    x = kt.make(64, 500, device=device, scale=scale) + offset
    target = torch.randint(0, 500, (64,)).to(device)
    kt.no_worse_than_eager(
        lambda x: cross_entropy(x, target, reduction=reduction),
        lambda x: F.cross_entropy(x, target, reduction=reduction),
        [x],
        slack=2.0,
    )


@kt.devices
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("weighted", [False, True])
def test_bytes_as_classes_do_not_wrap_around(weighted: bool, reduction: str, device: str) -> None:
    target = torch.tensor([156, 3, 156, 199], dtype=torch.uint8, device=device)  # 156 = 256 - 100
    weight = torch.rand(200, device=device) + 0.5 if weighted else None
    compare(
        lambda x: cross_entropy(x, target, weight, reduction=reduction),
        lambda x: eager(x, target.long(), weight, reduction=reduction),
        [kt.make(4, 200, device=device)],
    )
    far = torch.tensor([0, 3, 0, 7], dtype=torch.int32, device=device)
    x = kt.make(4, 200, device=device)
    kt.same(cross_entropy(x, far, ignore_index=2**40), F.cross_entropy(x, far.long()))


@pytest.mark.parametrize("shape", [(0, 0, 3), (0, 7, 3), (2, 7, 0), (0, 7), (0, 0)])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@kt.devices
def test_nothing_at_all(shape: tuple[int, ...], reduction: str, device: str) -> None:
    x = torch.zeros(shape, device=device, requires_grad=True)
    target = torch.zeros(shape[:1] + shape[2:], dtype=torch.int64, device=device)
    loss = cross_entropy(x, target, reduction=reduction)
    kt.same(loss, F.cross_entropy(x, target, reduction=reduction))
    loss.sum().backward()
    assert x.grad is not None and x.grad.shape == shape


def test_meta_tensors_give_shapes() -> None:
    x = torch.zeros(4, 9, device="meta", requires_grad=True)
    loss = cross_entropy(x, torch.zeros(4, dtype=torch.int64, device="meta"), reduction="none")
    loss.sum().backward()
    assert loss.shape == (4,) and x.grad is not None


@kt.devices
def test_nothing_counts(device: str) -> None:
    x = kt.make(3, 5, device=device).requires_grad_()
    target = torch.full((3,), -100, device=device)
    for options in ({}, {"label_smoothing": 0.1}, {"reduction": "sum"}, {"reduction": "none"}):
        loss = cross_entropy(x, target, **options)
        kt.same(loss, F.cross_entropy(x, target, **options))
        (dx,) = torch.autograd.grad(loss.sum(), x)
        kt.same(dx, torch.zeros_like(x))


@kt.devices
def test_nan_and_infinity_behave_as_in_eager(device: str) -> None:
    inf = math.inf
    x = torch.tensor(
        [
            [math.nan, 1.0, 2.0],
            [inf, 1.0, 2.0],
            [-inf, 1.0, 2.0],
            [-inf, -inf, -inf],
            [1.0, -inf, 3.0],
            [1e30, -1e30, 0.0],
        ],
        device=device,
    ).requires_grad_()
    target = torch.tensor([1, 1, 1, 1, 1, 1], device=device)
    got, want = (f(x, target, reduction="none") for f in (cross_entropy, F.cross_entropy))
    kt.same(got, want)
    kt.same(torch.autograd.grad(got.sum(), x)[0], torch.autograd.grad(want.sum(), x)[0])


@pytest.mark.skipif(kt.COMPILED or kt.INTERPRETED, reason="about the path without kernels")
def test_classes_that_do_not_exist_raise() -> None:
    with pytest.raises(IndexError, match="out of bounds"):
        cross_entropy(kt.make(2, 3), torch.tensor([0, 3]))


@kt.devices
@pytest.mark.skipif(not (kt.COMPILED or kt.INTERPRETED), reason="about the kernels")
@pytest.mark.parametrize("weighted", [False, True])
def test_classes_that_do_not_exist_are_not_read(weighted: bool, device: str) -> None:
    x = kt.make(4, 3, device=device).requires_grad_()
    weight = torch.rand(3, device=device) if weighted else None
    target = torch.tensor([0, 2**40, -5, 1], device=device)
    loss = cross_entropy(x, target, weight, reduction="none")
    assert loss.isnan().tolist() == [False, True, True, False]
    (dx,) = torch.autograd.grad(loss.sum(), x)
    assert dx.isnan().all(1).tolist() == [False, True, True, False]


@kt.devices
def test_two_runs_are_bit_equal(device: str) -> None:
    x = kt.make(9, 1000, device=device).requires_grad_()
    target = labels(9, classes=1000, device=device)

    def both() -> list[Tensor]:
        loss = cross_entropy(x, target, label_smoothing=0.1)
        return [loss.detach(), torch.autograd.grad(loss, x)[0]]

    kt.bit_equal(both)


@kt.devices
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_operator_is_registered_completely(reduction: str, device: str) -> None:
    x = kt.make(3, 5, device=device)
    target = torch.tensor([1, 2, 3], device=device)
    weight = torch.rand(5, device=device)
    kinds = (-100, reduction, 0.1, 0.01, 30.0)
    torch.library.opcheck(op.op.overload, (x.requires_grad_(), target, weight, *kinds, None))
    torch.library.opcheck(op.op.overload, (x, target, None, *kinds, torch.float32))
    loss, saved = op.op(x.detach(), target, weight, *kinds, None)
    grad = torch.ones_like(loss)
    torch.library.opcheck(
        op.backward_op.overload, (grad, x.detach(), target, weight, saved, *kinds)
    )


@pytest.mark.parametrize("options", list(OPTIONS))
def test_gradients_are_right(options: str) -> None:
    torch.manual_seed(0)
    kinds = arguments(OPTIONS[options], 5)
    target = torch.tensor([1, -100, 4])
    x = kt.make(3, 5, dtype=torch.float64).requires_grad_()
    kt.gradcheck(lambda x: cross_entropy(x, target, **kinds), x)


@kt.devices
def test_second_derivatives_by_kernels(device: str) -> None:
    x = kt.make(3, 5, device=device).requires_grad_()
    target = torch.tensor([1, -100, 4], device=device)
    found = []
    for function in (cross_entropy, F.cross_entropy):
        (dx,) = torch.autograd.grad(function(x, target), x, create_graph=True)
        found.append(torch.autograd.grad(dx.square().sum(), x)[0])
    kt.same(*found)


def test_function_transforms() -> None:
    x, target = kt.make(3, 5), torch.tensor([1, -100, 4])
    found = torch.func.grad(lambda t: cross_entropy(t, target, label_smoothing=0.1))(x)
    want = torch.func.grad(lambda t: F.cross_entropy(t, target, label_smoothing=0.1))(x)
    kt.same(found, want)


@kt.devices
@pytest.mark.parametrize("dynamic", [False, True])
def test_torch_compile_calls_the_operator(dynamic: bool, device: str) -> None:
    compiled = torch.compile(cross_entropy, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for rows in (3, 4):
        x = kt.make(rows, 5, device=device).requires_grad_()
        target = labels(rows, classes=5, device=device)
        target[0] = 2
        loss = compiled(x, target, label_smoothing=0.1)
        want = F.cross_entropy(x, target, label_smoothing=0.1)
        kt.same(loss, want)
        kt.same(torch.autograd.grad(loss, x)[0], torch.autograd.grad(want, x)[0])


@kt.devices
def test_autocast_returns_float32(device: str) -> None:
    x = kt.make(3, 5, dtype=torch.bfloat16, device=device).requires_grad_()
    target = torch.tensor([1, 2, 3], device=device)
    with torch.autocast(device, torch.bfloat16):
        loss = cross_entropy(x, target)
        want = F.cross_entropy(x, target)
    assert loss.dtype == want.dtype == torch.float32
    # On CUDA eager takes the logarithms in bfloat16 even so.
    kt.same(loss, want, rtol=1e-2)
    kt.same(loss, F.cross_entropy(x.float(), target))
    (dx,) = torch.autograd.grad(loss, x)
    assert dx.dtype == torch.bfloat16


@pytest.mark.filterwarnings("ignore:size_average and reduce args")
def test_module() -> None:
    weight = torch.rand(5)
    ours = CrossEntropyLoss(weight, label_smoothing=0.1, ignore_index=2)
    theirs = torch.nn.CrossEntropyLoss(weight, label_smoothing=0.1, ignore_index=2)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    x, target = kt.make(4, 5), torch.tensor([1, 2, 3, 4])
    kt.same(ours(x, target), theirs(x, target))
    assert CrossEntropyLoss(z_loss=1.0)(x, target) > CrossEntropyLoss()(x, target)
    assert CrossEntropyLoss(size_average=False).reduction == "sum"
    with pytest.raises(ArgumentValueError, match="`label_smoothing` is 2"):
        CrossEntropyLoss(label_smoothing=2)


def test_errors_name_the_argument() -> None:
    x, target = kt.make(3, 5), torch.tensor([1, 2, 3])
    with pytest.raises(ArgumentTypeError, match="`input` is of type list; it must be a tensor"):
        cross_entropy([1.0], target)
    with pytest.raises(DtypeError, match="`input` has dtype torch.int64; accepted are float16"):
        cross_entropy(target, target)
    with pytest.raises(DtypeError, match="`target` has dtype torch.int16; accepted are int64"):
        cross_entropy(x, target.short())
    with pytest.raises(ShapeError, match=r"`target` has shape \(2,\); it must be .* \(3,\)"):
        cross_entropy(x, target[:2])
    with pytest.raises(ShapeError, match=r"`target` has shape \(5,\).*as probabilities, \(3, 5\)"):
        cross_entropy(x, torch.ones(5))
    with pytest.raises(ShapeError, match=r"`weight` has shape \(3,\); it must be one value per"):
        cross_entropy(x, target, torch.ones(3))
    with pytest.raises(ShapeError, match="`input` has shape"):
        cross_entropy(torch.tensor(1.0), target)
    with pytest.raises(ArgumentTypeError, match="`reduction` is 'max'; it must be 'none' or"):
        cross_entropy(x, target, reduction="max")
    with pytest.raises(ArgumentValueError, match="`softcap` is 0; it must be positive and"):
        cross_entropy(x, target, softcap=0)
    with pytest.raises(ArgumentValueError, match="`softcap` is inf; it must be positive and fin"):
        cross_entropy(x, target, softcap=math.inf)
    with pytest.raises(ArgumentTypeError, match="`z_loss` is of type str"):
        cross_entropy(x, target, z_loss="1")
    with pytest.raises(ArgumentTypeError, match="`label_smoothing` is of type Tensor"):
        cross_entropy(x, target, label_smoothing=torch.zeros(()))
    for wrong in (None, 1.5, True, torch.tensor(1)):
        with pytest.raises(ArgumentTypeError, match="`ignore_index` is of type .* must be an int"):
            cross_entropy(x, target, ignore_index=wrong)


def test_configurations() -> None:
    assert [size_class(n) for n in (1, 1024, 1025, 32000, 65537, 10**6)] == [
        1024, 1024, 4096, 65536, 131072, 131072,
    ]  # fmt: skip
    case = Case("forward", 65536, torch.bfloat16)
    assert case.key() == "forward/65536/bfloat16"
    few = Case("forward", 65536, torch.bfloat16, few=True)
    assert few.key() == "forward/few rows/65536/bfloat16"
    assert all(accepts(few, config) for config in [derived(few), *candidates(few)])
    for kernel in ("forward", "backward", "gradient"):
        case = Case(kernel, 65536, torch.bfloat16)
        assert accepts(case, derived(case))
        assert len(candidates(case)) <= 10
        assert all(accepts(case, config) for config in candidates(case))
    assert not accepts(case, Config(1000, 4))


@kt.large
def test_more_than_2_to_the_31_elements() -> None:
    rows, width = 2**15 + 3, 2**16 + 1
    x = torch.zeros(rows, width, dtype=torch.bfloat16, device="cuda")
    target = torch.full((rows,), width - 1, device="cuda")
    x[-1, -1] = 20.0
    loss, saved = op.op(x, target, None, -100, "none", 0.0, 0.0, None, torch.float32)
    kt.same(loss[:-1], torch.full_like(loss[:-1], math.log(width)))
    want = math.log(width - 1 + math.exp(20.0)) - 20.0
    kt.same(loss[-1], torch.full_like(loss[-1], want), atol=1e-4)
    ones = torch.ones_like(loss)
    kinds = (-100, "none", 0.0, 0.0, None)
    dx = op.backward_op(ones, x, target, None, saved, *kinds)
    assert dx[-1, 0] == torch.tensor(math.exp(-20.0 - want)).bfloat16()
    assert dx[-2, -1] == torch.tensor(1 / width - 1).bfloat16()
    assert dx[-2, 0] == torch.tensor(1 / width).bfloat16()


def _launch(kernel: str, width: int, config: Config | None = None, **options: Any) -> None:
    x = torch.empty(8, width, dtype=torch.bfloat16)
    target = torch.zeros(8, dtype=torch.int64)
    smoothing, softcap = options.get("smoothing", 0.0), options.get("softcap")
    kinds = (-100, "mean", smoothing, 0.0, softcap)
    if kernel == "forward":
        run.forward(x, target, None, *kinds, torch.bfloat16, config)
    else:
        run.backward(torch.ones(()), x, target, None, torch.ones(17), *kinds, config)


@kt.needs_compiler
@pytest.mark.parametrize("kernel", ["forward", "backward"])
@pytest.mark.parametrize("width", [32000, 50257])
def test_resources(width: int, kernel: str) -> None:
    kernels = kt.check_resources(
        "cross_entropy", f"{kernel} {width}", lambda: _launch(kernel, width)
    )
    assert "ld.global.v4.b32" in kernels[0].asm["ptx"], "16 bytes a thread"


@kt.needs_compiler
@pytest.mark.parametrize("kernel", ["forward", "backward"])
def test_resources_with_everything(kernel: str) -> None:
    kt.check_resources(
        "cross_entropy",
        f"{kernel} softcap smoothing",
        lambda: _launch(kernel, 32000, smoothing=0.1, softcap=30.0),
    )


@kt.needs_compiler
def test_float64_class_weights_compile() -> None:
    x, target = torch.empty(8, 3000), torch.zeros(8, dtype=torch.int64)
    weight = torch.ones(3000, dtype=torch.float64)
    kinds = (-100, "mean", 0.1, 0.0, 30.0)
    with kt.compiled_for_sm90() as kernels:
        run.forward(x, target, weight, *kinds, torch.float32)
        run.backward(torch.ones(()), x, target, weight, torch.ones(17), *kinds)
    assert [name for name, _ in kernels] == ["forward_kernel", "reduce_kernel", "backward_kernel"]


@kt.needs_compiler
@pytest.mark.parametrize("kernel", ["forward", "backward"])
def test_no_candidate_spills(kernel: str) -> None:
    for config in candidates(Case(kernel, 65536, torch.bfloat16)):
        with kt.compiled_for_sm90() as kernels:
            _launch(kernel, 32000, config)
        assert kt._usage(kernels[0][1])["stack"] == 0, config
