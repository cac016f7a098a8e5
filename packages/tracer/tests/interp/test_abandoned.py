"""Generators clean up where CPython would let go of them, and are rebuilt in mid-flight."""

import contextlib
import gc
import sys
from functools import partial

import pytest
import torch
import torchsmith_tracer


@torchsmith_tracer.disable
def opaque(log, *what):
    log.append(("opaque", *what))
    return len(log)


def numbers(x, log, n=3):
    try:
        for i in range(n):
            log.append(i)
            yield x * i
    finally:
        log.append("finally")


def delegating(x, log):
    try:
        yield from numbers(x, log)
    finally:
        log.append("outer finally")


@contextlib.contextmanager
def context(log):
    log.append("enter")
    try:
        yield 5
    except ValueError:
        log.append("caught")
    finally:
        log.append("exit")


def left_by_break(x, log):
    for v in numbers(x, log):
        if v.dim():
            break
    log.append("after")
    return v + 1


def left_by_return(x, log):
    for v in numbers(x, log):
        return v, log.append("value")


def left_by_an_exception(x, log):
    try:
        for v in numbers(x, log):
            raise KeyError(1)
    except KeyError:
        log.append("handler")
    return v


def left_by_an_exception_in_a_callee(x, log):
    def helper():
        for v in numbers(x, log):
            if len(log) > 1:
                raise KeyError(str(v.shape))

    try:
        helper()
    except KeyError as e:
        log.append(str(e))
    log.append("after")
    return x


def local_overwritten(x, log):
    it = numbers(x, log)
    next(it)
    log.append("a")
    it = None
    log.append("b")
    return x


def local_deleted(x, log):
    it = numbers(x, log)
    next(it)
    log.append("a")
    del it
    log.append("b")
    return x


def two_names(x, log):
    it = other = numbers(x, log)
    next(it)
    del it
    log.append("still there")
    del other
    log.append("gone")
    return x


def callee_ends(x, log):
    def helper():
        it = numbers(x, log)
        next(it)
        return 1

    helper()
    log.append("after")
    return x + 1


def temporary(x, log):
    v = next(numbers(x, log))
    log.append("after")
    return v


def in_a_list(x, log):
    its = [numbers(x, log), numbers(x, log)]
    next(its[0])
    next(its[1])
    its.pop()
    log.append("popped")
    its.clear()
    log.append("cleared")
    return x


def in_an_attribute(x, log):
    class Holder:
        pass

    holder = Holder()
    holder.it = numbers(x, log)
    next(holder.it)
    log.append("held")
    holder.it = None
    log.append("after")
    return x


def delegated(x, log):
    for v in delegating(x, log):
        break
    log.append("after")
    return v


def wrapped(x, log):
    for i, v in enumerate(zip(numbers(x, log), numbers(x, log, 2))):
        if i:
            break
    log.append("after")
    return v


def by_any(x, log):
    return any(bool(v.dim()) for v in numbers(x, log)), log.append("after")


def returned(x, log):
    it = numbers(x, log)
    next(it)
    log.append("end")
    return next(it), it.close()


NO_BREAK = [
    left_by_break,
    left_by_return,
    left_by_an_exception,
    left_by_an_exception_in_a_callee,
    local_overwritten,
    local_deleted,
    two_names,
    callee_ends,
    temporary,
    in_a_list,
    in_an_attribute,
    delegated,
    wrapped,
    by_any,
    returned,
]


def outcome(fn):
    log = []
    try:
        result = fn(torch.ones(2), log)
    except Exception as e:
        result = type(e), e.args
    return repr(result), log


@pytest.mark.parametrize("fn", NO_BREAK, ids=lambda f: f.__name__)
def test_cleaned_up_at_the_same_point(fn):
    compiled = torchsmith_tracer.compile(fn, fullgraph=True)
    for _ in range(2):
        assert outcome(compiled) == outcome(fn)


def break_in_the_loop(x, log):
    for v in numbers(x, log):
        opaque(log, 1)
        if float(v.sum()) > 0:
            break
    log.append("after")
    return v + 1


def break_while_suspended(x, log):
    it = numbers(x, log)
    next(it)
    opaque(log, 2)
    log.append("end")
    return x


