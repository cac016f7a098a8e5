"""The part of a body after the graph when tracing met a break.

For each frame of the chain, innermost first, a step function is made (``resume.py``): the innermost
one runs the instruction that could not be traced, each outer one runs the step of the frame that
it called. The body computes their arguments: locals, cells and stack slots of every frame.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import sys
import types
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from bytecode import Instr
from torchsmith_guards import class_dict, class_mro

from torchsmith_tracer._src.breaks.signals import InternalError, Unsupported
from torchsmith_tracer._src.codegen.replay import replay
from torchsmith_tracer._src.codegen.resume import (
    RAISED,
    Exit,
    Operation,
    in_shadow,
    local_name,
    step_code,
)
from torchsmith_tracer._src.codegen.stack_effects import (
    Native,
    NativeExit,
    is_call,
    native,
    to_bool,
)
from torchsmith_tracer._src.codegen.tail import TailCall, drive, weakly
from torchsmith_tracer._src.frames.code import VERSION, cells_of, decode
from torchsmith_tracer._src.frames.frame import NULL, Handling, operands_of, shape_of
from torchsmith_tracer._src.frames.liveness import live_locals
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.containers import SequenceValue
from torchsmith_tracer._src.values.exceptions import ExceptionValue
from torchsmith_tracer._src.values.tracebacks import TracebackValue, can_show

if TYPE_CHECKING:
    from torchsmith_tracer._src.breaks.kinds import Varies
    from torchsmith_tracer._src.compilation import Compilation
    from torchsmith_tracer._src.emitter import Emitter
    from torchsmith_tracer._src.frames.frame import Frame, FrameState
    from torchsmith_tracer._src.regions.record import CodeRecord


@dataclass(slots=True)
class _CallOperands:
    """A call instruction taken apart; texts are expressions."""

    callee: str
    args: list[str]
    kwargs: str
    popped: int


def emit_break(
    trace: Compilation,
    cg: Emitter,
    record: CodeRecord,
    frames: Sequence[FrameState],
    refuse: Callable[..., object] | None = None,
    varies: Varies = "",
    *,
    native: bool = False,
    raises: bool = False,
    callee: Callable[..., object] | None = None,
) -> bool:
    """Effects, then the steps of all frames (innermost first in ``frames``). Returns whether all
    frames are resumed in compiled code.

    Args:
        trace: the trace that broke.
        cg: where the code goes.
        record: what is being compiled.
        frames: the stopped frames.
        refuse: called instead of what comes after the instruction, for one that has to raise.
        varies: what of the instruction differs from call to call.
        native: the innermost frame goes on natively.
        raises: an exception follows; who looks at its frames finds their variables.
        callee: tells what to call instead of what the instruction calls.
    """
    trace.loop.abandoned.running = [state.frame for state in frames]
    trace.loop.abandoned.raises = raises
    replay(cg, trace.journal)
    for context in trace.graph.contexts:
        context.reenter(cg)
    todo: list[str] = []
    held = [(*state.stack, *state.locals.values(), *state.cells.values()) for state in frames]
    rests = [any(map(trace.loop.abandoned.holds, values)) for values in held]
    rests[0] = refuse is None and (native or rests[0])
    for state, rest in zip(frames, rests, strict=True):
        for value in (*operands_of(state.stack), *state.locals.values()) if rest else ():
            cg.expr(value)  # all exceptions that may have to be led to the frames
    for state, rest in zip(frames, rests, strict=True):
        todo = _frame_step(trace, cg, record, state, todo, refuse, varies, rest, raises, callee)
        refuse = callee = None
    # What follows runs when no frame of ours holds any more what is dead for the program: after
    # this body, or, where the function begins, as far as its temporaries go.
    if record.resume is None:
        call = cg.call(drive, _box(cg, ", ".join(todo)))
        if names := cg.temporaries():
            cg.statement(" = ".join([*names, "None"]))
    else:
        call = cg.call(TailCall, f"[{todo[0]}].pop", cg.tuple_of(todo[1:]), "()")
    cg.lines.append(f"return {call}")
    return not any(rests)


def _frame_step(
    trace: Compilation,
    cg: Emitter,
    record: CodeRecord,
    state: FrameState,
    inner: list[str],
    refuse: Callable[..., object] | None,
    varies: Varies,
    native_rest: bool,
    raises: bool,
    callee: Callable[..., object] | None,
) -> list[str]:
    """Expressions for the step function of one frame and its arguments, from those of the frame
    that it called."""
    info, ins, region = state.info, state.instruction, record.region
    code, prologue = region.origin(info.code)
    index = ins.index - prologue
    if index < 0:
        raise InternalError("a break in the prologue of a resume function")
    if in_shadow(code, index):
        raise Unsupported("cannot-rebuild", what="a comprehension that hides a captured variable")
    space: dict[str, object] = state.frame.globals.obj
    values = _Values(cg, state, code)
    if native_rest:
        return _native_rest(trace, cg, state, values, index, inner)
    call_args: list[str] = []
    after = (NativeExit(index + 1, "R"),)
    if inner:
        plan = Native(Operation(call=drive), 0, 0, after)
        call_args = [f"([{', '.join(inner)}],)", "{}"]
    elif is_call(ins):
        operands = _call_operands(cg, state)
        plan = Native(Operation(resolve=weakly(region.compiled)), 0, operands.popped, after)
        called = operands.callee if callee is None else cg.call(callee, operands.callee)
        call_args = [called, cg.tuple_of(operands.args), operands.kwargs]
    else:
        original = decode(code)
        plan = native(code, original, original.instructions[index])
        name = str(ins.argval)
        own = ins.opname in ("LOAD_DEREF", "DELETE_DEREF") and name in code.co_cellvars
        if own and state.cells[name].load(trace) is None:
            # Not bound: as a free variable, which it is in a step, it would have another error.
            missing = Instr("LOAD_FAST_CHECK" if VERSION > (3, 11) else "LOAD_FAST", name)
            plan = replace(plan, operation=Operation(instr=lambda _: [missing]), reads_cells=False)
    stack = state.stack
    below = len(stack) - (plan.pops if plan.operation.calls else 0)
    first = below if plan.operation.calls else max(len(stack) - plan.pops - plan.peeks, 0)
    handling = [item for item in stack[:first] if isinstance(item, Handling)]
    pushed = [*handling, *stack[first:below]]
    shown = plan.operation.resolve is not None and any(map(_looks_at_caller, stack[below:]))
    local_names: list[str] | None = None
    if plan.reads_cells or shown or raises:
        live = live_locals(info, ins.index)
        live |= {n for n, v in state.locals.items() if shown or (raises and can_show(v))}
        local_names = values.bound(live)
    rests: list[str] = []
    cells = _box(cg, values.cells()) if values.cell_names else ""

    def exit_to(at: int, kept: list[Any], shape: str) -> CodeRecord:
        names = values.bound(live_locals(info, at + prologue))
        target = region.resume(code, space, at, shape_of(kept) + shape, names)
        head = [cells] if target.pass_function else []
        rests.append(cg.tuple_of([*head, *values.locals(names), *values.stack(kept)]))
        found = [*map(values.local, names), *operands_of(kept)]
        state_of = target.frame_state
        state_of.follow(record.frame_state, target.labels, found, varies, called=bool(inner))
        return target

    kept = stack[: len(stack) - plan.pops]

    def entry(way: NativeExit) -> Callable[..., object]:
        returns = info.instructions[way.index + prologue].opname == "RETURN_VALUE"
        if returns and shape_of(kept) + way.shape == "R" and not values.bound(frozenset()):
            rests.append(cg.tuple_of(values.stack(kept)))
            return lambda: _same  # nothing is left to compile
        return exit_to(way.index, kept, way.shape).entry()

    exits = [Exit(entry(way), way.shape.count("R")) for way in plan.exits]
    if refuse is not None:
        exits = [Exit(refuse, way.results) for way in exits]
    handler = info.handler_at[ins.index]
    caught: Callable[..., object] | None = None
    if handler is not None:
        shape = "LR" if handler.push_lasti else "R"
        caught = weakly(exit_to(handler.target - prologue, stack[: handler.depth], shape).caught)
    boxed = {f"___s{i}" for i, item in enumerate(pushed) if _is_new_exception(item)}
    boxes = [
        _box(cg, text) if _is_new_exception(item) else text
        for item, text in zip(operands_of(pushed), values.stack(pushed), strict=True)
    ]
    shape = shape_of(pushed)
    step = step_code(
        code, index, plan.operation, shape, exits, local_names, boxed=boxed, caught=caught
    )
    args = [*call_args, *rests, *boxes, *values.locals(local_names or ())]
    return [_function(cg, step, space, values), *args]


def _function(cg: Emitter, step: types.CodeType, space: dict[str, object], values: _Values) -> str:
    """Expression for a function of a step's code."""
    name = step.co_name
    if not step.co_freevars:
        return cg.bound(types.FunctionType(step, space, name), "step")
    code, globals_ = cg.bound(step, "code"), cg.bound(space, "globals")
    return cg.call(types.FunctionType, code, globals_, cg.const(name), "None", values.cells())


