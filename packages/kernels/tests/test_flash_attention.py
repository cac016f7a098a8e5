"""``flash_attention`` against PyTorch's own formula and float64, on every path that exists here."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import kernel_testing as kt
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torchsmith_kernels import (
    ArgumentTypeError,
    ArgumentValueError,
    DtypeError,
    ShapeError,
    flash_attention,
)
from torchsmith_kernels._src import tables
from torchsmith_kernels._src.flash_attention import (
    config,
    operators,
    philox,
    run_backward,
    run_forward,
)
from torchsmith_kernels._src.flash_attention.call import Call, regular, rows
from torchsmith_kernels._src.flash_attention.config import Case, Config, candidates


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Several tiles in small problems under the interpreter."""
    if kt.INTERPRETED:
        monkeypatch.setattr(config.table, "_find", lambda *_: (Config(16, 16, 4, 1), "derived"))
        tables.forget()
    yield
    tables.forget()


def inputs(
    batch: int = 1,
    heads: int = 2,
    q: int = 20,
    k: int | None = 37,
    dim: int = 24,
    kv_heads: int | None = None,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> list[Tensor]:
    torch.manual_seed(0)
    kv = (batch, kv_heads or heads, q if k is None else k, dim)
    shapes = ((batch, heads, q, dim), kv, kv)
    return [kt.make(*shape, dtype=dtype, device=device) for shape in shapes]


def eager(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    left: int | None = None,
    right: int | None = None,
    offset: int = 0,
    scale: float | None = None,
    softcap: float | None = None,
    slopes: Tensor | None = None,
    change: Any = None,
) -> tuple[Tensor, Tensor]:
    """The scores written out; in ``query``'s dtype, as eager code would."""
    group = query.shape[1] // key.shape[1]
    key, value = (t.repeat_interleave(group, 1) for t in (key, value))
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query * scale) @ key.transpose(-1, -2)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    i = torch.arange(query.shape[2], device=query.device)[:, None] + offset
    j = torch.arange(key.shape[2], device=query.device)
    if slopes is not None:
        scores = scores - (slopes[..., None, None] * (i - j).abs()).to(scores.dtype)
    seen = torch.ones_like(i - j, dtype=torch.bool)
    if mask is not None and mask.dtype is torch.bool:
        seen = seen & mask
    elif mask is not None:
        scores = scores + mask.to(scores.dtype)
    if change is not None:
        scores = change(scores)
    if left is not None:
        seen = seen & (j >= i - left)
    if right is not None:
        seen = seen & (j <= i + right)
    scores = scores.masked_fill(~seen, -math.inf)
    lse = torch.logsumexp(scores, -1)
    weights = torch.softmax(scores, -1).nan_to_num(0.0) if not bool(seen.all()) else (
        torch.softmax(scores, -1)
    )  # fmt: skip
    return weights @ value, lse


def only(function: Any, **kwargs: Any) -> Any:
    """The first result; log-sum-exp has a test of its own."""

    def call(*tensors: Tensor) -> Tensor:
        result = function(*tensors, **kwargs)
        return result[0] if isinstance(result, tuple) else result

    return call


SLOPES = torch.tensor([0.5, 0.125])
FEATURES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "causal": ({"is_causal": True}, {"right": 0}),
    "scale": ({"scale": 0.3}, {"scale": 0.3}),
    "negative scale": ({"scale": -0.3}, {"scale": -0.3}),
    "window": ({"window": (6, 3)}, {"left": 6, "right": 3}),
    "left": ({"window": (9, None)}, {"left": 9}),
    "causal window": ({"is_causal": True, "window": (17, -1)}, {"left": 17, "right": 0}),
    "softcap": ({"softcap": 1.5}, {"softcap": 1.5}),
    "alibi": ({"alibi_slopes": SLOPES, "is_causal": True}, {"slopes": SLOPES, "right": 0}),
    "all": (
        {"alibi_slopes": SLOPES, "softcap": 2.0, "window": (25, 30)},
        {"slopes": SLOPES, "softcap": 2.0, "left": 25, "right": 30},
    ),
}