def break_and_finally_in_the_loop(x, log):
    for v in numbers(x, log):
        try:
            if opaque(log, 1) > 3:
                return v
        finally:
            log.append("inner finally")
    return x


def break_in_enumerate(x, log):
    for i, v in enumerate(delegating(x, log)):
        if i:
            opaque(log, 7)
            break
    log.append("after")
    return v


def break_between_sends(x, log):
    it = numbers(x, log)
    a = next(it)
    opaque(log, 1)
    b = it.send(None)
    it.close()
    log.append("closed")
    return a + b


def break_in_the_argument_of_any(x, log):
    return any(opaque(log, 5) for v in numbers(x, log)), log.append("after")


def break_in_the_callee(x, log):
    def helper():
        for v in numbers(x, log):
            opaque(log, 3)
            return v * 2

    v = helper()
    log.append("after")
    return v + 1


@pytest.mark.parametrize(
    "fn",
    [
        break_in_the_loop,
        break_while_suspended,
        break_and_finally_in_the_loop,
        break_in_enumerate,
        break_between_sends,
        break_in_the_argument_of_any,
        break_in_the_callee,
    ],
    ids=lambda f: f.__name__,
)
def test_a_break_rebuilds_the_suspended_generator(fn):
    compiled = torchsmith_tracer.compile(fn)
    for _ in range(2):
        assert outcome(compiled) == outcome(fn)
    frames = compiled._torchsmith_region.log.frames
    assert not any(r.eager for r in frames)
    assert any(r.break_ is not None and not r.break_.resumed for r in frames)


@pytest.mark.parametrize("raises", [False, True])
def test_a_break_inside_a_context_made_from_a_generator(raises):
    def f(x, log):
        with context(log) as v:
            y = x + v
            opaque(log, 3)
            y = y * 2
            if raises:
                raise ValueError("x")
        log.append("after")
        return y + 1

    compiled = torchsmith_tracer.compile(f)
    for _ in range(2):
        assert outcome(compiled) == outcome(f)
    frames = compiled._torchsmith_region.log.frames
    assert not any(r.eager for r in frames)
    assert frames[1].graph is not None  # what follows the break in the block is compiled


def test_the_rebuilt_generator_takes_sends_and_throws():
    def echo(log):
        got = "first"
        while True:
            try:
                got = yield got
                log.append(got)
            except KeyError as e:
                log.append(repr(e))
                got = "recovered"

    def f(x, log):
        it = echo(log)
        next(it)
        it.send(1)
        opaque(log)
        return it.send(2), it.throw(KeyError("k")), it.send(3)

    assert outcome(torchsmith_tracer.compile(f)) == outcome(f)


def test_a_generator_suspended_in_the_middle_of_a_call():
    def sums(log):
        while True:
            log.append((yield len(log)))

    def f(x, log):
        it = sums(log)
        next(it)
        opaque(log)
        it.send(5)
        return it.send(6), log

    compiled = torchsmith_tracer.compile(f)
    assert outcome(compiled) == outcome(f)
    assert not any(r.eager for r in compiled._torchsmith_region.log.frames)


def test_a_generator_suspended_in_a_handler():
    def stubborn(log):
        try:
            yield 1
        except KeyError as e:
            try:
                yield sys.exc_info()[1] is e
                raise ValueError(2)
            except ValueError as inner:
                yield sys.exc_info()[1] is inner, repr(inner.__context__)
            yield sys.exc_info()[1] is e
            raise
        finally:
            log.append("finally")

    def f(x, log, steps):
        it = stubborn(log)
        next(it)
        log.append(it.throw(KeyError("k")))
        for _ in range(steps):
            log.append(next(it))
        opaque(log)
        log.append(sys.exc_info())
        for item in it:
            log.append(item)

    for steps in range(4):
        compiled = torchsmith_tracer.compile(f)
        assert outcome(partial(compiled, steps=steps)) == outcome(partial(f, steps=steps))
        assert not any(r.eager and not r.note for r in compiled._torchsmith_region.log.frames)


