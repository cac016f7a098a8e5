"""Copies of inputs: layout, memory, autograd, marks; and the state that runs share."""

import random

import numpy as np
import pytest
import torch
import torchsmith
from torch._subclasses.fake_tensor import FakeTensorMode
from torchsmith._src.repro.cases import print_value
from torchsmith.testing import checkpoint_params, clone_input, clone_inputs, preserve_rng_state

BASE = torch.arange(60.0)

LAYOUTS = {
    "contiguous": lambda: BASE.reshape(6, 10),
    "transposed": lambda: BASE.reshape(6, 10).t(),
    "sliced": lambda: BASE.reshape(6, 10)[1:4:2, 3:],
    "offset": lambda: BASE[1:7],
    "expanded": lambda: BASE[:3].unsqueeze(1).expand(3, 4),
    "overlapping": lambda: BASE.as_strided((4, 5), (2, 1), 3),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "empty": lambda: torch.empty(0, 3),
    "number": lambda: torch.tensor(3.0),
    "conjugate": lambda: torch.randn(3, dtype=torch.complex64).conj(),
    "negative": lambda: torch.randn(3, dtype=torch.complex64).conj().imag,
    "bool": lambda: BASE > 3,
    "int8": lambda: BASE.to(torch.int8)[3:9],
    "bfloat16": lambda: BASE.bfloat16()[3::3],
}


@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS)
def test_layout(make):
    x = make()
    y = clone_input(x)
    assert y.dtype == x.dtype and y.shape == x.shape and y.stride() == x.stride()
    assert torch.equal(x, y) and y.is_conj() == x.is_conj() and y.is_neg() == x.is_neg()
    assert x.numel() == 0 or y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    assert y.data_ptr() % 32 == x.data_ptr() % 32
    wide = clone_input(x, dtype=torch.float64)
    assert wide.stride() == x.stride()
    if x.is_floating_point():
        assert wide.dtype == torch.float64 and torch.equal(wide.to(x.dtype), x)
    elif x.is_complex():
        assert wide.dtype == torch.complex128
    else:
        assert wide.dtype == x.dtype and torch.equal(wide, x)


def test_a_write_reaches_what_shared_memory():
    base = torch.zeros(4, 4)
    given = [
        base,
        base[1],
        base.t(),
        base.view(-1)[3:],
        base.view(torch.int32),
        base,
        torch.ones(2),
    ]
    copies = clone_inputs(given)
    assert copies[0] is copies[5] is not base
    copies[1].fill_(1)
    base[1].fill_(1)
    assert all(torch.equal(a, b) for a, b in zip(given, copies))
    copies[0].zero_()
    assert base.sum() == 4 and copies[6].sum() == 2
    wide = clone_inputs([base, base[1]], dtype=torch.float64)
    wide[1].fill_(5)
    assert wide[0].sum() == 20


def test_a_huge_storage_is_not_copied_for_a_small_window():
    big = torch.zeros(1 << 20)
    assert clone_input(big[1000:1010]).untyped_storage().nbytes() <= 40 + 64


def test_place_in_autograd():
    leaf = torch.ones(2, 3).t().requires_grad_()
    leaf.grad = torch.full((3, 2), 7.0)
    parameter = torch.nn.Parameter(torch.ones(2))
    derived = leaf * 2
    one, two, three = clone_inputs([leaf, parameter, derived])
    assert one.is_leaf and one.requires_grad and torch.equal(one.grad, leaf.grad)
    assert one.grad.data_ptr() != leaf.grad.data_ptr() and one.stride() == leaf.stride()
    assert type(two) is torch.nn.Parameter and two.requires_grad
    assert not three.is_leaf and three.requires_grad and three.stride() == derived.stride()
    three.mul_(2)  # eager allows it for what is no leaf, and no view of one
    (three.sum() + two.sum()).backward()
    assert two.grad.sum() == 2 and torch.equal(one.grad, leaf.grad)
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    assert not clone_input(frozen).requires_grad


def test_marks_of_sizes():
    x = torch.ones(3, 4)
    torchsmith.mark_dynamic(x, 1, min=2, max=9)
    y = clone_input(x)
    assert vars(y) == vars(x)


def _sparse(layout):
    dense = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    if layout is torch.sparse_coo:
        return dense.to_sparse()
    kind = {"blocksize": (1, 1)} if layout in (torch.sparse_bsr, torch.sparse_bsc) else {}
    return dense.to_sparse(layout=layout, **kind)


SPARSE = "sparse_coo sparse_csr sparse_csc sparse_bsr sparse_bsc".split()


@pytest.mark.parametrize("layout", SPARSE)
def test_sparse(layout):
    x = _sparse(getattr(torch, layout))
    y = clone_input(x)
    assert y.layout == x.layout and torch.equal(y.to_dense(), x.to_dense())
    (x._values() if layout == "sparse_coo" else x.values()).zero_()
    assert y.to_dense().sum() == 5
    assert clone_input(y, dtype=torch.float64).dtype == torch.float64


def test_other_kinds_of_tensors():
    with FakeTensorMode():
        fake = torch.empty(3)
    assert clone_input(fake) is fake
    meta = torch.empty(3, device="meta")
    assert clone_input(meta).is_meta
    quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    copy = clone_input(quantized)
    assert copy.is_quantized and torch.equal(copy.dequantize(), quantized.dequantize())


def test_batches():
    x = torch.ones(2)
    assert clone_inputs((x, 3, None, "a"))[1:] == [3, None, "a"]
    found = clone_inputs({"a": x, "b": (x, (x, 1))})
    assert type(found["b"]) is list and type(found["b"][1]) is list and found["b"][1][1] == 1
    assert found["a"] is found["b"][0] is found["b"][1][0] is not x
    with pytest.raises(TypeError, match="'c' is a int"):
        clone_inputs({"a": x, "c": 1})


def test_random_state_is_put_back_also_after_an_error():
    torch.manual_seed(0), random.seed(0), np.random.seed(0)
    expected = torch.rand(2).tolist(), random.random(), np.random.rand()
    torch.manual_seed(0), random.seed(0), np.random.seed(0)
    with pytest.raises(ZeroDivisionError):
        with preserve_rng_state():
            torch.rand(2), random.random(), np.random.rand()
            1 / 0

    @preserve_rng_state()
    def draw():
        return torch.rand(2)

    assert draw().tolist() == expected[0]
    assert (torch.rand(2).tolist(), random.random(), np.random.rand()) == expected


def test_checkpoint():
    model = torch.nn.BatchNorm1d(3)
    restore = checkpoint_params(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    versions = {name: value._version for name, value in model.state_dict().items()}
    first = torch.rand(2)
    model(torch.randn(4, 3))
    restore()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(torch.rand(2), first)
    assert model.state_dict()["weight"]._version == versions["weight"]  # unwritten, left alone


@pytest.mark.parametrize(
    "value",
    [
        torch.randn(3, 1).expand(3, 90),
        torch.randn(12, 12)[2:, ::3].t(),
        torch.randn(10, 10, dtype=torch.complex64).conj(),
        torch.randn(10, 10) > 0,
        torch.randn(10, 10).bfloat16().requires_grad_(),
    ],
    ids=["overlapping", "strided", "conjugate", "booleans", "leaf"],
)
def test_a_file_has_the_values_of_an_input_of_any_layout(value: torch.Tensor) -> None:
    made = eval(print_value(value), {"torch": torch, "torchsmith": torchsmith})
    assert (made.shape, made.stride()) == (value.shape, value.stride())
    assert torch.equal(made, value) and made.requires_grad == value.requires_grad
