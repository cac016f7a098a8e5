"""Compiling Triton kernels once per case and launching them without the JIT front door.

A ``Kernel`` is called with a grid, run-time arguments and compile-time constants. What it compiled
is kept by the types and alignment of the arguments, so that a launch costs one dictionary lookup
and one call into Triton's launcher. Under Triton's interpreter (``TRITON_INTERPRET=1``) the same
call runs on CPU tensors.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from torchsmith_kernels._src import private
from torchsmith_kernels.errors import FallbackWarning

OLDEST_CAPABILITY = 80  # bfloat16 arithmetic conversions need Ampere

TYPES: dict[torch.dtype, str] = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "i1",
}

INT32_LIMIT = 2**31


class Word(int):
    """A 64-bit integer argument that kernels are not specialised on, such as a random seed."""

    __slots__ = ()


#: A run-time argument of a kernel.
Argument = Tensor | int | float | None


@cache
def interpreted() -> bool:
    """Whether Triton's interpreter is on, so that kernels run on CPU tensors."""
    if find_spec("triton") is None:
        return False
    from triton import knobs

    return bool(knobs.runtime.interpret)


@cache
def problem(device_type: str, index: int) -> str | None:
    """Why kernels cannot run on a device, or None."""
    if find_spec("triton") is None:
        return "triton is not installed"
    if device_type == "cpu":
        return None if interpreted() else "kernels run on GPUs"
    if device_type != "cuda":
        return f"there are no kernels for device type {device_type!r}"
    if torch.version.hip is not None:
        return "AMD GPUs are not supported yet"
    major, minor = torch.cuda.get_device_capability(index)
    if 10 * major + minor < OLDEST_CAPABILITY:
        return f"compute capability {major}.{minor} is below 8.0"
    return None


_warned: set[str] = set()
_found_usable: set[torch.device] = set()


def usable(device: torch.device, op: str) -> bool:
    """Whether ``op``'s kernels run on ``device``; on a GPU where they do not, warns once."""
    if device in _found_usable:
        return True
    reason = problem(device.type, device.index or 0)
    if reason is None:
        _found_usable.add(device)
        return True
    if device.type not in ("cpu", "meta") and reason not in _warned:
        _warned.add(reason)
        warnings.warn(
            f"torchsmith_kernels.{op}: {reason}; the plain PyTorch version runs instead",
            FallbackWarning,
            stacklevel=3,
        )
    return False


@cache
def capability(device: torch.device) -> int:
    """Compute capability as ``10 * major + minor``; 90 under the interpreter."""
    if device.type != "cuda":
        return 90
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


@cache
def sm_count(device: torch.device) -> int:
    """Multiprocessors; a small fixed number under the interpreter."""
    if device.type != "cuda":
        return 4
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@cache
def shared_memory(ordinal: int) -> int:
    """Bytes of shared memory that one program may take on a GPU."""
    from triton.runtime import driver

    return int(driver.active.utils.get_device_properties(ordinal)["max_shared_mem"])


@cache
def triton_dtype(dtype: torch.dtype) -> Any:
    """The ``triton.language`` dtype of the same name."""
    import triton.language as tl

    return getattr(tl, str(dtype).removeprefix("torch."))


def compile_kernel(
    function: Any,
    signature: Sequence[str | None],
    constants: Mapping[str, Any],
    num_warps: int,
    aligned: Sequence[bool],
    target: Any = None,
    num_stages: int = 3,
    maxnreg: int | None = None,
) -> Any:
    """Triton's ``CompiledKernel`` for explicit argument types; needs no GPU when given a target.

    Args:
        function: a ``@triton.jit`` function whose constexpr parameters come last.
        signature: Triton type per leading argument; None for an absent pointer.
        constants: values of the constexpr parameters, in order.
        num_warps: warps per program.
        aligned: per leading argument, whether it is a multiple of 16.
        target: a ``GPUTarget``; the current device's by default.
        num_stages: depth of software pipelining in loops around ``tl.dot``.
        maxnreg: upper limit of registers per thread; None leaves it to the compiler.
    """
    import triton
    from triton.compiler import ASTSource

    names = function.arg_names
    types = {
        name: "constexpr" if kind is None else kind
        for name, kind in zip(names, signature, strict=False)
    }
    types.update(dict.fromkeys(constants, "constexpr"))
    fixed: dict[tuple[int, ...], Any] = {
        (i,): None for i, kind in enumerate(signature) if kind is None
    }
    fixed.update({(names.index(name),): value for name, value in constants.items()})
    divisible = {(i,): [["tt.divisibility", 16]] for i, yes in enumerate(aligned) if yes}
    if function.is_gluon():
        from triton.experimental.gluon._runtime import GluonASTSource

        source = GluonASTSource(function, types, fixed, divisible)
    else:
        source = ASTSource(function, types, fixed, divisible)
    options: dict[str, Any] = {
        "num_warps": num_warps,
        "num_stages": num_stages,
        "enable_fp_fusion": True,
        "debug": bool(constants.get("CHECKED")),  # what device asserts are compiled in
        "sanitize_overflow": False,
    }
    if maxnreg is not None:
        options["maxnreg"] = maxnreg
    return triton.compile(source, target=target, options=options)


