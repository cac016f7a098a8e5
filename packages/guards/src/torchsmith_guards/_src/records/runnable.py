"""A graph as a Python file that runs by itself, on random inputs of the recorded layouts."""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

_TEMPLATE = '''"""{title}

python FILE runs it on random inputs; with --compile it is compiled, too, and compared.
"""

import sys

import torch
{imports}

def tensor(size, stride, dtype, device="cpu", requires_grad=False):
    elements = 1 + sum((n - 1) * step for n, step in zip(size, stride)) if 0 not in size else 0
    real = dtype.is_floating_point or dtype.is_complex
    flat = torch.randn(elements) if real else torch.randint(0, 2, (elements,))
    made = flat.to(dtype).to(device).as_strided(size, stride)
    return made.requires_grad_() if requires_grad else made


class Graph(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {attributes}

{forward}


def inputs():
    torch.manual_seed(0)
    return [{inputs}]


def leaves(value):
    if not isinstance(value, (tuple, list)):
        return [value]
    return [x for item in value for x in leaves(item)]


if __name__ == "__main__":
    graph = Graph()
    results = leaves(graph(*inputs()))
    for number, result in enumerate(results):
        print(number, tuple(result.shape) if isinstance(result, torch.Tensor) else result)
    if "--compile" in sys.argv:
        from torchsmith_fx_backend import smith

        compiled = smith(torch.fx.symbolic_trace(graph), inputs())
        for number, (own, result) in enumerate(zip(leaves(compiled(*inputs())), results)):
            label = lambda text: f"result {{number}}: {{text}}"
            torch.testing.assert_close(own, result, equal_nan=True, msg=label)
        print("compiled: the same")
'''


def runnable(gm: fx.GraphModule, inputs: Sequence[object] = (), title: str = "A graph.") -> str:
    """The text of the file.

    Args:
        gm: the graph.
        inputs: one example for each placeholder; without, what their nodes say they are.
        title: first line of its docstring.
    """
    code = gm.graph.python_code("self")
    placeholders = gm.graph.find_nodes(op="placeholder")
    examples = list(inputs) or [_example(node) for node in placeholders]
    attributes = "\n        ".join(_attributes(gm)) or "pass"
    return _TEMPLATE.format(
        title=title.replace('"', "'").replace("\\", "/"),
        imports="".join(_import(name, value) for name, value in code.globals.items()),
        attributes=attributes,
        forward="\n".join(f"    {line}" for line in code.src.strip("\n").splitlines()),
        inputs=", ".join(_value(example) for example in examples),
    )


def _example(node: fx.Node) -> object:
    return node.meta.get("val", node.meta.get("example_value"))


def _import(name: str, value: Any) -> str:
    """A line that gives the global ``name`` its value in another process."""
    if name == "torch":
        return ""
    if isinstance(value, types.ModuleType):
        return f"import {value.__name__} as {name}\n"
    if value is type(None):
        return f"{name} = type(None)\n"
    if isinstance(value, float):
        return f"{name} = float({str(value)!r})\n"
    if value is None or isinstance(value, int | str):
        return f"{name} = {value!r}\n"
    module = getattr(value, "__module__", None)
    path = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if not module or not path or "<" in path:
        return f"{name} = None  # {type(value).__name__} of the program: {path}\n"
    return f"from {module} import {path.partition('.')[0]}\n{name} = {path}\n"


def _attributes(gm: fx.GraphModule) -> Iterator[str]:
    for path in dict.fromkeys(str(n.target) for n in gm.graph.find_nodes(op="get_attr")):
        value: Any = gm
        for part in path.split("."):
            value = getattr(value, part)
        parents = path.split(".")[:-1]
        for depth in range(1, len(parents) + 1):
            here = ".".join(parents[:depth])
            yield f"self.{here} = getattr(self, {parents[depth - 1]!r}, torch.nn.Module())"
        yield f"self.{path} = {_value(value)}"


def _value(example: Any) -> str:
    """An expression for something like ``example``."""
    if isinstance(example, torch.SymInt | torch.SymFloat | torch.SymBool):
        return repr(getattr(example.node, "hint", 2))
    if not isinstance(example, torch.Tensor):
        return repr(example) if isinstance(example, int | float | str | bool) else "None"
    if example.layout is not torch.strided:
        return f"None  # a tensor of layout {example.layout}"
    size = tuple(_number(n) for n in example.shape)
    stride = tuple(_number(n) for n in example.stride())
    small = type(example) in (torch.Tensor, torch.nn.Parameter) and example.numel() <= 8
    if small and example.device.type == "cpu" and example.is_contiguous():
        tail = ", requires_grad=True" if example.requires_grad else ""
        return f"torch.tensor({example.detach().tolist()!r}, dtype={example.dtype}{tail})".replace(
            "inf", "float('inf')"
        ).replace("nan", "float('nan')")
    grad = ", requires_grad=True" if example.requires_grad else ""
    return f"tensor({size}, {stride}, {example.dtype}, {str(example.device)!r}{grad})"


def _number(size: Any) -> int:
    return size if type(size) is int else int(getattr(size.node, "hint", None) or 2)
