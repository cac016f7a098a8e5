"""Breaks inside running handlers: captured on both sides, with the exception live."""

import sys
import traceback

import pytest
import torch
import torchsmith_tracer


class Refused(Exception):
    def __init__(self, text, extra):
        super().__init__(text)
        self.extra = extra


@torchsmith_tracer.disable
def opaque(x):
    return x * 2


@torchsmith_tracer.disable
def fails(x, kind=ValueError):
    raise kind("below")


@torchsmith_tracer.disable
def handled_now():
    kind, value, _ = sys.exc_info()
    return kind.__name__ if kind else None, str(value)


class Manager:
    def __init__(self, log, swallow):
        self.log, self.swallow = log, swallow

    def __enter__(self):
        self.log.append("enter")
        opaque(1)
        return self

    def __exit__(self, kind, value, tb):
        self.log.append((kind and kind.__name__, str(value)))
        opaque(2)
        self.log.append(handled_now())
        return self.swallow


def in_a_handler(x):
    try:
        x = x + {}["key"]
    except KeyError as e:
        y = opaque(x + 1)
        return y + len(e.args), handled_now()
    return x


def raised_below(x):
    try:
        x = x + 1
        fails(x)
    except ValueError as e:
        y = opaque(x * 3)
        x = y + len(str(e))
    return x * 2, handled_now()


def bare_raise(x):
    log = []
    try:
        try:
            raise Refused("no", 3)
        except Refused as e:
            x = opaque(x + e.extra)
            raise
    except Refused as e:
        log.append((str(e), e.extra, e.__context__ is None))
    return x + 1, log


def raise_from(x):
    try:
        try:
            fails(x)
        except ValueError as e:
            x = opaque(x + 1)
            raise Refused("other", 1) from e
    except Refused as e:
        x = opaque(x - 1)
        cause, context = e.__cause__, e.__context__
        return x + 1, str(cause), cause is context, e.__suppress_context__


def context_of_a_second(x):
    try:
        try:
            {}["key"]
        except KeyError:
            x = opaque(x + 1)
            raise Refused("second", 1)
    except Refused as e:
        return x + 1, repr(e.__context__), e.__cause__, e.__suppress_context__


def context_from_below(x):
    try:
        try:
            {}["key"]
        except KeyError:
            x = x + 1
            fails(x)
    except ValueError as e:
        return x + 1, repr(e.__context__), handled_now()


def escapes(x):
    try:
        raise Refused("out", 2)
    except Refused as e:
        opaque(x + 1)
        raise RuntimeError("wrapped") from e


def reraised(x):
    try:
        fails(x + 1)
    except ValueError:
        opaque(x + 1)
        raise


def in_a_loop(x):
    log = []
    for i in range(4):
        try:
            if i % 2:
                raise Refused(f"at {i}", i)
            fails(x, KeyError)
        except Refused as e:
            x = opaque(x + e.extra)
            log.append(handled_now())
            if i == 3:
                break
        except KeyError:
            x = opaque(x + 1)
            continue
        finally:
            x = opaque(x - 1)
            log.append(handled_now())
    return x * 2, log


def nested(x):
    log = []
    try:
        {}["outer"]
    except KeyError:
        log.append(handled_now())
        try:
            fails(x)
        except ValueError as e:
            x = opaque(x + 1)
            log.append((handled_now(), repr(e.__context__)))
        log.append(handled_now())
        x = opaque(x + 1)
    log.append(handled_now())
    return x + 1, log


def finally_by_exception(x):
    log = []
    try:
        try:
            x = x + 1
            {}["key"]
        finally:
            x = opaque(x + 1)
            log.append(handled_now())
    except KeyError:
        x = opaque(x + 1)
    return x + 1, log, handled_now()


def finally_returns(x):
    try:
        fails(x + 1)
    finally:
        x = opaque(x + 1)
        return x + 1, handled_now()


def with_swallows(x):
    log = []
    with Manager(log, True):
        x = x + 1
        fails(x)
    x = opaque(x + 1)
    return x + 1, log, handled_now()


def with_in_a_loop(x):
    log = []
    for i in range(3):
        with Manager(log, i != 5), Manager(log, i == 1):
            x = x + 1
            if i:
                {}["key"]
            x = opaque(x)
    return x + 1, log


