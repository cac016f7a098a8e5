"""Sets that compiled code makes or changes iterate, and are popped from, as CPython's are."""

import random

import pytest
import torch
import torchsmith_tracer as tracer
from torchsmith_tracer._src.values.set_layouts import Given


class Key:
    """An object with an own hash: many have the same."""

    def __init__(self, number):
        self.number = number

    def __hash__(self):
        return self.number * 8 % 56

    def __eq__(self, other):
        return isinstance(other, Key) and other.number == self.number

    def __repr__(self):
        return f"k{self.number}"


class Own(set):
    pass


def ints(n):
    return n * 8 if n % 3 else n


POOLS = {
    "ints": ints,
    "strings": lambda n: f"{n * n}",
    "tuples": lambda n: (n, str(n)),
    "keys": Key,
    "mixed": lambda n: (ints(n), f"{n}", (n % 7, n), n / 2, Key(n))[n % 5],
}

# What is done to the sets a, b (and to c, a frozenset) with a list of elements.
STEPS = """
a = set({l})
a = {{i for i in {l}}}
a = {{*{l}, *b}}
a = set(dict.fromkeys({l}))
a = b.copy()
a = set(c)
a = a | b
a = b - a
a = a & b
a = a ^ b
a = a.union({l}, b)
a = a.difference({l})
a = a.difference(b, {l})
a = a.intersection({l})
a = a.symmetric_difference({l})
a = set(c | a)
a |= b
a -= b
a &= b
a ^= b
a |= a
a.update({l})
a.update(dict.fromkeys({l}))
a.update(b, c)
a.difference_update({l})
a.difference_update(b)
a.intersection_update({l})
a.symmetric_difference_update({l})
a.symmetric_difference_update(c)
a.clear()
a.add({i})
a.add({i})
a.add({i})
a.discard({i})
a.discard({i})
a.discard({i})
if a: seen.append(a.pop())
if a: seen.append(a.pop())
for i in {l}: a.add(i)
for i in {l}: a.discard(i)
while len(a) > 3: seen.append(a.pop())
a, b = b, a
c = frozenset(a)
c = frozenset({l})
c = c | b
c = c - b
c = c ^ b
c = b & c
c = c.union(a, {l})
a = dict.fromkeys({l}).keys() | b
a = dict.fromkeys({l}).keys() & b
a = b - dict.fromkeys({l}).keys()
a = dict.fromkeys({l}).keys() ^ a
seen.append([*a])
seen.append([*b, *c])
seen.append((a <= b, a == b, a.isdisjoint(c), a.issubset({l}), c.issuperset(a)))
seen.append(a.copy())
seen.append(c - a)
opaque()
""".strip().splitlines()


@tracer.disable
def opaque():
    pass


def program(seed, breaks):
    rng = random.Random(seed)
    most = rng.choice([6, 12, 40])
    # A frozenset that is made again has its order, but not always the same table.
    steps = [step for step in STEPS if step[:3] != "c ="] if breaks else STEPS[:-1]
    lines = ["def f(x, p, a, b, c):", "    seen = []"]
    for _ in range(rng.randint(3, 14)):
        step = rng.choice(steps)
        picked = [f"p[{rng.randrange(most)}]" for _ in range(rng.randrange(most))]
        lines.append(
            "    " + step.format(l=f"[{', '.join(picked)}]", i=f"p[{rng.randrange(most)}]")
        )
    lines.append("    return x + len(a), seen, list(a), list(b), list(c), a, b, c")
    space = {"opaque": opaque}
    exec("\n".join(lines), space)
    return space["f"], "\n".join(lines)


def given(pool, seed, kind):
    """The elements, and three sets with a history of their own."""
    rng = random.Random(seed)
    elements = [pool(n) for n in range(40)]
    sets = []
    for _ in range(3):
        made = kind()
        for _ in range(rng.choice([0, 3, 10, 60])):
            (made.add if rng.random() < 0.7 else made.discard)(rng.choice(elements[:20]))
        sets.append(made)
    return elements, *sets[:2], frozenset(sets[2])


def outcome(f, pool, seed, kind, other):
    """What ``f`` returns, and what becomes of its sets when more is done to them."""
    elements, a, b, c = given(POOLS[pool], seed, kind)
    found = f(torch.ones(1), elements, a, b, c)
    shown = [repr(found), [*a], [*b], [*c]]
    for made in (a, b, *found[5:7]):
        made.add(elements[other])
        shown += [*made], made.pop(), [*made], made.copy(), [*({99, *made} | found[7])]
        made.update(elements[20:30])
        shown += [*made], [*(found[7] ^ made)]
    return repr(shown)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.filterwarnings("ignore::torchsmith_tracer.errors.RecompileLimitWarning")
