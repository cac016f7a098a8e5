"""Numbers out of tensors that only decide about an exception: checked in the graph.

PYTEST_DONT_REWRITE: the programs have assertions of their own.
"""

import itertools

import pytest
import torch
import torchsmith_tracer


def bounded(x, log):
    log.append("before")
    x.add_(1)
    assert x.max().item() < 10, f"too big: {x.max().item()}"
    log.append("after")
    return x * 2


def refused(x, log):
    if x.max().item() >= 10:
        raise ValueError("too big")
    return x * 2


def converted(x, log):
    assert float(x.max()) < 10 and 0 <= int((x > 5).sum())
    return x * 2


def counted(x, log):
    if (x > 9).sum().item():
        raise IndexError("some")
    if not (x < 10).all().item():
        raise KeyError("others")
    return x + 1


def handled(x, log):
    try:
        x.mul_(2)
        assert x.max().item() <= 2 * 5 + len(log), "over"
        log.append(1)
    except AssertionError as e:
        log.append(str(e))
        return x - 1
    return x + 1


def compared(x, log):
    assert x.min().item() != x.max().item()
    assert x.sum().item() == x.sum().item()
    return x * 2


FUNCTIONS = (bounded, refused, converted, counted, handled, compared)
VALUES = ([0.0, 1.0], [4.0, 4.5], [20.0, 1.0], [float("nan"), 1.0], [1.0, 1.0], [9.0, 3.0])


def outcome(fn, x, log):
    try:
        return fn(x, log).tolist()
    except Exception as e:
        return type(e), str(e)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_one_graph_with_exceptions_and_effects_of_eager(fn, dtype, capture):
    compiled = torchsmith_tracer.compile(fn, backend=capture)
    for values in VALUES * 2:
        if dtype is torch.int64 and values[0] != values[0]:
            continue
        x, y = torch.tensor(values).to(dtype), torch.tensor(values).to(dtype)
        mine, theirs = [], []
        assert str(outcome(compiled, x, mine)) == str(outcome(fn, y, theirs))
        assert str(x) == str(y) and mine == theirs
    broken = fn is converted and dtype is torch.int64  # float() of a whole number rounds
    assert bool(compiled._torchsmith_region.log.breaks) == broken
    assert broken or capture.n == 1


@pytest.mark.parametrize("bound", [0.1, 1 / 3, 16777217, 2.0**24 + 1, 2**53 + 1, 10**30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_compared_as_exactly_as_python_does(bound, dtype):
    def below(x):
        assert x.max().item() < bound
        return x

    def same(x):
        if x.item() == bound:
            raise ValueError
        return x

    values = torch.tensor([bound], dtype=torch.float64).clamp(-(2.0**62), 2.0**62).to(dtype)
    around = [values, values + 1, values - 1, torch.nextafter(values.double(), -values.double())]
    for fn in below, same:
        compiled = torchsmith_tracer.compile(fn)
        for x in around:
            x = x.to(dtype)
            assert str(outcome(lambda a, _: compiled(a), x, 0)) == str(
                outcome(lambda a, _: fn(a), x, 0)
            )


def test_a_bound_that_varies(capture):
    def inside(ids, size, table):
        assert ids.min().item() >= 0 and ids.max().item() < size, f"not below {size}"
        return table[ids]

    compiled = torchsmith_tracer.compile(inside, backend=capture)
    table = torch.arange(9.0)
    for size, ids in ((9, [1, 2]), (8, [0, 7]), (3, [1, 3]), (4, [-1, 2]), (6, [5, 0])):
        a, b = (
            outcome(lambda t, n: f(t, n, table), torch.tensor(ids), size)
            for f in (compiled, inside)
        )
        assert a == b
    assert capture.n == 2 and not compiled._torchsmith_region.log.breaks


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x * x.max().item() if x.max().item() < 3 else x,
        lambda x: {1.0: x, 2.0: x + 1}[x.max().item()],
    ],
)
def test_other_uses_break_as_before(fn, agree):
    log = agree(fn, torch.ones(3))
    assert "item" in {b.name for b in log.breaks}


def test_what_is_checked_is_not_differentiated(capture):
    def step(x):
        loss = (x * x).sum()
        assert loss.item() < 100
        loss.backward()
        return loss

    compiled = torchsmith_tracer.compile(step, backend=capture)
    for scale in (1.0, 2.0, 30.0):
        x, y = (torch.full((3,), scale, requires_grad=True) for _ in range(2))
        assert outcome(lambda a, _: compiled(a), x, 0) == outcome(lambda a, _: step(a), y, 0)
        assert (x.grad is None) == (y.grad is None) == (scale == 30.0)
        assert scale == 30.0 or torch.equal(x.grad, y.grad)
    assert capture.n == 1


def test_numbers_of_data_that_were_asked_for():
    def first(x, count):
        n = count.item()
        if n > 3:
            raise ValueError(f"{n} are too many")
        if not n >= 0:
            raise KeyError
        return x[:n]

    options = {"capture_scalar_outputs": True}
    compiled = torchsmith_tracer.compile(first, fullgraph=True, options=options)
    for n in (1, 2, 0, 4, -1, 3):
        a, b = (outcome(f, torch.ones(5), torch.tensor(n)) for f in (compiled, first))
        assert a == b


def test_sequences_repeated_as_often_as_data_says():
    def repeated(n):
        with torch.no_grad():
            return [torch.ones(1)] * (int(n) % 3), (1, 2) * int(n), int(n) * b"ab"

    options = {"capture_scalar_outputs": True}
    compiled = torchsmith_tracer.compile(repeated, options=options)
    for n in (3, 0, -1, 2):
        assert compiled(torch.tensor(n)) == repeated(torch.tensor(n))


def test_repetitions_by_data_end():
    """Whether there is another item cannot break within the iterator."""

    def repeated(n):
        return list(itertools.repeat(1, int(n)))

    options = {"capture_scalar_outputs": True}
    compiled = torchsmith_tracer.compile(repeated, backend="eager", options=options)
    for n in (3, 0, 2):
        assert compiled(torch.tensor(n)) == [1] * n
