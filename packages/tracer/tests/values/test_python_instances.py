"""Instances of classes over builtin and C types: made, read and returned."""

import abc
import collections
import decimal
import functools
import random
import threading
import types
import typing

import pytest
import torch
import torchsmith_tracer
from torchsmith_tracer._src.values.python_instances import storage_base

T = typing.TypeVar("T")


class Space(types.SimpleNamespace):
    pass


class Table(dict):
    __slots__ = ("mark",)

    def __new__(cls, *args, **kwargs):
        self = dict.__new__(cls)
        dict.__setitem__(self, "first", 1)
        return self


class Default(collections.defaultdict):
    pass


class Ordered(collections.OrderedDict):
    pass


class Deque(collections.deque):
    pass


class Number(int):
    def __new__(cls, value):
        self = int.__new__(cls, value + 1)
        self.given = value
        return self


class Row(tuple):
    def __new__(cls, *items):
        return tuple.__new__(cls, items)


class Fixed(frozenset):
    def __new__(cls, *items):
        return super().__new__(cls, items)


class Slots:
    __slots__ = ("a", "b")


class GenericList(typing.Generic[T], list):
    pass


class Local(threading.local):
    pass


@pytest.mark.parametrize(
    ("cls", "base"),
    [
        (Space, types.SimpleNamespace),
        (Table, dict),
        (Default, collections.defaultdict),
        (Ordered, collections.OrderedDict),
        (Deque, collections.deque),
        (Number, int),
        (Slots, object),
        (GenericList, list),
        (GenericList.__mro__[2], object if GenericList.__mro__[2] is not list else list),
        (Local, Local.__base__),
        (random.Random, random.Random.__base__),
        (functools.partial, functools.partial),
        (decimal.Decimal, decimal.Decimal),
        (torch.nn.Linear, object),
        (ValueError, ValueError),
    ],
)
def test_the_class_that_lays_out_instances(cls, base):
    assert storage_base(cls) is base


def test_instances_made_while_tracing_are_returned_whole(program):
    def body(C):
        def f(x):
            slots = Slots()
            slots.a = x
            return [
                Space(a=x),
                Table(q=x),
                Default(list, a=x),
                Ordered(a=1, b=x),
                Deque([x, 1, x], maxlen=2),
                Number(3),
                Row(1, x),
                Fixed(1, 2),
                slots,
            ]

        space, table, default, ordered, deque, number, row, fixed, slots = C(f)(torch.ones(1))
        default["new"].append(1)
        deque.append(5)
        return (
            [space.a, dict(table), dict(default), list(ordered.items()), list(deque)],
            [number, number.given, list(row), sorted(fixed), slots.a, hasattr(slots, "b")],
        )

    program(body)


WRONG = {
    "namespace": lambda: object.__new__(Space),
    "dict": lambda: object.__new__(Table),
    "int": lambda: object.__new__(int),
    "no subtype": lambda: dict.__new__(int),
    "list": lambda: tuple.__new__(list),
    "bool": lambda: int.__new__(bool, 3),
    "no class": lambda: object.__new__(3),
}


@pytest.mark.parametrize("name", WRONG)
def test_new_of_another_class_is_refused_as_by_cpython(program, name):
    def body(C):
        make = WRONG[name]

        def f(x):
            try:
                return make()
            except TypeError as e:
                return str(e), x * 2

        return C(f)(torch.ones(1))

    program(body)


def test_a_generator_that_has_not_started_raises_what_is_thrown(program):
    def body(C):
        def numbers():
            yield 1

        def f(x):
            gen = numbers()
            try:
                gen.throw(ValueError(3))
            except ValueError as e:
                return e.args, list(gen), x * 2

        return C(f)(torch.ones(1))

    program(body)


def test_the_parts_of_a_type_expression_are_read(check):
    union, generic = int | None, list[int]

    def program(x):
        return x + len(union.__args__) + len(generic.__args__), generic.__origin__ is list

    check(program, torch.ones(2), graphs=1, fullgraph=True)


def test_generic_types_make_what_they_are_of(check):
    pairs = dict[str, int]

    def program(x):
        made = [list[int | None]((1, 2)), dict[str, int](a=1), pairs([("b", 2)]), set[int]()]
        return x + 1, made, [type(part) for part in made]

    check(program, torch.ones(2), graphs=1, fullgraph=True)


NAMESPACE = types.SimpleNamespace(k=1)


def test_vars_of_what_cannot_be_looked_into_breaks_and_does_not_raise():
    def counted(x):
        try:
            return x + len(vars(NAMESPACE))
        except TypeError:
            return x - 1

    compiled = torchsmith_tracer.compile(counted, backend="eager")
    assert torch.equal(compiled(torch.ones(2)), counted(torch.ones(2)))
    NAMESPACE.j = 2
    try:
        assert torch.equal(compiled(torch.ones(2)), counted(torch.ones(2)))
    finally:
        del NAMESPACE.j


