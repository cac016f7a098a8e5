"""Where a node comes from: the user's frames and the modules that are running."""

from __future__ import annotations

import linecache
import os
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torchsmith_tracer._src.compilation import Compilation

_LIBRARY = os.path.join(os.path.dirname(torch.__file__), "nn", "modules") + os.sep


def _entry(file: str, line: int, name: str) -> str:
    """One frame in the form of a Python traceback; empty for torch's stock modules."""
    if file.startswith(_LIBRARY):
        return ""
    text = f'  File "{file}", line {line}, in {name}\n'
    source = linecache.getline(file, line).strip()
    return f"{text}    {source}\n" if source else text


def stack_trace(tx: Compilation) -> str:
    """The user's stack at the current instruction, outermost first, as a traceback prints it."""
    known = tx.graph.lines
    parts: list[str] = []
    for frame in tx.frames:
        code, line = frame.info.code, frame.line
        key = (code.co_filename, line, code.co_name)
        text = known.get(key)
        if text is None:
            text = known[key] = _entry(*key)
        parts.append(text)
    return "".join(parts)


def user_line(tx: Compilation) -> str | None:
    """``file:line`` of the innermost user frame, for guards and messages."""
    for frame in reversed(tx.frames):
        file = frame.info.code.co_filename
        if not file.startswith(_LIBRARY):
            return f"{file}:{frame.line}"
    return None


def module_stack(tx: Compilation) -> dict[str, tuple[str, type]]:
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


def _module_stack(tx: Compilation) -> dict[str, tuple[str, type]]:
    from torchsmith_tracer._src.values.modules import ModuleValue

    stack: dict[str, tuple[str, type]] = {}
    around: str | None = None
    caller: object = None
    for frame in tx.frames:
        code = frame.info.code
        if not code.co_argcount:
            continue
        first = frame.locals.get(code.co_varnames[0])
        if isinstance(first, ModuleValue) and first.source is not None:
            expr, path = first.source.expr, first.path
            if around is not None and not expr.startswith(around):
                # Its source is where it was first seen; here it is what the caller calls it.
                name = _name_within(caller, first.obj)
                if name is not None:
                    path = f"{stack[around][0]}.{name}"
                    expr = around + "".join(f"._modules[{part!r}]" for part in name.split("."))
            stack[expr] = (path, first.python_type())
            around, caller = expr, first.obj
    return stack


def _name_within(module: object, inner: object) -> str | None:
    """The name that a module has in another one that holds it."""
    held = module.named_modules() if isinstance(module, torch.nn.Module) else ()
    return next((name for name, found in held if found is inner), None)
