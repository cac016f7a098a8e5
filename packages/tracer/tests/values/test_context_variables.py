"""``contextvars``: read and guarded, set and reset, with the values and tokens of eager."""

import contextlib
import contextvars
import threading

import pytest
import torch
import torchsmith_tracer

SCALE = contextvars.ContextVar("SCALE", default=2.0)
ITEMS = contextvars.ContextVar("ITEMS", default=[1.0])
UNSET = contextvars.ContextVar("UNSET")
OTHER = contextvars.ContextVar("OTHER", default=0)


@contextlib.contextmanager
def scaled(by):
    token = SCALE.set(SCALE.get() * by)
    try:
        yield SCALE.get()
    finally:
        SCALE.reset(token)


def reads(x):
    return x * SCALE.get() + len(ITEMS.get()) + UNSET.get(5) + OTHER.get(7)


def read_twice(x):
    before = SCALE.get()
    SCALE.set(before + 1)
    return x * before + SCALE.get()


def in_a_context(x):
    with scaled(3) as inner:
        y = x * SCALE.get()
        with scaled(2):
            y = y + SCALE.get()
    return y - SCALE.get() + inner


def breaks_in_a_context(x):
    with scaled(3):
        print(SCALE.get())
        y = x * SCALE.get()
        n = int(y.sum().item())
        return y + SCALE.get() + n


def raises_in_a_context(x):
    try:
        with scaled(3):
            raise ValueError(SCALE.get())
    except ValueError as e:
        return x * SCALE.get(), str(e)


def tokens(x):
    first = SCALE.set(1.0)
    second = SCALE.set(5.0)
    y = x * SCALE.get()
    SCALE.reset(second)
    y = y + SCALE.get()
    third = OTHER.set(9)
    SCALE.reset(first)
    return y * SCALE.get(), third.old_value, third.var is OTHER


def kept_token(x):
    return x * SCALE.get(), SCALE.set(4.0)


def earlier_token(x):
    first = SCALE.set(1.0)
    SCALE.set(x)
    y = SCALE.get() * 3
    SCALE.reset(first)
    return y * SCALE.get()


def used_token(x):
    token = OTHER.set(1)
    OTHER.reset(token)
    try:
        OTHER.reset(token)
    except RuntimeError:
        return x * OTHER.get()


def token_of_another(x):
    token = OTHER.set(1)
    try:
        SCALE.reset(token)
    except ValueError:
        return x * OTHER.get()


def unset(x):
    try:
        UNSET.get()
    except LookupError as e:
        x = x + (e.args[0] is UNSET)
    UNSET.set(x)
    return UNSET.get() * 2


def default_changed(x):
    ITEMS.get().append(2.0)
    return x * sum(ITEMS.get())


def another_context(x):
    context = contextvars.copy_context()
    with scaled(2):
        inner = context.run(reads, x)
    return inner + reads(x), context[OTHER] if OTHER in context else None


def nameless(x):
    return x * len(SCALE.name), SCALE.get(None)


@pytest.mark.parametrize(
    "fn",
    [
        reads,
        read_twice,
        in_a_context,
        breaks_in_a_context,
        raises_in_a_context,
        tokens,
        kept_token,
        earlier_token,
        used_token,
        token_of_another,
        unset,
        default_changed,
        another_context,
        nameless,
    ],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("dynamic", [None, True])
def test_variables_are_those_of_the_callers_context(fn, dynamic, capsys):
    def results(f):
        out = []

        def call():
            result = f(torch.ones(2))
            if isinstance(result, tuple) and isinstance(result[-1], contextvars.Token):
                SCALE.reset(result[-1])
                result = (result[0], result[-1].old_value is contextvars.Token.MISSING)
            values = [v.get(None) for v in (SCALE, OTHER, UNSET)] + [list(ITEMS.get())]
            out.append((str(result), str(values)))

        call()
        call()
        SCALE.set(3.0)
        call()
        OTHER.set(8)
        ITEMS.set([1.0, 2.0])
        call()
        contextvars.copy_context().run(call)
        contextvars.Context().run(call)
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        SCALE.set(torch.full((2,), 3.0))
        UNSET.set(1)
        call()
        return out, capsys.readouterr().out

    def fresh(f):
        ITEMS.get().clear()
        return contextvars.Context().run(results, f)

    expected = fresh(fn)
    assert fresh(torchsmith_tracer.compile(fn, backend="eager", dynamic=dynamic)) == expected


@pytest.mark.parametrize(
    "fn", [reads, read_twice, in_a_context, raises_in_a_context, earlier_token]
)
def test_variables_break_no_graph(fn):
    compiled = torchsmith_tracer.compile(fn, backend="eager", fullgraph=True)
    for _ in range(2):
        expected = contextvars.Context().run(fn, torch.ones(2))
        assert str(contextvars.Context().run(compiled, torch.ones(2))) == str(expected)
