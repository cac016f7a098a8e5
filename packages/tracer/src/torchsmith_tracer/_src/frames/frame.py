"""``Frame``: one activation of a traced function; ``FrameState``: where it stopped."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from inspect import CO_OPTIMIZED
from types import CodeType
from typing import TYPE_CHECKING

from torchsmith_tracer._src.frames.code import CodeInfo, Instruction, decode, names_in

if TYPE_CHECKING:
    from torchsmith_tracer._src.values.base import Value
    from torchsmith_tracer._src.values.functions import CellValue, FunctionValue
    from torchsmith_tracer._src.values.namespaces import NamespaceValue


class Null:
    """The empty stack slot that calls use (``PUSH_NULL``)."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NULL"


NULL = Null()
_STORES = ("STORE_DEREF", "DELETE_DEREF")


@dataclass(slots=True, eq=False, repr=False)
class LastInstruction:
    """The instruction index that an exception table entry asks to be pushed."""

    index: int

    def __repr__(self) -> str:
        return f"lasti={self.index}"


@dataclass(slots=True, eq=False, repr=False)
class Handling:
    """The slot that a handler keeps while it runs: ``previous`` is the exception that the frame was
    handling before (None: none), ``exc`` the one that it is now."""

    exc: Value
    previous: Value | None

    def __repr__(self) -> str:
        return f"handling {self.exc!r}"


def shape_of(stack: Iterable[object]) -> str:
    """What a piece of code has to push to bring a stack back, one letter for each slot: ``0`` an
    empty slot, ``L`` an instruction index, ``E`` what a handler of an exception keeps there (its
    operand is that exception), ``R`` any other object."""
    return "".join(_LETTERS.get(type(item), "R") for item in stack)


def operands_of(stack: Iterable[object]) -> list[Value]:
    """The objects for the ``E`` and ``R`` slots of ``shape_of(stack)``."""
    found = (item.exc if isinstance(item, Handling) else item for item in stack)
    return [item for item in found if not isinstance(item, Null | LastInstruction)]  # type: ignore[misc]


_LETTERS: dict[type, str] = {Null: "0", LastInstruction: "L", Handling: "E"}


