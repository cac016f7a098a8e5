"""Decoding of code objects for CPython 3.11 to 3.13.

One pass over ``co_code`` gives a list of ``Instruction`` with resolved arguments and jump targets
as list indices, so that the interpreter never touches byte offsets. Inline caches and EXTENDED_ARG
prefixes disappear; what is two instructions in one becomes the two, since it takes only the first
16 variables, of which the code that goes on after a break may have others. Decoding is done once
for each code object.
"""

from __future__ import annotations

import dis
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import NamedTuple

VERSION = sys.version_info[:2]

_JUMP = frozenset(dis.hasjrel) | frozenset(dis.hasjabs)
_NO_ARG_BELOW = dis.HAVE_ARGUMENT
_EXTENDED = dis.EXTENDED_ARG
# Instructions of 3.13 that are two in one, and those two.
PAIRS = {
    "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
}
# Where an opcode finds what its argument stands for: constants, names, variables or comparisons,
# and how many low bits of the argument say something else.
_COMPARE_SHIFT = {(3, 11): 0, (3, 12): 4}.get(VERSION, 5)
_FLAGGED = {"LOAD_GLOBAL": 1, "LOAD_ATTR": int(VERSION >= (3, 12)), "LOAD_SUPER_ATTR": 2}
_MEANING: dict[int, tuple[int, int]] = {
    **dict.fromkeys(dis.hasconst, (0, 0)),
    **{op: (1, _FLAGGED.get(dis.opname[op], 0)) for op in dis.hasname},
    **dict.fromkeys((*dis.haslocal, *dis.hasfree), (2, 0)),
    dis.opmap["COMPARE_OP"]: (3, _COMPARE_SHIFT),
}


class Instruction:
    """One instruction.

    Attributes:
        opname: name in ``dis.opmap``.
        arg: raw argument, extended prefixes folded in (0 when the opcode has none).
        argval: the resolved argument: constant, name, operator text or ``arg``.
        index: position in ``CodeInfo.instructions``.
        offset: byte offset of the instruction itself (not of its EXTENDED_ARG prefix).
        target: index of the jump target, -1 when the instruction does not jump.
        run: the opcode handler, bound when the code is first interpreted.
        guarded: whether the interpreter takes a checkpoint before it (see ``interp``).
        drops: whether it may drop the last reference to an object.
    """

    __slots__ = tuple("arg argval drops guarded index offset opname run start target".split())

    def __init__(self, opname: str, arg: int, argval: object, index: int, offset: int) -> None:
        self.opname = opname
        self.arg = arg
        self.argval = argval
        self.index = index
        self.offset = offset
        self.start = offset
        self.target = -1
        self.run: Callable[..., int | None] | None = None
        self.guarded = self.drops = True

    def __repr__(self) -> str:
        jump = f" -> {self.target}" if self.target >= 0 else ""
        return f"<{self.index}: {self.opname} {self.argval!r}{jump}>"


class Handler(NamedTuple):
    """One entry of the exception table, in instruction indices; ``end`` is exclusive."""

    start: int
    end: int
    target: int
    depth: int
    push_lasti: bool


