"""Texts with numbers that vary: one symbolic version while nothing looks at the text."""

import collections
import logging
import math

import pytest
import torch
import torchsmith_tracer

X = torch.arange(3.0)


def outcome(fn, *args):
    try:
        return str(fn(*args))
    except Exception as e:
        return type(e), str(e)


def agree(fn, numbers, capture):
    """``fn`` compiled gives what it gives eagerly; gives how many graphs there are."""
    compiled = torchsmith_tracer.compile(fn, backend=capture)
    for number in numbers:
        assert outcome(compiled, X, number) == outcome(fn, X, number), number
    assert not compiled._torchsmith_region.log.breaks
    return capture.n


def raising(x, n):
    try:
        if x.shape[0] == 3:
            raise ValueError(f"not {n}")
    except ValueError as e:
        return x * n, e.args, str(e)


def stored(x, n):
    names = [f"a{n}"]
    names.append("b" + str(n) + names[0])
    return {"names": names, "x": x * n}, (f"{names[0]}{n + 1}",)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, n: (x * n, f"step {n}"),
        lambda x, n: (x * n, str(n), repr(n), format(n, ">9")),
        lambda x, n: (x * n, f"{n:9.3f}|{n!r}|{n!s}"),
        lambda x, n: (x * n, "%s of %r" % (n, n * 2)),
        lambda x, n: (x * n, type(n) is int and "%d|%5d|%-5d|%05d|%+d|% d|%i%%" % ((n,) * 7)),
        lambda x, n: (x * n, "%5.2f|%e|%g|%.0f|%-9.1f" % ((n,) * 5)),
        lambda x, n: (x * n, "%(of)4.1f %(in)s %(of)s" % {"of": n, "in": "a"}),
        lambda x, n: (x * n, "%s: %.3f" % ("loss", n / 3), "%s" % [n]),
        lambda x, n: (x * n, "{} {:>9}".format(n, n)),
        lambda x, n: (x * n, "{a} {b[0]:+} {c.real} {{}} {d}".format(a=n, b=[n], c=n, d="{}")),
        lambda x, n: (x * n, "{a}{a}".format_map({"a": n}), "{:{w}}".format(n, w=9)),
        lambda x, n: (x * n, f"{n}" + "a", "a" + f"{n}", f"{n}{f'{n}b'}"),
        lambda x, n: (x * n, bool(f"{n}")),
        raising,
        stored,
    ],
)
@pytest.mark.parametrize("numbers", [(3, 4, 50, -600), (0.5, 2.25, 1e30, -3.125)])
def test_one_symbolic_version(fn, numbers, capture):
    assert agree(fn, numbers, capture) == 2


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, n: {f"k{n}": x * n},
        lambda x, n: x * 2 if f"{n}" == "4" else x + 1,
        lambda x, n: x * 2 if "4" in f"a{n}" else x + 1,
        lambda x, n: x * len(f"{n}") + 1,
        lambda x, n: (x + 1, f"a{n}".upper(), f"{n}"[0], f"{n}" * 2, [*f"{n}"]),
        lambda x, n: x * int(f"{n}"[:1]),
        lambda x, n: x * {"3": 2, "4": 3}.get(str(n), 5),
        lambda x, n: (x + 1, ",".join([f"{n}", "b"]), f"{n}".split("4"), "%5d" % int(n)),
        lambda x, n: (x + 1, f"{n:zz}"),
        lambda x, n: (x + 1, f"{n!s:>8}"),
        lambda x, n: (x + 1, f"{n:c}"),
        lambda x, n: (x + 1, "%c" % n),
        lambda x, n: (x + 1, "%5%|%d" % n),  # noqa: F509
        lambda x, n: (x + 1, "%*d" % (5, n)),
        lambda x, n: (x + 1, "%d %d" % n),
        lambda x, n: (x + 1, "%d" % (n, 1)),  # noqa: F507
        lambda x, n: (x + 1, "%(a)d" % n),
        lambda x, n: (x + 1, "%z" % n),  # noqa: F509
        lambda x, n: (x + 1, "{!r:>9}|{:>{n}}".format(n, "a", n=int(abs(n)))),
        lambda x, n: (x + 1, "{} {}".format(n)),  # noqa: F524
        lambda x, n: (x + 1, "{:zz}".format(n)),
    ],
)
@pytest.mark.parametrize("numbers", [(3, 4, 50, 45, 3), (3.5, 4.0, 50.25, 45.5)])
def test_what_looks_at_the_text_specialises(fn, numbers, capture):
    agree(fn, numbers, capture)


def test_names_of_attributes(capture):
    class Layers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for n in range(5):
                setattr(self, f"layer{n}", torch.nn.Linear(3, 3))

        def forward(self, x, n):
            return getattr(self, f"layer{n}")(x)

    model = Layers()
    compiled = torchsmith_tracer.compile(model, backend=capture)
    for n in (2, 3, 4, 2):
        assert torch.equal(compiled(X, n), model(X, n))


