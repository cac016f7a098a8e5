"""Objects with ``__del__`` that compiled code makes go when they do in eager."""

import gc
import os
import tempfile
import threading
import weakref

import pytest
import torch
import torchsmith_tracer

LOG = []


class Closes:
    def __init__(self, name):
        self.name = name

    def __del__(self):
        LOG.append(self.name)


class Made(Closes):
    def __new__(cls, name):
        return super().__new__(cls)


def deleted(x):
    first = Closes(1)
    first = Closes(2)
    y = x * 2
    LOG.append("between")
    del first
    LOG.append("after")
    return y + len(LOG)


def helper(x, kind):
    held = kind("inner")
    return x + len(LOG), held.name


def in_callees(x):
    y, name = helper(x, Closes)
    return y + len(LOG), name, helper(y, Made)[1], len(LOG)


def in_containers(x):
    items = [Closes(1), Closes(2)]
    items.pop()
    y = x + len(LOG)
    table = {0: Closes(3)}
    table[0] = None
    items.clear()
    Closes(4)
    return y * len(LOG)


def before_a_break(x):
    held = Closes(1)
    print(x.sum().item())
    y = x + len(LOG)
    del held
    return y * len(LOG)


def escapes(x):
    return x + 1, [Closes(1)]


@pytest.mark.parametrize(
    "fn", [deleted, in_callees, in_containers, before_a_break, escapes], ids=lambda f: f.__name__
)
def test_finalizers_run_when_they_do_in_eager(fn):
    def results(f):
        found = []
        for start in (0.0, 1.0):
            LOG.clear()
            result = f(torch.full((2,), start))
            found.append((str(result[0]), list(LOG)))
            del result
            found.append(list(LOG))
        return found

    assert results(torchsmith_tracer.compile(fn, backend="eager")) == results(fn)


def test_a_finalizer_added_later():
    def results(compile):
        class Plain:
            pass

        def f(x):
            held = Plain()
            y = x + 1
            del held
            return y * (len(LOG) + 1)

        fn = compile(f)
        LOG.clear()
        found = [fn(torch.ones(2)).tolist()]
        Plain.__del__ = lambda self: LOG.append("gone")
        found.append(fn(torch.ones(2)).tolist())
        del Plain.__del__
        return [*found, fn(torch.ones(2)).tolist(), list(LOG)]

    backend = lambda fn: torchsmith_tracer.compile(fn, backend="eager")  # noqa: E731
    assert results(backend) == results(lambda fn: fn)


class Counts(Closes):
    count = 0

    def __del__(self):
        Counts.count += 10
        LOG.append(self.name)


def suspended(name):
    def run():
        try:
            yield
        finally:
            Counts.count += 10
            LOG.append(name)

    generator = run()
    next(generator)
    return generator


def iterated(name):
    return enumerate(suspended(name))


class Owner:
    __slots__ = ("part", "table", "items", "__dict__")


def stored_over(x, o):
    o.part = None
    LOG.append("between")
    o.other = x
    Counts.count += 1
    return x + len(LOG)


def deleted_parts(x, o):
    del o.part
    LOG.append("between")
    del o.other
    return x + Counts.count


def taken_out(x, o):
    del o.table["a"]
    LOG.append("between")
    o.table["b"] = x
    Counts.count += 1
    o.table["c"] = len(LOG)
    return x * Counts.count


def popped(x, o):
    o.table.pop("a")  # which ends a little later, with the frame
    Counts.count += 1
    return x * 2


def cleared(x, o):
    o.items.clear()
    LOG.append(len(o.items))
    o.table.clear()
    o.table["n"] = len(LOG)
    return x * 2


def replaced_items(x, o):
    o.items[0] = x
    LOG.append("between")
    o.items[1:] = []
    LOG.append("after")
    return x + len(LOG)


def grown_and_shortened(x, o):
    o.items.append(x)
    LOG.append("between")
    del o.items[0]
    LOG.append("after")
    return x + len(LOG)


def global_and_cell(x, o):
    global HELD
    HELD = None
    LOG.append("between")
    o.cell(x)
    LOG.append("after")
    return x + len(LOG)


def unchanged_holders(x, o):
    o.table["d"] = o.part
    o.more = o.items[0]
    LOG.append("between")
    return x + len(o.items)


HELD = None


@pytest.mark.parametrize(
    "fn",
    [
        stored_over,
        deleted_parts,
        taken_out,
        popped,
        cleared,
        replaced_items,
        grown_and_shortened,
        global_and_cell,
        unchanged_holders,
    ],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("kind", [Counts, suspended, iterated])
def test_what_ends_in_the_callers_objects_ends_in_order(fn, kind):
    def owner():
        global HELD
        o = Owner()
        o.part, o.other, HELD = kind("part"), kind("other"), kind("global")
        o.table = {"a": kind("a"), "b": kind("b"), "c": 0}
        o.items = [kind("first"), kind("second")]
        held = kind("cell")

        def cell(x):
            nonlocal held
            held = x

        o.cell = cell
        return o

    def results(f):
        found = []
        for start in (0.0, 1.0, 2.0):
            o = owner()
            LOG.clear()
            Counts.count = 0
            result = f(torch.full((2,), start), o)
            found.append((str(result), list(LOG), Counts.count, len(o.items), len(o.table)))
            del o
            gc.collect()
            found.append(sorted(map(str, LOG)))
        return found

    try:
        assert results(torchsmith_tracer.compile(fn, backend="eager")) == results(fn)
    finally:
        globals()["HELD"] = None


LOCK = threading.RLock()
NAMED = weakref.WeakValueDictionary()


class Holder:
    pass


def lock_owner():
    LOCK.acquire()
    owner = Holder()
    weakref.finalize(owner, LOCK.release)
    return owner


def named(key):
    out = NAMED[key] = Holder()
    return out


@torchsmith_tracer.disable
def call(fn, *args):
    return fn(*args)


def folder(x, n):
    made = call(tempfile.TemporaryDirectory, f"-{n}")
    path = made.name
    call(LOG.append, 1)
    y = x * 2
    call(LOG.append, os.path.isdir(path))
    return call(os.path.isdir, path), y


def file(x, n):
    made = call(tempfile.NamedTemporaryFile)
    path = made.name
    y = call(lambda t: t + n, x)
    return [call(os.path.exists, path) for _ in range(2)], y


def owner(x, n):
    held = [call(lock_owner)]
    found = [call(LOCK._is_owned)]
    y = x + n
    if n > 1:
        del held
    found.append(call(LOCK._is_owned))
    y = y * 2
    return y, found, call(LOCK._is_owned)


def in_a_loop(x, n):
    found = []
    for i in range(n):
        one = call(named, i)
        x = x + len(found)
        found.append(call(sorted, NAMED))
    for _ in range(1):
        found.append(call(sorted, NAMED))
    return x, found


def in_a_callee(x, n):
    def inner(y):
        one = call(named, n)
        y = y + 1
        return call(lambda: (y, sorted(NAMED)))

    return inner(x), call(sorted, NAMED)


def before_the_return(x, n):
    one = call(named, n)
    x.add_(1)
    return call(sorted, NAMED)


@pytest.mark.parametrize(
    "fn", [folder, file, owner, in_a_loop, in_a_callee, before_the_return], ids=lambda f: f.__name__
)
@pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")
def test_locals_that_are_not_read_any_more_live_as_long_as_their_frame(fn, agree):
    for n in (1, 2, 3, 1):
        agree(fn, torch.ones(2), n)
        assert not NAMED and not LOCK._is_owned()
