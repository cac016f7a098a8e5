"""Arguments of all kinds: which values share a compile, and what the compiled code leaves alone."""

import collections
import dataclasses
import enum
import functools
import gc
import re
import sys
import weakref

import pytest
import torch
import torchsmith_tracer as tracer

X = torch.arange(6.0).reshape(2, 3)


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Pair:
    one: torch.Tensor
    k: str


Named = collections.namedtuple("Named", "one k")


def by_enum(a, member):
    return a + 1 if member is Color.RED else a - member.value


def by_pattern(a, pattern):
    return a + len(pattern.findall("abcab"))


def by_partial(a, part):
    return part(a) * 2


def by_fields(a, pair):
    return a + pair.one * len(pair.k)


def by_range(a, span):
    return [a + i for i in span]


def by_slice(a, span):
    return a[:, span] * 2


def by_reference(a, reference):
    found = reference()
    return a * 2 if found is None else a + found


def add(a, k):
    return a + k


def sub(a, k):
    return a - k


ONE, TWO = torch.ones(3), torch.full((3,), 2.0)


@pytest.mark.parametrize(
    ("fn", "values", "graphs"),
    [
        (by_enum, [Color.RED, Color.RED, Color.BLUE, Color.RED], 2),
        (by_pattern, [re.compile("a"), re.compile("a"), re.compile("ab?")], 2),
        (by_partial, [functools.partial(add, k=ONE), functools.partial(add, k=TWO)], 1),
        (by_partial, [functools.partial(add, k=ONE), functools.partial(sub, k=ONE)], 2),
        (by_fields, [Pair(ONE, "ab"), Pair(TWO, "cd"[:2].replace("cd", "ab")), Pair(ONE, "x")], 2),
        (by_fields, [Named(ONE, "ab"), Named(TWO, "ab"), Pair(ONE, "ab")], 2),
        (by_range, [range(3), range(3), range(1, 6, 2)], 2),
        (by_slice, [slice(0, 2), slice(0, 2), slice(None, None, 2)], 2),
    ],
)
def test_values_that_are_equal_share_a_compile(fn, values, graphs, capture):
    run = tracer.compile(fn, backend=capture, fullgraph=True)
    for value in values:
        assert repr(run(X, value)) == repr(fn(X, value))
    assert capture.n == graphs


def test_a_dead_weak_reference_recompiles(capture):
    run = tracer.compile(by_reference, backend=capture, fullgraph=True)
    target = torch.ones(3)
    reference = weakref.ref(target)
    for _ in range(2):
        assert torch.equal(run(X, reference), X + 1)
    assert capture.n == 1
    capture.inputs.clear()
    del target
    gc.collect()
    assert torch.equal(run(X, reference), X * 2) and capture.n == 2


def test_an_iterator_argument_is_advanced_as_in_eager(capture):
    def takes(a, rest):
        return a + next(rest)

    run = tracer.compile(takes, backend=capture)
    own, other = iter((ONE, TWO, ONE)), iter((ONE, TWO, ONE))
    for _ in range(2):
        assert torch.equal(run(X, own), takes(X, other))
    assert [t.tolist() for t in own] == [t.tolist() for t in other] == [ONE.tolist()]


@functools.lru_cache(maxsize=None)
def weights(n):
    return n * 2


def test_a_cached_helper_is_one_graph_with_its_result_kept(check, capture):
    def fn(a):
        return a * weights(3) + weights(3)

    weights.cache_clear()
    check(fn, X, graphs=1, fullgraph=True)
    assert weights.cache_info().currsize == 1


def test_no_graph_input_is_made_of_a_size_that_its_tensor_has(capture):
    def fn(a, b):
        return a.shape[0] * b.reshape(b.shape[1], -1).sum()

    run = tracer.compile(fn, backend=capture, fullgraph=True, dynamic=True)
    for n, m in ((4, 5), (6, 7)):
        a, b = torch.ones(n, 2), torch.ones(m, 3)
        assert torch.equal(run(a, b), fn(a, b))
    assert capture.n == 1 and capture.placeholders() == ["a", "b"]


def test_nothing_is_left_in_the_users_namespaces():
    before = set(globals()), set(vars(sys.modules["builtins"])), set(vars(torch))

    def steps(a):
        a = a + len(SEEN)
        print(end="", flush=True)
        return a * 2

    run = tracer.compile(steps)
    for size in (2, 3, 4):
        a = torch.ones(size)
        assert torch.equal(run(a), steps(a))
    made = weakref.ref(run._torchsmith_region)
    after = set(globals()), set(vars(sys.modules["builtins"])), set(vars(torch))
    assert after == before
    tracer.reset()
    del run
    gc.collect()
    assert made() is None


SEEN = [1, 2]


def test_events_and_streams_of_a_missing_device_are_eagers_errors(agree):
    def fn(a):
        try:
            torch.cuda.current_stream()
        except (AssertionError, RuntimeError) as e:
            return a + 1, type(e).__name__
        return a, ""

    if not torch.cuda.is_available():
        agree(fn, X)


def test_the_state_of_the_generator_is_eagers_after_a_call(check):
    def fn(a):
        torch.manual_seed(3)
        return a + torch.rand(3)

    for _ in range(2):
        assert torch.equal(tracer.compile(fn)(X), fn(X))
        after = torch.rand(2)
        fn(X)
        assert torch.equal(after, torch.rand(2))
