"""Graph breaks: right results, resumed wherever they are, and reported."""

import contextlib
import time

import pytest
import torch
import torchsmith_tracer
from torchsmith_tracer.errors import FullGraphError

calls = []


@torchsmith_tracer.disable
def opaque(x, scale=2):
    calls.append(scale)
    return x * scale


@pytest.fixture(autouse=True)
def no_calls():
    calls.clear()


def test_print_splits_the_graph(check, capsys):
    def f(a):
        a = a + 1
        print("hi", flush=True)
        return a * 2

    check(f, torch.ones(3), graphs=2, breaks=["print"])
    assert capsys.readouterr().out == "hi\n" * 4


def test_fullgraph_names_id_place_and_advice():
    def f(a):
        a = a + 1
        print("hi", flush=True)
        return a * 2

    with pytest.raises(FullGraphError) as caught:
        torchsmith_tracer.compile(f, fullgraph=True)(torch.ones(3))
    error = caught.value
    assert isinstance(error, RuntimeError)
    assert error.code == "TS-T011"
    assert error.place == f"{__file__}:{f.__code__.co_firstlineno + 2}"
    text = str(error)
    assert 'print("hi", flush=True)' in text and "^^^^" in text and error.advice in text


def test_opaque_call_with_keywords(check):
    def f(a):
        b = a + 1
        c = opaque(b, scale=3)
        return b, c - 1

    check(f, torch.ones(3), graphs=2, breaks=["opaque-call"])
    assert calls == [3] * 4


def test_opaque_call_with_star_arguments(check):
    def f(a, *rest, **named):
        b = a + 1
        c = opaque(b, *rest, **named)
        return b + c

    check(f, torch.ones(3), 4, graphs=2, breaks=["opaque-call"])
    check(f, torch.ones(3), scale=5, breaks=["opaque-call"])


def test_break_below_a_pending_call(check):
    def f(a):
        return torch.add(a * 2, opaque(a + 1)).relu()

    check(f, torch.ones(3), graphs=2, breaks=["opaque-call"])


def test_data_dependent_branch(check):
    def f(a):
        b = a * 2
        if b.sum() > 0:
            return b + 1
        return b - 1

    log = check(f, torch.ones(3), breaks=["data-dependent-branch"], graphs=2)
    compiled = torchsmith_tracer.compile(f)
    for x in (torch.ones(3), -torch.ones(3), torch.ones(3)):
        assert torch.equal(compiled(x), f(x))
    assert log.breaks[0].category.value == "data-dependent"


@pytest.mark.parametrize("form", ["not", "and", "or", "while", "ternary", "assert"])
def test_data_dependent_forms(form, check):
    def negated(a):
        return a + 1 if not (a.sum() > 0) else a - 1

    def both(a):
        b = a.sum() > 0 and a.max() > 2
        return a + 1 if b else a

    def either(a):
        b = (a.sum() < 0) or a * 3
        return b + 1

    def loop(a):
        while a.sum() < 10:
            a = a * 2
        return a

    def ternary(a):
        return (a + 1 if a[0] > 0 else a + 2) * 3

    def asserts(a):
        b = a + 1
        assert b.sum() > 0, "negative"
        return b * 2

    fn = {
        "not": negated,
        "and": both,
        "or": either,
        "while": loop,
        "ternary": ternary,
        "assert": asserts,
    }[form]
    compiled = torchsmith_tracer.compile(fn)
    for x in (torch.ones(3), torch.tensor([0.5, 3.0, 1.0]), torch.full((3,), 0.1)):
        assert torch.equal(torch.as_tensor(compiled(x)), torch.as_tensor(fn(x)))


def test_item(check):
    def f(a):
        n = (a + 1).sum().item()
        return a * n

    check(f, torch.ones(3), graphs=2, breaks=["item"])


