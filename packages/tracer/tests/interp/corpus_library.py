"""Builtins, container methods and the standard library."""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import heapq
import inspect
import itertools
import math
import operator
import re
import string
import types
import typing
from collections import Counter, OrderedDict, defaultdict, deque

CASES: list[tuple] = []
ONE = 1


def case(*args):
    def register(fn):
        CASES.append((fn, args))
        return fn

    return register


class Thing:
    def __init__(self, n):
        self.n = n

    def __index__(self):
        return self.n

    def __int__(self):
        return self.n * 10

    def __float__(self):
        return self.n + 0.5

    def __abs__(self):
        return "abs"

    def __round__(self, k=None):
        return ("round", k)

    def __floor__(self):
        return "floor"

    def __format__(self, spec):
        return f"<{spec}>"

    def __str__(self):
        return "str"

    def __reversed__(self):
        return iter([3, 2, 1])

    def __divmod__(self, other):
        return "divmod"

    def __pow__(self, other, mod=None):
        return (other, mod)

    def __length_hint__(self):
        return 7

    def __getitem__(self, i):
        if i > 2:
            raise IndexError
        return i * self.n


@case([3, 1, 2])
def numbers(x):
    return (
        sum(x),
        min(x),
        max(x),
        sum(x, 10),
        min(5, 3),
        max("a", "b"),
        max(x, key=lambda v: -v),
        min([], default=0),
        abs(-3),
        round(2.567, 2),
        round(2.5),
        divmod(7, 2),
        pow(2, 3),
        pow(2, 5, 7),
        pow(2, -1),
    )


@case()
def conversions():
    return (
        int("12"),
        int("ff", 16),
        int(2.9),
        float("1.5"),
        bool([]),
        bool([0]),
        str(1.5),
        complex(1, 2),
        bytes([1, 2]),
        list("ab"),
        tuple([1]),
        set([1, 1]),
        frozenset("aa"),
        dict([("a", 1)]),
        dict(b=2),
        chr(65),
        ord("A"),
        hex(255),
        bin(5),
        oct(8),
    )


@case()
def conversion_errors():
    out = []
    for fn in (
        lambda: int("x"),
        lambda: int([]),
        lambda: float("y"),
        lambda: len(5),
        lambda: list(5),
        lambda: sum(["a"]),
        lambda: max([]),
        lambda: range(1, 2, 0),
        lambda: [][0],
        lambda: {}["a"],
        lambda: "a" + 1,
        lambda: [1] + (2,),
        lambda: [1] * "a",
        lambda: -"a",
        lambda: 1 < "a",
        lambda: iter(5),
        lambda: next(iter([])),
        lambda: ONE(),
        lambda: "a".nope,
        lambda: abs("a"),
        lambda: hash([]),
        lambda: chr(-1),
        lambda: [1, 2].index(3),
        lambda: [].pop(),
        lambda: {1}.remove(2),
        lambda: dict([1]),
        lambda: int(),
        lambda: zip(1),
        lambda: isinstance(1, 2),
        lambda: setattr(5, "a", 1),
        lambda: sorted([1, "a"]),
        lambda: ONE[0],
        lambda: (1, 2).append(3),
    ):
        try:
            out.append(fn())
        except Exception as e:
            out.append((type(e).__name__, str(e)))
    return out


@case()
def arity_errors():
    out = []
    for fn in (
        lambda: len(),
        lambda: len(1, 2),
        lambda: [].append(),
        lambda: [].append(1, 2),
        lambda: {}.get(),
        lambda: "a".upper(1),
        lambda: isinstance(1),
        lambda: range(),
        lambda: [].sort(1),
        lambda: iter(),
        lambda: getattr(1),
        lambda: {}.keys(1),
        lambda: math.sqrt(),
        lambda: sorted(),
    ):
        try:
            out.append(fn())
        except Exception as e:
            out.append(type(e).__name__)
    return out


