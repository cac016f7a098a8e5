"""Generators that are suspended where they have something to clean up."""

from __future__ import annotations

import gc
import types
from functools import lru_cache
from typing import Any

import torch

from torchsmith_tracer._src.frames.code import CodeInfo, decode

_STOP_ITERATION_ERROR = 3  # the intrinsic of the handler around every generator from 3.12 on
_SEEN = 1_000
_CONTAINERS = (list, tuple, dict, set)
_ELSEWHERE = (type, types.ModuleType, types.CodeType, torch.Tensor, torch.nn.Module)


def leads_to_generator(holder: object) -> bool:
    """Whether an object, a real exception by the frames that it has passed, holds a suspended
    generator that has something to clean up. It is looked for among so many objects at most."""
    todo: list[Any] = [holder]
    seen: set[int] = set()
    for obj in todo:
        kind = type(obj)
        if len(seen) > _SEEN:
            return False
        if id(obj) in seen or issubclass(kind, _ELSEWHERE):
            continue
        seen.add(id(obj))
        if kind is types.GeneratorType and obj.gi_suspended and cleans_up(obj.gi_code):
            return True
        if kind is types.FunctionType:
            todo += obj.__closure__ or ()
        elif not issubclass(kind, _CONTAINERS) or len(obj) <= _SEEN:
            todo += filter(gc.is_tracked, gc.get_referents(obj))
    return False


def covered(info: CodeInfo, index: int) -> bool:
    """Whether an instruction is inside a ``try`` or ``with`` of the program's."""
    handler = info.handler_at[index]
    if handler is None:
        return False
    first = info.instructions[handler.target]
    return not (first.opname == "CALL_INTRINSIC_1" and first.arg == _STOP_ITERATION_ERROR)


@lru_cache(maxsize=1000)
def cleans_up(code: types.CodeType) -> bool:
    """Whether a generator of this code may be suspended with something to clean up."""
    info = decode(code)
    return any(
        ins.opname == "YIELD_VALUE" and covered(info, ins.index) for ins in info.instructions
    )
