"""Resume and step functions, made by hand and run natively, without any tracing."""

import functools
import inspect
import sys
import traceback
import types

import pytest
from torchsmith_tracer._src.codegen.resume import (
    Exit,
    Operation,
    resume_code,
    step_code,
)
from torchsmith_tracer._src.codegen.stack_effects import native
from torchsmith_tracer._src.codegen.tail import TailCall, drive
from torchsmith_tracer._src.frames.code import cells_of, decode


class Recorder:
    """A context manager that notes what happens to it and swallows exceptions."""

    def __init__(self):
        self.log = []

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, *rest):
        self.log.append(kind.__name__ if kind else "exit")
        return True


recorder = Recorder()


def opaque(a, b):
    if a == 6:
        raise ValueError("six")
    return a + b


def loop_with_context(xs, k):
    total = 0
    for x in xs:
        with recorder:
            y = x * k
            y = opaque(y, 2)
            total += y
    return total


def instruction(fn, opname, after_global=None, nth=0):
    """Index of an instruction; the first call after a global of that name was loaded."""
    info = decode(fn.__code__)
    start = 0
    if after_global is not None:
        start = next(
            i.index
            for i in info.instructions
            if i.opname == "LOAD_GLOBAL" and i.argval == after_global
        )
    found = [i for i in info.instructions if i.index > start and i.opname == opname]
    return found[nth]


def test_resume_inside_for_and_with():
    recorder.log = []
    call = instruction(loop_with_context, "CALL", "opaque")
    made = resume_code(loop_with_context.__code__, call.index + 1, "RRR", ["xs", "k", "total"])
    fn = types.FunctionType(made.code, globals())
    # 100 for the first pass; 2 * 2 + 2; 6 raises and is swallowed; 4 * 2 + 2
    assert fn([], 2, 0, iter([2, 3, 4]), recorder.__exit__, 100) == 100 + 6 + 10
    assert recorder.log == ["exit", "enter", "exit", "enter", "ValueError", "enter", "exit"]


def test_instruction_numbers_differ_by_the_prologue_only():
    code = loop_with_context.__code__
    call = instruction(loop_with_context, "CALL", "opaque")
    made = resume_code(code, call.index + 1, "RRR", ["xs", "k", "total"])
    old = [i.opname for i in decode(code).instructions]
    new = [i.opname for i in decode(made.code).instructions]
    assert new[made.prologue :] == old


def test_step_leaves_by_a_tail_call():
    call = instruction(loop_with_context, "CALL", "opaque")

    def entry(*args):
        return ("resumed", args)

    code = step_code(
        loop_with_context.__code__,
        call.index,
        Operation(call=lambda fn, *args, **kwargs: fn(*args, **kwargs)),
        "RR",
        [Exit(lambda: entry, 1)],
        ["xs", "k", "total"],
    )
    step = types.FunctionType(code, globals())
    it = iter([1, 5])
    out = step((opaque, 1), {"b": 2}, ("rest",), it, recorder.__exit__, [], 2, 50)
    assert type(out) is TailCall
    assert (out.rest, out.results) == (("rest",), (3,))
    args = ((opaque, 1, 2), {}, ("rest",), it, recorder.__exit__, [], 2, 50)
    assert drive([step, *args]) == ("resumed", ("rest", 3))


def test_exception_in_a_step_goes_to_the_users_handler():
    recorder.log = []
    code = loop_with_context.__code__
    info = decode(code)
    call = instruction(loop_with_context, "CALL", "opaque")
    handler = info.handler_at[call.index]
    made = resume_code(code, handler.target, "RRLR", ["xs", "k", "total"])
    rest_of_user = types.FunctionType(made.code, globals())
    step = step_code(
        code,
        call.index,
        Operation(call=lambda fn, *args: fn(*args)),
        "",
        [Exit(print, 1)],
        None,
        caught=lambda rest, error: TailCall(lambda: rest_of_user, rest, (error,)),
    )
    it = iter([1, 5])
    rest = ([], 2, 50, it, recorder.__exit__)
    out = types.FunctionType(step, globals())((opaque, 6, 2), {}, ("rest",), rest)
    assert type(out) is TailCall and out.rest is rest
    (error,) = out.results
    assert [e.name for e in traceback.extract_tb(error.__traceback__)][0] == "loop_with_context"
    assert not any(error in vars.values() for vars in _locals_of(error.__traceback__))
    # The context swallows it and the loop goes on: 50 + (2 + 2) + (10 + 2)
    assert out.entry()(*out.take()) == 66
    assert recorder.log == ["ValueError", "enter", "exit", "enter", "exit"]


