"""The launcher for CUDA devices: loop IR kernels -> Triton -> cubins, kept in the cache.

``GpuLauncher`` is what the wrapper's builder finds under the device type ``cuda``. Kernels of one
graph are printed, then compiled side by side in other processes; a warm start reads cubins back
and never imports triton.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, replace
from functools import cache as once
from importlib import metadata, util
from pathlib import Path
from typing import Any

import torch
from torchsmith_guards.records import recorder

from torchsmith_fx_backend._src.codegen.triton import index as ix
from torchsmith_fx_backend._src.codegen.triton.candidates import candidates
from torchsmith_fx_backend._src.codegen.triton.config import Config, choose
from torchsmith_fx_backend._src.codegen.triton.kernel import generate
from torchsmith_fx_backend._src.codegen.triton.source import (
    Stage,
    Symbol,
    TritonSource,
    Workspace,
    content_hash,
)
from torchsmith_fx_backend._src.loops.ir import Kernel
from torchsmith_fx_backend._src.runtime.cache import Cache
from torchsmith_fx_backend._src.runtime.gpu_driver import DriverError, SharedMemoryError, driver
from torchsmith_fx_backend._src.runtime.launchers import (
    KernelFailedError,
    KernelRequest,
    LoadedKernel,
    Unavailable,
    use_wait,
)
from torchsmith_fx_backend._src.runtime.triton_compile import Binary, compile_source
from torchsmith_fx_backend._src.runtime.triton_launcher import (
    INT32_ROOM,
    TritonKernel,
    Variant,
    for_each,
)
from torchsmith_fx_backend._src.runtime.triton_pool import POOL, processors

_A_MOMENT = 0.02  # seconds that kernels take that are all in the cache
OLDEST_CAPABILITY = 80  # Ampere; older chips lack bfloat16 and are not tested


@once
def _toolchain() -> str:
    """Changes whenever our printer or triton does, so that stale cubins are never found."""
    digest = hashlib.sha256()
    here = Path(__file__).parent
    folders = (here.parent / "codegen" / "triton", here.parent / "loops")
    names = ("triton_compile.py", "triton_worker.py", "triton_launcher.py", "gpu.py")
    own = [here / name for name in names]
    for path in (*sorted(p for folder in folders for p in folder.glob("*.py")), *own):
        digest.update(path.read_bytes())
    digest.update(metadata.version("triton").encode())
    return digest.hexdigest()


def print_kernel(
    kernel: Kernel,
    *,
    sm_count: int | None = None,
    origins: Sequence[str] = (),
    config: Config | None = None,
) -> dict[bool, TritonSource]:
    """The source of every address width that ``kernel`` may need, the usual one first.

    Args:
        kernel: the loop nest.
        sm_count: multiprocessors of the device.
        origins: user source lines for the comments.
        config: schedule and tile sizes, instead of the table's.
    """
    if config is None:
        config = choose(kernel, None, sm_count) if sm_count else choose(kernel)
    largest = ix.max_offset(kernel)
    if largest is not None:
        wide = largest > INT32_ROOM
        return {wide: generate(kernel, config, wide=wide, origins=origins)}
    return {wide: generate(kernel, config, wide=wide, origins=origins) for wide in (False, True)}


class GpuLauncher:
    """Compiles and loads kernels for NVIDIA GPUs. See ``launchers.Launcher``."""

    def __init__(self) -> None:
        """Nothing is imported or asked before the first kernel."""
        self._warned = False

    def expect(self) -> None:
        """See ``launchers.Launcher``."""
        if torch.cuda.is_available() and torch.version.hip is None:
            POOL.prepare()

    def load(self, requests: Sequence[KernelRequest], cache: Cache) -> list[LoadedKernel]:
        """One loaded kernel per request; new ones are compiled in parallel.

        Raises:
            Unavailable: there is no triton here or the GPU is not supported; one warning says so.
            KernelFailedError: these cannot be printed, or triton rejects them.
        """
        if not requests:
            return []
        try:
            self._require_support(requests[0].device)
            requests = _with_ordinals(requests)
            with recorder.phase("compile Triton"):
                attempts = _attempts(requests, cache)
            failed = [(r, a) for r, a in zip(requests, attempts) if isinstance(a, Exception)]
            if failed:
                raise KernelFailedError(failed)
            return [a for a in attempts if not isinstance(a, Exception)]
        except (Unavailable, DriverError, OSError) as error:
            if not self._warned:
                self._warned = True
                warnings.warn(
                    f"torchsmith: no generated GPU kernels, the graph runs through aten: {error}",
                    stacklevel=2,
                )
            raise Unavailable(str(error)) from error

    def candidates(
        self, kernel: Kernel, sizes: Mapping[str, Any], device: torch.device
    ) -> tuple[tuple[Config, ...], str]:
        """See ``launchers.Tunable``."""
        self._require_support(device)
        ordinal = _ordinal(device)
        machine = f"{_toolchain()}:{torch.cuda.get_device_name(ordinal)}"
        return candidates(kernel, sizes, _sm_count(ordinal)), machine

    def attempt(
        self, requests: Sequence[KernelRequest], cache: Cache
    ) -> list[LoadedKernel | Exception]:
        """See ``launchers.Tunable``."""
        return _attempts(_with_ordinals(requests), cache)

    def restore(
        self, keys: Sequence[str], device: torch.device, cache: Cache
    ) -> list[LoadedKernel] | None:
        """The kernels of these content addresses from the cache, or None if any is missing."""
        loaded = []
        try:
            for key in keys:
                entry = _read_entry(key, cache)
                if entry is None:
                    return None
                loaded.append(_finish(key, _ordinal(device), *entry, cache))
        except (DriverError, OSError) as error:
            raise Unavailable(str(error)) from error
        return loaded

    def _require_support(self, device: torch.device) -> None:
        if torch.version.hip is not None:
            raise Unavailable("AMD GPUs are not supported yet")
        if util.find_spec("triton") is None:
            raise Unavailable("triton is not installed (pip install torchsmith-fx-backend[gpu])")
        found = _capability(_ordinal(device))
        if found < OLDEST_CAPABILITY:
            raise Unavailable(
                f"compute capability {found // 10}.{found % 10} is below "
                f"{OLDEST_CAPABILITY // 10}.{OLDEST_CAPABILITY % 10}"
            )


def _with_ordinals(requests: Sequence[KernelRequest]) -> list[KernelRequest]:
    """A worker thread has a current device of its own, so "cuda" is resolved before it starts."""
    return [replace(r, device=torch.device("cuda", _ordinal(r.device))) for r in requests]


def _attempts(requests: Sequence[KernelRequest], cache: Cache) -> list[LoadedKernel | Exception]:
    """Each kernel, or what is wrong with it alone. A thread waits for each compiling process;
    loading needs this thread's CUDA context."""
    if len(requests) == 1:
        return [_loaded(_attempt(requests[0], cache), cache)]
    with ThreadPoolExecutor(min(len(requests), processors())) as pool:
        found = [pool.submit(_attempt, request, cache) for request in requests]
        if wait(found, _A_MOMENT).not_done:
            use_wait()
        return [_loaded(each.result(), cache) for each in found]


