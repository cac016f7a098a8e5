"""Compiled Triton kernels as plain callables: one foreign call on packed arguments per launch.

A kernel exists in up to four variants (32- or 64-bit addresses, 16-byte aligned pointers or not).
The likely one is compiled ahead; each launch checks in a few integer operations that it applies,
and the others are made when a launch first needs them. The launch function of each kernel is
generated Python text, so that a call does no loops and no lookups.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchsmith_fx_backend._src.codegen.triton.scalars import TYPES
from torchsmith_fx_backend._src.codegen.triton.source import TritonSource
from torchsmith_fx_backend._src.runtime import gpu_driver
from torchsmith_fx_backend._src.runtime.gpu_driver import Driver
from torchsmith_fx_backend._src.runtime.triton_compile import Binary

INT32_ROOM = 2**31 - 2**20  # offsets below this leave room for the lanes of the last block
Launch = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Variant:
    """Which assumptions a compiled kernel makes.

    Attributes:
        wide: addresses are 64-bit.
        aligned: every pointer is a multiple of 16 bytes.
        each: one launch is for many runs, whose arguments lie in a table.
    """

    wide: bool
    aligned: bool
    each: bool = False


def for_each(sources: Mapping[bool, TritonSource]) -> TritonSource | None:
    """The kernel that runs another one for each row of a table of its arguments, if it can be
    launched without knowing more than how many rows there are."""
    source = sources.get(False)
    if source is None or len(sources) > 1 or len(source.stages) > 1 or source.workspaces:
        return None
    (stage,) = source.stages
    if not all(part.isdigit() for part in stage.grid):
        return None
    given = [
        f"tl.multiple_of(tl.load(row + {i}).to(tl.pointer_type({TYPES[dtype]})), 16)"
        for i, (_, dtype) in enumerate(source.pointers)
    ]
    for i, symbol in enumerate(source.symbols, start=len(given)):
        cast = ".to(tl.float64, bitcast=True)" if symbol.kind == "fp64" else ""
        given.append(f"tl.load(row + {i}){cast}")
    lines = ["", "", "@triton.jit", f"def {stage.function}_each(rows):"]
    lines.append(f"    row = rows + tl.program_id(2) * {len(given)}")
    lines += [f"    {stage.function}(", *(f"        {each}," for each in given), "    )", ""]
    return replace(
        source,
        text=source.text + "\n".join(lines),
        stages=(replace(stage, function=f"{stage.function}_each"),),
        pointers=(("rows", torch.int64),),
        symbols=(),
    )


class _Stage:
    """One loaded kernel and a pool of argument buffers for it.

    A buffer is taken for the length of one foreign call, because ctypes lets other threads run
    meanwhile; popping from and appending to a list are atomic.
    """

    def __init__(
        self, driver: Driver, binary: Binary, fields: str, device: int, grid: tuple[int, int]
    ) -> None:
        self.grid = grid
        self.function = driver.load(binary.cubin, binary.name, binary.shared, device)
        self.pack = struct.Struct(f"={fields}").pack_into
        self.parameters = binary.parameters
        self.threads = binary.num_warps * 32
        self.shared = binary.shared
        self.pool: list[tuple[Any, ...]] = []

    def buffer(self, depth: int = 1) -> tuple[Any, ...]:
        """(packed values, grid x, grid y, stream, arguments of ``cuLaunchKernel``)."""
        values = (ctypes.c_char * (8 * max(self.parameters, 1)))()
        base = ctypes.addressof(values)
        pointers = (ctypes.c_void_p * max(self.parameters, 1))(
            *(base + 8 * i for i in range(self.parameters))
        )
        grid_x, grid_y = (ctypes.c_uint(extent) for extent in self.grid)
        one = ctypes.c_uint(1)
        stream = ctypes.c_void_p()
        call = (
            ctypes.c_void_p(self.function.handle),
            grid_x,
            grid_y,
            ctypes.c_uint(depth),
            ctypes.c_uint(self.threads),
            one,
            one,
            ctypes.c_uint(self.shared),
            stream,
            pointers,
            ctypes.c_void_p(),
        )
        return values, grid_x, grid_y, stream, call


class TritonKernel:
    """A generated kernel on one device; ``launch`` is what the wrapper calls.

    Attributes:
        source: the printed kernel of the usual variant.
        launch: ``launch(*data_pointers, *symbol_values)``, as one flat positional call.
        each: the same for many runs at once, which do not depend on each other.
    """

    def __init__(
        self,
        sources: Mapping[bool, TritonSource],
        device: int,
        obtain: Callable[[Variant], Sequence[Binary]],
        driver: Driver | None = None,
    ) -> None:
        """Load the usual variant.

        Args:
            sources: printed text by ``wide``, the usual one first; a static kernel has only one.
            device: CUDA device ordinal.
            obtain: returns the binaries of a variant, compiling them if need be.
            driver: the CUDA driver; the process-wide one by default.
        """
        usual = next(iter(sources))
        self.source = sources[usual]
        self._sources = dict(sources)
        self._device = device
        self._obtain = obtain
        self._driver = driver or gpu_driver.driver()
        self._lock = threading.Lock()
        self._ready: dict[Variant, Launch] = {}
        self.launch: Launch = self._dispatcher(self.variant(Variant(usual, True)), usual)
        self._at_once = for_each(sources) is not None
        self._each: _Stage | None = None

    def each(self, table: array[int], bits: int) -> None:
        """Launch for each row of arguments in ``table``; ``bits`` are those of its pointers."""
        kinds = "".join("d" if symbol.kind == "fp64" else "q" for symbol in self.source.symbols)
        row = struct.Struct("Q" * len(self.source.pointers) + kinds)
        if self._at_once and not bits & 15 and not gpu_driver.is_recording():
            with gpu_driver.on_device(self._device):
                self._launch_rows(table, 8 * len(table) // row.size)
            return
        for values in row.iter_unpack(table):
            self.launch(*values)

    def _launch_rows(self, arguments: array[int], rows: int) -> None:
        stage = self._each
        if stage is None:
            (binary,) = self._obtain(Variant(False, True, each=True))
            across, down = map(int, self.source.stages[0].grid)
            fields = "Q" * binary.parameters
            stage = _Stage(self._driver, binary, fields, self._device, (across, down))
            self._each = stage
        table = gpu_driver.upload(arguments, self._device)  # freed in the order of the stream
        given, _, _, stream, call = stage.buffer(rows)
        stage.pack(given, 0, table.data_ptr(), *[0] * (stage.parameters - 1))
        stream.value = gpu_driver.current_stream(self._device)
        status = self._driver.launch_kernel(*call)
        if status:
            _failure_handler(self._driver, self._device)(status, call)

    def variant(self, variant: Variant) -> Launch:
        """The launch function of one variant, loading it on first use."""
        with self._lock:
            launch = self._ready.get(variant)
            if launch is None:
                binaries = self._obtain(variant)
                with gpu_driver.on_device(self._device):
                    launch = _launch_function(
                        self._sources[variant.wide], binaries, self._driver, self._device
                    )
                self._ready[variant] = launch
        return launch

    def _dispatcher(self, usual: Launch, wide: bool) -> Launch:
        pointers = [name for name, _ in self.source.pointers]
        symbols = [symbol.name for symbol in self.source.symbols]
        lines = [f"def launch({', '.join([*pointers, *symbols])}):"]
        arguments = ", ".join([*pointers, *symbols])
        if pointers:
            lines.append(f"    unaligned = ({' | '.join(pointers)}) & 15")
        else:
            lines.append("    unaligned = 0")
        if len(self._sources) > 1:
            lines.append(f"    wide = {self.source.offset_bound} > {INT32_ROOM}")
        else:
            lines.append(f"    wide = {wide}")
        unusual = "unaligned or wide" if len(self._sources) > 1 else "unaligned"
        lines += [
            f"    if {unusual}:",
            f"        return variant(Variant(wide, not unaligned))({arguments})",
            f"    if current_device() != {self._device}:",
            f"        with on_device({self._device}):",
            f"            return usual({arguments})",
            f"    usual({arguments})",
        ]
        names = {
            "variant": self._elsewhere,
            "Variant": Variant,
            "usual": usual,
            "current_device": gpu_driver.current_device,
            "on_device": gpu_driver.on_device,
        }
        return _define("\n".join(lines), names)

    def _elsewhere(self, variant: Variant) -> Launch:
        launch = self.variant(variant)

        def guarded(*args: Any) -> None:
            with gpu_driver.on_device(self._device):
                launch(*args)

        return guarded


def _define(text: str, names: dict[str, Any]) -> Launch:
    exec(compile(text, "<torchsmith launch>", "exec"), names)
    launch: Launch = names["launch"]
    launch.__doc__ = text  # what runs, for whoever inspects it
    return launch


def _launch_function(
    source: TritonSource, binaries: Sequence[Binary], driver: Driver, device: int
) -> Launch:
    """Generates ``launch(*pointers, *symbols)`` for the loaded stages of one variant."""
    pointers = [name for name, _ in source.pointers]
    symbols = [symbol.name for symbol in source.symbols]
    names: dict[str, Any] = {
        "launch_kernel": driver.launch_kernel,
        "current_stream": gpu_driver.current_stream,
        "failed": _failure_handler(driver, device),
    }
    lines = [f"def launch({', '.join([*pointers, *symbols])}):"]
    if source.workspaces:
        # One allocation for all, kept as a local until the launches are queued; the allocator is
        # ordered by stream.
        lines.append("    hold_end = 0")
        for workspace in source.workspaces:
            size = f"({workspace.length}) * {workspace.dtype.itemsize}"
            lines.append(f"    {workspace.name} = hold_end")
            lines.append(f"    hold_end += {size} + 255 & ~255")
        lines.append(f"    hold = empty(hold_end, dtype=uint8, device={device})")
        lines.append("    hold_start = hold.data_ptr()")
        lines += [f"    {workspace.name} += hold_start" for workspace in source.workspaces]
        names |= {"empty": torch.empty, "uint8": torch.uint8}
    lines.append(f"    on = current_stream({device})")
    values = [*pointers, *(w.name for w in source.workspaces), *symbols]
    for number, (stage, binary) in enumerate(zip(source.stages, binaries, strict=True)):
        hidden = binary.parameters - len(values)
        kinds = ["Q"] * (len(pointers) + len(source.workspaces))
        kinds += ["d" if symbol.kind == "fp64" else "q" for symbol in source.symbols]
        static = all(part.isdigit() for part in stage.grid)
        grid = (int(stage.grid[0]), int(stage.grid[1])) if static else (1, 1)
        loaded = _Stage(driver, binary, "".join([*kinds, "Q" * hidden]), device, grid)
        names |= {
            f"pack{number}": loaded.pack,
            f"take{number}": loaded.pool.pop,
            f"give{number}": loaded.pool.append,
            f"make{number}": loaded.buffer,
        }
        packed = ", ".join(["values", "0", *values, *["0"] * hidden])
        indent = "    "
        if not static:
            lines.append(f"    x = {stage.grid[0]}")
            lines.append(f"    y = {stage.grid[1]}")
            lines.append("    if x and y:")
            indent = "        "
        elif 0 in grid:
            continue
        body = [
            "try:",
            f"    buffer = take{number}()",
            "except IndexError:",
            f"    buffer = make{number}()",
            "values, grid_x, grid_y, stream, call = buffer",
            f"pack{number}({packed})",
            *([] if static else ["grid_x.value = x", "grid_y.value = y"]),
            "stream.value = on",
            "status = launch_kernel(*call)",
            "if status:",
            "    failed(status, call)",
            f"give{number}(buffer)",
        ]
        lines += [indent + line for line in body]
    return _define("\n".join(lines), names)


def _failure_handler(driver: Driver, device: int) -> Callable[[int, tuple[Any, ...]], None]:
    def failed(status: int, call: tuple[Any, ...]) -> None:
        if driver.retry_without_context(status, device):
            status = driver.launch_kernel(*call)
        driver.check(status, "cuLaunchKernel")

    return failed