def signature_of(args: Sequence[Argument]) -> tuple[list[str | None], list[bool]]:
    """Triton type of each argument, and whether it is a multiple of 16.

    Integers are 32 bits wide unless they need more. Numbers with a fraction are ``fp32``, beside a
    float64 tensor ``fp64``.
    """
    wide = any(isinstance(arg, Tensor) and arg.dtype is torch.float64 for arg in args)
    kinds: list[str | None] = []
    aligned: list[bool] = []
    for arg in args:
        if arg is None:
            kinds.append(None)
            aligned.append(False)
        elif isinstance(arg, Tensor):
            kinds.append(f"*{TYPES[arg.dtype]}")
            aligned.append(arg.data_ptr() & 15 == 0)
        elif isinstance(arg, Word):
            kinds.append("i64")
            aligned.append(False)
        elif isinstance(arg, int):
            kinds.append("i32" if -INT32_LIMIT <= arg < INT32_LIMIT else "i64")
            aligned.append(arg & 15 == 0)
        else:
            kinds.append("fp64" if wide else "fp32")
            aligned.append(False)
    return kinds, aligned


def _scratch(size: int, alignment: int, stream: int | None) -> Tensor:
    """Device memory for tensor descriptors, from torch's stream-ordered allocator."""
    return torch.empty(size, dtype=torch.int8, device="cuda")


#: The current device's Triton launcher with its leading arguments, trailing constants, and whether
#: it needs scratch memory.
_Entry = tuple[Callable[..., None], Any, Any, tuple[Any, ...], bool]

_compile_only = False


@contextmanager
def compiling_only() -> Iterator[None]:
    """Calls inside compile their kernel but launch nothing; the tuner's parallel warm-up."""
    global _compile_only  # the tuner's threads must all see it
    _compile_only = True
    try:
        yield
    finally:
        _compile_only = False


def _read(args: tuple[Argument, ...], key: list[object]) -> tuple[int, list[Any]]:
    """The device's ordinal and the values to launch with; adds to ``key`` what code depends on."""
    ordinal = -2
    values: list[Any] = []
    flags = 0  # two bits an argument: whether it is a multiple of 16, whether an int is wide
    for arg in args:
        flags <<= 2
        kind = type(arg)
        if kind is int:
            values.append(arg)
            if arg & 15 == 0:  # type: ignore[operator]
                flags |= 1
            if not -INT32_LIMIT <= arg < INT32_LIMIT:  # type: ignore[operator]
                flags |= 2
        elif isinstance(arg, Tensor):
            if ordinal == -2:
                ordinal = arg.get_device()
            pointer = arg.data_ptr()
            key.append(arg.dtype)
            values.append(pointer)
            if pointer & 15 == 0:
                flags |= 1
        else:
            key.append(kind)
            values.append(arg)
    key.append(flags)
    key.append(ordinal)
    return ordinal, values