Entry = tuple[dict[bool, TritonSource], list[Binary]]


_Prepared = tuple[str, int, dict[bool, TritonSource], list[Binary]]


def _attempt(request: KernelRequest, cache: Cache) -> _Prepared | Exception:
    """``_prepare``, or what is wrong with this kernel alone."""
    try:
        return _prepare(request, cache)
    except (DriverError, OSError, Unavailable):
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, other kernels are fine
        return error


def _prepare(request: KernelRequest, cache: Cache) -> _Prepared:
    """Everything but loading: (key, device ordinal, sources, usual binaries)."""
    ordinal = _ordinal(request.device)
    capability, sm_count = _capability(ordinal), _sm_count(ordinal)
    config = request.config
    machine = f"{_toolchain()}:sm_{capability}:{sm_count}"
    key = f"triton:{machine}:{content_hash(request.kernel)}:{config or ''}"
    entry = _read_entry(key, cache)
    if entry is None:
        sources = print_kernel(
            request.kernel, sm_count=sm_count, origins=request.origins, config=config
        )
        usual = next(iter(sources))
        binaries = _compile(sources[usual], capability, True, cache)
        _write_entry(key, sources, binaries, cache)
        entry = sources, binaries
    if request.each and for_each(entry[0]) is not None:
        _rare(Variant(False, True, each=True), key, ordinal, entry[0], cache)
    return (key, ordinal, *entry)