@case()
def dunder_protocols():
    t = Thing(2)
    return (
        int(t),
        float(t),
        abs(t),
        round(t),
        round(t, 1),
        math.floor(t),
        f"{t:x}",
        str(t),
        list(reversed(t)),
        divmod(t, 1),
        pow(t, 3),
        pow(t, 3, 4),
        [10, 20, 30][t],
        "ab" * t,
        list(t),
        4 in t,
        operator.length_hint(t),
        operator.index(t),
        range(t),
        hex(t),
        list(range(5))[t:],
        bin(t),
    )


@case([1, 2, 3])
def list_methods(x):
    y = x.copy()
    y.append(4)
    y.extend([5, 6])
    y.extend(i for i in (7, 8))
    y.insert(1, 9)
    p = y.pop()
    q = y.pop(0)
    y.remove(9)
    y.reverse()
    z = sorted(y, reverse=True)
    y.sort(key=lambda v: v % 3)
    y += (1,)
    y *= 2
    x.clear()
    return x, y, z, p, q, y.count(1), y.index(4), y == list(y), [1, 2] < [1, 3], [] < [1]


@case()
def tuple_methods():
    t = (1, 2, 1)
    return (
        t.count(1),
        t.index(2),
        t + (3,),
        t * 2,
        t[1:],
        t < (2,),
        t == (1, 2, 1),
        hash(t) == hash((1, 2, 1)),
        (1, (2, [3])) == (1, (2, [3])),
    )


@case({"a": 1, "b": 2})
def dict_methods(d):
    e = d.copy()
    e.update(c=3)
    e.update({"d": 4}, a=0)
    e.update([("x", 1)])
    got = e.get("a"), e.get("zz"), e.get("zz", 9), e.setdefault("n", []), e.setdefault("a", 5)
    popped = e.pop("a"), e.pop("nope", None), e.popitem()
    d |= {"q": 1}
    return (
        got,
        popped,
        e,
        d,
        d | {"b": 7},
        list(d),
        list(d.values()),
        list(d.items()),
        list(reversed(d)),
        d == {"a": 1},
        "a" in d,
        len(d),
        dict.fromkeys("ab", 0),
        d.keys() & {"a"},
        d.keys() | {"z"},
        d.keys() - {"a"},
        d.items() == {"a": 1, "b": 2, "q": 1}.items(),
        {**d, "k": 1},
        dict(zip("ab", [1, 2])),
        sorted(d),
    )


@case()
def dict_keys_kinds():
    d = {
        1: "int",
        (1, 2): "tuple",
        None: "none",
        2.5: "f",
        frozenset([1]): "fs",
        int: "type",
        len: "fn",
    }
    return d[1.0], d[True], d[1, 2], d[None], d[frozenset([1])], d[int], d[len]


@case()
def set_methods():
    a, b = {1, 2, 3}, {3, 4}
    c = set(a)
    c.add(9)
    c.discard(1)
    c.discard(100)
    c.update([7], {8})
    c -= {7}
    c |= {5}
    c &= {2, 5, 9, 8}
    c ^= {2}
    return (
        a | b,
        a & b,
        a - b,
        a ^ b,
        a <= b,
        {1} < a,
        a.isdisjoint({9}),
        a.union([5], [6]),
        a.intersection(b),
        a.difference([1]),
        a.symmetric_difference(b),
        a.issubset([1, 2, 3, 4]),
        a.issuperset([1]),
        c,
        2 in a,
        len(a),
        a == {3, 2, 1},
        frozenset(a) == a,
        sorted(a),
        {x for x in a if x > 1},
    )


@case()
def str_methods():
    s = "Hello World"
    return (
        s.lower(),
        s.split(),
        s.split("o", 1),
        s.replace("o", "0"),
        s.startswith("He"),
        s.endswith(("x", "d")),
        s.partition(" "),
        ",".join(["a", "b"]),
        s.title(),
        s.strip("Hd"),
        s.zfill(15),
        s.center(20, "*"),
        s.count("l"),
        s.index("W"),
        s.isalpha(),
        "a-b".join("xy"),
        s.encode(),
        b"ab".decode(),
        "%s %r %05.1f" % ("a", "b", 2.25),
        "{:>5}|{!r}|{a[0]}|{b.n}".format("x", "y", a=[1], b=Thing(4)),
        "x".ljust(3) + "|",
        "a\nb".splitlines(),
        str.maketrans("a", "b"),
        "abc".translate({97: "z"}),
        "{a}".format_map({"a": 3}),
        s.swapcase(),
        "ß".casefold(),
        "abc"[::-1],
        "a" in s,
        "é".isascii(),
    )


