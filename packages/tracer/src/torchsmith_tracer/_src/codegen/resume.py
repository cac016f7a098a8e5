"""Step and resume functions: the user's own bytecode, entered in the middle.

From CPython 3.11 on a frame in mid-flight is its locals, its cells, its value stack and an
instruction pointer; ``try``, ``with`` and ``for`` keep nothing else. So

* a *resume function* is the user's code object with a prologue: parameters are locals and stack
  slots, the prologue pushes the stack and jumps to the instruction to continue at;
* a *step function* runs the one instruction that could not be traced, with the exceptions that are
  being handled there in force, and ends by returning a ``TailCall`` of the resume function. When a
  handler of the user's function covers that instruction, an exception is one more way out: to the
  resume function of the handler.

Both keep the user's file name, function name and line positions, so tracebacks read as in eager.
Cell and free variables of the original all become free variables here: the cells exist already.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from bytecode import Bytecode, CellVar, FreeVar, Instr, Label, TryBegin, TryEnd
from bytecode.flags import CompilerFlags

from torchsmith_tracer._src.breaks.signals import InternalError
from torchsmith_tracer._src.codegen.tail import TailCall, adopt
from torchsmith_tracer._src.emitter import plain_name
from torchsmith_tracer._src.frames.code import PAIRS, cells_of, decode, note_resumes

_V = sys.version_info[:2]
_CALLEE, _ARGS, _KWARGS, _ERROR = "___callee", "___args", "___kwargs", "___error"
RAISED = "___raised"
_EXTRA_STACK = 8
_KEPT_FLAGS = CompilerFlags.OPTIMIZED | CompilerFlags.NEWLOCALS | CompilerFlags.NESTED


@dataclass(frozen=True, slots=True)
class ResumeCode:
    """A resume function's code.

    Attributes:
        code: parameters are ``locals``, then one per object on the stack.
        locals: the user's locals that are passed.
        prologue: how many instructions come before the user's; instruction ``i`` of the original
            is instruction ``i + prologue`` here.
        original: the user's code object.
        index, stack: the arguments of ``resume_code``.
    """

    code: CodeType
    locals: tuple[str, ...]
    prologue: int
    original: CodeType
    index: int
    stack: str


@dataclass(frozen=True, slots=True)
class Exit:
    """One way out of a step: ``entry`` gives the callable that is to be run next; ``results`` is
    how many objects the instruction leaves on the stack for it."""

    entry: Callable[..., object]
    results: int


_OWN_LOCAL = re.compile(r"___(callee|args|kwargs|error|raised|junk|(s|r|rest)\d+)_*")


def local_name(name: str) -> str:
    """What a local of the user's is called in step and resume functions, which have their own."""
    return f"{name}_" if _OWN_LOCAL.fullmatch(name) else plain_name(name)


def push_null_call(load: Sequence[Instr], location: Any) -> list[Instr]:
    """A callable with the empty slot of a function call, in this version's order."""
    null = Instr("PUSH_NULL", location=location)
    return [*load, null] if _V >= (3, 13) else [null, *load]


def resume_code(code: CodeType, index: int, stack: str, local_names: Sequence[str]) -> ResumeCode:
    """Code that continues ``code`` at instruction ``index``.

    Args:
        code: the user's code object.
        index: instruction to continue at, not counting caches and prefixes.
        stack: the slots, bottom first (``frames.frame.shape_of``).
        local_names: locals that are passed; all others are unbound.
    """
    out, prologue, _ = _resume(code, index, stack, local_names)
    made = _assemble(out, code, stack)
    return ResumeCode(made, tuple(local_names), prologue, code, index, stack)


def raising_code(resume: ResumeCode) -> CodeType:
    """Like ``resume.code``, but it raises its last argument where the other goes on: handlers and
    contexts of the user's that were entered are left as for any exception."""
    code = resume.original
    out, prologue, label = _resume(code, resume.index, resume.stack, resume.locals)
    location = instruction_at(code, resume.index).location
    raises = _located([Instr("LOAD_FAST", _ERROR), Instr("RAISE_VARARGS", 1)], location)
    body = list(out)
    cover = _cover(body, body.index(label, prologue))
    out[prologue - 1 : prologue] = _covered(raises, cover)
    out.argnames.append(_ERROR)
    out.argcount += 1
    return _assemble(out, code, resume.stack)


