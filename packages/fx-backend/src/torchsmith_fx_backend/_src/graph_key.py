"""The text that a compiled graph depends on, hashed: the key of the graph cache."""

from __future__ import annotations

import hashlib
import importlib.metadata
import operator
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

import torch
import torchsmith_guards as guards
from torch import fx

from torchsmith_fx_backend._src.capture.torch_private import OpOverload, attention_switches
from torchsmith_fx_backend._src.captured import WRITES, example_of

# Functions of these modules mean the same in every process with the same versions.
_STABLE_MODULES = ("torch", "_operator", "operator", "math", "builtins", "torchsmith_fx_backend")
VARIANTS = 4
_ROOT = os.path.dirname(__file__)
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_UNNUMBERED = re.compile(r"cuda(?!:\d)")  # the GPU that is current, in the text of a graph
_NAMED = (torch.dtype, torch.device, torch.layout, torch.memory_format)


class _NoKeyError(Exception):
    """Something in the graph has no text that stands for it in another process."""


def of(gm: fx.GraphModule, inputs: Sequence[object], variant: str = "keyed") -> str | None:
    """The key of ``gm`` compiled for ``inputs``; None when it must not be kept.

    Covered are the nodes with their targets and arguments, layouts of inputs and attributes,
    versions, what settings change in it (``variant``), and the global state that capture reads.
    Symbolic sizes are covered by what is known of them; what capture assumes besides is kept with
    the graph, see ``Sizes``. Graphs with numbers that depend on data have no key.
    """
    try:
        sizes = Sizes.of(gm, inputs)
        lines = [_environment(), variant, *sizes.facts()]
        names: dict[fx.Node, int] = {}
        first: dict[int, int] = {}  # tensor -> where it comes first: capture merges equal ones
        given = iter(inputs)
        for number, node in enumerate(gm.graph.nodes):
            names[node] = number
            if node.op == "placeholder":
                example = example_of(node, next(given, None))
                place = first.setdefault(id(example), number)
                lines.append(f"input {place} {_value(example, sizes.numbers)}")
            elif node.op == "get_attr":
                value = _attribute(gm, str(node.target))
                place = first.setdefault(id(value), number)
                lines.append(f"attribute {place} {node.target} {_tensor(value)}")
            elif node.op == "call_module":
                return None
            else:
                target = node.target if isinstance(node.target, str) else _function(node.target)
                lines.append(
                    f"{node.op} {target}{_text(node.args, names)}{_text(node.kwargs, names)}"
                    f"{node.meta.get(WRITES, '')}"
                )
        if torch.cuda.is_available() and any(map(_UNNUMBERED.search, lines[1:])):
            lines.append(f"the current GPU is {torch.cuda.current_device()}")
    except (_NoKeyError, TypeError):  # the latter for symbols of other libraries
        return None
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@lru_cache(maxsize=1)
def _versions() -> str:
    ours = importlib.metadata.version("torchsmith-fx-backend")
    guards = importlib.metadata.version("torchsmith-guards")
    try:
        kernels = importlib.metadata.version("torchsmith-kernels")
    except importlib.metadata.PackageNotFoundError:
        kernels = "none"
    return f"{torch.__version__} {ours} {guards} {kernels} {_source_stamp()}"


def _source_stamp() -> str:
    """Changes when this package's own code does, so that a developer never sees stale graphs."""
    paths = (os.path.join(at, n) for at, _, names in os.walk(_ROOT) for n in names)
    return str(max(os.stat(p).st_mtime_ns for p in paths if p.endswith((".py", ".c"))))


def _environment() -> str:
    autocast = [
        (device, torch.is_autocast_enabled(device), str(torch.get_autocast_dtype(device)))
        for device in ("cpu", "cuda")
    ]
    return repr(
        (
            _versions(),
            f"{torch.get_default_dtype()} {torch.get_default_device()}",
            torch.are_deterministic_algorithms_enabled(),
            autocast,
            torch.is_inference_mode_enabled(),
            torch.get_num_threads(),
            attention_switches(),
        )
    )


