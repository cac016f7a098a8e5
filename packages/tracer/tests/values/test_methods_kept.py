"""Methods of C objects that traced code made, taken before a graph break or broken in."""

import functools
import itertools
import operator
import threading

import pytest
import torchsmith_tracer as tracer

CASES = []


def case(fn):
    CASES.append(fn)
    return fn


@tracer.disable
def opaque(a, b=0):
    return a + b


class Shifted(itertools.takewhile):
    def __next__(self):
        return super().__next__() + 100


@case
def steps_that_break():
    total = itertools.accumulate([1, 2, 3], lambda a, b: opaque(a, b))
    taken = itertools.takewhile(opaque, [1, 2, 3])
    return total.__next__(), total.__next__(), taken.__next__(), taken.__next__()


@case
def calls_that_break():
    key = functools.cmp_to_key(opaque)
    return key(-3).__lt__(key(1)), functools.partial(opaque, 3).__call__(1)


@case
def steps_of_a_subclass_that_break():
    it = Shifted(opaque, [1, 2, 3])
    return next(it), it.__next__()


@case
def steps_taken_before():
    it, own = itertools.starmap(opaque, [(1, 2), (3, 4)]), Shifted(bool, [1, 2, 3])
    step, shifted, plain = it.__next__, own.__next__, super(Shifted, own).__next__
    opaque(1)
    return step(), next(it), shifted(), plain(), shifted.__name__


@case
def calls_taken_before():
    largest, second = functools.partial(max, 3), operator.itemgetter(1)
    calls = largest.__call__, second.__call__, largest.__repr__
    opaque(1)
    return calls[0](7), calls[1]([1, 2]), calls[2]()


@case
def a_lock_taken_before():
    lock = threading.RLock()
    acquire, release = lock.acquire, lock.release
    opaque(1)
    return acquire(), release(), lock._is_owned()


@pytest.mark.filterwarnings("ignore::torchsmith_tracer.errors.TracerWarning")
@pytest.mark.parametrize("program", CASES, ids=lambda program: program.__name__)
def test_as_in_python(program):
    compiled = tracer.compile(program, backend="eager")
    for _ in range(2):
        assert compiled() == program()