def test_loop_with_a_break_in_its_body_resumes_inside(check, capsys):
    def f(a, n):
        total = a
        for i in range(n):
            total = total * 2
            print(i, flush=True)
            total = total + i
        return total

    compiled = torchsmith_tracer.compile(f)
    a = torch.ones(3)
    for n in (0, 1, 3, 6):
        assert torch.equal(compiled(a, n), f(a, n))
    report = torchsmith_tracer.explain(f)(a, 4)
    assert report.graph_count >= 2
    assert all(frame.eager is False for frame in report.frames)


def test_long_loop_does_not_grow_the_stack():
    def f(a, xs):
        for x in xs:
            opaque(x)
            a = a + x
        return a

    compiled = torchsmith_tracer.compile(f)
    out = compiled(torch.zeros(1), list(range(3000)))
    assert out.item() == sum(range(3000))
    assert len(calls) == 3000
    region = compiled._torchsmith_region
    assert len(region.log.frames) < 12


def test_while_loop_with_a_break(check):
    def f(a, n):
        while n > 0:
            a = a + n
            opaque(a)
            n -= 1
        return a

    compiled = torchsmith_tracer.compile(f)
    a = torch.ones(2)
    for n in (3, 1, 5):
        assert torch.equal(compiled(a, n), f(a, n))


def test_break_and_continue_around_a_break(check):
    def f(a, xs):
        for x in xs:
            if x == 2:
                continue
            if x == 5:
                break
            a = opaque(a) + x
        else:
            a = a - 100
        return a

    compiled = torchsmith_tracer.compile(f)
    for xs in ([1, 2, 3], [1, 5, 3], []):
        assert torch.equal(compiled(torch.ones(2), xs), f(torch.ones(2), xs))


class Recorder:
    def __init__(self):
        self.log = []

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, *rest):
        self.log.append(kind)
        return False


def test_break_within_a_context_manager():
    def f(a, cm):
        with cm:
            b = a + 1
            c = opaque(b)
            d = c * 2
        return d, b

    compiled = torchsmith_tracer.compile(f)
    for _ in range(2):
        one, two = Recorder(), Recorder()
        a = torch.ones(2)
        got, expected = compiled(a, one), f(a, two)
        assert torch.equal(got[0], expected[0]) and torch.equal(got[1], expected[1])
        assert one.log == two.log == ["enter", None]


def test_exception_of_an_opaque_call_leaves_through_the_context_manager():
    @torchsmith_tracer.disable
    def fail(x):
        raise KeyError("gone")

    def f(a, cm):
        with cm:
            fail(a + 1)
        return a

    compiled = torchsmith_tracer.compile(f)
    cm = Recorder()
    with pytest.raises(KeyError, match="gone"):
        compiled(torch.ones(2), cm)
    assert cm.log == ["enter", KeyError]


def test_break_within_no_grad_resumes_inside_it(check):
    def f(a):
        with torch.no_grad():
            b = a * 2
            opaque(b)
            c = b + a
            inside = torch.is_grad_enabled()
        return c, inside, torch.is_grad_enabled(), a * 3

    check(f, torch.ones(3, requires_grad=True), graphs=2, breaks=["opaque-call"])
    assert torch.is_grad_enabled()


def test_grad_mode_is_restored_when_the_opaque_call_raises():
    @torchsmith_tracer.disable
    def fail(x):
        raise KeyError("gone")

    def f(a):
        with torch.no_grad():
            fail(a * 2)

    compiled = torchsmith_tracer.compile(f)
    for _ in range(2):
        with pytest.raises(KeyError):
            compiled(torch.ones(2))
        assert torch.is_grad_enabled()


