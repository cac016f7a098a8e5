"""Builtin types and protocols at their edges: compiled code does what CPython does."""

from __future__ import annotations

import abc
import collections.abc
import functools
import operator
import random

import pytest
import torchsmith_tracer as tracer

CASES = []


def case(fn):
    """``fn`` without arguments gives the same compiled and not."""
    CASES.append(fn)
    return fn


# --- random numbers --------------------------------------------------------------------------


class EvenBits(random.Random):
    def getrandbits(self, k):
        return super().getrandbits(k) & ~1


def draws(rng):
    out = [rng.randrange(10), rng.randint(3, 9), rng.uniform(1, 2), rng.randrange(5, 50, 3)]
    for fn, args in ((rng.randrange, (0,)), (rng.randint, (3, 1)), (rng.randrange, (1, 9, 0))):
        try:
            fn(*args)
        except ValueError as e:
            out.append(str(e))
    items = list(range(6))
    rng.shuffle(items)
    return [*out, items, rng.sample(range(30), 4), rng.choice("abc"), rng.random()]


@case
def random_methods():
    return draws(random.Random(5))


@case
def random_methods_over_the_bits_of_a_subclass():
    return draws(EvenBits(5))


@case
def random_methods_replaced_on_the_object():
    rng, other = random.Random(5), random.Random(5)
    rng.getrandbits = lambda k: int(other.random() * 2**k)
    first = draws(rng)
    rng.randrange = lambda *args: 7
    return first, rng.randint(1, 99), rng.randrange(4)


# --- texts with addresses ----------------------------------------------------------------------


class Plain:
    def method(self):
        return 1


def _same_form(*pairs):
    """Each text is its object's own, wherever that lies now."""
    return [text == form % tuple(hex(id(o)) for o in objects) for text, form, *objects in pairs]


def addressed_texts(one):
    class Local:
        pass

    def inner():
        yield

    made, gen = Local(), inner()
    items = [made, one]
    items.append(items)
    get = classmethod(inner)
    text = "%s|%r|%%" % (made, [one])
    caught = ""
    try:
        raise ValueError(f"no {made!r} here")
    except ValueError as e:
        caught = str(e)
    table = {repr(made): 1, repr(one): 2}
    return [
        repr(Local) == str(type(made)),
        repr(made) == f"{made}" == str(made) != repr(one),
        repr(made) != "nothing" and repr(made) in table,
        len(table),
        repr(made).__class__ is str and isinstance(repr(made), str),
    ], [
        (repr(made), f"<{__name__}.addressed_texts.<locals>.Local object at %s>", made),
        (repr(one), f"<{__name__}.Plain object at %s>", one),
        (repr(inner), "<function addressed_texts.<locals>.inner at %s>", inner),
        (repr(gen), "<generator object addressed_texts.<locals>.inner at %s>", gen),
        (repr(one.method), f"<bound method Plain.method of <{__name__}.Plain object at %s>>", one),
        (
            str(items),
            f"[<{__name__}.addressed_texts.<locals>.Local object at %s>, "
            f"<{__name__}.Plain object at %s>, [...]]",
            made,
            one,
        ),
        (repr({1: one}), f"{{1: <{__name__}.Plain object at %s>}}", one),
        (repr({one}), f"{{<{__name__}.Plain object at %s>}}", one),
        (repr(frozenset([one])), f"frozenset({{<{__name__}.Plain object at %s>}})", one),
        (repr(get), "<classmethod(<function addressed_texts.<locals>.inner at %s>)>", inner),
        (
            text,
            f"<{__name__}.addressed_texts.<locals>.Local object at %s>|"
            f"[<{__name__}.Plain object at %s>]|%%",
            made,
            one,
        ),
        ("+".join(["a", repr(one)]), f"a+<{__name__}.Plain object at %s>", one),
        (caught, f"no <{__name__}.addressed_texts.<locals>.Local object at %s> here", made),
    ]


