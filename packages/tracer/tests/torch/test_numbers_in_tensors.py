"""Operators with a tensor for a number compute in the type in which eager's kernels do."""

import itertools

import pytest
import torch
import torchsmith_tracer

KINDS = (torch.float32, torch.bfloat16, torch.float64)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("of", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["add", "sub", "addcmul", "addcdiv"])
def test_types_are_mixed_as_in_eager(name, of, inplace):
    keyword, count = ("alpha", 2) if name in ("add", "sub") else ("value", 3)
    method = name + "_" * inplace
    factor = torch.tensor(0.0123456789, dtype=of)

    def f(tensor, *others):
        return getattr(tensor.clone(), method)(*others, **{keyword: factor})

    for kinds in itertools.product(KINDS[: 5 - count], repeat=count):
        given = [torch.rand(50, 1).add(0.5).to(kind) for kind in kinds]
        for arguments in given, [*given[:-1], given[-1][0, 0]]:
            torchsmith_tracer.reset()
            compiled = torchsmith_tracer.compile(f, backend="eager", fullgraph=True)
            mine, eager = compiled(*arguments), f(*arguments)
            assert mine.dtype == eager.dtype
            precision = torch.finfo(eager.dtype).eps
            assert (mine - eager).abs().max() <= 3 * precision, kinds
            if precision > 1e-3:  # rounded once, as eager's
                assert (mine != eager).double().mean() < 0.1, kinds
