"""Objects with ``__del__`` that compiled code makes go when they do in eager."""

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
