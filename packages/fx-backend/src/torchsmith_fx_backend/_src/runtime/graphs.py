"""Compiled graphs: a wrapper with its kernels, made callable, kept on disk, and found there again.

``finish`` writes the wrapper source into the cache directory (so that debuggers and tracebacks show
it) and executes it. ``save_graph``/``load_graph`` keep a finished graph as text: wrapper source
plus the content addresses of its kernels. Loading needs no lowering, no scheduling and no compiler,
and imports none of them; ``build.py`` makes what is kept.
"""

from __future__ import annotations

import hashlib
import json
import linecache
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Protocol, cast

import torch

from torchsmith_fx_backend._src.runtime.cache import Cache, default_cache
from torchsmith_fx_backend._src.runtime.launchers import LoadedKernel, Unavailable, launcher_for
from torchsmith_fx_backend._src.runtime.progress import GENERATED

if TYPE_CHECKING:
    from torchsmith_fx_backend._src.records.choices import Choice

_FORMAT = 1
_MAX_CONSTANT_BYTES = 16 * 1024 * 1024


class CompiledGraph(Protocol):
    """What ``build`` returns: a function of the plan's inputs that returns a tuple of its outputs.

    Attributes:
        source: text of the wrapper that runs.
        kernels: name and source text of each distinct kernel.
        storable: whether ``save_graph`` can keep it (all its externs have names).
        built: it is a compiled graph, not the fallback that stands for one.
        launches: for each launch of the plan that ``build`` was given, the position of its kernel
            in ``kernels``.
        choices: for each kernel, which form measuring has chosen; empty where nobody asked.
    """

    source: str
    kernels: tuple[tuple[str, str], ...]
    storable: bool
    built: bool
    launches: tuple[int, ...]
    choices: tuple[Choice, ...]

    def __call__(self, *inputs: object) -> tuple[object, ...]:
        """Run the graph on tensors and symbol values, in the order of ``Plan.inputs``; of a boxed
        plan they come in one list."""


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A generated module.

    Attributes:
        text: its source.
        function: the name of the function in it.
        bindings: objects that the text refers to but cannot name, by global name.
    """

    text: str
    function: str
    bindings: dict[str, object]


# What ``save_graph`` writes, by function; held by the function itself.
_RECORD = "_torchsmith_record"


def named_kernels(kernels: Sequence[LoadedKernel]) -> dict[str, object]:
    """What a wrapper calls, by its names there."""
    bound: dict[str, object] = {}
    for number, kernel in enumerate(kernels):
        bound |= {f"kernel_{number}": kernel.launch, f"kernel_{number}_each": kernel.each}
    return bound


def finish(
    wrapper: Wrapper,
    bound: Mapping[str, object],
    kernels: Sequence[tuple[str, str, str, str]],
    cache: Cache,
    *,
    constants: Mapping[str, torch.Tensor] | None = None,
    storable: bool = True,
) -> CompiledGraph:
    """Execute the wrapper's module and dress up its function."""
    namespace: dict[str, object] = {"__name__": GENERATED}
    exec(_code(wrapper.text, cache), namespace)
    namespace.update(wrapper.bindings)
    namespace.update(bound)
    function = namespace[wrapper.function]
    assert isinstance(function, FunctionType)
    graph = cast(CompiledGraph, function)
    graph.source = wrapper.text
    graph.kernels = tuple((name, source) for name, source, _, _ in kernels)
    graph.storable = storable and not wrapper.bindings
    graph.built = True
    record = {
        "format": _FORMAT,
        "function": wrapper.function,
        "kernels": [[key, device] for _, _, key, device in kernels],
    }
    setattr(graph, _RECORD, (record, dict(constants or {})))
    return graph