def test_the_tracer_keeps_its_own_deque_when_the_program_replaces_it(monkeypatch):
    items = [1, 2]
    monkeypatch.setattr(collections, "deque", list)
    compiled = torchsmith_tracer.compile(
        lambda x: x + sum(items) + len(collections.deque(items)), backend="eager"
    )
    assert torch.equal(compiled(torch.zeros(2)), torch.full((2,), 5.0))


def test_a_variable_that_loses_its_value_and_gets_it_again():
    def make():
        value = 3

        def read():
            return value

        def change(new):
            nonlocal value
            value = new

        def forget():
            nonlocal value
            del value

        return read, change, forget

    read, change, forget = make()

    def f(x):
        try:
            return x + read()
        except NameError:
            return x - 1

    compiled = torchsmith_tracer.compile(f, backend="eager")
    for do in (lambda: None, forget, lambda: change(3), forget, lambda: change(4)):
        do()
        assert torch.equal(compiled(torch.ones(1)), f(torch.ones(1)))


def _holders():
    class Plain:
        pass

    class Table(dict):
        pass

    def function():
        pass

    return Plain(), Table(), torch.nn.Identity(), function


@pytest.mark.parametrize("index", range(4))
def test_an_attribute_that_is_replaced_and_deleted_in_one_call(index):
    def results(C):
        holder = _holders()[index]

        def f(x):
            holder.flag = x
            del holder.flag
            return hasattr(holder, "flag"), getattr(holder, "flag", 5), "flag" in vars(holder)

        run = C(f)
        found = []
        for before in (None, 1, 2.5, None):
            if before is not None:
                holder.flag = before
            found.append((run(torch.ones(1)), vars(holder).get("flag")))
        return found

    assert results(lambda f: torchsmith_tracer.compile(f, backend="eager")) == results(lambda f: f)


def test_a_class_that_becomes_abstract():
    def results(C):
        class Base(abc.ABC):
            @abc.abstractmethod
            def get(self): ...

        class Derived(Base):
            def get(self):
                return 2

        run = C(lambda x: x * Derived().get())
        found = []
        for names in ((), ("get",), ("get", "put"), ()):
            Derived.__abstractmethods__ = frozenset(names)
            try:
                found.append(run(3))
            except TypeError as e:
                found.append(str(e))
        return found

    assert results(lambda f: torchsmith_tracer.compile(f, backend="eager")) == results(lambda f: f)


MARKED = functools.partial(sum)
MARKED.mark = True


def test_a_partial_of_one_that_exists_is_one_of_its_function(capture):
    def f(x, partial, extra):
        a = functools.partial(partial, [1], *extra)
        b = functools.partial(functools.partial(partial, [2]), start=3)
        c = functools.partial(MARKED, [3])
        parts = [(p.args, p.keywords, p.func is sum) for p in (a, b, c)]
        return float(x + b()), parts, c.func is MARKED, repr(a)

    compiled = torchsmith_tracer.compile(f, backend=capture)
    for extra in ([], [2], [3], []):
        found, expected = (
            fn(torch.ones(2)[0], functools.partial(sum, start=1), extra) for fn in (compiled, f)
        )
        assert found == expected


@typing.runtime_checkable
class HasData(typing.Protocol):
    data: int

    def run(self): ...


@typing.runtime_checkable
class Runs(typing.Protocol):
    def run(self): ...


class OnlyRuns:
    def run(self):
        return 1


class Both(OnlyRuns):
    data = 3


class Derived(HasData):
    pass


def test_protocols_with_data(agree):
    def f(x, obj):
        try:
            asked = issubclass(float, HasData)
        except TypeError as e:
            asked = str(e)
        kinds = (HasData, Runs)
        return [isinstance(v, k) for v in (x, obj, type(obj)()) for k in kinds], asked, x + 1

    changed = OnlyRuns()
    changed.data = 1
    for obj in (OnlyRuns(), Both(), Derived(), changed, OnlyRuns()):
        agree(f, torch.ones(2), obj)


class Measured:
    def __init__(self):
        self.kept = 1

    @property
    def size(self):
        return self.kept + 1

    @size.setter
    def size(self, value):
        self.kept = value * 2

    fixed = property(lambda self: 3)


def test_functions_of_an_existing_property(check):
    """A container that stores by name asks whether the name has a setter."""

    def program(x, which):
        one = Measured()
        for name in ("size", "fixed", "other"):
            found = getattr(type(one), name, None)
            if found is not None and getattr(found, "fset", None) is not None:
                found.fset(one, x)
        return one.size, which.fget(one) * 2, which.fdel is None

    check(program, torch.ones(2), Measured.size, fullgraph=True)
    check(program, torch.ones(2), Measured.fixed, fullgraph=True)
    compiled = torchsmith_tracer.compile(program, fullgraph=True)
    for which in (Measured.size, Measured.fixed, property(lambda self: self.kept * 5)):
        got, wanted = compiled(torch.ones(2), which), program(torch.ones(2), which)
        assert torch.equal(torch.as_tensor(got[1]), torch.as_tensor(wanted[1]))