def test_a_step_in_a_handler_leaves_it():
    def user(x):
        try:
            x[0]
        except IndexError:
            opaque(x, 1)

    call = instruction(user, "CALL", "opaque")
    code = step_code(
        user.__code__,
        call.index,
        Operation(call=lambda: sys.exc_info()[1]),
        "E",
        [Exit(print, 1)],
        None,
    )
    error = IndexError()
    out = types.FunctionType(code, globals())((), {}, (), error)
    assert out.results == (error,)
    assert sys.exc_info()[1] is None


def _locals_of(tb):
    while tb is not None:
        yield tb.tb_frame.f_locals
        tb = tb.tb_next


def test_step_without_handler_is_small_and_keeps_the_users_place():
    def user(x):
        y = x + 1
        return opaque(y, 0) * 2

    call = instruction(user, "CALL", "opaque")
    code = step_code(
        user.__code__, call.index, Operation(call=lambda fn, *a: fn(*a)), "", [Exit(print, 1)], None
    )
    assert len(code.co_code) < 120
    step = types.FunctionType(code, globals())
    with pytest.raises(ValueError, match="six") as caught:
        step((opaque, 6, 0), {}, ())
    frame = traceback.extract_tb(caught.value.__traceback__)[1]
    assert frame.name == "user"
    assert frame.filename == __file__
    assert frame.line == "return opaque(y, 0) * 2"


def test_cells_become_free_variables():
    def user(a):
        count = 0

        def bump():
            nonlocal count
            count += a
            return count

        opaque(1, 1)
        return bump() + count

    assert cells_of(user.__code__) == ("count", "a")
    call = instruction(user, "CALL", "opaque")
    made = resume_code(user.__code__, call.index + 1, "R", ["bump"])
    a, count = types.CellType(5), types.CellType(10)

    def bump():
        count.cell_contents += a.cell_contents
        return count.cell_contents

    fn = types.FunctionType(made.code, globals(), "user", None, (count, a))
    assert fn(bump, None) == 15 + 15


def test_parameter_that_is_a_cell():
    def user(log, x):
        def first(z):
            log.append(z)
            return z

        opaque(1, 1)

        def second(z):
            log.append(z + x)
            return log

        return second(first(x))

    call = instruction(user, "CALL", "opaque")
    made = resume_code(user.__code__, call.index + 1, "R", ["first"])
    log, x = types.CellType([]), types.CellType(3)

    def first(z):
        log.cell_contents.append(z)
        return z

    cells = {"log": log, "x": x}
    closure = tuple(cells[name] for name in made.code.co_freevars)
    fn = types.FunctionType(made.code, globals(), "user", None, closure)
    assert fn(first, None) == [3, 6]


def test_comprehension_variable_that_hides_a_captured_one():
    def user(x):
        first = lambda: x  # noqa: E731
        opaque(1, 1)
        plain = [x + x for x in (1, 2)]
        captured = [(lambda: x) for x in (3, 4)]
        later = lambda: x  # noqa: E731
        x = x + 1
        return plain, [c() for c in captured], first(), later(), x

    call = instruction(user, "CALL", "opaque")
    made = resume_code(user.__code__, call.index + 1, "R", ["first"])
    x = types.CellType(7)
    fn = types.FunctionType(made.code, globals(), "user", None, (x,))
    expected = ([2, 4], [4, 4], 8, 8, 8)
    assert user(7) == expected
    assert fn(lambda: x.cell_contents, None) == expected


