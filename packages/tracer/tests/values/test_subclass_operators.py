"""Operators of instances of builtin types' subclasses: those of the builtin part."""

import operator

import pytest
import torch
import torchsmith_tracer

BASES = {float: 2.5, int: 3, str: "ab", bytes: b"ab", complex: 2j, list: [1, 2], set: {1}}
EXPRESSIONS = """
s < s | s <= s | s < b | b < s | s == s | s != b | s + s | s + b | b + s | s * 2 | 2 * s | s - s
s % b | b % s | s ** s | s / b | divmod(s, b) | divmod(b, s) | 2.5 + s | 3 - s | s // s | s << s
sum([s, s], type(s)()) | max(s, b) | sorted([s, s]) | operator.iadd(s, b) | operator.ixor(s, b)
x * s | s * x | x + s | s - x | x < s | s < x | x == s | s ** x | x / s | x % s
"""
CASES = [case.strip() for case in EXPRESSIONS.replace("\n", "|").split("|") if case.strip()]


def outcome(fn, *args):
    try:
        result = fn(*args)
    except (TypeError, NotImplementedError):
        return "an error"
    return type(result), result.tolist() if isinstance(result, torch.Tensor) else result


@pytest.mark.parametrize("base", BASES, ids=lambda base: base.__name__)
def test_operators_are_those_of_the_builtin_part(base):
    value = type("Own", (base,), {})(BASES[base])
    space = {"operator": operator}
    cases = "".join(f"def f{i}(x, s, b): return x + 1, {case}\n" for i, case in enumerate(CASES))
    exec(cases, space)
    for i, case in enumerate(CASES):
        fn = space[f"f{i}"]

        def call(f, copied=base not in (list, set)):
            s = value if copied else type(value)(BASES[base])
            return f(torch.ones(2), s, base(BASES[base]))[1]

        expected = outcome(call, fn)
        found = outcome(call, torchsmith_tracer.compile(fn, backend="eager"))
        assert found == expected, case


@pytest.mark.parametrize(
    ("base", "name", "expression"),
    [
        (float, "__rmul__", "2 * s"),
        (float, "__rmul__", "x * s"),
        (int, "__radd__", "2.5 + s"),
        (int, "__radd__", "2 + s"),
        (float, "__lt__", "s < s"),
        (float, "__gt__", "2.0 < s"),
        (str, "__rmod__", "'%s' % s"),
        (int, "__rsub__", "n - s"),
    ],
)
def test_methods_that_a_class_gains_later(base, name, expression):
    cls = type("Own", (base,), {})
    space = {"s": cls("3"), "n": 4}
    exec(f"def f(x): return x + 1, {expression}", space)
    fn = space["f"]
    compiled = torchsmith_tracer.compile(fn, backend="eager")
    for change in (None, lambda self, other: 42, None):
        if change is not None:
            setattr(cls, name, change)
        elif name in vars(cls):
            delattr(cls, name)
        space["n"] += 1
        assert outcome(lambda f: f(torch.ones(2))[1], compiled) == outcome(
            lambda f: f(torch.ones(2))[1], fn
        )
