"""Branches of which one side only raises, and what decides about them."""

from __future__ import annotations

import dis
from collections.abc import Sequence

from torchsmith_tracer._src.frames.code import Instruction

_LONGEST = 200  # instructions that make an exception
_NEAR = 20  # instructions that make what a number is compared with
_ASKING = ("COMPARE_OP", "TO_BOOL", "UNARY_NOT")


def raising_side(code: Sequence[Instruction], jump: Instruction) -> bool | None:
    """For which truth value nothing but an exception follows a conditional jump; None: for neither
    or both, or it asks for something else than a truth value."""
    if not jump.opname.endswith(("IF_TRUE", "IF_FALSE")):
        return None
    ways = [jump.target, jump.index + 1]  # if true, if false
    if jump.opname.endswith("FALSE"):
        ways.reverse()
    when_true, when_false = (_only_raises(code, way) for way in ways)
    return None if when_true == when_false else when_true


def _only_raises(code: Sequence[Instruction], at: int) -> bool:
    """Whether nothing but an exception follows an instruction, without another branch."""
    for ins in code[at : at + _LONGEST]:
        if ins.opname == "RAISE_VARARGS":
            return True
        if ins.target >= 0 or ins.opname.startswith(("RETURN", "YIELD", "RERAISE")):
            return False
    return False


def is_only_checked(code: Sequence[Instruction], call: Instruction) -> bool:
    """Whether the number that a call gives is compared, at once, and that decides about raising
    alone: ``assert x.max().item() < n``."""
    above = 0  # how many operands lie over the number
    for ins in code[call.index + 1 : call.index + 1 + _NEAR]:
        if ins.target >= 0:
            return above == 0 and raising_side(code, ins) is not None
        arg = ins.arg if dis.opmap[ins.opname] >= dis.HAVE_ARGUMENT else None
        above += dis.stack_effect(dis.opmap[ins.opname], arg)
        if ins.opname.startswith(("STORE", "DELETE", "RETURN", "YIELD", "RAISE")):
            return False
        if above <= 0:
            if ins.opname not in _ASKING:
                return False
            above = 0  # the outcome has taken the place of the number
    return False
