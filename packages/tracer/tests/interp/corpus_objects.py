"""Objects of C classes made by traced code: copies, pickles, partials, caches, locks."""

from __future__ import annotations

import abc
import collections
import collections.abc
import contextlib
import copy
import functools
import io
import itertools
import operator
import pickle
import random
import sys
import threading
from collections.abc import Callable

CASES: list[tuple[Callable[..., object], tuple[object, ...]]] = []


def case(*args: object):
    def register(fn):
        CASES.append((fn, args))
        return fn

    return register


class Pair:
    def __init__(self, a, b):
        self.a = a
        self.b = b

    def __eq__(self, other):
        return type(self) is type(other) and vars(self) == vars(other)


class Slotted:
    __slots__ = ("x",)


class Copied(Pair):
    def __copy__(self):
        return Copied("copied", self.b)

    def __deepcopy__(self, memo):
        return Copied("deep", copy.deepcopy(self.b, memo))


class Stated(Pair):
    def __getstate__(self):
        return {"a": self.a}

    def __setstate__(self, state):
        self.a = state["a"]
        self.b = "set"


class Items(list):
    pass


Point = collections.namedtuple("Point", "x y")


def made():
    shared = [1]
    slotted = Slotted()
    slotted.x = shared
    return [
        Pair(shared, shared),
        Stated(shared, 2),
        Items([shared, shared]),
        Point(1, shared),
        [shared, (shared,), {"k": shared}],
        {1, (2, 3)},
        frozenset("ab"),
        collections.deque([shared, 2], 5),
        collections.OrderedDict(b=1, a=shared),
        collections.Counter("aab"),
        collections.defaultdict(list, a=shared),
        collections.UserDict(a=1),
        ValueError("text", 2),
        range(2, 9, 3),
        1.5 + 2j,
        Pair,
        made,
    ]


@case()
def copies():
    out = []
    for obj in [*made(), Copied(1, [2])]:
        shallow, deep = copy.copy(obj), copy.deepcopy(obj)
        same = isinstance(obj, ValueError) or (shallow == obj, deep == obj)
        out.append((type(shallow), type(deep), shallow is obj, deep is obj, same))
    return out


@case()
def deep_copies_keep_what_is_shared():
    shared = [1]
    pair = copy.deepcopy(Pair(shared, shared))
    loop = [1]
    loop.append(loop)
    again = copy.deepcopy(loop)
    return pair.a is pair.b, pair.a is shared, again[1] is again, again is loop


@case(0)
@case(2)
@case(5)
def pickles(protocol):
    out = []
    for obj in made():
        data = pickle.dumps(obj, protocol)
        back = pickle.loads(data)
        out.append((data, type(back), isinstance(obj, ValueError) or back == obj))
    return out


@case()
def a_slotted_object_cannot_be_pickled_by_an_old_protocol():
    pickle.dumps(Slotted(), 1)


class Sub(functools.partial):
    def __repr__(self):
        return "Sub:" + super().__repr__()


def report(*args, **kwargs):
    return args, kwargs


@case()
def partials():
    out = []
    for make in (functools.partial, Sub):
        p = make(report, 1, a=2)
        q = make(p, 3, a=4, b=5)
        q.note = "kept"
        out.append((p(), q(6, c=7), p.func is report, q.args, q.keywords, vars(q)))
        out.append((type(q) is make, isinstance(q, functools.partial), q.func is report))
        back = copy.copy(q)
        out.append((back(), back.note, type(back) is make))
        p.__setstate__((report, (9,), None, {"x": 1}))
        out.append((p(), p.x))
        for wrong in (None, (1, 2), (report, [], {}, None)):
            try:
                p.__setstate__(wrong)
            except TypeError as e:
                out.append(str(e))
        for name in ("func", "args", "keywords"):
            try:
                setattr(p, name, 1)
            except AttributeError as e:
                out.append(str(e))
    return out


