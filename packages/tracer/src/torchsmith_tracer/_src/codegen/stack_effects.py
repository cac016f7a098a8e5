"""What each instruction takes from the stack and leaves there, for running it natively at a break.

The table is data: what opcodes look at, pop and leave; numbers may depend on the argument. The
shape left is written with ``R`` for an object and ``0`` for an empty slot.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType

from bytecode import Instr, Label

from torchsmith_tracer._src.breaks.signals import InternalError
from torchsmith_tracer._src.codegen.resume import Operation, freed, instruction_at
from torchsmith_tracer._src.frames.code import CodeInfo, Instruction, cells_of

_V = sys.version_info[:2]

Count = int | Callable[[int], int]
Shape = str | Callable[[int], str]


@dataclass(frozen=True, slots=True)
class NativeExit:
    """Where an instruction may continue: instruction index, and the shape it leaves."""

    index: int
    shape: str


@dataclass(frozen=True, slots=True)
class Native:
    """How to run one instruction natively: it looks at ``peeks`` more slots than the ``pops`` it
    removes."""

    operation: Operation
    peeks: int
    pops: int
    exits: tuple[NativeExit, ...]
    reads_cells: bool = False


# (slots below the operands that are looked at, operands popped, shape pushed): opcodes.
_EFFECTS: dict[tuple[Count, Count, Shape], str] = {
    (0, 1, "RR"): "BEFORE_WITH",
    (0, 2, "R"): (
        "BINARY_OP BINARY_SUBSCR CALL_INTRINSIC_2 COMPARE_OP CONTAINS_OP FORMAT_WITH_SPEC "
        "IMPORT_NAME IS_OP PREP_RERAISE_STAR SET_FUNCTION_ATTRIBUTE"
    ),
    (0, 3, "R"): "BINARY_SLICE MATCH_CLASS",
    (0, lambda n: n + 1, "R"): "BUILD_CONST_KEY_MAP",
    (0, lambda n: n, "R"): "BUILD_LIST BUILD_SET BUILD_SLICE BUILD_STRING BUILD_TUPLE",
    (0, lambda n: 2 * n, "R"): "BUILD_MAP",
    (0, 1, "R"): (
        "CALL_INTRINSIC_1 CONVERT_VALUE FORMAT_SIMPLE GET_ITER GET_YIELD_FROM_ITER "
        "LIST_TO_TUPLE LOAD_FROM_DICT_OR_DEREF TO_BOOL UNARY_INVERT UNARY_NEGATIVE "
        "UNARY_POSITIVE"
    ),
    (0, 2, "RR"): "CHECK_EG_MATCH",
    (1, 1, "R"): "CHECK_EXC_MATCH",
    (0, 1, ""): "DELETE_ATTR IMPORT_STAR PRINT_EXPR STORE_DEREF STORE_GLOBAL STORE_NAME",
    (0, 0, ""): "DELETE_DEREF DELETE_FAST DELETE_GLOBAL DELETE_NAME",
    (0, 2, ""): "DELETE_SUBSCR STORE_ATTR",
    (lambda n: n + 3, 1, ""): "DICT_MERGE",
    (lambda n: n, 1, ""): "DICT_UPDATE LIST_APPEND LIST_EXTEND SET_ADD SET_UPDATE",
    (0, lambda n: 2 if n & 4 else 1, "R"): "FORMAT_VALUE",
    (1, 0, "R"): "GET_LEN IMPORT_FROM MATCH_MAPPING MATCH_SEQUENCE",
    (0, 0, "R"): (
        "LOAD_ASSERTION_ERROR LOAD_BUILD_CLASS LOAD_CLASSDEREF LOAD_DEREF LOAD_FAST "
        "LOAD_FAST_CHECK LOAD_NAME"
    ),
    (0, lambda n: 1 + (n & 15).bit_count(), "R"): "MAKE_FUNCTION",
    (lambda n: n, 2, ""): "MAP_ADD",
    (2, 0, "R"): "MATCH_KEYS",
    (0, 4, ""): "STORE_SLICE",
    (0, 3, ""): "STORE_SUBSCR",
    (0, 1, lambda n: "R" * ((n & 255) + 1 + (n >> 8))): "UNPACK_EX",
    (0, 1, lambda n: "R" * n): "UNPACK_SEQUENCE",
    (4, 0, "R"): "WITH_EXCEPT_START",
}
_TABLE = {name: effect for effect, names in _EFFECTS.items() for name in names.split()}
_FORWARD = {
    "POP_JUMP_BACKWARD_IF_FALSE": "POP_JUMP_FORWARD_IF_FALSE",
    "POP_JUMP_BACKWARD_IF_TRUE": "POP_JUMP_FORWARD_IF_TRUE",
    "POP_JUMP_BACKWARD_IF_NONE": "POP_JUMP_FORWARD_IF_NONE",
    "POP_JUMP_BACKWARD_IF_NOT_NONE": "POP_JUMP_FORWARD_IF_NOT_NONE",
}
_METHOD_SHAPE = "R0" if _V >= (3, 13) else "0R"


def is_call(ins: Instruction) -> bool:
    """True for the instructions that call a function."""
    return ins.opname in ("CALL", "CALL_KW", "CALL_FUNCTION_EX", "PRECALL")


def to_bool(name: str) -> list[Instr]:
    """What has to come before an instruction that, from 3.13 on, wants a real bool: tracing puts
    the conversion off to it."""
    wants = name == "UNARY_NOT" or ("JUMP_IF" in name and not name.endswith("NONE"))
    return [Instr("TO_BOOL")] if wants and _V >= (3, 13) else []


def native(code: CodeType, info: CodeInfo, ins: Instruction) -> Native:
    """How to run ``ins`` of ``code`` natively. Calls are not handled here.

    Raises:
        InternalError: the instruction cannot be left and resumed.
    """
    name, arg, after = ins.opname, ins.arg, ins.index + 1
    original = _instr(code, ins.index)
    if name in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_SUPER_ATTR"):
        return _named_load(ins, after)
    if name == "FOR_ITER":
        ending = {(3, 11): (), (3, 12): ("END_FOR",)}.get(_V, ("END_FOR", "POP_TOP"))
        operation = Operation(
            instr=lambda label: [Instr("FOR_ITER", label)], after_jump=tuple(ending)
        )
        exits = (NativeExit(after, "RR"), NativeExit(ins.target + len(ending), ""))
        return Native(operation, 0, 1, exits)
    if "JUMP_IF" in name or name.startswith("POP_JUMP"):
        kept = "R" if name.endswith("OR_POP") else ""
        opname = _FORWARD.get(name, name)
        first = to_bool(name)
        operation = Operation(instr=lambda label: [*first, Instr(opname, label)])
        return Native(operation, 0, 1, (NativeExit(after, ""), NativeExit(ins.target, kept)))
    if name == "UNARY_NOT":
        operation = Operation(instr=lambda _: [*to_bool(name), Instr("UNARY_NOT")])
        return Native(operation, 0, 1, (NativeExit(after, "R"),))
    if name == "RAISE_VARARGS":
        return Native(Operation(instr=lambda _: [original]), 0, arg, ())
    if name == "RERAISE":
        return Native(Operation(instr=lambda _: [Instr("RERAISE", 0)]), 0, 1, ())
    row = _TABLE.get(name)
    if row is None:
        raise InternalError(f"no way to run {name} natively")
    peeks, pops, shape = (part(arg) if callable(part) else part for part in row)
    assert isinstance(peeks, int) and isinstance(pops, int) and isinstance(shape, str)
    operation = Operation(instr=lambda _: [original])
    return Native(operation, peeks, pops, (NativeExit(after, shape),), "DEREF" in name)


def _named_load(ins: Instruction, after: int) -> Native:
    """Loads that may push a second slot for a following call are run without it."""
    name, arg = ins.opname, ins.arg
    text = str(ins.argval)
    pair = bool(arg & 1)
    pops, load = 1, Instr("LOAD_ATTR", (False, text) if _V >= (3, 12) else text)
    if name == "LOAD_GLOBAL":
        pops, load = 0, Instr("LOAD_GLOBAL", (False, text))
    elif name == "LOAD_METHOD":
        pair = True
    elif name == "LOAD_ATTR" and _V < (3, 12):
        pair = False
    elif name == "LOAD_SUPER_ATTR":
        # ``super()`` without arguments would look for them in the frame, which is another one.
        pops, load = 3, Instr("LOAD_SUPER_ATTR", (False, True, text))
    shape = _METHOD_SHAPE if pair else "R"
    return Native(Operation(instr=lambda _: [load.copy()]), 0, pops, (NativeExit(after, shape),))


def _instr(code: CodeType, index: int) -> Instr:
    found = instruction_at(code, index)
    if isinstance(found.arg, Label):
        return found
    return freed(found, cells_of(code))
