"""Random sequences of container operations, against CPython."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from interp_harness import check

numbers = st.integers(-3, 8)
keys = st.sampled_from(["a", "b", 1, 1.0, (1, 2), None, True])


def run_list(ops):
    x = [1, 2, 3]
    out = []
    for name, a, b in ops:
        try:
            if name == "set":
                x[a] = b
            elif name == "del":
                del x[a]
            elif name == "slice":
                x[a:b] = [a, b]
            elif name == "get":
                out.append(x[a])
            elif name == "cut":
                out.append(x[a:b:2])
            elif name == "mul":
                x = x[:4] * (a % 3)
            elif name == "has":
                out.append((a in x, x.count(a)))
            elif name == "insert":
                x.insert(a, b)
            elif name == "pop":
                out.append(x.pop(a))
            elif name == "sort":
                x.sort(reverse=a > 2)
            else:
                out.append(x.index(a))
        except (IndexError, ValueError) as e:
            out.append((type(e).__name__, str(e)))
        if len(x) > 20:
            break
    return x, out


names = ["set", "del", "slice", "get", "cut", "mul", "has", "insert", "pop", "sort", "index"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(names), numbers, numbers), max_size=8))
def test_lists(ops):
    check(run_list, ops)


def run_dict(ops):
    d = {"a": 0}
    out = []
    for name, k, v in ops:
        try:
            if name == "set":
                d[k] = v
            elif name == "del":
                del d[k]
            elif name == "get":
                out.append(d[k])
            elif name == "pop":
                out.append(d.pop(k, v))
            elif name == "default":
                out.append(d.setdefault(k, v))
            elif name == "update":
                d.update({k: v, "z": 1})
            elif name == "merge":
                d = {k: 1} | d
            elif name == "popitem":
                out.append(d.popitem())
            else:
                out.append((k in d, list(d), len(d)))
        except KeyError as e:
            out.append(("KeyError", e.args))
    return list(d.items()), out


dict_names = ["set", "del", "get", "pop", "default", "update", "merge", "popitem", "list"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(dict_names), keys, numbers), max_size=8))
def test_dicts(ops):
    check(run_dict, ops)


@settings(max_examples=60, deadline=None)
@given(st.lists(numbers), st.lists(numbers))
def test_sets(a, b):
    def f(a, b):
        x, y = set(a), set(b)
        z = x.copy()
        z ^= y
        return x | y, x & y, x - y, x ^ y, x <= y, x < y, x == y, z, sorted(z), len(x)

    check(f, a, b)


@settings(max_examples=80, deadline=None)
@given(st.integers(-5, 9), st.integers(-5, 9), st.integers(-3, 3), st.integers(-9, 9))
def test_ranges_and_slices(start, stop, step, index):
    def f(start, stop, step, index):
        r = range(start, stop, step)
        x = "abcdefghij"[start:stop:step]
        return list(r), len(r), index in r, r[::-1], x, list(r)[index:]

    check(f, start, stop, step, index)


@settings(max_examples=80, deadline=None)
@given(st.integers(-20, 20) | st.floats(-9, 9), st.integers(-20, 20) | st.booleans())
def test_arithmetic(a, b):
    def f(a, b):
        out = [a + b, a - b, a * b, a < b, a == b, a >= b, bool(a), int(a), float(b), abs(a)]
        for op in (lambda: a // b, lambda: a % b, lambda: a / b, lambda: divmod(a, b)):
            try:
                out.append(op())
            except ZeroDivisionError as e:
                out.append(str(e))
        return out

    check(f, a, b)
