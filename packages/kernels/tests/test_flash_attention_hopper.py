"""The Hopper kernels of flash attention: when they run, and that they agree with the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kernel_testing as kt
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torchsmith_kernels._src import launch
from torchsmith_kernels._src.flash_attention import reference, run_forward, run_hopper
from torchsmith_kernels._src.flash_attention.call import Call
from torchsmith_kernels._src.flash_attention.op import flash_attention

DIM = run_hopper.HEAD_DIM


def call(query: Tensor, key: Tensor, value: Tensor, causal: bool = False, **changes: Any) -> Call:
    """Plain attention's arguments of the operator, but for ``changes``."""
    plain = Call(
        query,
        key,
        value,
        attn_mask=None,
        alibi_slopes=None,
        cu_seqlens_q=None,
        cu_seqlens_k=None,
        dropout_seed=None,
        max_seqlen_q=query.shape[-2],
        max_seqlen_k=key.shape[-2],
        dropout_p=0.0,
        scale=DIM**-0.5,
        softcap=0.0,
        left=None,
        right=0 if causal else None,
        bottom_right=False,
        score_mod="",
    )
    return plain._replace(**changes)


def inputs(
    batch: int,
    heads: int,
    kv_heads: int,
    q: int,
    k: int,
    device: str = "cpu",
    dtype: torch.dtype = torch.bfloat16,
) -> list[Tensor]:
    shapes = [(batch, heads, q, DIM), *[(batch, kv_heads, k, DIM)] * 2]
    return [kt.make(*shape, dtype=dtype, device=device) for shape in shapes]


needs_gluon = pytest.mark.skipif(
    not run_hopper.available(torch.device("cpu")), reason="needs Gluon, which cannot be interpreted"
)
on_hopper = pytest.mark.skipif(
    not (kt.COMPILED and run_hopper.available(torch.device("cuda", 0))), reason="needs Hopper"
)
causal = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
CHANGES: dict[str, Callable[[Call], Call]] = {
    "mask": lambda c: c._replace(attn_mask=torch.zeros(c.max_seqlen_q, c.max_seqlen_k)),
    "slopes": lambda c: c._replace(alibi_slopes=torch.zeros(c.heads)),
    "dropout": lambda c: c._replace(dropout_seed=torch.zeros(1, dtype=torch.int64)),
    "softcap": lambda c: c._replace(softcap=1.0),
    "score_mod": lambda c: c._replace(score_mod="name"),
    "negative scale": lambda c: c._replace(scale=-1.0),
    "window": lambda c: c._replace(left=3),
    "look ahead": lambda c: c._replace(right=1),
    "bottom right": lambda c: c._replace(right=0, bottom_right=True, max_seqlen_k=300),
    "head dimension": lambda c: c._replace(query=c.query[..., :64]),
    "float32": lambda c: c._replace(query=c.query.float()),
    "odd rows": lambda c: c._replace(key=torch.empty(1, 2, 256, DIM + 1).bfloat16()[..., :DIM]),
    "one row for all": lambda c: c._replace(key=c.key[:, :, :1].expand(-1, -1, 256, -1)),
    "odd start": lambda c: c._replace(
        value=torch.empty(c.value.numel() + 8).bfloat16()[1:-7].view(c.value.shape)
    ),
    "no queries": lambda c: c._replace(query=c.query[:, :, :0]),
}


@needs_gluon
@causal
def test_takes_plain_attention(causal: bool) -> None:
    assert run_hopper.fits(call(*inputs(1, 2, 2, 256, 256), causal))


@needs_gluon
def test_takes_a_last_row_mask_where_it_is_the_usual_one() -> None:
    assert run_hopper.fits(call(*inputs(1, 2, 2, 256, 256), True, bottom_right=True))


@needs_gluon
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_leaves_the_rest_to_the_general_kernels(change: Callable[[Call], Call]) -> None:
    assert not run_hopper.fits(change(call(*inputs(1, 2, 2, 256, 256))))


def test_other_architectures_take_the_general_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "capability", lambda device: 80)
    run_hopper.available.cache_clear()
    try:
        assert not run_hopper.fits(call(*inputs(1, 2, 2, 256, 256)))
    finally:
        run_hopper.available.cache_clear()


@kt.needs_compiler
@needs_gluon
@causal
def test_resources(causal: bool) -> None:
    case = "causal" if causal else "full"
    tensors = inputs(8, 16, 8, 256, 256)
    arguments = call(*tensors, causal)

    def both() -> None:
        output, lse = run_hopper.forward(arguments)
        run_hopper.backward(arguments, output, lse, output, lse)

    forward, _, backward, _ = kt.check_resources("flash_attention_hopper", case, both)
    for compiled in (forward, backward):
        assert "wgmma.mma_async" in compiled.asm["ptx"]
        assert "cp.async.bulk.tensor" in compiled.asm["ptx"]


# -- on the GPU ----------------------------------------------------------------------------------

SHAPES = [(2, 4, 4, 512, 512), (1, 4, 2, 333, 333), (1, 6, 1, 200, 700), (2, 2, 2, 700, 129)]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
HALF = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])


