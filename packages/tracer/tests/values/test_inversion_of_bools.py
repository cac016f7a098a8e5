"""``~`` of a bool warns from Python 3.12 on."""

import operator
import warnings

import pytest
import torch
import torchsmith_tracer as tracer


def inverted(x, flag):
    return x + ~flag, ~flag


def by_function(x, flag):
    return x + operator.invert(flag), flag.__invert__()


def looked_at(x, flag):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        inverse = ~(len(x) == 1 and flag)
    return inverse, [str(warning.message) for warning in found], x + 1


def caught(x, flag):
    try:
        return ~flag, x
    except DeprecationWarning as e:
        return str(e), x + 1


@pytest.mark.parametrize("action", ["always", "error", "ignore"])
@pytest.mark.parametrize("program", [inverted, by_function, looked_at, caught])
def test_warnings(program, action):
    def outcome(fn, flag):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter(action)
            try:
                result = repr(fn(torch.ones(1), flag))
            except DeprecationWarning as e:
                result = repr(e)
        return result, [(str(w.message), w.category, w.filename, w.lineno) for w in found]

    compiled = tracer.compile(program, backend="eager")
    for flag in (True, False, True, 3):
        assert outcome(compiled, flag) == outcome(program, flag)