@case()
def text_of_a_partial():
    p = functools.partial(int, "7", base=8)
    loop = functools.partial(print)
    loop.__setstate__((print, (loop,), {}, {}))
    return repr(p), repr(Sub(int, 1)), repr(loop)


@case()
def partial_of_nothing_callable():
    functools.partial(3)


@case()
def caches():
    calls = []

    @functools.lru_cache(maxsize=2)
    def square(x, *, k=1):
        calls.append(x)
        return x * x * k

    class Holder:
        @functools.lru_cache  # noqa: B019
        def of(self, x):
            calls.append("method")
            return x

        def __hash__(self):
            return 1

    holder = Holder()
    out = [square(2), square(2), square(3), square(4), square(2), square(2, k=2)]
    out += [holder.of(1), holder.of(1), Holder.of.cache_info(), Holder.of(holder, 1)]
    out += [square.cache_info(), square.__name__, square.__wrapped__(5)]
    square.cache_clear()
    return out, square.cache_info(), calls, copy.copy(square) is square


@case()
def locks():
    lock, again = threading.Lock(), threading.RLock()
    out = []
    with lock:
        out += [lock.locked(), lock.acquire(False)]
    out.append(lock.locked())
    with again, again:
        out.append(again.acquire(False))
        again.release()
    for one in (lock, again):
        try:
            one.release()
        except RuntimeError as e:
            out.append(str(e))
    return out


@case()
def getters():
    second, both = operator.itemgetter(1), operator.itemgetter(0, 2)
    name, deep = operator.attrgetter("a"), operator.attrgetter("a", "b.real")
    call = operator.methodcaller("split", ",", maxsplit=1)
    pair = Pair(1, 2)
    out = [second("abc"), both("abc"), name(pair), deep(pair), call("a,b,c")]
    out += [repr(g) for g in (second, both, name, deep, call)]
    out += [copy.copy(g)(x) for g, x in ((both, "xyz"), (deep, pair), (call, "1,2"))]
    for wrong in (lambda: operator.itemgetter(), lambda: operator.attrgetter(1), lambda: second()):
        try:
            wrong()
        except TypeError:
            out.append("TypeError")
    return out


@case()
def buffers():
    f = io.BytesIO(b"ab\ncd")
    out = [f.read(1), f.readline(), f.tell(), f.read(), f.read()]
    f.seek(1)
    f.write(b"XYZ")
    f.seek(8)
    f.write(b"!")
    return out, f.getvalue(), f.truncate(3), f.getvalue()


@case()
def seeded_random_numbers():
    rng = random.Random(7)
    state = rng.getstate()
    items = list(range(9))
    rng.shuffle(items)
    first = [rng.random(), rng.randrange(99), rng.choice("abc"), rng.sample(items, 3)]
    rng.setstate(state)
    return items, first, rng.gauss(0, 1), rng.getrandbits(70), rng.uniform(1, 2)


@case()
def singledispatched():
    @functools.singledispatch
    def kind(x):
        return "object"

    @kind.register(int)
    def _(x):
        return "int"

    @kind.register
    def _(x: list):
        return "list"

    return kind(1), kind(True), kind([]), kind("x"), kind.dispatch(bool)(1)


@case()
def named_tuples_made_here():
    made = collections.namedtuple("Made", "a b", defaults=[2])  # noqa: PYI024
    m = made(1)
    return tuple(m), m.a, m.b, repr(m), m._replace(a=5)._asdict(), made._fields, m == (1, 2)


@case()
def classes_changed_between_lookups():
    class Base:
        def name(self):
            return "base"

    class Own(Base):
        pass

    obj, out = Own(), []
    for change in range(5):
        out.append(obj.name())
        if change == 0:
            Base.name = lambda self: "changed"
        elif change == 1:
            Own.name = lambda self: "own"
        elif change == 2:
            del Own.name
        elif change == 3:
            Base.__getattr__ = lambda self, name: name
            out.append(obj.other)
    return out


