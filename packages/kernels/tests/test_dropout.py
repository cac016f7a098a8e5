"""``dropout``: its law, its streams of random numbers, and its gradients."""

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
    Dropout,
    DtypeError,
    KernelsError,
    dropout,
)
from torchsmith_kernels._src.dropout import op, reference, run
from torchsmith_kernels._src.pointwise import random
from torchsmith_kernels._src.pointwise.config import Case, candidates

STREAM: random.Stream = (None, -(2**62) + 12345, 2**40 + 8)


def mask(y: Tensor) -> Tensor:
    return y != 0


# -- the random numbers --------------------------------------------------------------------------


def philox_in_python(counter: list[int], key: list[int]) -> list[int]:
    """Philox 4x32-10 as published, in Python's integers."""
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & random.MASK, (a >> 32) ^ c[3] ^ k[1], a & random.MASK]
        k = [(k[0] + 0x9E3779B9) & random.MASK, (k[1] + 0xBB67AE85) & random.MASK]
    return c


def test_philox_gives_the_published_words() -> None:
    """The known answers that come with Random123, the authors' library."""
    assert philox_in_python([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    pi = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0]
    assert philox_in_python(*pi) == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


@pytest.mark.parametrize("stream", [(None, 0, 0), STREAM, (None, -1, -1)])
def test_words_are_those_of_philox(stream: random.Stream) -> None:
    _, key, offset = stream
    want: list[int] = []
    for group in range(3):
        counter = [group, 0, offset & random.MASK, (offset >> 32) & random.MASK ^ (1 << 31)]
        for word in philox_in_python(counter, [key & random.MASK, (key >> 32) & random.MASK]):
            want += [(word & 0xFFFF) << 16, word & 0xFFFF0000]
    assert random.words(21, stream, False, torch.device("cpu")).tolist() == want[:21]


def test_a_wide_word_refines_the_narrow_one() -> None:
    narrow, wide = (random.words(1000, STREAM, w, torch.device("cpu")) for w in (False, True))
    assert torch.equal(wide & 0xFFFF0000, narrow)
    assert (wide & 0xFFFF).unique().numel() > 900
    assert 0 <= int(wide.min()) and int(wide.max()) <= random.MASK


@pytest.mark.parametrize("p", [1e-9, 1e-4, 0.01, 0.1, 1 / 3, 0.5, 0.9, 0.9999, 1 - 1e-9])
def test_the_law_is_near_the_probability(p: float) -> None:
    wide, threshold, scale = random.law(p)
    assert abs(threshold / 2**32 - p) <= max(min(p, 1 - p) / 1000, 2**-32)
    assert scale == 1 / (1 - p)
    assert wide == (p not in (0.01, 0.1, 1 / 3, 0.5, 0.9))


@kt.devices
@kt.dtypes
@pytest.mark.parametrize("p", [0.1, 0.5, 1e-3, 1.0])
@pytest.mark.parametrize("shape", [(7,), (1000,), (3, 65), (2, 5, 257)])
def test_kernel_and_reference_drop_the_same(
    shape: tuple[int, ...], p: float, dtype: torch.dtype, device: str
) -> None:
    x = kt.make(*shape, dtype=dtype, device=device)
    got, want = op.op(x, p, *STREAM), reference.dropout(x, p, STREAM)
    assert torch.equal(mask(got), mask(want))
    kt.same(got, want, rtol=2 * kt.ROUNDOFF[dtype])


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda t: t.transpose(0, 1),
    "every other": lambda t: t[..., ::2],
    "unaligned": lambda t: t[..., 1:],
    "expanded": lambda t: t[:1].expand(5, -1, -1),
    "half": lambda t: t.chunk(2, -1)[1],
    "odd part": lambda t: t[..., :19],
}


