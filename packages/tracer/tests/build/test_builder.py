"""Dicts, sets and sequences as they are met from outside: any keys, any subclass, any order."""

import collections
import enum
import types

import pytest
import torch
from torch.utils import _pytree


class Color(enum.Enum):
    RED = 1
    GREEN = 2


class Thing:
    weight = 3


class Number:
    def __init__(self, n):
        self.n = n

    def __hash__(self):
        return hash(self.n)

    def __eq__(self, other):
        return isinstance(other, Number) and self.n == other.n


def t(*values):
    return torch.tensor([float(v) for v in values])


def double():
    return 2


NAN = float("nan")
KEYS = {
    "tensors": lambda: [t(1), t(2)],
    "objects": lambda: [Thing(), Thing()],
    "own hash": lambda: [Number(1), Number(2)],
    "types": lambda: [int, torch.Tensor],
    "sizes": lambda: [torch.Size([1]), torch.Size([2, 3])],
    "frozensets": lambda: [frozenset((1, 2)), frozenset((Color.RED,))],
    "enum members": lambda: [Color.RED, Color.GREEN],
    "functions": lambda: [double, lambda: 3],
    "modules": lambda: [torch.nn.ReLU(), torch.nn.Linear(1, 1)],
    "dtypes and devices": lambda: [(torch.device("cpu"), torch.float32), torch.int64],
    "tuples": lambda: [(Color.RED, t(1)), (1, (2, "a"), int)],
    "literals": lambda: [True, 1.5, None, b"x", (1, "a"), ...],
    "nan": lambda: [NAN, "n"],
}


@pytest.mark.parametrize("kind", KEYS)
def test_a_dict_with_keys_of_any_kind_is_read_and_changed(program, kind):
    def body(C):
        def read(d, x):
            return [x * v for v in d.values()], [d[k] * x for k in d], len(list(d.items()))

        def change(d, key, x):
            present = key in d
            d[key] = d.pop(key) * x
            return present

        read, change = C(read), C(change)
        keys = KEYS[kind]()
        d = {k: i + 2 for i, k in enumerate(keys)}
        out = [read(d, t(1)), read({k: 7 for k in keys}, t(1)), read({keys[0]: 1}, t(1))]
        out += [change(d, keys[0], t(5)), change(d, keys[-1], t(5))]
        order = [next(i for i, k in enumerate(keys) if k is key or k == key) for key in d]
        return out, order, list(d.values())

    program(body)


@pytest.mark.parametrize("kind", KEYS)
def test_a_set_with_elements_of_any_kind_is_read_and_changed(program, kind):
    def body(C):
        def f(s, other, x):
            found = other in s
            s.discard(other)
            s.add(2.5)
            return found, x * len(s)

        f = C(f)
        keys = KEYS[kind]()
        s = set(keys)
        out = [f(s, keys[0], t(1)), f(s, keys[0], t(1)), f(s, keys[-1], t(1))]
        return out, [k in s for k in keys], len(s)

    program(body)


def test_dicts_with_other_objects_as_keys_share_compiled_code(program):
    def body(C):
        f = C(lambda d, x: [k * v * x for k, v in d.items()])
        return [f({t(i): 2, t(i + 1): 3}, t(1)) for i in range(4)]

    assert program(body) == 1


def test_a_key_by_identity_is_not_taken_for_another(program):
    def body(C):
        within = C(lambda s, x: x + 1 if x in s else x - 1)
        both = C(lambda x, y: x * len({x, y}))
        counted = C(lambda d, k: d.get(k, 9) * k)
        a, b, c = t(1), t(1), t(1)
        out = [within({a}, b), within({a}, a), within({b}, b), within({a}, b)]
        out += [both(a, b), both(a, a), both(b, c)]
        d = {a: 3, b: 4}
        return out + [counted(d, a), counted(d, b), counted(d, c), counted(d, a)]

    program(body)


