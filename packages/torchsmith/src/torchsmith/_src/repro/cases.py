"""``Case``: a graph with inputs, as the minifier cuts it, and as a file that runs alone."""

from __future__ import annotations

import base64
import contextlib
import operator
import re
import types
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torchsmith_tracer
from torch import fx

from torchsmith._src.testing.clones import Copier

LITERAL = 64  # elements up to which values are written out as numbers
_FREED = re.compile(r"(;\s*(\w+ = )+None)+\s*(#.*)?$")


class UnprintableError(Exception):
    """The graph uses an object that a file cannot name."""


@dataclass(frozen=True)
class Case:
    """A graph and inputs that it is compiled for.

    Attributes:
        gm: torch functions and methods on its placeholders; it has no tensors of its own.
        inputs: one per placeholder.
        backend: name of the backend, or ``module:function``.
        options: what the backend is asked for.
        contexts: expressions of the contexts that it runs in: ``torch.no_grad()``.
        texts: how each input is written in a file; None: by its values.
    """

    gm: fx.GraphModule
    inputs: tuple[Any, ...]
    backend: str = "smith"
    options: Mapping[str, Any] = field(default_factory=dict)
    contexts: tuple[str, ...] = ()
    texts: tuple[str | None, ...] | None = None

    @property
    def ops(self) -> list[fx.Node]:
        """The nodes that compute something."""
        return [n for n in self.gm.graph.nodes if n.op.startswith("call")]

    def with_inputs(self, texts: Sequence[str | None], inputs: Sequence[Any]) -> Case:
        """The same graph on other inputs."""
        return replace(self, inputs=tuple(inputs), texts=tuple(texts))


def case_of(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    backend: str = "smith",
    options: Mapping[str, Any] | None = None,
    *,
    copy: bool = True,
) -> Case:
    """A case of what a backend is given: nothing of it is changed afterwards.

    Tensors that belong to the graph become inputs, and sizes that were symbols numbers.
    """
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    nodes = list(gm.graph.nodes)
    given = list(inputs)
    lifted: dict[str, fx.Node] = {}
    for node in nodes:
        if node.op == "placeholder":
            env[node] = graph.placeholder(node.name)
    for node in nodes:
        if node.op == "get_attr":
            value = operator.attrgetter(str(node.target))(gm)
            if isinstance(value, torch.Tensor):
                if str(node.target) not in lifted:
                    lifted[str(node.target)] = graph.placeholder(node.name)
                    given.append(value)
                env[node] = lifted[str(node.target)]
    for node in nodes:
        if node not in env:
            env[node] = graph.node_copy(node, env.__getitem__)
        env[node].meta = {k: v for k, v in node.meta.items() if k == "stack_trace"}
    module = fx.GraphModule(gm, graph, "Case")
    tensors = [x.node.hint if isinstance(x, torch.SymInt | torch.SymFloat) else x for x in given]
    if copy:
        tensors = Copier().all(tensors)
    return Case(module, tuple(tensors), backend, dict(options or {}), tuple(ambient()))


def ambient() -> list[str]:
    """The contexts that are in force, as expressions."""
    found = [] if torch.is_grad_enabled() else ["torch.no_grad()"]
    if torch.is_inference_mode_enabled():
        found = ["torch.inference_mode()"]
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            found.append(f"torch.autocast({device!r}, {torch.get_autocast_dtype(device)})")
    if torch.get_default_dtype() is not torch.float32:
        found.append(f"torchsmith.testing.default_dtype({torch.get_default_dtype()})")
    return found


def captured(
    fn: Any, inputs: Sequence[Any], backend: str = "smith", options: Mapping[str, Any] | None = None
) -> Case:
    """The case that compiling ``fn`` for ``inputs`` makes of it."""
    found: list[Case] = []

    def capture(gm: fx.GraphModule, example_inputs: list[object]) -> Any:
        found.append(case_of(gm, example_inputs, backend, options))
        return gm.forward

    given = Copier().all(list(inputs))
    torchsmith_tracer.compile(fn, backend=capture, fullgraph=True, dynamic=False)(*given)
    return found[0]


