"""Generators that lose their last reference together end as in CPython: one after the other, in the
order of the frame's locals."""

import pytest
import torch
import torchsmith_tracer


def gen(log, n):
    try:
        yield n
    finally:
        log.append(n)
        log.append(-n)


def of_a_function(x, log):
    def run():
        a = b = c = None
        c, a, b = gen(log, 1), gen(log, 2), [gen(log, 3)]
        return next(c) + next(b[0]) + next(a)

    return x + run()


def of_a_generator(x, log):
    def items():
        b, a = gen(log, 1), gen(log, 2)
        next(b), next(a)
        yield 3

    for v in items():
        x = x + v
    return x


def of_the_compiled_function(x, log):
    p = q = None
    q, p = gen(log, 1), gen(log, 2)
    return x + next(q) + next(p)


def of_a_function_that_raises(x, log):
    p = q = None
    q, p = gen(log, 1), gen(log, 2)
    next(q), next(p)
    del q
    p = q = gen(log, 4)
    next(p)
    raise ValueError(x)


PROGRAMS = [of_a_function, of_a_generator, of_the_compiled_function, of_a_function_that_raises]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_generators_end_in_order(program):
    def outcome(fn):
        log = []
        try:
            return fn(torch.ones(1), log).tolist(), log
        except ValueError as e:
            return type(e), log

    compiled = torchsmith_tracer.compile(program, backend="eager")
    assert outcome(compiled) == outcome(program)
