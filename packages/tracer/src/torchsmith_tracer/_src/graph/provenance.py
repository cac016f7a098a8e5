"""Where a node comes from: the user's frames and the modules that are running."""

from __future__ import annotations

import linecache
import os
from types import CodeType
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torchsmith_tracer._src.trace import Trace

_LIBRARY = os.path.join(os.path.dirname(torch.__file__), "nn", "modules") + os.sep
# By identity, since hashing a code object reads all of it; the entry keeps the code alive.
_lines: dict[tuple[int, int], tuple[CodeType, str]] = {}


def _entry(code: CodeType, line: int) -> str:
    """One frame in the form of a Python traceback; empty for torch's stock modules."""
    key = (id(code), line)
    known = _lines.get(key)
    text = "" if known is None else known[1]
    if known is None:
        file = code.co_filename
        if file.startswith(_LIBRARY):
            text = ""
        else:
            text = f'  File "{file}", line {line}, in {code.co_name}\n'
            source = linecache.getline(file, line).strip()
            if source:
                text += f"    {source}\n"
        if len(_lines) > 20_000:
            _lines.clear()
        _lines[key] = (code, text)
    return text


def stack_trace(tx: Trace) -> str:
    """The user's stack at the current instruction, outermost first, as a traceback prints it."""
    return "".join([_entry(f.info.code, f.line) for f in tx.frames])


def user_line(tx: Trace) -> str | None:
    """``file:line`` of the innermost user frame, for guards and messages."""
    for frame in reversed(tx.frames):
        file = frame.info.code.co_filename
        if not file.startswith(_LIBRARY):
            return f"{file}:{frame.line}"
    return None


def module_stack(tx: Trace) -> dict[str, tuple[str, type]]:
    """Modules whose code is running, outermost first: source text -> (path, class). Calls from
    the same frame get the same dict; nobody changes it."""
    frames = tx.frames
    last = tx.graph.last_module_stack
    if last is not None and frames and last[0] is frames[-1] and last[1] == len(frames):
        return last[2]
    stack = _module_stack(tx)
    if frames:
        tx.graph.last_module_stack = (frames[-1], len(frames), stack)
    return stack


def _module_stack(tx: Trace) -> dict[str, tuple[str, type]]:
    from torchsmith_tracer._src.values.modules import ModuleValue

    stack: dict[str, tuple[str, type]] = {}
    for frame in tx.frames:
        code = frame.info.code
        if not code.co_argcount:
            continue
        first = frame.locals.get(code.co_varnames[0])
        if isinstance(first, ModuleValue) and first.source is not None:
            expr = first.source.expr
            stack[expr] = (first.path, first.python_type())
    return stack
