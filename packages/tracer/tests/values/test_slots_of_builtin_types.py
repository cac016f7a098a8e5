"""What objects of builtin types, functions, classes and enum members answer, and how their types
are called in messages: the trace says no where their type does, and only there."""

import array
import collections
import enum
import functools
import io
import itertools
import operator
import types
import typing

import pytest
import torch
import torchsmith_tracer


@torchsmith_tracer.disable
def opaque(x):
    return x


def attempt(fn, *args):
    try:
        return fn(*args)
    except Exception as e:
        return type(e).__name__, str(e)


def wrapped(fn):
    opaque(0)

    @functools.wraps(fn)
    def inner(*args):
        return fn(*args)

    return inner


@pytest.mark.parametrize("broken", [False, True])
def test_functions_keep_the_names_that_the_program_gives_them(agree, broken):
    def program(x):
        def named(y):
            """What it does."""
            return y

        named.__qualname__, named.__name__, named.__doc__ = "other.name", "given", None
        named.__module__, named.__annotations__["y"], named.tag = "elsewhere", int, [1]
        names = named.__qualname__, repr(named)[:20]
        if broken:
            opaque(x)
        return x + 1, named, names, named.__qualname__, wrapped(program)

    compiled = torchsmith_tracer.compile(program, backend="eager")
    for _ in range(2):
        for ours, theirs in zip(compiled(torch.ones(2)), program(torch.ones(2))):
            if isinstance(ours, types.FunctionType):
                for name in ("__name__", "__qualname__", "__doc__", "__module__", "__dict__"):
                    assert str(getattr(ours, name))[:40] == str(getattr(theirs, name))[:40]
                assert ours.__annotations__ == theirs.__annotations__
            else:
                assert str(ours) == str(theirs)


class Half:
    def __delitem__(self, key):
        pass


class OtherHalf:
    def __setitem__(self, key, value):
        pass


class Pair(typing.NamedTuple):
    a: object
    b: object


class Numbers(tuple):
    pass


MADE = (
    lambda: functools.partial(int, "3"),
    lambda: collections.OrderedDict(a=1),
    lambda: collections.deque([1]),
    lambda: collections.Counter("a"),
    lambda: itertools.takewhile(bool, [1, 0]),
    lambda: itertools.groupby([1]),
    lambda: operator.itemgetter(0),
    lambda: array.array("i", [1]),
    lambda: io.StringIO("a"),
    lambda: types.SimpleNamespace(a=1),
    lambda: reversed([1]),
    lambda: torch.float32,
    lambda: Numbers((1, 2)),
    lambda: Half(),
    lambda: OtherHalf(),
    lambda: lambda: 1,
    lambda: Half().__delitem__,
    lambda: "a".upper,
    lambda: property(len),
    lambda: ValueError(1),
)


@pytest.mark.parametrize("make", MADE, ids=range(len(MADE)))
def test_what_a_type_refuses(agree, make):
    def program(x):
        o = make()
        return x + 1, [
            attempt(lambda: o.nothing),
            attempt(lambda: o < 1),
            attempt(lambda: o @ 2),
            attempt(lambda: -o),
            attempt(lambda: int(o)) if not isinstance(o, array.array) else None,
            attempt(lambda: 5 in o),
            attempt(lambda: len([*o])),
            attempt(operator.setitem, o, "q", 1),
            attempt(operator.delitem, o, "q"),
            attempt(lambda: [name for name in o.__dict__ if name != "__wrapped__"]),
            attempt(setattr, o, "new", 1),
            hasattr(o, "new"),
            hasattr(o, "__dict__"),
        ]

    agree(program, torch.ones(2))


@pytest.mark.parametrize("make", MADE, ids=range(len(MADE)))
def test_methods_that_all_objects_have(agree, make):
    def program(x):
        o, other = make(), make()
        return x + 1, (
            [hasattr(o, n) for n in ("__init__", "__reduce__", "__reduce_ex__", "__dir__")],
            [o.__eq__(o), o.__ne__(o), (o.__hash__ is None) or o.__hash__() == hash(o)],
            o.__eq__(5) is NotImplemented,
            o.__repr__()[:4],
            o.__class__ is type(o),
            (o == other, o is other),
        )

    agree(program, torch.ones(2))


def test_pairs_are_looked_for_among_items(check):
    def program(x, d):
        pairs = ("a", 1), ["a", 1], 5, ("a", 2), ("a", 1, 2), "a1", Pair("a", 1), None
        return x + 1, [p in d.items() for p in pairs], [p in {"b": x}.items() for p in pairs]

    check(program, torch.ones(2), {"a": 1})


