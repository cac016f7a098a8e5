"""A graph as Python source: functions, what they import, inputs; and all that as a file.

Debug folders and the minifier write graphs with what is here. Nested graphs become functions of
their own, and tensors that a graph holds become inputs.
"""

from __future__ import annotations

import operator
import re
import types
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

LITERAL = 64  # elements up to which values are written out as numbers
_FREED = re.compile(r"(;\s*(\w+ = )+None)+\s*(#.*)?$")
_FILE = """{docstring}

import sys

import torch
{imports}

{functions}


def inputs():
    torch.manual_seed(0)
{inputs}
    return [{names}]


def leaves(value):
    if not isinstance(value, (tuple, list)):
        return [value]
    return [x for item in value for x in leaves(item)]


if __name__ == "__main__":
    results = leaves(graph(*inputs()))
    for number, result in enumerate(results):
        print(number, tuple(result.shape) if isinstance(result, torch.Tensor) else result)
    if "--compile" in sys.argv:
        import torchsmith_tracer

        compiled = torchsmith_tracer.compile(graph, backend="smith", fullgraph=True, dynamic=False)
        for number, (own, result) in enumerate(zip(leaves(compiled(*inputs())), results)):
            label = lambda text: f"result {{number}}: {{text}}"
            torch.testing.assert_close(own, result, equal_nan=True, msg=label)
        print("compiled: the same")
"""


class UnprintableError(Exception):
    """The graph uses an object that a file cannot name."""


def runnable(gm: fx.GraphModule, inputs: Sequence[object] = (), title: str = "A graph.") -> str:
    """A file that runs ``gm`` by itself, on random inputs of the recorded layouts.

    Args:
        gm: the graph.
        inputs: one example for each placeholder; without, what their nodes say they are.
        title: first line of its docstring.
    """
    placeholders = gm.graph.find_nodes(op="placeholder")
    examples = list(inputs) or [
        n.meta.get("val", n.meta.get("example_value")) for n in placeholders
    ]
    graph, given = lifted(gm, examples)
    functions, imports = print_graph(graph, "graph", strict=False)
    names = [f"x{number}" for number in range(len(given))]
    lines = [f"    {name} = {_expression(value)}" for name, value in zip(names, given)]
    how = "python FILE runs it on random inputs; with --compile it is compiled, too, and compared."
    return _FILE.format(
        docstring=docstring(f"{title}\n\n{how}"),
        imports="".join(f"{line}\n" for line in imports),
        functions="\n".join(functions),
        inputs="\n".join(lines),
        names=", ".join(names),
    )


def docstring(text: str) -> str:
    """``text`` as the docstring of a file."""
    said = text.strip().replace("\\", "\\\\").replace('"""', "'''")
    return f'"""{said}\n"""'


def lifted(
    gm: fx.GraphModule, inputs: Sequence[object], name: str = "Graph"
) -> tuple[fx.GraphModule, list[Any]]:
    """A copy of ``gm`` that takes the tensors which belong to it as inputs, and all its inputs;
    what were symbols are numbers. Of the nodes' notes it has the user's lines only."""
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    nodes = list(gm.graph.nodes)
    given = list(inputs)
    known: dict[str, fx.Node] = {}
    for node in nodes:
        if node.op == "placeholder":
            env[node] = graph.placeholder(node.name)
    for node in nodes:
        if node.op == "get_attr":
            value = operator.attrgetter(str(node.target))(gm)
            if isinstance(value, torch.Tensor):
                if str(node.target) not in known:
                    known[str(node.target)] = graph.placeholder(node.name)
                    given.append(value)
                env[node] = known[str(node.target)]
    for node in nodes:
        if node not in env:
            env[node] = graph.node_copy(node, env.__getitem__)
        env[node].meta = {k: v for k, v in node.meta.items() if k == "stack_trace"}
    symbols = (torch.SymInt, torch.SymFloat, torch.SymBool)
    numbers = [getattr(x.node, "hint", 2) if isinstance(x, symbols) else x for x in given]
    return fx.GraphModule(gm, graph, name), numbers


