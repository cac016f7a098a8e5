"""Plans as text, for ``TORCHSMITH_LOGS=schedule``: the wrapper's steps before it is generated."""

from __future__ import annotations

from torchsmith_fx_backend._src.loops.index import Index
from torchsmith_fx_backend._src.schedule.plan import (
    Allocate,
    BindSymbol,
    Bump,
    ExternCall,
    Free,
    Launch,
    Name,
    Plan,
    Step,
)


def _text(value: object) -> str:
    match value:
        case Name(name):
            return name
        case Index():
            return str(value)
        case list():
            return "[" + ", ".join(map(_text, value)) + "]"
        case tuple():
            return "(" + ", ".join(map(_text, value)) + ("," if len(value) == 1 else "") + ")"
        case _:
            return repr(value)


def print_step(step: Step, kernel_name: str = "kernel") -> str:
    """One step as a line of Python-like text."""
    match step:
        case Allocate(name, _, reuse, True):
            return f"{name} = {reuse}"
        case Allocate(name, layout, reuse):
            place = "empty_strided" if reuse is None else f"{reuse}.as_strided"
            dtype = str(layout.dtype).removeprefix("torch.")
            return f"{name} = {place}({_text(layout.size)}, {_text(layout.stride)})  # {dtype}"
        case Launch(_, args, _, origins):
            return f"{kernel_name}({', '.join(args)})  # {', '.join(origins)}"
        case ExternCall(target, args, kwargs, results, _, out, _):
            words = [_text(a) for a in args] + [f"{k}={_text(v)}" for k, v in kwargs]
            if out is not None:
                words.append(f"out={out}")
            names = ", ".join("_" if r is None else r for r in results)
            return f"{names} = {target}({', '.join(words)})"
        case BindSymbol(symbol, tensor):
            return f"{symbol} = {tensor}.{step.call}"
        case Free(name):
            return f"del {name}"
        case Bump(name, times):
            return f"{name}._version += {times}"


def print_plan(plan: Plan) -> str:
    """All steps, with equal kernels under one name, numbered in order of first use."""
    names: dict[object, str] = {}
    lines = [f"def run({', '.join(plan.inputs)}):"]
    for step in plan.steps:
        name = "kernel"
        if isinstance(step, Launch):
            name = names.setdefault(step.kernel, f"kernel{len(names)}")
        lines.append(f"    {print_step(step, name)}")
    lines.append(f"    return {_text(tuple(plan.outputs))}")
    return "\n".join(lines) + "\n"