def name_of(backend: str | Callable[..., Any]) -> str:
    """The name under which a backend is found again: ``module:function`` for a function."""
    if isinstance(backend, str):
        return backend
    return f"{backend.__module__}:{getattr(backend, '__qualname__', type(backend).__qualname__)}"


# ------------------------------------------------------------------------------------ printing


def print_graph(gm: fx.GraphModule, name: str) -> tuple[list[str], dict[str, None]]:
    """A function ``name`` that computes ``gm``, and what it imports.

    Raises:
        UnprintableError: a function in it cannot be found by its name.
    """
    code = gm.graph.python_code("self")
    imports: dict[str, None] = {}
    for alias, value in code.globals.items():
        used = re.search(rf"\b{re.escape(alias)}\b", code.src.partition("):")[2])
        line = _import(alias, value) if used else None
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
        if not isinstance(inner, fx.GraphModule):
            raise UnprintableError(f"{node.target}: a {type(inner).__name__}")
        own = f"{name}_{str(node.target).replace('.', '_')}"
        nested, more = print_graph(inner, own)
        functions += [*nested, "", ""]
        imports |= more
        body = [re.sub(rf"\bself\.{re.escape(str(node.target))}\b", own, line) for line in body]
    names = ", ".join(p.lstrip("*") for p in parameters)
    return [*functions, f"def {name}({names}):", *body], imports


def _import(alias: str, value: Any) -> str | None:
    if isinstance(value, types.ModuleType):
        plain = value.__name__ == alias
        return f"import {alias}" if plain else f"import {value.__name__} as {alias}"
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


def print_value(value: Any) -> str:
    """An expression that gives ``value`` again, with its layout."""
    if not isinstance(value, torch.Tensor):
        return f'float("{value}")' if isinstance(value, float) else repr(value)
    grad = ".requires_grad_()" if value.requires_grad else ""
    plain = value.detach()
    where = "" if plain.device.type == "cpu" else f".to({plain.device.type!r})"
    dense = plain.is_contiguous() and not plain.is_conj() and not plain.is_neg()
    if plain.numel() <= LITERAL and dense and plain.layout is torch.strided:
        numbers = re.sub(r"\b(nan|inf)\b", r'float("\1")', repr(plain.tolist()))
        text = f"torch.tensor({numbers}, dtype={plain.dtype})"
        shape = f".reshape({tuple(plain.shape)})" if plain.numel() == 0 else ""
        return f"{text}{shape}{where}{grad}"
    if plain.layout is not torch.strided or plain.is_quantized:
        raise UnprintableError(f"values of a {plain.layout} tensor")
    data = torch.empty_strided(plain.shape, plain.stride(), dtype=plain.dtype).copy_(plain)
    size = data.untyped_storage()
    raw = bytes(torch.empty(0, dtype=torch.uint8).set_(size, 0, (size.nbytes(),), (1,)).tolist())
    packed = base64.b85encode(zlib.compress(raw)).decode()
    layout = f"{tuple(plain.shape)}, {plain.stride()}, {plain.dtype}"
    return f"torchsmith.testing.unpacked({packed!r}, {layout}){where}{grad}"