def on(device: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    return {k: v.to(device) if isinstance(v, Tensor) else v for k, v in kwargs.items()}


@kt.devices
@pytest.mark.parametrize("feature", list(FEATURES))
def test_features(feature: str, device: str) -> None:
    ours, theirs = (on(device, kwargs) for kwargs in FEATURES[feature])
    kt.no_worse_than_eager(
        only(flash_attention, **ours), only(eager, **theirs), inputs(device=device), slack=4
    )


@kt.devices
@kt.dtypes
@pytest.mark.parametrize("causal", [False, True])
def test_dtypes(dtype: torch.dtype, causal: bool, device: str) -> None:
    tensors = inputs(1, 2, 40, 33, 32, dtype=dtype, device=device)
    with sdpa_kernel(SDPBackend.MATH):
        kt.no_worse_than_eager(
            only(flash_attention, is_causal=causal),
            only(F.scaled_dot_product_attention, is_causal=causal),
            tensors,
            slack=2,
        )


@kt.on_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("dim", [32, 64, 96, 128, 192, 256])
@pytest.mark.parametrize("causal", [False, True])
def test_real_sizes(dim: int, causal: bool, dtype: torch.dtype) -> None:
    tensors = inputs(2, 3, 1000, 777, dim, dtype=dtype, device="cuda")
    with sdpa_kernel(SDPBackend.MATH):
        kt.no_worse_than_eager(
            only(flash_attention, is_causal=causal),
            only(F.scaled_dot_product_attention, is_causal=causal),
            tensors,
            slack=2,
        )


@kt.on_gpu
@pytest.mark.parametrize("feature", list(FEATURES))
@pytest.mark.parametrize("dim", [64, 128])
def test_features_at_real_sizes(feature: str, dim: int) -> None:
    ours, theirs = (on("cuda", kwargs) for kwargs in FEATURES[feature])
    if "window" in ours:
        ours = {**ours, "window": tuple(s and 9 * s for s in ours["window"])}
        theirs = {k: 9 * v if k in ("left", "right") else v for k, v in theirs.items()}
    if ours.get("window", (0,))[-1] == -9:
        ours["window"] = (ours["window"][0], -1)
    tensors = inputs(2, 2, 700, 531, dim, dtype=torch.bfloat16, device="cuda")
    kt.no_worse_than_eager(only(flash_attention, **ours), only(eager, **theirs), tensors, slack=2)


@kt.devices
@pytest.mark.parametrize("q, k", [(20, 33), (33, 20), (1, 40), (16, 16)])
@pytest.mark.parametrize("window", [None, (5, 2)])
def test_bottom_right_alignment(
    q: int, k: int, window: tuple[int, int] | None, device: str
) -> None:
    tensors = inputs(1, 2, q, k, 16, device=device)
    left, right = window or (None, 0)
    ours = only(flash_attention, is_causal=window is None, window=window, bottom_right=True)
    theirs = only(eager, left=left, right=right, offset=k - q)
    kt.no_worse_than_eager(ours, theirs, tensors, slack=16)


@kt.devices
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_grouped_heads(kv_heads: int, device: str) -> None:
    tensors = inputs(1, 4, 20, 23, 16, kv_heads, device=device)
    kt.no_worse_than_eager(
        only(flash_attention, enable_gqa=True, is_causal=True),
        only(eager, right=0),
        tensors,
        slack=4,
    )


@kt.devices
@pytest.mark.parametrize("shape", [(20, 29), (2, 1, 1, 29), (1, 2, 1, 29), (2, 2, 20, 29)], ids=str)
def test_additive_mask_and_its_gradient(shape: tuple[int, ...], device: str) -> None:
    tensors = [*inputs(2, k=29, device=device), kt.make(*shape, device=device)]
    kt.no_worse_than_eager(only(flash_attention), only(eager), tensors, slack=4)
    tensors[-1] = tensors[-1].double()
    assert flash_attention(*tensors).dtype is torch.float32


@kt.devices
@pytest.mark.parametrize("shape", [(20, 29), (2, 1, 1, 29), (1, 2, 20, 29)], ids=str)
def test_boolean_mask(shape: tuple[int, ...], device: str) -> None:
    mask = torch.rand(shape) > 0.6
    mask[..., :5] = True
    mask = mask.to(device)
    tensors = inputs(2, k=29, device=device)
    kt.no_worse_than_eager(
        only(flash_attention, attn_mask=mask), only(eager, mask=mask), tensors, slack=4
    )


@kt.devices
def test_queries_that_see_nothing_get_zeros_as_in_eager(device: str) -> None:
    tensors = inputs(1, 2, 20, 24, 16, device=device)
    mask = torch.rand(20, 24, device=device) > 0.5
    mask[3], mask[17] = False, False
    added = torch.zeros(20, 24, device=device).masked_fill(~mask, -math.inf)
    for either in (mask, added):
        leaves = [t.clone().requires_grad_() for t in tensors]
        output, lse = flash_attention(*leaves, attn_mask=either, return_lse=True)
        with sdpa_kernel(SDPBackend.MATH):
            kt.same(output, F.scaled_dot_product_attention(*tensors, either))
        assert torch.all(output[:, :, [3, 17]] == 0) and torch.all(lse[:, :, 3] == -math.inf)
        for grad in torch.autograd.grad(output.sum(), leaves):
            assert torch.all(torch.isfinite(grad))
    # No key at all is in the window.
    output = flash_attention(*tensors, window=(0, 0), bottom_right=True, is_causal=True)
    assert torch.isfinite(output).all()


@kt.devices
@pytest.mark.parametrize("causal", [False, True])
def test_log_sum_exp_and_its_gradient(causal: bool, device: str) -> None:
    tensors = inputs(device=device)
    kt.no_worse_than_eager(
        lambda *t: flash_attention(*t, is_causal=causal, return_lse=True),
        lambda *t: eager(*t, right=0 if causal else None),
        tensors,
        slack=4,
    )
    leaf = tensors[0].requires_grad_()
    lse = flash_attention(leaf, *tensors[1:], return_lse=True)[1]
    assert lse.dtype is torch.float32
    (grad,) = torch.autograd.grad(lse.sum(), leaf)
    (want,) = torch.autograd.grad(eager(leaf, *tensors[1:])[1].sum(), leaf)
    kt.same(grad, want)


STARTS_Q, STARTS_K = [0, 17, 17, 30, 50], [0, 5, 9, 40, 40]


@kt.devices
@pytest.mark.parametrize("kind, bottom_right", [(torch.int32, False), (torch.int64, True)])
def test_packed_sequences(kind: torch.dtype, bottom_right: bool, device: str) -> None:
    torch.manual_seed(0)
    tensors = [kt.make(n, h, 16, device=device) for n, h in ((50, 4), (40, 2), (40, 2))]
    leaves = [t.clone().requires_grad_() for t in tensors]
    starts = [torch.tensor(s, dtype=kind, device=device) for s in (STARTS_Q, STARTS_K)]
    slopes = torch.rand(4, 4, device=device)
    output, lse = flash_attention(
        *leaves, is_causal=True, enable_gqa=True, bottom_right=bottom_right, alibi_slopes=slopes,
        cu_seqlens_q=starts[0], cu_seqlens_k=starts[1], return_lse=True,
    )  # fmt: skip
    assert output.shape == (50, 4, 16) and lse.shape == (4, 50)
    upstream = torch.randn_like(output)
    grads = torch.autograd.grad(output, leaves, upstream)
    for b in range(4):
        q, k = slice(STARTS_Q[b], STARTS_Q[b + 1]), slice(STARTS_K[b], STARTS_K[b + 1])
        part = [
            t[s].transpose(0, 1)[None].detach().requires_grad_() for t, s in zip(tensors, (q, k, k))
        ]
        if q.stop == q.start:
            continue
        want = flash_attention(
            *part, is_causal=True, enable_gqa=True, bottom_right=bottom_right,
            alibi_slopes=slopes[b],
        )  # fmt: skip
        kt.same(output[q], want[0].transpose(0, 1))
        partial = torch.autograd.grad(want, part, upstream[q].transpose(0, 1)[None])
        for whole, found, s in zip(grads, partial, (q, k, k)):
            kt.same(whole[s], found[0].transpose(0, 1))
    assert torch.all(output[30:] == 0), "a sequence without keys"


@kt.devices
def test_packed_lengths_may_be_given(device: str) -> None:
    tensors = [kt.make(40, 2, 16, device=device) for _ in range(3)]
    starts = torch.tensor([0, 15, 40], dtype=torch.int32, device=device)
    want = flash_attention(*tensors, cu_seqlens_q=starts)
    got = flash_attention(*tensors, cu_seqlens_q=starts, max_seqlen_q=32, max_seqlen_k=64)
    kt.same(got, want)
    empty = flash_attention(*(t[:0] for t in tensors), cu_seqlens_q=starts[:1])
    assert empty.shape == (0, 2, 16)


@kt.devices
@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
def test_packed_rows_after_the_last_sequence(dropout_p: float, device: str) -> None:
    tensors = [kt.make(40, 2, 16, device=device) for _ in range(3)]
    starts = torch.tensor([0, 10, 33], device=device)
    options: dict[str, Any] = {"is_causal": True, "cu_seqlens_q": starts, "dropout_p": dropout_p}
    if dropout_p:
        options["dropout_seed"] = torch.tensor([5], device=device)
    found = []
    for length in (40, 33):
        leaves = [t[:length].clone().requires_grad_() for t in tensors]
        output, lse = flash_attention(*leaves, return_lse=True, **options)
        assert output.shape == (length, 2, 16) and lse.shape == (2, length)
        loss = output[:33].square().sum() + lse[:, :33].sum()
        grads = torch.autograd.grad(loss, leaves)
        assert all(grad.shape == leaf.shape for grad, leaf in zip(grads, leaves))
        found.append([output[:33], lse[:, :33], *(grad[:33] for grad in grads)])
    for got, want in zip(*found):
        kt.same(got, want)


@kt.devices
def test_starts_of_packed_sequences_may_be_a_column(device: str) -> None:
    tensors = [kt.make(40, 2, 16, device=device) for _ in range(3)]
    columns = torch.tensor([[0, 7], [15, 7], [40, 7]], device=device)
    want = flash_attention(*tensors, cu_seqlens_q=columns[:, 0].contiguous())
    kt.same(flash_attention(*tensors, cu_seqlens_q=columns[:, 0]), want)


def test_wrong_starts_of_packed_sequences() -> None:
    tensors = [kt.make(40, 2, 16) for _ in range(3)]
    for wrong in ([0, 15, 45], [0, 35, 30], [3, 40]):
        with pytest.raises(ArgumentValueError, match="`cu_seqlens_q` is .* it must ascend from 0"):
            flash_attention(*tensors, cu_seqlens_q=torch.tensor(wrong))
    starts = torch.tensor([0, 15, 40])
    with pytest.raises(ArgumentValueError, match="`cu_seqlens_k` is .* to at most 40"):
        flash_attention(*tensors, cu_seqlens_q=starts, cu_seqlens_k=starts + starts)
    with pytest.raises(ShapeError, match="`cu_seqlens_k` has shape .* the shape of `cu_seqlens_q`"):
        flash_attention(*tensors, cu_seqlens_q=starts, cu_seqlens_k=starts[:2])
    for kind in (torch.bool, torch.float32):
        with pytest.raises(DtypeError, match="`cu_seqlens_q` has dtype .* int32 and int64"):
            flash_attention(*tensors, cu_seqlens_q=starts.to(kind))
    with pytest.raises(ShapeError, match="`cu_seqlens_q` .* it must be .sequences"):
        flash_attention(*tensors, cu_seqlens_q=starts[None])
    for wrong in (2.5, torch.tensor(30)):
        with pytest.raises(ArgumentTypeError, match="`max_seqlen_k` is of type .* an int or None"):
            flash_attention(*tensors, cu_seqlens_q=starts, max_seqlen_k=wrong)
    with pytest.raises(ArgumentValueError, match="`max_seqlen_q` is -1; it must not be negative"):
        flash_attention(*tensors, cu_seqlens_q=starts, max_seqlen_q=-1)


# -- dropout -------------------------------------------------------------------------------------


@kt.devices
def test_dropout_is_that_of_the_reference(device: str) -> None:
    seed = torch.tensor([987654321987654321], device=device)
    tensors = inputs(2, k=41, device=device)
    ours = only(flash_attention, dropout_p=0.3, dropout_seed=seed)
    place = [torch.arange(n, device=device) for n in (2 * 2, 20, 41)]
    kept = philox.kept(seed, place[0][:, None, None], place[1][:, None], place[2], 0.3)
    kept = kept.view(2, 2, 20, 41) / 0.7

    def dropped(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = (query * 24**-0.5) @ key.transpose(-1, -2)
        return (torch.softmax(scores, -1) * kept.to(scores.dtype)) @ value

    kt.no_worse_than_eager(ours, dropped, tensors, slack=4)


def test_dropout_keeps_the_right_share() -> None:
    k = torch.arange(1000)
    kept = philox.kept(torch.tensor([5]), torch.tensor(0), k[:, None], k, 0.3)
    assert abs(float(kept.double().mean()) - 0.7) < 0.002
    assert abs(float(kept.double().mean(0).std()) - math.sqrt(0.21 / 1000)) < 0.002
    other = philox.kept(torch.tensor([6]), torch.tensor(0), k[:, None], k, 0.3)
    assert abs(float((kept & other).double().mean()) - 0.49) < 0.003


@kt.devices
def test_dropout_follows_the_generator_and_its_ends(device: str) -> None:
    tensors = inputs(1, 1, 20, 20, 16, device=device)
    torch.manual_seed(3)
    first = flash_attention(*tensors, dropout_p=0.5)
    torch.manual_seed(3)
    kt.same(flash_attention(*tensors, dropout_p=0.5), first, 0, 0)
    assert not torch.equal(flash_attention(*tensors, dropout_p=0.5), first)
    assert torch.all(flash_attention(*tensors, dropout_p=1.0) == 0)


# -- changes of the scores -----------------------------------------------------------------------


def test_score_changes(device: str = kt.DEVICES[0]) -> None:
    pytest.importorskip("triton")
    from score_mods import curved, curved_without_derivative

    for mod in (curved, curved_without_derivative):
        tensors = inputs(device=device)

        def change(score: Tensor) -> Tensor:
            n, h, q, k = score.shape
            place = [torch.arange(m, device=device) for m in (n, h, q, k)]
            index = place[0][:, None, None, None], place[1][:, None, None], place[2][:, None]
            return mod.reference(score, *index, place[3])

        kt.no_worse_than_eager(
            only(flash_attention, score_mod=mod, is_causal=True),
            only(eager, change=change, right=0),
            tensors,
            slack=8,
        )


@kt.devices
def test_hidden_scores_do_not_reach_the_derivative_of_a_change(device: str) -> None:
    pytest.importorskip("triton")
    from score_mods import rooted, squared

    mask = torch.rand(20, 20, device=device) > 0.4
    mask[:, 0] = True
    for mod, seen in ((squared, mask), (rooted, None)):
        leaves = [t.requires_grad_() for t in inputs(1, 2, 20, 20, 16, device=device)]
        doubles = [t.detach().double().requires_grad_() for t in leaves]
        upstream = torch.randn_like(leaves[0])
        got, want = (
            torch.autograd.grad(flash_attention(*t, seen, score_mod=mod), t, upstream.to(t[0]))
            for t in (leaves, doubles)
        )
        for grad, exact in zip(got, want):
            kt.same(grad.double(), exact, 1e-3, 1e-4)


# -- layouts, transformations, errors ------------------------------------------------------------

LAYOUTS = {
    "batch, length, heads, dim": lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
    "one projection": lambda t: torch.cat([t, t], -1)[..., : t.shape[-1]],
    "length first": lambda t: t.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3),
    "dim not contiguous": lambda t: t.transpose(2, 3).contiguous().transpose(2, 3),
    "expanded": lambda t: t[:1].expand(2, -1, -1, -1),
    "overlapping windows": lambda t: t.flatten(2)[..., :24].unfold(2, 16, 1),
    "unaligned": lambda t: torch.cat([t.new_zeros(3), t.flatten()])[3:].view(t.shape),
}


@kt.devices
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_layouts(layout: str, device: str) -> None:
    tensors = [LAYOUTS[layout](t) for t in inputs(2, k=20, dim=16, device=device)]
    assert flash_attention(*tensors).stride() == torch.empty_like(tensors[0]).stride()
    kt.no_worse_than_eager(only(flash_attention), only(eager), tensors, slack=4)


def test_rows_too_far_apart_for_32_bits_are_copied() -> None:
    wide = torch.empty(2, 1, dtype=torch.bfloat16).as_strided((1, 1, 2, 1), (1, 1, 1, 1))
    far = torch.empty(1, device="meta").as_strided((1, 1, 200, 16), (16, 16, 2**24, 1))
    assert regular(wide) and not regular(far) and not regular(far[0].transpose(0, 1))
    assert regular(far[:, :, :1]) and rows(far).is_contiguous()


@kt.devices
def test_queries_without_heads(device: str) -> None:
    query, key, value = (t.requires_grad_() for t in inputs(1, 0, 5, 7, 16, 2, device=device))
    output = flash_attention(query, key, value, enable_gqa=True)
    assert output.shape == (1, 0, 5, 16)
    for grad in torch.autograd.grad(output.sum(), (key, value)):
        assert torch.all(grad == 0)


@kt.devices
def test_without_a_batch(device: str) -> None:
    tensors = inputs(1, device=device)
    want, lse = flash_attention(*tensors, return_lse=True)
    got = flash_attention(*(t[0] for t in tensors), return_lse=True)
    kt.same(got[0], want[0])
    kt.same(got[1], lse[0])


@kt.devices
@settings(max_examples=8, deadline=None)
@given(
    sizes=st.tuples(*(st.integers(0, n) for n in (2, 2, 35, 35, 20))),
    causal=st.booleans(),
    window=st.none() | st.tuples(st.integers(-1, 20), st.integers(-1, 20)),
    bottom_right=st.booleans(),
)
def test_any_size(
    sizes: tuple[int, ...],
    causal: bool,
    window: tuple[int, int] | None,
    bottom_right: bool,
    device: str,
) -> None:
    batch, heads, q, k, dim = sizes
    tensors = [t.requires_grad_() for t in inputs(batch, heads, q, k, dim, device=device)]
    output = flash_attention(*tensors, is_causal=causal, window=window, bottom_right=bottom_right)
    assert output.shape == tensors[0].shape
    doubles = [t.detach().double().requires_grad_() for t in tensors]
    want = flash_attention(*doubles, is_causal=causal, window=window, bottom_right=bottom_right)
    kt.same(output.double(), want, 1e-4, 1e-5)
    grads = torch.autograd.grad(output.sum(), tensors)
    for got, exact in zip(grads, torch.autograd.grad(want.sum(), doubles)):
        kt.same(got.double(), exact, 1e-4, 1e-5)


@kt.devices
def test_nan_and_infinity(device: str) -> None:
    query, key, value = inputs(1, 1, 20, 20, 16, device=device)
    query[0, 0, 3, 5] = math.nan
    value[0, 0, 7, 2] = math.inf
    got = flash_attention(query, key, value)
    want = eager(query, key, value)[0]
    assert torch.equal(got.isnan(), want.isnan()) and torch.equal(got.isinf(), want.isinf())


@kt.devices
def test_two_runs_are_bit_equal(device: str) -> None:
    tensors = inputs(1, 4, 20, 35, 16, 2, device=device)

    def run() -> list[Tensor]:
        leaves = [t.clone().requires_grad_() for t in tensors]
        output = flash_attention(*leaves, is_causal=True, enable_gqa=True)
        return [output.detach(), *torch.autograd.grad(output.square().sum(), leaves)]

    kt.bit_equal(run)


def call_of(tensors: list[Tensor], **changes: Any) -> Call:
    query, key, value = tensors
    call = Call(
        query, key, value, None, None, None, None, None, query.shape[2], key.shape[2], 0.0, 0.2,
        0.0, None, None, False, "",
    )  # fmt: skip
    return call._replace(**changes)


@kt.devices
def test_operators_are_registered_completely(device: str) -> None:
    tensors = inputs(1, 2, 9, 10, 8, device=device)
    leaves = [t.requires_grad_() for t in tensors]
    mask = kt.make(9, 10, device=device).requires_grad_()
    torch.library.opcheck(operators.op.overload, tuple(call_of(leaves, attn_mask=mask, right=2)))
    plain = call_of([t.detach() for t in tensors], attn_mask=mask.detach())
    output, lse = operators.op(*plain)
    torch.library.opcheck(operators.backward_op.overload, (output, lse, output, lse, True, *plain))


@pytest.mark.parametrize("feature", ["causal window", "all"])
def test_gradients_are_right(feature: str) -> None:
    kwargs = dict(FEATURES[feature][0])
    if "window" in kwargs:
        kwargs["window"] = (2, 1)
    tensors = [t.double().requires_grad_() for t in inputs(1, 2, 3, 4, 2)]
    mask = torch.randn(3, 4, dtype=torch.float64).requires_grad_()
    kt.gradcheck(
        lambda q, k, v, m: flash_attention(q, k, v, m, return_lse=True, **kwargs), *tensors, mask
    )


def test_gradients_of_grouped_packed_sequences_with_dropout() -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(5, h, 2, dtype=torch.float64).requires_grad_() for h in (2, 1, 1)]
    starts = torch.tensor([0, 2, 5])
    kt.gradcheck(
        lambda *t: flash_attention(
            *t,
            dropout_p=0.3,
            enable_gqa=True,
            cu_seqlens_q=starts,
            dropout_seed=torch.tensor([4]),
        ),  # fmt: skip
        *tensors,
    )


