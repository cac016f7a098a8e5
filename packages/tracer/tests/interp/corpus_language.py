"""Language features: each function is run by CPython and by the interpreter."""

from __future__ import annotations

import dataclasses
import enum
from collections import OrderedDict, defaultdict, deque, namedtuple
from typing import NamedTuple

CASES: list[tuple] = []


def case(*args):
    def register(fn):
        CASES.append((fn, args))
        return fn

    return register


GLOBAL = 10
Pair = namedtuple("Pair", "left right")


class Typed(NamedTuple):
    x: int
    y: int = 5

    def total(self):
        return self.x + self.y


class Color(enum.Enum):
    RED = 1
    GREEN = 2

    @property
    def lower(self):
        return self.name.lower()


class Flag(enum.IntEnum):
    A = 1
    B = 2


class Kind(str, enum.Enum):
    ONE = "one"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 2
    tags: list = dataclasses.field(default_factory=list)

    def shifted(self, by):
        return Point(self.x + by, self.y + by)

    def __post_init__(self):
        self.tags.append("made")


@dataclasses.dataclass(frozen=True, order=True)
class Frozen:
    a: int
    b: str = "b"


class Base:
    shared = [1]
    count = 0

    def __init__(self, value):
        self.value = value

    def get(self):
        return self.value

    @classmethod
    def make(cls, value):
        return cls(value)

    @staticmethod
    def twice(x):
        return 2 * x

    @property
    def double(self):
        return self.value * 2

    @double.setter
    def double(self, new):
        self.value = new // 2

    def __eq__(self, other):
        return isinstance(other, Base) and self.value == other.value

    def __hash__(self):
        return hash(self.value)


class Child(Base):
    def __init__(self, value, extra):
        super().__init__(value)
        self.extra = extra

    def get(self):
        return super().get() + self.extra

    @classmethod
    def make(cls, value):
        return super().make(value) if cls is Base else cls(value, 1)


class Vec:
    __slots__ = ("x", "y")

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __add__(self, other):
        if not isinstance(other, Vec):
            return NotImplemented
        return Vec(self.x + other.x, self.y + other.y)

    def __radd__(self, other):
        return Vec(self.x + other, self.y + other)

    def __mul__(self, k):
        return Vec(self.x * k, self.y * k)

    __rmul__ = __mul__

    def __neg__(self):
        return Vec(-self.x, -self.y)

    def __eq__(self, other):
        return (self.x, self.y) == (other.x, other.y)

    def __lt__(self, other):
        return self.x < other.x

    def __getitem__(self, i):
        return (self.x, self.y)[i]

    def __len__(self):
        return 2

    def __bool__(self):
        return bool(self.x or self.y)

    def __contains__(self, item):
        return item in (self.x, self.y)

    def __call__(self, *args, **kwargs):
        return (self.x, args, kwargs)

    def __repr__(self):
        return f"Vec({self.x}, {self.y})"

    def __iadd__(self, other):
        self.x += other.x
        return self


class Dyn:
    def __init__(self):
        self.log = []

    def __getattr__(self, name):
        if name.startswith("dyn_"):
            return name[4:]
        raise AttributeError(name)

    def __setattr__(self, name, value):
        if name == "magic":
            self.__dict__["stored"] = value
        else:
            object.__setattr__(self, name, value)

    def __delattr__(self, name):
        self.log.append(name)
        object.__delattr__(self, name)


class Ordered(OrderedDict):
    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(f"a_{key}", value)

    def first(self):
        return next(iter(self.values()))


class MyDict(dict):
    def __missing__(self, key):
        return f"no {key}"


class MyList(list):
    def total(self):
        return sum(self)


class MyTuple(tuple):
    def __new__(cls, *items):
        return super().__new__(cls, items)


class MyInt(int):
    def plus(self, n):
        return self + n


