"""Records of loggers are what they are in eager, in order, from the same lines."""

import logging

import pytest
import torch
import torchsmith_tracer

LOG = logging.getLogger("torchsmith.test.messages")


def x():
    return torch.arange(4.0)


def seen(caplog):
    found = [(r.levelname, r.getMessage(), r.funcName, r.lineno) for r in caplog.records]
    caplog.clear()
    return found


def both(fn, observe, *args, calls=3, breaks=()):
    """What ``fn`` gives and what ``observe`` sees, eagerly and compiled."""
    compiled = torchsmith_tracer.compile(fn, backend="eager")
    out = []
    for run in (fn, compiled):
        for _ in range(calls):
            try:
                result = run(*args).tolist()
            except (ValueError, IndexError) as e:
                result = type(e)
            out.append((result, observe()))
    assert out[:calls] == out[calls:]
    log = compiled._torchsmith_region.log
    assert [b.name for b in log.breaks] == list(breaks)
    return out


def test_a_record_before_an_exception_of_the_program_comes_first(caplog):
    def f(t):
        LOG.warning("before")
        u = t * 2
        if u.shape[0] == 4:
            raise ValueError
        LOG.warning("never")
        return u

    both(f, lambda: seen(caplog), x())


def test_a_record_before_an_operator_that_fails_is_made_once(caplog):
    def f(t, n):
        LOG.warning("one")
        u = t[n]
        LOG.warning("two")
        return u

    out = both(f, lambda: seen(caplog), x(), torch.tensor([9]))
    assert [r[1] for r in out[0][1]] == ["one"]


def test_records_before_and_after_a_break_keep_their_places(caplog):
    def f(t):
        LOG.warning("one")
        LOG.warning(t.sum())
        LOG.warning("three")
        return t + 1

    both(f, lambda: seen(caplog), x(), breaks=["opaque-call"])


def test_records_of_a_logger_have_eagers_text_place_and_order(caplog):
    def inner(t):
        LOG.warning("inner %s", t.shape[0])
        LOG.error("caller's", stacklevel=2)
        return t + 1

    def f(t):
        LOG.info("first %d of %s", 1, "two")
        return inner(t)

    with caplog.at_level(logging.INFO, LOG.name):
        out = both(f, lambda: seen(caplog), x())
    assert [r[:3] for r in out[0][1]] == [
        ("INFO", "first 1 of two", "f"),
        ("WARNING", "inner 4", "inner"),
        ("ERROR", "caller's", "f"),
    ]


def test_a_silent_logger_costs_nothing_until_its_level_changes(caplog, capture):
    def f(t):
        LOG.debug("data %s", t)
        return t + 1

    compiled = torchsmith_tracer.compile(f, backend=capture, fullgraph=True)
    with caplog.at_level(logging.WARNING, LOG.name):
        compiled(x())
        compiled(x())
    assert capture.n == 1
    assert not caplog.records
    again = torchsmith_tracer.compile(f, backend="eager")
    with caplog.at_level(logging.WARNING, LOG.name):
        again(x())
    with caplog.at_level(logging.DEBUG, LOG.name):
        again(x())
    assert [r.levelname for r in caplog.records] == ["DEBUG"]


@pytest.mark.parametrize("level", [logging.DEBUG, logging.ERROR])
def test_a_level_set_by_the_program_itself_counts(caplog, level):
    def f(t):
        LOG.setLevel(level)
        LOG.warning("heard?")
        return t + 1

    compiled = torchsmith_tracer.compile(f, backend="eager")
    before = LOG.level
    try:
        compiled(x())
        assert len(caplog.records) == (level == logging.DEBUG)
    finally:
        LOG.setLevel(before)