def test_function_transforms() -> None:
    query, key, value = inputs(1, 2, 9, 10, 8)
    found = torch.func.grad(lambda t: flash_attention(t, key, value).square().sum())(query)
    leaf = query.clone().requires_grad_()
    (want,) = torch.autograd.grad(eager(leaf, key, value)[0].square().sum(), leaf)
    kt.same(found, want)


@kt.devices
@pytest.mark.parametrize("dynamic", [False, True])
def test_torch_compile_calls_the_operator(dynamic: bool, device: str) -> None:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return flash_attention(query, key, value, is_causal=True, window=(9, 0))

    torch._dynamo.reset()
    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for length in (20, 23) if dynamic else (20,):
        leaves = [t.requires_grad_() for t in inputs(q=length, k=length, dim=16, device=device)]
        got = compiled(*leaves)
        want = attend(*leaves)
        kt.same(got, want)
        for a, b in zip(
            torch.autograd.grad(got.sum(), leaves), torch.autograd.grad(want.sum(), leaves)
        ):
            kt.same(a, b)


@kt.devices
def test_autocast_lowers_all_but_the_slopes(device: str) -> None:
    tensors = inputs(device=device)
    slopes = torch.tensor([1 / 3, 1 / 7], device=device)
    with torch.autocast(device, torch.bfloat16):
        output = flash_attention(*tensors, alibi_slopes=slopes)
    assert output.dtype is torch.bfloat16
    lowered = [t.bfloat16() for t in tensors]
    kt.same(output, flash_attention(*lowered, alibi_slopes=slopes), 0, 0)