class Manager:
    def __init__(self, log, swallow=False):
        self.log = log
        self.swallow = swallow

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, value, tb):
        self.log.append("exit" if kind is None else kind.__name__)
        return self.swallow


class Countdown:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return self

    def __next__(self):
        if self.n <= 0:
            raise StopIteration
        self.n -= 1
        return self.n


class Descriptor:
    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, obj, owner=None):
        if obj is None:
            return self
        return getattr(obj, self.name, "unset")

    def __set__(self, obj, value):
        setattr(obj, self.name, value)


class WithDescriptor:
    field = Descriptor()


class MyError(ValueError):
    def __init__(self, code, text="t"):
        super().__init__(text)
        self.code = code


# --- expressions -------------------------------------------------------------------------------


@case(3, 4)
def arithmetic(a, b):
    return (
        a + b,
        a - b,
        a * b,
        a / b,
        a // b,
        a % b,
        a**b,
        -a,
        +a,
        ~a,
        a << b,
        a >> 1,
        a & b,
        a | b,
        a ^ b,
    )


@case(3, 0)
def zero_division(a, b):
    return a / b


@case(1, 2.5)
def comparisons(a, b):
    return a < b, a <= b, a == b, a != b, a > b, a >= b, a < b < 3, a is b, a is not None


@case([1, 2], 2)
def membership(a, b):
    return b in a, b not in a, 5 in a


@case("abc", 3)
def text_ops(s, n):
    return (
        s * n,
        s + "x",
        s[0],
        s[-1],
        s[::-1],
        s[1:],
        len(s),
        s.upper(),
        "b" in s,
        s.find("c"),
        s % (),
    )


@case("x", 1.23456)
def formatting(s, f):
    return (
        f"{s}",
        f"{f:.2f}",
        f"{s!r:>5}",
        f"{f=}",
        "%s-%d" % (s, 3),
        "{} {a}".format(s, a=f),
        f"{[s, 1]}",
        f"{(s,)}",
    )


@case(True, 0)
def logic(a, b):
    return a and b, a or b, not a, a if b else "c"


@case(5)
def walrus(n):
    if (m := n * 2) > 5:
        return m
    return None


@case([1, 2, 3, 4, 5])
def slicing(x):
    y = list(x)
    y[1:3] = [9, 9, 9]
    del y[0]
    z = x[::2]
    x[0] = 7
    return y, z, x, x[-2:], x[slice(1, 3)]


@case((1, 2, 3, 4))
def unpacking(t):
    a, *b, c = t
    (d, e), f = (1, 2), 3
    *g, h = "xyz"
    return a, b, c, d, e, f, g, h, [*t, *b], {**{"a": 1}, "b": 2}, (*t, 5)


@case([1, 2])
def unpack_short(x):
    a, b, c = x
    return a


@case([1, 2, 3])
def unpack_long(x):
    a, b = x
    return a


@case(5)
def unpack_not_iterable(x):
    a, b = x
    return a


@case(4)
def comprehensions(n):
    x = 3
    return (
        [i * x for i in range(n)],
        {i: [j for j in range(i)] for i in range(n) if i % 2},
        {i % 3 for i in range(n)},
        list(i + x for i in range(n)),
        [lambda: i for i in range(2)][0](),
        [(i, j) for i in range(2) for j in "ab"],
    )


@case(4)
def comprehension_cells(n):
    fns = [lambda k=i: k + i for i in range(n)]
    i = "outer"
    return [f() for f in fns], i, [[y for y in [x]] for x in range(2)]


# --- control flow ------------------------------------------------------------------------------


@case(7)
def loops(n):
    out = []
    for i in range(n):
        if i == 1:
            continue
        if i == 5:
            break
        out.append(i)
    else:
        out.append("else")
    while n > 4:
        n -= 1
    else:
        out.append(n)
    return out


@case()
def for_else():
    for _ in []:
        pass
    else:
        return "else"