class Odd:
    def __eq__(self, other):
        return other == 3

    __hash__ = None


@case(list)
@case(tuple)
@case(collections.deque)
def sequences_searched(cls):
    items, out = cls([1, 2, True, 3, Odd()]), []
    wrong = (lambda: items.index(9), lambda: items.index(1, 9), lambda: items.index("a", "b"))
    for call in (*wrong, lambda: items.index(), lambda: items.count(1, 2)):
        try:
            call()
        except (TypeError, ValueError) as e:
            out.append((type(e), str(e) if isinstance(e, ValueError) else ""))
    return out, items.index(True), items.index(3, 1), items.index(1, 1, 3), items.count(3)


@case(list)
@case(collections.deque)
def sequences_changed(cls):
    items, out = cls([1, 2, 3, 1]), []
    items.insert(1, "a")
    items.insert(-9, "b")
    items.remove(1)
    out.append(items.pop())
    items.reverse()
    if cls is collections.deque:
        items.rotate(2)
        items.appendleft([])
        out.append(items.popleft())
    for wrong in (lambda: items.remove(9), lambda: cls().pop(), lambda: items.insert("a", 1)):
        try:
            wrong()
        except (IndexError, TypeError, ValueError) as e:
            out.append((type(e), str(e)))
    full = collections.deque([1, 2], 2)
    try:
        full.insert(0, 3)
    except IndexError as e:
        out.append(str(e))
    full.appendleft(4)
    left = list(items)
    items.clear()
    return left, out, len(items), list(full)


@case()
def wrapped_functions():
    def base(x):
        """Doc."""
        return x

    base.attr = 1

    @functools.wraps(base)
    def wrapper(x):
        return base(x) + 1

    total = functools.reduce(operator.add, [1, 2, 3], 4)
    names = sorted(vars(wrapper)), wrapper.__name__, wrapper.__doc__, wrapper.__wrapped__ is base
    again = pickle.loads(pickle.dumps([len, str.upper]))
    return wrapper(1), names, total, again == [len, str.upper]


@case()
def text_buffers():
    f = io.StringIO("ab\ncd\nef")
    out = [f.read(1), f.readline(), f.tell(), list(f), f.read(), f.seek(0), f.readlines(2)]
    f.seek(12)
    f.writelines(["x", "y"])
    out += [f.getvalue(), f.truncate(3), f.tell(), f.readable(), f.isatty()]
    with f:
        out.append(f.closed)
    wrong = (lambda: f.write("s"), lambda: f.seek(0), lambda: io.StringIO(newline="x"))
    for call in (*wrong, lambda: io.StringIO(3), lambda: io.StringIO().write(b"")):
        try:
            call()
        except (TypeError, ValueError) as e:
            out.append((type(e), str(e)))
    return out, f.closed


@case()
def newlines_of_text_buffers():
    out = []
    for newline in (None, "", "\n", "\r", "\r\n"):
        f = io.StringIO("a\nb\rc\r\nd", newline=newline)
        f.seek(0, 2)
        f.write("\r\nz")
        f.seek(0)
        out.append((f.getvalue(), f.readlines()))
    return out


@case()
def prints_to_a_new_buffer():
    with contextlib.redirect_stdout(io.StringIO()) as s:
        print("hi", 3, sep="-")
        print(end="")
        print("x", end="", flush=True)
        print([1], {"a": None})
    return s.getvalue()


@case()
def dicts_that_become_the_attributes():
    d = {"x": 1}
    o = Pair(5, 6)
    o.__dict__ = d
    d["z"] = 2
    o.w = 5
    del d["x"]
    out = [hasattr(o, "a"), o.z, list(d.items()), len(d), "w" in d, vars(o) is d, d | {"q": 1}]
    p = Pair.__new__(Pair)
    p.__dict__ = d
    p.k = 1
    d.update(m=4)
    d.pop("z")
    d.setdefault("s", []).append(1)
    vars(p).setdefault("t", []).append(2)
    return out, list(vars(o).items()), list(d.items()), p.__dict__ is o.__dict__