def test_errors_name_the_argument() -> None:
    query, key, value = inputs(1, 4, 8, 8, 16, 2)
    with pytest.raises(ArgumentTypeError, match="`query` is of type list; it must be a tensor"):
        flash_attention([1.0], key, value)
    with pytest.raises(ShapeError, match="`key` .* must have 4 heads .* pass enable_gqa=True"):
        flash_attention(query, key, value)
    with pytest.raises(ShapeError, match="its heads must divide those of `query`, 3"):
        flash_attention(query[:, :3], key, value, enable_gqa=True)
    with pytest.raises(DtypeError, match="`value` has dtype torch.float16; accepted are torch.fl"):
        flash_attention(query, query, query.half())
    with pytest.raises(DtypeError, match="`query` has dtype torch.int64"):
        flash_attention(query.long(), query, query)
    with pytest.raises(ShapeError, match="`value` .* it must be the shape of `key`"):
        flash_attention(query, query, query[..., :8])
    with pytest.raises(ShapeError, match=r"`attn_mask` has shape \(8, 9\); it must expand to"):
        flash_attention(query, query, query, torch.zeros(8, 9))
    with pytest.raises(ShapeError, match="`query` .* it must be .batch, heads, length, dim."):
        flash_attention(query[None], query[None], query[None])
    with pytest.raises(ArgumentValueError, match="`window` is .*each side must be a number"):
        flash_attention(query, query, query, window=(-3, 0))
    with pytest.raises(ArgumentValueError, match="`dropout_p` is 2; it must be between 0 and 1"):
        flash_attention(query, query, query, dropout_p=2)
    for softcap in (-1.0, math.nan, math.inf):
        with pytest.raises(ArgumentValueError, match="`softcap` is .*; it must be positive and"):
            flash_attention(query, query, query, softcap=softcap)
    for argument in ("scale", "softcap", "dropout_p"):
        for wrong in ("1", torch.tensor(1.0)):
            with pytest.raises(ArgumentTypeError, match=f"`{argument}` is of type .* a number"):
                flash_attention(query, query, query, **{argument: wrong})
    with pytest.raises(ArgumentTypeError, match="`dropout_seed` is of type int; it must be a tens"):
        flash_attention(query, query, query, dropout_p=0.5, dropout_seed=3)
    with pytest.raises(ShapeError, match=r"`query` has shape \(\); it must be .batch, heads"):
        flash_attention(*[torch.tensor(1.0)] * 3)
    with pytest.raises(ArgumentTypeError, match="`score_mod` is of type function"):
        flash_attention(query, query, query, score_mod=lambda *_: 0)
    slopes = torch.ones(4).requires_grad_()
    with pytest.raises(ArgumentValueError, match="`alibi_slopes` is a tensor that requires grad"):
        flash_attention(query, query, query, alibi_slopes=slopes)
    with pytest.raises(ShapeError, match=r"`alibi_slopes` .* it must be \(4,\) or \(1, 4\)"):
        flash_attention(query, query, query, alibi_slopes=torch.ones(3))
    with pytest.raises(ArgumentValueError, match="`cu_seqlens_k` is given; `cu_seqlens_q` is need"):
        flash_attention(query, query, query, cu_seqlens_k=torch.tensor([0, 8]))