@kt.devices
@pytest.mark.parametrize("p", [0.4, 1e-3])
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_layouts(layout: str, p: float, device: str) -> None:
    x = LAYOUTS[layout](kt.make(4, 6, 48, device=device))
    y = op.op(x, p, *STREAM)
    assert y.stride() == F.dropout(x, p).stride()
    assert torch.equal(mask(y), mask(reference.dropout(x, p, STREAM)))
    # However the gradient lies, it goes where the elements went.
    leaf = x.detach().requires_grad_()
    y = op.op(leaf, p, *STREAM)
    for grad in (torch.ones_like(y), torch.ones_like(y, memory_format=torch.contiguous_format)):
        (found,) = torch.autograd.grad(y, leaf, grad, retain_graph=True)
        kt.same(found, torch.where(mask(y), 1 / (1 - p), 0.0))
    (found,) = torch.autograd.grad(y.sum(), leaf)
    kt.same(found, torch.where(mask(y), 1 / (1 - p), 0.0))


@kt.needs_kernels
@kt.devices
def test_masks_do_not_depend_on_tiles(device: str) -> None:
    x = kt.make(5, 64, device=device)[:, :40]
    wanted = mask(reference.dropout(x, 0.5, STREAM))
    for config in candidates(Case("forward", torch.float32))[:3]:
        assert torch.equal(mask(run.dropout(x, 0.5, STREAM, config)), wanted)
        assert torch.equal(mask(run.dropout(x.contiguous(), 0.5, STREAM, config)), wanted)


@kt.devices
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9, 0.003])
def test_the_share_of_dropped_elements_is_p(p: float, device: str) -> None:
    torch.manual_seed(3)
    count = 2**22 if device == "cuda" else 2**16
    y = dropout(torch.ones(count, device=device), p)
    dropped = float((y == 0).double().mean())
    assert abs(dropped - p) < 5 * math.sqrt(p * (1 - p) / count)
    kt.same(y[y != 0], torch.full_like(y[y != 0], 1 / (1 - p)))
    assert abs(float(y.double().mean()) - 1) < 5 * math.sqrt(p / (1 - p) / count)


def correlation(a: Tensor, b: Tensor) -> float:
    a, b = a.double(), b.double()
    a, b = a - a.mean(), b - b.mean()
    return float((a * b).mean() / (a.std() * b.std()))


@kt.devices
def test_masks_are_independent(device: str) -> None:
    torch.manual_seed(4)
    count = 2**20 if device == "cuda" else 2**15
    ones = torch.ones(count, device=device)
    first, second = mask(dropout(ones, 0.5)), mask(dropout(ones, 0.5))
    limit = 5 / math.sqrt(count)
    assert abs(correlation(first, second)) < limit
    for lag in (1, 2, 3, 4, 7, 8, 16, 32, 256, 1024):  # neighbours, halves, words, groups, tiles
        assert abs(correlation(first[lag:], first[:-lag])) < limit, lag
    # Each of 256 patterns of eight neighbours is as frequent as the others: chi-squared, 255
    # degrees of freedom, whose standard deviation is 22.6.
    bits = 2 ** torch.arange(8, device=device)
    patterns = (first.view(-1, 8) * bits).sum(1).bincount(minlength=256).double()
    expected = count / 8 / 256
    assert abs(float(((patterns - expected) ** 2 / expected).sum()) - 255) < 5 * 22.6


# -- streams -------------------------------------------------------------------------------------


@kt.devices
def test_seeding_repeats_and_calls_differ(device: str) -> None:
    x = torch.ones(1000, device=device)
    torch.manual_seed(5)
    first, second = dropout(x), dropout(x)
    torch.manual_seed(5)
    assert torch.equal(dropout(x), first) and torch.equal(dropout(x), second)
    torch.manual_seed(6)
    assert not torch.equal(first, second) and not torch.equal(dropout(x), first)


@kt.devices
def test_saving_the_generator_state_repeats(device: str) -> None:
    x = torch.ones(1000, device=device)
    dropout(x)
    devices = [0] if device == "cuda" else []
    with torch.random.fork_rng(devices):
        inside = dropout(x)
    assert torch.equal(dropout(x), inside)