@pytest.mark.parametrize("how", ["eager", "compiled", "compiled again"])
def test_texts_with_addresses(how):
    fn = addressed_texts
    if how != "eager":
        fn = tracer.compile(fn, backend="eager", fullgraph=True)
    if how == "compiled again":
        fn(Plain())
    facts, texts = fn(Plain())
    assert facts == [True, True, True, 2, True]
    assert all(_same_form(*texts)), texts


@case
def errors_of_percent():
    out = []
    for operand in ((Plain(), 1), (), {"a": Plain()}):
        try:
            out.append(bool("%s" % operand))
        except TypeError as e:
            out.append(str(e))
    return out, "%(a)s %(b)r" % {"a": 1, "b": "x"}


# --- metaclasses and abstract classes ----------------------------------------------------------


class Meta(type):
    def __new__(cls, name, bases, namespace, extra=0):
        made = super().__new__(cls, name, bases, namespace)
        made.extra = extra
        return made

    def __init__(cls, name, bases, namespace, extra=0):
        super().__init__(name, bases, namespace)
        cls.names = sorted(k for k in namespace if k[0] != "_")

    def __call__(cls, *args):
        obj = super().__call__(*args)
        obj.made = True
        return obj

    def __len__(cls):
        return 7


class Base(metaclass=Meta):
    x = 1


@case
def classes_with_an_existing_metaclass():
    class A(Base, extra=3):
        y = 2

        def __init__(self, v=0):
            self.v = v

    class B(metaclass=Meta):
        pass

    a = A(5)
    facts = [A.extra, B.extra, A.names, len(A), a.made, a.v, type(A) is Meta, isinstance(A, Meta)]
    return facts, A.__mro__[1] is Base, repr(A), A.__module__


@case
def arguments_of_a_metaclass():
    class M(type):
        def __init__(cls, *args, **kwargs):
            super().__init__(*args, **kwargs)

    class A(metaclass=M):
        pass

    out = []
    for args, kwargs in (
        (("A", (), {}), {}),
        (("A", (), {}), {"a": 1}),
        (("A",), {}),
        (("A",), {"a": 1}),
    ):
        try:
            out.append(M.__init__(A, *args, **kwargs))
        except TypeError as e:
            out.append(str(e))
    return out


@case
def classes_with_a_new_metaclass():
    class M(type):
        def __new__(cls, name, bases, namespace, **kwargs):
            return super().__new__(cls, name, bases, {**namespace, "tag": name.lower()})

        @classmethod
        def __prepare__(cls, name, bases, **kwargs):
            return {"prepared": name}

        def __iter__(cls):
            return iter((cls.tag, cls.prepared))

        @property
        def twice(cls):
            return cls.tag * 2

    class X(metaclass=M, a=1):
        pass

    class Y(X):
        pass

    Z = M("Z", (X,), {"q": 1})
    modules = Z.__module__, type("P", (), {}).__module__
    return list(X), list(Y), X.twice, Y.twice, Z.q, list(Z), modules


@case
def abstract_classes():
    class M(abc.ABCMeta):
        def __new__(cls, name, bases, namespace):
            made = super().__new__(cls, name, bases, namespace)
            made.seen = True
            return made

    class I(metaclass=M):  # noqa: E742
        @abc.abstractmethod
        def go(self): ...

    class J(I):
        def go(self):
            return 1

    class K:
        pass

    I.register(K)
    try:
        I()
        made = True
    except TypeError:
        made = False
    facts = made, J().go(), I.seen
    return facts, issubclass(K, I), isinstance(K(), I), isinstance(J(), I), isinstance(3, I)


@case
def classes_registered_with_existing_ones():
    class S:
        pass

    before = isinstance(S(), collections.abc.Sequence)
    collections.abc.Sequence.register(S)
    try:
        collections.abc.Sequence.register(S())
    except TypeError as e:
        text = str(e)
    match S():
        case [*_]:
            return before, text, "sequence"
    return before, text, "other"


@case
def generic_functions():
    @functools.singledispatch
    def show(x):
        return "base"

    @show.register(str)
    def _(x):
        return "text"

    @show.register
    def _(x: int | float):
        return "number"

    class Host:
        @functools.singledispatchmethod
        @classmethod
        def of(cls, x):
            return cls.__name__

        @of.register(int)
        @classmethod
        def _(cls, x):
            return cls.__name__, x

    return show(1), show(1.5), show(""), show([]), Host.of(2), Host().of("")