@case()
def lines_of_frames_that_raise_again():
    class Own:
        def __enter__(self):
            return self

        def __exit__(self, *e):
            raise KeyError

    def named():
        try:
            [][1]
        except IndexError as e:
            e.note = 1
            raise

    def left():
        with Own():
            [][1]

    def passed():
        try:
            [][1]
        finally:
            len("")

    def other():
        try:
            [][1]
        except ValueError:
            pass

    out = []
    for fn in (named, left, passed, other):
        try:
            fn()
        except Exception as e:
            tb = e.__traceback__.tb_next
            while tb:
                first = tb.tb_frame.f_code.co_firstlineno
                out.append((tb.tb_frame.f_lineno - first, tb.tb_lineno - first, tb.tb_lasti))
                tb = tb.tb_next
    return out


@case()
def locks_say_who_holds_them():
    lock = threading.RLock()
    out = []
    with lock, lock:
        out.append(lock._is_owned())
    out.append(lock._is_owned())
    condition = threading.Condition()
    with condition:
        out.append(condition._is_owned())
    for free in (threading.Lock(), threading.RLock()):
        try:
            free.release()
        except RuntimeError as e:
            out.append(str(e))
    return out, condition._is_owned()


@case()
def what_cannot_be_done():
    class Refuses:
        def __set_name__(self, owner, name):
            raise ValueError(name)

    def named():
        class Has:
            field = Refuses()

    out = []
    for call in (
        named,
        lambda: operator.concat(1, 2),
        lambda: operator.iconcat(1, 2),
        lambda: [0] * (1 << 62),
        lambda: (1, 2) * sys.maxsize,
        lambda: KeyError().__setstate__(3),
    ):
        try:
            call()
        except (TypeError, MemoryError, RuntimeError, ValueError) as e:
            notes = getattr(e, "__notes__", None)
            out.append((type(e), str(e), type(e.__cause__), type(e.__context__), notes))
    return out


@case()
def made_without_arguments():
    made = [kind.__new__(kind) for kind in (UnicodeEncodeError, UnicodeDecodeError, OSError)]
    return [str(e) for e in made], {1: 2}.fromkeys("ab"), copy.copy(operator.pow) is operator.pow


@case()
def type_expressions_are_joined():
    return list[int] | str, int | list[str], None | dict[str, int], list[int] | None


@case()
def positions_of_code():
    code = positions_of_code.__code__
    return list(code.co_positions())[:9], list(code.co_lines())[:3]


@case()
def switches_set_to_what_they_are():
    limit = sys.getrecursionlimit()
    return sys.setrecursionlimit(limit), sys.settrace(sys.gettrace()), sys.implementation.name


@case()
def classes_of_exceptions():
    class Own(ZeroDivisionError, TypeError):
        pass

    made = [kind("x") for kind in (ValueError, UnicodeError, StopIteration)]
    return [e.__class__ for e in made], Own("x").__class__ is Own, Own().__class__.__name__


@case()
def views_whose_values_cannot_be_compared():
    class Refuses:
        def __eq__(self, other):
            raise RuntimeError

    one, other, more = {1: Refuses()}, {1: Refuses()}, {1: Refuses(), 2: 3}
    out = [one.items() < other.items(), one.items() == more.items(), one.items() != {(1, 2), 3}]
    for compare in (operator.eq, operator.ne, operator.le, operator.ge):
        try:
            out.append(compare(one.items(), other.items()))
        except RuntimeError:
            out.append("refused")
    keys = {1: 2, 3: 4}.keys()
    return out, keys >= {1}, keys > {1, 3}, keys == {3, 1}, keys <= {1: 0}.keys(), keys == [1, 3]


