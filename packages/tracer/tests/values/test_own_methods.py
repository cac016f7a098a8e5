"""Methods and members that classes of the user's have from classes in C, and how they compare."""

import collections
import enum

import pytest
import torch
import torchsmith_tracer

X = torch.ones(2, 3)


class Text(str):
    shout = str.upper
    __add__ = str.__mul__


class Stack(list):
    push, peek, __iadd__ = list.append, list.__getitem__, list.__imul__
    __hash__ = object.__hash__


class Table(dict):
    take, __getitem__, __setattr__ = dict.pop, dict.get, dict.__setitem__


class Number(int):
    __add__, twice = int.__sub__, int.__mul__


class Ordered(collections.OrderedDict):
    last = collections.OrderedDict.move_to_end


class Image(torch.Tensor):
    __add__, plus = torch.Tensor.__sub__, torch.Tensor.__mul__
    __neg__, __getitem__ = torch.Tensor.__neg__, torch.Tensor.select


def under_other_names(x, text, stack, table, number):
    stack.push(x)
    stack += 2
    table.k = x * 2
    ordered = Ordered(a=1, b=2)
    ordered.last("a")
    keys = {stack: 5}
    return (
        [text.shout(), text + 2, stack.peek(0), table["none"], table.take("k"), keys[stack]],
        [number + 1, number.twice(3), list(ordered), len(stack)],
    )


def of_tensors(x):
    image = x.as_subclass(Image)
    return [(type(v).__name__, v.tolist()) for v in (image + 1, image.plus(3), -image, image[0, 1])]


@pytest.mark.parametrize("born", [False, True])
def test_methods_of_c_under_other_names(check, born):
    def made():
        return Text("ab"), Stack([1]), Table(a=1), Number(5)

    if born:
        check(lambda x: under_other_names(x, *made()), X)
    else:
        check(under_other_names, X, *made())


def test_operators_of_tensors_under_other_names(agree):
    agree(of_tensors, X)


class Loose(str):
    def __eq__(self, other):
        return True

    __hash__ = str.__hash__


class Near(float):
    def __eq__(self, other):
        return abs(float(self) - float(other)) < 2

    __hash__ = float.__hash__


class Modular(int):
    def __eq__(self, other):
        return int(self) % 7 == int(other) % 7

    __hash__ = int.__hash__


@pytest.mark.parametrize(
    "values",
    [
        [Loose("sin"), Loose("cos"), Loose("sin")],
        [Near(1.0), Near(2.5), Near(1.0)],
        [Modular(1), Modular(8), Modular(1)],
    ],
)
def test_values_that_compare_as_equal(program, values):
    def body(C):
        f = C(lambda x, v: (x * len(str.__str__(v)) if isinstance(v, str) else x * (v + 0), v * 1))
        return [f(X, v) for v in values]

    program(body)


class Flags(enum.IntFlag):
    A = 1
    B = 2


class Name(enum.StrEnum):
    SHAPE = "shape"
    NONE = "none"


def test_combined_flags_in_a_graph(program):
    def body(C):
        f = C(lambda x, f: (x * f, x.sum(f & 1), x[0][f & 2], torch.full((2,), f | 1), x + (f + 1)))
        return [f(X, flags) for flags in (Flags.A, Flags.A | Flags.B, Flags(0), Flags(4) | 1)]

    program(body)


def test_names_of_attributes_from_an_enum(program):
    def body(C):
        f = C(lambda x, n: (getattr(x, n, 0), hasattr(x, n), getattr(torch, Name.NONE, 1), x * 2))
        return [f(X, name) for name in (Name.SHAPE, Name.NONE, "shape")]

    program(body)


class Hashed:
    def __init__(self, number):
        self.number = number

    def __hash__(self):
        return self.number


@pytest.mark.parametrize("number", [3, -1, 2**61 - 1, 2**61 + 5, -(2**62), 2**64 + 1])
def test_numbers_that_hash_gives(program, number):
    program(lambda C: C(lambda x, n: (x, hash(Hashed(n)), hash(Hashed(n)) % 8))(X, number))


class Watched:
    """A descriptor that keeps its value in the instance's dict, under its own name."""

    def __init__(self):
        self.log = []

    def __get__(self, instance, owner):
        self.log.append("get")
        return instance.__dict__["v"]

    def __set__(self, instance, value):
        self.log.append("set")
        instance.__dict__["v"] = value

    def __delete__(self, instance):
        self.log.append("delete")
        del instance.__dict__["v"]


@pytest.mark.parametrize("born", [False, True])
def test_entries_under_the_name_of_a_descriptor(program, born):
    def body(C):
        watched = Watched()

        class Holder:
            v = watched

            @property
            def p(self):
                return vars(self).get("p", 0)

            @p.setter
            def p(self, value):
                watched.log.append("p")
                vars(self)["p"] = value

        def f(x, holder):
            holder = Holder() if born else holder
            holder.v = x * 2
            y = holder.v + 1
            del holder.v
            holder.v = y
            holder.p = holder.p + 1
            return holder.v * 2, holder.p, holder

        run, holder, found = C(f), Holder(), []
        for _ in range(3):
            y, p, made = run(X, holder)
            found.append((y, p, dict(vars(made)), list(watched.log)))
        return found

    program(body)


class Equal(enum.IntEnum):
    """Its slots for ``!=`` and for truth stay those of int."""

    A = 1
    B = 2

    def __eq__(self, other):
        return True

    def __len__(self):
        return 0

    __hash__ = int.__hash__


