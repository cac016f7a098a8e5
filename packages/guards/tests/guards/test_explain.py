"""Failures: old value, new value, and advice in the user's terms."""

from types import SimpleNamespace

import pytest
import torch
from torchsmith_guards import (
    GLOBAL_STATE,
    UNCHANGED_NUMBER,
    AttrSource,
    GlobalState,
    Guard,
    GuardKind,
    GuardSet,
    ItemSource,
    LocalSource,
    NamespaceSource,
    ShapeEnv,
    TensorPropertySource,
    TensorSpec,
)

X = LocalSource("x")
K = GuardKind
TENSOR = torch.ones(4, 3)
TENSOR_GUARD = Guard(X, K.TENSOR, TensorSpec.of(TENSOR))


def failure(guard, *args, params=("x",)):
    (found,) = GuardSet([guard]).compile(params).explain(*args)
    assert found.guard is guard
    return found


@pytest.mark.parametrize(
    ("guard", "value", "old", "new", "hint"),
    [
        (Guard(X, K.CONSTANT, 3), 4, "3", "4", "distinct constant"),
        (Guard(X, K.CONSTANT, 3, UNCHANGED_NUMBER), 4, "3", "4", "becomes symbolic"),
        (Guard(X, K.CONSTANT, 1.5, UNCHANGED_NUMBER), 2.5, "1.5", "2.5", "becomes symbolic"),
        (Guard(X, K.CONSTANT, 3, UNCHANGED_NUMBER), "a", "3", "a", "distinct constant"),
        (Guard(X, K.CONSTANT, "a"), "b", "a", "b", "distinct constant"),
        (Guard(X, K.CONSTANT, None), TENSOR, "None", "a Tensor of float32 [4, 3]", "constant"),
        (TENSOR_GUARD, None, "a Tensor", "None", "pass a tensor"),
        (Guard(X, K.TYPE, list), (), "type list", "type tuple", "same type"),
        (Guard(X, K.LENGTH, (list, 2)), [1], "list of 2", "list of 1", "length"),
        (Guard(X, K.DICT_KEYS, (dict, ("a",))), {"b": 1}, "keys ['a']", "keys ['b']", "length"),
        (Guard(X, K.HASATTR, ("n", True)), 3, "'n' present", "absent", ""),
        (TENSOR_GUARD, torch.ones(5, 3), "4", "5", "mark_dynamic(tensor, 0), or dynamic=True"),
        (TENSOR_GUARD, torch.ones(1, 3), "4", "1", "0 and 1"),
        (TENSOR_GUARD, torch.ones(3, 4).t(), "3", "1", "contiguous"),
        (TENSOR_GUARD, TENSOR.double(), "torch.float32", "torch.float64", "convert"),
        (TENSOR_GUARD, TENSOR[0], "2 dims", "1 dims", "number of dimensions"),
        (TENSOR_GUARD, 3, "a Tensor", "type int", "pass a tensor"),
    ],
)  # fmt: skip
def test_old_new_hint(guard, value, old, new, hint):
    found = failure(guard, value)
    was, now = found.texts
    assert old in was and new in now
    assert hint in found.hint


@pytest.mark.parametrize(
    ("source", "value", "text"),
    [
        (X, torch.ones(5, 3), "x.size(0): expected 4, got 5"),
        (X, TENSOR.double(), "x.dtype: expected torch.float32, got torch.float64"),
        (X, TENSOR[0], "x: expected 2 dims, got 1 dims"),
        (
            ItemSource(AttrSource(X, "_parameters"), "w"),
            SimpleNamespace(_parameters={"w": torch.ones(5, 3)}),
            "x.w.size(0): expected 4, got 5",
        ),
    ],
)
def test_values_are_named_as_the_program_names_them(source, value, text):
    found = failure(Guard(source, K.TENSOR, TensorSpec.of(TENSOR)), value)
    assert str(found).splitlines()[0] == text


def test_globals_are_called_by_their_names():
    guard = Guard(ItemSource(NamespaceSource(), "scale"), K.CONSTANT, 3)
    (found,) = GuardSet([guard]).compile([], {"G": {"scale": 4}}).explain()
    assert str(found).startswith("scale: expected 3, got 4")


def test_missing_path_names_the_exception():
    found = failure(Guard(AttrSource(X, "a"), K.CONSTANT, 3), object())
    assert isinstance(found.new, AttributeError)
    assert "not where it was" in found.hint


def test_global_state_names_what_changed():
    guards = GuardSet([Guard(GLOBAL_STATE, K.GLOBAL_STATE, GlobalState.capture())]).compile([])
    with torch.no_grad():
        (found,) = guards.explain()
    assert (found.old, found.new) == ("grad_enabled=True", "grad_enabled=False")


def test_shape_relations_name_the_sizes():
    env = ShapeEnv(where=lambda: "app.py:3")
    size = env.create_symbol(4, TensorPropertySource(X, "size", 0))
    assert size <= 7
    guard = env.shape_guards()[-1]
    found = failure(guard, torch.ones(9))
    assert found.old == "x.size(0) <= 7"
    assert found.new == "x.size(0) = 9"
    assert "app.py:3" in str(found)


def test_a_number_that_is_needed_itself_is_told_by_its_values():
    env = ShapeEnv(where=lambda: "app.py:3")
    sizes = ItemSource(NamespaceSource(), "sizes")
    size = env.create_symbol(4, ItemSource(sizes, "n"), "unspecified")
    assert int(size) == 4
    (guard,) = env.shape_guards()[1:]
    (found,) = GuardSet([guard]).compile([], {"G": {"sizes": {"n": 9}}}).explain()
    first, why, hint = str(found).splitlines()
    assert first == "sizes['n']: expected 4, got 9 (app.py:3)"
    assert why.endswith("the program needs the number itself")
    assert "make it a tensor" in hint


def test_relations_between_objects():
    y = LocalSource("y")
    a, b = torch.ones(1), torch.ones(1)
    assert "same object as y" in str(
        failure(Guard(X, K.SAME_OBJECT, y), a, b, params=("x", "y")).old
    )
    assert "distinct" in str(failure(Guard(X, K.NOT_SAME, (y,)), a, a, params=("x", "y")).old)


def test_text_has_reason_and_line():
    text = str(failure(Guard(X, K.CONSTANT, 3, "an int argument", "app.py:7"), 4))
    assert text.startswith("x: expected 3, got 4 (app.py:7)")
    assert "needed because: an int argument" in text
    assert "hint: " in text


def test_no_code_of_a_class_of_tensors_is_run():
    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            raise AssertionError(func)

    assert failure(TENSOR_GUARD, TENSOR.as_subclass(Loud)).new is Loud