def unpacked(
    text: str, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """The tensor whose memory was written as ``text`` into a file of the minifier's."""
    raw = zlib.decompress(base64.b85decode(text))
    flat = torch.frombuffer(bytearray(raw), dtype=dtype)
    return flat.as_strided(tuple(size), tuple(stride))


def generated(value: torch.Tensor) -> str | None:
    """An expression for a tensor like ``value`` with random values, where that makes sense."""
    if value.layout is not torch.strided or value.is_quantized or value.is_conj() or value.is_neg():
        return None
    kind = f", dtype={value.dtype}" if value.dtype is not torch.float32 else ""
    kind += f", device={value.device.type!r}" if value.device.type != "cpu" else ""
    size = tuple(value.shape)
    floating = value.is_floating_point() and value.element_size() > 1
    if not floating and not value.is_complex():
        return None
    if value.is_contiguous():
        text = f"torch.randn({size}{kind})"
    else:
        text = f"torch.empty_strided({size}, {value.stride()}{kind}).normal_()"
    return text + (".requires_grad_()" if value.requires_grad else "")


def evaluated(texts: Sequence[str | None], values: Sequence[Any]) -> list[Any]:
    """The inputs that a file with these expressions has; where there is none, the values."""
    import torchsmith.testing

    space = {"torch": torch, "torchsmith": torchsmith}
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return [x if t is None else eval(t, space) for t, x in zip(texts, values)]


def print_case(case: Case, title: str, about: str) -> str:
    """A file that compiles and runs ``case`` alone.

    Raises:
        UnprintableError: something in it has no text.
    """
    lines, imports = print_graph(case.gm, "f")
    wanted = {"import torch": None, "import torchsmith": None, "import torchsmith.testing": None}
    found = [line for line in imports if line not in wanted]
    texts = case.texts or (None,) * len(case.inputs)
    given: list[str] = []
    first: dict[int, int] = {}
    for number, (text, value) in enumerate(zip(texts, case.inputs)):
        again = first.setdefault(id(value), number) if isinstance(value, torch.Tensor) else number
        shown = print_value(value) if text is None else text
        given.append(f"x{number} = {f'x{again}' if again != number else shown}")
    module, _, function = case.backend.rpartition(":")
    if module == "__main__":
        raise UnprintableError(f"backend {function} of the program")
    if module:
        found.append(f"from {module} import {function}")
    chosen = function if module else repr(function)
    keywords = f"backend={chosen}, fullgraph=True, dynamic=False, verify=True"
    asked = dict(case.options)
    if case.backend == "smith":
        asked["strict"] = True
    call = f"torchsmith.compile(f, {keywords}, options={asked!r})"
    names = ", ".join(f"x{number}" for number in range(len(given)))
    main = [f"compiled = {call}", f"compiled({names})"]
    if case.contexts:
        main = [f"with {', '.join(case.contexts)}:", *(f"    {line}" for line in main)]
    said = f"{title.strip()}\n\n{about.strip()}\n".replace("\\", "\\\\").replace('"""', "'''")
    parts = [
        f'"""{said}"""',
        "\n".join([*wanted, *found]),
        "",
        "\n".join(lines),
        "",
        "\n".join(["torch.manual_seed(0)", *given]),
        "\n".join(['if __name__ == "__main__":', *(f"    {line}" for line in main)]),
    ]
    return "\n\n".join(parts).replace("\n\n\n\n", "\n\n\n") + "\n"


def load_case(path: str, text: str) -> Case:
    """The case in a file that ``print_case`` has made."""
    space: dict[str, Any] = {"__name__": "torchsmith_case", "__file__": path}
    with torch.random.fork_rng([]):
        exec(compile(text, path, "exec"), space)
    names = [name for name in space if re.fullmatch(r"x\d+", name)]
    inputs = [space[name] for name in sorted(names, key=lambda name: int(name[1:]))]
    call = re.search(r"torchsmith\.compile\(f, backend=('?)(\w+).*options=(\{.*\})\)", text)
    backend, options = (call[2], eval(call[3])) if call else ("smith", {})
    if call and not call[1]:
        backend = name_of(space[backend])
    contexts = re.search(r"^    with (.*):$", text, re.M)
    found = contexts[1] if contexts else ""
    with entered(found):
        case = captured(space["f"], inputs, backend, options)
    return case


def entered(text: str) -> contextlib.ExitStack:
    """Enter the contexts that ``text`` lists; to be left with what is returned."""
    import torchsmith.testing

    stack = contextlib.ExitStack()
    space = {"torch": torch, "torchsmith": torchsmith}
    for context in eval(f"({text},)" if text else "()", space):
        stack.enter_context(context)
    return stack


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Another default dtype within a ``with`` block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