@dataclass(slots=True)
class CodeInfo:
    """A decoded code object.

    Attributes:
        code: the code object.
        instructions: without caches and prefixes.
        exceptions: the exception table, in table order.
        handler_at: for each instruction, its innermost handler or None.
        cell_names: ``co_cellvars`` and ``co_freevars`` in that order.
        bound: whether the handlers in ``Instruction.run`` are set.
    """

    code: CodeType
    instructions: list[Instruction]
    exceptions: list[Handler]
    handler_at: list[Handler | None]
    cell_names: tuple[str, ...]
    bound: bool = False
    live: list[int] | None = None
    _lines: list[int] | None = None  # the frequent question; few ask for columns
    _positions: list[tuple[int | None, int | None, int | None, int | None]] | None = None

    def position(self, index: int) -> tuple[int | None, int | None, int | None, int | None]:
        """(line, end line, column, end column) of an instruction."""
        if self._positions is None:
            self._positions = list(self.code.co_positions())
        return self._positions[self.instructions[index].offset // 2]

    def line(self, index: int) -> int:
        """Line number of an instruction, or of the function when it has none."""
        if self._lines is None:
            first = self.code.co_firstlineno
            self._lines = []
            for start, end, line in self.code.co_lines():
                self._lines += [line or first] * ((end - start) // 2)
        return self._lines[self.instructions[index].offset // 2]


def parse_exception_table(table: bytes) -> Iterator[tuple[int, int, int, int, bool]]:
    """(start, end, target, depth, push lasti) with byte offsets; varints as in CPython's
    ``Objects/exception_handling_notes.txt``."""
    data = iter(table)

    def varint(first: int) -> int:
        value = first & 63
        while first & 64:
            first = next(data)
            value = (value << 6) | (first & 63)
        return value

    for first in data:
        start = varint(first) * 2
        length = varint(next(data)) * 2
        target = varint(next(data)) * 2
        depth_lasti = varint(next(data))
        yield start, start + length, target, depth_lasti >> 1, bool(depth_lasti & 1)


def _localsplus(code: CodeType) -> tuple[str, ...]:
    cells = tuple(name for name in code.co_cellvars if name not in code.co_varnames)
    return code.co_varnames + cells + code.co_freevars


def decode(code: CodeType) -> CodeInfo:
    """Decode ``code`` (cached: the same code object gives the same ``CodeInfo``)."""
    cached = _cache.get(id(code))
    if cached is not None and cached.code is code:
        return cached
    info = _decode(code)
    if len(_cache) > 20_000:
        _cache.clear()
    _cache[id(code)] = info
    return info


_cache: dict[int, CodeInfo] = {}


def _decode(code: CodeType) -> CodeInfo:
    raw = code.co_code
    plus = _localsplus(code)
    meanings = (code.co_consts, code.co_names, plus, dis.cmp_op)
    opnames = dis.opname
    argval: object
    out: list[Instruction] = []
    at_offset: dict[int, int] = {}
    jumps: list[tuple[Instruction, int]] = []
    extended = 0
    prefix_at = -1
    for offset in range(0, len(raw), 2):
        op = raw[offset]
        if op == 0:
            continue
        if op == _EXTENDED:
            if prefix_at < 0:
                prefix_at = offset
            extended = (extended | raw[offset + 1]) << 8
            continue
        arg = (raw[offset + 1] | extended) if op >= _NO_ARG_BELOW else 0
        extended = 0
        name = opnames[op]
        meaning = _MEANING.get(op)
        if name in PAIRS:
            other, name = PAIRS[name]
            before = Instruction(other, arg >> 4, plus[arg >> 4], len(out), offset)
            at_offset[offset] = before.index
            out.append(before)
            arg &= 15
            argval = plus[arg]
        elif meaning is not None:
            which, shift = meaning
            argval = meanings[which][arg >> shift]
        else:
            argval = arg
        ins = Instruction(name, arg, argval, len(out), offset)
        if prefix_at >= 0:
            ins.start = prefix_at
            prefix_at = -1
        at_offset[ins.start] = at_offset.setdefault(offset, ins.index)
        if op in _JUMP:
            after = offset + 2
            while after < len(raw) and raw[after] == 0:
                after += 2
            jumps.append((ins, after - 2 * arg if "BACKWARD" in name else after + 2 * arg))
        out.append(ins)
    for ins, where in jumps:
        ins.target = at_offset[where]
        ins.argval = ins.target
    handlers: list[Handler] = []
    handler_at: list[Handler | None] = [None] * len(out)
    for start, end, target, depth, lasti in parse_exception_table(code.co_exceptiontable):
        first, last = _span(out, at_offset, start, end)
        entry = Handler(first, last, at_offset[target], depth, lasti)
        handlers.append(entry)
        for i in range(first, last):
            handler_at[i] = entry
    return CodeInfo(code, out, handlers, handler_at, code.co_cellvars + code.co_freevars)


def _span(
    out: list[Instruction], at_offset: dict[int, int], start: int, end: int
) -> tuple[int, int]:
    first = at_offset[start]
    last = first
    while last < len(out) and out[last].offset < end:
        last += 1
    return first, last


def names_in(code: object, *opnames: str) -> set[str]:
    """What such instructions of a function, and of those in its code, are about."""
    if not isinstance(code, CodeType):
        return set()
    own = {str(ins.argval) for ins in decode(code).instructions if ins.opname in opnames}
    return own.union(*(names_in(c, *opnames) for c in code.co_consts))


def cells_of(code: CodeType) -> tuple[str, ...]:
    """Names of the free variables that step and resume functions of ``code`` have: backwards, since
    a closure lets go of its cells from the end."""
    return tuple(dict.fromkeys(code.co_cellvars + code.co_freevars))[::-1]


_CELLS_BEFORE: weakref.WeakKeyDictionary[CodeType, frozenset[str]] = weakref.WeakKeyDictionary()


def own_cells(code: CodeType) -> frozenset[str]:
    """The cells of the user's function itself, among them those that a resume function of it has
    as free variables: they are local variables to its messages."""
    return _CELLS_BEFORE.get(code, frozenset()).union(code.co_cellvars)


def note_resumes(made: CodeType, code: CodeType) -> None:
    """``made`` goes on where ``code`` stopped."""
    _CELLS_BEFORE[made] = own_cells(code)
