"""Functions of many variables go on after breaks with each of them; 3.13 packs two of the first 16
into one instruction, and a resume function has them in another order."""

import linecache

import pytest
import torch
import torchsmith_tracer

NAMES = [f"v{i}" for i in range(24)]


@torchsmith_tracer.disable
def broken(x):
    return x


def made(count, depth, handled):
    """A function that sets ``count`` variables in pairs and reads them in pairs after a break, with
    ``depth`` iterators on the stack."""
    names = NAMES[:count]
    lines = ["def f(x, n):"]
    for i in range(0, count, 2):
        a, b = names[i : i + 2]
        lines.append(f"    {a} = x + {i}; {b} = {a} * 2")
    indent = "    "
    for level in range(depth):
        lines.append(f"{indent}for i{level} in range(2):")
        indent += "    "
    if handled:
        lines.append(f"{indent}try:")
        indent += "    "
    for i in range(0, count, 2):
        a, b = names[i : i + 2]
        lines.append(f"{indent}x = x + broken({a} * 2) - {b}")
        lines.append(f"{indent}{a}, {b} = {b} + n, {a}")
    if handled:
        lines.append(f"{indent[4:]}finally:")
        lines.append(f"{indent}n = n + {names[-1]}.numel()")
    lines.append(f"    return x, n, ({', '.join(names)})")
    return "\n".join(lines)


@pytest.mark.parametrize("handled", [False, True])
@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("count", [8, 12, 14, 16, 18, 24])
def test_all_variables_after_breaks(count, depth, handled):
    text = made(count, depth, handled)
    name = f"<many locals {count} {depth} {handled}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    space = {"broken": broken}
    exec(compile(text, name, "exec"), space)
    compiled = torchsmith_tracer.compile(space["f"], backend="eager")
    for n in (1, 2):
        x = torch.arange(3.0)
        torch.testing.assert_close(compiled(x, n), space["f"](x, n), rtol=0, atol=0)