@case()
def deque_methods():
    d = deque([1, 2, 3])
    d.rotate(1)
    d.extendleft([8, 9])
    e = d.copy()
    x = d.popleft(), d.pop()
    d.insert(1, "i")
    d.remove(1)
    d.reverse()
    return list(d), list(e), x, d[0], len(d), d.index("i"), d.count(3), list(reversed(e)), d == e


@case()
def deque_errors():
    return deque().pop()


@case()
def ordered_dicts():
    o = OrderedDict([("a", 1), ("b", 2)])
    o["c"] = 3
    o.move_to_end("a")
    first = o.popitem(last=False)
    o.move_to_end("c", last=False)
    return (
        o,
        first,
        o == OrderedDict([("c", 3), ("a", 1)]),
        o == OrderedDict([("a", 1), ("c", 3)]),
        o == {"a": 1, "c": 3},
        list(reversed(o)),
        o.pop("a"),
        o.copy(),
    )


@case()
def default_dicts():
    d = defaultdict(lambda: 7)
    plain = defaultdict(None)
    out = [d["x"], d.get("y"), "x" in d, len(d)]
    try:
        plain["k"]
    except KeyError as e:
        out.append(str(e))
    nested = defaultdict(lambda: defaultdict(int))
    nested["a"]["b"] += 2
    return out, {k: dict(v) for k, v in nested.items()}


@case("abracadabra")
def counters(s):
    c = Counter(s)
    c["z"] += 2
    c.update("aa")
    return c["a"], c["nope"], c.most_common(1), sum(c.values()), sorted(c.elements())[:3]


@case([4, 5, 6])
def iterators(x):
    e = list(enumerate(x, 1))
    z = list(zip(x, "ab"))
    m = list(map(lambda a, b: a + b, x, [1, 2, 3]))
    f = list(filter(None, [0, 1, "", 2])), list(filter(lambda v: v > 4, x))
    r = list(reversed(x)), list(reversed(range(3))), list(reversed("abc")), list(reversed((1, 2)))
    it = iter(x)
    next(it)
    rest = list(it)
    s = iter([1, 2, 3].pop, 1)
    return (
        e,
        z,
        m,
        f,
        r,
        rest,
        list(s),
        next(iter([]), "d"),
        [*zip()],
        dict(enumerate("ab")),
        list(zip(*[(1, 2), (3, 4)])),
        5 in iter(x),
        list(map(str, x)),
        sum(map(int, "123")),
    )


@case()
def zip_strict():
    return list(zip([1, 2], [1], strict=True))


@case()
def zip_strict_longer():
    return list(zip([1], [1, 2], strict=True))


@case(10)
def ranges(n):
    r = range(2, n, 3)
    return (
        list(r),
        len(r),
        r[1],
        r[-1],
        5 in r,
        r.index(5),
        r[::-1],
        r == range(2, 11, 3),
        r.start,
        r.stop,
        r.step,
        bool(range(0)),
        r.count(2),
        hash(r) == hash(range(2, n, 3)),
        [*r[1:]],
        sum(r),
    )


@case()
def itertools_use():
    it = itertools
    return (
        list(it.chain([1], (2,), "a")),
        list(it.chain.from_iterable([[1], [2, 3]])),
        list(it.islice(it.count(5, 2), 3)),
        list(it.islice("abcdef", 1, 5, 2)),
        list(it.product([1, 2], "ab")),
        list(it.product([0, 1], repeat=2)),
        list(it.permutations("abc", 2)),
        list(it.combinations("abcd", 2)),
        list(it.combinations_with_replacement("ab", 2)),
        list(it.accumulate([1, 2, 3])),
        list(it.accumulate([1, 2, 3], operator.mul, initial=2)),
        list(it.zip_longest("ab", [1], fillvalue=0)),
        list(it.starmap(pow, [(2, 3), (3, 2)])),
        list(it.takewhile(lambda v: v < 3, [1, 2, 3, 1])),
        list(it.dropwhile(lambda v: v < 3, [1, 2, 3, 1])),
        list(it.filterfalse(lambda v: v % 2, range(5))),
        list(it.compress("abc", [1, 0, 1])),
        list(it.pairwise([1, 2, 3])),
        [(k, list(g)) for k, g in it.groupby("aabbc")],
        [list(b) for b in it.tee([1, 2])],
        list(it.islice(it.cycle("ab"), 5)),
        list(it.repeat(1, 2)),
    )


