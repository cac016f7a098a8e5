"""``Case``: a graph with inputs, as the minifier cuts it, and as a file that runs alone."""

from __future__ import annotations

import base64
import contextlib
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torchsmith_tracer
from torch import fx
from torchsmith_guards.records import printing

from torchsmith._src.testing.clones import Copier


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
    module, tensors = printing.lifted(gm, inputs, "Case")
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


def print_value(value: Any) -> str:
    """An expression that gives ``value`` again, with its layout."""
    text = printing.literal(value)
    if text is not None:
        return text
    plain = value.detach()
    if plain.layout is not torch.strided or plain.is_quantized:
        raise printing.UnprintableError(f"values of a {plain.layout} tensor")
    plain = plain.resolve_conj().resolve_neg()
    size, stride = tuple(plain.shape), plain.stride()
    span = 1 + sum((n - 1) * step for n, step in zip(size, stride)) if 0 not in size else 0
    raw = bytes(plain.as_strided((span,), (1,)).view(torch.uint8).tolist())
    packed = base64.b85encode(zlib.compress(raw)).decode()
    where = "" if plain.device.type == "cpu" else f".to({plain.device.type!r})"
    grad = ".requires_grad_()" if value.requires_grad else ""
    return f"torchsmith.testing.unpacked({packed!r}, {size}, {stride}, {plain.dtype}){where}{grad}"


def unpacked(
    text: str, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """The tensor whose memory was written as ``text`` into a file of the minifier's."""
    raw = zlib.decompress(base64.b85decode(text))
    flat = torch.frombuffer(bytearray(raw), dtype=dtype)
    return flat.as_strided(tuple(size), tuple(stride))


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
    lines, imports = printing.print_graph(case.gm, "f")
    found = list(imports)
    texts = case.texts or (None,) * len(case.inputs)
    given: list[str] = []
    first: dict[int, int] = {}
    for number, (text, value) in enumerate(zip(texts, case.inputs)):
        again = first.setdefault(id(value), number) if isinstance(value, torch.Tensor) else number
        shown = print_value(value) if text is None else text
        given.append(f"x{number} = {f'x{again}' if again != number else shown}")
    module, _, function = case.backend.rpartition(":")
    if module == "__main__":
        raise printing.UnprintableError(f"backend {function} of the program")
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
    parts = [
        printing.docstring(f"{title.strip()}\n\n{about}"),
        "\n".join(["import torch", "import torchsmith", "import torchsmith.testing", *found]),
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