def test_break_in_a_try_block_whose_handler_is_needed():
    @torchsmith_tracer.disable
    def fail(x, really):
        if really:
            raise ValueError("no")
        return x

    def f(a, really):
        b = a + 1
        try:
            b = fail(b, really) * 2
        except ValueError as e:
            b = b - 10
            text = str(e)
        else:
            text = "fine"
        finally:
            b = b + 100
        return b, text

    compiled = torchsmith_tracer.compile(f)
    for really in (False, True, True, False):
        got, expected = compiled(torch.ones(2), really), f(torch.ones(2), really)
        assert torch.equal(got[0], expected[0]) and got[1] == expected[1]


def test_break_in_an_inlined_callee_keeps_the_callers(check):
    def inner(x, k):
        y = x * k
        y = opaque(y)
        return y + 1

    def middle(x):
        z = x - 1
        return inner(z, 3) * z

    def outer(x):
        w = x + 5
        return middle(w) + w

    # One graph before the break, and one for the rest of each of the three functions.
    log = check(outer, torch.ones(3), graphs=4, breaks=["opaque-call"])
    functions = [p.function.split(".")[-1] for p in log.breaks[0].stack]
    assert functions == ["outer", "middle", "inner"]
    assert not any(frame.eager for frame in log.frames)


def test_break_in_a_callee_inside_a_loop_and_a_context():
    def inner(x, i):
        return opaque(x, i) + 1

    def f(a, cm, n):
        out = []
        for i in range(n):
            with cm:
                out.append(inner(a + i, i))
        return out

    compiled = torchsmith_tracer.compile(f)
    one, two = Recorder(), Recorder()
    got, expected = compiled(torch.ones(2), one, 4), f(torch.ones(2), two, 4)
    assert all(torch.equal(x, y) for x, y in zip(got, expected, strict=True))
    assert one.log == two.log


@pytest.mark.parametrize("form", ["plain", "in a callee", "in a block"])
def test_nothing_is_left_to_do_but_to_return(form, check):
    def last(a):
        return opaque(a + 1)

    def f(a):
        if form == "in a callee":
            return last(a) * 2
        with torch.no_grad() if form == "in a block" else contextlib.nullcontext():
            return opaque(a * 2)

    check(f, torch.ones(3), breaks=["opaque-call"])


def test_an_ellipsis_among_what_a_break_leaves(agree):
    def f(a, k):
        place = (..., k)
        a[..., k:] += opaque(a)[..., k:]
        return a[place], opaque({"all": ...})

    def fails(a, b):
        a[..., -1:] += b[..., -2:]
        return a

    for k in range(3):
        agree(f, torch.ones(4), k)
    for size in ((3,), (3, 3), (4, 3)):
        agree(fails, torch.ones(size), torch.ones(size))


def test_break_in_a_comprehension(check):
    def f(a, xs):
        b = a + 1
        out = [opaque(b, x) for x in xs]
        return out, b * 2

    compiled = torchsmith_tracer.compile(f)
    got, expected = compiled(torch.ones(2), [1, 2, 3]), f(torch.ones(2), [1, 2, 3])
    assert all(torch.equal(x, y) for x, y in zip(got[0], expected[0], strict=True))
    assert torch.equal(got[1], expected[1])


def test_closures_over_a_break():
    def f(a):
        count = 0

        def bump(x):
            nonlocal count
            count += 1
            return x + count

        b = bump(a)
        opaque(b)
        c = bump(b)
        return c, count, bump

    compiled = torchsmith_tracer.compile(f)
    for _ in range(2):
        c, count, bump = compiled(torch.ones(2))
        assert torch.equal(c, torch.full((2,), 4.0)) and count == 2
        assert torch.equal(bump(torch.zeros(1)), torch.tensor([3.0]))


def test_live_variables_only(capture):
    def f(a):
        dead = a * 3
        kept = a + 1
        made = [kept]
        opaque(a)
        made.append(kept * 2)
        return made

    compiled = torchsmith_tracer.compile(f, backend=capture)
    got = compiled(torch.ones(2))
    assert torch.equal(got[0], torch.full((2,), 2.0))
    assert torch.equal(got[1], torch.full((2,), 4.0))
    assert len(capture.outputs(0)) == 1


