"""Objects of C classes made by traced code, seen from outside: what compiled code gives back."""

from __future__ import annotations

import functools
import io
import operator
import random
import threading
import types
import weakref

import corpus_objects
import pytest
import torchsmith_tracer as tracer
from torchsmith_tracer.errors import FullGraphError


def compiled(fn):
    return tracer.compile(fn, backend="eager", fullgraph=True)


@pytest.mark.parametrize(
    ("fn", "args"),
    corpus_objects.CASES,
    ids=[f"{fn.__name__}-{args}" for fn, args in corpus_objects.CASES],
)
def test_compiled_code_gives_what_python_gives(fn, args):
    try:
        expected = fn(*args)
    except Exception as e:
        with pytest.raises(type(e)):
            compiled(fn)(*args)
        return
    assert compiled(fn)(*args) == expected


class Add(functools.partial):
    pass


def test_objects_that_leave_are_of_their_real_classes():
    def make(n):
        p = functools.partial(max, n, key=abs)
        a = Add(operator.add, n)
        p.note = a.note = [n]
        lock = threading.Lock()
        held = threading.RLock()
        held.acquire()
        return p, a, operator.itemgetter(0, 1), lock, held, [p]

    p, a, get, lock, held, inside = compiled(make)(3)
    assert type(p) is functools.partial and p(-7) == -7 and p.note == [3] and inside[0] is p
    assert type(a) is Add and a(4) == 7 and a.note == [3]
    assert get("abc") == ("a", "b")
    assert not lock.locked() and type(lock) is type(threading.Lock())
    held.release()
    with pytest.raises(RuntimeError):
        held.release()


def test_a_dict_that_became_the_attributes_leaves_as_those():
    def make(n):
        d = {"n": n}
        p = Add(operator.add, n)
        q = Holder()
        q.__dict__ = d
        d["m"] = [q]
        return p, q, d

    for n in (3, 4):
        _, q, d = compiled(make)(n)
        assert q.__dict__ is d and d == {"n": n, "m": [q]}


class Holder:
    pass


def test_text_buffers_leave_where_they_have_arrived():
    def make():
        f, g = io.StringIO("q\nrs", newline="\r\n"), io.BytesIO(b"12")
        f.read(2)
        f.note = [1]
        g.close()
        return f, g

    f, g = compiled(make)()
    assert (type(f), f.getvalue(), f.tell(), f.note) == (io.StringIO, "q\r\nrs", 2, [1])
    assert g.closed and f.write("\n") == 1 and f.getvalue() == "q\r\r\ns"


def test_namespaces_from_before_are_read_and_stored_to():
    def advance(space):
        space.step += 1
        space.log.append(space.step)
        return space.step, repr(space), space == types.SimpleNamespace(step=space.step)

    runs = []
    for fn in (advance, compiled(advance)):
        space = types.SimpleNamespace(step=1, log=[])
        out = [fn(space), fn(space)]
        space.step = 8
        del space.log[:]
        out.append(fn(space))
        del space.log
        with pytest.raises(AttributeError):
            fn(space)
        runs.append((out, vars(space)))
    assert runs[0] == runs[1]


def test_numbers_from_id_have_no_order():
    with pytest.raises(FullGraphError, match="id()"):
        compiled(lambda: min(id([]), id([])))()


def test_a_seeded_generator_leaves_where_it_has_arrived():
    def make():
        rng = random.Random(5)
        return rng.random(), rng

    first, rng = compiled(make)()
    real = random.Random(5)
    assert (first, rng.random()) == (real.random(), real.random())


def test_draws_from_the_shared_generator_advance_it_and_follow_its_state():
    def draw(n):
        return random.random(), random.randrange(n), random.sample(range(n), 3)

    fn = compiled(draw)
    random.seed(11)
    got = [fn(50), fn(50), random.random()]
    random.seed(11)
    assert got == [draw(50), draw(50), random.random()]


def test_draws_of_an_unknown_state_are_left_to_eager_code_without_fullgraph():
    def draw(x):
        return -x if random.getrandbits(1) else x

    fn = tracer.compile(draw, backend="eager")
    random.seed(3)
    got = [fn(1) for _ in range(20)]
    random.seed(3)
    assert got == [draw(1) for _ in range(20)]


class Node:
    pass


def test_a_weak_reference_gives_what_is_reached():
    def reached():
        node = Node()
        ref = weakref.ref(node)
        return ref() is node, ref is weakref.ref(node), weakref.ref(Node)() is Node

    assert compiled(reached)() == (True, True, True)


def test_whether_an_unreachable_object_is_alive_is_not_guessed():
    def dropped():
        node = Node()
        ref = weakref.ref(node)
        del node
        return ref() is None

    with pytest.raises(FullGraphError):
        compiled(dropped)()


def test_the_callers_frame_is_the_tracing_frame():
    def name_of_caller():
        import sys

        return sys._getframe(1).f_code.co_name, sys._getframe().f_globals["__name__"]

    def caller():
        return name_of_caller()

    assert compiled(caller)() == ("caller", __name__)


def test_evaluated_code_sees_the_given_globals():
    def run():
        space = {"a": 2}
        fn = eval("lambda x: x + a", space)
        space["a"] = 5
        return fn(1), "__builtins__" in space or True

    assert compiled(run)()[0] == run()[0] == 6


def test_bound_methods_in_c_found_outside():
    keywords = frozenset({"if", "else"})
    items = [1]

    def use(has, append):
        append(2)
        return has("if"), has("x")

    assert compiled(use)(keywords.__contains__, items.append) == (True, False)
    assert items == [1, 2]


def test_hooks_of_new_classes_run_once_for_classes_that_leave():
    def make(tag):
        class Base:
            made = []

            def __init_subclass__(cls, tag=None, **named):
                super().__init_subclass__(**named)
                cls.tag = tag
                Base.made.append(cls.__name__)

        class Middle(Base, tag=tag):
            pass

        class Last(Middle):
            def __init_subclass__(cls):
                Base.made.append("own")

        class End(Last):
            pass

        return Base, Middle, Last(), End

    for tag in (1, "a", None):
        expected = make(tag)[0]
        base, middle, last, end = compiled(make)(tag)
        assert base.made == expected.made and middle.tag == tag and type(last).tag is None
        type("Later", (end,), {})
        assert base.made == [*expected.made, "own"]