def with_passes_on(x):
    log = []
    try:
        with Manager(log, False):
            x = x + 1
            {}["key"]
    except KeyError as e:
        x = opaque(x + 1)
        log.append(repr(e))
    return x + 1, log


def callee_in_a_handler(x):
    def inner(y, depth):
        if depth:
            return inner(y + 1, depth - 1) + 1
        y = opaque(y)
        return y + len(handled_now()[1])

    try:
        {}["key"]
    except KeyError:
        x = inner(x + 1, 2)
    return x + 1, handled_now()


def handler_in_a_callee(x):
    def inner(y):
        try:
            fails(y + 1)
        except ValueError as e:
            y = opaque(y + 1)
            raise KeyError("inner") from e

    def outer(y):
        try:
            return inner(y + 1)
        except KeyError as e:
            y = opaque(y)
            return y + len(repr(e.__cause__))

    return outer(x + 1) * 2, handled_now()


def raises_what_is_handled_outside(x):
    def inner(y):
        opaque(y)
        raise

    try:
        try:
            {}["key"]
        except KeyError:
            inner(x)
    except KeyError as e:
        return opaque(x) + 1, repr(e)


def looks_in_a_callee(x):
    def inner(y):
        y = opaque(y) + 1
        return y, repr(sys.exc_info()[1])

    try:
        {}["key"]
    except KeyError:
        return inner(x)


def unhandled_kind(x):
    try:
        try:
            fails(x)
        except KeyError:
            x = x + 1
        finally:
            x = opaque(x + 5)
    except ValueError:
        x = opaque(x + 2)
    return x + 1


def handler_for_all(x):
    try:
        fails(x)
    except:  # noqa: E722
        x = opaque(x + 2)
    else:
        x = x + 100
    return x + 1


def same_again(x):
    caught = None
    try:
        fails(x)
    except ValueError as e:
        caught = e
        x = opaque(x)
    try:
        x = opaque(x + 1)
        raise caught
    except ValueError as e:
        return opaque(x) + 1, e is caught, str(e)


def shape_error(x):
    try:
        return x @ torch.ones(7, 7)
    except RuntimeError:
        y = opaque(x + 2)
    return y + 1, handled_now()


def captured_name(x):
    out = []
    try:
        fails(x)
    except ValueError as e:
        out.append(lambda: str(e))  # noqa: F821
        x = opaque(x + 2)
        out = [say() for say in out]
    return x + 1, out


PROGRAMS = [
    in_a_handler, raised_below, bare_raise, raise_from, context_of_a_second, context_from_below,
    escapes, reraised, in_a_loop, nested, finally_by_exception, finally_returns, with_swallows,
    with_in_a_loop, with_passes_on, callee_in_a_handler, handler_in_a_callee,
    raises_what_is_handled_outside, looks_in_a_callee, unhandled_kind, handler_for_all, same_again,
    shape_error, captured_name,
]  # fmt: skip


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_programs(agree, capture, fn):
    log = agree(fn, torch.ones(3))
    assert all(b.resumed for b in log.breaks), [str(b) for b in log.breaks]
    assert not any(frame.eager for frame in log.frames)
    assert sys.exc_info()[1] is None


def frames_of(error):
    """(function, line) of this file's frames, innermost last."""
    found = traceback.extract_tb(error.__traceback__)
    return [(f.name, f.line) for f in found if f.filename == __file__]


@pytest.mark.parametrize("fn", [escapes, reraised], ids=lambda fn: fn.__name__)
def test_traceback_of_what_leaves_a_handler(fn):
    compiled = torchsmith_tracer.compile(fn)
    for _ in range(2):
        found = []
        for run in (fn, compiled):
            with pytest.raises(Exception) as caught:
                run(torch.ones(3))
            found.append([frames_of(e) for e in chain(caught.value)])
        assert found[1] == found[0]


def chain(error):
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def shown_in_a_handler(x):
    def inner(y, depth):
        if depth:
            return inner(y, depth - 1)
        raise Refused("deep", 1)

    out = []
    for make in (lambda: inner(x, 2), lambda: open("/no/file"), lambda: {}["key"]):
        try:
            x = x + 1
            make()
        except Exception as e:
            out.append(traceback.format_exc())
            out.append([(f.name, f.lineno) for f in traceback.extract_tb(e.__traceback__)])
            x = opaque(x)
    return x + 1, out