@case(3)
def nested_loops(n):
    total = 0
    for i in range(n):
        for j, c in enumerate("ab"):
            total += i * j + ord(c)
    return total


@case([3, 1, 2])
def mutate_while_iterating(x):
    for v in x:
        if len(x) < 6:
            x.append(v)
    return x


@case({"a": 1})
def dict_changed(d):
    for k in d:
        d[k + "x"] = 1
    return d


@case(0)
def tries(n):
    log = []
    try:
        try:
            log.append("in")
            1 / n
        except ZeroDivisionError as e:
            log.append(str(e))
            raise ValueError("again") from e
        else:
            log.append("else")
        finally:
            log.append("finally")
    except (KeyError, ValueError) as e:
        log.append(type(e).__name__)
        log.append(type(e.__cause__).__name__)
        log.append(type(e.__context__).__name__)
    return log


@case()
def bare_raise():
    try:
        try:
            {}["k"]
        except KeyError:
            raise
    except KeyError as e:
        return e.args, str(e), repr(e)


@case()
def no_active():
    raise  # noqa: PLE0704


@case()
def exception_context():
    try:
        try:
            raise KeyError("a")
        except KeyError:
            raise TypeError("b")
    except TypeError as e:
        return repr(e.__context__), e.__suppress_context__


@case()
def raise_from_none():
    try:
        try:
            raise KeyError("a")
        except KeyError:
            raise TypeError("b") from None
    except TypeError as e:
        return repr(e.__context__), e.__suppress_context__, e.__cause__


@case()
def raise_wrong():
    raise 5


@case()
def except_name_unbound():
    try:
        raise ValueError(1)
    except ValueError as e:
        pass
    try:
        return e  # noqa: F821
    except UnboundLocalError as err:
        return "unbound", str(err)


def _raises(n):
    if n:
        raise MyError(n, text="custom")
    return "fine"


@case()
def custom_error():
    out = [_raises(0)]
    try:
        _raises(3)
    except ValueError as e:
        out += [e.code, str(e), e.args, isinstance(e, MyError)]
    return out


@case()
def custom_error_escapes():
    return _raises(4)


@case()
def finally_return():
    def inner():
        try:
            return 1
        finally:
            out.append("f")

    out = []
    return inner(), out


@case()
def finally_overrides():
    for i in range(3):
        try:
            raise ValueError
        finally:
            break
    return i


@case()
def assert_fails():
    assert 1 == 2, f"bad {3}"


@case()
def withs():
    log = []
    with Manager(log) as a, Manager(log, swallow=True):
        log.append("body")
        raise KeyError("x")
    log.append(a.swallow)
    return log


@case()
def with_raises():
    log = []
    try:
        with Manager(log):
            raise IndexError("i")
    except IndexError as e:
        log.append(str(e))
    return log


@case()
def with_return():
    log = []

    def inner():
        with Manager(log):
            return "r"

    return inner(), log


@case()
def with_not_manager():
    with 5:
        pass


@case(3)
def delete_local(n):
    del n
    return n  # noqa: F821


@case()
def undefined_name():
    return not_defined_anywhere  # noqa: F821


# --- functions ---------------------------------------------------------------------------------


def _sig(a, b=2, /, c=3, *args, d, e=5, **kw):
    return a, b, c, args, d, e, kw


@case()
def call_kinds():
    kw = {"d": 1, "z": 9}
    return _sig(1, d=4), _sig(1, 2, 3, 4, 5, d=6, f=7), _sig(*[1, 2], **kw), _sig(1, c=8, d=0, b=3)


@case()
def missing_args():
    return _sig()


@case()
def missing_kwonly():
    return _sig(1)


def _two(a, b):
    return a, b


@case()
def too_many():
    return _two(1, 2, 3)


@case()
def missing_two():
    return _two()


@case()
def multiple_values():
    return _two(1, a=2)


@case()
def unexpected_keyword():
    return _two(1, 2, zzz=3)