@kt.large
def test_more_than_2_to_the_31_elements() -> None:
    heads, length = 2**7 + 1, 2**17
    query = torch.randn(1, heads, length, 128, dtype=torch.bfloat16, device="cuda")
    query.requires_grad_()
    keys = query[:, -1:].detach().float()
    rows = keys[:, :, -9:]
    for window in ((40, 0), None):  # the general kernels, then Hopper's
        output = flash_attention(query, query, query, is_causal=True, window=window)
        left = None if window is None else 40
        want = eager(rows, keys, keys, left=left, right=0, offset=length - 9)[0]
        kt.same(output[0, -1, -9:].float(), want[0, 0], 2e-2, 2e-2)
        (grad,) = torch.autograd.grad(output, query, output.detach())
        assert torch.isfinite(grad[0, -1, -100:]).all() and grad[0, -1, -1].norm() > 0


# -- real code for sm_90 -------------------------------------------------------------------------


def compile_call(dim: int, dtype: torch.dtype, causal: bool) -> tuple[Call, Tensor]:
    tensors = [torch.empty(1, 2, 256, dim, dtype=dtype) for _ in range(3)]
    return call_of(tensors, right=0 if causal else None), torch.empty(1, 2, 256)


RESOURCE_CASES = [
    (64, torch.bfloat16, True),
    (128, torch.bfloat16, False),
    (128, torch.bfloat16, True),
    (256, torch.bfloat16, True),
    (64, torch.float32, True),
]


