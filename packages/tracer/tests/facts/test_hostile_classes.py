"""Facts that are read of a class, whatever its metaclass answers when it is asked for them."""

import types

import pytest
import torch
import torchsmith_tracer

SETUP = """
class M(type): pass
class B(metaclass=M):
    k = 3
    def m(self): return 1
class A(B):
    __slots__ = ("s",)
    def __init__(self): self.s, self.i = 4, 5
    @property
    def p(self): return self.i
    @classmethod
    def c(cls): return 2
class L(list, metaclass=M): pass
class D(dict, metaclass=M): pass
class E(Exception, metaclass=M): pass
a, l, d, e = A(), L([1, 2]), D(a=1), E(3)
"""
READS = [
    *("a.k + a.m() + a.i + a.s + a.p + a.c()", "a.missing", "setattr(a, 'j', x) or a.j"),
    *("delattr(a, 'missing')", "isinstance(a, B) + issubclass(A, B)", "a.__class__ is A"),
    *("a.__dict__['i'] + vars(a)['i']", "(a == a) + (a in [a]) + {a: 2}[a] + bool(a)"),
    *("super(A, a).m()", "getattr(a, 'no', 4) + hasattr(a, 'q')", "len(type(a).__mro__)"),
    *("l[0] + len(l) + (l == [1, 2])", "d['a'] + len(d)", "e.args[0]", "A.k", "len(A.__name__)"),
]


def outcome(fn):
    try:
        return fn(torch.ones(1)).tolist()
    except Exception as e:
        return type(e)


@pytest.mark.parametrize("called_before", [True, False])
@pytest.mark.parametrize("read", READS)
def test_a_metaclass_that_answers_for_every_name(read, called_before):
    made = types.ModuleType("hostile")
    exec(f"{SETUP}\ndef f(x): return x + ({read})\n", vars(made))
    run = torchsmith_tracer.compile(made.f, backend="eager")
    if called_before:
        assert outcome(run) == outcome(made.f)
    made.M.__getattribute__ = lambda cls, name: 11
    for _ in range(2):
        assert outcome(run) == outcome(made.f)
    del made.M.__getattribute__
    assert outcome(run) == outcome(made.f)


ANSWERS = {
    "itself": lambda cls, name: cls,
    "a function": lambda cls, name: lambda *args, **kwargs: torch.full((1,), 7.0),
    "a number": lambda cls, name: 5,
    "its name": lambda cls, name: name,
}
USES = [
    *(
        "torch.add(x, A)",
        "x + (A() is a) + isinstance(a, A)",
        "x * len(repr(A.foo))",
        "x * {A: 2}[A]",
    ),
    *(
        "x + hasattr(A, 'q') + callable(a)",
        "x * len(type(a).__mro__)",
        "x + (A == A) + len([A, a])",
    ),
]


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("use", USES)
def test_a_metaclass_that_has_an_attribute_of_every_name(use, answer):
    made = types.ModuleType("hostile")
    made.M = type("M", (type,), {"__getattr__": ANSWERS[answer]})
    exec(f"class A(metaclass=M): pass\na = A()\ndef f(x): return {use}\n", vars(made))
    run = torchsmith_tracer.compile(made.f, backend="eager")
    for _ in range(2):
        assert outcome(run) == outcome(made.f)


KEYS = """
class K:
    n = 1
k, k2 = K(), K()
d, s, fs = {k: 4, k2: 5}, {k}, frozenset({k})
"""
HOLDS = [
    *("sum(d.values()) + len(set(d)) + sum(c.n for c in d)", "len(dict(d)) + len({**d}) + len(d)"),
    *("len(set(s)) + len(s | s) + sum(c.n for c in s)", "len(frozenset(fs)) + len(fs)"),
    *("d[k]", "(k in s) + 2 * (k2 in fs)", "next(iter(d)).n + len(d.items())"),
]


def raises(key):
    raise ValueError


@pytest.mark.parametrize("change", [None, raises, lambda key: 1])
@pytest.mark.parametrize("read", HOLDS)
def test_keys_that_lose_their_hash_stay_where_they_are(read, change):
    made = types.ModuleType("keys")
    exec(f"{KEYS}\ndef f(x): return x + ({read})\n", vars(made))
    run = torchsmith_tracer.compile(made.f, backend="eager")
    assert outcome(run) == outcome(made.f)
    made.K.__hash__ = change
    assert outcome(run) == outcome(made.f)
    del made.K.__hash__
    assert outcome(run) == outcome(made.f)
