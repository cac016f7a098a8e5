"""``embedding`` against eager and float64, on every path that exists here."""

from __future__ import annotations

import kernel_testing as kt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional
from torchsmith_kernels import (
    ArgumentTypeError,
    ArgumentValueError,
    DtypeError,
    Embedding,
    ShapeError,
    embedding,
)
from torchsmith_kernels._src.embedding import op, run
from torchsmith_kernels._src.embedding.config import Case, candidates
from torchsmith_kernels._src.sum_rows import run as sum_rows


def eager(input: Tensor, weight: Tensor) -> Tensor:
    return functional.embedding(input, weight)


INDICES = {
    "unique": lambda: torch.randperm(150),
    "few": lambda: torch.randint(5, (150,)),
    "one": lambda: torch.full((150,), 3),
    # A run of 100 and its neighbours, so that runs begin and end inside and at ends of blocks.
    "mixed": lambda: torch.cat((torch.randint(150, (70,)), torch.full((100,), 70))),
    "blocks": lambda: torch.arange(192) // 32,
}


@kt.devices
@kt.dtypes
@pytest.mark.parametrize("indices", list(INDICES))
@pytest.mark.parametrize("width", [1, 24, 200])
def test_results_and_gradients(width: int, indices: str, dtype: torch.dtype, device: str) -> None:
    torch.manual_seed(0)
    weight = kt.make(150, width, dtype=dtype, device=device)
    index = INDICES[indices]().to(device)
    index = index[torch.randperm(len(index))]
    kt.no_worse_than_eager(embedding, eager, [index, weight])


@kt.devices
@settings(max_examples=15, deadline=None)
@given(
    shape=st.lists(st.integers(0, 7), max_size=3),
    rows=st.integers(1, 40),
    width=st.integers(0, 20),
)
def test_any_shape(shape: list[int], rows: int, width: int, device: str) -> None:
    index = torch.randint(rows, shape).to(device)
    weight = kt.make(rows, width, device=device).requires_grad_()
    y = embedding(index, weight)
    assert torch.equal(y, eager(index, weight)) and y.shape == (*shape, width)
    upstream = kt.make(*y.shape, device=device)
    (got,) = torch.autograd.grad(y, weight, upstream)
    # Eager's own backward pass reads invalid memory on a GPU for some of these shapes.
    want = torch.zeros(rows, width).index_add_(
        0, index.flatten().cpu(), upstream.reshape(index.numel(), width).cpu()
    )
    kt.same(got.cpu(), want)


@kt.devices
@pytest.mark.parametrize("padding_idx", [2, -1, 0])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_padding_has_no_gradient(padding_idx: int, index: torch.dtype, device: str) -> None:
    torch.manual_seed(0)
    weight = kt.make(9, 12, device=device).requires_grad_()
    input = torch.randint(9, (4, 25)).to(index).to(device)
    upstream = kt.make(4, 25, 12, device=device)
    y, want = (
        embedding(input, weight, padding_idx),
        functional.embedding(input, weight, padding_idx),
    )
    assert torch.equal(y, want)
    got, theirs = (torch.autograd.grad(t, weight, upstream)[0] for t in (y, want))
    kt.same(got, theirs)
    assert not got[padding_idx].any()


@kt.devices
@pytest.mark.parametrize("sort", ["rank", "radix"])
@pytest.mark.parametrize("rows", [100, 2**15 + 10])
def test_an_index_often_seen_is_split(
    rows: int, sort: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    count = 1500 if kt.INTERPRETED else 5000 if sort == "rank" else 2**18
    if sort == "radix":
        monkeypatch.setattr(sum_rows, "_RANKED", 0)
    input = torch.randint(rows, (count,))
    input[torch.rand(count) < 0.3] = 17
    grad = kt.make(count, 40)
    want = torch.zeros(rows, 40, dtype=torch.float64).index_add_(0, input, grad.double())
    want[5] = 0
    got = op.backward_op(grad.to(device), input.to(device), rows, 5)
    kt.same(got.double().cpu(), want, rtol=1e-4, atol=1e-3)


@kt.devices
def test_layouts(device: str) -> None:
    torch.manual_seed(0)
    table = kt.make(20, 30, device=device)
    input = torch.randint(20, (6, 8), device=device)
    for weight in (table[:, ::2], table[::2, :7], table.t()):
        for index in (input % len(weight), input.t() % len(weight), (input % 5)[:, ::3]):
            got, want = embedding(index, weight), eager(index, weight)
            assert torch.equal(got, want) and got.stride() == want.stride()
    flat = torch.zeros(20, 4, device=device).index_add_(
        0, input.flatten(), torch.ones(48, 4, device=device)
    )
    ones = torch.ones((), device=device).expand(6, 8, 4)
    kt.same(op.backward_op(ones, input, 20, -1), flat)
    apart = torch.ones(6, 16, 8, device=device)[:, ::2, ::2]
    kt.same(op.backward_op(apart, input, 20, -1), flat)


@kt.devices
def test_indices_outside_of_the_table(device: str) -> None:
    weight = kt.make(4, 3, device=device)
    input = torch.tensor([3, 4, -1, 2**33, 0], device=device)
    if device == "cpu" and not kt.INTERPRETED:
        with pytest.raises(IndexError):
            embedding(input, weight)
        return
    got = embedding(input, weight)
    assert torch.equal(got[[0, 4]], weight[[3, 0]]) and got[1:4].isnan().all()
    grad = op.backward_op(torch.ones_like(got), input, 4, -1)
    kt.same(grad, torch.tensor([[1.0], [0.0], [0.0], [1.0]], device=device).expand(4, 3))


@kt.devices
def test_nan_and_infinity_reach_their_row_only(device: str) -> None:
    input = torch.tensor([0, 1, 1, 2], device=device)
    grad = torch.tensor([[torch.nan], [torch.inf], [-torch.inf], [torch.inf]], device=device)
    want = torch.tensor([[torch.nan], [torch.nan], [torch.inf], [0.0]], device=device)
    kt.same(op.backward_op(grad, input, 4, -1), want)


@kt.devices
def test_two_runs_are_bit_equal(device: str) -> None:
    input = torch.randint(30, (500,), device=device)
    grad = kt.make(500, 33, device=device)
    kt.bit_equal(lambda: [embedding(input, grad), op.backward_op(grad, input, 40, -1)])


@kt.devices
def test_operators_are_registered_completely(device: str) -> None:
    weight = kt.make(6, 5, device=device).requires_grad_()
    input = torch.randint(6, (2, 3), device=device)
    torch.library.opcheck(op.op.overload, (input, weight, 2))
    grad = kt.make(2, 3, 5, device=device).requires_grad_()
    torch.library.opcheck(op.backward_op.overload, (grad, input, 6, 2))


def test_gradients_are_right() -> None:
    weight = kt.make(6, 3, dtype=torch.float64).requires_grad_()
    input = torch.tensor([[0, 5, 5], [2, 3, 5]])
    kt.gradcheck(lambda w: embedding(input, w, 1) ** 2, weight)


def test_function_transforms() -> None:
    input, weight = torch.tensor([1, 1, 0]), kt.make(3, 4)
    found = torch.func.grad(lambda w: embedding(input, w).square().sum())(weight)
    kt.same(found, 2 * weight * torch.tensor([[1.0], [2.0], [0.0]]))


@kt.devices
def test_torch_compile_calls_the_operator(device: str) -> None:
    module = Embedding(10, 4, padding_idx=0, device=device)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True, dynamic=True)
    for count in (5, 8):
        input = torch.arange(count, device=device) % 3
        compiled(input).square().sum().backward()
        got, module.weight.grad = module.weight.grad, None
        torch.nn.Embedding.forward(module, input).square().sum().backward()
        kt.same(got, module.weight.grad)
        module.weight.grad = None


