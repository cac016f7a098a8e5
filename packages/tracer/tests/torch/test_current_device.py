"""Which calls depend on the GPU that is current."""

import operator

import pytest
import torch
from torchsmith_tracer._src.graph.current_device import relies_on_current_device

X = torch.ones(1)


@pytest.mark.parametrize(
    "target, args, kwargs",
    [
        ("cuda", (X,), {}),
        ("cuda", (X, None), {"non_blocking": True}),
        ("cuda", (X,), {"device": "cuda"}),
        ("to", (X, "cuda"), {}),
        ("to", (X, torch.float64), {"device": torch.device("cuda")}),
        ("type", (X, "torch.cuda.FloatTensor"), {}),
        (torch.ones, (3,), {"device": "cuda"}),
    ],
)
def test_which_gpu_is_current_matters(target, args, kwargs):
    assert relies_on_current_device(target, args, kwargs)


@pytest.mark.parametrize(
    "target, args, kwargs",
    [
        ("cuda", (X, 1), {}),
        ("cuda", (X,), {"device": "cuda:1"}),
        ("to", (X, "cuda:0"), {}),
        ("to", (X, torch.device("cuda", 1)), {}),
        ("to", (X, X), {}),
        ("cpu", (X,), {}),
        (torch.ones, (3,), {"device": "cpu"}),
        (torch.ones, (3,), {"device": torch.device("meta"), "dtype": torch.float16}),
        (torch.einsum, ("cu,da->cuda", X, X), {}),
        (operator.add, (X, 1.0), {}),
    ],
)
def test_which_gpu_is_current_does_not_matter(target, args, kwargs):
    assert not relies_on_current_device(target, args, kwargs)
