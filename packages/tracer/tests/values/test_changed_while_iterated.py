"""Compiled code changes a container that its caller, or the rest of it, iterates over."""

import collections
import sys

import pytest
import torchsmith_tracer as tracer


class Table(dict):
    pass


class Ordered(collections.OrderedDict):
    pass


KINDS = [dict, Table, collections.OrderedDict, Ordered, collections.Counter]


def change(table, key):
    table[key] += 1


def take_out_and_put_back(table, key):
    table[key] = table.pop(key)


def put_others(table, key):
    for other in table:
        table[other] = key


def add(table, key):
    table.setdefault(key + 100 if key < 100 else key, 1)


def swap(table, key):
    first = next(iter(table))
    table[first], table[key] = table[key], table[first]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", [change, take_out_and_put_back, put_others, add, swap])
def test_a_table_with_holes(kind, step):
    def walk(step):
        table = kind({n: n for n in range(8)})
        for gone in (0, 1, 4):
            del table[gone]
        seen = []
        try:
            for key in table:
                seen.append(key)
                step(table, key)
        except RuntimeError as e:
            seen.append(str(e))
        return seen, list(table.items())

    options = {"recompile_limit": 64}
    assert walk(tracer.compile(step, backend="eager", options=options)) == walk(step)


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_with_a_break(kind):
    def loop(table, seen):
        for key in table:
            table[key] += 1
            seen.append(key)
            sys.getrefcount(seen)

    def walk(loop):
        table, seen = kind({n: n for n in range(8)}), []
        for gone in (0, 1, 4):
            del table[gone]
        loop(table, seen)
        return seen, list(table.items())

    compiled = tracer.compile(loop, backend="eager")
    for _ in range(2):
        assert walk(compiled) == walk(loop)


@pytest.mark.parametrize("keys", [tuple("abcdef"), (1, 2.5, None, b"x", "y", False), "objects"])
def test_order_after_changes_of_all_kinds(keys):
    class Key:
        pass

    keys = [Key() for _ in range(6)] if keys == "objects" else keys

    def program(table, a, b, c, d, e, f):
        table[a] = 1
        del table[b]
        table[c] = table.pop(c)
        table.setdefault(f, 5)
        table.pop(a)
        table[a] = 0
        table[e] = 7

    compiled = tracer.compile(program, backend="eager", fullgraph=True)
    for _ in range(2):
        given, expected = dict.fromkeys(keys[:5], 3), dict.fromkeys(keys[:5], 3)
        program(expected, *keys)
        compiled(given, *keys)
        assert list(given.items()) == list(expected.items())


@pytest.mark.parametrize("maxlen", [None, 5])
def test_a_deque(maxlen):
    def put(queue, i):
        queue[i] = -1

    def turn(queue, i):
        queue.append(queue.popleft())

    def walk(step):
        queue, seen = collections.deque(range(5), maxlen), []
        try:
            for i, item in enumerate(queue):
                seen.append(item)
                step(queue, i)
        except RuntimeError as e:
            seen.append(str(e))
        return seen, queue

    for step in (put, turn):
        assert walk(tracer.compile(step, backend="eager")) == walk(step)
