"""``__hash__`` and ``__eq__`` of keys are called as often, and in the same order, as by CPython."""

import operator

import pytest
import torch
import torchsmith_tracer as tracer


class Key:
    def __init__(self, number, log):
        self.number, self.log = number, log

    def __hash__(self):
        self.log.append(("hash", self.number))
        return 3 if self.number % 2 else self.number * 8

    def __eq__(self, other):
        self.log.append(("eq", self.number, other.number))
        return self.number == other.number


def keys(log, *numbers):
    return [Key(number, log) for number in numbers]


def numbers(found):
    return sorted(key.number for key in found) if isinstance(found, set) else found


def displays(log):
    a, b, c, d = keys(log, 1, 3, 1, 5)
    table = {a: 1, b: 2, c: 3, d: 4}
    return len({a, b, c, d}), [(key.number, value) for key, value in table.items()]


def comprehensions(log):
    found = keys(log, 1, 3, 1, 5, 3)
    return len({key for key in found}), [key.number for key in {key: 1 for key in found}]


def taken_out(log):
    found = keys(log, 1, 3, 5, 7, 2)
    held = set(found)
    held.remove(found[2])
    held.remove(Key(3, log))
    held.discard(Key(9, log))
    try:
        held.remove(Key(11, log))
    except KeyError as e:
        log.append(e.args[0].number)
    return [held.pop().number for _ in range(3)], Key(1, log) in held


def stored(log):
    found = keys(log, 1, 3, 5, 7)
    table = dict.fromkeys(found, 0)
    table[Key(5, log)] = 2
    table.pop(Key(3, log))
    del table[found[0]]
    table.setdefault(Key(7, log), 1)
    table.get(Key(9, log))
    table.update({found[1]: 3})
    table.popitem()
    return [(key.number, value) for key, value in table.copy().items()]


def views(log):
    table, held = dict.fromkeys(keys(log, 1, 3, 5, 2)), set(keys(log, 3, 9))
    out = []
    for operation in (operator.or_, operator.and_, operator.sub, operator.xor):
        out.append(numbers(operation(table.keys(), held)))
        out.append(numbers(operation(held, table.keys())))
    return out, table.keys() == held, table.keys() >= held, held <= table.keys()


def nested(log):
    a, b = frozenset(keys(log, 1, 3)), frozenset(keys(log, 3, 1))
    return {a: 1}.get(b), a in {b}, hash(a) == hash(b)


def operation(name):
    def run(log):
        a, b = set(keys(log, 1, 3, 5, 2, 7)), set(keys(log, 3, 5, 9, 2))
        return numbers(getattr(operator, name)(a, b))

    return pytest.param(run, id=name)


def method(name):
    def run(log):
        a, b = set(keys(log, 1, 3, 5, 2, 7)), keys(log, 3, 5, 9, 2)
        call = getattr(a, name)
        return [numbers(call(given)) for given in (b, dict.fromkeys(b), set(b))], numbers(a)

    return pytest.param(run, id=name)


OPERATIONS = ["or_", "and_", "xor", "sub", "ior", "iand", "ixor", "isub", "le", "lt", "eq", "ne"]
METHODS = [
    *("union", "intersection", "difference", "symmetric_difference"),
    *("update", "intersection_update", "difference_update", "symmetric_difference_update"),
    *("issubset", "issuperset", "isdisjoint"),
]
PROGRAMS = [displays, comprehensions, taken_out, stored, views, nested]


@pytest.mark.parametrize("program", [*PROGRAMS, *map(operation, OPERATIONS), *map(method, METHODS)])
def test_as_cpython(program):
    compiled = tracer.compile(lambda x, log: (program(log), x + 1), backend="eager", fullgraph=True)
    expected, log = [], []
    found = program(expected)
    assert compiled(torch.ones(1), log)[0] == found
    assert log == expected
