"""What is computed of a whole container depends on all that it holds, also in a later call."""

import collections

import pytest
import torch
import torchsmith_tracer

Pair = collections.namedtuple("Pair", "first second")


class OwnDeque(collections.deque):
    pass


class OwnDict(dict):
    pass


CONTAINERS = {
    "deque": (lambda: collections.deque([1, 2], 2), lambda c, i: c.append(i)),
    "unbounded deque": (lambda: collections.deque([1, 2]), lambda c, i: c.rotate()),
    "own deque": (lambda: OwnDeque([1, 2], 2), lambda c, i: c.append(i)),
    "ordered": (lambda: collections.OrderedDict(a=1), lambda c, i: c.update(a=i)),
    "default": (lambda: collections.defaultdict(int, a=1), lambda c, i: c.update(a=i)),
    "counter": (lambda: collections.Counter(a=1), lambda c, i: c.update(a=i)),
    "own dict": (lambda: OwnDict(a=1), lambda c, i: c.update(a=i)),
    "list": (lambda: [1, 2], lambda c, i: c.__setitem__(0, i)),
    "in a list": (lambda: [collections.deque([1], 1)], lambda c, i: c[0].append(i)),
    "in a dict": (lambda: {"a": collections.OrderedDict(b=1)}, lambda c, i: c["a"].update(b=i)),
    "in a tuple": (lambda: Pair(0, collections.deque([1], 1)), lambda c, i: c.second.append(i)),
}
WAYS = {
    "repr": repr,
    "str": str,
    "format": lambda c: f"{c} {c!r}",
    "percent": lambda c: "%r" % (c,),
    "within": lambda c: str((c, 1)),
    "items": lambda c: ",".join(map(str, c)),
    "sorted": lambda c: sorted(c, key=str),
    "ascii": ascii,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", CONTAINERS)
def test_a_container_changes_between_calls(kind, way):
    make, change = CONTAINERS[kind]
    look, held, given = WAYS[way], make(), make()
    functions = (lambda x: (x + 1, look(held))), (lambda x, c: (x + 1, look(c)))
    compiled = [torchsmith_tracer.compile(fn, backend="eager") for fn in functions]
    for i in range(4):
        for arguments, fn, own in zip(((), (given,)), functions, compiled):
            x = torch.ones(2)
            assert repr(own(x, *arguments)) == repr(fn(x, *arguments))
        change(held, i + 5)
        change(given, i + 5)


class Shown:
    def __init__(self):
        self.calls = 0

    def __repr__(self):
        self.calls += 1
        return f"shown {self.calls}"


def test_objects_in_a_container_say_themselves_what_they_are_called():
    shown, own = Shown(), Shown()
    held, mine = collections.deque([shown], 3), collections.deque([own], 3)
    compiled = torchsmith_tracer.compile(lambda c: repr(c), backend="eager")
    for _ in range(3):
        assert compiled(mine) == repr(held)


class Copied(collections.deque):
    def __init__(self, *args):
        super().__init__(*args)
        self.given = len(args)


@pytest.mark.parametrize("args", [([1],), ([1], 3)])
def test_a_copy_of_a_deque_is_made_as_its_class_makes_them(agree, args):
    agree(lambda x: (x, Copied(*args).copy().given))