def held_by_a_method(x, log):
    for _ in range(2):
        it = numbers(x, log)
        next(it)
        send = it.send
        (lambda fn: opaque(log, fn is send, fn(None) is None))(send)
        send = None
        log.append("rebound")
    return x


def held_by_a_list(x, log):
    its = [numbers(x, log)]
    next(its[0])
    opaque(log)
    its = None
    log.append("let go")
    return x


def variables_made_after_the_last_generator(x, log):
    for _ in zip(numbers(x, log), range(1)):
        pass
    n = 0
    while n < 2:
        n += 1
        opaque(log, n)
    return n


def truth_of_a_tensor_in_its_loop(x, log):
    for v in numbers(x, log):
        if x.sum() > 99:
            log.append("large")
        log.append("both" if not v.sum() and (x.sum() or log) else "other")
    while not v.sum() > 100:
        v = v * 9
    return v


class Kept:
    def __init__(self):
        self.error = None


KEPT = Kept()


def let_go_of_with_a_kept_exception(x, log):
    def fails():
        it = numbers(x, log)
        next(it)
        opaque(log)
        try:
            raise ValueError(len(log))
        except ValueError as e:
            KEPT.error = e

    opaque(log)
    for _ in range(2):
        fails()
        opaque(log)
        log.append("goes on")
    KEPT.error = None
    log.append("let go")
    return x


@torchsmith_tracer.disable
def failing(log):
    raise ValueError(len(log))


def made_after_the_exception_that_keeps_its_frame(x, log):
    def fails():
        try:
            failing(log)
        except ValueError as e:
            KEPT.error = e
            it = numbers(x, log)
            log.append(next(it) is not None)

    for _ in range(2):
        fails()
        log.append("goes on")
    opaque(log)
    KEPT.error = None
    log.append("let go")
    return x


def read_and_let_go_of_by_what_follows(x, log):
    def fails():
        log.append(str(KEPT.error))
        it = numbers(x, log)
        next(it)
        try:
            failing(log)
        except ValueError as e:
            KEPT.error = e
        log.append("stored")

    for _ in range(3):
        fails()
    KEPT.error = None
    return x


def behind_an_exception_that_is_raised(x, log):
    try:
        raise ValueError(1)
    except ValueError:
        it = numbers(x, log)
        next(it)
        opaque(log)
    log.append("end")


def attempt(fn, *args):
    try:
        fn(*args)
    finally:
        del fn, args


def suspended_where_it_handles_an_exception(x, log):
    def gen():
        try:
            yield 1
        except ValueError:
            yield 7  # the exception leads to this frame, and it to nobody who resumed it
        finally:
            log.append("finally")

    def inner():
        try:
            failing(log)
        except ValueError:
            g = gen()
            attempt(next, g)
            attempt(g.throw, ValueError("thrown"))

    inner()
    log.append("end")


def made_in_the_handler_of_a_loop(x, log):
    def inner():
        for n in range(3):
            try:
                failing(log)
            except ValueError:
                it = numbers(x, log)
                next(it)
        log.append(("left", n))

    inner()
    log.append("end")


@pytest.mark.parametrize(
    "fn",
    [
        made_in_the_handler_of_a_loop,
        held_by_a_method,
        held_by_a_list,
        variables_made_after_the_last_generator,
        truth_of_a_tensor_in_its_loop,
        let_go_of_with_a_kept_exception,
        made_after_the_exception_that_keeps_its_frame,
        read_and_let_go_of_by_what_follows,
        behind_an_exception_that_is_raised,
    ],
    ids=lambda f: f.__name__,
)
def test_nothing_of_ours_holds_a_generator(fn):
    gc.collect()
    gc.disable()
    try:
        compiled = torchsmith_tracer.compile(fn)
        for _ in range(2):
            assert outcome(compiled) == outcome(fn)
    finally:
        gc.enable()


def test_a_generator_that_leads_to_itself_is_one():
    def ended(fn):
        gc.collect()
        gc.disable()
        try:
            found = outcome(fn)
            gc.collect()  # what is in circles ends now
            return str(found)
        finally:
            gc.enable()

    fn = suspended_where_it_handles_an_exception
    compiled = torchsmith_tracer.compile(fn)
    for _ in range(2):
        assert ended(compiled) == ended(fn)
