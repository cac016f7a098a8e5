"""``apply_rotary`` against the usual formulas and float64, on every path that exists here."""

from __future__ import annotations

import math
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
    DtypeError,
    ShapeError,
    apply_rotary,
)
from torchsmith_kernels._src.apply_rotary import op, reference, run
from torchsmith_kernels._src.apply_rotary.config import Case, candidates, head_block


def rotate_half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def hugging_face(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The formula of Llama, Qwen and Mistral, on ``[batch, heads, sequence, head_dim]``."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def interleaved(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    """Neighbours as complex numbers; tables ``[sequence, head_dim / 2]``."""
    turned = []
    for x in (q, k):
        a, b = x[..., ::2], x[..., 1::2]
        turned.append(torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2))
    return tuple(turned)


def heads_first(
    batch: int, length: int, heads: tuple[int, int], dim: int, **options: Any
) -> list[Tensor]:
    """Queries and keys as a projection leaves them, transposed."""
    return [kt.make(batch, length, n, dim, **options).transpose(1, 2) for n in heads]


def angles(*shape: int, columns: int, **options: Any) -> list[Tensor]:
    """Tables with the halves repeated, as in Hugging Face models."""
    angle = torch.rand(*shape, columns // 2, dtype=torch.float64) * 6
    angle = torch.cat((angle, angle), -1)
    dtype, device = options.get("dtype", torch.float32), options.get("device", "cpu")
    return [angle.cos().to(dtype).to(device), angle.sin().to(dtype).to(device)]


@kt.devices
@kt.dtypes
@pytest.mark.parametrize("heads", [(4, 2), (5, 5)])
@pytest.mark.parametrize("dim", [16, 24])
def test_hugging_face_models(
    dim: int, heads: tuple[int, int], dtype: torch.dtype, device: str
) -> None:
    torch.manual_seed(0)
    q, k = heads_first(2, 5, heads, dim, dtype=dtype, device=device)
    cos, sin = angles(2, 5, columns=dim, dtype=dtype, device=device)

    def ours(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return apply_rotary(q, k, cos, sin)

    def theirs(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return hugging_face(q, k, cos.to(q.dtype), sin.to(q.dtype))

    kt.no_worse_than_eager(ours, theirs, [q, k])
    for mine, eager in zip(ours(q, k), theirs(q, k), strict=True):
        assert mine.stride() == eager.stride()


@kt.devices
@kt.dtypes
def test_neighbouring_pairs(dtype: torch.dtype, device: str) -> None:
    torch.manual_seed(0)
    q, k = (kt.make(2, n, 7, 12, dtype=dtype, device=device) for n in (3, 1))
    cos, sin = (t[:, :6] for t in angles(9, columns=12, dtype=dtype, device=device))

    def theirs(q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
        return interleaved(q, k, cos[:7].to(q.dtype), sin[:7].to(q.dtype))

    kt.no_worse_than_eager(lambda q, k: apply_rotary(q, k, cos, sin, True), theirs, [q, k])


FORMS = {"batch": (2, 5), "shared": (1, 5), "table": (8,)}


@kt.devices
@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize("columns", ["full", "half"])
@pytest.mark.parametrize("pairs", ["half", "interleaved"])
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_every_form_of_the_tables(
    form: str, columns: str, pairs: str, layout: str, device: str
) -> None:
    torch.manual_seed(0)
    shape = [(2, n, 5, 20) if layout == "bhsd" else (2, 5, n, 20) for n in (3, 1)]
    q, k = (kt.make(*s, device=device) for s in shape)
    # Partial: 12 of 20 elements turn.
    cos, sin = (kt.make(*FORMS[form], 6, device=device) for _ in range(2))
    if columns == "full":
        repeat = [t.repeat_interleave(2, -1) for t in (cos, sin)]
        cos, sin = repeat if pairs == "interleaved" else [torch.cat((t, t), -1) for t in (cos, sin)]
    options = (None, 12, pairs == "interleaved", layout)
    got = apply_rotary(q, k, cos, sin, pairs == "interleaved", rotary_dim=12, layout=layout)
    for mine, x in zip(got, (q, k), strict=True):
        kt.same(mine, reference.rotate(x, cos, sin, *options, False))
        assert torch.equal(mine[..., 12:], x[..., 12:])
    back = op.op(q, k, cos, sin, *options, True)
    for mine, x in zip(back, (q, k), strict=True):
        kt.same(mine, reference.rotate(x, cos, sin, *options, True))


def test_the_reference_is_the_usual_formula() -> None:
    q, k = heads_first(2, 5, (3, 1), 8)
    cos, sin = angles(2, 5, columns=8)
    theirs = hugging_face(q, k, cos, sin)
    for x, want in zip((q, k), theirs, strict=True):
        kt.same(reference.rotate(x, cos, sin, None, 8, False, "bhsd", False), want)


@kt.devices
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("shape", [(2, 5), (5,), (1, 5)])
def test_positions(shape: tuple[int, ...], index: torch.dtype, device: str) -> None:
    torch.manual_seed(0)
    q, k = heads_first(2, 5, (4, 2), 16, device=device)
    cos, sin = angles(30, columns=16, device=device)
    positions = torch.randint(30, shape).to(index).to(device)
    got = apply_rotary(q, k, cos, sin, positions=positions)
    places = positions.expand(2, 5).long()
    for mine, want in zip(got, hugging_face(q, k, cos[places], sin[places]), strict=True):
        kt.same(mine, want)
    strided = torch.stack((positions, positions), -1)[..., 0]
    kt.same(apply_rotary(q, k, cos, sin, positions=strided)[0], got[0])


@kt.devices
def test_tables_of_another_dtype(device: str) -> None:
    torch.manual_seed(0)
    q, k = heads_first(2, 5, (4, 2), 16, dtype=torch.bfloat16, device=device)
    cos, sin = angles(5, columns=16, device=device)
    got, _ = apply_rotary(q, k, cos, sin)
    want, _ = hugging_face(q.float(), k.float(), cos[None], sin[None])
    assert got.dtype is torch.bfloat16
    assert kt.error(got, want) < kt.ROUNDOFF[torch.bfloat16]


@kt.devices
def test_positions_outside_of_the_table(device: str) -> None:
    q, k = heads_first(1, 3, (2, 1), 4, device=device)
    cos, sin = angles(8, columns=4, device=device)
    positions = torch.tensor([7, 8, -1], device=device)
    if device == "cpu" and not kt.INTERPRETED:
        with pytest.raises(IndexError):
            apply_rotary(q, k, cos, sin, positions=positions)
        return
    got, _ = apply_rotary(q, k, cos, sin, positions=positions)
    assert got[:, :, 0].isfinite().all() and got[:, :, 1:].isnan().all()


LAYOUTS = {
    "contiguous": lambda t: t.contiguous(),
    "transposed": lambda t: t,
    "sliced": lambda t: t[:, ::2],
    "unaligned": lambda t: t[..., 1:9],
    "columns apart": lambda t: t[..., ::2],
    "expanded": lambda t: t[:1].expand(3, -1, -1, -1),
}


@kt.devices
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_layouts_are_those_of_eager(layout: str, device: str) -> None:
    q, k = (LAYOUTS[layout](t) for t in heads_first(2, 3, (4, 3), 16, device=device))
    cos, sin = angles(3, columns=q.shape[-1], device=device)
    ours = apply_rotary(q, k, cos, sin)
    theirs = hugging_face(q, k, cos[None], sin[None])
    for mine, want in zip(ours, theirs, strict=True):
        kt.same(mine, want)
        assert mine.stride() == want.stride()


@kt.devices
@settings(max_examples=15, deadline=None)
@given(
    sizes=st.tuples(*(st.integers(0, 4) for _ in range(5))),
    pairs=st.booleans(),
    rest=st.integers(0, 3),
)
def test_any_shape(sizes: tuple[int, ...], pairs: bool, rest: int, device: str) -> None:
    batch, length, q_heads, k_heads, half = sizes
    q, k = heads_first(batch, length, (q_heads, k_heads), 2 * half + rest, device=device)
    cos, sin = (kt.make(length, half, device=device) for _ in range(2))
    q.requires_grad_()
    got = apply_rotary(q, k, cos, sin, pairs, rotary_dim=2 * half)
    for mine, x in zip(got, (q, k), strict=True):
        assert mine.shape == x.shape
        kt.same(mine, reference.rotate(x, cos, sin, None, 2 * half, pairs, "bhsd", False))
    got[0].sum().backward()
    ones = torch.ones_like(q)
    kt.same(q.grad, reference.rotate(ones, cos, sin, None, 2 * half, pairs, "bhsd", True))


@kt.devices
@pytest.mark.parametrize("pairs", [False, True])
def test_in_place(pairs: bool, device: str) -> None:
    fused = kt.make(2, 5, 7, 16, device=device)
    before = fused.clone()
    q, k = fused[:, :, :4].transpose(1, 2), fused[:, :, 4:6].transpose(1, 2)
    cos, sin = angles(5, columns=8, device=device)
    want = apply_rotary(q, k, cos, sin, pairs, rotary_dim=8)
    version = fused._version
    got = apply_rotary(q, k, cos, sin, pairs, rotary_dim=8, inplace=True)
    assert got[0] is q and got[1] is k
    kt.same(q, want[0])
    kt.same(k, want[1])
    assert torch.equal(fused[:, :, 6], before[:, :, 6])
    assert fused._version > version


@kt.devices
def test_in_place_is_recorded_by_autograd(device: str) -> None:
    x = kt.make(2, 5, 6, 8, device=device).requires_grad_()
    cos, sin = angles(5, columns=8, device=device)

    def loss(inplace: bool) -> Tensor:
        y = x * 2
        q, k = y[:, :, :4].transpose(1, 2), y[:, :, 4:].transpose(1, 2)
        q, k = apply_rotary(q, k, cos, sin, inplace=inplace)
        return (q * q.detach()).sum() + (k**3).sum() + (y.sin()).sum() * inplace

    def copied() -> Tensor:
        y = x * 2
        q, k = y[:, :, :4].transpose(1, 2), y[:, :, 4:].transpose(1, 2)
        q, k = apply_rotary(q, k, cos, sin)
        return loss(False) + q.sin().sum() + k.sin().sum()

    kt.same(torch.autograd.grad(loss(True), x)[0], torch.autograd.grad(copied(), x)[0])
    y = x * 1
    squared = y.square()  # keeps y for its backward
    apply_rotary(y, y * 1, *angles(6, columns=8, device=device), inplace=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squared.sum().backward()
    with pytest.raises(RuntimeError, match="leaf"):
        apply_rotary(x, x * 1, *angles(6, columns=8, device=device), inplace=True)


@kt.devices
def test_in_place_errors(device: str) -> None:
    q, k = heads_first(2, 3, (2, 2), 4, device=device)
    cos, sin = angles(3, columns=4, device=device)
    with pytest.raises(ArgumentTypeError, match="`k` is `q` itself"):
        apply_rotary(q, q, cos, sin, inplace=True)
    with pytest.raises(ArgumentTypeError, match="`q` is an expanded tensor"):
        apply_rotary(q[:1].expand(2, -1, -1, -1), k, cos, sin, inplace=True)


@kt.devices
def test_gradients_of_the_tables(device: str) -> None:
    q, k = heads_first(2, 3, (4, 2), 8, device=device)
    angle = kt.make(2, 3, 4, device=device).requires_grad_()
    twice = torch.cat((angle, angle), -1)
    cos, sin = twice.cos(), twice.sin()
    ours = [t.sum() for t in apply_rotary(q, k, cos, sin)]
    got = torch.autograd.grad(ours, angle, retain_graph=True)
    want = torch.autograd.grad([t.sum() for t in hugging_face(q, k, cos, sin)], angle)
    for mine, theirs in zip(got, want, strict=True):
        kt.same(mine, theirs)


@kt.devices
def test_nan_and_infinity_stay_in_their_pair(device: str) -> None:
    q = torch.zeros(1, 1, 1, 8, device=device)
    q[..., 0], q[..., 1] = math.nan, math.inf
    cos, sin = (torch.full((1, 4), 0.5, device=device) for _ in range(2))
    got, _ = apply_rotary(q, q, cos, sin)
    kt.same(got, reference.rotate(q, cos, sin, None, 8, False, "bhsd", False))
    assert got.isfinite().sum() == 4


@kt.devices
def test_two_runs_are_bit_equal(device: str) -> None:
    q, k = heads_first(2, 9, (4, 2), 16, device=device)
    cos, sin = angles(9, columns=16, device=device)
    kt.bit_equal(lambda: apply_rotary(q, k, cos, sin))


@kt.devices
def test_operators_are_registered_completely(device: str) -> None:
    q, k = heads_first(2, 3, (4, 2), 8, device=device)
    cos, sin = angles(3, columns=8, device=device)
    positions = torch.tensor([2, 1, 0], device=device)
    rest = (cos, sin, positions, 8, False, "bhsd", False)
    torch.library.opcheck(op.in_place_overload, (q.clone(), k.clone(), *rest))
    torch.library.opcheck(op.op.overload, (q.requires_grad_(), k.requires_grad_(), *rest))
    changed = q * 1
    op.in_place_overload(changed, None, *rest)
    kt.same(changed, op.op(q, k, *rest)[0])
    (grad,) = torch.autograd.grad(changed.sum(), q)
    (want,) = torch.autograd.grad(op.op(q, k, *rest)[0].sum(), q)
    kt.same(grad, want)


def test_gradients_are_right() -> None:
    cos, sin = angles(3, columns=4, dtype=torch.float64)
    q, k = (t.requires_grad_() for t in heads_first(1, 3, (2, 1), 6, dtype=torch.float64))
    for pairs in (False, True):
        kt.gradcheck(lambda q, k: apply_rotary(q, k, cos, sin, pairs, rotary_dim=4), q, k)  # noqa: B023


def test_function_transforms() -> None:
    q, k = heads_first(1, 3, (2, 1), 4)
    cos, sin = angles(3, columns=4)

    def total(inplace: bool) -> Any:
        def loss(x: Tensor) -> Tensor:
            y, z = apply_rotary(x * 1, k * 1, cos, sin, inplace=inplace)
            return (y**2).sum() + z.sum()

        return torch.func.grad(loss)(q)

    kt.same(total(False), 2 * q)  # a rotation keeps the sum of squares
    kt.same(total(True), 2 * q)


@kt.devices
@pytest.mark.parametrize("inplace", [False, True])
def test_torch_compile_calls_the_operator(inplace: bool, device: str) -> None:
    q, k = heads_first(2, 3, (4, 2), 8, device=device)
    cos, sin = angles(3, columns=8, device=device)

    def function(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return apply_rotary(q * 1, k * 1, cos, sin, inplace=inplace)

    q.requires_grad_()
    got = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=True)(q, k)
    want = hugging_face(q, k, cos[None], sin[None])
    kt.same(got[0], want[0])
    kt.same(got[1], want[1])
    ours, theirs = (torch.autograd.grad(t[0].square().sum(), q)[0] for t in (got, want))
    kt.same(ours, theirs)


def test_errors_name_the_argument() -> None:
    q, k = heads_first(2, 3, (4, 2), 8)
    cos, sin = angles(3, columns=8)
    with pytest.raises(ArgumentTypeError, match="`cos` is of type list"):
        apply_rotary(q, k, [1.0], sin)
    with pytest.raises(DeviceError, match="`k` is on meta; it must be on cpu, where `q` is"):
        apply_rotary(q, k.to("meta"), cos, sin)
    with pytest.raises(DtypeError, match="`k` has dtype torch.float64; accepted are float32"):
        apply_rotary(q, k.double(), cos, sin)
    with pytest.raises(ShapeError, match="`k` has shape .* all but the number of heads"):
        apply_rotary(q, k[:, :, :2], cos, sin)
    with pytest.raises(ShapeError, match="`cos` has shape .* at least 3 rows"):
        apply_rotary(q, k, cos[:2], sin[:2])
    with pytest.raises(ShapeError, match="`sin` has shape .* the shape of `cos`"):
        apply_rotary(q, k, cos, sin[:, :4])
    with pytest.raises(ShapeError, match="`positions` has shape"):
        apply_rotary(q, k, cos, sin, positions=torch.tensor([1]))
    with pytest.raises(DtypeError, match="`positions` has dtype torch.float32"):
        apply_rotary(q, k, cos, sin, positions=torch.ones(3))
    with pytest.raises(ArgumentTypeError, match="`rotary_dim` is 10; it must be even"):
        apply_rotary(q, k, cos, sin, rotary_dim=10)
    with pytest.raises(ArgumentTypeError, match="`layout` is 'sbhd'"):
        apply_rotary(q, k, cos, sin, layout="sbhd")


@pytest.mark.parametrize(
    ("heads", "block"), [((32, 8), 8), ((28, 4), 4), ((71, 1), 8), ((1, 1), 1), ((5, 5), 1)]
)
def test_few_heads_of_a_tile_are_idle(heads: tuple[int, int], block: int) -> None:
    assert head_block(*heads, 8) == block


@kt.large
def test_more_than_2_to_the_31_elements() -> None:
    length = 2**17 + 3
    q = torch.zeros(1, length, 128, 128, dtype=torch.bfloat16, device="cuda")
    q[:, -1] = 1
    k = q[:, :, :1]
    cos = torch.full((length, 64), 2.0, device="cuda")
    got, _ = apply_rotary(q, k, cos, cos, layout="bshd", inplace=False)
    assert torch.all(got[0, -1, :, :64] == 0) and torch.all(got[0, -1, :, 64:] == 4)
    assert not got[0, :-1].any()


def _heads(dim: int, dtype: torch.dtype) -> list[Tensor]:
    q, k = (torch.empty(2, 64, n, dim, dtype=dtype).transpose(1, 2) for n in (32, 8))
    cos = torch.empty(2, 64, dim, dtype=dtype)
    return [q, k, cos, cos]


@kt.needs_compiler
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("pairs", [False, True])
def test_resources(pairs: bool, dtype: torch.dtype) -> None:
    name = f"{'interleaved' if pairs else 'half'} {str(dtype).removeprefix('torch.')}"
    given = (None, 128, pairs, "bhsd", False)
    (kernel,) = kt.check_resources(
        "apply_rotary", name, lambda: run.forward(*_heads(128, dtype), *given)
    )
    assert "ld.global.v4.b32" in kernel.asm["ptx"], "16 bytes a thread"


@kt.needs_compiler
@pytest.mark.parametrize("block", [32, 128])
@pytest.mark.parametrize("pairs", [False, True])
def test_no_candidate_spills(pairs: bool, block: int) -> None:
    given = (None, 2 * block, pairs, "bhsd", False)
    for config in candidates(Case(block, pairs, torch.bfloat16)):
        with kt.compiled_for_sm90() as kernels:
            run.forward(*_heads(2 * block, torch.bfloat16), *given, config)
        assert kt._usage(kernels[0][1])["stack"] == 0, config