def test_random_histories(seed):
    f, text = program(seed, breaks=seed % 4 == 0)
    compiled = tracer.compile(f, backend="eager")
    pool, kind = list(POOLS)[seed % 5], Own if seed % 6 == 0 else set
    for call in (seed, seed, seed + 1000):
        expected = outcome(f, pool, call, kind, call % 17)
        assert outcome(compiled, pool, call, kind, call % 17) == expected, text


OBJECTS = [[torch.nn.Linear(1, 1) for _ in range(7)], [torch.ones(1) for _ in range(7)]]


def by_address(x, objects):
    held = set(objects)
    held.discard(objects[3])
    held |= {objects[1], *objects[4:]}
    return [id(obj) for obj in held], held, x + len(held)


def of_functions(x, objects):
    return list({len, torch.sin, by_address, program, int, torch.float16, sorted}), x + 1


def texts(x, objects):
    return f"{ {1, 9, 17, 3} }{frozenset([25, 1, 9])}{ ({8, 0} | {16})!r}", x + 1


def constants(x, objects):
    return list({1, 9, 17, 3, 25, 33} | {len(objects)}), {*(8, 0), 16}.pop(), x + 1


def nested(x, objects):
    table = {frozenset([1, 9]): 1, frozenset([3]): 2}
    found = {frozenset([n, n + 8]) for n in range(6)}
    return table[frozenset([9, 1])], [*map(list, found)], found, x + 1


def emptied_within(x, objects):
    held = {1, 2, 3}
    held.pop()
    held.clear()
    held.update([5, 0])
    return held.pop(), held, x + 1


@pytest.mark.parametrize("objects", OBJECTS)
@pytest.mark.parametrize(
    "program", [by_address, of_functions, texts, constants, nested, emptied_within]
)
def test_whole_graphs(program, objects):
    compiled = tracer.compile(program, backend="eager", fullgraph=True)
    for _ in range(2):
        found, expected = compiled(torch.ones(1), objects), program(torch.ones(1), objects)
        assert repr(found) == repr(expected)
        assert [list(part) for part in found[:-1] if isinstance(part, set)] == [
            list(part) for part in expected[:-1] if isinstance(part, set)
        ]


def test_a_set_that_is_changed_while_it_is_iterated_over():
    def f(x, held):
        seen = []
        for n in held:
            seen.append(n)
            held.discard(n)
            held.add(n + 8)
            if len(seen) > 20:
                break
        return seen, x + 1

    compiled = tracer.compile(f, backend="eager")
    for count in (5, 2, 5):
        ours, eager = set(range(count)), set(range(count))
        assert compiled(torch.ones(1), ours)[0] == f(torch.ones(1), eager)[0]
        assert list(ours) == list(eager)


def test_an_exception_in_the_middle_leaves_what_has_been_added():
    def f(x, held):
        try:
            held.update([16, 2, []])
        except TypeError:
            held.difference_update(iter([1]))
        return list(held), x + 1

    compiled = tracer.compile(f, backend="eager", fullgraph=True)
    ours, eager = {1, 8, 0}, {1, 8, 0}
    assert compiled(torch.ones(1), ours)[0] == f(torch.ones(1), eager)[0]
    assert list(ours) == list(eager)


def test_no_break_where_nobody_asks_for_the_order(monkeypatch):
    """As if no way was found in which the set of the code's constants had been made."""
    monkeypatch.setattr(Given, "arranged", lambda self: None)

    def member(x, name):
        return x + (name in {"cpu", "cuda", "xpu", "hpu", "mps"})

    def order(x):
        kinds = {"cpu", "cuda", "xpu", "hpu", "mps"}
        return x + 1, list(kinds)

    whole = tracer.compile(member, backend="eager", fullgraph=True)
    assert whole(torch.ones(1), "xpu") == 2
    assert tracer.compile(order, backend="eager")(torch.ones(1))[1] == order(torch.ones(1))[1]


def test_what_is_added_from_a_set_comes_in_its_order(monkeypatch):
    """A set that has elements takes those of another one by one, however that was made."""
    monkeypatch.setattr(Given, "arranged", lambda self: None)

    def f(x, more):
        names = {"first"}
        names.update(more)
        return x + 1, list(names), names

    for seed in range(40):
        generator = random.Random(seed)
        more = {f"s{generator.randrange(10000)}" for _ in range(generator.randint(3, 25))}
        tracer.reset()
        _, inside, after = tracer.compile(f, backend="eager", fullgraph=True)(torch.ones(1), more)
        expected = list(f(torch.ones(1), more)[1])
        assert inside == expected and list(after) == expected


@pytest.mark.parametrize("kind", [set, frozenset])
def test_the_text_of_a_given_set_has_its_order(kind):
    def f(x, given):
        return x + 1, f"{given}", str(given), list(given)

    for seed in range(20):
        generator = random.Random(seed)
        given = kind(f"s{generator.randrange(10000)}" for _ in range(generator.randint(3, 25)))
        tracer.reset()
        compiled = tracer.compile(f, backend="eager")
        assert compiled(torch.ones(1), given)[1:] == f(torch.ones(1), given)[1:]
