"""Compiled C gives eager's values and signs on special values."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pytest
import torch
from special_values import differences, programs
from torchsmith_fx_backend import compile_graph
from torchsmith_fx_backend._src.capture.make_fx import make_fx


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64], ids=str
)
def test_special_values_as_in_eager(dtype):
    groups = list(programs(dtype))
    names = [(label, name) for label, functions, _ in groups for name in functions]
    inputs = [x for _, _, given in groups for x in given]

    def program(*args):
        rest = list(args)
        found = []
        for _, functions, given in groups:
            own, rest = rest[: len(given)], rest[len(given) :]
            found += [f(*own) for f in functions.values()]
        return tuple(found)

    with torch.no_grad():
        want = program(*inputs)
        got = compile_graph(make_fx(program)(*inputs), inputs)(*inputs)
    for name, mine, theirs in zip(names, got, want):
        where = differences(theirs, mine)
        first = tuple(where[0].tolist()) if len(where) else None
        assert first is None, (name, first, theirs[first], mine[first])