def _ends_visibly(value: object, depth: int = 2) -> bool:
    """Whether the end of an object, or of what it holds, may do something: a temporary folder is
    removed, a lock released, a file closed."""
    if isinstance(value, SequenceValue):
        items: Sequence[object] = () if value.growing else value.items
    else:
        obj = getattr(value, "obj", None) if isinstance(value, Value) else value
        kind = type(obj)
        if issubclass(kind, _ENDS_UNSEEN):
            return False
        if weakref.getweakrefcount(obj) or any("__del__" in class_dict(c) for c in class_mro(kind)):
            return True
        items = gc.get_referents(obj) if depth else ()
    return depth > 0 and any(_ends_visibly(item, depth - 1) for item in items[:100])


def _is_new_exception(item: object) -> bool:
    return isinstance(item.exc if isinstance(item, Handling) else item, ExceptionValue)


def _box(cg: Emitter, text: str) -> str:
    name = cg.fresh("box")
    cg.statement(f"{name} = [{text}]")
    return name


def _native_rest(
    trace: Compilation,
    cg: Emitter,
    state: FrameState,
    values: _Values,
    index: int,
    inner: list[str],
) -> list[str]:
    """The frame's rest as one native function. It holds a generator that has something to clean up
    when its last reference goes, which has to be this frame's own: passed from piece to piece,
    the generator would be held by all of them."""
    code, stack = values.code, list(state.stack)
    args: list[str] = []
    onward = index
    if inner:
        operation, onward = Operation(call=drive), index + 1
        args = [f"([{', '.join(inner)}],)", "{}"]
    else:
        instructions = decode(code).instructions
        while onward and instructions[onward - 1].opname in ("KW_NAMES", "PRECALL"):
            onward -= 1  # keyword names are not on the stack
        first = to_bool(instructions[index].opname)
        operation = Operation(instr=lambda _: first)
    names = values.bound(frozenset(state.locals))
    # Weak references to anything may be made there: no frame of ours is to hold it.
    boxed = {f"___s{i}" for i, item in enumerate(stack) if isinstance(item, Value | Handling)} | {
        *names
    }
    texts = [_box(cg, text) for text in values.stack(stack) + values.locals(names)]
    raised = cg.temporaries(partial(_raised_in, state.frame))
    if state.frame is trace.loop.abandoned.running[-1]:
        raised += map(cg.expr, trace.loop.abandoned.caught)
    if raised:
        boxed.add(RAISED)
        args.append(_box(cg, ", ".join(raised)))
    shape = shape_of(stack)
    step = step_code(code, index, operation, shape, (), names, onward, boxed)
    return [_function(cg, step, state.frame.globals.obj, values), *args, *texts]