def test_module_is_torchs() -> None:
    module = Embedding(10, 4, padding_idx=-1)
    other = torch.nn.Embedding(10, 4, padding_idx=-1)
    module.load_state_dict(other.state_dict())
    input = torch.tensor([[1, 9], [3, 3]])
    assert torch.equal(module(input), other(input)) and module.padding_idx == 9
    for options in ({"max_norm": 1.0}, {"scale_grad_by_freq": True}, {"sparse": True}):
        special = Embedding(10, 4, **options)
        special(input).sum().backward()
        assert special.weight.grad.is_sparse == ("sparse" in options)


def test_errors_name_the_argument() -> None:
    weight, input = torch.ones(3, 2), torch.tensor([1])
    with pytest.raises(ArgumentTypeError, match="`input` is of type list; it must be a tensor"):
        embedding([1], weight)
    with pytest.raises(DtypeError, match="`input` has dtype torch.float32; accepted are int32"):
        embedding(input.float(), weight)
    with pytest.raises(DtypeError, match="`weight` has dtype torch.int64"):
        embedding(input, weight.long())
    with pytest.raises(ShapeError, match="`weight` has shape .* 2 dimensions"):
        embedding(input, weight[0])
    with pytest.raises(ArgumentValueError, match="`padding_idx` is 3; it must be a row"):
        embedding(input, weight, 3)
    with pytest.raises(ArgumentTypeError, match="`padding_idx` is of type float"):
        embedding(input, weight, 1.0)


@kt.large
def test_more_than_2_to_the_31_elements() -> None:
    width = 2**10
    weight = torch.zeros(2**21 + 5, width, dtype=torch.bfloat16, device="cuda")
    weight[-1] = 3
    input = torch.zeros(2**21 + 7, dtype=torch.int32, device="cuda")
    input[-3:] = len(weight) - 1
    y = embedding(input, weight)
    assert torch.all(y[-3:] == 3) and not y[:-3].any()
    dw = op.backward_op(y, input, len(weight), -1)
    assert torch.all(dw[-1] == 9) and not dw[:-1].any()


@kt.needs_compiler
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_resources(dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    weight, input = torch.empty(64, 4096, dtype=dtype), torch.zeros(64, dtype=torch.int64)
    (kernel,) = kt.check_resources(
        "embedding", f"forward {name}", lambda: run.forward(input, weight)
    )
    assert "ld.global.v4.b32" in kernel.asm["ptx"], "16 bytes a thread"
    kernels = kt.check_resources(
        "embedding", f"backward {name}", lambda: run.backward(weight, input, 100, -1)
    )
    assert len(kernels) == 4 and not any("atom." in kernel.asm["ptx"] for kernel in kernels)
    many = torch.zeros(10000, dtype=torch.int64)
    grad = torch.empty(10000, 64, dtype=dtype)
    kt.check_resources("embedding", f"many {name}", lambda: run.backward(grad, many, 100, -1))


@kt.needs_compiler
@pytest.mark.parametrize("width", [64, 1024])
@pytest.mark.parametrize("kernel", ["forward", "backward"])
def test_no_candidate_spills(kernel: str, width: int) -> None:
    weight = torch.empty(64, width, dtype=torch.bfloat16)
    input = torch.zeros(64, dtype=torch.int64)
    for config in candidates(Case(kernel, width, torch.bfloat16)):
        with kt.compiled_for_sm90() as kernels:
            if kernel == "forward":
                run.forward(input, weight, config)
            else:
                run.backward(weight, input, 64, -1, config)
        for name, compiled in kernels:
            assert kt._usage(compiled)["stack"] == 0, (name, config)