def test_null_slots_of_a_pending_call():
    def user(x):
        return max(x, opaque(x, 1))

    call = instruction(user, "CALL", "opaque")
    stack = "R0RR" if _null_after() else "0RRR"
    made = resume_code(user.__code__, call.index + 1, stack, [])
    fn = types.FunctionType(made.code, globals())
    assert fn(max, 3, 8) == 8


def _null_after():
    return sys.version_info >= (3, 13)


def test_generic_instruction_runs_natively():
    def user(a, b):
        return (a @ b) + 1

    info = decode(user.__code__)
    ins = next(i for i in info.instructions if i.opname == "BINARY_OP")
    plan = native(user.__code__, info, ins)
    assert (plan.pops, plan.peeks) == (2, 0)
    assert [(e.index, e.shape) for e in plan.exits] == [(ins.index + 1, "R")]
    code = step_code(user.__code__, ins.index, plan.operation, "RR", [Exit(print, 1)], None)

    class Matrix:
        def __matmul__(self, other):
            return 41

    out = types.FunctionType(code, {})((), Matrix(), Matrix())
    assert out.results == (41,)


def test_branch_has_two_exits():
    def user(a):
        if a:
            return 1
        return 2

    info = decode(user.__code__)
    ins = next(i for i in info.instructions if "POP_JUMP" in i.opname)
    plan = native(user.__code__, info, ins)
    assert len(plan.exits) == 2

    def fall(*args):
        return ("fall", args)

    def jump(*args):
        return ("jump", args)

    code = step_code(
        user.__code__,
        ins.index,
        plan.operation,
        "R",
        [Exit(lambda: fall, 0), Exit(lambda: jump, 0)],
        None,
    )
    step = types.FunctionType(code, {})
    assert drive([step, ("f",), ("j",), True]) == ("fall", ("f",))
    assert drive([step, ("f",), ("j",), False]) == ("jump", ("j",))


def test_for_iter_has_an_exit_for_the_end():
    def user(xs):
        out = 0
        for x in xs:
            out += x
        return out

    info = decode(user.__code__)
    ins = next(i for i in info.instructions if i.opname == "FOR_ITER")
    plan = native(user.__code__, info, ins)
    ends = []
    for way in plan.exits:
        made = resume_code(user.__code__, way.index, way.shape, ["out"])
        rest = types.FunctionType(made.code, {})
        ends.append(Exit(lambda rest=rest: rest, len(way.shape)))
    step = types.FunctionType(
        step_code(user.__code__, ins.index, plan.operation, "R", ends, None), {}
    )
    assert drive([step, (10,), (10,), iter([1, 2])]) == 13
    assert drive([step, (10,), (10,), iter([])]) == 10


@pytest.mark.parametrize("module", [inspect, functools, traceback])
def test_every_call_of_real_code_can_be_resumed(module):
    """The assembled code has the user's instructions and handlers, whatever the code is."""
    tried = 0
    for fn in vars(module).values():
        if not isinstance(fn, types.FunctionType) or fn.__code__.co_flags & inspect.CO_GENERATOR:
            continue
        info = decode(fn.__code__)
        calls = [i for i in info.instructions if i.opname == "CALL"]
        for ins in calls[:3]:
            made = resume_code(fn.__code__, ins.index + 1, "R", [])
            new = decode(made.code)
            ours = [i.opname for i in new.instructions[made.prologue :]]
            head = {"MAKE_CELL", "COPY_FREE_VARS", "NOP"}
            for a, b in zip(ours, info.instructions, strict=True):
                assert a == b.opname or (a == "NOP" and b.opname in head)
            spans = {(h.target - made.prologue, h.depth, h.push_lasti) for h in new.exceptions}
            assert spans == {(h.target, h.depth, h.push_lasti) for h in info.exceptions}
            tried += 1
    assert tried > 20