def test_what_is_called_below_a_break_is_captured(capture):
    def below(x):
        return (x * 2).relu()

    @torchsmith_tracer.disable
    def run(fn, x):
        return fn(x)

    def f(a, fn):
        with contextlib.suppress(KeyError):
            a = a + 1
        print(end="", flush=True)
        return fn(a)

    compiled = torchsmith_tracer.compile(f, backend=capture)
    assert torch.equal(compiled(torch.ones(2), below), torch.full((2,), 4.0))
    assert any("relu" in str(t) for i in range(capture.n) for t in capture.targets(i))


def test_effects_before_a_break_are_seen_by_the_call():
    class Box:
        pass

    seen = []

    @torchsmith_tracer.disable
    def look(box):
        seen.append((box.value.clone(), list(box.items)))
        box.value = box.value + 100

    def f(a, box):
        box.value = a + 1
        box.items.append(1)
        look(box)
        box.items.append(2)
        return box.value * 2

    compiled = torchsmith_tracer.compile(f)
    box = Box()
    box.items = []
    out = compiled(torch.ones(2), box)
    assert torch.equal(out, torch.full((2,), 204.0))
    assert torch.equal(seen[0][0], torch.full((2,), 2.0)) and seen[0][1] == [1]
    assert box.items == [1, 2]


def test_unsupported_python_is_a_recorded_break(check):
    def f(a):
        b = a + 1
        names = sorted(vars(opaque))
        c = b * len(names)
        return c

    compiled = torchsmith_tracer.compile(f)
    assert torch.equal(compiled(torch.ones(2)), f(torch.ones(2)))


def test_super_without_arguments_after_a_break(program):
    def body(C):
        class Base:
            def m(self, x):
                return x * 2

            @classmethod
            def c(cls, x):
                return x + 1

        class Derived(Base):
            def m(self, x):
                time.sleep(0)
                y = super().m(x)
                time.sleep(0)
                return y + super().m(x)

            def captured(self, x):
                def inner():
                    return self.m(x)

                time.sleep(0)
                return inner() + super().m(x)

            def rebound(self, x):
                time.sleep(0)
                this, self = self, None
                time.sleep(0)
                self = this
                return super().m(x)

            def loop(self, x):
                for _ in range(2):
                    time.sleep(0)
                    x = super().m(x)
                return x

            def deleted(self, x):
                del self
                time.sleep(0)
                try:
                    return super().m(x)
                except RuntimeError as e:
                    return str(e)

            @classmethod
            def c(cls, x):
                time.sleep(0)
                return super().c(x)

        names = ("m", "captured", "rebound", "loop", "deleted", "c")
        return [C(getattr(Derived(), name))(torch.ones(1)) for name in names for _ in range(2)]

    program(body, broken=True)


