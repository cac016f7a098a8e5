"""``vars(obj)`` of what is not an instance of a class of the program's: tensors, functions,
partials, modules. What is changed through it is read through the attribute, and the reverse."""

import functools
import sys
import types

import pytest
import torch
import torchsmith_tracer as tracer
from torch import nn

X = torch.ones(2)
OBJECTS = {
    "tensor": lambda: torch.ones(2),
    "parameter": lambda: nn.Parameter(torch.ones(2)),
    "subclass": lambda: torch.ones(2).as_subclass(type("Own", (torch.Tensor,), {})),
    "function": lambda: lambda: 1,
    "partial": lambda: functools.partial(abs, 1),
    "ordered dict": lambda: type("Own", (dict,), {})(a=1),
    "exception": lambda: ValueError("a"),
    "namespace": types.SimpleNamespace,
    "module": nn.Identity,
}
CHANGES = {
    "pop": lambda o: vars(o).pop("n", None),
    "del": lambda o: vars(o).__delitem__("n"),
    "delattr": lambda o: delattr(o, "n"),
    "store": lambda o: vars(o).__setitem__("n", 10),
    "update": lambda o: vars(o).update(n=7, m=1),
    "setdefault": lambda o: vars(o).setdefault("n", 8),
    "nothing": lambda o: len(vars(o)),
}


def states(compile, made, change):
    obj = made()
    obj.n = 2.5

    def step(x):
        change(obj)
        k = getattr(obj, "n", 0) + 1
        obj.n = k
        return x * k, vars(obj)["n"], vars(obj).get("missing"), "n" in vars(obj), hasattr(obj, "m")

    compiled = compile(step)
    out = [compiled(X), compiled(X)]
    obj.n = 5
    out += [obj.n, compiled(X), obj.n]
    if not isinstance(obj, nn.Module):
        out.append([name for name in vars(obj) if not name.startswith("_")])
    return out


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("made", OBJECTS)
def test_both_ways_lead_to_one_table(program, made, change):
    broken = made == "exception"
    program(lambda compile: states(compile, OBJECTS[made], CHANGES[change]), broken=broken)


def test_gradients_are_no_entries(program):
    def body(compile):
        weight = nn.Parameter(torch.ones(2))

        def step(x):
            weight.grad = x
            weight.note = 1
            return sorted(vars(weight)), weight.grad + 1

        compiled = compile(step)
        return compiled(X), compiled(X + 1), vars(weight)

    program(body)


def test_a_partial_is_merged_after_it_was_called(program):
    def scaled(x, by=2, *, plus=0):
        return x * by + plus

    def body(compile):
        inner = functools.partial(scaled, by=3)
        compiled = compile(lambda x: (inner(x), inner.args, hasattr(inner, "note")))
        out = [compiled(X)]
        outer = functools.partial(inner, plus=1)
        out += [outer.func is scaled, outer.keywords, compiled(X)]
        inner.note = 1
        out.append(compiled(X))
        inner = functools.partial(inner, plus=2)
        return [*out, compiled(X), inner.func is scaled]

    program(body)


def test_a_variable_holds_the_globals(capture, program):
    def body(compile):
        space = types.ModuleType("holds_globals")
        sys.modules["holds_globals"] = space
        try:
            exec(
                "n = 1\ntable = globals()\n"
                "def through(x):\n    table['n'] = table['n'] + 1\n    return x * n\n"
                "def by_name(x):\n    global n\n    n = n + 1\n    return x * table['n']\n",
                vars(space),
            )
            out = []
            for name in ("through", "by_name"):
                compiled = compile(vars(space)[name])
                out += [compiled(X), compiled(X), space.n, compiled(X)]
                space.n = 10
                out += [compiled(X), space.n]
            return out
        finally:
            del sys.modules["holds_globals"]

    program(body)


USES = [
    "table.update(n=table['n'] + 1)",
    "table.setdefault('m', []).append(n)",
    "table.pop('m', 0)",
    "sorted(name for name in table.keys() if name in ('n', 'm'))",
    "[value for name, value in table.items() if name == 'n']",
    "3 in table.values()",
    "table.copy()['n'] + dict(table)['n'] + {**table}['n']",
    "(bool(table), len(table) > 2, table == {1: 2}, table is globals(), 'm' in table)",
    "(table.get('n'), table.get('m', 7), '%(n)s' % table, '{n}'.format_map(table))",
    "(table.__setitem__('n', 4), n, table.__getitem__('n'), isinstance(table, dict))",
]


@pytest.mark.parametrize("table", ["space", "globals()"])
@pytest.mark.parametrize("use", USES)
def test_the_globals_answer_as_a_dict(capture, program, use, table):
    def body(compile):
        space = {"n": 1, "__name__": "answers_as_a_dict"}
        space["space"] = space
        exec(f"def step(x):\n    return x * n, {use.replace('table', table)}, n", space)
        compiled = compile(space["step"])
        out = [compiled(X), compiled(X), space["n"]]
        space["n"] = 3
        return [*out, compiled(X), space.get("m")]

    program(body, broken=True)


@pytest.mark.parametrize("name", ["T", "grad", "shape"])
def test_entries_of_a_tensor_that_its_class_hides(program, name):
    def body(compile):
        def stored(x):
            vars(x)[name] = 1
            return x + 1

        def found(x):
            return x + 1, dict(vars(x)), x.shape

        x = torch.ones(2)
        compiled, looks = compile(stored), compile(found)
        return [compiled(x), vars(x)[name], x.T, x.grad, looks(x), looks(x)]

    program(body, broken=True)


class Slotted:
    __slots__ = ("__dict__", "size")


def make_function():
    return lambda: 1


def entries_named_like_fields(thing):
    table = thing.__dict__
    for name in ("size", "__class__", "__doc__", "__name__", "args"):
        table[name] = name
    table.update({"__defaults__": 3, "__dict__": 4})
    del table["__class__"]
    return thing, "size" in table, "args" in vars(thing), table.get("__doc__"), len(table)


def fields_are_no_entries(thing):
    for name in ("size", "args", "__doc__", "__name__"):
        try:
            setattr(thing, name, "set")
        except AttributeError:
            continue
    table = vars(thing)
    return thing, "size" in table, "args" in table, table.get("__doc__"), "__name__" in table


@pytest.mark.parametrize("program", [entries_named_like_fields, fields_are_no_entries])
@pytest.mark.parametrize("make", [Slotted, make_function, ValueError])
@pytest.mark.parametrize("given", [False, True])
def test_an_entry_is_no_field_of_the_same_name(program, make, given):
    def within():
        return program(make())

    compiled = tracer.compile(program if given else within, backend="eager")
    for _ in range(2):
        expected, found = program(make()), compiled(*[make()] if given else ())
        assert found[1:] == expected[1:]
        assert vars(found[0]) == vars(expected[0])
        for name in ("size", "args", "__name__"):
            assert getattr(found[0], name, None) == getattr(expected[0], name, None)