class Frame:
    """One activation record.

    Attributes:
        info: the decoded code.
        locals: fast locals that are bound; an unbound name is absent.
        cells: cell and free variables by name.
        stack: the value stack, bottom first.
        ip: index of the current instruction.
        globals: namespace that LOAD_GLOBAL reads.
        fn: the function value that is being run, if any.
        names: the class or module body's namespace for LOAD_NAME, if any.
        resumable: a break inside may be resumed in this frame (it was entered by a call
            instruction of a resumable frame, or it is the root).
        kw_names: pending keyword names (3.11 and 3.12).
        shown: what stands for the frame as an object of the program's.
        outside: the exception that was being handled where the frame was entered or resumed last.
        result: value returned or yielded when ``run`` stops.
        first: name of the first parameter, in the user's code where the frame resumes it: what
            ``super()`` looks at.
        marks, saved: checkpoint and stack copy taken before the current instruction.
        entered_directly: a call instruction of the frame below entered this one; no builtin in
            between holds on to arguments.
    """

    __slots__ = tuple(
        "cells entered_directly first fn globals info ip kw_names locals marks names "
        "outside result resumable saved shown stack".split()
    )

    def __init__(
        self,
        code: CodeType | CodeInfo,
        globals: NamespaceValue,
        locals: dict[str, Value] | None = None,
        cells: dict[str, CellValue] | None = None,
        *,
        fn: FunctionValue | None = None,
        stack: list[Value | Null | LastInstruction | Handling] | None = None,
        ip: int = 0,
        resumable: bool = False,
    ) -> None:
        self.info = code if isinstance(code, CodeInfo) else decode(code)
        self.globals = globals
        self.locals: dict[str, Value] = {} if locals is None else locals
        self.cells: dict[str, CellValue] = {} if cells is None else cells
        self.fn = fn
        self.stack: list[Value | Null | LastInstruction | Handling] = [] if stack is None else stack
        self.ip = ip
        code = self.info.code
        self.first: str | None = code.co_varnames[0] if code.co_argcount else None
        self.resumable = resumable
        self.entered_directly = False
        # A module's code keeps its variables in the globals.
        self.names: Value | None = None if code.co_flags & CO_OPTIMIZED else globals
        self.kw_names: tuple[str, ...] = ()
        self.shown: Value | None = None
        self.outside: Value | None = None
        self.result: Value | None = None
        self.marks: tuple[object, ...] | None = None
        self.saved: list[Value | Null | LastInstruction | Handling] = []

    def pop(self) -> Value:
        """The value on top of the stack, taken off it."""
        return self.stack.pop()  # type: ignore[return-value]

    def popn(self, count: int) -> list[Value]:
        """Likewise several, bottom first."""
        items = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return items  # type: ignore[return-value]

    def top(self, depth: int = 1) -> Value:
        """The value that many places from the top."""
        return self.stack[-depth]  # type: ignore[return-value]

    def handled(self) -> Value | None:
        """The exception that the innermost handler of this frame has received, if one runs."""
        for item in reversed(self.stack):
            if isinstance(item, Handling):
                return item.exc
        return None

    def variables(self) -> dict[str, Value]:
        """Locals and cells in the order in which the frame lets go of them."""
        table = self.locals
        return {n: table[n] for n in self.info.code.co_varnames if n in table} | self.cells

    def stores(self, name: str) -> bool:
        """Whether a cell's variable may be stored to from now on, also by functions in the code."""
        listing, after = self.info.instructions, self.ip + 1
        ends = [ins.target for ins in listing[after:] if ins.target >= 0]
        start = min([after, *ends])  # of loops, all
        own = {ins.argval for ins in listing[start:] if ins.opname in _STORES}
        return name in own.union(*(names_in(c, *_STORES) for c in self.info.code.co_consts))

    def suspended(self) -> bool:
        """Whether it is a generator's, which has yielded last."""
        return self.info.instructions[max(self.ip - 1, 0)].opname == "YIELD_VALUE"

    def delegates(self) -> bool:
        """Whether this suspended generator's frame waits in a ``yield from``."""
        ins = self.instruction
        return ins.opname == "RESUME" and ins.arg & 3 >= 2

    @property
    def instruction(self) -> Instruction:
        """The current instruction."""
        return self.info.instructions[self.ip]

    @property
    def line(self) -> int:
        """The user's line number that is being run."""
        return self.info.line(self.ip)

    def state(self, *, in_call: bool) -> FrameState:
        """A snapshot for a break report. ``in_call``: the instruction is a call whose callee has
        been entered; its operands are off the stack and its result is what gets pushed."""
        variables = dict(self.locals), dict(self.cells), self.kw_names
        return FrameState(self, self.ip, list(self.stack), *variables, in_call=in_call)


@dataclass(slots=True)
class FrameState:
    """A frame of a broken chain. ``in_call`` false: the instruction at ``ip`` is the one that
    could not be traced and ``stack`` is as before it. ``in_call`` true: the instruction at ``ip``
    is a call, ``stack`` is as after popping callee and arguments, and execution continues at
    ``ip + 1`` with the inner frame's return value pushed."""

    frame: Frame
    ip: int
    stack: list[Value | Null | LastInstruction | Handling]
    locals: dict[str, Value]
    cells: dict[str, CellValue]
    kw_names: tuple[str, ...]
    in_call: bool

    @property
    def info(self) -> CodeInfo:
        """The decoded code."""
        return self.frame.info

    @property
    def instruction(self) -> Instruction:
        """The instruction at which the frame stopped."""
        return self.frame.info.instructions[self.ip]