@case()
def duplicate_star():
    return _two(**{"a": 1}, **{"a": 2})


def _kw(a, *, k):
    return a, k


@case()
def too_many_kwonly():
    return _kw(1, 2, k=3)


def _pos(a, /):
    return a


@case()
def posonly_keyword():
    return _pos(a=1)


@case()
def star_not_iterable():
    return _two(*5)


@case()
def star_not_mapping():
    return _two(**5)


@case(2)
def closures(n):
    def outer(x):
        def inner(y):
            nonlocal x
            x += y
            return x + n

        return inner

    f = outer(10)
    return f(1), f(2)


@case()
def empty_cell():
    def inner():
        return later

    inner()
    later = 1
    return later


@case(3)
def recursion(n):
    def fact(k):
        return 1 if k < 2 else k * fact(k - 1)

    return fact(n + 3)


@case()
def lambdas():
    add = lambda a, b=2, *c, d=4: (a, b, c, d)  # noqa: E731
    return add(1), add(1, 2, 3, d=5), (lambda: 5)()


@case()
def mutable_default():
    def f(x, acc=[]):
        acc.append(x)
        return acc

    f(1)
    return f(2)


@case()
def decorators():
    def deco(fn):
        def wrap(*args, **kwargs):
            return "w", fn(*args, **kwargs)

        return wrap

    @deco
    def target(a):
        return a

    return target(3)


@case()
def function_attributes():
    def f(a: int, b=3) -> str:
        "doc"

    f.tag = 1
    f.tag += 1
    return (
        f.tag,
        f.__name__,
        f.__qualname__,
        f.__doc__,
        f.__defaults__,
        hasattr(f, "nope"),
        f.__module__,
    )


@case()
def globals_read():
    return GLOBAL + 1, Base.count


@case()
def local_import():
    import math
    from os.path import join

    return math.floor(2.5), join("a", "b")


# --- generators --------------------------------------------------------------------------------


def _gen(n):
    got = None
    for i in range(n):
        got = yield i if got is None else got
    return "end"


@case(3)
def generators(n):
    g = _gen(n)
    out = [next(g), g.send("s"), next(g)]
    try:
        next(g)
    except StopIteration as e:
        out.append(e.value)
    return out, list(_gen(2)), next(g, "default")


def _delegating():
    result = yield from _gen(2)
    yield result
    yield from [7, 8]


@case()
def yield_from():
    return list(_delegating())


@case()
def generator_throw():
    def g():
        try:
            yield 1
        except ValueError as e:
            yield str(e)
        finally:
            log.append("fin")

    log = []
    it = g()
    out = [next(it), it.throw(ValueError("v"))]
    it.close()
    return out, log


@case()
def generator_close_handler():
    def g():
        try:
            yield 1
        except GeneratorExit:
            log.append("exit")
            raise

    log = []
    it = g()
    next(it)
    it.close()
    return log, list(it)


@case()
def generator_raises_stop():
    def g():
        yield 1
        raise StopIteration

    return list(g())


@case()
def throw_through_yield_from():
    def inner():
        try:
            yield 1
        except KeyError:
            yield "caught"
        return "r"

    def outer():
        value = yield from inner()
        yield value

    it = outer()
    return next(it), it.throw(KeyError), next(it)


@case()
def send_to_fresh():
    return _gen(2).send(1)


@case(5)
def generator_pipeline(n):
    evens = (i for i in range(n) if i % 2 == 0)
    squares = (i * i for i in evens)
    return sum(squares), any(i > 3 for i in range(n)), all(i for i in range(n))


@case()
def generator_in_except():
    def g():
        try:
            1 / 0
        except ZeroDivisionError:
            yield "a"
            yield "b"

    out = []
    for v in g():
        try:
            raise KeyError(v)
        except KeyError as e:
            out.append(e.args[0])
    return out