def native_code(resume: ResumeCode, *, caught: bool) -> CodeType:
    """Like ``resume.code``, to be run as it is. The last operand is an exception that was just
    ``caught``, in a list, from which it is taken, so that nobody else holds it."""
    code, stack = resume.original, resume.stack
    out, first, _ = _resume(code, resume.index, stack, resume.locals)
    if caught:
        box = f"___s{len(stack) - 1}"
        at = out.index(Instr("LOAD_FAST", box, lineno=code.co_firstlineno))
        copied = [Instr("BUILD_LIST", 0), Instr("LOAD_FAST", box), Instr("LIST_EXTEND", 1)]
        taken = [*_call(adopt, 1, *copied), Instr("POP_TOP"), *_unbox(box)]
        out[at : at + 1] = _located(taken, out[at].location)
        first += len(taken) - 1
    out[first:] = _leaving(out[first:], stack)
    return _assemble(out, code, stack)


def generator_code(code: CodeType, index: int, shape: str, local_names: Sequence[str]) -> CodeType:
    """A generator function that, once started, is suspended at the YIELD_VALUE ``index`` of the
    generator ``code``; its parameters are those of a resume function."""
    out, length, _ = _resume(code, index, shape, local_names)
    out[length:] = _leaving(out[length:], shape)
    out.flags |= CompilerFlags.GENERATOR
    start = [Instr("RETURN_GENERATOR"), Instr("POP_TOP"), Instr("RESUME", 0)]
    for instr in start:
        instr.lineno = code.co_firstlineno
    first = next(i for i, item in enumerate(out) if getattr(item, "name", "") == "RESUME")
    out[first : first + 1] = start
    # What is yielded first is dropped by whoever makes the generator.
    last = length - 1 + len(start) - 1
    out.insert(last, Instr("LOAD_CONST", None, location=out[last].location))
    return _assemble(out, code, shape)


def _resume(
    code: CodeType, index: int, stack: str, local_names: Sequence[str]
) -> tuple[Bytecode, int, Label]:
    """The listing, the length of its prologue, and the label of ``index``."""
    body = _copy(code)
    label = _label_instruction(body, index)
    params = [local_name(n) for n in local_names]
    slots = _slots(stack)
    prologue: list[Any] = _entry(code)
    for i, kind in enumerate(stack):
        prologue += _push(kind, [Instr("LOAD_FAST", f"___s{i}")])
    prologue += [Instr("DELETE_FAST", name) for name in slots]  # no variables of the user's
    prologue.append(Instr("JUMP_FORWARD", label))
    for instr in prologue:
        instr.lineno = code.co_firstlineno
    out = _shell(code, [*params, *slots], bool(cells_of(code)))
    out.extend([*prologue, *body])
    return out, len(prologue), label


def _slots(shape: str) -> list[str]:
    """Parameters for the objects on a stack."""
    return [f"___s{i}" for i, kind in enumerate(shape) if kind in "RE"]


def _push(kind: str, load: list[Instr]) -> list[Instr]:
    if kind == "0":
        return [Instr("PUSH_NULL")]
    if kind == "L":  # only the line of a frame that is being left would depend on it
        return [Instr("LOAD_CONST", 0)]
    return [*load, Instr("PUSH_EXC_INFO"), Instr("POP_TOP")] if kind == "E" else load


@dataclass(frozen=True, slots=True)
class Operation:
    """What a step does with its operands; see ``stack_effects.py`` for how they are chosen.

    Attributes:
        call: the function called with ``*___args, **___kwargs`` instead of the instruction.
        resolve: called with ``___callee`` to get that function, if it is not known. It is the
            step itself that calls the function, so what looks at its caller's frame (warnings,
            logging) finds the user's file and line.
        instr: the instruction to run otherwise (``bytecode`` form); a jump goes to exit 1.
        after_jump: instructions at the start of exit 1 (loops end with END_FOR there).
    """

    call: Callable[..., object] | None = None
    resolve: Callable[..., object] | None = None
    instr: Callable[[Label], list[Instr]] | None = None
    after_jump: tuple[str, ...] = ()

    @property
    def calls(self) -> bool:
        """Whether this is a call with operands in ``___args``."""
        return self.call is not None or self.resolve is not None


