"""Numbers of lists and tuples at places that are others at each call."""

import pytest
import torch
import torchsmith_tracer
from torch import nn

SIGMAS = [14.6 / (i + 1) for i in range(12)]
STEPS = tuple(range(990, 0, -90))
X = torch.ones(3)


class Schedule:
    def __init__(self):
        self.sigmas = list(SIGMAS)
        self.i = 0

    def step(self, x):
        self.i += 1
        return x * self.sigmas[self.i - 1] - self.sigmas[self.i]


def closed(table):
    return lambda x, i: x * table[i]


def loop(x, i):
    for n in range(2):
        x = x + SIGMAS[i + n]
    return x


def broken(x, i):
    x = x * SIGMAS[i]
    print("break", end="\r")
    return x + SIGMAS[i] * SIGMAS[-1 - i]


PROGRAMS = {
    "global": lambda x, i: x * SIGMAS[i] + SIGMAS[i + 1],
    "from behind": lambda x, i: x * SIGMAS[i - 12],
    "ints": lambda x, i: x * STEPS[i] + STEPS[i + 1] // 90,
    "closure": closed(SIGMAS),
    "tuple": closed(tuple(SIGMAS)),
    "arithmetic": lambda x, i: x * (SIGMAS[i] ** 2 + 1) ** 0.5,
    "branch": lambda x, i: x * 2 if SIGMAS[i] > 3 else x * SIGMAS[i],
    "loop": loop,
    "size": lambda x, i: x * SIGMAS[torch.ones(i + 2).shape[0]],
    "result": lambda x, i: (x * SIGMAS[i], SIGMAS[i]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_place_has_no_version_of_its_own(name, capture):
    fn = PROGRAMS[name]
    compiled = torchsmith_tracer.compile(fn, backend=capture)
    for i in (2, 3, 4, 5, 6, 7, 8):
        want, got = fn(X, i), compiled(X, i)
        torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert capture.n <= (3 if name == "branch" else 2)


def test_a_break_goes_on_with_the_place(capture):
    compiled = torchsmith_tracer.compile(broken, backend=capture)
    for i in range(2, 9):
        assert torch.equal(compiled(X, i), broken(X, i))


def test_the_list_is_read_at_each_call(capture):
    table = list(SIGMAS)
    fn = closed(table)
    compiled = torchsmith_tracer.compile(fn, backend=capture)
    for i in (2, 3, 4):
        assert torch.equal(compiled(X, i), fn(X, i))
    made = capture.n
    table[5], table[6] = 7.5, -1.0
    for i in (5, 6, 5):
        assert torch.equal(compiled(X, i), fn(X, i))
    assert capture.n == made
    for odd in (3, float("inf"), True, torch.tensor(2.0)):
        table[7] = odd
        for i in (7, 8):
            assert torch.equal(compiled(X, i), fn(X, i))
    table.append(0.25)
    assert torch.equal(compiled(X, 12), fn(X, 12))
    with pytest.raises(IndexError):
        compiled(X, 13)
    del table[4:]
    assert torch.equal(compiled(X, 3), fn(X, 3))
    with pytest.raises(IndexError):
        compiled(X, 4)


def test_what_the_program_has_written_is_read(capture):
    def fn(x, i, table):
        table[i] = table[i] * 2
        x = x * table[i]
        table.append(1.0)
        return x + table[i - 1] + table[-1]

    compiled = torchsmith_tracer.compile(fn, backend=capture)
    for i in (2, 3, 4, 5):
        mine, theirs = list(SIGMAS), list(SIGMAS)
        assert torch.equal(compiled(X, i, mine), fn(X, i, theirs))
        assert mine == theirs


def test_a_schedule_that_counts(capture):
    one, other = Schedule(), Schedule()
    compiled = torchsmith_tracer.compile(one.step, backend=capture)
    for _ in range(10):
        assert torch.equal(compiled(X), other.step(X))
        assert one.i == other.i
    assert capture.n <= 3
    one.i, one.sigmas = 2, [float(n) for n in range(12)]
    other.i, other.sigmas = one.i, one.sigmas
    made = capture.n
    for _ in range(5):
        assert torch.equal(compiled(X), other.step(X))
    assert capture.n == made


def test_equal_blocks_read_their_own_tables(capture):
    class Block(nn.Module):
        def __init__(self, table):
            super().__init__()
            self.table, self.linear, self.i = table, nn.Linear(3, 3), 0

        def forward(self, x):
            return self.linear(x) * self.table[self.i]

    blocks = [Block([n + 0.5 + i for i in range(8)]) for n in range(4)]
    model = nn.Sequential(*blocks)
    compiled = torchsmith_tracer.compile(model, backend=capture)
    for i in range(2, 8):
        for n, block in enumerate(blocks):
            block.i = (i + n) % 8
        assert torch.equal(compiled(X), model(X))
    assert capture.n <= 4


def test_mixed_tables_have_versions(capture):
    fn = closed([1.5, 2, "a", 3.5])
    compiled = torchsmith_tracer.compile(fn, backend=capture)
    for i in (0, 1, 3, 1, 0):
        assert torch.equal(compiled(X, i), fn(X, i))
