"""The table of opcode handlers, by name and CPython version span."""

from __future__ import annotations

from collections.abc import Callable

from torchsmith_tracer._src.frames.code import VERSION, CodeInfo, Instruction
from torchsmith_tracer._src.frames.frame import Frame
from torchsmith_tracer._src.trace import Trace

Opcode = Callable[["Trace", "Frame", Instruction], int | None]

RETURN = -1  # what a handler gives to leave the frame; frame.result holds the value
YIELD = -2

HANDLERS: dict[str, Opcode] = {}
_KEEPS = ("LOAD", "PUSH_NULL", "COPY", "SWAP", "JUMP", "RESUME", "NOP", "BUILD", "KW", "PRECALL")
UNGUARDED: set[str] = set()  # opcodes that neither break nor raise: no checkpoint before them


def opcode(
    *names: str,
    since: tuple[int, int] = (3, 11),
    until: tuple[int, int] = (3, 13),
    safe: bool = False,
) -> Callable[[Opcode], Opcode]:
    """Register a handler for ``names`` on CPython ``since`` to ``until`` (both inclusive).

    The handler returns None to go on with the next instruction, an instruction index to jump, or
    ``RETURN``/``YIELD``. ``safe``: it can neither break nor raise.
    """

    def register(handler: Opcode) -> Opcode:
        if since <= VERSION <= until:
            for name in names:
                if name in HANDLERS:
                    raise ValueError(f"opcode {name} is registered twice")
                HANDLERS[name] = handler
                if safe:
                    UNGUARDED.add(name)
        return handler

    return register


def bind_handlers(info: CodeInfo, missing: Opcode) -> None:
    """Set the handlers of all instructions; unknown opcodes get ``missing``."""
    known: dict[str, tuple[Opcode, bool, bool]] = {}
    for ins in info.instructions:
        name = ins.opname
        if (found := known.get(name)) is None:
            handler = HANDLERS.get(name, missing)
            found = known[name] = handler, name not in UNGUARDED, not name.startswith(_KEEPS)
        ins.run, ins.guarded, ins.drops = found
    if info.cell_names:
        code = info.code
        for ins in info.instructions:
            if ins.opname in _CELL_AWARE:
                # A free variable has a slot of its own beside that of a local of its name.
                if ins.arg >= len(code.co_varnames) or ins.argval in code.co_cellvars:
                    ins.run = HANDLERS[f"{ins.opname}/cell"]
    info.bound = True


# Names that share a slot with a cell (inlined comprehensions, LOAD_CLOSURE of 3.13) take the
# handlers registered as "NAME/cell".
_CELL_AWARE = set("LOAD_FAST STORE_FAST LOAD_FAST_AND_CLEAR LOAD_FAST_CHECK DELETE_FAST".split())