class Kernel:
    """A ``@triton.jit`` function, imported and compiled when it is first needed.

    Its run-time parameters come first and its constexpr parameters last; both are passed in the
    order in which the function declares them.
    """

    __slots__ = ("_entries", "_locks", "_module", "name")

    def __init__(self, module: str, name: str) -> None:
        self._module, self.name = module, name
        self._entries: dict[tuple[object, ...], _Entry] = {}
        self._locks: dict[tuple[object, ...], threading.Lock] = {}

    @property
    def function(self) -> Any:
        """The ``@triton.jit`` function; importing it needs triton."""
        return getattr(import_module(self._module), self.name)

    def __call__(
        self,
        grid: tuple[int, int, int],
        args: tuple[Argument, ...],
        constants: dict[str, Any],
        num_warps: int = 4,
        num_stages: int = 3,
        maxnreg: int | None = None,
    ) -> None:
        """Launches ``grid`` programs on the device of the first tensor in ``args``.

        Args:
            grid: programs per axis; nothing runs when one is 0. The second and third are limited
                to 65535 by CUDA.
            args: run-time arguments; None stands for an absent tensor.
            constants: compile-time arguments by name.
            num_warps: warps per program.
            num_stages: depth of software pipelining.
            maxnreg: upper limit of registers per thread.
        """
        if 0 in grid:
            return
        key: list[object] = [num_warps, num_stages, maxnreg, *constants.values()]
        ordinal, values = _read(args, key)
        if ordinal < 0:
            run_on_cpu(self, grid, args, constants, num_warps, num_stages, maxnreg)
            return
        entry = self._entries.get(tuple(key))
        if entry is None:
            entry = self.prepare(args, constants, num_warps, num_stages, maxnreg)
        if _compile_only:
            return  # known kernels too: what they would read was never written
        run, handle, packed, tail, scratch = entry
        if scratch:
            import triton

            # A context variable, and autograd's threads have contexts of their own.
            triton.set_allocator(_scratch)
        if private.current_device() == ordinal:
            stream = private.current_stream(ordinal)
            run(*grid, stream, handle, packed, None, None, None, *values, *tail)
            return
        with torch.cuda.device(ordinal):
            stream = private.current_stream(ordinal)
            run(*grid, stream, handle, packed, None, None, None, *values, *tail)

    def prepare(
        self,
        args: tuple[Argument, ...],
        constants: dict[str, Any],
        num_warps: int = 4,
        num_stages: int = 3,
        maxnreg: int | None = None,
    ) -> _Entry:
        """Compiles for arguments like these, which are on a GPU, unless that was done before; a
        call in another thread waits for it."""
        key: list[object] = [num_warps, num_stages, maxnreg, *constants.values()]
        ordinal, _ = _read(args, key)
        fixed, options = tuple(key), (num_warps, num_stages, maxnreg)
        with self._locks.setdefault(fixed, threading.Lock()):
            entry = self._entries.get(fixed)
            if entry is None:
                entry = self._entries[fixed] = self._bind(args, constants, options, ordinal)
        return entry

    def _bind(
        self,
        args: tuple[Argument, ...],
        constants: dict[str, Any],
        options: tuple[int, int, int | None],
        ordinal: int,
    ) -> _Entry:
        with torch.cuda.device(ordinal):
            compiled = self.compile_within(shared_memory(ordinal), args, constants, *options)
            run = compiled.run
        scratch = bool(getattr(compiled.metadata, "global_scratch_size", 0))
        tail = tuple(constants.values())
        return run, compiled.function, compiled.packed_metadata, tail, scratch

    def compile(
        self,
        args: tuple[Argument, ...],
        constants: dict[str, Any],
        num_warps: int = 4,
        num_stages: int = 3,
        maxnreg: int | None = None,
        target: Any = None,
    ) -> Any:
        """Triton's ``CompiledKernel`` for arguments like these; see ``compile_kernel``."""
        function = self.function
        names = function.arg_names
        if list(names[len(args) :]) != list(constants):
            raise TypeError(
                f"{self.name} takes {names}; got {len(args)} run-time arguments and the constants "
                f"{list(constants)}"
            )
        kinds, aligned = signature_of(args)
        return compile_kernel(
            function, kinds, constants, num_warps, aligned, target, num_stages, maxnreg
        )

    def compile_within(
        self,
        room: int,
        args: tuple[Argument, ...],
        constants: dict[str, Any],
        num_warps: int = 4,
        num_stages: int = 3,
        maxnreg: int | None = None,
        target: Any = None,
    ) -> Any:
        """``compile`` with fewer stages where the tiles need more shared memory than ``room``.

        Sizes are chosen for a class of arguments, and derived for chips that nobody measured; how
        much is loaded ahead (the option, and the constant ``STAGES`` of loops that say it
        themselves) is all that may change after the grid is known. Beside a kernel that still does
        not fit, Triton says what it needs.
        """
        while True:
            compiled = self.compile(args, constants, num_warps, num_stages, maxnreg, target)
            if compiled.metadata.shared <= room:
                return compiled
            if constants.get("STAGES", 1) > 1:
                constants = {**constants, "STAGES": constants["STAGES"] - 1}
            elif num_stages > 1:
                num_stages -= 1
            else:
                return compiled