def step_code(
    code: CodeType,
    index: int,
    operation: Operation,
    operands: str,
    exits: Sequence[Exit],
    local_names: Sequence[str] | None,
    onward: int | None = None,
    boxed: Collection[str] = (),
    caught: Callable[..., object] | None = None,
) -> CodeType:
    """Code that runs instruction ``index`` natively and hands on to one of ``exits``.

    Parameters of the result, in order: ``___callee`` if it has to be resolved; ``___args`` and
    ``___kwargs`` if the operation is a call; ``RAISED`` if it is among ``boxed``; one ``___rest``
    tuple for each exit, ``caught`` last; the non-NULL ``operands``; the locals.

    Args:
        code: the user's code object.
        index: the instruction.
        operation: what to run.
        operands: stack slots to push first, bottom first.
        exits: where to go afterwards; the second one is taken by a jump.
        local_names: the locals that are passed, and the cells with them, where the instruction or
            what it calls looks at them.
        onward: do not leave, but go on natively at this instruction, in a copy of the code.
        boxed: parameters (locals, slots as ``___sN``) that arrive in a list, from which they are
            taken, so that nobody but this frame holds them. ``RAISED``: exceptions that
            the frame has raised or handled; their tracebacks lead to this one from now on.
        caught: gives what to return for an exception of the instruction (``CodeRecord.caught``), if
            the user's function handles it.
    """
    location = instruction_at(code, index).location
    end, jump_end, handler = Label(), Label(), Label()
    native = _located(_natively(operation, jump_end), location)
    closure = local_names is not None and bool(cells_of(code))
    pushes = _pushes(code, operands, boxed, closure)
    leftover = operands[: _leftover(operation, operands, exits)]
    own = [_CALLEE] if operation.resolve is not None else []
    own += [_ARGS, _KWARGS] if operation.calls else []
    own += [RAISED] if RAISED in boxed else []
    own += [f"___rest{i}" for i in range(len(exits) + (caught is not None))] + _slots(operands)
    params = [*own, *(local_name(n) for n in local_names or ())]
    in_force = operands[: operands.rfind("E") + 1]
    gone = [Instr("DELETE_FAST", name) for name in _slots(operands)]
    pushes += _located(gone, pushes[-1].location)
    if onward is not None:
        # The original instruction stays where it is: handlers may run into it again in a loop.
        body = _copy(code)
        cover = _cover(body, _position_of(body, index))
        after = _label_instruction(body, onward)
        listing = [*pushes, *_covered(native, cover)]
        listing += [Instr("JUMP_FORWARD", after, location=location), *_leaving(body, operands), end]
    else:
        cover = None if caught is None else TryBegin(handler, False, len(in_force))
        listing = [*pushes, *_covered(native, cover), end]
    listing += _tail(0, exits[0], leftover, location) if exits else []
    if len(exits) > 1:
        listing.append(jump_end)
        listing += [Instr(name, location=location) for name in operation.after_jump]
        listing += _tail(1, exits[1], leftover, location)
    if not exits:  # the instruction raises
        listing += _located([Instr("LOAD_CONST", None), Instr("RETURN_VALUE")], location)
    if caught is not None:
        listing += [handler, *_caught_tail(len(exits), caught, in_force, own, location)]
    out = _shell(code, params, closure)
    out.extend(listing)
    results = max((e.results for e in exits), default=0)
    return _assemble(out, code, operands + "R" * results)


def _natively(operation: Operation, jump_end: Label) -> list[Any]:
    """What runs the operation, with its operands on the stack."""
    if operation.calls:
        return [
            *push_null_call(_callee(operation), None),
            Instr("LOAD_FAST", _ARGS),
            Instr("LOAD_FAST", _KWARGS),
            Instr("DELETE_FAST", _ARGS),
            Instr("DELETE_FAST", _KWARGS),
            Instr("CALL_FUNCTION_EX", 1),
        ]
    return [] if operation.instr is None else operation.instr(jump_end)