def test_the_order_of_a_set_is_what_it_was(program):
    def body(C):
        f = C(lambda s, x: [k * x for k in s])
        one, two = {8, 0}, {0}
        two.add(8)
        three = set()
        three.add(8)
        three.add(0)
        return [f(s, t(1)) for s in (one, two, three)]

    program(body)


class Dict(dict):
    def __getitem__(self, key):
        return [super().__getitem__(key)]

    def __len__(self):
        return 99

    def __iter__(self):
        return iter(["other"])


class Ordered(collections.OrderedDict):
    def __getitem__(self, key):
        return super().__getitem__(key) + 100


class List(list):
    def __getitem__(self, i):
        return super().__getitem__(i) * 10

    def __len__(self):
        return 77

    def __iter__(self):
        return iter([5])


class Tuple(tuple):
    def __getitem__(self, i):
        return super().__getitem__(i) * 10


class Set(set):
    def __contains__(self, item):
        return True

    def __iter__(self):
        return iter([9])

    def __len__(self):
        return 5


class Frozen(frozenset):
    pass


class Deque(collections.deque):
    def __getitem__(self, i):
        return super().__getitem__(i) * 10


def test_items_of_a_subclass_are_fetched_past_its_own_methods(program):
    def body(C):
        def f(d, x):
            return d["a"][0] * x, len(d), list(d), dict.get(d, "a") * x

        f = C(f)
        d = Dict(a=1)
        out = [f(d, t(1)), f(d, t(1)), f(d, t(1))]
        d["b"] = 2
        return out + [f(d, t(1))]

    assert program(body) == 2  # the second for the new key; none for items made at each read


def test_subclasses_of_sequences_and_sets_keep_their_own_methods(program):
    def body(C):
        f = C(lambda c, x: (c[0] * x, len(c), [i * x for i in c]))
        g = C(lambda s, x: (77 in s, len(s), [i * x for i in s]))
        out = []
        for make in (List, Tuple, Deque):
            out += [f(make([1, 2]), t(1)), f(make([1, 2]), t(1)), f(make([3, 2]), t(1))]
        for make in (Set, Frozen):
            out += [g(make([1]), t(1)), g(make([1]), t(1)), g(make([1, 4]), t(1))]
        return out

    assert program(body) == 10


def test_a_subclass_of_set_is_changed_in_place(program):
    def body(C):
        class Plain(set):
            pass

        def f(s, fixed, x):
            s.add(3)
            s -= {1}
            both = s | fixed
            return x * len(s), 2 in fixed, sorted(both), type(both).__name__

        f = C(f)
        s = Plain((1, 2))
        return f(s, Frozen((1, 5)), t(1)), sorted(s), f(s, Frozen((2,)), t(1)), type(s).__name__

    program(body)


def test_an_ordered_dict_is_read_in_its_own_order(program):
    def body(C):
        f = C(lambda d, x: [(x * v) for v in d.values()] + [x * d[Color.RED]])
        out = []
        for make in (collections.OrderedDict, Ordered):
            d = make([(Color.RED, 1), (Color.GREEN, 2)])
            for key in (Color.RED, Color.GREEN):
                d.move_to_end(key)
                out += [f(d, t(1)), f(d, t(1))]
        return out

    program(body)


def test_a_proxy_of_a_dict_with_objects_as_keys(program):
    def body(C):
        f = C(lambda d, x: [v * x for v in d.values()])
        return [f(types.MappingProxyType({Color.RED: n, "b": 2}), t(1)) for n in (1, 3)]

    program(body)


def test_a_tree_is_mapped_without_compiling_again(program):
    def body(C):
        f = C(lambda x: _pytree.tree_map(lambda a: a * 2, {"a": x, "b": [x, (x, None)]}))
        return [f(t(1, 2)) for _ in range(4)]

    assert program(body) == 1


def test_a_second_optimizer_step_finds_its_state_by_parameter(program):
    def body(C):
        p = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.Adam([p], lr=0.1)
        step = C(lambda: optimizer.step())
        for _ in range(4):
            p.grad = torch.ones(2)
            step()
        return p.detach(), optimizer.state[p]["step"]

    program(body, broken=True)
