"""Which calls depend on the GPU that is current."""

import operator

import pytest
import torch
import torchsmith_tracer
from torchsmith_tracer._src.graph import output
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


def test_each_gpu_has_its_own_code(monkeypatch):
    current, seen = [0], []
    monkeypatch.setattr(output, "current_device", lambda: current[0])
    monkeypatch.setattr(output, "relies_on_current_device", lambda target, *_: target == "sin")

    def backend(gm, inputs):
        seen.append(current[0])
        return gm.forward

    compiled = torchsmith_tracer.compile(lambda x: x.sin() + 1, backend=backend)
    for number in (0, 0, 1, 0, 2, 1, 3, 2):
        current[0] = number
        compiled(X)
    assert seen == [0, 1, 2, 3]