def test_classes_leave_with_their_metaclass():
    def make():
        class A(Base, extra=3):
            z = 1

        class Abstract(abc.ABC):
            @abc.abstractmethod
            def go(self): ...

            @property
            @abc.abstractmethod
            def p(self): ...

        class Half(Abstract):
            p = 3

        class Whole(Half):
            def go(self):
                return self.p

        return A, A(), Abstract, Half, Whole

    cls, obj, abstract, half, whole = tracer.compile(make, backend="eager", fullgraph=True)()
    assert type(cls) is Meta and cls.names == ["z"] and cls.extra == 3 and obj.made
    assert isinstance(obj, Base) and cls.__module__ == __name__
    assert sorted(abstract.__abstractmethods__) == ["go", "p"]
    assert sorted(half.__abstractmethods__) == ["go"]
    assert whole().go() == 3
    with pytest.raises(TypeError):
        half()


# --- hashing, comparing and changing containers ------------------------------------------------


class Counted:
    """Counts what containers ask of it."""

    def __init__(self, value):
        self.value, self.hashes, self.equals = value, 0, 0

    def __hash__(self):
        self.hashes += 1
        return hash(self.value)

    def __eq__(self, other):
        self.equals += 1
        return self.value == other.value


@case
def hashes_are_taken_over():
    keys = [Counted(i) for i in range(4)]
    table = dict.fromkeys(keys)
    counts = []
    for use in (set, frozenset, dict.fromkeys, lambda t: set().union(t)):
        use(table)
        use(frozenset(table))
        counts.append(sum(k.hashes for k in keys))
    set(table.keys())
    set(iter(table))
    return counts, sum(k.hashes for k in keys), sum(k.equals for k in keys)


@case
def keys_are_compared_once():
    first, second = Counted(1), Counted(1)
    table = {}
    counts = []
    table[first] = 1
    for use in (
        lambda: table.setdefault(second, 2),
        lambda: table.__setitem__(second, 3),
        lambda: table.get(second),
        lambda: {first}.add(second),
    ):
        use()
        counts.append((first.hashes, first.equals, second.hashes, second.equals))
    return counts, list(table.values())


@case
def dicts_changed_while_iterated():
    out = []
    for view in (iter, dict.keys, dict.values, dict.items):
        for start, change in (
            ({0: 0}, lambda d: (d.pop(0), d.__setitem__(0, 0))),
            ({0: 0, 1: 1}, lambda d: (d.popitem(), d.popitem(), d.__setitem__(1, 1))),
            ({0: 0, 1: 1}, lambda d: (d.pop(1), d.update({1: 5}))),
            ({0: 0}, lambda d: d.update({0: 5})),
            ({0: 0}, lambda d: d.update({1: 5})),
        ):
            d, got = dict(start), []
            try:
                for item in view(d):
                    got.append(item)
                    if len(got) == 1:
                        change(d)
            except RuntimeError as e:
                got.append(str(e))
            out.append(got)
    return out


@case
def arguments_that_are_refused():
    class L(list):
        pass

    class F(frozenset):
        pass

    class T(tuple):
        __slots__ = ()

    class N(frozenset):
        def __init__(self, arg, more=None):
            self.more = more

    out = [N([1], more=2).more]
    for fn, args, kwargs in (
        (L, (), {"sequence": ()}),
        (F, (), {"sequence": ()}),
        (T, (), {"sequence": ()}),
        (F, ([], 2), {}),
        (set, ([], 2), {}),
        (set().__init__, (), {"a": 1}),
        ([].append, (), {}),
        ({}.get, (), {}),
        (operator.countOf, (1, 1), {}),
        (operator.indexOf, (len, 1), {}),
        (operator.call, (), {}),
    ):
        try:
            fn(*args, **kwargs)
            out.append(None)
        except TypeError as e:
            out.append(type(e).__name__)
    return out


@case
def searches_stop_where_they_find():
    it = iter([1, 2, 3, 4])
    at = operator.indexOf(it, 2)
    return at, list(it), operator.countOf(iter("abca"), "a"), operator.call(max, 1, 2, key=abs)


