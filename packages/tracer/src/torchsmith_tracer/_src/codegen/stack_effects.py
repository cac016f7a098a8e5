"""What each instruction takes from the stack and leaves there, for running it natively at a break.

The table is data: ``opname -> (looks at, pops, leaves)``; numbers may depend on the argument. The
shape left is written with ``R`` for an object and ``0`` for an empty slot.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

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


_TABLE: dict[str, tuple[Count, Count, Shape]] = {
    # name: (slots below the operands that are looked at, operands popped, shape pushed)
    "BEFORE_WITH": (0, 1, "RR"),
    "BINARY_OP": (0, 2, "R"),
    "BINARY_SLICE": (0, 3, "R"),
    "BINARY_SUBSCR": (0, 2, "R"),
    "BUILD_CONST_KEY_MAP": (0, lambda n: n + 1, "R"),
    "BUILD_LIST": (0, lambda n: n, "R"),
    "BUILD_MAP": (0, lambda n: 2 * n, "R"),
    "BUILD_SET": (0, lambda n: n, "R"),
    "BUILD_SLICE": (0, lambda n: n, "R"),
    "BUILD_STRING": (0, lambda n: n, "R"),
    "BUILD_TUPLE": (0, lambda n: n, "R"),
    "CALL_INTRINSIC_1": (0, 1, "R"),
    "CALL_INTRINSIC_2": (0, 2, "R"),
    "CHECK_EG_MATCH": (0, 2, "RR"),
    "CHECK_EXC_MATCH": (1, 1, "R"),
    "COMPARE_OP": (0, 2, "R"),
    "CONTAINS_OP": (0, 2, "R"),
    "CONVERT_VALUE": (0, 1, "R"),
    "DELETE_ATTR": (0, 1, ""),
    "DELETE_DEREF": (0, 0, ""),
    "DELETE_FAST": (0, 0, ""),
    "DELETE_GLOBAL": (0, 0, ""),
    "DELETE_NAME": (0, 0, ""),
    "DELETE_SUBSCR": (0, 2, ""),
    "DICT_MERGE": (lambda n: n + 3, 1, ""),
    "DICT_UPDATE": (lambda n: n, 1, ""),
    "FORMAT_SIMPLE": (0, 1, "R"),
    "FORMAT_VALUE": (0, lambda n: 2 if n & 4 else 1, "R"),
    "FORMAT_WITH_SPEC": (0, 2, "R"),
    "GET_ITER": (0, 1, "R"),
    "GET_LEN": (1, 0, "R"),
    "GET_YIELD_FROM_ITER": (0, 1, "R"),
    "IMPORT_FROM": (1, 0, "R"),
    "IMPORT_NAME": (0, 2, "R"),
    "IMPORT_STAR": (0, 1, ""),
    "IS_OP": (0, 2, "R"),
    "LIST_APPEND": (lambda n: n, 1, ""),
    "LIST_EXTEND": (lambda n: n, 1, ""),
    "LIST_TO_TUPLE": (0, 1, "R"),
    "LOAD_ASSERTION_ERROR": (0, 0, "R"),
    "LOAD_BUILD_CLASS": (0, 0, "R"),
    "LOAD_CLASSDEREF": (0, 0, "R"),
    "LOAD_DEREF": (0, 0, "R"),
    "LOAD_FAST": (0, 0, "R"),
    "LOAD_FAST_CHECK": (0, 0, "R"),
    "LOAD_FROM_DICT_OR_DEREF": (0, 1, "R"),
    "LOAD_NAME": (0, 0, "R"),
    "MAKE_FUNCTION": (0, lambda n: 1 + (n & 15).bit_count(), "R"),
    "MAP_ADD": (lambda n: n, 2, ""),
    "MATCH_CLASS": (0, 3, "R"),
    "MATCH_KEYS": (2, 0, "R"),
    "MATCH_MAPPING": (1, 0, "R"),
    "MATCH_SEQUENCE": (1, 0, "R"),
    "PREP_RERAISE_STAR": (0, 2, "R"),
    "PRINT_EXPR": (0, 1, ""),
    "SET_ADD": (lambda n: n, 1, ""),
    "SET_FUNCTION_ATTRIBUTE": (0, 2, "R"),
    "SET_UPDATE": (lambda n: n, 1, ""),
    "STORE_ATTR": (0, 2, ""),
    "STORE_DEREF": (0, 1, ""),
    "STORE_GLOBAL": (0, 1, ""),
    "STORE_NAME": (0, 1, ""),
    "STORE_SLICE": (0, 4, ""),
    "STORE_SUBSCR": (0, 3, ""),
    "TO_BOOL": (0, 1, "R"),
    "UNARY_INVERT": (0, 1, "R"),
    "UNARY_NEGATIVE": (0, 1, "R"),
    "UNARY_NOT": (0, 1, "R"),
    "UNARY_POSITIVE": (0, 1, "R"),
    "UNPACK_EX": (0, 1, lambda n: "R" * ((n & 255) + 1 + (n >> 8))),
    "UNPACK_SEQUENCE": (0, 1, lambda n: "R" * n),
    "WITH_EXCEPT_START": (4, 0, "R"),
}
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


def native(code: CodeType, info: CodeInfo, ins: Instruction) -> Native:
    """How to run ``ins`` of ``code`` natively. Calls are not handled here.

    Raises:
        InternalError: the instruction cannot be left and resumed.
    """
    name, arg, after = ins.opname, ins.arg, ins.index + 1
    original = _instr(code, ins.index)
    if name in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_SUPER_ATTR"):
        return _named_load(ins, original, after)
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
        # From 3.13 on jumps want a real bool; tracing puts that off to the jump.
        first = [Instr("TO_BOOL")] if _V >= (3, 13) and not name.endswith("NONE") else []
        operation = Operation(instr=lambda label: [*first, Instr(opname, label)])
        return Native(operation, 0, 1, (NativeExit(after, ""), NativeExit(ins.target, kept)))
    if name == "UNARY_NOT" and _V >= (3, 13):
        operation = Operation(instr=lambda _: [Instr("TO_BOOL"), Instr("UNARY_NOT")])
        return Native(operation, 0, 1, (NativeExit(after, "R"),))
    if name == "RAISE_VARARGS":
        return Native(Operation(instr=lambda _: [original]), 0, arg, ())
    if name == "RERAISE":
        return Native(Operation(instr=lambda _: [Instr("RERAISE", 0)]), 0, 1, ())
    row = _TABLE.get(name)
    if row is None:
        raise InternalError(f"no way to run {name} natively")
    peeks, pops, shape = (_number(part, arg) for part in row)
    assert isinstance(peeks, int) and isinstance(pops, int) and isinstance(shape, str)
    operation = Operation(instr=lambda _: [original])
    return Native(operation, peeks, pops, (NativeExit(after, shape),), "DEREF" in name)


def _number(part: Any, arg: int) -> int | str:
    return part(arg) if callable(part) else part  # type: ignore[no-any-return]


def _named_load(ins: Instruction, original: Instr, after: int) -> Native:
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
        old: Any = original.arg
        pops, load = 3, Instr("LOAD_SUPER_ATTR", (False, *old[1:]))
    shape = _METHOD_SHAPE if pair else "R"
    return Native(Operation(instr=lambda _: [load.copy()]), 0, pops, (NativeExit(after, shape),))


def _instr(code: CodeType, index: int) -> Instr:
    found = instruction_at(code, index)
    if isinstance(found.arg, Label):
        return found
    return freed(found, cells_of(code))
