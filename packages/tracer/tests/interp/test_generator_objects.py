"""Generators as objects, and exceptions that are thrown into them."""

import inspect
import sys

import pytest
import torch
import torchsmith_tracer


@torchsmith_tracer.disable
def opaque(x):
    return x * 2


def attributes(x, between):
    def inner():
        yield inspect.currentframe().f_back.f_code.co_name
        yield 2

    def gen():
        seen.append((made.gi_running, made.gi_suspended, made.gi_yieldfrom))
        yield 1
        yield from inner()
        return 3

    seen = []
    gen.__qualname__ = "renamed"
    made = gen()
    made.__name__ = "own"
    for _ in range(5):
        states = made.gi_running, made.gi_suspended, made.gi_frame is None
        names = made.__name__, made.__qualname__, made.gi_code.co_name
        waiting = made.gi_yieldfrom
        seen.append((states, names, waiting and waiting.gi_code.co_name, next(made, "end")))
    for name, value in (("__name__", 3), ("__qualname__", None)):
        try:
            setattr(made, name, value)
        except TypeError as e:
            seen.append(str(e))
    return between(x) + 1, seen, gen.__name__


def frames(x, between):
    def gen():
        yield sys._getframe()

    g = gen()
    frame = next(g)
    out = [frame is g.gi_frame, frame.f_code is g.gi_code, frame.f_back]
    g.close()
    return between(x) + 1, out, g.gi_frame


def handled_inside(x, between):
    log = []

    def gen():
        try:
            log.append(sys.exc_info()[0])
            yield 1
        except Exception as e:
            log.append((sys.exc_info()[1] is e, repr(e.__context__)))
            yield 2
            log.append(repr(sys.exc_info()[1]))
            yield 3
            raise
        finally:
            log.append(repr(sys.exc_info()[1]))

    g = gen()
    next(g)
    try:
        raise ValueError("outer")
    except ValueError as e:
        log.append(g.throw(e))
    log.append((next(g), sys.exc_info()[1]))
    x = between(x)
    try:
        {}["other"]
    except KeyError:
        try:
            next(g)
        except ValueError as e:
            log.append((repr(e), repr(e.__context__), repr(sys.exc_info()[1])))
        log.append(repr(sys.exc_info()[1]))
    return x + 1, log


def contexts_of_thrown(x, between):
    log = []

    def inner():
        try:
            yield 1
        except TypeError:
            yield "typed"
            raise

    def gen():
        try:
            {}["key"]
        except KeyError:
            yield from inner()

    for kinds in ((ValueError,), (TypeError, OSError)):
        g = gen()
        next(g)
        try:
            for kind in kinds:
                log.append(g.throw(kind("thrown")))
        except Exception as e:
            log.append((repr(e), repr(e.__context__)))
    return between(x) + 1, log


def thrown_wrongly(x, between):
    class NoException(Exception):
        def __new__(cls):
            return [1]

    def gen():
        try:
            yield 1
        except TypeError as e:
            yield str(e)[-52:]

    log = []
    for args in ((3,), (ValueError(), 1), (NoException,), ("text",)):
        g = gen()
        next(g)
        try:
            log.append(g.throw(*args))
        except TypeError as e:
            log.append(str(e))
    return between(x) + 1, log


class Delegate:
    def __init__(self, log, fails):
        self.log, self.fails = log, fails

    def __iter__(self):
        return self

    def __next__(self):
        return "item"

    def throw(self, *args):
        self.log.append(("throw", repr(args[-1] if isinstance(args[-1], Exception) else args[0])))
        raise StopIteration("value of throw")

    def close(self):
        self.log.append("close")
        if self.fails:
            raise OSError("from close")


def delegates(x, between):
    log = []

    def gen(fails):
        try:
            log.append((yield from Delegate(log, fails)))
            yield "after"
        finally:
            log.append("finally")

    g = gen(False)
    log.append((next(g), g.throw(ValueError("v"))))
    g.close()
    for fails in (False, True):
        g = gen(fails)
        next(g)
        try:
            g.close()
        except OSError as e:
            log.append((str(e), repr(e.__context__)))
    return between(x) + 1, log


def closing_order(x, between):
    log = []

    def gen(name):
        try:
            try:
                yield 1
            finally:
                log.append((name, "inner"))
        except GeneratorExit:
            log.append((name, "exit"))
            raise
        finally:
            log.append((name, "outer"))

    def stubborn():
        try:
            yield 1
        except GeneratorExit:
            yield 2

    def both():
        yield from gen("a")

    for make in (lambda: gen("b"), both, stubborn):
        g = make()
        next(g)
        try:
            log.append(g.close())
        except RuntimeError as e:
            log.append(str(e))
    x = between(x)
    return x + 1, log, [v for v in gen("c")], list((y, n) for y in (1, 2) for n in gen(y))


def stop_iteration_inside(x, between):
    def gen():
        yield 1
        raise StopIteration("value")

    log = []
    g = gen()
    next(g)
    try:
        next(g)
    except RuntimeError as e:
        log.append((str(e), repr(e.__cause__), repr(e.__context__), e.__suppress_context__))
    return between(x) + 1, log, list(g)


def thrown_before_the_start(x, between):
    def gen():

        yield 1

    log = []
    for error in (ValueError("thrown"), StopIteration("thrown")):
        g = gen()
        try:
            g.throw(error)
        except Exception as e:
            places, entry = [], e.__traceback__
            while entry is not None:
                code = entry.tb_frame.f_code
                places.append((code.co_name, entry.tb_lineno - code.co_firstlineno))
                entry = entry.tb_next
            log.append((repr(e), repr(e.__cause__), places[1:], list(g)))
    return between(x) + 1, log


PROGRAMS = [
    attributes, frames, thrown_before_the_start, handled_inside, contexts_of_thrown, thrown_wrongly,
    delegates, closing_order, stop_iteration_inside,
]  # fmt: skip


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_programs(check, agree, fn):
    check(fn, torch.ones(2), lambda x: x * 2, graphs=1)
    agree(fn, torch.ones(2), opaque)