def _raised_in(frame: Frame, value: Value) -> bool:
    last = value.traceback if isinstance(value, ExceptionValue) else None
    return isinstance(last, TracebackValue) and last.frame is frame


class _Values:
    """Expressions for the state of one frame."""

    def __init__(self, cg: Emitter, state: FrameState, code: types.CodeType) -> None:
        self.cg = cg
        self.state = state
        self.code = code
        self.cell_names = cells_of(code)
        resumed = state.info.code is not code
        self._key: Callable[[str], str] = local_name if resumed else str

    def bound(self, live: frozenset[str]) -> list[str]:
        """Locals of the original code that are bound, in order: those that are live, and what the
        program would notice to be gone."""
        found, key = self.state.locals, self._key
        if not _LOOKS_AT_NAMES.isdisjoint(self.code.co_names):
            live = frozenset(found)  # ``locals()`` and its like show all of them
        return [
            name
            for name in self.code.co_varnames
            if name not in self.cell_names
            and (value := found.get(key(name))) is not None
            and (key(name) in live or _ends_visibly(value))
        ]

    def local(self, name: str) -> Value:
        return self.state.locals[self._key(name)]

    def locals(self, names: Sequence[str]) -> list[str]:
        return [self.cg.expr(self.local(n)) for n in names]

    def stack(self, items: Sequence[object]) -> list[str]:
        return [self.cg.expr(item) for item in operands_of(items)]

    def cells(self) -> str:
        """The tuple of cell objects for ``cell_names``."""
        cg, found = self.cg, [self.state.cells.get(name) for name in self.cell_names]
        # What is missing is not made yet, or emptied: an inlined comprehension makes its own.
        return cg.tuple_of([cg.call(types.CellType) if c is None else cg.expr(c) for c in found])


