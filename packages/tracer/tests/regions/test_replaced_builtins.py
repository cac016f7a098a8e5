"""Builtins that a program replaces for everybody, between calls and before the first one."""

import builtins
from functools import partial

import pytest
import torch
import torchsmith_tracer

X = torch.arange(3.0)
SPACE = vars(builtins)  # stored to as a dict: ``setattr`` itself is replaced


def reads(x):
    return x * len([1, 2]) + sum([1, 2]) + max([1, 2])


def builds(x):
    made = [str(i) for i in range(2)]
    return x + 1, made, type(x).__name__, dict(a=1), getattr(x, "missing", 3), isinstance(x, list)


class Holder:
    pass


def stores(x):
    holder = Holder()
    holder.value, holder.__dict__["not an identifier"] = x + 1, (1, 2)
    return holder.value, vars(holder)["not an identifier"]


def prints(x):
    print("seen", x.shape)
    return x + 1


REPLACED = {
    "len": lambda value: 10,
    "sum": lambda value: 20,
    "max": lambda value: 30,
    "range": lambda stop: [5],
    "str": lambda value: "text",
    "type": lambda value: int,
    "dict": lambda **entries: [entries],
    "getattr": lambda *args: 8,
    "setattr": lambda *args: None,
    "isinstance": lambda value, kind: kind is list,
    "print": partial(print, "again"),
}


@pytest.mark.parametrize("name", REPLACED)
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("fn", [reads, builds, stores, prints])
def test_a_replaced_builtin(fn, before, name, capsys):
    def results(f):
        found = [] if before else [f(X)]
        original = SPACE[name]
        SPACE[name] = REPLACED[name]
        try:
            found += [f(X), f(X + 1)]
        finally:
            SPACE[name] = original
        found.append(f(X))
        return str(found), capsys.readouterr().out

    assert results(torchsmith_tracer.compile(fn, backend="eager")) == results(fn)


def test_a_print_that_calls_the_one_it_replaces(monkeypatch, capsys):
    original = print

    def results(f):
        f(X)
        with monkeypatch.context() as patch:
            patch.setattr(builtins, "print", lambda *args: original("more", *args))
            f(X)
        return capsys.readouterr().out

    assert results(torchsmith_tracer.compile(prints, backend="eager")) == results(prints)
