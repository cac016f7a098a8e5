"""``paged_attention`` against dense attention in eager and float64."""

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
from torchsmith_kernels._src.paged_attention import op, reference, run
from torchsmith_kernels._src.paged_attention.config import (
    Case,
    Config,
    accepts,
    candidates,
    derived,
    splits,
)
from torchsmith_kernels._src.paged_attention.op import paged_attention

Problem = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def problem(
    lengths: list[int],
    heads: int = 4,
    kv_heads: int = 2,
    width: int = 32,
    page: int = 16,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    index: torch.dtype = torch.int32,
) -> Problem:
    """Random caches, with pages in random order and table entries that must not be read."""
    batch, longest = len(lengths), max([1, *lengths])
    each = -(-longest // page)
    pages = batch * each + 2
    query = kt.make(batch, heads, width, dtype=dtype, device=device)
    key = kt.make(pages, page, kv_heads, width, dtype=dtype, device=device)
    value = kt.make(pages, page, kv_heads, width, dtype=dtype, device=device)
    tables = torch.randperm(pages)[: batch * each].view(batch, each).to(index)
    for row, length in enumerate(lengths):
        tables[row, -(-length // page) :] = 2**31 - 1
    seq_lens = torch.tensor(lengths, dtype=index)
    return query, key, value, tables.to(device), seq_lens.to(device)


def eager(query: Tensor, key: Tensor, value: Tensor, tables: Tensor, lens: Tensor) -> Tensor:
    """Dense attention per sequence, in the inputs' dtype."""
    out = torch.zeros_like(query)
    page, group = key.shape[1], query.shape[1] // key.shape[2]
    for row, length in enumerate(lens.tolist()):
        if length:
            blocks = tables[row, : -(-length // page)].long()
            dense = [
                cache[blocks].flatten(0, 1)[:length].transpose(0, 1).repeat_interleave(group, 0)
                for cache in (key, value)
            ]
            out[row] = torch.nn.functional.scaled_dot_product_attention(
                query[row, :, None], dense[0], dense[1]
            )[:, 0]
    return out


def check(arguments: Problem) -> None:
    with torch.no_grad():
        kt.no_worse_than_eager(paged_attention, eager, arguments, backward=False)


@kt.devices
@kt.dtypes
@pytest.mark.parametrize("width", [32, 80, 128, 256])
def test_results(width: int, dtype: torch.dtype, device: str) -> None:
    torch.manual_seed(0)
    lengths = [70, 1, 0, 37] if device == "cpu" else [5000, 1, 0, 333]
    check(problem(lengths, width=width, dtype=dtype, device=device))


@kt.devices
@pytest.mark.parametrize("heads", [(1, 1), (3, 3), (6, 2), (20, 1), (71, 1)])
def test_heads_that_share_keys(heads: tuple[int, int], device: str) -> None:
    torch.manual_seed(0)
    check(problem([50, 17], *heads, dtype=torch.float16, device=device))


@kt.devices
@pytest.mark.parametrize("page", [1, 5, 16, 48, 256])
def test_block_sizes(page: int, device: str) -> None:
    torch.manual_seed(0)
    check(problem([100, 63], page=page, dtype=torch.float16, device=device))


@kt.devices
@kt.needs_kernels
@settings(max_examples=8, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 80), min_size=1, max_size=4),
    parts=st.integers(1, 5),
    page=st.sampled_from([3, 16, 32]),
    group=st.integers(1, 3),
)
def test_any_lengths_and_number_of_parts(
    lengths: list[int], parts: int, page: int, group: int, device: str
) -> None:
    arguments = problem(lengths, 2 * group, 2, 16, page, device=device)
    got = run.forward(*arguments, 0.25, Config(16, 4, 2), parts)
    kt.same(got, reference.forward(*arguments, 0.25))


@kt.devices
def test_the_scale_is_used(device: str) -> None:
    query, *rest = problem([20, 9], device=device)
    got = paged_attention(query, *rest, scale=0.5)
    kt.same(got, paged_attention(query * 0.5 * 32**0.5, *rest))


@kt.devices
def test_lengths_and_tables_may_be_64_bits_wide(device: str) -> None:
    check(problem([20, 9], device=device, index=torch.int64))


@kt.devices
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_tokens_without_a_table_entry_do_not_count(index: torch.dtype, device: str) -> None:
    query, key, value, tables, lens = problem([64, 64, 20], device=device, index=index)
    cut = torch.full((3, 6), 2**31 - 1, dtype=index, device=device)
    cut[:, :2] = tables[:, :2]
    got = paged_attention(query, key, value, cut[:, :2], lens + 1000)
    kt.same(got, paged_attention(query, key, value, tables, lens.fill_(32)))


@kt.devices
def test_strided_inputs(device: str) -> None:
    query, key, value, tables, lens = problem([20, 33], device=device)
    want = paged_attention(query, key, value, tables, lens)
    both = torch.stack([key, value], 1)  # [pages, 2, page, heads, width]
    by_head = both.transpose(2, 3).contiguous().transpose(2, 3)
    wide = tables.repeat_interleave(2, 1)[:, ::2]
    turned = query.transpose(1, 2).contiguous().transpose(1, 2)
    pairs = torch.stack([lens, lens], 1)[:, 0]
    got = paged_attention(turned, by_head[:, 0], by_head[:, 1], wide, pairs)
    kt.same(got, want)
    assert got.is_contiguous()


@kt.devices
def test_empty_inputs(device: str) -> None:
    query, key, value, tables, lens = problem([20, 33], device=device)
    assert paged_attention(query[:0], key, value, tables[:0], lens[:0]).shape == (0, 4, 32)
    none = paged_attention(query, key, value, tables[:, :0], torch.zeros_like(lens))
    assert torch.equal(none, torch.zeros_like(query))
    zeros = paged_attention(query, key, value, tables, torch.zeros_like(lens))
    assert torch.equal(zeros, torch.zeros_like(query))


@kt.devices
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_behave_as_in_the_reference(bad: float, device: str) -> None:
    torch.manual_seed(0)
    query, key, value, tables, lens = problem([60, 60, 40], 2, 1, 16, device=device)
    key[tables[0, 1], 3] = bad  # a whole key
    value[tables[1, 2], 3, 0, 5] = bad
    query[2] = bad
    want = reference.forward(query, key, value, tables, lens, 0.25)
    kt.same(paged_attention(query, key, value, tables, lens, 0.25), want)
    if kt.INTERPRETED or kt.COMPILED:
        config = Config(16, 4, 2)
        kt.same(run.forward(query, key, value, tables, lens, 0.25, config, 3), want)


@kt.devices
@kt.needs_kernels
def test_parts_without_finite_scores_do_not_count(device: str) -> None:
    query, key, value, tables, lens = problem([64], 1, 1, 16, device=device)
    query[:] = 1
    key[tables[0, 0]] = -math.inf
    want = reference.forward(query, key, value, tables, lens, 1.0)
    assert torch.isfinite(want).all()
    kt.same(run.forward(query, key, value, tables, lens, 1.0, Config(16, 4, 2), 4), want)


@kt.devices
def test_two_runs_are_bit_equal(device: str) -> None:
    arguments = problem([200, 33], device=device)
    kt.bit_equal(lambda: paged_attention(*arguments))


@kt.devices
def test_operator_is_registered_completely(device: str) -> None:
    torch.library.opcheck(op.op.overload, (*problem([20, 3], device=device), 0.5))


@kt.devices
@pytest.mark.parametrize("dynamic", [False, True])
def test_torch_compile_calls_the_operator(dynamic: bool, device: str) -> None:
    arguments = problem([20, 3], device=device)
    compiled = torch.compile(paged_attention, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    kt.same(compiled(*arguments), paged_attention(*arguments))


def test_there_is_no_gradient() -> None:
    query, *rest = problem([20, 3])
    query.requires_grad_()
    with pytest.raises(ArgumentTypeError, match=r"`query` is .* gradient; .* flash_attention"):
        paged_attention(query, *rest)
    with torch.no_grad():
        assert not paged_attention(query, *rest).requires_grad


def far(cache: Tensor) -> Tensor:
    """A cache of the same shape, each token in another part of memory."""
    blocks, tokens, heads, width = cache.shape
    strides = (heads * width, 2**31 // (tokens - 1) + 1, width, 1)
    return torch.empty(1, device="meta").as_strided((blocks, tokens, heads, width), strides)


def test_meta_tensors_give_shapes() -> None:
    result = paged_attention(*(t.to("meta") for t in problem([20, 3])))
    assert result.device.type == "meta" and result.shape == Q.shape


Q, K, V, T, L = problem([20, 3])
MISTAKES: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "type": (lambda: paged_attention(Q, K, V, [1], L), ArgumentTypeError, "`block_tables` is of"),  # type: ignore[arg-type]
    "scale": (lambda: paged_attention(Q, K, V, T, L, "1"), ArgumentTypeError, "`scale` is of"),  # type: ignore[arg-type]
    "query dtype": (lambda: paged_attention(Q.int(), K, V, T, L), DtypeError, "`query` has dtype"),
    "cache dtype": (lambda: paged_attention(Q, K, V.half(), T, L), DtypeError, "`value_cache` has"),
    "table dtype": (lambda: paged_attention(Q, K, V, T.float(), L), DtypeError, "`block_tables`"),
    "device": (lambda: paged_attention(Q, K, V, T, L.to("meta")), DeviceError, "`seq_lens` is on"),
    "query": (lambda: paged_attention(Q[0], K, V, T, L), ShapeError, "`query` has shape .4, 32."),
    "width": (
        lambda: paged_attention(torch.ones(2, 4, 257), K, V, T, L),
        ShapeError,
        "heads must be 1 to 256",
    ),
    "key": (lambda: paged_attention(Q, K[..., :16], V, T, L), ShapeError, "`key_cache` has shape"),
    "value": (lambda: paged_attention(Q, K, V[:1], T, L), ShapeError, "the shape of `key_cache`"),
    "heads": (
        lambda: paged_attention(Q[:, :3], K, V, T, L),
        ShapeError,
        "a multiple of the 2 heads",
    ),
    "strides": (
        lambda: paged_attention(Q, K.repeat(1, 1, 1, 2)[..., ::2], V, T, L),
        ShapeError,
        "last dimension must be contiguous",
    ),
    "far apart": (
        lambda: paged_attention(*(t.to("meta") for t in (Q, far(K), V, T, L))),
        ShapeError,
        "the tokens of a block must lie within",
    ),
    "tables": (lambda: paged_attention(Q, K, V, T[0], L), ShapeError, "`block_tables` has shape"),
    "lengths": (lambda: paged_attention(Q, K, V, T, L[:1]), ShapeError, "one length per sequence"),
}


@pytest.mark.parametrize("mistake", list(MISTAKES))
def test_errors_name_the_argument(mistake: str) -> None:
    call, error, message = MISTAKES[mistake]
    with pytest.raises(error, match=message):
        call()


@kt.large
def test_more_than_2_to_the_31_elements() -> None:
    pages = 2**31 // (16 * 8 * 128) + 500
    key = torch.zeros(pages, 16, 8, 128, device="cuda", dtype=torch.bfloat16)
    value = torch.zeros_like(key)
    key[-300:].normal_()
    value[-300:].normal_()
    tables = torch.arange(pages - 1, pages - 301, -1, device="cuda", dtype=torch.int32)[None]
    query = torch.randn(1, 32, 128, device="cuda", dtype=torch.bfloat16)
    lens = torch.tensor([300 * 16 - 3], device="cuda", dtype=torch.int32)
    want = reference.forward(query, key, value, tables, lens, 0.1)
    assert kt.error(paged_attention(query, key, value, tables, lens, 0.1), want) < 1e-2


def test_derived_configurations_are_accepted() -> None:
    for width in (32, 64, 128, 256):
        for group in (1, 8, 48, 200):
            for dtype in (torch.bfloat16, torch.float32):
                case = Case.of(width, group, dtype)
                for config in (derived(case), *candidates(case)):
                    assert accepts(case, config), (case, config)
    assert not accepts(Case.of(64, 1, torch.bfloat16), Config(48, 4, 2))


def test_number_of_parts() -> None:
    case, config = Case.of(128, 4, torch.bfloat16), Config(64, 4, 3)
    assert splits(case, config, 4096, 4096, 132) == 1, "enough without"
    assert splits(case, config, 8, 131072, 132) == 33, "two programs for each multiprocessor"
    assert splits(case, config, 8, 64, 132) == 1, "too short"


CASES = {
    "width 128": (32, 8, 128, torch.bfloat16),
    "width 64": (64, 8, 64, torch.bfloat16),
    "width 256": (16, 4, 256, torch.bfloat16),
    "many heads": (64, 1, 128, torch.bfloat16),
    "float32": (8, 8, 128, torch.float32),
}


@kt.needs_compiler
@pytest.mark.parametrize("name", list(CASES))
def test_resources(name: str) -> None:
    heads, kv_heads, width, dtype = CASES[name]
    arguments = problem([512], heads, kv_heads, width, dtype=dtype)
    case = Case.of(width, heads // kv_heads, dtype)
    kernels = kt.check_resources(
        "paged_attention", name, lambda: run.forward(*arguments, 0.1, derived(case), 4)
    )
    assert "cp.async.cg" in kernels[0].asm["ptx"], "16 bytes a thread"


@kt.needs_compiler
@pytest.mark.parametrize("name", ["width 128", "many heads", "float32"])
def test_no_candidate_spills(name: str) -> None:
    heads, kv_heads, width, dtype = CASES[name]
    arguments = problem([512], heads, kv_heads, width, dtype=dtype)
    for config in candidates(Case.of(width, heads // kv_heads, dtype)):
        with kt.compiled_for_sm90() as kernels:
            run.forward(*arguments, 0.1, config, 1)
        assert kt._usage(kernels[0][1])["stack"] == 0, config