def shown_later(x):
    def caught(make):
        try:
            make()
        except Exception as e:
            return e

    first = caught(lambda: {}["key"])
    x = opaque(x)
    second = caught(lambda: open("/no/file"))
    text = "".join(traceback.format_exception(second))
    return x + 1, "".join(traceback.format_exception(first)), text


def lines_of_an_entry(x):
    def inner():
        raise ValueError("here")

    try:
        x = x + 1
        inner()
    except ValueError as e:
        found = []
        tb = e.__traceback__
        while tb is not None:
            found.append((tb.tb_lineno, tb.tb_frame.f_code.co_name, tb.tb_lasti > 0))
            tb = tb.tb_next
        return x + 1, found, sys.exc_info()[2] is e.__traceback__


def links_of_an_existing_exception(x, e):
    try:
        try:
            {}["key"]
        except KeyError:
            raise e from None
    except ValueError as caught:
        x = opaque(x)
        found = repr(e.__context__), e.__cause__, e.__suppress_context__, caught is e
        return x + 1, found, len(traceback.extract_tb(e.__traceback__))


@pytest.mark.parametrize("fn", [shown_in_a_handler, shown_later], ids=lambda fn: fn.__name__)
def test_tracebacks_show_the_users_frames(agree, fn):
    agree(fn, torch.ones(3))


def test_entries_of_a_traceback_are_traced(check):
    check(lines_of_an_entry, torch.ones(3), graphs=1)


def test_stores_to_an_existing_exception(agree):
    agree(links_of_an_existing_exception, torch.ones(3), ValueError("given"))
    error = ValueError("given")
    compiled = torchsmith_tracer.compile(links_of_an_existing_exception)
    compiled(torch.ones(3), error)
    assert isinstance(error.__context__, KeyError) and error.__suppress_context__
    assert [f.name for f in traceback.extract_tb(error.__traceback__)][0].startswith("links_of")


def test_what_the_caller_handles_is_asked_at_each_call(capture):
    def f(x):
        try:
            {}["own"]
        except KeyError as e:
            return x + 1, repr(e.__context__), repr(sys.exc_info()[1])

    def g(x):
        try:
            raise
        except (RuntimeError, KeyError) as e:
            return x + 1, repr(e)

    def calls(fn):
        out = [fn(torch.ones(2))]
        for kind in (KeyError, KeyError, IndexError):
            try:
                raise kind("of the caller")
            except LookupError:
                try:
                    out.append(fn(torch.ones(2)))
                except IndexError as e:
                    out.append(repr(e))
        return [*out, fn(torch.ones(2)), sys.exc_info()[1]]

    for fn in (f, g):
        compiled = torchsmith_tracer.compile(fn, backend=capture)
        assert repr(calls(compiled)) == repr(calls(fn))


def unbound_variable_of_its_own(x, bound):
    if bound:
        y = x * 2
    later = lambda: y  # noqa: E731
    x = x + 1
    return y + len([later])


def unbound_in_an_outer_function(x, bound):
    if bound:
        y = x * 2
    x = x + 1
    return (lambda: y)()


def unbound_after_a_break(x, bound):
    print("between", flush=True)
    if bound:
        y = x * 2
    later = lambda: y  # noqa: E731
    try:
        return y + len([later])
    except UnboundLocalError as e:
        return str(e), e.name


def deleted_after_a_break(x, bound):
    y = x * 2
    later = lambda: y  # noqa: E731, F821
    if not bound:
        del y
    print("between", flush=True)
    del y
    return later


def read_after_a_break(x, bound):
    if bound:
        y = x * 2

    def inner():
        print("between", flush=True)
        return y

    out = inner()
    y = x
    return out


def read_within_a_break(x, bound):
    print("between", flush=True)
    z = x + y  # noqa: F821
    later = lambda: y  # noqa: E731
    y = z
    return later


UNBOUND = [
    unbound_variable_of_its_own,
    unbound_in_an_outer_function,
    unbound_after_a_break,
    deleted_after_a_break,
    read_after_a_break,
    read_within_a_break,
]


@pytest.mark.parametrize("fn", UNBOUND)
@pytest.mark.parametrize("bound", [True, False])
def test_errors_of_unbound_variables_that_closures_share(agree, fn, bound):
    agree(fn, torch.ones(3), bound)