def print_graph(
    gm: fx.GraphModule, name: str, *, strict: bool = True
) -> tuple[list[str], dict[str, None]]:
    """Lines of a function ``name`` that computes ``gm``, and lines that import what it uses.

    Raises:
        UnprintableError: something in it cannot be found by its name. Unless ``strict``, that is
            None in the file, and only what uses it fails.
    """
    code = gm.graph.python_code("self")
    imports: dict[str, None] = {}
    for alias, value in code.globals.items():
        used = re.search(rf"\b{re.escape(alias)}\b", code.src.partition("):")[2])
        try:
            line = _import(alias, value) if used else None
        except UnprintableError as error:
            if strict:
                raise
            line = f"{alias} = None  # of the program: {error}"
        if line is not None:
            imports[line] = None
    functions: list[str] = []
    lines = [_FREED.sub("", line) for line in code.src.strip("\n").split("\n")]
    start = next(i for i, line in enumerate(lines) if line.startswith("def forward("))
    parameters = [str(n.target) for n in gm.graph.nodes if n.op == "placeholder"]
    body = [line for line in lines[start + 1 :] if line.strip()]
    for node in gm.graph.nodes:
        if node.op not in ("get_attr", "call_module"):
            continue
        inner = operator.attrgetter(str(node.target))(gm)
        own = f"{name}_{str(node.target).replace('.', '_')}"
        if isinstance(inner, fx.GraphModule):
            nested, more = print_graph(inner, own, strict=strict)
            functions += [*nested, "", ""]
            imports |= more
        elif strict:
            raise UnprintableError(f"{node.target}: a {type(inner).__name__}")
        else:
            imports[f"{own} = None  # of the program: a {type(inner).__name__}"] = None
        body = [re.sub(rf"\bself\.{re.escape(str(node.target))}\b", own, line) for line in body]
    names = ", ".join(p.lstrip("*") for p in parameters)
    return [*functions, f"def {name}({names}):", *body], imports


def _import(alias: str, value: Any) -> str | None:
    """A line that gives the global ``alias`` its value in another process; None: needs none."""
    if isinstance(value, types.ModuleType):
        plain = value.__name__ == alias
        line = f"import {alias}" if plain else f"import {value.__name__} as {alias}"
        return line if line != "import torch" else None
    if alias in ("inf", "nan"):
        return f"from math import {alias}"
    if alias == "NoneType":
        return None
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if module == "typing" or not module or not name:
        return f"from typing import {alias}" if module == "typing" else None
    try:
        found = operator.attrgetter(name)(__import__(module, fromlist=["_"]))
    except (ImportError, AttributeError) as error:
        raise UnprintableError(f"{module}.{name}") from error
    if found is not value or module == "__main__":
        raise UnprintableError(f"{module}.{name}")
    top, _, rest = name.partition(".")
    if rest:
        return f"import {module}\n{alias} = {module}.{name}"
    return f"from {module} import {top}" + ("" if top == alias else f" as {alias}")


def literal(value: Any) -> str | None:
    """An expression with the numbers of ``value``; None for a tensor that has too many of them, or
    a layout that numbers do not say."""
    if not isinstance(value, torch.Tensor):
        return f'float("{value}")' if isinstance(value, float) else repr(value)
    plain = value.detach()
    if plain.layout is not torch.strided or plain.numel() > LITERAL or plain.is_quantized:
        return None
    if not plain.is_contiguous() or plain.is_conj() or plain.is_neg():
        return None
    numbers = re.sub(r"\b(nan|inf)\b", r'float("\1")', repr(plain.tolist()))
    shape = f".reshape({tuple(plain.shape)})" if plain.numel() == 0 else ""
    where = "" if plain.device.type == "cpu" else f".to({plain.device.type!r})"
    grad = ".requires_grad_()" if value.requires_grad else ""
    return f"torch.tensor({numbers}, dtype={plain.dtype}){shape}{where}{grad}"


def generated(value: torch.Tensor, *, always: bool = False) -> str | None:
    """An expression for a tensor like ``value`` with random values, in its layout.

    Args:
        value: real or fake; sizes that are symbols are written as their hints.
        always: also for indices, masks and conjugates, where it makes little sense.
    """
    if value.layout is not torch.strided or value.is_quantized:
        return None
    real = value.is_floating_point() or value.is_complex()
    sensible = real and value.element_size() > 1 and not value.is_conj() and not value.is_neg()
    if not sensible and not always:
        return None
    size, stride = (tuple(map(_number, each)) for each in (value.shape, value.stride()))
    dense = torch.empty_strided(size, stride, device="meta").is_contiguous()
    count = 1 + sum((n - 1) * step for n, step in zip(size, stride)) if 0 not in size else 0
    shape = f"{size if dense else (count,)}"
    kind = f", dtype={value.dtype}" if value.dtype is not torch.float32 else ""
    kind += f", device={value.device.type!r}" if value.device.type != "cpu" else ""
    if not real:
        text = f"torch.randint(0, 2, {shape}{kind})"
    elif value.element_size() == 1:
        text = f"torch.randn({shape}).to({kind[2:]})"
    else:
        text = f"torch.randn({shape}{kind})"
    if not dense:
        text += f".as_strided({size}, {stride})"
    return text + (".requires_grad_()" if value.requires_grad else "")


def _expression(value: Any) -> str:
    """An input of a file: by value where the values may matter and are few, else random."""
    if not isinstance(value, torch.Tensor):
        return literal(value) or "None" if isinstance(value, int | float | str) else "None"
    known = type(value) in (torch.Tensor, torch.nn.Parameter) and value.numel() <= 8
    text = (literal(value) if known else None) or generated(value, always=True)
    return text or f"None  # a tensor of layout {value.layout}"


def _number(size: Any) -> int:
    return size if type(size) is int else int(getattr(size.node, "hint", None) or 2)