def _pushes(code: CodeType, operands: str, boxed: Collection[str], closure: bool) -> list[Any]:
    """The beginning of a step: what is boxed is taken out, and ``operands`` are pushed."""
    out: list[Any] = _entry(code) if closure else [Instr("RESUME", 0)]
    if RAISED in boxed:
        out += [*_call(adopt, 1, Instr("LOAD_FAST", RAISED)), Instr("POP_TOP")]
    for name in sorted(set(boxed) - {RAISED, *_slots(operands)}):
        out += [*_unbox(local_name(name)), Instr("STORE_FAST", local_name(name))]
    for i, kind in enumerate(operands):
        name = f"___s{i}"
        out += _push(kind, _unbox(name) if name in boxed else [Instr("LOAD_FAST", name)])
    for instr in out:
        instr.lineno = code.co_firstlineno
    return out


def _located(listing: list[Any], location: Any) -> list[Any]:
    """The instructions of ``listing``, all at ``location``."""
    for instr in listing:
        instr.location = location
    return listing


def _call(fn: Callable[..., object], count: int, *args: Instr) -> list[Instr]:
    """A call of a constant; ``args`` push ``count`` objects."""
    out = [*push_null_call([Instr("LOAD_CONST", fn)], None), *args]
    if _V == (3, 11):
        out.append(Instr("PRECALL", count))
    return [*out, Instr("CALL", count)]


def _unbox(name: str) -> list[Instr]:
    return _call(list.pop, 1, Instr("LOAD_FAST", name))


def _callee(operation: Operation) -> list[Instr]:
    if operation.resolve is None:
        return [Instr("LOAD_CONST", operation.call)]
    return _call(operation.resolve, 1, Instr("LOAD_FAST", _CALLEE))


def _leftover(operation: Operation, operands: str, exits: Sequence[Exit]) -> int:
    """Slots below the results when the step leaves; they are dropped before returning."""
    if operation.instr is None:
        return len(operands)
    effect: int = sum(instr.stack_effect(jump=False) for instr in operation.instr(Label()))
    return len(operands) + effect - exits[0].results if exits else 0


def _tail(number: int, exit: Exit, leftover: str, location: Any) -> list[Any]:
    results = [f"___r{i}" for i in range(exit.results)]
    out = [*(Instr("STORE_FAST", name) for name in reversed(results)), *_drops(leftover)]
    made = [Instr("LOAD_FAST", name) for name in results]
    made.append(Instr("BUILD_TUPLE", len(results)))
    rest = Instr("LOAD_FAST", f"___rest{number}")
    out += _call(TailCall, 3, Instr("LOAD_CONST", exit.entry), rest, *made)
    out.append(Instr("RETURN_VALUE"))
    return _located(out, location)


def _leaving(body: list[Any], stack: str) -> list[Any]:
    """``body``, the copy of a function's that is entered with ``stack``, so that an exception that
    was raised before, and is raised again, leads to this frame, not to the one of then."""
    if not stack:
        return body
    label, out = Label(), []
    inside, own = False, None
    for item in body:
        if isinstance(item, Instr) and not inside and own is None:
            own = TryBegin(label, False, 0)
            out.append(own)
        elif isinstance(item, TryBegin):
            out += [] if own is None else [TryEnd(own)]
            inside, own = True, None
        elif isinstance(item, TryEnd):
            inside = False
        out.append(item)
    out += [] if own is None else [TryEnd(own)]
    again = [Instr("STORE_FAST", _ERROR)]
    again += _call(adopt, 1, Instr("LOAD_FAST", _ERROR), Instr("BUILD_LIST", 1))
    again += [Instr("POP_TOP"), Instr("LOAD_FAST", _ERROR), Instr("DELETE_FAST", _ERROR)]
    again.append(Instr("RERAISE", 0))
    return [*out, label, *_located(again, body[-1].location)]


def _drops(slots: str) -> list[Instr]:
    # STORE_FAST takes NULL as well (it unbinds), POP_TOP would not.
    drops = {"E": ("POP_EXCEPT",)}
    return [Instr(*drops.get(kind, ("STORE_FAST", "___junk"))) for kind in reversed(slots)]


