"""What functions of the library read, and what they change, beside their arguments' values."""

import bisect
import functools
import inspect
import operator
import struct
import sys
import threading
import types
import typing

import pytest
import torch
from torchsmith_tracer import compile as smith


class Hinted:
    a: int


def hinted(p: int) -> str: ...


def _hints():
    own, base = typing.get_type_hints(Hinted), typing.get_type_hints(hinted)
    own.pop("a")  # a dict of the caller's own
    return own, base


def _signed(a, b=2, *, c=3):
    return a


partial = functools.partial(_signed, b=5)


class Lazy:
    @functools.cached_property
    def first(self):
        return 1


Lazy.second = vars(Lazy)["first"]
lazy = Lazy()


def _cached():
    vars(lazy).clear()
    return lazy.second, lazy.first, sorted(vars(lazy))


READS = {
    "hints": (_hints, Hinted.__annotations__.__setitem__, ("b", float)),
    "hints of functions": (_hints, hinted.__annotations__.__setitem__, ("p", bytes)),
    "signature of a partial": (
        lambda: str(inspect.signature(partial)),
        partial.keywords.__setitem__,
        ("b", 9),
    ),
    "function of a cached property": (
        _cached,
        functools.partial(setattr, vars(Lazy)["first"], "func"),
        (lambda self: 7,),
    ),
}


@pytest.mark.parametrize("name", READS)
def test_what_the_library_reads_is_a_fact(name):
    read, change, new = READS[name]
    f = smith(lambda x: (x + 1, read())[1], backend="eager")
    seen = []
    for _ in range(2):
        assert f(torch.ones(1)) == read()
        seen.append(read())
        change(*new)
    assert f(torch.ones(1)) == read()
    assert read() != seen[0]


def test_an_import_that_fails_may_succeed_later(monkeypatch):
    def read():
        try:
            import not_there_yet
        except ImportError as e:
            return e.name
        return not_there_yet.k

    f = smith(lambda x: (x + 1, read())[1], backend="eager")
    assert f(torch.ones(1)) == "not_there_yet"
    for found in (types.SimpleNamespace(k=2), None, types.SimpleNamespace(k=3)):
        monkeypatch.setitem(sys.modules, "not_there_yet", found)
        assert f(torch.ones(1)) == (found.k if found else "not_there_yet")
    monkeypatch.delitem(sys.modules, "not_there_yet")
    assert f(torch.ones(1)) == "not_there_yet"


CHANGES = {
    "insort": (lambda items: bisect.insort(items, 4), [3, 5]),
    "insort_left": (lambda items: bisect.insort_left(items, 4), [3, 5]),
    "pack_into": (lambda room: struct.pack_into("<H", room, 0, 7), bytearray(4)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_the_library_changes_is_changed(name):
    change, target = CHANGES[name]
    before, expected = target.copy(), target.copy()
    change(expected)
    f = smith(lambda x, room: (x + 1, change(room)), backend="eager")
    f(torch.ones(1), before)
    assert before == expected != target


def test_the_thread_is_a_fact():
    names = {threading.get_ident(): "main"}
    f = smith(
        lambda x: (x, names.get(threading.get_ident()), threading.get_ident() in names)[1:],
        backend="eager",
    )
    found = []
    for _ in range(2):
        found.append(f(torch.ones(1)))
        thread = threading.Thread(target=lambda: found.append(f(torch.ones(1))))
        thread.start()
        thread.join()
    assert found == [("main", True), (None, False)] * 2


METHODS = """
a + 1|1 + a|a < 1|a == 1|a != a|-a|len(a)|bool(a)|[1][a]|a[0]|a()|next(a)|round(a)|abs(a)
divmod(a, 1)|range(a)|float(a)|int(a)|str(a)|hash(a)|iter(a)|1 in a|reversed(a)|list(a)|format(a)
operator.iadd(a, 1)|operator.setitem(a, 0, 1)|operator.delitem(a, 0)
"""
CALLED = (
    "add radd iadd lt eq ne neg len bool index getitem call next round abs divmod float int str"
)
CALLED += " hash iter contains reversed format setitem delitem"


@pytest.mark.parametrize("text", METHODS.strip().replace("\n", "|").split("|"))
def test_special_methods_that_are_none(text):
    cls = type("Nones", (), {f"__{name}__": None for name in CALLED.split()})
    space = {"operator": operator}
    exec(f"def f(a):\n    return {text}", space)  # noqa: S102
    said = []
    for fn in (space["f"], smith(space["f"], backend="eager")):
        with pytest.raises(TypeError) as caught:
            fn(cls())
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_a_special_method_that_is_none_in_a_with_statement():
    class Nones:
        __enter__ = None
        __exit__ = None

    def f(a):
        with a:
            return 1

    for fn in (f, smith(f, backend="eager")):
        with pytest.raises(TypeError, match="'NoneType' object is not callable"):
            fn(Nones())


class Text(str):
    def __str__(self):
        return "other"


class Whole(int):
    def __int__(self):
        return 90

    def __index__(self):
        return 1


class Real(float):
    def __float__(self):
        return 90.0


class Raw(bytes):
    def __bytes__(self):
        return b"other"


SUBCLASSES = {
    "str": (Text("abc"), lambda s: (s + "z", s.title(), s.join("ab"), s[0], len(s), f"{s:>4}")),
    "int": (Whole(3), lambda n: (n + 1, -n, n * 2, n == 3, n.bit_length(), [4, 5, 6, 7][n])),
    "float": (Real(1.5), lambda r: (r + 1, -r, r == 1.5, r.is_integer())),
    "bytes": (Raw(b"abc"), lambda b: (b + b"z", b.upper(), b[0], len(b))),
}


@pytest.mark.parametrize("name", SUBCLASSES)
def test_the_content_of_a_subclass_is_not_what_it_converts_itself_to(name):
    value, read = SUBCLASSES[name]
    f = smith(lambda x, value: (x + 1, read(value))[1], backend="eager")
    assert f(torch.ones(1), value) == read(value)


def test_an_unbound_local_has_no_name():
    def f(x):
        try:
            return later  # noqa: F821
        except UnboundLocalError as e:
            return e.name, str(e)
        later = x  # noqa: F841

    assert smith(f, backend="eager")(torch.ones(1)) == f(1)


ALIAS = typing.Union[int, list[str]]  # noqa: UP007


def _nested(x):
    kinds = typing.Union[torch.Tensor, typing.Tuple[torch.Tensor, ...]]  # noqa: UP006, UP007
    maybe = typing.Optional[typing.Dict[str, ALIAS]]  # noqa: UP006, UP045
    return typing.cast(kinds, x) * 2, str(kinds), maybe, typing.Union[ALIAS, typing.List[int]]  # noqa: UP006, UP007


def test_types_of_types_are_written_in_one_graph(monkeypatch):
    compiled = smith(_nested, backend="eager", fullgraph=True)
    x = torch.ones(2)
    assert str(compiled(x)) == str(_nested(x))
    monkeypatch.setitem(globals(), "ALIAS", typing.Optional[float])  # noqa: UP045
    assert str(compiled(x)) == str(_nested(x))


def test_a_type_of_no_type_is_an_error():
    def wrong(x):
        try:
            return typing.Optional[x, 3]
        except TypeError as error:
            return str(error).partition(" ")[0]

    x = torch.ones(2)
    assert smith(wrong, backend="eager")(x) == wrong(x)
