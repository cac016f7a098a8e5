"""Named tuples whose classes give operators or slots a meaning of their own."""

from typing import NamedTuple

import pytest
import torch
import torchsmith_tracer


class Vector(NamedTuple):
    x: int
    y: int = 5

    def __add__(self, other):
        return Vector(self.x + other.x, self.y + other.y)

    def __sub__(self, other):
        return self.x - other.x

    def __neg__(self):
        return Vector(-self.x, -self.y)


class Long(NamedTuple):
    x: int

    def __len__(self):
        return 7

    def __iter__(self):
        return iter([4, 5])


kept = Vector(1, 2)
long = Long(3)

READS = {
    "operators": lambda x: x * (kept + Vector(3)).y + (Vector(9) - kept) + (-kept).x,
    "slots": lambda x: x * len(long) + len(Long(1)) + sum(long) + long[0] + list(Long(2))[1],
    "what stays a tuple's": lambda x: (
        x + kept[0] + sum(kept) + (kept == (1, 2)) + kept._asdict()["y"]
    ),
    "made": lambda x: (
        x + Vector._make([3, 4]).y + kept._replace(x=8).x + kept._asdict()["y"] + Vector(x).x
    ),
}


@pytest.mark.parametrize("name", READS)
def test_a_named_tuple_with_operators_of_its_own(name):
    compiled = torchsmith_tracer.compile(READS[name], backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(torch.ones(1)), READS[name](torch.ones(1)))


def test_a_named_tuple_with_operators_of_its_own_is_returned_as_it_is():
    found = torchsmith_tracer.compile(lambda x: (Vector(x), kept), backend="eager")(torch.ones(1))
    assert [type(v) for v in found] == [Vector, Vector] and found[1] is kept
