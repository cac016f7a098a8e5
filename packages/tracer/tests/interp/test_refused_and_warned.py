"""What CPython refuses or warns of, and what it makes at the edges of a protocol: with a break or
without one, compiled code does the same, and in the same words."""

import collections
import operator
import sys
import types
import warnings
import weakref

import pytest
import torchsmith_tracer as tracer

CASES = []


def case(fn):
    CASES.append(fn)
    return fn


def outcome(fn, *args):
    try:
        found = fn(*args)
    except Exception as e:
        return type(e).__name__, str(e)
    return found, type(found).__name__


def warned(fn, *args):
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("always", DeprecationWarning)
        found = outcome(fn, *args)
    return found, [str(w.message) for w in log if w.category is DeprecationWarning]


class OwnInt(int):
    pass


class OwnFloat(float):
    pass


class Index:
    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


class Converts(Index):
    def __int__(self):
        return self.value

    def __float__(self):
        return OwnFloat(1.5)


class Truncates:
    def __trunc__(self):
        return 3


class Number(int):
    def __index__(self):
        return 42


@case
def numbers_of_other_classes_are_warned_of():
    return [warned(int, Index(OwnInt(3))), warned(operator.index, Index(True))]


@case
def conversions_to_other_classes_are_warned_of():
    return [
        warned(int, Converts(OwnInt(4))),
        warned(float, Converts(1)),
        warned(complex, Converts(1)),
    ]


@case
def indices_of_other_classes_are_warned_of():
    return [warned(range, Index(True)), warned(operator.getitem, [1, 2], Index(True))]


@case
def truncation_is_warned_of():
    return warned(int, Truncates()) if sys.version_info < (3, 14) else None


@case
def a_number_converts_by_its_own_slot():
    n = Number(7)
    return int(n), operator.index(n), float(n), complex(n), hex(n), range(n), [1, 2][: Number(1)]


@case
def operators_of_sets_and_views_make_sets():
    table, out = {1: 2, 3: 4}, []
    for made in (frozenset({1, 5}), {1, 5}, frozenset()):
        for name in ("and_", "or_", "sub", "xor", "iand", "ior", "isub", "ixor"):
            for view in (table.keys(), table.items()):
                fn = getattr(operator, name)
                first = made.copy()
                out.append((fn(first, view), type(fn(first, view)), first, fn(view, made)))
                out.append(fn(first, view) is first)
    return out


class Clears:
    def __init__(self, queue, answer):
        self.queue, self.answer = queue, answer

    def __eq__(self, other):
        self.queue.clear()
        return self.answer


@case
def a_deque_that_changes_while_it_is_searched():
    out = []
    for answer in (False, True):
        for search in (operator.contains, collections.deque.index, collections.deque.count):
            queue = collections.deque()
            queue.extend([Clears(queue, answer), 1])
            out.append(outcome(search, queue, 5))
    return out


@case
def cells_compare_by_content():
    def cell(value):
        return (lambda: value).__closure__[0]

    pairs = [(1, 2), (2, 2), ("a", "b")]
    cells = [(cell(a), cell(b)) for a, b in pairs]
    cells += [(types.CellType(), cell(1)), (types.CellType(), types.CellType())]
    return [(a == b, a != b, a < b, a >= b) for a, b in cells], outcome(lambda: cell(1) < cell("a"))


def refused(name):
    def made(a, b=1):
        """Text."""

    return outcome(delattr, made, name), getattr(made, name, "gone")


@case
def what_a_function_keeps_is_not_deleted():
    names = ("__name__", "__qualname__", "__closure__", "__dict__")
    return [refused(name)[0] for name in names]


@case
def what_a_function_can_do_without():
    found = refused("__defaults__"), refused("__kwdefaults__"), refused("__doc__")
    return found, refused("__module__"), refused("__annotations__"), refused("own")


@case
def names_of_a_function_are_listed():
    def made():
        pass

    made.own = 1
    return "own" in dir(made), sorted(set(dir(made)) - set(dir(refused))), made.__dict__


class Slots:
    __slots__ = ("x",)
    y = 1
    p = property()
    q = property(lambda self: 1)


@case
def attributes_of_slots_are_refused():
    class Own:
        __slots__ = ("x",)
        y = 1
        p = property()
        q = property(lambda self: 1)

    out = []
    for obj in (Slots(), Own()):
        out.extend(outcome(delattr, obj, name) for name in ("x", "y", "z", "p", "q"))
        out.extend(outcome(setattr, obj, name, 1) for name in ("y", "z", "p", "q"))
        out.append(outcome(lambda obj=obj: obj.p))
    return out


@case
def properties_keep_name_and_text():
    def get(self):
        """Of the getter."""

    class Own:
        p = property(get, doc="own")
        q = property(None, None, None, "nothing")
        r = p.setter(get)

    sys.getrefcount(Own)  # a break
    obj = Own()
    texts = Own.p.__doc__, Own.q.__doc__, Own.r.__doc__
    return texts, outcome(getattr, obj, "q"), outcome(setattr, obj, "q", 1)