@case()
def functools_use():
    add = functools.partial(lambda a, b, c=0: (a, b, c), 1, c=5)
    nested = functools.partial(add, 2)

    def deco(fn):
        @functools.wraps(fn)
        def inner(*a, **k):
            "inner doc"
            return fn(*a, **k) + 1

        return inner

    @deco
    def target(x: int):
        "target doc"
        return x

    return (
        add(2),
        nested(),
        nested.args,
        add.keywords,
        functools.reduce(lambda a, b: a * b, [1, 2, 3, 4]),
        functools.reduce(operator.add, [[1], [2]], []),
        target(3),
        target.__name__,
        target.__doc__,
        target.__wrapped__(3),
        functools.cmp_to_key(lambda a, b: b - a) is not None,
    )


@functools.lru_cache(maxsize=None)
def _cached(n):
    return n * 2


class Lazy:
    calls = 0

    def __init__(self):
        self.log = []

    @functools.cached_property
    def value(self):
        self.log.append("computed")
        return len(self.log)

    @functools.lru_cache
    def method(self, n):
        return n + 1


@case()
def caches():
    z = Lazy()
    return _cached(4), z.value, z.value, z.log, z.method(2), "value" in vars(z)


@case()
def operator_use():
    class P:
        a = 1

    p = P()
    p.b = P()
    return (
        operator.add(1, 2),
        operator.itemgetter(1)([5, 6]),
        operator.itemgetter(0, 1)("ab"),
        operator.attrgetter("b.a")(p),
        operator.methodcaller("upper")("x"),
        operator.mul(3, 4),
        operator.not_(0),
        operator.is_(None, None),
        operator.contains([1], 1),
        operator.getitem({"a": 2}, "a"),
        operator.neg(3),
        operator.iadd([1], [2]),
        operator.truth([]),
        operator.floordiv(7, 2),
        operator.concat([1], [2]),
        operator.countOf([1, 1], 1),
        operator.indexOf([4, 5], 5),
        sorted([("b", 1), ("a", 2)], key=operator.itemgetter(0)),
        operator.lt(1, 2),
        operator.setitem([1], 0, 5),
    )


@case()
def math_use():
    return (
        math.sqrt(16),
        math.floor(2.7),
        math.ceil(2.1),
        math.log(1),
        math.pi,
        math.gcd(12, 18),
        math.isclose(0.1 + 0.2, 0.3),
        math.prod([2, 3]),
        math.inf > 1,
        math.trunc(2.9),
        math.factorial(5),
        math.hypot(3, 4),
        math.isnan(math.nan),
        math.copysign(1, -2),
        math.exp(0),
        math.comb(5, 2),
        math.fsum([0.1] * 3),
        math.isqrt(10),
        math.ceil(5),
    )


@case()
def math_error():
    return math.sqrt(-1)


@contextlib.contextmanager
def _manager(log, swallow=False):
    log.append("in")
    try:
        yield len(log)
    except KeyError as e:
        log.append(("caught", e.args[0]))
        if not swallow:
            raise
    finally:
        log.append("out")


@case()
def context_managers():
    log = []
    with _manager(log) as n:
        log.append(n)
    with _manager(log, swallow=True):
        raise KeyError("k")
    try:
        with _manager(log):
            raise KeyError("z")
    except KeyError:
        log.append("escaped")
    with contextlib.suppress(ValueError, TypeError):
        int("x")
    with contextlib.nullcontext(5) as five:
        log.append(five)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_manager(log))
        stack.callback(log.append, "callback")
        log.append("stacked")
    return log