def _caught_tail(
    number: int, caught: Callable[..., object], in_force: str, own: Sequence[str], location: Any
) -> list[Any]:
    """With an exception on the stack: returns what ``caught`` makes of it. This frame, which the
    traceback leads to, lets go of everything of ours."""
    error, rest = "___r0", f"___rest{number}"
    out = [Instr("STORE_FAST", error), *_drops(in_force)]
    out += _call(caught, 2, Instr("LOAD_FAST", rest), Instr("LOAD_FAST", error))
    for name in (error, "___junk", *own):
        out += [Instr("LOAD_CONST", None), Instr("STORE_FAST", name)]
    return _located([*out, Instr("RETURN_VALUE")], location)


def _assemble(out: Bytecode, code: CodeType, stack: str) -> CodeType:
    # The user's code keeps its own stack depths; what is added needs a few slots more. Stating the
    # size also spares the assembler a data flow analysis, most of its time.
    size = code.co_stacksize + len(stack) + _EXTRA_STACK
    made: CodeType = out.to_code(stacksize=size, compute_exception_stack_depths=False)
    note_resumes(made, code)
    return made


def _entry(code: CodeType) -> list[Any]:
    cells = cells_of(code)
    head = [Instr("COPY_FREE_VARS", len(cells))] if cells else []
    return [*head, Instr("RESUME", 0)]


def _shell(code: CodeType, params: Sequence[str], closure: bool) -> Bytecode:
    out = Bytecode()
    out.name = code.co_name
    out.qualname = code.co_qualname
    out.filename = code.co_filename
    out.first_lineno = code.co_firstlineno
    out.docstring = None
    out.flags = CompilerFlags(code.co_flags) & _KEPT_FLAGS
    out.argnames = list(params)
    out.argcount = len(params)
    out.freevars = list(cells_of(code)) if closure else []
    out.cellvars = [name for name in code.co_cellvars if name in shadowed_cells(code)]
    return out


def _copy(code: CodeType) -> list[Any]:
    """The instructions of ``code`` with every cell turned into a free variable."""
    cells = frozenset(cells_of(code)) - shadowed_cells(code)
    out: list[Any] = []
    in_head = True
    hidden: dict[str, list[bool]] = {}
    before = ""
    for item in _listing(code):
        if isinstance(item, Instr):
            if in_head and item.name in ("MAKE_CELL", "COPY_FREE_VARS"):
                # The prologue has the cells already; keep the numbering of instructions.
                item = Instr("NOP", location=item.location)
            elif item.name == "RESUME":
                in_head = False
            before = _follow(hidden, item, before)
            if not (isinstance(item.arg, CellVar) and hidden[item.arg.name][-1:] == [True]):
                item = freed(item, cells)
        out.append(item)
    if len(cells) < len(cells_of(code)):
        _closure_loads(out, shadowed_cells(code))
    return out


def _follow(hidden: dict[str, list[bool]], item: Instr, before: str) -> str:
    """Note what ``item`` does to variables of inlined comprehensions: by name, whether those that
    hide it are cells, innermost last. ``before`` is what this gave last."""
    name = item.arg.name if isinstance(item.arg, CellVar) else item.arg
    found = hidden.setdefault(name, []) if isinstance(name, str) else []
    if item.name == "LOAD_FAST_AND_CLEAR":
        found.append(False)
    elif item.name == "MAKE_CELL":
        found[-1:] = [True] * len(found[-1:])
    elif item.name == "STORE_FAST" and before not in ("FOR_ITER", "UNPACK_SEQUENCE", "UNPACK_EX"):
        del found[-1:]  # what the comprehension has hidden is back
    return before if item.name.startswith("STORE_") else item.name


def shadowed_cells(code: CodeType) -> frozenset[str]:
    """Cells whose name is also the variable of an inlined comprehension (3.12 and later).

    The two share a slot in the user's code and have one each here: the comprehension's variable
    stays a local (or a cell of its own), the outer one is a free variable.
    """
    cells = cells_of(code)
    if not cells or _V < (3, 12):
        return frozenset()
    cleared = {i.argval for i in decode(code).instructions if i.opname == "LOAD_FAST_AND_CLEAR"}
    return frozenset(name for name in cells if name in cleared)


