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