@case()
def changed_while_they_are_compared():
    class Clears:
        def __init__(self, *lists):
            self.lists = lists

        def __hash__(self):
            return 0

        def __eq__(self, other):
            for items in self.lists:
                items.clear()
            return NotImplemented

    first, second = [], []
    first.append(Clears(second))
    second.append(Clears(first))
    out = [first == second, first, second]
    given = dict.fromkeys(range(1, 9), 0)
    given[Clears()] = 0
    taken = {Clears(given): 0, 1: 1}
    try:
        taken.update(given)
    except RuntimeError as e:
        out.append(str(e))
    return out


@case()
def iterators_that_were_used_up_inside():
    def call():
        state.append(None)
        if len(state) == 1:
            list(it)
            return 1
        return 2

    state = []
    it = iter(call, 2)
    backwards = reversed([1, 2])
    left = [next(backwards), next(backwards)]
    again = pickle.loads(pickle.dumps(backwards))
    ended = next(backwards, "end"), pickle.loads(pickle.dumps(backwards))
    return next(it, "end"), left, type(again), list(again), ended[0], type(ended[1])


@case()
def keywords_of_subclasses():
    out = []
    for base, args in (
        (filter, (None, [0, 1])),
        (map, (str, [1, 2])),
        (zip, ("ab", [1])),
        (itertools.repeat, (1, 2)),
        (itertools.chain, ([1], [2])),
        (itertools.compress, ("ABC", [1, 0, 1])),
        (list, ([1, 2],)),
        (set, ([1],)),
    ):

        class Initialised(base):
            def __init__(self, *args, more=None):
                self.more = more

        class Made(base):
            def __new__(cls, *args, more=None):
                made = super().__new__(cls, *args)
                made.more = more
                return made

        for cls in (Initialised, Made):
            try:
                made = cls(*args, more=3)
                out.append((list(made), made.more))
            except TypeError:
                out.append(TypeError)
    return out


@case()
def abstract_classes_ask_for_what_was_stored():
    kinds = [getattr(collections.abc, n) for n in "Callable Sized Iterable Container".split()]
    out = []
    for name in ("__call__", "__len__", "__iter__", "__contains__"):
        has = type("Has", (), {})
        setattr(has, name, lambda self, *args: 0)
        lacks = type("Lacks", (has,), {})
        setattr(lacks, name, None)
        out.append([[isinstance(cls(), kind) for kind in kinds] for cls in (has, lacks)])
        delattr(has, name)
        out.append([issubclass(type("New", (has,), {}), kind) for kind in kinds])
    return out


@case()
def abstract_single_dispatch():
    class Abstract(abc.ABC):
        @functools.singledispatchmethod
        @abc.abstractmethod
        def add(self, x):
            pass

    try:
        return Abstract()
    except TypeError:
        return Abstract.__dict__["add"].__isabstractmethod__


@case()
def subclasses():
    class Base:
        pass

    class First(Base):
        pass

    class Second(Base):
        pass

    class Under(First):
        pass

    return (
        Base.__subclasses__() == [First, Second],
        First.__subclasses__() == [Under],
        (
            Under.__subclasses__(),
            [cls.__name__ for cls in Pair.__subclasses__()],
        ),
    )


class Methods:
    fixed = functools.partialmethod(staticmethod(lambda *a, **k: (a, k)), 8)
    of_class = functools.partialmethod(classmethod(lambda *a, **k: (a[1:], k)), d=9)


@case()
def partial_methods_of_descriptors():
    has = Methods()
    return has.fixed(), Methods.fixed(1), has.of_class(2), has.of_class.__self__ is Methods


@functools.lru_cache
def cached(x):
    return x


@case()
def caches_are_copied_as_themselves():
    return copy.copy(cached) is cached, copy.deepcopy([cached])[0] is cached, cached.__reduce__()