@case()
def decorator_context():
    log = []

    class C(contextlib.ContextDecorator):
        def __enter__(self):
            log.append("e")
            return self

        def __exit__(self, *exc):
            log.append("x")
            return False

    @C()
    def f():
        return 3

    return f(), log


@case()
def copies():
    a = {"k": [1, {2}], "t": (1, [2])}
    shallow, deep = copy.copy(a), copy.deepcopy(a)
    a["k"].append(9)
    o = Thing(3)
    p = copy.copy(o)
    q = copy.deepcopy([o, o])
    return (
        shallow["k"],
        deep["k"],
        p.n,
        p is o,
        q[0] is q[1],
        q[0].n,
        copy.copy([1, 2]),
        copy.copy((1,)),
    )


@case()
def attributes():
    t = Thing(1)
    setattr(t, "z", 5)
    delattr(t, "n")
    return (
        getattr(t, "z"),
        hasattr(t, "n"),
        getattr(t, "n", "d"),
        vars(t),
        getattr(t, "__class__").__name__,
        hasattr(t, "__index__"),
        "z" in t.__dict__,
        t.__dict__.get("q"),
        sorted(t.__dict__),
    )


@case()
def dict_of_instance():
    t = Thing(1)
    t.__dict__["fresh"] = 2
    t.__dict__.update(more=3)
    d = dict(t.__dict__)
    t.n = 100
    return t.fresh, t.more, d, len(t.__dict__), list(t.__dict__.items())


@case()
def regexes():
    m = re.match(r"(\w+)-(\d+)", "ab-12")
    return (
        m.group(1),
        m.groups(),
        re.sub("a", "b", "aaa"),
        re.findall(r"\d", "a1b2"),
        bool(re.search("z", "abc")),
        re.split(",", "a,b"),
        re.compile("x").match("y"),
    )


@case()
def signatures():
    def f(a, b=1, *args, c, **kw):
        pass

    return (
        list(inspect.signature(_cached.__wrapped__).parameters),
        inspect.isfunction(f),
        inspect.isclass(Thing),
        inspect.ismethod(Thing(1).__index__),
        callable(f),
    )


@case()
def types_use():
    def f(self, x):
        return self, x

    bound = types.MethodType(f, 3)
    ns = types.SimpleNamespace(a=1, b=2)
    ns.c = 3
    return (
        bound(4),
        ns.a + ns.c,
        bound.__self__,
        bound.__func__(1, 2),
        isinstance(f, types.FunctionType),
        types.MappingProxyType({"a": 1})["a"],
    )


@case()
def typing_use():
    T = typing.TypeVar("T")
    return (
        typing.cast(int, "x"),
        typing.Optional[int] is not None,
        list[int] is not None,
        isinstance(T, typing.TypeVar),
    )


@case()
def text_of_containers():
    x = [1, "a", (2,), {"k": None}, {3}]
    x.append(x)
    return str(x), repr((1, [Thing(1).n])), f"{ {'a': 1} }", str({}), str(()), repr([Thing])[:8]


@case()
def locals_use():
    a, b = 1, 2
    inner = [a for a in range(2)]
    return locals()["b"], sorted(locals())


@case()
def star_sorted():
    data = [("b", 2), ("a", 2), ("c", 1)]
    return (
        sorted(data, key=lambda p: (p[1], p[0])),
        sorted("bca"),
        sorted({3, 1, 2}),
        sorted([0.5, 1, True]),
        sorted([Fraction2(2), Fraction2(1)]),
    )


class Fraction2:
    def __init__(self, v):
        self.v = v

    def __lt__(self, other):
        return self.v < other.v

    def __eq__(self, other):
        return self.v == other.v

    def __hash__(self):
        return 5


@functools.total_ordering
class Total:
    def __init__(self, v):
        self.v = v

    def __eq__(self, other):
        return self.v == other.v

    def __lt__(self, other):
        return self.v < other.v


@case()
def total_order():
    return (
        Total(1) <= Total(2),
        Total(2) > Total(1),
        Total(1) >= Total(1),
        max([Total(1), Total(3)]).v,
    )


