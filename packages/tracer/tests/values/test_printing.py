"""``print`` and ``warnings.warn`` in the graph: text, order, streams, filters, lines."""

import contextlib
import io
import logging
import sys
import warnings

import numpy as np
import pytest
import torch
import torchsmith_tracer

X = torch.arange(3.0)


class Shown:
    def __init__(self, text):
        self.text = text

    def __str__(self):
        print("asked")
        return self.text


class Own(io.StringIO):
    def write(self, text):
        return super().write(text.upper())


def plain(x, k, name="n"):
    y = x + 1
    print("a", k, name, sep="-")
    print(y)
    y.add_(1)
    print(y, x.shape, {"k": k, 2: [1.5, None]}, end="!\n")
    print()
    print(*range(k), sep="")
    return y * 2


def in_a_handler(x):
    print("one")
    try:
        print("two", x.sum())
        raise KeyError("k")
    except KeyError as e:
        print("three", e)
    finally:
        print("four")
    return x


def many_things(x):
    print(Shown("text"), np.float64(2.5), torch.float32, X.shape, f"{x.dim()}d", "%s" % x.dtype)
    print("tab\t\u00e9\u20ac", end="")
    return x


def redirected(x):
    inner = io.StringIO()
    with contextlib.redirect_stdout(inner):
        print("inside", x * 2)
    print("outside")
    return inner.getvalue()


def written(fn, *args, stream=io.StringIO):
    with contextlib.redirect_stdout(stream()) as out:
        try:
            result = fn(*args)
        except Exception as e:
            result = (type(e), str(e))
    return out.getvalue(), str(result)


@pytest.mark.parametrize(
    ("fn", "args", "breaks"),
    [
        (plain, (X, 4), []),
        (in_a_handler, (X,), []),
        (many_things, (X,), []),
        (redirected, (X,), None),
        (lambda x: (print("now", flush=True), x + 1), (X,), ["print"]),
        (lambda x: (print("never", file=sys.stderr, end=""), x + 1), (X,), []),
        (lambda x: (print([x]), x + 1), (X,), ["print"]),
        (lambda x: (print(x * 2), x + 1), (X.clone().requires_grad_(),), ["print"]),
        (lambda x: (print("before"), x.view(7)), (X,), ["op-failed"]),
        (lambda x: (print("before"), x[torch.tensor([9])]), (X,), []),
        (lambda x: (print("a", sep=3), x), (X,), ["print"]),
        (lambda x: (print("a", what=3), x), (X,), None),
        (lambda x: (print(Shown("b"), Shown(3)), x), (X,), None),
    ],
)
def test_what_is_printed_is_eagers(fn, args, breaks):
    compiled = torchsmith_tracer.compile(fn, backend="eager")
    expected = written(fn, *args)
    assert written(compiled, *args) == written(compiled, *args) == expected
    log = compiled._torchsmith_region.log
    assert breaks is None or [b.name for b in log.breaks] == breaks
    assert written(fn, *args, stream=Own) == written(compiled, *args, stream=Own)
    closed = io.StringIO()
    closed.close()
    with contextlib.redirect_stdout(closed):
        for call in (fn, compiled):
            if breaks == [] and fn not in (many_things, in_a_handler) and "stderr" not in str(fn):
                with contextlib.suppress(ValueError, IndexError):
                    call(*args)


def test_a_print_is_one_graph_in_full(capsys, capture):
    compiled = torchsmith_tracer.compile(plain, backend=capture, fullgraph=True)
    plain(X, 3)
    expected = capsys.readouterr().out
    for _ in range(2):
        compiled(X, 3)
        assert capsys.readouterr().out == expected
    assert capture.n == 1


def test_symbolic_numbers_and_the_stream_of_each_call(capture):
    def f(x, k):
        print("k", k, x.shape[0])
        return x * k

    compiled = torchsmith_tracer.compile(f, backend=capture)
    for k in (3, 4, 5, 6):
        assert written(compiled, torch.ones(k), k) == written(f, torch.ones(k), k)
    assert capture.n == 2


def test_order_among_prints_records_and_native_calls(caplog):
    log = logging.getLogger("torchsmith.test.printing")
    events = []

    class Seen(logging.Handler):
        def emit(self, record):
            events.append(record.getMessage())
            print("record", record.getMessage())

    @torchsmith_tracer.disable
    def native():
        print("native")

    def f(x):
        print("1")
        log.warning("2")
        print("3", x)
        native()
        print("4")
        log.warning("5")
        return x + 1

    handler = Seen()
    log.addHandler(handler)
    try:
        assert written(torchsmith_tracer.compile(f), X) == written(f, X)
    finally:
        log.removeHandler(handler)
    assert events == ["2", "5"] * 2


# --- warnings ------------------------------------------------------------------------------------


def helper(x):
    warnings.warn("of the caller", stacklevel=2)
    return x + 1


def warns(x, k):
    warnings.warn("plain")
    y = helper(x)
    for _ in range(2):
        warnings.warn(f"with {k}", DeprecationWarning, stacklevel=1)
    return y


def silenced(x, k):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("unseen")
    warnings.warn("seen", category=RuntimeWarning)
    return x + k


def caught(x, k):
    try:
        warnings.warn("raised under error")
    except UserWarning as e:
        return x, str(e)
    return x, "none"


def far_out(x, k):
    warnings.warn("of somebody else", stacklevel=3)
    return x


@pytest.mark.parametrize("action", ["always", "default", "once", "module", "ignore", "error"])
@pytest.mark.parametrize("fn", [warns, silenced, caught, far_out])
def test_warnings_are_eagers(fn, action):
    def seen(call):
        globals().pop("__warningregistry__", None)
        results = []
        with warnings.catch_warnings(record=True) as log:
            warnings.simplefilter(action)
            for k in (1, 1, 2):
                try:
                    results.append(str(call(X, k)))
                except Warning as e:
                    results.append((type(e), str(e)))
        return [(str(w.message), w.category, w.filename, w.lineno) for w in log], results

    compiled = torchsmith_tracer.compile(fn, backend="eager")
    expected = seen(fn)
    found = seen(compiled)
    if fn is far_out:  # of which module the caller's caller is differs, and so what is shown once
        expected[0][:], found[0][:] = ([w[:2] for w in log[0][:1]] for log in (expected, found))
    assert found == expected
    if fn is warns and action != "error":
        assert not compiled._torchsmith_region.log.breaks
    again = "error" if action != "error" else "always"  # the same code under other filters
    with warnings.catch_warnings(record=True):
        warnings.simplefilter(again)
        if again == "error" and fn is not far_out and fn is not caught:
            with pytest.raises(Warning):
                compiled(X, 1)
        elif fn is caught and again == "error":
            assert compiled(X, 1)[1] == "raised under error"


def test_filters_of_warnings_are_those_of_the_program(program):
    def body(C):
        def reads(x):
            return x * len(warnings.filters), [f[0] for f in warnings.filters]

        def changes(x):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                n = len(warnings.filters)
            return x * 2, n, len(warnings.filters)

        seen = []
        for run in (C(reads), C(changes)):
            for action in ("error", "ignore", "error"):
                with warnings.catch_warnings():
                    warnings.simplefilter(action)
                    seen.append(run(X))
        return seen

    program(body, broken=True)