@dataclass(frozen=True, slots=True)
class Sizes:
    """The symbols of a graph's inputs.

    Attributes:
        numbers: symbolic numbers by the name of the symbol that they are.
        known: how many guards there were.
    """

    numbers: Mapping[str, Any]
    known: int

    @staticmethod
    def of(gm: fx.GraphModule, inputs: Sequence[object]) -> Sizes:
        """Those of ``inputs``, before the graph is compiled.

        Raises:
            TypeError: there is a symbol of another library.
        """
        found: dict[str, Any] = {}
        for node, value in zip(gm.graph.find_nodes(op="placeholder"), inputs):
            example = example_of(node, value)
            dense = isinstance(example, torch.Tensor) and example.layout is torch.strided
            for number in (*example.shape, *example.stride()) if dense else (example,):  # type: ignore[attr-defined]
                expression = guards.expr_of(number) if guards.is_symbolic(number) else None
                if isinstance(expression, guards.Symbol):
                    found.setdefault(expression.name, number)
        return Sizes(found, len(_environment_of(found).guards) if found else 0)

    def facts(self) -> list[str]:
        """What is known about the symbols."""
        if not self.numbers:
            return []
        env = _environment_of(self.numbers)
        if env.has_unbacked or env.runtime_asserts:
            raise _NoKeyError
        symbols = [guards.expr_of(number) for number in self.numbers.values()]
        lines = [f"{symbol} in {symbol.lo} .. {symbol.hi}" for symbol in symbols]
        return [*lines, *(guard.condition.text() for guard in env.guards)]

    def assumed(self) -> list[str] | None:
        """Guards that were made since; None when they cannot be kept as text."""
        if not self.numbers:
            return []
        made = _environment_of(self.numbers).guards[self.known :]
        found = [guard.condition.text() for guard in made]
        return found if all(self._holds(text) for text in found) else None

    def take(self, conditions: Sequence[str]) -> bool:
        """Whether ``conditions`` hold at this call; if so, they are guards from now on."""
        if not all(self._holds(text) for text in conditions):
            return False
        return all(bool(eval(text, dict(_SYMBOLIC), dict(self.numbers))) for text in conditions)

    def _holds(self, text: str) -> bool:
        hints = {name: guards.hint_of(number) for name, number in self.numbers.items()}
        try:
            return bool(eval(text, dict(_FUNCTIONS), hints))
        except (NameError, AttributeError, TypeError, SyntaxError):
            return False


_FUNCTIONS: Mapping[str, object] = {"__builtins__": {}, "min": min, "max": max, "float": float}
# That of symbolic numbers is not decided, which would be a guard on which of them it is.
_SYMBOLIC: Mapping[str, object] = {
    **_FUNCTIONS,
    "min": lambda *numbers: reduce(torch.sym_min, numbers),
    "max": lambda *numbers: reduce(torch.sym_max, numbers),
}


def _environment_of(numbers: Mapping[str, Any]) -> guards.ShapeEnv:
    return next(iter(numbers.values())).node.shape_env  # type: ignore[no-any-return]


def places(key: str, sizes: Sizes) -> list[str]:
    """Where graphs of ``key`` may lie: for symbolic sizes, one for each set of assumptions."""
    return [key, *(f"{key} {n}" for n in range(1, VARIANTS if sizes.numbers else 1))]


def _value(example: object, known: Collection[str]) -> str:
    if isinstance(example, torch.Tensor):
        return _tensor(example, known)
    if guards.is_symbolic(example):
        return f"{type(example).__name__} {_size(example, known)}"
    if isinstance(example, _PLAIN):
        return repr((type(example).__name__, example))
    raise _NoKeyError


def _tensor(tensor: torch.Tensor, known: Collection[str] = ()) -> str:
    if tensor.layout is not torch.strided:
        raise _NoKeyError
    layout = [[_size(n, known) for n in part] for part in (tensor.shape, tensor.stride())]
    return repr((layout, str(tensor.dtype), str(tensor.device), tensor.is_conj(), tensor.is_neg()))


def _size(number: object, known: Collection[str]) -> str:
    """A size as text; its symbols must be among those whose facts are in the key."""
    if type(number) is int:
        return str(number)
    expression = guards.expr_of(number)
    if not {symbol.name for symbol in expression.free_symbols} <= set(known):
        raise _NoKeyError
    return expression.text()


def _attribute(gm: fx.GraphModule, path: str) -> torch.Tensor:
    value = operator.attrgetter(path)(gm)
    if not isinstance(value, torch.Tensor):
        raise _NoKeyError
    return value


@lru_cache(maxsize=4096)
def _function(target: Any) -> str:
    if isinstance(target, OpOverload):
        if target.namespace not in ("aten", "prims", "torchsmith"):
            raise _NoKeyError  # the definition of a user's operator may change
        return str(target)
    module = getattr(target, "__module__", None) or ""
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", None)
    if name is None or "<" in name:
        raise _NoKeyError
    owner = type(getattr(target, "__self__", None)).__name__
    if module.split(".")[0] in _STABLE_MODULES or (not module and callable(target)):
        return f"{module}:{owner}:{name}"
    if getattr(target, "__objclass__", None) is not None:
        return f"{target.__objclass__.__module__}:{target.__objclass__.__qualname__}:{name}"
    raise _NoKeyError


def _text(value: Any, names: dict[fx.Node, int]) -> str:
    if isinstance(value, fx.Node):
        return f"%{names[value]}"
    if type(value) in _PLAIN:
        return f"{type(value).__name__}:{value!r}"
    if isinstance(value, _NAMED):
        return str(value)
    if isinstance(value, (list, tuple)):
        inside = ",".join(_text(item, names) for item in value)
        return f"[{inside}]" if isinstance(value, list) else f"({inside})"  # differs as an index
    if isinstance(value, dict):
        return "{" + ",".join(f"{k!r}:{_text(v, names)}" for k, v in value.items()) + "}"
    if isinstance(value, slice):
        return f"slice{_text((value.start, value.stop, value.step), names)}"
    if value is Ellipsis:
        return "..."
    raise _NoKeyError