class Matched:
    __match_args__ = ("a", 1)
    a = 0


@case
def match_args_that_are_no_names():
    out = []
    match Matched():
        case Matched(x):
            out.append(x)
    try:
        match Matched():
            case Matched(x, y):
                out.append(y)
    except TypeError as e:
        out.append(str(e))
    return out


def tagged():
    pass


tagged.a = tagged.b = 1


@case
def attributes_of_functions_that_are_set_again():
    del tagged.a
    tagged.a = 2
    found = list(vars(tagged))
    del tagged.b
    tagged.b = 3
    return found, list(vars(tagged))


class Hashed(frozenset):
    def __hash__(self):
        return 7


@case
def elements_with_a_hash_of_their_own():
    found = {Hashed([1]), Hashed([2]), 3}
    found.discard(Hashed([1]))
    found.discard(frozenset([2]))
    found.remove(Hashed([2]))
    return found, {1} in {frozenset([1])}, Hashed([1]) in {frozenset([1])}


@case
def arguments_of_initialisers_that_are_refused():
    out = []
    for init, args in (
        (collections.deque().__init__, ((), -1)),
        (collections.defaultdict().__init__, (5,)),
    ):
        try:
            init(*args)
        except (TypeError, ValueError) as e:
            out.append((type(e).__name__, str(e)))
    return out


@case
def dicts_of_objects_that_are_deleted():
    obj, part = Plain(), functools.partial(max, 1)
    obj.x = part.x = 1
    del obj.__dict__
    obj.y = 2
    try:
        del part.__dict__
    except TypeError as e:
        return obj.__dict__, part.__dict__, str(e)
    return obj.__dict__, part.__dict__


@case
def keywords_of_immutable_subclasses():
    class F(frozenset):
        pass

    class T(tuple):
        __slots__ = ()

    class N(frozenset):
        def __init__(self, arg, more=None):
            self.more = more

    out = [N([1], more=2).more, T([1]), sorted(F([2, 1])), sorted(N([3]))]
    for fn, args, kwargs in (
        (F, (), {"a": 1}),
        (T, (), {"a": 1}),
        (F, ([], 2), {}),
        (T, ([], 2), {}),
    ):
        try:
            fn(*args, **kwargs)
        except TypeError as e:
            out.append(str(e) if kwargs else type(e))
    return out


@case
def unions_that_functions_are_chosen_by():
    @functools.singledispatch
    def show(x):
        return "base"

    @show.register
    def _(x: int | float):
        return "number"

    union = int | str
    facts = (
        hasattr(union, "__origin__"),
        union == (int | str),
        union == list[int],
        union in (int, str),
    )
    return show(1), show(1.5), show([]), facts


@case
def abstract_methods():
    class Abstract(abc.ABC):
        @abc.abstractmethod
        def go(self): ...

        @property
        @abc.abstractmethod
        def p(self): ...

        @classmethod
        @abc.abstractmethod
        def made(cls): ...

    class Half(Abstract):
        p = 3

        def go(self):
            return self.p

    class Whole(Half):
        made = classmethod(Half)

    out = [Whole().go()]
    for cls in (Abstract, Half):
        try:
            cls()
        except TypeError as e:
            out.append(str(e))
    return out


def test_abstract_classes_leave_as_such():
    def make():
        class Abstract(abc.ABC):
            @abc.abstractmethod
            def go(self): ...

            @property
            @abc.abstractmethod
            def p(self): ...

        class Half(Abstract):
            p = 3

        class Whole(Half):
            def go(self):
                return self.p

        return Abstract, Half, Whole

    abstract, half, whole = tracer.compile(make, backend="eager", fullgraph=True)()
    assert sorted(abstract.__abstractmethods__) == ["go", "p"]
    assert sorted(half.__abstractmethods__) == ["go"]
    assert whole().go() == 3
    with pytest.raises(TypeError):
        half()


@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_compiled_code_gives_what_python_gives(fn):
    expected = fn()
    assert tracer.compile(fn, backend="eager", fullgraph=True)() == expected
