"""Which locals an instruction may still read: what a resume function has to be given.

Backward data flow over the decoded instructions, exception edges included; sets are bit masks over
the names of the code object, and the result is kept on the ``CodeInfo``.
"""

from __future__ import annotations

from torchsmith_tracer._src.frames.code import CodeInfo, Instruction

_READS = frozenset(
    tuple(
        (
            "LOAD_FAST LOAD_FAST_CHECK LOAD_FAST_AND_CLEAR DELETE_FAST LOAD_CLOSURE LOAD_DEREF "
            "LOAD_CLASSDEREF LOAD_FROM_DICT_OR_DEREF STORE_DEREF DELETE_DEREF MAKE_CELL"
        ).split()
    )
)
_ENDS = frozenset(
    tuple(
        (
            "RETURN_VALUE RETURN_CONST RAISE_VARARGS RERAISE JUMP_FORWARD JUMP_BACKWARD "
            "JUMP_BACKWARD_NO_INTERRUPT INTERPRETER_EXIT"
        ).split()
    )
)


def live_locals(info: CodeInfo, index: int) -> frozenset[str]:
    """Names of locals and cells that may be read when execution continues at ``index``."""
    if info.live is None:
        info.live = _solve(info)
    names = _names(info)
    mask = info.live[index]
    return frozenset(name for i, name in enumerate(names) if mask >> i & 1)


def _names(info: CodeInfo) -> list[str]:
    code = info.code
    return list(dict.fromkeys(code.co_varnames + code.co_cellvars + code.co_freevars))


def _effects(ins: Instruction, bit: dict[str, int]) -> tuple[int, int]:
    """(reads, writes) as masks; reads happen before writes."""
    if ins.opname in _READS:
        return bit[str(ins.argval)], 0
    return 0, bit[str(ins.argval)] if ins.opname == "STORE_FAST" else 0


def _solve(info: CodeInfo) -> list[int]:
    bit = {name: 1 << i for i, name in enumerate(_names(info))}
    instructions = info.instructions
    effects = [_effects(ins, bit) for ins in instructions]
    if "__class__" in info.code.co_freevars and info.code.co_varnames:
        # ``super()`` reads the first parameter. A resume function has it first as well.
        first = bit[info.code.co_varnames[0]]
        for ins in instructions:
            if ins.opname == "CALL" and ins.arg == 0:
                effects[ins.index] = (effects[ins.index][0] | first, effects[ins.index][1])
    # Cells are shared with inner functions: a cell variable stays live as long as its frame.
    always = 0
    for name in info.cell_names:
        always |= bit[name]
    live = [0] * (len(instructions) + 1)
    changed = True
    while changed:
        changed = False
        for ins in reversed(instructions):
            i = ins.index
            out = 0 if ins.opname in _ENDS else live[i + 1]
            if ins.target >= 0:
                out |= live[ins.target]
            handler = info.handler_at[i]
            reads, writes = effects[i]
            new = reads | (out & ~writes) | always
            if handler is not None:
                new |= live[handler.target]
            if new != live[i]:
                live[i] = new
                changed = True
    return live
