"""Complex numbers whose zeros have a sign: as arguments, in containers, over breaks."""

import pytest
import torchsmith_tracer as tracer

skip = tracer.disable(lambda: None)
PARTS = (0.0, -0.0, 1.5, -2.0)
NUMBERS = [complex(real, imaginary) for real in PARTS for imaginary in PARTS]


def argument(c):
    return repr(c), repr(c * 2), {c: repr(-c)}


def over_a_break(c):
    made, held = -c, [c, (c, 1)]
    skip()
    return repr(made), repr(held)


def key(c):
    table = {c: 1}
    skip()
    table[c] += 1
    return repr(table)


@pytest.mark.parametrize("fn", [argument, over_a_break, key], ids=lambda fn: fn.__name__)
def test_signs_of_zeros(fn):
    compiled = tracer.compile(fn, backend="eager", options={"recompile_limit": 64})
    for number in NUMBERS:
        for _ in range(2):
            assert compiled(number) == fn(number)