@kt.devices
@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_recomputes_the_same_mask(reentrant: bool, device: str) -> None:
    x = torch.ones(1000, device=device, requires_grad=True)
    y = checkpoint(lambda t: dropout(t * t, 0.5), x, use_reentrant=reentrant)
    y.sum().backward()
    kt.same(x.grad, 2 * y.detach())


@kt.devices
def test_a_seed_tensor_is_a_stream(device: str) -> None:
    x = kt.make(1000, device=device).requires_grad_()
    seed = torch.tensor(STREAM[1:], device=device)
    y = op.op(x, 0.3, seed, 0, 0)
    assert torch.equal(y, op.op(x, 0.3, *STREAM))
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad != 0, y != 0)


@kt.on_gpu
def test_the_gpu_generator_moves_without_a_kernel() -> None:
    torch.manual_seed(7)
    generator = torch.cuda.default_generators[0]
    before = generator.get_offset()
    seed, key, offset = random.draw(torch.device("cuda", 0))
    assert (seed, key, offset) == (None, 7, before)
    assert generator.get_offset() == before + 4
    torch.manual_seed(-3)  # seeds are unsigned 64-bit numbers
    assert random.draw(torch.device("cuda"))[1] == -3


@kt.on_gpu
def test_replays_of_a_cuda_graph_differ() -> None:
    x = torch.ones(10000, device="cuda", requires_grad=True)
    torch.autograd.grad(dropout(x).sum(), x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = dropout(x)
        (grad,) = torch.autograd.grad(y.sum(), x)
    seen = []
    torch.manual_seed(8)
    for _ in range(3):
        graph.replay()
        assert torch.equal(y.detach(), grad)
        seen.append(mask(y))
    assert not torch.equal(seen[0], seen[1]) and not torch.equal(seen[1], seen[2])
    torch.manual_seed(8)
    graph.replay()
    assert torch.equal(mask(y), seen[0])


# -- torch.compile and transforms ----------------------------------------------------------------


@kt.devices
def test_torch_compile(device: str) -> None:
    def twice(t: Tensor) -> Tensor:
        return torch.stack([dropout(t, 0.5), dropout(t, 0.5)])

    compiled = torch.compile(twice, backend="aot_eager", fullgraph=True)
    x = torch.ones(1000, device=device, requires_grad=True)
    torch.manual_seed(9)
    first = compiled(x)
    second = compiled(x)
    torch.manual_seed(9)
    assert torch.equal(first, compiled(x)) and not torch.equal(first, second)
    assert not torch.equal(first[0], first[1]), "two calls in one graph have two masks"
    (grad,) = torch.autograd.grad(first.sum(), x)
    kt.same(grad, first.detach().sum(0))


@kt.on_gpu
def test_inductor_and_its_cuda_graphs() -> None:
    x = torch.ones(5000, device="cuda", requires_grad=True)
    for mode in ("default", "reduce-overhead"):
        compiled = torch.compile(lambda t: dropout(t * 2), fullgraph=True, mode=mode)
        masks = []
        for _ in range(4):
            y = compiled(x)
            masks.append(mask(y).clone())
            (grad,) = torch.autograd.grad(y.sum(), x)
            kt.same(grad, 4.0 * masks[-1])
        assert not torch.equal(masks[2], masks[3])
        assert all(0.4 < float(m.double().mean()) < 0.6 for m in masks)


def test_torch_compile_with_dynamic_shapes() -> None:
    compiled = torch.compile(dropout, backend="aot_eager", fullgraph=True, dynamic=True)
    for count in (700, 900):
        x = torch.ones(count, requires_grad=True)
        y = compiled(x)
        y.sum().backward()
        kt.same(x.grad, y.detach())
        assert 0.3 < float(mask(y).double().mean()) < 0.7


@kt.devices
def test_operator_is_registered_completely(device: str) -> None:
    x = kt.make(3, 5, device=device).requires_grad_()
    torch.library.opcheck(op.op.overload, (x, 0.5, None, 1, 4))
    seed = torch.tensor([1, 4], device=device)
    torch.library.opcheck(op.op.overload, (x, 0.5, seed, 0, 0))


def test_gradients_are_right() -> None:
    x = kt.make(2, 3, dtype=torch.float64).requires_grad_()
    kt.gradcheck(lambda t: op.op(t, 0.5, *STREAM), x)


def test_function_transforms() -> None:
    x = kt.make(3, 40)
    grad, y = torch.func.grad_and_value(lambda t: dropout(t).sum())(x)
    assert set(grad.unique().tolist()) == {0.0, 2.0}
    kt.same(y, (grad * x).sum())


# -- the edges -----------------------------------------------------------------------------------


@kt.devices
def test_nothing_is_dropped_outside_of_training(device: str) -> None:
    x = kt.make(10, device=device)
    assert dropout(x, 0.5, training=False) is x and F.dropout(x, 0.5, training=False) is x
    assert dropout(x, 0.0) is x
    assert torch.equal(Dropout().eval()(x), x)


@kt.devices
def test_everything_is_dropped(device: str) -> None:
    x = kt.make(100, device=device).requires_grad_()
    y = dropout(x, 1)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert not y.any() and not grad.any()


@kt.devices
def test_the_factor_does_not_depend_on_the_default_type(device: str) -> None:
    x = torch.ones(64, device=device)
    torch.set_default_dtype(torch.bfloat16)
    try:
        largest = dropout(x, 0.1).max()
    finally:
        torch.set_default_dtype(torch.float32)
    kt.same(largest, torch.tensor(1 / 0.9, device=device), rtol=1e-6, atol=0)


@kt.without_interpreter
@kt.devices
def test_float64_is_exact(device: str) -> None:
    x = torch.ones(64, dtype=torch.float64, device=device)
    assert dropout(x, 0.1).max().item() == 1 / (1 - 0.1)


@kt.devices
@pytest.mark.parametrize("transposed", [False, True])
def test_batches_of_gradients(transposed: bool, device: str) -> None:
    x = torch.ones(3, 5, device=device, requires_grad=True)
    y = dropout(x.t() if transposed else x, 0.5)
    upstream = kt.make(2, *y.shape, device=device)
    (got,) = torch.autograd.grad(y, x, upstream, is_grads_batched=True, retain_graph=True)
    for one, grad in zip(got, upstream, strict=True):
        kt.same(one, torch.autograd.grad(y, x, grad, retain_graph=True)[0])


@kt.devices
def test_nan_and_infinity_stay(device: str) -> None:
    x = torch.tensor([math.nan, math.inf, -math.inf], device=device).repeat_interleave(100)
    y = dropout(x, 0.5)
    assert y[:100].isnan().all()
    for part, value in ((y[100:200], math.inf), (y[200:], -math.inf)):
        assert torch.all((part == value) | part.isnan())
        assert (part == value).any() and part.isnan().any()


@kt.devices
@settings(max_examples=10, deadline=None)
@given(shape=st.lists(st.integers(0, 9), max_size=4))
def test_any_shape(shape: list[int], device: str) -> None:
    x = torch.ones(shape, device=device, requires_grad=True)
    y = dropout(x)
    assert y.shape == x.shape
    (grad,) = torch.autograd.grad(y.sum(), x)
    kt.same(grad, y.detach())


@kt.devices
def test_one_stream_is_bit_equal(device: str) -> None:
    x = kt.make(3, 1000, device=device)
    kt.bit_equal(lambda: op.op(x, 0.5, *STREAM))


@kt.devices
def test_module(device: str) -> None:
    layer = Dropout(0.25)
    assert isinstance(layer, torch.nn.Dropout) and repr(layer) == "Dropout(p=0.25, inplace=False)"
    x = torch.ones(100, device=device, requires_grad=True)
    y = layer(x)
    kt.same(y.detach().unique(), torch.tensor([0, 4 / 3], device=device))
    inner = x * 2
    z = Dropout(0.25, inplace=True)(inner)
    assert z is inner
    (grad,) = torch.autograd.grad(z.sum(), x)
    kt.same(grad, z.detach())


@pytest.mark.parametrize("p", [-0.1, 1.1, math.nan])
def test_a_wrong_probability_is_the_same_error_as_in_torch(p: float) -> None:
    with pytest.raises(ValueError, match=f"`p` is {p}; it must be a probability") as caught:
        dropout(torch.ones(1), p)
    assert isinstance(caught.value, ArgumentValueError)
    if not math.isnan(p):
        with pytest.raises(ValueError):
            F.dropout(torch.ones(1), p)


WRONG: list[tuple[tuple[Any, ...], type[KernelsError], str]] = [
    (([1.0],), ArgumentTypeError, "`input` is of type list; it must be a tensor"),
    ((torch.ones(1), "0.5"), ArgumentTypeError, "`p` is of type str; it must be a number"),
    ((torch.ones(1), 0.5, "no"), ArgumentTypeError, "`training` is of type str; it must be a bool"),
    ((torch.eye(2).to_sparse(),), ArgumentTypeError, "`input` is a tensor with layout .*sparse"),
    ((torch.ones(1).int(),), DtypeError, "`input` has dtype torch.int32; accepted are float16"),
]


@pytest.mark.parametrize("args, error, message", WRONG)
def test_errors_name_the_argument(
    args: tuple[Any, ...], error: type[KernelsError], message: str
) -> None:
    with pytest.raises(error, match=message):
        dropout(*args)


@kt.large
def test_more_than_2_to_the_31_elements() -> None:
    x = torch.ones(2**33 + 2**20, dtype=torch.bfloat16, device="cuda")
    y = op.op(x, 0.5, *STREAM)
    start = y[: 2**20]
    assert abs(float(mask(y[-(2**20) :]).double().mean()) - 0.5) < 0.01
    # Counters of 32 bits would come back after 2**35 elements, elements counted with 32 bits after
    # 2**32; the words must not.
    for again in (2**31, 2**32, 2**33):
        assert abs(correlation(mask(start), mask(y[again : again + 2**20]))) < 0.01


def test_groups_are_counted_with_64_bits() -> None:
    low = random._philox(torch.tensor([5]), STREAM)
    high = random._philox(torch.tensor([5 + 2**32]), STREAM)
    assert not torch.equal(low, high)


# -- code for sm_90 ------------------------------------------------------------------------------


@kt.needs_compiler
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_resources(dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    whole = torch.empty(64, 256, dtype=dtype)
    for walk, x in (("flat", whole), ("rows", whole[:, :128])):
        (kernel,) = kt.check_resources(
            "dropout", f"{walk} {name}", lambda: run.dropout(x, 0.1, STREAM)
        )
        assert "ld.global.v4.b32" in kernel.asm["ptx"], "16 bytes a thread"
    kt.check_resources("dropout", f"wide {name}", lambda: run.dropout(whole, 1e-4, STREAM))
    seeded = torch.zeros(2, dtype=torch.int64), 0, 0
    kt.check_resources("dropout", f"seed tensor {name}", lambda: run.dropout(whole, 0.1, seeded))


@kt.needs_compiler
def test_no_word_passes_through_shared_memory() -> None:
    with kt.compiled_for_sm90() as kernels:
        run.dropout(torch.empty(4096, dtype=torch.bfloat16), 0.1, STREAM)
    assert kernels[0][1].metadata.shared == 0


@kt.needs_compiler
def test_streams_do_not_compile_anew() -> None:
    kinds = [
        [(type(a), int(a) & 15 == 0) for a in random.arguments((None, *numbers))[1:]]
        for numbers in ((0, 0), (16, 4), (-(2**63), 2**40))
    ]
    assert all(kind is random.Word for row in kinds for kind, _ in row)


@kt.needs_compiler
def test_no_candidate_spills() -> None:
    x = torch.empty(64, 256, dtype=torch.bfloat16)[:, :128]
    for config in candidates(Case("forward", torch.bfloat16)):
        with kt.compiled_for_sm90() as kernels:
            run.dropout(x, 0.1, STREAM, config)
        assert kt._usage(kernels[0][1])["stack"] == 0, config
