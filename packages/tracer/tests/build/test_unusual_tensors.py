"""Tensors that a graph does not hold: each use is a break, and results are eager's."""

import warnings

import pytest
import torch
import torchsmith_tracer


def plain():
    return torch.ones(2, 3)


def sparse():
    return torch.eye(3).to_sparse()


def strided_nested():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


def jagged():
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)


def program(t, x):
    y = x + 1
    return t.clone(), y * 2


@pytest.mark.parametrize("other", [sparse, strided_nested, jagged])
def test_other_kinds_between_plain_ones(other, capture):
    compiled = torchsmith_tracer.compile(program, backend=capture)
    x = torch.arange(3.0)
    for make in (plain, other, plain, other):
        given = make()
        t, y = compiled(given, x)
        want, _ = program(given, x)
        assert repr(t) == repr(want)
        assert type(t) is type(want)
        assert torch.equal(y, (x + 1) * 2)
    assert {b.id for b in compiled._torchsmith_region.log.breaks}.isdisjoint({"TS-T900"})
    assert capture.n <= 4


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "quantize",
    [
        lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
        lambda x: torch.quantize_per_channel(
            x, torch.ones(3), torch.zeros(3, dtype=torch.int64), 0, torch.quint8
        ),
        lambda x: torch.quantize_per_tensor_dynamic(x, torch.qint8, False),
    ],
)
def test_quantized_tensors_made_inside(quantize):
    def program(x):
        q = quantize(x * 2)
        return q.dequantize() + 1, q.int_repr(), q.is_quantized, (q.dequantize() * x).sum()

    compiled = torchsmith_tracer.compile(program, backend="eager")
    for x in (torch.linspace(-1, 1, 3), torch.linspace(0, 2, 3)):
        torch.testing.assert_close(compiled(x), program(x), check_stride=True)
