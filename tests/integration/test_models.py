"""Real models: one graph under ``fullgraph=True``, equal to eager, in float32 and bfloat16."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import torchsmith

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from models import MODELS, make, tensors


def relative_error(got: torch.Tensor, reference: torch.Tensor) -> float:
    reference = reference.double()
    return float((got.double() - reference).norm() / reference.norm().clamp_min(1e-30))


@pytest.fixture(autouse=True)
def fresh() -> None:
    torchsmith.reset()
    torch.set_num_threads(2)


def cast(inputs: dict[str, object], dtype: torch.dtype) -> dict[str, object]:
    return {
        k: v.to(dtype) if isinstance(v, torch.Tensor) and v.is_floating_point() else v
        for k, v in inputs.items()
    }


@pytest.mark.parametrize("name", MODELS)
def test_float32_equals_eager_in_one_graph(name: str) -> None:
    model, inputs = make(name)
    with torch.no_grad():
        expected = model(**inputs)
        compiled = torchsmith.compile(model, fullgraph=True)
        got = compiled(**inputs)
        again = compiled(**inputs)
    assert type(got) is type(expected)
    pairs = list(zip(tensors(got), tensors(expected), strict=True))
    assert pairs
    for a, b in pairs:
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert a.stride() == b.stride()
        assert relative_error(a, b) < 1e-5
    for a, b in zip(tensors(again), tensors(got), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", MODELS)
def test_bfloat16_is_no_worse_than_eager(name: str) -> None:
    model, inputs = make(name)
    with torch.no_grad():
        reference = tensors(model.double()(**cast(inputs, torch.float64)))
        model, inputs = make(name)
        model, inputs = model.to(torch.bfloat16), cast(inputs, torch.bfloat16)
        expected = tensors(model(**inputs))
        got = tensors(torchsmith.compile(model, fullgraph=True)(**inputs))
    for ours, eager, wide in zip(got, expected, reference, strict=True):
        assert ours.dtype == eager.dtype
        factor = 1.2 if wide.numel() > 16 else 3  # few numbers are a rounding apart by chance
        assert relative_error(ours, wide) <= factor * relative_error(eager, wide) + 1e-6


def test_equal_layers_share_kernels() -> None:
    """A deeper model has no more distinct kernels."""
    from gpt import GPT, Config

    names = []
    for layers in (3, 6):
        model = GPT(Config(layers=layers, width=64, heads=2)).eval()
        with torch.no_grad():
            report = torchsmith.explain(model)(torch.randint(0, 100, (2, 16)))
        names.append({kernel.name for kernel in report.kernels})
    assert len(names[0]) == len(names[1]) > 0