def _rare(
    variant: Variant, key: str, ordinal: int, sources: Mapping[bool, TritonSource], cache: Cache
) -> Sequence[Binary]:
    """The binaries of a variant of the kernel under ``key``, compiled if need be."""
    place = f"{key}:{variant}"
    entry = _read_entry(place, cache)
    if entry is not None:
        return entry[1]
    source = for_each(sources) if variant.each else sources[variant.wide]
    assert source is not None
    made = _compile(source, _capability(ordinal), variant.aligned, cache)
    _write_entry(place, {variant.wide: source}, made, cache)
    return made


def _loaded(prepared: _Prepared | Exception, cache: Cache) -> LoadedKernel | Exception:
    """``_finish``, or what is wrong with this kernel alone."""
    try:
        return prepared if isinstance(prepared, Exception) else _finish(*prepared, cache)
    except SharedMemoryError as error:
        return error


def _finish(
    key: str,
    ordinal: int,
    sources: dict[bool, TritonSource],
    binaries: Sequence[Binary],
    cache: Cache,
) -> LoadedKernel:
    usual = Variant(next(iter(sources)), True)

    def obtain(variant: Variant) -> Sequence[Binary]:
        return binaries if variant == usual else _rare(variant, key, ordinal, sources, cache)

    kernel = TritonKernel(sources, ordinal, obtain, driver())
    source = kernel.source
    return LoadedKernel(key, source.stages[0].function, source.text, kernel.launch, kernel.each)


def _ordinal(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


@once
def _capability(ordinal: int) -> int:
    major, minor = torch.cuda.get_device_capability(ordinal)
    return 10 * major + minor


@once
def _sm_count(ordinal: int) -> int:
    return int(torch.cuda.get_device_properties(ordinal).multi_processor_count)


def _compile(source: TritonSource, capability: int, aligned: bool, cache: Cache) -> list[Binary]:
    text = source.text.encode()
    key = f"triton-source:{hashlib.sha256(text).hexdigest()}"
    name = f"{source.stages[0].function}.py"
    if cache.put(key, {name: text}):
        return compile_source(source, cache.path(key, name), capability, aligned=aligned)
    with tempfile.TemporaryDirectory(prefix="torchsmith-") as folder:
        path = Path(folder) / name
        path.write_bytes(text)
        return compile_source(source, path, capability, aligned=aligned)


def _write_entry(
    key: str, sources: Mapping[bool, TritonSource], binaries: Sequence[Binary], cache: Cache
) -> None:
    files = {"entry.json": json.dumps(_to_json(sources, binaries)).encode()}
    for number, binary in enumerate(binaries):
        files[f"stage{number}.cubin"] = binary.cubin
    cache.put(key, files)


def _read_entry(key: str, cache: Cache) -> Entry | None:
    files = cache.get(key)
    if files is None:
        return None
    entry = json.loads(files["entry.json"])
    sources = {item["wide"]: _source_from_json(item) for item in entry["sources"]}
    binaries = [
        Binary(**{**fields, "cubin": files[f"stage{number}.cubin"]})
        for number, fields in enumerate(entry["binaries"])
    ]
    return sources, binaries


def _to_json(sources: Mapping[bool, TritonSource], binaries: Sequence[Binary]) -> dict[str, object]:
    plain = [{**asdict(binary), "cubin": None} for binary in binaries]
    return {"sources": list(map(_source_to_json, sources.values())), "binaries": plain}


def _source_to_json(source: TritonSource) -> dict[str, object]:
    return {
        **asdict(source),
        "pointers": [[name, str(dtype)] for name, dtype in source.pointers],
        "workspaces": [[w.name, str(w.dtype), w.length] for w in source.workspaces],
        "config": source.config.to_json(),
    }


def _source_from_json(kept: dict[str, Any]) -> TritonSource:
    made = {
        "stages": tuple(Stage(s["function"], tuple(s["grid"])) for s in kept["stages"]),
        "pointers": tuple((name, _dtype(dtype)) for name, dtype in kept["pointers"]),
        "workspaces": tuple(Workspace(n, _dtype(d), length) for n, d, length in kept["workspaces"]),
        "symbols": tuple(Symbol(**symbol) for symbol in kept["symbols"]),
        "config": Config.from_json(kept["config"]),
    }
    return TritonSource(**{**kept, **made})


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is not a dtype")
    return dtype