class Plan:
    """A launch with everything fixed but the tensors; for kernels with many integer arguments.

    Calling it costs a few checks per tensor and none per integer.
    """

    __slots__ = ("_constants", "_entries", "_grid", "_integers", "_kernel", "_options")

    def __init__(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        integers: tuple[int | float, ...],
        constants: dict[str, Any],
        num_warps: int = 4,
        num_stages: int = 3,
        maxnreg: int | None = None,
    ) -> None:
        """Plans a launch of ``kernel``, whose tensors come before its integers."""
        self._kernel, self._grid, self._integers = kernel, grid, integers
        self._constants, self._options = constants, (num_warps, num_stages, maxnreg)
        self._entries: dict[tuple[int, ...], _Entry] = {}

    def __call__(self, *tensors: Tensor | None) -> None:
        """Launches it; dtypes, device and which tensors are None must always be the same."""
        pointers = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
        key = tuple([0 if pointer is None else pointer & 15 for pointer in pointers])
        entry = self._entries.get(key)
        if entry is None or _compile_only:
            first = next(tensor for tensor in tensors if tensor is not None)
            arguments = (*tensors, *self._integers)
            ordinal = first.get_device()
            if ordinal < 0 or _compile_only or 0 in self._grid:
                self._kernel(self._grid, arguments, self._constants, *self._options)
                return
            entry = self._entries[key] = self._prepared(arguments)
        run, handle, packed, tail, scratch = entry
        ordinal = next(tensor for tensor in tensors if tensor is not None).get_device()
        if scratch or private.current_device() != ordinal:
            arguments = (*tensors, *self._integers)
            self._kernel(self._grid, arguments, self._constants, *self._options)
            return
        stream = private.current_stream(ordinal)
        run(
            *self._grid, stream, handle, packed, None, None, None, *pointers, *self._integers, *tail
        )

    def prepare(self, *tensors: Tensor | None) -> None:
        """Compiles for tensors like these."""
        self._prepared((*tensors, *self._integers))

    def _prepared(self, arguments: tuple[Argument, ...]) -> _Entry:
        return self._kernel.prepare(arguments, self._constants, *self._options)


class Prepared:
    """A launch in which only the addresses of tensors differ from call to call.

    Worth it for kernels with many arguments, where reading them takes longer than the launch.
    """

    __slots__ = ("_entry", "_fixed", "_kernel", "_ordinal", "_slots", "_values", "_words")

    def __init__(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        args: tuple[Argument, ...],
        constants: dict[str, Any],
        num_warps: int = 4,
        num_stages: int = 3,
        maxnreg: int | None = None,
    ) -> None:
        """Keeps everything but the tensors of ``args``; the arguments are those of ``Kernel``."""
        self._kernel = kernel
        self._fixed = (grid, constants, num_warps, num_stages, maxnreg)
        self._slots = [i for i, arg in enumerate(args) if isinstance(arg, Tensor)]
        self._words = [i for i, arg in enumerate(args) if type(arg) is Word]
        self._values: list[Any] = [None if isinstance(arg, Tensor) else arg for arg in args]
        self._entry: _Entry | None = None
        self._ordinal = -1

    def __call__(self, *tensors: Tensor, words: tuple[Word, ...] = ()) -> None:
        """Launches with other tensors of the same dtypes, strides and device.

        ``words`` take the places of the first arguments that are a ``Word``.
        """
        values = self._values.copy()
        bits = 0
        for slot, tensor in zip(self._slots, tensors, strict=True):
            pointer = values[slot] = tensor.data_ptr()
            bits |= pointer
        if bits & 15 or self._entry is None or private.current_device() != self._ordinal:
            self._launch(tensors, words)
            return
        for slot, word in zip(self._words, words, strict=False):
            values[slot] = word
        run, handle, packed, tail, scratch = self._entry
        if scratch:
            import triton

            triton.set_allocator(_scratch)
        stream = private.current_stream(self._ordinal)
        run(*self._fixed[0], stream, handle, packed, None, None, None, *values, *tail)

    def _launch(self, tensors: tuple[Tensor, ...], words: tuple[Word, ...]) -> None:
        """The long way; remembers the code for aligned tensors."""
        values = self._values.copy()
        for slot, tensor in zip(self._slots, tensors, strict=True):
            values[slot] = tensor
        for slot, word in zip(self._words, words, strict=False):
            values[slot] = word
        args = tuple(values)
        grid, constants, num_warps, num_stages, maxnreg = self._fixed
        self._kernel(grid, args, constants, num_warps, num_stages, maxnreg)
        if 0 not in grid and all(tensor.data_ptr() & 15 == 0 for tensor in tensors):
            key: list[object] = [num_warps, num_stages, maxnreg, *constants.values()]
            self._ordinal, _ = _read(args, key)
            self._entry = self._kernel._entries.get(tuple(key))


def _interpret(
    kernel: Kernel,
    grid: tuple[int, int, int],
    args: tuple[Argument, ...],
    constants: dict[str, Any],
    num_warps: int,
    num_stages: int,
    maxnreg: int | None,
) -> None:
    kernel.function[grid](*args, **constants)


#: What a launch on CPU tensors does: Triton's interpreter, or the tests' record of compiled code.
run_on_cpu: Callable[..., None] = _interpret