# --- match -------------------------------------------------------------------------------------


def _match(x):
    match x:
        case 0:
            return "zero"
        case int(n) if n > 5:
            return ("big", n)
        case [a, b]:
            return ("pair", a, b)
        case [a, *rest]:
            return ("seq", a, rest)
        case {"k": v, **rest}:
            return ("map", v, rest)
        case Point(x=0, y=y):
            return ("point", y)
        case Point(a, b):
            return ("p", a, b)
        case "s" | "t":
            return "text"
        case Color.RED:
            return "red"
        case None:
            return "none"
        case str() as s:
            return s
    return "other"


@case()
def matching():
    subjects = [
        0,
        9,
        3,
        [1, 2],
        [1, 2, 3],
        (),
        {"k": 1, "z": 2},
        {},
        Point(0, 4),
        Point(1, 2),
        "s",
        "u",
        Color.RED,
        None,
        2.5,
    ]
    return [_match(s) for s in subjects]


# --- classes -----------------------------------------------------------------------------------


@case()
def instances():
    c = Child(1, 2)
    c.double = 10
    c.new = Base.make(4).value
    return (
        c.get(),
        c.double,
        c.new,
        Child.make(3).extra,
        c.twice(4),
        vars(c),
        isinstance(c, Base),
        type(c).__name__,
    )


@case()
def equality():
    return (
        Base(1) == Base(1),
        Base(1) != Base(2),
        Base(1) == 1,
        len({Base(1), Base(1), Base(2)}),
        {Base(1): "a"}[Base(1)],
    )


@case()
def operators():
    a, b = Vec(1, 2), Vec(3, 4)
    a += b
    return (
        (a + b).x,
        (2 + a).y,
        (3 * a).x,
        (-a).x,
        a == b,
        a < b,
        a[0],
        len(a),
        bool(Vec(0, 0)),
        4 in b,
        a(1, k=2),
        repr(a),
        f"{b}",
        [*a],
    )


@case()
def operator_missing():
    return Vec(1, 2) + "x"


@case()
def slots_missing():
    v = Vec(1, 2)
    v.z = 3
    return v


@case()
def dynamic_attributes():
    d = Dyn()
    d.magic = 3
    d.plain = 4
    del d.plain
    return d.dyn_x, d.stored, d.log, hasattr(d, "nope"), getattr(d, "nope", 1)


@case()
def missing_attribute():
    return Base(1).nope


@case()
def dataclass_use():
    p = Point(1)
    q = p.shifted(2)
    return (
        p,
        q,
        p == Point(1),
        p != q,
        dataclasses.asdict(p)["x"],
        [f.name for f in dataclasses.fields(p)],
        q.y,
    )


@case()
def dataclass_frozen():
    f = Frozen(1)
    return f < Frozen(2), hash(f) == hash(Frozen(1)), dataclasses.replace(f, a=5).a


@case()
def dataclass_frozen_set():
    f = Frozen(1)
    f.a = 2


@case()
def dataclass_repr():
    return repr(Point(1, 2))


@case()
def named_tuples():
    p = Pair(1, right=2)
    t = Typed(3)
    a, b = p
    return (
        p,
        p.left + p[1],
        a,
        t.total(),
        t._replace(x=9),
        p._asdict(),
        Pair._fields,
        t == (3, 5),
        Typed(1).y,
    )


@case()
def enums():
    return (
        Color.RED.value,
        Color["GREEN"].name,
        Color(2).lower,
        Flag.A + 1,
        Flag.B > Flag.A,
        Kind.ONE == "one",
        [c.name for c in Color],
        Color.RED is Color(1),
        Color.RED in Color,
        len(Color),
        isinstance(Flag.A, int),
    )


@case()
def enum_missing():
    return Color(7)


@case()
def dict_subclass():
    d = MyDict(a=1)
    d["b"] = 2
    return d["a"], d["zz"], len(d), list(d), d.get("q"), "a" in d, {**d}, isinstance(d, dict)


