"""An exception of before is raised again: what is being handled by then becomes its context."""

import itertools

import pytest
import torchsmith_tracer as tracer

KEPT = []


@tracer.disable
def opaque():
    pass


@tracer.disable
def fail(n):
    raise ValueError(n)


def generated(cause):
    yield 1
    if cause:
        raise KEPT[0] from None
    raise KEPT[0]


def called(cause):
    return next(iter(generated(cause))) and list(generated(cause))


def zipped(cause):
    return [*zip(generated(cause), range(3))]


def plain(cause):
    if cause:
        raise KEPT[0] from KeyError("cause")
    raise KEPT[0]


def told(raising, cause, broken):
    try:
        if broken:
            opaque()
        raising(cause)
    except ValueError as e:
        return repr(e), repr(e.__context__), repr(e.__cause__), e.__suppress_context__


def within_a_handler(raising, cause, broken):
    try:
        raise KeyError("handled")
    except KeyError:
        if broken:
            opaque()
        return told(raising, cause, broken)


def outcome(fn, *args):
    try:
        fail("first")
    except ValueError:
        try:
            fail("kept")
        except ValueError as e:
            KEPT[:] = [e]
    outside = fn(*args)
    try:
        fail("outside")
    except ValueError:
        return outside, fn(*args)


@pytest.mark.parametrize("fn", [told, within_a_handler], ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("raising", [plain, called, zipped], ids=lambda fn: fn.__name__)
def test_contexts(fn, raising):
    compiled = tracer.compile(fn, backend="eager")
    for cause, broken in itertools.product((False, True), repeat=2):
        for _ in range(2):
            args = raising, cause, broken
            assert outcome(compiled, *args) == outcome(fn, *args)
