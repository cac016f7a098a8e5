"""Guard sets: duplicates, rollback, removal; validation of guards."""

import pytest
import torch
from torchsmith_guards import (
    Guard,
    GuardKind,
    GuardSet,
    LocalSource,
    TensorSpec,
)
from torchsmith_guards.errors import GuardError

X = LocalSource("x")
K = GuardKind


def test_duplicates_are_kept_once():
    guards = GuardSet()
    guards.add(Guard(X, K.CONSTANT, 3, "first"))
    guards.add(Guard(LocalSource("x"), K.CONSTANT, 3, "second"))
    assert [g.why for g in guards] == ["first"]
    assert Guard(X, K.CONSTANT, 3) in guards


def test_constants_of_different_type_are_different_guards():
    guards = GuardSet([Guard(X, K.CONSTANT, v) for v in (1, True, 1.0, -0.0, 0.0, 0)])
    assert len(guards) == 6


def test_unhashable_and_equal_objects_are_told_apart_by_identity():
    one, two = [], []
    guards = GuardSet([Guard(X, K.ID, one), Guard(X, K.ID, two), Guard(X, K.ID, one)])
    assert len(guards) == 2


def test_keys_may_be_unhashable_dict_subclasses():
    guards = GuardSet([Guard(X, K.DICT_KEYS, (dict, ("a", 1)))] * 2)
    assert len(guards) == 1


def test_rollback():
    guards = GuardSet([Guard(X, K.TYPE, int)])
    mark = guards.checkpoint()
    guards.add(Guard(X, K.CONSTANT, 3))
    guards.add(Guard(X, K.TYPE, int))
    guards.rollback(mark)
    assert [g.kind for g in guards] == [K.TYPE]
    guards.add(Guard(X, K.CONSTANT, 3))
    assert len(guards) == 2


def test_objects_that_print_alike_are_different_constants():
    class Quiet:
        def __repr__(self):
            return "quiet"

    guards = GuardSet([Guard(X, K.CONSTANT, Quiet()), Guard(X, K.CONSTANT, Quiet())])
    assert len(guards) == 2


def test_compiled_checkers_do_not_follow_the_set():
    guards = GuardSet([Guard(X, K.TYPE, int)])
    made = guards.compile(["x"])
    guards.add(Guard(X, K.CONSTANT, 3))
    assert made.check(4) is True
    assert guards.compile(["x"]).check(4) is False


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (K.TYPE, 3),
        (K.LENGTH, 3),
        (K.LENGTH, (list, "2")),
        (K.DICT_KEYS, (dict, ["a"])),
        (K.DICT_CONTAINS, "a"),
        (K.HASATTR, (3, True)),
        (K.TENSOR, torch.ones(1)),
        (K.CODE, len),
        (K.SAME_OBJECT, "x"),
        (K.NOT_SAME, (X, "y")),
        (K.GLOBAL_STATE, None),
        (K.SHAPE, "s0 > 3"),
    ],
)
def test_expected_must_fit_the_kind(kind, expected):
    with pytest.raises(GuardError, match="TS-G001"):
        Guard(X, kind, expected)


def test_str_lists_the_guards():
    text = str(GuardSet([Guard(X, K.TENSOR, TensorSpec.of(torch.ones(2)))]))
    assert "tensor  x  TensorSpec" in text