def eager(causal: bool) -> Callable[..., Tensor]:
    def function(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        repeats = query.shape[1] // key.shape[1]
        key, value = (t.repeat_interleave(repeats, 1) for t in (key, value))
        return F.scaled_dot_product_attention(query, key, value, is_causal=causal)

    return function


def ours(causal: bool) -> Callable[..., Tensor]:
    def function(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        found = flash_attention(query, key, value, is_causal=causal, enable_gqa=True)
        assert isinstance(found, Tensor)
        return found

    return function


@on_hopper
@shapes
@causal
@HALF
def test_as_exact_as_eager(shape: tuple[int, ...], causal: bool, dtype: torch.dtype) -> None:
    tensors = inputs(*shape, device="cuda", dtype=dtype)
    kt.no_worse_than_eager(ours(causal), eager(causal), tensors)


@on_hopper
@shapes
@causal
def test_equals_the_general_kernels(shape: tuple[int, ...], causal: bool) -> None:
    arguments = call(*inputs(*shape, device="cuda"), causal)
    assert run_hopper.fits(arguments)
    general = run_forward.forward(arguments)
    for mine, other in zip(run_hopper.forward(arguments), general, strict=True):
        kt.same(mine.float(), other.float(), rtol=2e-2, atol=2e-2)


@on_hopper
def test_strided_inputs() -> None:
    """Queries, keys and values side by side in one tensor, as a projection makes them."""
    packed = kt.make(2, 300, 3, 4, DIM, dtype=torch.bfloat16, device="cuda")
    tensors = [t.transpose(1, 2) for t in packed.unbind(2)]
    assert run_hopper.fits(call(*tensors, True))
    kt.no_worse_than_eager(ours(True), eager(True), tensors)


@on_hopper
@causal
def test_bit_equal(causal: bool) -> None:
    tensors = inputs(2, 8, 2, 3000, 3000, device="cuda")
    upstream = [kt.make(2, 8, 3000, DIM, dtype=torch.bfloat16, device="cuda")]
    kt.bit_equal(lambda: kt.grads(ours(causal), tensors, upstream))


@on_hopper
@causal
def test_infinity_and_nan(causal: bool) -> None:
    query, key, value = inputs(1, 2, 2, 400, 400, device="cuda")
    query[0, 0, 7, 3] = float("nan")
    key[0, 1, 300, 5] = float("inf")
    if not causal:  # whether 0 times NaN counts where the mask hides a value is open
        value[0, 0, 200, 9] = float("nan")
    found, _ = run_hopper.forward(call(query, key, value, causal))
    wanted, _ = reference.forward(call(query.float(), key.float(), value.float(), causal))
    assert torch.equal(found.isnan(), wanted.isnan())
    kt.same(found.float(), wanted, rtol=3e-2, atol=3e-2)


@on_hopper
@causal
def test_gradient_of_lse(causal: bool) -> None:
    """``lse`` takes part in gradients, as where partial results are merged."""
    arguments = call(*inputs(1, 4, 2, 300, 300, device="cuda"), causal)
    output, lse = run_hopper.forward(arguments)
    upstream, upstream_lse = torch.randn_like(output), torch.randn_like(lse)
    found = run_hopper.backward(arguments, upstream, upstream_lse, output, lse)
    exact = arguments._replace(
        query=arguments.query.double(),
        key=arguments.key.double(),
        value=arguments.value.double(),
    )
    wanted = reference.backward(exact, upstream.double(), upstream_lse.double(), False)
    for mine, true in zip(found, wanted, strict=False):
        assert true is not None
        assert kt.error(mine, true) < 4e-3


@on_hopper
@pytest.mark.parametrize("name", ["forward", "backward"])
def test_runs_by_default(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    inner = getattr(run_hopper, name)

    def watch(*args: Any) -> Any:
        seen.append(args)
        return inner(*args)

    monkeypatch.setattr(run_hopper, name, watch)
    tensors = [t.requires_grad_() for t in inputs(1, 2, 2, 256, 256, device="cuda")]
    ours(True)(*tensors).sum().backward()
    assert len(seen) == 1


@on_hopper
@kt.large
def test_more_than_2_31_elements() -> None:
    """The last sequence of a batch too large for 32-bit addresses is as it is alone."""
    batch, heads, rows = 1100, 16, 1024
    assert batch * heads * rows * DIM > launch.INT32_LIMIT
    shape = (batch, heads, rows, DIM)
    query, key, value, upstream = (
        torch.randn(shape, dtype=torch.bfloat16, device="cuda") for _ in range(4)
    )
    arguments = call(query, key, value, True)
    output, lse = run_hopper.forward(arguments)
    found = run_hopper.backward(arguments, upstream, None, output, lse)
    alone = call(query[-1:], key[-1:], value[-1:], True)
    output_alone, lse_alone = run_hopper.forward(alone)
    wanted = run_hopper.backward(alone, upstream[-1:], None, output_alone, lse_alone)
    for mine, true in zip((output, lse, *found), (output_alone, lse_alone, *wanted), strict=True):
        assert torch.equal(mine[-1:], true)
