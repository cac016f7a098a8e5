"""Tensor specs: which sizes and strides stay free."""

import pytest
import torch
from torchsmith_guards import TensorSpec, stride_dependents

CASES = [
    (torch.ones(4, 5, 6), {0}, (None, 5, 6), (30, 6, 1)),
    (torch.ones(4, 5, 6), {1}, (4, None, 6), (None, 6, 1)),
    (torch.ones(4, 5, 6), {2}, (4, 5, None), (None, None, 1)),
    (torch.ones(4, 5).t(), {0}, (None, 4), (1, None)),
    (torch.ones(4, 5).t(), {1}, (5, None), (1, 5)),
    (torch.ones(4, 7)[:, ::2], {1}, (4, None), (7, 2)),
    (torch.ones(4, 6)[:, ::2], {1}, (4, None), (None, 2)),
    (torch.ones(4, 1).expand(4, 3), {0}, (None, 3), (1, 0)),
    (torch.ones(1, 5), {0, 1}, (1, None), (None, 1)),
    (torch.ones(0, 5), {0}, (0, 5), (5, 1)),
    (torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last), {2},
     (2, 3, None, 5), (None, 1, 15, 3)),
]  # fmt: skip


@pytest.mark.parametrize(("tensor", "dims", "size", "stride"), CASES)
def test_dynamic_dims(tensor, dims, size, stride):
    spec = TensorSpec.of(tensor, dims)
    assert (spec.size, spec.stride) == (size, stride)
    assert stride_dependents(tensor, dims) == {d for d, s in enumerate(stride) if s is None}


def test_static_by_default():
    spec = TensorSpec.of(torch.ones(2, 3, requires_grad=True))
    assert spec == TensorSpec(
        torch.Tensor, torch.float32, torch.device("cpu"), True, (2, 3), (3, 1)
    )


@pytest.mark.parametrize(
    ("tensor", "dims", "strides", "expected"),
    [
        (torch.ones(4, 5), (), {0, 1}, (5, 1)),  # products of sizes
        (torch.ones(4, 7)[:, :5], (), {0}, (None, 1)),
        (torch.ones(4, 7)[:, :5], {1}, {0}, (None, 1)),
        (torch.ones(4, 14)[:, ::2], (), {1}, (None, None)),  # the outer one is a product
        (torch.ones(4, 7)[:, ::2], (), {1}, (7, None)),
        (torch.ones(4, 1).expand(4, 3), (), {0, 1}, (1, 0)),
        (torch.ones(9).unfold(0, 3, 2), (), {0, 1}, (2, 1)),  # elements overlap
    ],
)
def test_strides_by_choice(tensor, dims, strides, expected):
    assert TensorSpec.of(tensor, dims, dynamic_strides=strides).stride == expected


def test_sparse_has_no_strides():
    spec = TensorSpec.of(torch.ones(2, 3).to_sparse())
    assert spec.stride is None
    assert spec.layout is torch.sparse_coo
