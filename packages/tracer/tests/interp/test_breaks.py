"""Where a break stops: the chain of frames, their stacks, and the state that is rolled back."""

from __future__ import annotations

import pytest
import torchsmith_tracer
from interp_harness import interpret, new_trace, to_host
from torchsmith_guards import FunctionSource, LocalSource
from torchsmith_tracer._src.breaks.signals import BreakAt, Unsupported
from torchsmith_tracer._src.frames.frame import shape_of
from torchsmith_tracer._src.values.containers import ListValue
from torchsmith_tracer._src.values.functions import FunctionValue


def broken(fn, *args):
    with pytest.raises(BreakAt) as caught:
        interpret(fn, *args)
    return caught.value


def names(e):
    return [f.info.code.co_name for f in e.frames]


@torchsmith_tracer.disable
def show(*args, **kwargs):
    pass


def stop(x):
    show(x)


def test_break_in_straight_code_stops_before_the_call():
    def f(a):
        b = [a]
        show(b, 1)
        return b

    e = broken(f, 5)
    assert e.signal.kind == "opaque-call"
    (state,) = e.frames
    assert not state.in_call
    assert state.instruction.opname in ("CALL", "CALL_KW")
    assert [to_host(v) for v in state.stack[-2:]] == [[5], 1]
    assert to_host(state.locals["b"]) == [5]


def test_nested_calls_give_one_state_for_each_frame():
    def inner(x):
        y = x + 1
        show(y)
        return y

    def middle(x):
        return [inner(x), x]

    def f(a):
        return middle(a * 2) + [a]

    e = broken(f, 3)
    assert names(e) == ["inner", "middle", "f"]
    assert [s.in_call for s in e.frames] == [False, True, True]
    assert to_host(e.frames[0].locals["y"]) == 7
    # The callee and its arguments are off the stack: the result is pushed on what is left.
    assert e.frames[1].stack == []
    assert e.frames[2].stack == []


def test_operands_below_a_call_stay():
    def f(a):
        return (a, 1, stop(a))

    e = broken(f, 3)
    assert [to_host(v) for v in e.frames[1].stack] == [3, 1]


def test_break_in_a_bound_method_and_partial_is_resumable():
    import functools

    class A:
        def go(self, x):
            show(x)

    def f(a):
        return functools.partial(A().go, 2)()

    assert names(broken(f, 1)) == ["go", "f"]


def test_break_below_a_slot_breaks_the_slots_instruction():
    class A:
        @property
        def p(self):
            show("x")
            return 1

    def f(a):
        x = A()
        return x.p + a

    e = broken(f, 1)
    assert names(e) == ["f"]
    assert e.frames[0].instruction.opname == "LOAD_ATTR"


def test_effects_of_the_broken_instruction_are_undone():
    class Log:
        def __init__(self):
            self.items = []

        def __getitem__(self, i):
            self.items.append(i)
            self.count = 1
            show(i)

    def f(log, a):
        log.items.append("before")
        return log[a]

    log = Log()
    trace = new_trace()
    trace.interp.namespace(f.__globals__)
    entry = FunctionValue.existing(trace, f, FunctionSource())
    args = {"log": trace.builder.wrap(log, LocalSource("log"))}
    args["a"] = trace.builder.wrap(3, LocalSource("a"))
    with pytest.raises(BreakAt):
        trace.loop.run(trace.loop.root_frame(entry, args))
    (changed,) = [v for v in trace.journal.mutated if isinstance(v, ListValue)]
    assert to_host(changed) == ["before"]
    assert trace.journal.load_attr(args["log"], "count") is None
    assert log.items == []


def test_break_in_a_generator_breaks_the_loop_and_rewinds_it():
    def gen(n):
        for i in range(n):
            if i == 1:
                show(i)
            yield i

    def f(n):
        out = []
        for v in gen(n):
            out.append(v)
        return out

    e = broken(f, 3)
    assert names(e) == ["f"]
    state = e.frames[0]
    assert state.instruction.opname == "FOR_ITER"
    generator = state.stack[-1]
    assert to_host(generator.frame.locals["i"]) == 0
    assert to_host(state.locals["out"]) == [0]


def test_break_in_a_handler_keeps_the_exception_on_the_stack():
    def f(d):
        out = ["start"]
        try:
            out.append(d["missing"])
        except KeyError:
            out.append("handler")
            show(out)
        return out

    (state,) = broken(f, {}).frames
    assert state.instruction.opname in ("CALL", "CALL_KW")
    assert shape_of(state.stack)[0] == "E"
    assert to_host(state.stack[0].exc) == ("KeyError", ["missing"])
    assert to_host(state.locals["out"]) == ["start", "handler"]


def test_uncaught_exception_is_raised_where_it_starts():
    def thrower(x):
        raise ValueError(x)

    def f(a):
        return thrower(a)

    e = broken(f, 1)
    assert e.signal.kind == "raises"
    assert names(e) == ["thrower", "f"]
    assert e.frames[0].instruction.opname == "RAISE_VARARGS"


def test_keyword_names_belong_to_the_call():
    def f(a):
        return show(a, end="x")

    (state,) = broken(f, 1).frames
    if state.instruction.opname == "CALL":
        assert state.kw_names == ("end",)
    else:
        assert state.instruction.opname == "CALL_KW"


def test_break_in_with_keeps_the_exit_on_the_stack():
    class M:
        def __enter__(self):
            return 1

        def __exit__(self, *exc):
            return False

    def f(a):
        with M() as m:
            show(m)
        return a

    (state,) = broken(f, 1).frames
    assert state.stack[0].func.name == "__exit__"


def test_a_dead_branch_costs_nothing():
    def f(a):
        if a > 5:
            show(a)
        return a

    assert to_host(interpret(f, 3)[1]) == 3


def test_runaway_recursion_is_a_break():
    def f(n):
        return f(n + 1)

    with pytest.raises(Unsupported) as caught:  # not within one of the frames
        interpret(f, 0)
    assert caught.value.kind == "inline-depth"
    assert broken(lambda n: f(n) + 1, 0).signal.kind == "inline-depth"


def test_functions_made_by_traced_code_are_new_values():
    def f(a):
        def g():
            return a

        return g

    value = interpret(f, 3)[1]
    assert isinstance(value, FunctionValue)
    assert value.fn is None


def test_classes_with_finalizers_are_not_elided():
    class Noisy:
        def __del__(self):
            pass

    def f(a):
        return Noisy()

    assert broken(f, 1).signal.kind == "opaque-call"


@pytest.mark.parametrize(
    "fn",
    [
        lambda: (1).bit_length(2),
        lambda: (-3).to_bytes(0, "big"),
        lambda: (2.5).is_integer(1),
        lambda: (-1).__add__(1, 2),
    ],
)
def test_methods_of_numbers_that_fail(fn):
    with pytest.raises((TypeError, OverflowError)) as expected:
        fn()
    with pytest.raises(expected.type) as caught:
        torchsmith_tracer.compile(fn, backend="eager")()
    assert str(caught.value) == str(expected.value)