@case()
def user_keys():
    d = {Fraction2(1): "a"}
    d[Fraction2(1)] = "b"
    d[Fraction2(2)] = "c"
    return (
        len(d),
        d[Fraction2(1)],
        Fraction2(2) in d,
        Fraction2(3) in d,
        len({Fraction2(1), Fraction2(1)}),
    )


@case()
def user_dict():
    class U(collections.UserDict):
        def __getitem__(self, key):
            return super().__getitem__(key) * 2

    u = U(a=1)
    u["b"] = 5
    return u["a"], u["b"], len(u), sorted(u), u.get("zz"), "a" in u


@case()
def chain_maps():
    c = collections.ChainMap({"a": 1}, {"a": 2, "b": 3})
    return c["a"], c["b"], sorted(c), len(c), c.get("z", 0)


@case()
def abstract_classes():
    import abc

    class A(abc.ABC):
        @abc.abstractmethod
        def f(self): ...

        def g(self):
            return self.f() + 1

    class B(A):
        def f(self):
            return 1

    return B().g(), isinstance(B(), A), issubclass(B, A)


@case()
def is_checks():
    a = []
    b = a
    f = len
    return (
        a is b,
        a != [],
        f is len,
        type(a) is list,
        None is None,
        Thing is Thing,
        a.append == a.append,
    )


@case([1, 2], {"k": [3]})
def existing_containers(x, d):
    x.append(d["k"])
    d["k"].append(4)
    d["new"] = x
    del d["k"]
    return x, d, x is d["new"]


@case()
def exceptions_builtin():
    out = []
    for make in (
        lambda: OSError(2, "msg"),
        lambda: KeyError("k"),
        lambda: ValueError(),
        lambda: ValueError(1, 2),
        lambda: StopIteration(3),
        lambda: SystemExit(4),
        lambda: ImportError("i", name="n"),
        lambda: AttributeError("x", name="nm"),
        lambda: UnicodeError("u"),
    ):
        e = make()
        out.append(
            (
                str(e),
                repr(e),
                e.args,
                getattr(e, "value", None),
                getattr(e, "errno", None),
                getattr(e, "name", None),
                getattr(e, "code", None),
            )
        )
    return out


@case()
def exception_notes():
    try:
        e = ValueError("v")
        e.add_note("note")
        e.extra = 5
        raise e
    except ValueError as err:
        return err.__notes__, err.extra, err is e, err.with_traceback(None) is err


@case()
def string_module():
    return string.ascii_lowercase[:3], string.Template("$a").substitute(a=1)


@case()
def bytes_ops():
    b = b"abc"
    return (
        b[0],
        b[1:],
        b + b"d",
        len(b),
        b.hex(),
        list(b),
        b"a" in b,
        bytes(3),
        int.from_bytes(b, "big"),
        (5).to_bytes(2, "little"),
        (5).bit_length(),
        (0.5).as_integer_ratio(),
        (3).real,
        (2.5).is_integer(),
    )


@case()
def slices_use():
    s = slice(1, None, 2)
    return (
        s.start,
        s.stop,
        s.step,
        s.indices(6),
        [0, 1, 2, 3][s],
        s == slice(1, None, 2),
        "abcd"[slice(None, -1)],
    )


@case()
def heaps():
    heap = [5, 1, 4]
    heapq.heapify(heap)
    heapq.heappush(heap, 0)
    out = [heapq.heappop(heap), heapq.heapreplace(heap, 9), heapq.heappushpop(heap, 3)]
    return out, heap, heapq.nsmallest(2, [3, 1, 2]), heapq.nlargest(2, [3, 1, 2])


@case()
def heap_of_wrong_type():
    heapq.heappush((1,), 2)


@case()
def function_dict():
    def f():
        pass

    f.__dict__["a"] = 1
    f.b = 2
    vars(f).update(c=3)
    del f.b
    return f.a, dict(f.__dict__), "b" in f.__dict__, f.c, hasattr(f, "b")


@case()
def evaluated():
    x = 3
    return eval("x + 1"), eval("[i for i in (1, 2)]"), eval("a * 2", {"a": 4})
