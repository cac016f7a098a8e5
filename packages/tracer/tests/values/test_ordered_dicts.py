"""Attributes of an ``OrderedDict``, which torch keeps the versions of a ``state_dict`` in."""

from collections import OrderedDict

import pytest
import torch
import torchsmith_tracer as tracer


def born():
    d = OrderedDict(a=1)
    d.x = OrderedDict()
    d.x["y"] = 2
    return d, d.x, hasattr(d, "x"), hasattr(d, "z"), vars(d)


def stored(d):
    d.added = len(d)
    d["new"] = d.added
    return vars(d), list(d)


def deleted(d):
    d.gone = 1
    del d.gone
    return hasattr(d, "gone"), getattr(d, "gone", "none")


def missing(d):
    try:
        d.nothing  # noqa: B018
    except AttributeError:
        return "no attribute"


def deleted_missing(d):
    del d.nothing


def copied(d):
    d.x = 1
    return hasattr(d.copy(), "x")


@pytest.mark.parametrize("program", [stored, deleted, missing, copied])
def test_attributes(check, program):
    check(program, OrderedDict(a=1, b=2), fullgraph=True)


def test_attributes_of_a_new_one(check):
    check(born, fullgraph=True)


def test_a_missing_attribute_is_not_deleted():
    with pytest.raises(AttributeError):
        tracer.compile(deleted_missing, backend="eager")(OrderedDict())


def test_attributes_of_the_callers_are_read_and_guarded():
    compiled = tracer.compile(lambda d: (hasattr(d, "x"), getattr(d, "x", None)), fullgraph=True)
    d = OrderedDict(a=1)
    assert compiled(d) == (False, None)
    d.x = 3
    assert compiled(d) == (True, 3)
    d.x = 4
    assert compiled(d) == (True, 4)
    del d.x
    assert compiled(d) == (False, None)


def modules():
    torch.manual_seed(0)
    return [torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)) for _ in range(2)]


@pytest.mark.parametrize("kwargs", [{}, {"prefix": "m."}, {"keep_vars": True}])
def test_a_state_dict_is_made_inside(kwargs):
    net, _ = modules()
    got = tracer.compile(lambda: net.state_dict(**kwargs), backend="eager", fullgraph=True)()
    want = net.state_dict(**kwargs)
    assert (type(got), list(got), got._metadata) == (type(want), list(want), want._metadata)
    assert all(torch.equal(got[k], want[k]) and type(got[k]) is type(want[k]) for k in want)


def test_a_state_dict_is_loaded_inside(capture):
    source, target = modules()
    compiled = tracer.compile(
        lambda: target.load_state_dict(source.state_dict()), backend=capture, fullgraph=True
    )
    assert str(compiled()) == "<All keys matched successfully>"
    assert all(map(torch.equal, target.state_dict().values(), source.state_dict().values()))
    assert capture.n == 1


def test_a_state_dict_that_does_not_fit_raises_what_eager_raises():
    net, _ = modules()
    with pytest.raises(RuntimeError) as want:
        net.load_state_dict({"x": 1})
    with pytest.raises(RuntimeError) as got:
        tracer.compile(lambda: net.load_state_dict({"x": 1}), backend="eager")()
    assert str(got.value) == str(want.value)


def shrinks_at_the_end(d, x):
    for key, value in d.items():
        x = x + value
        if key == list(d)[-1]:
            d.popitem()
    return x


def grows_at_the_end(d, x):
    for i, key in enumerate(d):
        x = x + d[key]
        if i == len(d) - 1 and len(d) < 6:
            d[f"{key}{i}"] = i
    return x


def grows_at_the_first_in_reverse(d, x):
    for key in reversed(d):
        x = x * 2
        if key == "a":
            d["new"] = 1
    return x


def moves_at_the_end(d, x):
    for key in d:
        x = x * 2 + d[key]
        if key == "c":
            d.move_to_end("a")
    return x


def cleared_at_the_end(d, x):
    it = iter(d.values())
    for _ in range(3):
        x = x + next(it)
    d.clear()
    return x, list(it), next(it, "over")


def fills_an_empty_one(d, x):
    empty = type(d)()
    it = iter(empty)
    empty["a"] = 1
    return x, list(it)


def goes_on_after_a_break(d, x):
    it = iter(d.items())
    for _ in range(3):
        x = x + next(it)[1]
    for i in range(5):
        d[f"later{i}"] = i
    print(end="", flush=True)
    return x, list(it)


def shrinks_before_the_end(d, x):
    for key in d:
        x = x + d[key]
        if key == "b":
            d.pop("c")
    return x


@pytest.mark.parametrize("cls", [OrderedDict, dict])
@pytest.mark.parametrize(
    "program",
    [
        shrinks_at_the_end,
        grows_at_the_end,
        grows_at_the_first_in_reverse,
        cleared_at_the_end,
        fills_an_empty_one,
        goes_on_after_a_break,
        shrinks_before_the_end,
    ],
)
def test_changes_while_the_last_key_is_visited(agree, program, cls):
    agree(program, cls(a=1, b=2, c=3), torch.ones(2))


def test_an_order_changed_while_the_last_key_is_visited(agree):
    agree(moves_at_the_end, OrderedDict(a=1, b=2, c=3), torch.ones(2))