def _code(text: str, cache: Cache) -> CodeType:
    """The compiled module, from a file in the cache directory if that can be written."""
    key = "wrapper " + hashlib.sha256(text.encode()).hexdigest()
    if cache.get(key) is not None or cache.put(key, {"wrapper.py": text.encode()}):
        filename = str(cache.path(key, "wrapper.py"))
    else:
        filename = f"<torchsmith {key}>"
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    return compile(text, filename, "exec")


def save_graph(
    key: str, graph: CompiledGraph, *, given: Container[str] = (), cache: Cache | None = None
) -> bool:
    """Keep ``graph`` under ``key`` (which must cover everything that it was compiled from).

    Args:
        key: for ``load_graph``.
        graph: what ``build`` made.
        given: the names of constants that ``load_graph`` will be given.
        cache: the process-wide cache by default.

    Returns:
        Whether it is stored; graphs with unnamed callables or large constants are not.
    """
    cache = default_cache() if cache is None else cache
    saved = getattr(graph, _RECORD, None)
    if saved is None or not graph.storable:
        return False
    record, constants = saved
    files = {"wrapper.py": graph.source.encode()}
    described: list[list[object]] = []
    for name, tensor in constants.items():
        data = b"" if name in given else _tensor_bytes(tensor)
        if data is None:
            return False
        file = f"constant{len(described)}.bin"
        described.append([name, str(tensor.dtype), list(tensor.shape), list(tensor.stride()), file])
        files[file] = data
    if sum(map(len, files.values())) > _MAX_CONSTANT_BYTES:
        return False
    files["graph.json"] = json.dumps({**record, "constants": described}).encode()
    return cache.put(f"graph {key}", files)


def load_graph(
    key: str, *, cache: Cache | None = None, constants: Mapping[str, torch.Tensor] | None = None
) -> CompiledGraph | None:
    """The graph that ``save_graph`` kept under ``key``, in this or an earlier process, or None.

    Args:
        key: as given to ``save_graph``.
        cache: the process-wide cache by default.
        constants: the plan's lifted tensors by name; those not given come from the entry.
    """
    cache = default_cache() if cache is None else cache
    files = cache.get(f"graph {key}")
    if files is None:
        return None
    record = json.loads(files["graph.json"])
    if record["format"] != _FORMAT:
        return None
    devices: dict[str, list[str]] = {}
    for address, device in record["kernels"]:
        devices.setdefault(device, []).append(address)
    found: dict[tuple[str, str], LoadedKernel] = {}
    for device, addresses in devices.items():
        try:
            target = torch.device(device)
            loaded = launcher_for(target).restore(addresses, target, cache)
        except Unavailable:
            return None
        if loaded is None:
            return None
        found.update({(a, device): k for a, k in zip(addresses, loaded, strict=True)})
    tensors: dict[str, torch.Tensor] = {}
    for name, dtype, size, stride, file in record["constants"]:
        given = constants.get(name) if constants is not None else None
        tensors[name] = _tensor(files[file], dtype, size, stride) if given is None else given
    places = [(address, device) for address, device in record["kernels"]]
    bound: dict[str, object] = {**tensors, **named_kernels([found[place] for place in places])}
    kernels = [(found[p].name, found[p].source, *p) for p in places]
    wrapper = Wrapper(files["wrapper.py"].decode(), record["function"], {})
    return finish(wrapper, bound, kernels, cache, constants=tensors)


def _tensor_bytes(tensor: torch.Tensor) -> bytes | None:
    """The elements of a plain dense CPU tensor, row by row; None for anything else."""
    if type(tensor) is not torch.Tensor or tensor.device.type != "cpu" or tensor.is_sparse:
        return None
    if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
        return None
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return bytes(flat.tolist())


def _tensor(data: bytes, dtype: str, size: list[int], stride: list[int]) -> torch.Tensor:
    kind = getattr(torch, dtype.removeprefix("torch."))
    result = torch.empty_strided(size, stride, dtype=kind)
    if data:
        result.copy_(torch.frombuffer(bytearray(data), dtype=kind).reshape(size))
    return result