def _call_operands(cg: Emitter, state: FrameState) -> _CallOperands:
    """Callee and arguments of the call instruction at which a frame stopped."""
    ins, stack = state.instruction, state.stack

    def text(item: object) -> str:
        return cg.expr(item)  # type: ignore[arg-type]

    if ins.opname == "CALL_FUNCTION_EX":
        has_kwargs = ins.arg & 1
        popped = 3 + has_kwargs
        items = stack[len(stack) - popped :]
        callee = items[1] if VERSION < (3, 13) else items[0]
        args = items[2]
        kwargs = f"{{**{text(items[3])}}}" if has_kwargs else "{}"
        return _CallOperands(text(callee), [f"*{text(args)}"], kwargs, popped)
    names = state.kw_names
    count = ins.arg
    if ins.opname == "CALL_KW":
        popped = count + 3
        names = stack[-1].as_constant()  # type: ignore[union-attr, assignment]
        items = stack[len(stack) - popped : -1]
    else:
        popped = count + 2
        items = stack[len(stack) - popped :]
    first, second, *rest = items
    if VERSION >= (3, 13):
        callee, own = first, second
    else:
        callee, own = (second, NULL) if first is NULL else (first, second)
    values = [*([] if own is NULL else [own]), *rest]
    special = _frame_builtin(cg, state, callee, values) if not names else None
    if special is not None:
        return _CallOperands(*special, "{}", popped)
    split = len(values) - len(names)
    given = ", ".join(f"{n!r}: {text(v)}" for n, v in zip(names, values[split:], strict=True))
    return _CallOperands(text(callee), [text(v) for v in values[:split]], f"{{{given}}}", popped)


_ENDS_UNSEEN = (type, types.FunctionType, types.GeneratorType, torch.Tensor, torch.nn.Module)
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, type(cache(print)))
_LOOKS_AT_NAMES = frozenset("locals vars dir eval exec _getframe currentframe".split())
_LOOKS_AT_FRAMES = frozenset(("_getframe", "currentframe", "f_back", "f_locals", "stack"))


def _looks_at_caller(callee: object) -> bool:
    """Whether a function reads its caller's frame, as far as its own code tells."""
    fn: Any = getattr(getattr(callee, "func", callee), "fn", None) or getattr(callee, "obj", None)
    fn = inspect.unwrap(fn) if type(fn) in _FUNCTIONS else None  # others answer as they like
    code = getattr(fn, "__code__", None)
    return fn in (sys._getframe, inspect.currentframe) or (
        code is not None and not _LOOKS_AT_FRAMES.isdisjoint(code.co_names)
    )


def _frame_builtin(
    cg: Emitter, state: FrameState, callee: object, args: Sequence[object]
) -> tuple[str, list[str]] | None:
    """Callee and arguments for builtins that look at their caller's frame: the step's frame is
    not the user's, so they are given what they would have found there."""
    fn = getattr(callee, "obj", None)
    if fn is None:
        fn = getattr(callee, "fn", None)
    space: dict[str, object] = state.frame.globals.obj

    def frame_locals() -> str:
        items = {n: cg.expr(v) for n, v in state.locals.items() if not n.startswith("___")}
        cells = {n: cg.expr(cell) for n, cell in state.cells.items()}
        texts = [", ".join(f"{n!r}: {text}" for n, text in t.items()) for t in (items, cells)]
        return f"{cg.bound(_variables)}({{{texts[0]}}}, {{{texts[1]}}})"

    if not args and fn is globals:
        return cg.bound(_same), [cg.bound(space, "globals")]
    if not args and (fn is locals or fn is vars):  # ``in`` would ask ``__eq__`` of a user's
        return cg.bound(_same), [frame_locals()]
    if not args and fn is dir:
        return cg.bound(sorted), [frame_locals()]
    first = state.frame.first
    if not args and fn is super and "__class__" in state.cells and first is not None:
        own = state.locals.get(first)
        this = cg.expr(own) if own is not None else f"{cg.expr(state.cells[first])}.cell_contents"
        return cg.bound(super), [f"{cg.expr(state.cells['__class__'])}.cell_contents", this]
    if (fn is eval or fn is exec) and len(args) == 1:
        source = cg.expr(args[0])  # type: ignore[arg-type]
        return cg.bound(fn), [source, cg.bound(space, "globals"), frame_locals()]
    return None


def _variables(values: dict[str, object], cells: dict[str, types.CellType]) -> dict[str, object]:
    """What ``locals()`` gives: a cell that is empty is no variable."""
    for name, cell in cells.items():
        with contextlib.suppress(ValueError):
            values[name] = cell.cell_contents
    return values


def _same(obj: object) -> object:
    return obj