def test_texts_with_addresses_are_strings(agree):
    def program(x):
        out = []
        for text in (repr(Half()), f"{x.sum()}", repr(lambda: 1)):
            out += [text[:2], len(text) > 2, [c for c in text][:2], f"{text:>3}"[:1]]
            out += [text.upper()[:3], text * 0, max(text) > "!", text.split()[0], {text: 1}[text]]
            out += [attempt(lambda: text - 1), attempt(lambda: text % 1)[0], attempt(lambda: -text)]
        return x + 1, out

    agree(program, torch.ones(2))


@pytest.mark.filterwarnings("ignore::torchsmith_tracer.errors.RecompileLimitWarning")
def test_stores_that_a_function_or_class_may_refuse(agree):
    def program(x):
        def fn(y=1):
            return y

        class Local:
            pass

        out = []
        for obj in (fn, Local, int):
            for name, value in [
                ("__class__", int),
                ("__dict__", {}),
                ("__name__", 5),
                ("__qualname__", None),
                ("__defaults__", [1]),
                ("__annotations__", [1]),
                ("__bases__", (int,)),
                ("__mro__", ()),
                ("__code__", 5),
                ("__doc__", "text"),
            ]:
                out.append(attempt(setattr, obj, name, value))
            out.append(attempt(delattr, obj, "__name__"))
        return x + 1, out, fn.__doc__, Local.__doc__, fn.__name__, Local.__name__

    agree(program, torch.ones(2))


def test_enum_members_take_attributes_and_classes():
    class Other:
        pass

    class Mode(enum.Enum):
        A = 1

    def program(x):
        out = [attempt(setattr, Mode.A, "tag", 5), Mode.A.tag]
        out += [attempt(setattr, Mode.A, "__class__", Other), type(Mode.A) is Other]
        return x + 1, out

    compiled = torchsmith_tracer.compile(program, backend="eager")
    assert compiled(torch.ones(2))[1] == [None, 5, None, True]
    assert type(Mode.A) is Other


class Owned:
    def __init__(self, owner):
        self.owner = owner

    def __hash__(self):
        return hash((self.owner, 1)) + 1


@pytest.mark.filterwarnings("ignore::torchsmith_tracer.errors.RecompileLimitWarning")
def test_hashes_by_identity_are_those_of_the_objects():
    def hashes(o, made, key):
        objects = (o, made, key, Half, hashes, o.__delitem__, torch.relu, operator, id(o), (o, 1))
        return [hash(v) for v in (*objects, (Half, (key, 2)), frozenset([o]))] + [o.__hash__()]

    def program(x, o, cache):
        made, key = Half(), Owned(o)
        found = {o: 1, made: 2, key: 3}
        x = x * cache.get(hash(o), 1)
        return x, hashes(o, made, key), found[o] + found[made] + found[key], made, key

    compiled = torchsmith_tracer.compile(program, backend="eager")
    for o in [Half(), Half(), Half()]:
        cache = {hash(o): 3}
        for _ in range(2):
            x, got, total, made, key = compiled(torch.ones(2), o, cache)
            assert got == hashes(o, made, key)
            assert (x.tolist(), total) == ([3, 3], 6)


CONSTANTS = (
    5,
    "a",
    2.5,
    b"x",
    None,
    True,
    (1, 2),
    torch.float32,
    range(3),
    ...,
    2j,
    int,
    [1],
    {1: 2},
)


@pytest.mark.parametrize(
    "name", ["eq", "ne", "lt", "add", "radd", "mul", "mod", "or", "pow", "rpow"]
)
def test_special_methods_that_are_called_by_name(agree, name):
    def program(x):
        out = []
        for a in CONSTANTS:
            for b in CONSTANTS:
                found = attempt(lambda: getattr(a, f"__{name}__")(b))
                out.append(found if found is not NotImplemented else "not implemented")
        return x + 1, out

    agree(program, torch.ones(2))


def test_operators_of_a_number_class_that_ask_the_base(check):
    class Number(int):
        def __add__(self, other):
            result = super().__add__(other)
            return 100 if result is NotImplemented else result

        def __eq__(self, other):
            return int.__eq__(self, other)

    def program(x, n):
        return x + 1, n + "a", n + 1, n == "a", n == 3, (5).__lt__("a") is NotImplemented

    check(program, torch.ones(2), Number(3))


def test_powers_with_a_modulus(check):
    def program(x):
        return x + 1, (5).__pow__(3, 7), int.__pow__(2, 5, 3), attempt(lambda: (5).__pow__())[0]

    check(program, torch.ones(2))


@pytest.mark.parametrize("first", [None, ..., torch.float16])
def test_hashes_of_what_there_is_one_of(first):
    def f(x, value):
        parts = (value, x.dtype, x.layout, None, (None, 1), frozenset([...]), NotImplemented)
        return [hash(part) for part in parts], x + 1

    compiled = torchsmith_tracer.compile(f, backend="eager", fullgraph=True)
    for value in (first, None, torch.int8, ...):
        assert compiled(torch.ones(2), value)[0] == f(torch.ones(2), value)[0]