@kt.needs_compiler
@pytest.mark.parametrize("dim, dtype, causal", RESOURCE_CASES)
def test_resources(dim: int, dtype: torch.dtype, causal: bool) -> None:
    call, rows = compile_call(dim, dtype, causal)
    name = f"{dim} {str(dtype).removeprefix('torch.')} {'causal' if causal else 'full'}"
    (kernel,) = kt.check_resources(
        "flash_attention", f"forward {name}", lambda: run_forward.forward(call)
    )
    if dtype is torch.float32:
        return
    assert "wgmma" in kernel.asm["ptx"]
    kt.check_resources(
        "flash_attention",
        f"queries {name}",
        lambda: run_backward.queries(call, call.query, rows, rows),
    )
    if dim == 256:
        return  # two sums of 64 x 256 do not fit; spilling a little is faster than smaller tiles
    kt.check_resources(
        "flash_attention", f"keys {name}", lambda: run_backward.keys(call, call.query, rows, rows)
    )


@kt.needs_compiler
def test_a_float64_mask_compiles() -> None:
    call, rows = compile_call(64, torch.bfloat16, False)
    call = call._replace(attn_mask=torch.empty(256, 256, dtype=torch.float64), softcap=2.0)
    with kt.compiled_for_sm90() as kernels:
        run_forward.forward(call)
        run_backward.queries(call, call.query, rows, rows, True)
        run_backward.keys(call, call.query, rows, rows)
    assert [name for name, _ in kernels] == ["forward_kernel", "queries_kernel", "keys_kernel"]


@kt.needs_compiler
@pytest.mark.parametrize("kernel", ["forward", "queries"])
def test_no_candidate_spills(kernel: str) -> None:
    call, rows = compile_call(128, torch.bfloat16, True)
    for sizes in candidates(Case(kernel, torch.bfloat16, 128, True, True)):
        with kt.compiled_for_sm90() as kernels:
            if kernel == "forward":
                run_forward.forward(call, sizes)
            else:
                run_backward.queries(call, call.query, rows, rows, False, sizes)
        assert kt._usage(kernels[0][1])["stack"] == 0, sizes


def test_stored_configurations_are_checked() -> None:
    case = Case("forward", torch.bfloat16, 64, True, True)
    assert config.accepts(case, config.derived(case))
    assert not config.accepts(case, Config(48, 64, 4, 2))
    assert not config.accepts(case, Config(64, 64, 3, 2))
