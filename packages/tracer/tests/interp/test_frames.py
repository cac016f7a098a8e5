"""Decoded code against ``dis``, and liveness."""

from __future__ import annotations

import argparse
import dis
import inspect
import types
import typing

import pytest
from torchsmith_tracer._src.frames.code import PAIRS, decode, parse_exception_table
from torchsmith_tracer._src.frames.liveness import live_locals


def codes(code):
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from codes(const)


def parts(code):
    """Instructions of ``code``; what is two in one is the two."""
    for i in dis.get_instructions(code):
        if i.opname in PAIRS:
            for opname, argval in zip(PAIRS[i.opname], i.argval):
                yield i._replace(opname=opname, argval=argval)
        elif i.opname not in ("EXTENDED_ARG", "CACHE"):
            yield i


@pytest.mark.parametrize("module", [argparse, inspect, typing], ids=lambda m: m.__name__)
def test_decoding_agrees_with_dis(module):
    with open(module.__file__) as file:
        whole = compile(file.read(), module.__file__, "exec")
    for code in codes(whole):
        ours = decode(code).instructions
        theirs = list(parts(code))
        assert [(i.opname, i.offset) for i in ours] == [(i.opname, i.offset) for i in theirs]
        for mine, other in zip(ours, theirs):
            if mine.target >= 0:
                goal = ours[mine.target]
                assert other.argval in (goal.offset, goal.start)
            elif mine.opname in ("LOAD_FAST", "LOAD_GLOBAL", "LOAD_ATTR", "LOAD_CONST"):
                assert mine.argval == other.argval


def test_exception_table_agrees_with_dis():
    for code in codes(compile(inspect.getsource(argparse), "argparse", "exec")):
        ours = list(parse_exception_table(code.co_exceptiontable))
        theirs = [tuple(entry) for entry in dis._parse_exception_table(code)]
        assert [tuple(o) for o in ours] == [(t[0], t[1], t[2], t[3], t[4]) for t in theirs]


def test_lines():
    def f(a):
        b = a

        return b

    info = decode(f.__code__)
    stores = [i.index for i in info.instructions if i.opname.startswith("STORE_FAST")]
    assert info.line(stores[0]) == f.__code__.co_firstlineno + 1


def after(fn, opname):
    info = decode(fn.__code__)
    index = next(i.index for i in info.instructions if i.opname == opname)
    return live_locals(info, index + 1)


def test_dead_locals_are_not_live():
    def f(a, b, c):
        x = a + b
        g(x)
        return c

    assert after(f, "POP_TOP") == {"c"}


def test_loop_variables_stay_live():
    def f(n, k):
        total = 0
        for i in n:
            g()
            total += k
        return total

    assert after(f, "POP_TOP") == {"total", "k"}


def test_handlers_keep_their_locals():
    def f(a, b):
        try:
            g()
        except ValueError:
            return a
        return 0

    assert "a" in after(f, "POP_TOP") or "a" in after(f, "LOAD_GLOBAL")


def test_cells_are_always_live():
    def f(a):
        def h():
            return a

        g()
        return 1

    assert "a" in after(f, "POP_TOP")


def g(*args):
    return args
