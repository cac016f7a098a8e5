"""Sources: identity, text, prefixes."""

import pickle
from collections import OrderedDict
from enum import Enum

import pytest
from torchsmith_guards import (
    AttrSource,
    CallSource,
    ClassDictSource,
    ClosureSource,
    ContentSource,
    DefaultsSource,
    ItemSource,
    LocalSource,
    NamespaceSource,
    PinnedSource,
    ResultSource,
    TensorPropertySource,
)


class Color(Enum):
    RED = 1


X = LocalSource("x")

TEXTS = [
    (X, "x"),
    (ItemSource(NamespaceSource(), "g"), "G['g']"),
    (ItemSource(NamespaceSource("pkg.mod"), "g"), "M['pkg.mod']['g']"),
    (NamespaceSource(), "G"),
    (NamespaceSource("pkg.mod"), "M['pkg.mod']"),
    (AttrSource(X, "a"), "x.a"),
    (AttrSource(X, "not an id"), "getattr(x, 'not an id')"),
    (ItemSource(X, "k"), "x['k']"),
    (ItemSource(X, (1, "a")), "x[(1, 'a')]"),
    (ItemSource(X, Color.RED), "x[<Color.RED>]"),
    (ContentSource(X, "keys", dict), "tuple(dict.keys(x))"),
    (ContentSource(X, "values", OrderedDict), "tuple(OrderedDict.values(x))"),
    (ItemSource(X, "k", dict), "dict_entry(x, 'k')"),
    (CallSource(X), "x()"),
    (DefaultsSource(X, 0), "x.__defaults__[0]"),
    (DefaultsSource(X, "k"), "x.__kwdefaults__['k']"),
    (ClosureSource(X, 1), "x.__closure__[1].cell_contents"),
    (TensorPropertySource(X, "size", 1), "x.size(1)"),
    (TensorPropertySource(X, "storage_offset"), "x.storage_offset()"),
    (PinnedSource(len), "len"),
    (ClassDictSource(dict), "vars(dict)"),
    (CallSource(PinnedSource(len), ("a", 1)), "len('a', 1)"),
    (ResultSource(X, id), "id(x)"),
]


@pytest.mark.parametrize(("source", "text"), TEXTS, ids=[t for _, t in TEXTS])
def test_text(source, text):
    assert source.expr == text == str(source)


def test_all_sources_differ_from_each_other():
    # A local that emitted code makes and a parameter of the same name are different things.
    sources = [s for s, _ in TEXTS] + [PinnedSource(max)]
    assert len(set(sources)) == len(sources)


def test_equal_paths_are_equal_keys():
    one = ItemSource(AttrSource(LocalSource("m"), "layers"), 0)
    two = ItemSource(AttrSource(LocalSource("m"), "layers"), 0)
    assert one == two
    assert hash(one) == hash(two)
    assert {one: 1}[two] == 1


def test_keys_of_different_type_are_different_paths():
    assert ItemSource(X, 1) != ItemSource(X, True)
    assert ItemSource(X, 1) != ItemSource(X, 1.0)


def test_root_and_base():
    deep = ItemSource(AttrSource(X, "layers"), 0)
    assert deep.root is X
    assert deep.base == AttrSource(X, "layers")
    assert X.base is None


def test_sources_are_immutable_and_pickle():
    with pytest.raises(AttributeError):
        X.name = "y"
    source = ItemSource(AttrSource(X, "a"), 1)
    assert pickle.loads(pickle.dumps(source)) == source
