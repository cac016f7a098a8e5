"""Compiling Triton kernels once per case and launching them without the JIT front door.

``bind`` gives a function that launches one compiled kernel on raw arguments; callers keep it by
their own key, so that a launch costs one dictionary lookup and one call into Triton's launcher.
Under Triton's interpreter (``TRITON_INTERPRET=1``) the same function runs it on CPU tensors.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch

from torchsmith_kernels._src import private
from torchsmith_kernels.errors import FallbackWarning

OLDEST_CAPABILITY = 80  # bfloat16 arithmetic conversions need Ampere

TYPES: dict[torch.dtype, str] = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
}

#: ``launch(grid_x, grid_y, *arguments)``, see ``bind``.
Launch = Callable[..., None]


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


def usable(device: torch.device, op: str) -> bool:
    """Whether ``op``'s kernels run on ``device``; on a GPU where they do not, warns once."""
    reason = problem(device.type, device.index or 0)
    if reason is None:
        return True
    if device.type != "cpu" and reason not in _warned:
        _warned.add(reason)
        warnings.warn(
            f"torchsmith_kernels.{op}: {reason}; the plain PyTorch version runs instead",
            FallbackWarning,
            stacklevel=3,
        )
    return False


def capability(device: torch.device) -> int:
    """Compute capability as ``10 * major + minor``; 90 under the interpreter."""
    if device.type != "cuda":
        return 90
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def sm_count(device: torch.device) -> int:
    """Multiprocessors; a small fixed number under the interpreter."""
    if device.type != "cuda":
        return 4
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


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
) -> Any:
    """Triton's ``CompiledKernel`` for explicit argument types; needs no GPU when given a target.

    Args:
        function: a ``@triton.jit`` function whose constexpr parameters come last.
        signature: Triton type per leading argument; None for an absent pointer.
        constants: values of the constexpr parameters, in order.
        num_warps: warps per program.
        aligned: per leading argument, whether it is a multiple of 16.
        target: a ``GPUTarget``; the current device's by default.
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
    source = ASTSource(function, types, fixed, divisible)
    options = {"num_warps": num_warps, "enable_fp_fusion": True}
    return triton.compile(source, target=target, options=options)


def bind(
    function: Any,
    signature: Sequence[str | None],
    aligned: Sequence[bool],
    constants: Mapping[str, Any],
    num_warps: int,
    device: torch.device,
) -> Launch:
    """A function that launches one compiled kernel.

    Args:
        function: a ``@triton.jit`` function whose constexpr parameters come last.
        signature: Triton type per leading argument; None for an absent pointer.
        aligned: per leading argument, whether every launch passes a multiple of 16.
        constants: values of the constexpr parameters, in order.
        num_warps: warps per program.
        device: where it runs.

    Returns:
        ``launch(grid_x, grid_y, *arguments)``. On a GPU pointers are given as integers, under the
        interpreter as tensors.
    """
    if device.type != "cuda":

        def interpret(grid_x: int, grid_y: int, *args: object) -> None:
            function[(grid_x, grid_y)](*args, **constants)

        return interpret

    ordinal = torch.cuda.current_device() if device.index is None else device.index
    with torch.cuda.device(ordinal):
        compiled = compile_kernel(function, signature, constants, num_warps, aligned)
        run, handle, packed = compiled.run, compiled.function, compiled.packed_metadata
    tail = tuple(constants.values())
    current_device, current_stream = private.current_device, private.current_stream

    def launch(grid_x: int, grid_y: int, *args: object) -> None:
        stream = current_stream(ordinal)
        if current_device() == ordinal:
            run(grid_x, grid_y, 1, stream, handle, packed, None, None, None, *args, *tail)
            return
        with torch.cuda.device(ordinal):
            run(grid_x, grid_y, 1, stream, handle, packed, None, None, None, *args, *tail)

    return launch
