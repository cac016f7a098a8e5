"""Floats that may stay symbols where torch's C++ would ask for them."""

import math

import pytest
import torch
import torch.nn.functional as F
from torchsmith_guards import LocalSource, ShapeEnv, ShapeRelation, varying_floats, with_examples

X = torch.ones(2, 3)


def number(value, name="p"):
    env = ShapeEnv()
    return env, env.create_symbol(value, LocalSource(name), "unspecified")


def relations(env):
    found = [guard.expected for guard in env.shape_guards()]
    return sorted(relation.text() for relation in found if isinstance(relation, ShapeRelation))


@pytest.mark.parametrize(
    ("target", "place", "named"),
    [
        (F.dropout, 1, "p"),
        (F.cross_entropy, 7, "label_smoothing"),
        (F.batch_norm, 6, "momentum"),
        (F.layer_norm, 4, "eps"),
        ("bernoulli_", 1, "p"),
        (torch.normal, 1, "std"),
        (torch.quantile, 1, "q"),
    ],
)
def test_the_argument_is_found_by_place_and_name(target, place, named):
    env, p = number(0.25)
    args = (X,) + (None,) * (place - 1) + (p,)
    assert varying_floats(target, args, {}) == {place: p}
    assert varying_floats(target, (X,), {named: p}) == {named: p}
    assert with_examples(target, args, {"other": 1}) == ((*args[:-1], 0.25), {"other": 1})
    assert with_examples(target, (X,), {named: p}) == ((X,), {named: 0.25})


def test_what_is_guarded_are_the_limits_alone():
    env, p = number(0.25)
    with_examples(F.dropout, (X, p), {})
    assert relations(env) == ["p < 1.0", "p > 0.0"]
    env, margin = number(-3.0)
    assert with_examples(F.margin_ranking_loss, (X, X, X, margin), {})[0][3] == -3.0
    assert relations(env) == []


@pytest.mark.parametrize("value", [1.5, -0.5])
def test_outside_of_the_limits_the_symbol_stays(value):
    _, p = number(value)
    assert varying_floats(F.dropout, (X, p), {}) == {}
    assert with_examples(F.dropout, (X, p), {})[0][1] is p


def test_others_stay():
    _, eps = number(1e-5)
    assert varying_floats(F.local_response_norm, (X, 3), {"alpha": eps}) == {}
    assert varying_floats(F.dropout, (X, 0.5), {"training": True}) == {}
    assert varying_floats(F.pad, (X, (1, 1)), {"value": math.inf}) == {}
    assert varying_floats(X.add, (eps,), {}) == {}