@case()
def ordered_subclass():
    o = Ordered()
    o["k"] = 5
    o.update(z=6)
    return o.a_k, o.first(), list(o.items()), o["z"]


@case()
def list_subclass():
    x = MyList([1, 2])
    x.append(3)
    return x.total(), len(x), x[1], x[:2], list(x), x == [1, 2, 3]


@case()
def tuple_subclass():
    t = MyTuple(1, 2)
    return t[0], len(t), tuple(t), t == (1, 2)


@case()
def int_subclass():
    n = MyInt(4)
    return n.plus(3), n + 1, n * 2.0, isinstance(n, int), [10, 11, 12, 13, 14][n]


@case()
def iterator_class():
    return (
        list(Countdown(3)),
        sum(Countdown(4)),
        max(Countdown(3)),
        [a for a, b in zip(Countdown(3), "ab")],
    )


@case()
def descriptors():
    w = WithDescriptor()
    before = w.field
    w.field = 3
    return before, w.field, vars(w)


@case()
def local_class():
    class Local(Base):
        kind = "local"

        def __init__(self, value):
            super().__init__(value + 1)

        def get(self):
            return super().get() * 10

        @property
        def p(self):
            return self.kind

        @classmethod
        def c(cls):
            return cls.kind

        @staticmethod
        def s():
            return "s"

    x = Local(1)
    Local.kind = "changed"
    return (
        x.get(),
        x.p,
        Local.c(),
        x.s(),
        isinstance(x, Base),
        Local.__name__,
        Local.__mro__[1] is Base,
        x == Base(2),
    )


@case()
def local_exception():
    class E(Exception):
        pass

    try:
        raise E("x")
    except E as e:
        return str(e), e.args


@case()
def class_attribute_store():
    class A:
        n = 0

    class B(A):
        pass

    A.n += 1
    B.n += 5
    del B.n
    return A.n, B.n, hasattr(B, "m")


@case()
def super_variants():
    class A:
        def f(self):
            return ["A"]

    class B(A):
        def f(self):
            return ["B"] + super().f()

    class C(A):
        def f(self):
            return ["C"] + super(C, self).f()

    class D(B, C):
        def f(self):
            return ["D"] + super().f()

    return D().f(), [k.__name__ for k in D.__mro__]


@case()
def getattribute():
    class A:
        x = 1

        def __getattribute__(self, name):
            if name == "y":
                return "why"
            return super().__getattribute__(name)

        def __getattr__(self, name):
            return "fallback " + name

    return A().x, A().y, A().z


@case()
def new_override():
    class S:
        made = []

        def __new__(cls, *a):
            self = super().__new__(cls)
            cls.made.append(a)
            return self

        def __init__(self, a):
            self.a = a

    return S(3).a, S.made


@case()
def no_arguments_class():
    class A:
        pass

    return A(1)


@case()
def callable_and_hash():
    return (
        callable(len),
        callable(3),
        callable(Vec(1, 2)),
        callable(Base(1)),
        hash("a") == hash("a"),
        hash((1, 2)) == hash((1, 2)),
    )


@case()
def unhashable():
    return {[1]: 2}


@case()
def type_queries():
    return (
        type(3) is int,
        type([]) is list,
        isinstance(True, int),
        isinstance(3, (str, int)),
        isinstance(3, int | str),
        issubclass(Child, Base),
        issubclass(bool, (str, int)),
        type(Base(1)) == Base,  # noqa: E721
    )


@case()
def default_containers():
    d = defaultdict(list)
    d["a"].append(1)
    d["a"].append(2)
    q = deque([1, 2, 3], maxlen=3)
    q.append(4)
    q.appendleft(0)
    o = OrderedDict(a=1, b=2)
    o.move_to_end("a")
    return dict(d), list(q), list(o), q.maxlen, d["new"], len(d)
