"""Ranges among indices of tensors."""

import pytest
import torch
import torchsmith_tracer


def written(x, a):
    y = x.clone()
    y[range(2)] = 0
    y[range(x.size(0)), a] += 5
    return y


PROGRAMS = {
    "rows": lambda x, a: x[range(2)] + 1,
    "pairs": lambda x, a: x[range(x.size(0)), a],
    "columns": lambda x, a: x[:, range(1, 4, 2)],
    "with ellipsis": lambda x, a: x[..., range(2), None],
    "backwards": lambda x, a: x[range(2, -1, -1)],
    "empty": lambda x, a: x[range(0)],
    "made": lambda x, a: torch.tensor(range(4)) + x,
    "converted": lambda x, a: torch.as_tensor(range(2, 6)) * x,
    "written": written,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_ranges(name, capture):
    fn = PROGRAMS[name]
    compiled = torchsmith_tracer.compile(fn, backend=capture, fullgraph=True)
    for rows in (3, 4, 5, 6):
        x, a = torch.arange(4.0 * rows).view(rows, 4), torch.arange(rows) % 4
        found, expected = compiled(x, a), fn(x, a)
        assert torch.equal(found, expected)
        assert found.stride() == expected.stride()
    assert capture.n == 2