def test_printed_and_logged_in_order(capture, capsys):
    logger = logging.getLogger("varying")
    logger.setLevel(logging.INFO)
    records = []

    class Keep(logging.Handler):
        def emit(self, record):
            records.append((record.getMessage(), record.args, record.lineno))
            print("logged", record.getMessage())

    keep = Keep()
    logger.addHandler(keep)

    def step(x, n):
        print("step", n, f"{n}", f"of {n + 1:03d}", sep="|")
        logger.info("step %d of %s", n, n + 1)
        logger.info(f"step {n}")
        print(f"done {n}")
        return x * n

    try:
        compiled = torchsmith_tracer.compile(step, backend=capture)
        seen = []
        for call in step, compiled:
            for n in (3, 4, 5, 16):
                assert torch.equal(call(X, n), X * n)
            seen.append((capsys.readouterr().out, [*records]))
            records.clear()
    finally:
        logger.removeHandler(keep)
    assert seen[0] == seen[1] and "step|16|16|of 017" in seen[1][0]
    assert capture.n == 2 and not compiled._torchsmith_region.log.breaks


def test_a_text_of_a_count_that_changes_later(capture):
    class Counter:
        def __init__(self):
            self.n = 2

        def step(self, x):
            before = f"{self.n}"
            self.n += 1
            return x * self.n, before, f"{self.n}"

    one, other = Counter(), Counter()
    compiled = torchsmith_tracer.compile(one.step, backend=capture)
    for _ in range(5):
        assert str(compiled(X)) == str(other.step(X))
    assert capture.n == 1


def written_or(x, n):
    try:
        text = "%d" % n
    except (OverflowError, ValueError):
        text = "none"
    return x * 2, text, "%.2f|%5.1e" % (n, n)


def empty_or(x, n):
    return x + 1 if "%.0s" % n or f"{n}"[:0] else x - 1


def mapped(x, n):
    try:
        text = "{}".format_map({"n": n})
    except ValueError as error:
        text = str(error)
    return x * 2, text, "{self}{n:>3}".format_map({"self": n, "n": n}), "{fn}".format(fn=n)


@pytest.mark.parametrize("fn", [written_or, empty_or, mapped])
@pytest.mark.parametrize("numbers", [(3, 4, 5), (1.5, 2.5, math.inf, math.nan)])
@pytest.mark.parametrize("dynamic", [None, True])
def test_no_text_of_another_number_is_taken_for_this_ones(fn, numbers, dynamic):
    compiled = torchsmith_tracer.compile(fn, dynamic=dynamic)
    for n in numbers:
        assert str(compiled(X, n)) == str(fn(X, n))


def test_texts_with_numbers_that_vary_are_compared():
    def program(x, n, m):
        a, b = f"step {n}", f"step {m}"
        return x + 1, a == b, a != b, a < b, a >= b, a in [b], max(a, b), (a, 1) == (b, 1)

    compiled = torchsmith_tracer.compile(program, backend="eager")
    for n, m in ((1, 2), (3, 4), (5, 5), (6, 6), (12, 7), (8, 8)):
        assert compiled(torch.ones(2), n, m)[1:] == program(torch.ones(2), n, m)[1:]


class Counted:
    def __init__(self, n):
        self.n = n

    def __str__(self):
        self.n += 1
        return str(self.n)


def test_objects_are_sorted_by_texts_with_numbers_that_vary():
    def program(x, items):
        try:
            return x + 1, [c.n for c in sorted(items, key=str)], str(items[0]) < str(items[1])
        except TypeError as e:
            return x - 1, str(e)

    compiled = torchsmith_tracer.compile(program, backend="eager")
    mine, theirs = [Counted(9), Counted(8)], [Counted(9), Counted(8)]
    for _ in range(4):
        assert compiled(torch.ones(2), mine)[1:] == program(torch.ones(2), theirs)[1:]


class Missing(dict):
    def __missing__(self, key):
        self.last = key
        return f"<{key}>"


class Doubled(dict):
    def __getitem__(self, key):
        return 2 * dict.__getitem__(self, key)


@pytest.mark.parametrize("kind", [dict, Missing, Doubled, collections.UserDict])
def test_format_map_asks_the_mapping_for_its_items(kind):
    def program(x, table):
        try:
            return x + 1, "{a} {b}".format_map(table), "{c[0]}".format_map(table)
        except KeyError as e:
            return x - 1, e.args

    compiled = torchsmith_tracer.compile(program, backend="eager")
    mine, theirs = kind(a=1), kind(a=1)
    for _ in range(2):
        assert compiled(torch.ones(2), mine)[1:] == program(torch.ones(2), theirs)[1:]
        assert getattr(mine, "last", 0) == getattr(theirs, "last", 0)