METHODS = {
    "roll": lambda x, t: x.roll(-int(t), 1) * 2,
    "narrow": lambda x, t: x.narrow(1, 0, int(t)) * 2,
    "clamp": lambda x, t: (x + 1).clamp(max=t.item()) * 2,
    "index_fill": lambda x, t: x.index_fill(0, torch.arange(2), t.item()).sin(),
    "written": lambda x, t: x.clone().mul_(t.item()).add_(1) + x,
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("leaf", [False, True])
def test_a_tensors_method_that_was_looked_up_before_a_break_is_captured(capture, method, leaf):
    compiled = torchsmith_tracer.compile(METHODS[method], backend=capture)
    x = torch.arange(15.0).reshape(3, 5)
    x = torch.nn.Parameter(x) if leaf else x
    for number in (2, 2, 3):
        t = torch.tensor(number)
        torch.testing.assert_close(compiled(x, t), METHODS[method](x, t), check_stride=True)
    breaks = compiled._torchsmith_region.log.breaks
    assert {each.name for each in breaks} == {"item"}


def test_the_tensor_of_a_method_that_is_called_after_a_break_is_written(check):
    def f(x, t):
        y = x + 1
        view = y[0]
        y.mul_(t.item())
        return y, view * 2

    check(f, torch.ones(3, 2), torch.tensor(3.0), breaks=["item"])


def counted_down(n):
    while n:
        yield n
        n -= 1
    raise ZeroDivisionError("ended")


class Indexed:
    def __getitem__(self, key):
        raise ZeroDivisionError(key)

    @property
    def broken(self):
        raise ZeroDivisionError("property")


@pytest.mark.parametrize("given", [counted_down, Indexed])
def test_what_python_code_raises_in_a_step_is_caught_each_time(given):
    opaque = torchsmith_tracer.disable(lambda x: x)

    def f(x, it, seen):
        try:
            for i in it:
                seen.append(opaque(i))
        except ZeroDivisionError as e:
            return x + 1, str(e)
        return x

    def g(x, obj, seen):
        for _ in range(2):
            obj = opaque(obj)
            try:
                seen.append(obj[x.sum().item()])
            except ZeroDivisionError as e:
                seen.append(str(e))
            try:
                seen.append(obj.broken)
            except ZeroDivisionError as e:
                seen.append(str(e))
        return x + 1

    fn, make = (f, lambda: given(2)) if given is counted_down else (g, given)
    compiled = torchsmith_tracer.compile(fn, backend="eager")
    for _ in range(6):  # CPython has its own code for what has been run a few times
        ours, eager = [], []
        want, got = fn(torch.ones(2), make(), eager), compiled(torch.ones(2), make(), ours)
        assert repr((got, ours)) == repr((want, eager))


def captured_in_comprehensions(x, items, k=3):
    outer = lambda: k  # noqa: E731
    opaque(x)
    made = [[(lambda: k * x, outer()) for k in items if k] + [lambda: (k, outer())] for k in items]
    opaque(x)
    k = 7
    again = {k: (lambda: k) for k in items}
    found = [f[0]() if isinstance(f, tuple) else f() for row in made for f in row]
    return found, outer(), k, [f() for f in again.values()], [outer() for k in items]


def hidden_in_one_another(x, items, a=1, b=2):
    outer = lambda: (a, b)  # noqa: E731
    opaque(x)
    texts = {str([opaque(1) for a in items]): (lambda: a)() for a in items}
    rows = [
        ([a for a in items], (lambda: a)(), [(a, opaque(b)) for a in items for b in items], a)
        for a in items
    ]
    pairs = [([(lambda: (a, b))() for b in items], (lambda: (a, b))()) for a, b in [(1, 2), (3, 4)]]
    nested = [[(lambda: a)() for a in [a, a + 1]] + [a] for a in items if [a for a in items]]
    opaque(x)
    return texts, rows, pairs, nested, outer(), a, b


@pytest.mark.parametrize("items", [[1, 2], [0], []])
def test_names_of_comprehensions_that_are_captured_variables_too(agree, items):
    agree(captured_in_comprehensions, torch.ones(2), items)
    agree(hidden_in_one_another, torch.ones(2), items)


class Breaking:
    @property
    def doubled(self):
        return float(torch.ones(2).sum())

    @classmethod
    def plain(cls, x):
        return x + 1


class Inheriting(Breaking):
    @property
    def doubled(self):
        return super().doubled + 1

    def several(self, x):
        parent = super()
        first = super().doubled
        self.kept = super().doubled
        return [super(Inheriting, self).doubled for _ in range(2)], first, parent.plain(x)


def test_a_property_of_the_parent_that_breaks():
    def f(obj, x):
        return obj.doubled, obj.several(x), obj.kept

    compiled = torchsmith_tracer.compile(f, backend="eager")
    for _ in range(2):
        assert str(compiled(Inheriting(), torch.ones(2))) == str(f(Inheriting(), torch.ones(2)))