@case
def a_class_with_a_property_of_a_name_that_types_keep():
    class Own:
        __bases__ = property(lambda self: (1,))
        __name__ = property(lambda self: "own")

    class Plays:
        __class__ = property(lambda self: int)

    obj = Own()
    return obj.__bases__, obj.__name__, Own.__name__, Own.__bases__, isinstance(Plays(), int)


@case
def arguments_are_refused_in_the_words_of_the_callable():
    calls = [
        lambda: object(1), lambda: super(1, 2, 3), lambda: len(), lambda: sorted([], 1),
    ]  # fmt: skip
    return [outcome(call) for call in calls]


@case
def a_proxy_takes_mappings_only():
    given = (5, [1], (1,), None, {1: 2}, collections.UserDict(a=1))
    return [outcome(lambda g=g: len(types.MappingProxyType(g))) for g in given]


class Referred:
    pass


KEPT = Referred()
REFERENCE = weakref.ref(KEPT)


@case
def weak_references_are_found_at_the_object():
    obj = Referred()
    before = obj.__weakref__
    reference = weakref.ref(obj)
    return before, obj.__weakref__ is reference, KEPT.__weakref__ is REFERENCE


@case
def reversed_lists_that_shrank_have_nothing_left():
    items = list(range(9))
    back, other = reversed(items), reversed(items)
    out = [next(back), operator.length_hint(back)]
    items[1:] = []
    return out, operator.length_hint(back), list(back), operator.length_hint(other), list(other)


@case
def class_items_of_classes_without_them():
    class Without:
        __class_getitem__ = None

    class Given(Without):
        def __class_getitem__(cls, item):
            return item

    return outcome(lambda: Without[int]), Given[3], outcome(lambda: int[int])


@case
def names_of_methods_of_classes():
    found = (dict.fromkeys, int.from_bytes, {}.get, str.maketrans, [].append, type.mro, int.mro)
    return [(fn.__name__, fn.__qualname__) for fn in found]


class Group(ExceptionGroup):
    pass


class Mixed(BaseExceptionGroup, ValueError):
    pass


@case
def groups_of_exceptions_are_checked():
    group = ExceptionGroup("text", [ValueError(1)])
    made = [outcome(lambda c=c: c("text", [KeyboardInterrupt()])) for c in (Group, Mixed)]
    refused = [outcome(setattr, group, name, "x") for name in ("message", "exceptions")]
    return made, refused, Mixed("text", [ValueError()]).message, group.message


class Delegate:
    def __init__(self, error):
        self.error = error

    def __iter__(self):
        return self

    def __next__(self):
        return 1

    def __getattr__(self, name):
        if name == "close":
            raise AttributeError(name)
        raise self.error


@case
def methods_of_a_delegate_are_looked_up_like_attributes():
    def gen(error):
        yield from Delegate(error)

    out = []
    for error in (KeyError("own"), AttributeError("own")):
        it = gen(error)
        out.append((next(it), outcome(it.throw, ValueError("thrown"))))
    return out


class Drops(type):
    def __new__(cls, name, bases, namespace, cell=...):
        namespace.pop("__classcell__", None)
        if cell is not ...:
            namespace["__classcell__"] = cell
        return super().__new__(cls, name, bases, namespace)


class Passes(type):
    def __new__(cls, name, bases, namespace):
        made = super().__new__(cls, name, bases, namespace)
        return made

    @classmethod
    def __prepare__(cls, name, bases):
        return None if name == "Nothing" else {}


@case
def class_cells_are_checked():
    def dropped():
        class Made(metaclass=Drops):
            def method(self):
                return __class__

    def given(cell):
        class Made(metaclass=Drops, cell=cell):
            pass

    def nothing():
        class Nothing(metaclass=Passes):
            pass

    def passed():
        class Made(metaclass=Passes):
            def method(self):
                return __class__.__name__

        return Made().method()

    refused = [outcome(given, cell) for cell in (None, 0, "")]
    return outcome(dropped)[0], refused, outcome(nothing), outcome(passed)


class Sets(collections.defaultdict):
    def __init__(self, factory=None):
        self.default_factory = factory or self.made

    def made(self):
        return "made"


GIVEN = Sets(list)


@case
def a_factory_that_is_set_later():
    out = []
    for table in (Sets(list), Sets()):
        first = table["a"]
        table.default_factory = int
        second = table["b"], repr(table)
        table.default_factory = None
        out.append((first, second, outcome(lambda t=table: t["c"]), table.default_factory))
    return out


@case
def a_factory_of_an_existing_table():
    found = GIVEN["a"]
    GIVEN.default_factory = dict
    more = GIVEN["b"], repr(GIVEN), GIVEN.default_factory
    GIVEN.default_factory = list
    GIVEN.clear()
    return found, more


@pytest.mark.filterwarnings("ignore::torchsmith_tracer.errors.TracerWarning")
@pytest.mark.parametrize("program", CASES, ids=lambda program: program.__name__)
def test_as_in_python(program):
    compiled = tracer.compile(program, backend="eager", options={"recompile_limit": 64})
    expected = program()
    for _ in range(2):
        assert compiled() == expected
