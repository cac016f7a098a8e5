"""Special methods of the user's that change what is being used, count, or give another type."""

import numpy as np
import pytest
import torch
import torchsmith_tracer

INDEX = """
class Index:
    def __init__(self, change): self.change = change
    def __index__(self):
        self.change(items)
        return 0
drop, grow, shift = list.clear, lambda l: l.append(7), lambda l: l.insert(0, 8)
"""
EQUAL = """
class Equal:
    def __init__(self, change, same): self.change, self.same = change, same
    def __eq__(self, other):
        asked.append(1)
        self.change(items)
        return self.same
    def __repr__(self):
        self.change(items)
        return "Equal"
drop, grow, keep = list.clear, lambda l: l.append(7), len
"""
NUMBER = """
class Number:
    def __init__(self, given): self.given = given
    def __float__(self): return asked.append("float") or self.given
    def __int__(self): return asked.append("int") or self.given
    def __index__(self): return asked.append("index") or self.given
    def __len__(self): return asked.append("len") or self.given
    def __complex__(self): return asked.append("complex") or self.given
    def __pow__(self, *others): return asked.append("pow") or NotImplemented
"""
RIGHT = """
class Right:
    def __init__(self, result): self.result = result
    def __radd__(self, other): return asked.append(repr(other)) or self.result
    __rmul__ = __radd__
    def __iter__(self): return iter([5])
    def __index__(self): return 2
"""


def outcome(setup, expression, compiled, calls=3):
    """What the calls give or raise, and the state that they leave."""
    space = {"asked": [], "items": [], "np": np}
    exec("import collections, operator\n" + setup, space)
    exec(
        "def program(x, step):\n"
        "    x = x * 2\n"
        "    items[:] = [1, 2, 3]\n"
        f"    try: found = {expression}\n"
        "    except Exception as e: found = type(e).__name__, str(e)\n"
        "    return x, found\n"
        "def augmented(left, right, times=False):\n"
        "    if times: left *= right\n"
        "    else: left += right\n"
        "    return left\n"
        "def put(target, key, value): target[key] = value\n"
        "def drop_item(target, key): del target[key]\n",
        space,
    )
    program = space["program"]
    if compiled:
        program = torchsmith_tracer.compile(program, backend="eager")
    seen = []
    for step in range(calls):
        seen.append(repr(program(torch.ones(2), step)))
        seen.append((repr(list(map(type, space["items"]))), list(space["asked"])))
    return seen


INDICES = [
    *("items.insert(Index({}), 5)", "items.pop(Index({}))", "items[Index({}):]"),
    *("put(items, Index({}), 5)", "drop_item(items, Index({}))", "items * Index({})"),
    *("put(items, slice(Index({}), 1), [5, 6])", "drop_item(items, slice(Index({}), 2))"),
    *("items.index(3, Index({}))", "items[Index({})]", "put(items, slice(0, 1), [Index({})])"),
]
COMPARED = ["items.index(e)", "items.remove(e)", "items.count(e)", "e in items", "items == [e] * 3"]
COMPARED += ["(e, 1) == (e, 1)", "[e] != [Equal(keep, True)]", "q.remove(e)", "q.index(e)"]
COMPARED += ["q == collections.deque([e, Equal(keep, False)])", "q != collections.deque([1, 2])"]
COMPARED += ["(items.insert(0, e), repr(items))", "(items.append(e), f'{items}')"]
CASES = [
    *((INDEX, use.format(how)) for use in INDICES for how in ("drop", "grow", "shift")),
    *(
        (EQUAL + f"e = Equal({how}, {same})\nq = collections.deque([Equal({how}, {same}), 4])", use)
        for use in COMPARED
        for how in ("drop", "grow", "keep")
        for same in (True, False)
    ),
    *(
        (NUMBER, f"{use}(Number({given}))")
        for use in ("float", "int", "complex", "hex", "len", "bool", "range")
        for given in ("1", "1.5", "'a'", "1j", "2**70", "-(2**70)")
    ),
    *((NUMBER, f"pow({given})") for given in ("Number(1), 2, 3", "Number(1), Number(2), 3")),
    *(
        (RIGHT, f"augmented({left}, Right({result}), {times})")
        for left in ("[1]", "items", "(1,)", "collections.deque([1])")
        for result in ("4", "NotImplemented")
        for times in (True, False)
    ),
    *(
        (RIGHT + f"import torch\nright = {right}", f"{use}({left}, right)")
        for left in ("[1, 2]", "(1, 2)", "collections.deque([1, 2])")
        for right in ("np.int64(2)", "np.array([3, 4])", "np.array(2)", "torch.tensor(2)")
        for use in ("operator.iadd", "operator.imul", "operator.add", "operator.mul")
    ),
]


@pytest.mark.parametrize(("setup", "expression"), CASES)
def test_methods_that_change_what_is_used(setup, expression):
    assert outcome(setup, expression, True) == outcome(setup, expression, False)


STOPS = ["list(map(next, its))", "[v for v in map(stop, [1, 2, 3])]", "next(map(stop, [2]), 7)"]
STOPS += ["list(filter(stop, [1, 2, 3]))", "list(zip(map(stop, [1, 2, 3]), 'abc'))"]
STOPS += ["sum(map(stop, [1, 2, 3]))", "list(itertools.starmap(stop, [(1,), (2,), (3,)]))"]
STOPS += ["list(itertools.takewhile(stop, [1, 2, 3]))", "tuple(stop(v) for v in [1, 2, 3])"]
ITERATORS = """
import itertools
its = [iter([1]), iter([]), iter([3])]
def stop(v):
    if v == 2: raise StopIteration("stop", v)
    return v
"""


@pytest.mark.parametrize("expression", STOPS)
def test_a_function_that_raises_stop_iteration_ends_what_calls_it(expression):
    expected = outcome(ITERATORS, expression, False)
    assert outcome(ITERATORS, expression, True) == expected