def in_shadow(code: CodeType, index: int) -> bool:
    """True when instruction ``index`` may be inside such a comprehension."""
    names = shadowed_cells(code)
    spans: dict[str, list[int]] = {}
    for ins in decode(code).instructions:
        if ins.argval in names and ins.opname in ("LOAD_FAST_AND_CLEAR", "STORE_FAST"):
            spans.setdefault(str(ins.argval), []).append(ins.index)
    return any(span[0] < index <= span[-1] for span in spans.values())


def _closure_loads(body: list[Any], names: Collection[str]) -> None:
    """3.13 loads a cell for a closure with LOAD_FAST, like the comprehension's variable: those
    that end in a function being made mean the outer one."""
    instrs = [(at, item) for at, item in enumerate(body) if isinstance(item, Instr)]
    hidden: dict[str, list[bool]] = {}
    before = ""
    for k, (_, item) in enumerate(instrs):
        before = _follow(hidden, item, before)
        after = instrs[min(k + 1, len(instrs) - 1)][1]
        if item.name != "MAKE_FUNCTION" or (after.name, after.arg) != _CLOSED:
            continue  # a tuple before it is that of the defaults
        count = instrs[k - 2][1].arg
        for at, load in instrs[max(k - 2 - count, 0) : k - 2]:
            name = load.arg if isinstance(load.arg, str) else ""
            if load.name == "LOAD_FAST" and name in names and hidden.get(name, [])[-1:] != [True]:
                body[at] = _with_arg(load, FreeVar(load.arg))


_CLOSED = ("SET_FUNCTION_ATTRIBUTE", 8)


def freed(item: Instr, cells: Collection[str]) -> Instr:
    """``item`` with cell variables turned into free ones and names into identifiers.

    Args:
        item: an instruction of the user's code.
        cells: names of its cell and free variables. A parameter that is a cell looks like an
            ordinary local where 3.13 loads the cell itself.
    """
    arg = item.arg
    if isinstance(arg, CellVar):
        return _with_arg(item, FreeVar(arg.name))
    if isinstance(arg, str) and "FAST" in item.name:
        if arg in cells:
            return _with_arg(item, FreeVar(arg))
        return _with_arg(item, local_name(arg)) if local_name(arg) != arg else item
    return item


def _with_arg(item: Instr, arg: Any) -> Instr:
    return Instr(item.name, arg, location=item.location)


def _position_of(body: list[Any], index: int) -> int:
    seen = -1
    for position, item in enumerate(body):
        if isinstance(item, Instr):
            seen += 1
            if seen == index:
                return position
    raise InternalError(f"no instruction {index}")


def _cover(body: list[Any], position: int) -> TryBegin | None:
    """The exception table entry that covers a position."""
    active: TryBegin | None = None
    for item in body[:position]:
        if isinstance(item, TryBegin):
            active = item
        elif isinstance(item, TryEnd):
            active = None
    return active


def _covered(native: list[Any], cover: TryBegin | None) -> list[Any]:
    if cover is None or not native:  # an empty range has no place in the exception table
        return native
    begin = TryBegin(cover.target, cover.push_lasti, cover.stack_depth)
    # 3.13 looks for what covers the place before where a generator or function raises.
    return [begin, Instr("NOP", location=native[0].location), *native, TryEnd(begin)]


def _label_instruction(body: list[Any], index: int) -> Label:
    position = _position_of(body, index)
    # A TryBegin just before the instruction must stay between the label and the instruction:
    # jumping to a label inside the covered range keeps the instruction covered.
    label = Label()
    body.insert(position, label)
    return label


def instruction_at(code: CodeType, index: int) -> Instr:
    """An instruction in the form that is assembled."""
    return [item for item in _listing(code) if isinstance(item, Instr)][index]


def _listing(code: CodeType) -> Iterator[Any]:
    """The instructions of ``code`` as ``decode`` numbers them, labels and handlers between them."""
    for item in Bytecode.from_code(code, conserve_exception_block_stackdepth=True):
        if isinstance(item, Instr) and item.name in PAIRS:
            for name, arg in zip(PAIRS[item.name], item.arg, strict=True):
                yield Instr(name, arg, location=item.location)
        else:
            yield item
