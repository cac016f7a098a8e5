"""Dicts and sets that comparing keys changes, and the ``__dict__`` of objects with odd keys."""

import pytest
import torch
import torchsmith_tracer as tracer


class Key:
    meanwhile = None

    def __init__(self, value):
        self.value = value

    def __hash__(self):
        return 1

    def __eq__(self, other):
        act, Key.meanwhile = Key.meanwhile, None
        if act is not None:
            act()
        return self.value == other.value


def dict_looked_up(change, look):
    def run(x):
        one, two, three = Key(1), Key(2), Key(3)
        table = {one: 1, two: 2}
        Key.meanwhile = lambda: change(table, one, two, three)
        found = look(table)
        Key.meanwhile = None
        return found, [(key.value, value) for key, value in table.items()], x + len(table)

    return run


def set_looked_up(change, look):
    def run(x):
        one, two = Key(1), Key(2)
        elements = {one, two}
        Key.meanwhile = lambda: change(elements, one, two)
        found = look(elements)
        Key.meanwhile = None
        return found, sorted(key.value for key in elements), x + len(elements)

    return run


DICT_CHANGES = {
    "clear": lambda table, one, two, three: table.clear(),
    "delete": lambda table, one, two, three: table.pop(one),
    "delete-other": lambda table, one, two, three: table.pop(two),
    "add": lambda table, one, two, three: table.update({three: 9}),
    "replace": lambda table, one, two, three: table.update({one: 7}),
}
DICT_LOOKS = {
    "store": lambda table: table.__setitem__(Key(3), 5),
    "store-there": lambda table: table.__setitem__(Key(2), 5),
    "setdefault": lambda table: table.setdefault(Key(3), 5),
    "get": lambda table: table.get(Key(2)),
    "pop": lambda table: table.pop(Key(2), "none"),
    "in": lambda table: Key(2) in table,
}
SET_CHANGES = {
    "clear": lambda elements, one, two: elements.clear(),
    "discard": lambda elements, one, two: elements.discard(one),
    "add": lambda elements, one, two: elements.add(Key(3)),
}
SET_LOOKS = {
    "add": lambda elements: elements.add(Key(3)),
    "discard": lambda elements: elements.discard(Key(2)),
    "in": lambda elements: Key(2) in elements,
}
LOOKED_UP = [
    pytest.param(make(change, look), id=f"{make.__name__}-{change_name}-{look_name}")
    for make, changes, looks in (
        (dict_looked_up, DICT_CHANGES, DICT_LOOKS),
        (set_looked_up, SET_CHANGES, SET_LOOKS),
    )
    for change_name, change in changes.items()
    for look_name, look in looks.items()
]


@pytest.mark.parametrize("run", LOOKED_UP)
def test_look_ups_that_change_the_table(run):
    x = torch.ones(2)
    assert repr(tracer.compile(run, backend="eager", fullgraph=True)(x)) == repr(run(x))


class Plain:
    pass


def stored(make):
    def run(x):
        obj = make()
        vars(obj)[1] = x
        vars(obj).setdefault(2, 5)
        vars(obj).update({(3,): 4, "name": 6})
        return vars(obj), 1 in vars(obj), vars(obj).get("1"), obj.name, x + 1

    return run


def deleted(make):
    obj = make()

    def run(x):
        vars(obj)[1] = 2
        found = list(vars(obj)), vars(obj).pop(2, None)
        del vars(obj)[1]
        return found, vars(obj), x + 1

    return run


@pytest.mark.parametrize("case", [stored, deleted])
@pytest.mark.parametrize("make", [Plain, lambda: lambda: None], ids=["object", "function"])
def test_keys_that_are_no_names(case, make):
    x = torch.ones(2)
    compiled = tracer.compile(case(make), backend="eager")
    for _ in range(2):
        assert repr(compiled(x)) == repr(case(make)(x))


SETS = [
    lambda x: repr(({1, 2} & {True}, {True} & {1, 2}, {1} & {True}, frozenset([1.0]) & {1})),
    lambda x: repr(({1, 2} - {True}, {2, 1.0} | {1, 2.0}, {1, 3} ^ {True, 4})),
    lambda x: list({8, 0, 3} ^ {16, 3}) + list({16, 8} | {0, 24}) + list({0, 8} - {3}),
    lambda x: list({24, 16, 8} & {8, 16, 24, 1}) + list({8, 16} & {16, 8}),
    lambda x: repr({1, 2}.intersection({True}, {1.0, 5})),
]


@pytest.mark.parametrize("program", SETS)
def test_sets_keep_the_elements_that_cpython_keeps(program):
    compiled = tracer.compile(lambda x: (program(x), x + 1), backend="eager")
    x = torch.ones(1)
    assert compiled(x)[0] == program(x)


def test_an_iterator_of_what_cannot_be_called():
    def f(x):
        try:
            return iter(3, 4), x
        except TypeError as e:
            return str(e), x + 1

    compiled = tracer.compile(f, backend="eager")
    assert compiled(torch.ones(1))[0] == f(torch.ones(1))[0]
