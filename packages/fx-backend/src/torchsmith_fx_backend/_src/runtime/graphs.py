"""From a ``Plan`` to a callable, and from the cache back to the same callable.

``build`` asks each device's launcher for the plan's distinct kernels, writes the wrapper source
into the cache directory (so that debuggers and tracebacks show it) and executes it.
``save_graph``/``load_graph`` keep a finished graph as text: wrapper source plus the content
addresses of its kernels. Loading needs no lowering, no scheduling and no compiler.
"""

from __future__ import annotations

import hashlib
import json
import linecache
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torchsmith_guards.records import recorder

from torchsmith_fx_backend._src.codegen.runs import runs
from torchsmith_fx_backend._src.codegen.wrapper import Wrapper, print_wrapper
from torchsmith_fx_backend._src.loops.accesses import check_accesses, check_assumptions
from torchsmith_fx_backend._src.loops.canonical import from_start
from torchsmith_fx_backend._src.loops.index import const, sub
from torchsmith_fx_backend._src.runtime.cache import Cache, default_cache
from torchsmith_fx_backend._src.runtime.launchers import (
    KernelRequest,
    LoadedKernel,
    Unavailable,
    launcher_for,
)
from torchsmith_fx_backend._src.runtime.progress import GENERATED
from torchsmith_fx_backend._src.schedule.plan import Launch, Plan, Step

if TYPE_CHECKING:
    from torchsmith_fx_backend._src.records.choices import Choice
    from torchsmith_fx_backend._src.tuning.tuner import Tuner

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
        ...


def build(
    plan: Plan,
    *,
    cache: Cache | None = None,
    fallback: Callable[..., object] | None = None,
    name: str = "graph",
    check: bool = False,
    grad_off: bool = True,
    tuner: Tuner | None = None,
) -> CompiledGraph:
    """Compile what ``plan`` needs and return the callable that executes it.

    Args:
        plan: the schedule's result.
        cache: where kernels and wrapper text are kept; the process-wide cache by default.
        fallback: computes the same outputs from the same inputs through aten; used when a device
            has no usable compiler.
        name: the generated function's name, as tracebacks show it.
        check: before each launch, see that it stays inside its buffers where only the sizes of
            the call decide that.
        grad_off: the graph switches grad mode off for its aten calls; else its caller has.
        tuner: chooses among the forms of each kernel.
    """
    cache = default_cache() if cache is None else cache
    plan = replace(plan, steps=tuple(map(_from_start, plan.steps)))
    launches = [step for step in plan.steps if isinstance(step, Launch)]
    together = {run[0].kernel for run in runs(plan) if len(run) > 1 and isinstance(run[0], Launch)}
    distinct: dict[tuple[object, ...], int] = {}
    requests: list[KernelRequest] = []
    numbers = []
    same: list[list[Launch]] = []
    checked: dict[int, Launch] = {}
    for step in launches:
        identity = (step.kernel, str(step.device), *(step.sizes if check else ()))
        number = distinct.setdefault(identity, len(requests))
        if number == len(requests):
            each = step.kernel in together
            requests.append(KernelRequest(step.kernel, step.device, step.origins, each=each))
            same.append([])
            if check and check_accesses(step.kernel, step.sizes):
                checked[number] = step
        same[number].append(step)
        numbers.append(number)
    choices: tuple[Choice, ...] = ()
    if tuner is not None:
        with recorder.phase("tune"):
            requests, choices = tuner.tune(requests, same, cache)
    names = [f"kernel_{number}" for number in numbers]
    try:
        loaded = _load(requests, cache)
    except Unavailable as problem:
        if fallback is None:
            raise
        return _through_aten(fallback, problem, plan.boxed)
    wrapper = print_wrapper(plan, names, name=name, grad_off=grad_off)
    bound = _named(loaded)
    for number, step in checked.items():
        bound[f"kernel_{number}"] = _checked(step, loaded[number].launch)
    bound.update(plan.constants)
    kernels = [
        (kernel.name, kernel.source, kernel.key, str(request.device))
        for kernel, request in zip(loaded, requests, strict=True)
    ]
    constants = dict(plan.constants)
    storable = not checked and (tuner is None or tuner.complete)
    graph = _finish(wrapper, bound, kernels, cache, constants=constants, storable=storable)
    graph.launches, graph.choices = tuple(numbers), choices
    return graph


def _from_start(step: Step) -> Step:
    """A launch on a CPU with pointers to where it starts; on a GPU they are to stay aligned."""
    if not isinstance(step, Launch) or step.device.type != "cpu":
        return step
    kernel, starts = from_start(step.kernel)
    sizes = tuple(sub(size, const(start)) for size, start in zip(step.sizes, starts))
    return replace(step, kernel=kernel, sizes=sizes, starts=starts)


def _checked(step: Launch, launch: Callable[..., object]) -> Callable[..., object]:
    """``launch`` after a look at every access that is not proved for all sizes."""
    kernel = step.kernel

    def run(*arguments: object) -> object:
        numbers = cast("tuple[int, ...]", arguments[len(kernel.args) :])
        check_assumptions(kernel, step.sizes, dict(zip(kernel.symbols, numbers, strict=True)))
        return launch(*arguments)

    return run


def _named(kernels: Sequence[LoadedKernel]) -> dict[str, object]:
    """What the wrapper calls, by its names there."""
    bound: dict[str, object] = {}
    for number, kernel in enumerate(kernels):
        bound |= {f"kernel_{number}": kernel.launch, f"kernel_{number}_each": kernel.each}
    return bound


def _load(requests: Sequence[KernelRequest], cache: Cache) -> list[LoadedKernel]:
    """Loaded kernels in the order of ``requests``; one call per device type."""
    groups: dict[str, list[int]] = {}
    for number, request in enumerate(requests):
        groups.setdefault(request.device.type, []).append(number)
    result: dict[int, LoadedKernel] = {}
    for positions in groups.values():
        launcher = launcher_for(requests[positions[0]].device)
        loaded = launcher.load([requests[p] for p in positions], cache)
        result.update(zip(positions, loaded, strict=True))
    return [result[number] for number in range(len(requests))]


def _through_aten(
    fallback: Callable[..., object], problem: Unavailable, boxed: bool
) -> CompiledGraph:
    def graph(*inputs: Any) -> tuple[object, ...]:
        outputs = fallback(*inputs[0]) if boxed else fallback(*inputs)
        return tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)

    result = cast(CompiledGraph, graph)
    result.source = f"# runs through aten: {problem}\n"
    result.kernels = ()
    result.storable = result.built = False
    return result


# What ``save_graph`` writes, by function; held by the function itself.
_RECORD = "_torchsmith_record"


def _finish(
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


def save_graph(key: str, graph: CompiledGraph, *, cache: Cache | None = None) -> bool:
    """Keep ``graph`` under ``key`` (which must cover everything that it was compiled from).

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
        data = _tensor_bytes(tensor)
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
    key: str,
    *,
    cache: Cache | None = None,
    constants: Mapping[str, torch.Tensor] | None = None,
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
    bound: dict[str, object] = {**tensors, **_named([found[place] for place in places])}
    kernels = [(found[p].name, found[p].source, *p) for p in places]
    wrapper = Wrapper(files["wrapper.py"].decode(), record["function"], {})
    return _finish(wrapper, bound, kernels, cache, constants=tensors)


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
