"""The text that a compiled graph depends on, hashed: the key of the graph cache."""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import fx

from torchsmith_fx_backend._src.aot.functional import WRITES
from torchsmith_fx_backend._src.aot.functionalize import example_of
from torchsmith_fx_backend._src.capture.torch_private import OpOverload

# Functions of these modules mean the same in every process with the same versions.
_STABLE_MODULES = ("torch", "_operator", "operator", "math", "builtins", "torchsmith_fx_backend")
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_NAMED = (torch.dtype, torch.device, torch.layout, torch.memory_format)


class _NoKeyError(Exception):
    """Something in the graph has no text that stands for it in another process."""


def of(gm: fx.GraphModule, inputs: Sequence[object], rng: str = "keyed") -> str | None:
    """The key of ``gm`` compiled for ``inputs``; None when it must not be kept.

    Covered are the nodes with their targets and arguments, layouts of inputs and attributes,
    versions, how random numbers are drawn (``rng``), and the global state that capture reads.
    Graphs with symbolic sizes have no key, because capture may add guards.
    """
    try:
        lines = [_environment(), rng]
        names: dict[fx.Node, int] = {}
        first: dict[int, int] = {}  # tensor -> where it comes first: capture merges equal ones
        given = iter(inputs)
        for number, node in enumerate(gm.graph.nodes):
            names[node] = number
            if node.op == "placeholder":
                example = example_of(node, next(given, None))
                place = first.setdefault(id(example), number)
                lines.append(f"input {place} {_value(example)}")
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
    except _NoKeyError:
        return None
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@lru_cache(maxsize=1)
def _versions() -> str:
    ours = importlib.metadata.version("torchsmith-fx-backend")
    guards = importlib.metadata.version("torchsmith-guards")
    return f"{torch.__version__} {ours} {guards} {_source_stamp()}"


def _source_stamp() -> str:
    """Changes when this package's own code does, so that a developer never sees stale graphs."""
    root = Path(__file__).parent
    newest = max(path.stat().st_mtime_ns for path in root.rglob("*.py"))
    return str(newest)


def _environment() -> str:
    autocast = [
        (device, torch.is_autocast_enabled(device), str(torch.get_autocast_dtype(device)))
        for device in ("cpu", "cuda")
    ]
    return repr(
        (
            _versions(),
            str(torch.get_default_dtype()),
            torch.are_deterministic_algorithms_enabled(),
            autocast,
            torch.is_inference_mode_enabled(),
            torch.get_num_threads(),
        )
    )


def _value(example: object) -> str:
    if isinstance(example, torch.Tensor):
        return _tensor(example)
    if isinstance(example, _PLAIN):
        return repr((type(example).__name__, example))
    raise _NoKeyError


def _tensor(tensor: torch.Tensor) -> str:
    if tensor.layout is not torch.strided:
        raise _NoKeyError
    layout = (tuple(tensor.shape), tensor.stride())
    if any(type(n) is not int for part in layout for n in part):
        raise _NoKeyError
    return repr((layout, str(tensor.dtype), str(tensor.device), tensor.is_conj(), tensor.is_neg()))


def _attribute(gm: fx.GraphModule, path: str) -> torch.Tensor:
    value: Any = gm
    for part in path.split("."):
        value = getattr(value, part)
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
        return "(" + ",".join(_text(item, names) for item in value) + ")"
    if isinstance(value, dict):
        return "{" + ",".join(f"{k!r}:{_text(v, names)}" for k, v in value.items()) + "}"
    if isinstance(value, slice):
        return f"slice{_text((value.start, value.stop, value.step), names)}"
    if value is Ellipsis:
        return "..."
    raise _NoKeyError