class Unequal(enum.Enum):
    A = 1
    B = 2

    def __eq__(self, other):
        return NotImplemented if isinstance(other, int) else self.name == "A"

    __hash__ = object.__hash__


class Store(enum.Enum):
    A = 1

    def __getitem__(self, key):
        if key > 2:
            raise IndexError
        return key * 10

    def __setitem__(self, key, value):
        log.append((key, value))

    def __delitem__(self, key):
        log.append(key)

    def __next__(self):
        return 7


class Meta(type):
    def __setitem__(cls, key, value):
        log.append((cls.__name__, key, value))

    def __delitem__(cls, key):
        log.append((cls.__name__, key))

    def __neg__(cls):
        return 3

    def __next__(cls):
        return 4

    def __len__(cls):
        return 0

    def __eq__(cls, other):
        return "equal"

    __hash__ = type.__hash__


class Kind(metaclass=Meta):
    pass


class Plain:
    pass


class Chain(type):
    def __eq__(cls, other):
        return super().__eq__(other) is True or getattr(other, "__name__", "") == "Last"

    def __hash__(cls):
        return super().__hash__()


class First(metaclass=Chain):
    pass


class Last(metaclass=Chain):
    pass


log = []


def of_members(x):
    compared = [Equal.A == Equal.B, Equal.A != Equal.B, Equal.A != 1, bool(Equal.A)]
    compared += [Unequal.A != Unequal.B, Unequal.B != Unequal.A, Unequal.A != 1]
    member = Store.A
    member[1] = 2
    del member[3]
    return x * 2, compared, next(member), list(member), 20 in member


def of_classes(x):
    Kind[1] = 2
    del Kind[3]
    return x * 2, -Kind, next(Kind), len(Kind), bool(Kind), Plain == Kind, Plain != Kind


def of_base_metaclass(x):
    compared = [First == Last, Last == First, First == Plain, First != Last, First == First]
    compared += [type.__eq__(Plain, Plain), type.__eq__(Plain, First), {First: 1}[First]]
    return x * 2, compared, object.__ne__(Plain, First), hash(First) == hash(First)


def test_special_methods_of_enum_members_and_of_metaclasses(check):
    for body in (of_members, of_classes, of_base_metaclass):
        check(lambda x: (log.clear(), body(x), list(log)), X, fullgraph=True)


@pytest.mark.parametrize(
    "use", [lambda c: -c, lambda c: c.__class__.__setitem__, lambda c: iter(c), lambda c: next(c)]
)
def test_slots_that_a_class_has_not(check, use):
    def attempt(x):
        try:
            use(Plain)
        except (TypeError, AttributeError) as e:
            return x * 2, str(e)

    check(attempt, X, fullgraph=True)


class Kept(collections.OrderedDict):
    pass


class Listed(collections.defaultdict):
    pass


class Doubled(dict):
    def __getitem__(self, key):
        return 2 * dict.__getitem__(self, key)


@pytest.mark.parametrize(
    "make",
    [
        lambda: collections.OrderedDict(b=1, a=2),
        lambda: collections.defaultdict(int, b=1),
        lambda: Kept(b=1, a=2),
        lambda: Listed(list, b=1),
        lambda: Listed(None, b=1),
    ],
)
@pytest.mark.parametrize("born", [False, True])
def test_dicts_that_are_joined_keep_their_class(make, born):
    def program(x, given):
        d = make() if born else given
        joined = d | {"z": 3}, {"b": 5, "z": 3} | d, d | collections.OrderedDict(c=4), d.copy()
        return x + 1, [(type(j), list(j.items()), getattr(j, "default_factory", 0)) for j in joined]

    for x in (torch.ones(2), torch.ones(3)):
        found = torchsmith_tracer.compile(program, backend="eager")(x, make())
        assert found[1] == program(x, make())[1]


class Turn(complex):
    pass


def test_members_of_the_class_in_c_are_there():
    def program(x):
        table, turn = Listed(int), Turn(1, 2)
        found = getattr(table, "default_factory", 0), hasattr(turn, "real"), turn.imag
        table.default_factory = list
        return x + 1, [*found, table.default_factory, table["a"]]

    found = torchsmith_tracer.compile(program, backend="eager", fullgraph=True)(X)
    assert found[1] == program(X)[1] == [int, True, 2.0, list, []]


def test_texts_ask_a_dict_for_its_items():
    def program(x, d):
        return x + 1, "{a}".format_map(d), "%(a)s and %(a)05d" % d, "{a}".format(**d)

    for x in (torch.ones(2), torch.ones(3)):
        found = torchsmith_tracer.compile(program, backend="eager")(x, Doubled(a=4))
        assert found[1:] == program(x, Doubled(a=4))[1:] == ("8", "8 and 00008", "4")


@pytest.mark.parametrize("born", [False, True])
@pytest.mark.parametrize("factory", [list, None])
def test_a_factory_given_later_makes_the_items(born, factory):
    def program(x, given):
        table = Listed(int, k=1) if born else given
        first, table.default_factory = table["a"], factory
        try:
            return x + 1, [first, table["b"], dict(table), table.copy().default_factory]
        except KeyError as e:
            return x - 1, [first, e.args, dict(table)]

    for x in (torch.ones(2), torch.ones(3)):
        mine, theirs = Listed(int, k=1), Listed(int, k=1)
        found = torchsmith_tracer.compile(program, backend="eager")(x, mine)
        assert found[1] == program(x, theirs)[1]
        assert (mine, mine.default_factory) == (theirs, theirs.default_factory)
