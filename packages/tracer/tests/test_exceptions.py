"""Exceptions arrive with the user's type, message and line."""

import traceback

import pytest
import torch
import torchsmith_tracer
from torchsmith_tracer.errors import BackendError


class MyError(Exception):
    def __init__(self, text, extra):
        super().__init__(text)
        self.extra = extra


def where(error):
    """(function, source line) of the innermost frame in this file."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == __file__]
    return frames[-1].name, frames[-1].line


def both(fn, *args, **options):
    """The exceptions of eager and compiled, for a first and a second call."""
    compiled = torchsmith_tracer.compile(fn, **options)
    for _ in range(2):
        with pytest.raises(Exception) as eager:
            fn(*args)
        with pytest.raises(Exception) as ours:
            compiled(*args)
        assert type(ours.value) is type(eager.value)
        assert str(ours.value) == str(eager.value)
        assert where(ours.value) == where(eager.value)
    return ours.value


@pytest.mark.parametrize("fullgraph", [False, True])
def test_raise_in_the_function(fullgraph):
    def f(a):
        b = a + 1
        raise MyError("bad thing", [1, 2])

    assert both(f, torch.ones(2), fullgraph=fullgraph).extra == [1, 2]


@pytest.mark.parametrize("fullgraph", [False, True])
def test_raise_in_a_callee(fullgraph):
    def inner(x, k):
        if k > 2:
            raise ValueError(f"k is {k}")
        return x

    def f(a, k):
        return inner(a * 2, k) + 1

    both(f, torch.ones(2), 3, fullgraph=fullgraph)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_shape_error_of_an_operator(fullgraph):
    def f(a, b):
        c = a + 1
        return c @ b

    both(f, torch.ones(2, 3), torch.ones(2, 3), fullgraph=fullgraph)


def test_error_that_only_the_data_causes():
    def f(a, i):
        b = a * 2
        return torch.index_select(b, 0, i)

    both(f, torch.ones(3), torch.tensor([7]))


def test_python_errors():
    def name(a):
        return a + undefined_name  # noqa: F821

    def unbound(a):
        if a is None:
            b = 1
        return a + b

    def attribute(a):
        return a.no_such_attribute

    def key(a):
        return {"x": a}["y"]

    def types(a):
        return "x" + 1

    def arguments(a):
        return name(a, a)

    for fn in (name, unbound, attribute, key, types, arguments):
        both(fn, torch.ones(2))


def test_assertion(check):
    def f(a, n):
        assert n > 3, f"{n} is small"
        return a

    both(f, torch.ones(2), 2)


def test_handled_exceptions_stay_inside(check):
    def f(a, d):
        try:
            b = a * d["missing"]
        except KeyError as e:
            b = a + len(e.args)
        finally:
            b = b * 2
        try:
            raise MyError("x", 4)
        except (ValueError, MyError) as e:
            b = b + e.extra
        return b

    check(f, torch.ones(2), {}, graphs=1)


def test_operator_errors_reach_the_users_handler():
    def f(a, i):
        try:
            b = torch.index_select(a, 0, i)
        except IndexError:
            b = a - 1
        return b

    compiled = torchsmith_tracer.compile(f)
    for i in (torch.tensor([0]), torch.tensor([9])):
        assert torch.equal(compiled(torch.ones(3), i), f(torch.ones(3), i))


def test_exception_after_effects_keeps_them():
    def f(xs, a):
        xs.append(a + 1)
        raise MyError("late", 0)

    compiled = torchsmith_tracer.compile(f)
    xs = []
    for n in (1, 2):
        with pytest.raises(MyError, match="late"):
            compiled(xs, torch.ones(2))
        assert len(xs) == n and torch.equal(xs[-1], torch.full((2,), 2.0))


def test_exception_from_what_is_below_a_break():
    @torchsmith_tracer.disable
    def fail(x):
        raise MyError("below", 1)

    def f(a):
        b = a + 1
        fail(b)
        return b

    assert both(f, torch.ones(2)).extra == 1


def test_60_backend_errors_name_the_backend():
    def broken_backend(gm, inputs):
        raise ValueError("inner problem")

    def no_callable(gm, inputs):
        return 42

    for backend in (broken_backend, no_callable):
        compiled = torchsmith_tracer.compile(lambda a: a + 1, backend=backend)
        with pytest.raises(BackendError) as caught:
            compiled(torch.ones(2))
        assert backend.__name__ in str(caught.value)
        if backend is broken_backend:
            assert "ValueError: inner problem" in str(caught.value)
            assert isinstance(caught.value.__cause__, ValueError)
    assert "42" in str(caught.value)


def failing(h, n):
    twice, names = h * 2, {"n": n}
    if n > 1:
        raise ValueError(names)
    return twice[n + 5]


def variables(error):
    """Names and values of the variables of each frame of the program's."""
    entries = traceback.walk_tb(error.__traceback__)
    found = [f.f_locals for f, _ in entries if f.f_code.co_filename == __file__]
    return [{n: v for n, v in vs.items() if not n.startswith("___")} for vs in found[1:]]


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("n", [0, 2])
def test_the_frames_of_an_exception_have_their_variables(n, fullgraph):
    def f(a, n):
        y, lines = a + 1, [a, "text"]
        steps = iter(lines)
        next(steps)
        with torch.no_grad():
            return failing(y, n)

    compiled = torchsmith_tracer.compile(f, fullgraph=fullgraph)
    for _ in range(2):
        found = []
        for fn in (f, compiled):
            with pytest.raises((ValueError, IndexError)) as raised:
                fn(torch.ones(2), n)
            found.append(variables(raised.value))
        want, got = found
        assert want[0].pop("steps") and "steps" not in got[0]  # an iterator is left out
        assert [list(names) for names in got] == [list(names) for names in want]
        assert got[1]["names"] == {"n": n} and got[1]["twice"].tolist() == [4, 4]
        assert got[0]["lines"][1] == "text" and got[0]["y"].tolist() == [2, 2]
