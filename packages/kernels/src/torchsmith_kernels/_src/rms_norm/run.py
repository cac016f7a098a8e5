"""Preparing the launches of the RMS normalization kernels: layouts, configurations, work sharing.

The functions here take checked arguments on a device where the kernels run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchsmith_kernels._src import launch
from torchsmith_kernels._src.launch import Launch
from torchsmith_kernels._src.rms_norm import reference
from torchsmith_kernels._src.rms_norm.config import Case, Config, choose


def ceil_div(n: int, block: int) -> int:
    """``n / block`` rounded up."""
    return -(-n // block)


def row_stride(tensor: Tensor, width: int, count: int) -> int | None:
    """Elements between rows of ``width``, or None where rows are not at regular places.

    Args:
        tensor: any strided tensor.
        width: elements per row.
        count: trailing dimensions that make up a row; they must be contiguous.
    """
    if tensor.is_contiguous():
        return width
    sizes, strides = tensor.shape, tensor.stride()
    expected = 1
    for axis in range(tensor.dim() - 1, tensor.dim() - count - 1, -1):
        if sizes[axis] != 1 and strides[axis] != expected:
            return None
        expected *= sizes[axis]
    step: int | None = None
    expected = 0
    for axis in range(tensor.dim() - count - 1, -1, -1):
        if sizes[axis] == 1:
            continue
        if step is None:
            step = strides[axis]
        elif strides[axis] != expected:
            return None
        expected = strides[axis] * sizes[axis]
    return width if step is None else step


def _rows(tensor: Tensor, width: int, count: int) -> tuple[Tensor, int]:
    """``tensor`` (copied only if need be) and the distance of its rows."""
    stride = row_stride(tensor, width, count)
    if stride is None:
        return tensor.contiguous(), width
    return tensor, stride


def _pointer(tensor: Tensor | None, on_gpu: bool) -> tuple[object, bool]:
    """What a launch takes for ``tensor``, and whether it is 16-byte aligned."""
    if tensor is None:
        return None, False
    address = tensor.data_ptr()
    return (address if on_gpu else tensor), address & 15 == 0


def _kind(dtype: torch.dtype | None) -> str | None:
    return None if dtype is None else f"*{launch.TYPES[dtype]}"


def _module() -> Any:
    """The Triton kernels; importing them needs triton, which may be absent."""
    from torchsmith_kernels._src.rms_norm import kernel

    return kernel


# -- forward -------------------------------------------------------------------------------------

_forward_launches: dict[tuple[object, ...], tuple[Launch, int]] = {}


def forward_triton(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    eps: float,
    config: Config | None = None,
) -> Tensor:
    """The forward kernel; ``config`` overrides the table, for tuning."""
    width = math.prod(normalized_shape)
    output = torch.empty(input.shape, dtype=input.dtype, device=input.device)
    if output.numel() == 0:
        return output
    input, stride = _rows(input, width, len(normalized_shape))
    if weight is not None and not weight.is_contiguous():
        weight = weight.contiguous()
    device = input.device
    on_gpu = device.type == "cuda"
    x, x_aligned = _pointer(input, on_gpu)
    w, w_aligned = _pointer(weight, on_gpu)
    kind = None if weight is None else weight.dtype
    key = (width, input.dtype, kind, device, x_aligned, w_aligned, stride & 15 == 0, config)
    entry = _forward_launches.get(key)
    if entry is None:
        entry = _bind_forward(width, input.dtype, kind, device, key[4:7], config)
        _forward_launches[key] = entry
    run, block_m = entry
    rows = output.numel() // width
    y = output.data_ptr() if on_gpu else output
    run(ceil_div(rows, block_m), 1, x, w, y, rows, stride, eps)
    return output


def _bind_forward(
    width: int,
    dtype: torch.dtype,
    weight_dtype: torch.dtype | None,
    device: torch.device,
    aligned: tuple[object, ...],
    config: Config | None,
) -> tuple[Launch, int]:
    if config is None:
        config, _ = choose(Case("forward", width, dtype), launch.capability(device))
    x_aligned, w_aligned, stride_aligned = (bool(yes) for yes in aligned)
    run = launch.bind(
        _module().forward_kernel,
        forward_signature(dtype, weight_dtype),
        (x_aligned, w_aligned, True, False, stride_aligned, False),
        forward_constants(width, dtype, weight_dtype, config),
        config.num_warps,
        device,
    )
    return run, config.block_m


def forward_signature(
    dtype: torch.dtype, weight_dtype: torch.dtype | None
) -> tuple[str | None, ...]:
    """Triton types of the forward kernel's run-time arguments."""
    return (_kind(dtype), _kind(weight_dtype), _kind(dtype), "i64", "i64", "fp64")


def forward_constants(
    width: int, dtype: torch.dtype, weight_dtype: torch.dtype | None, config: Config
) -> dict[str, Any]:
    """The forward kernel's compile-time arguments."""
    return {
        "N": width,
        "HAS_WEIGHT": weight_dtype is not None,
        "COMPUTE": launch.triton_dtype(reference.compute_dtype(dtype)),
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "LOOPED": config.looped,
    }


# -- backward ------------------------------------------------------------------------------------

_launches: dict[tuple[object, ...], Launch] = {}


def _bound(
    name: str,
    signature: tuple[str | None, ...],
    aligned: tuple[bool, ...],
    constants: dict[str, Any],
    num_warps: int,
    device: torch.device,
) -> Launch:
    key = (name, signature, aligned, tuple(constants.values()), num_warps, device)
    run = _launches.get(key)
    if run is None:
        run = launch.bind(
            getattr(_module(), name), signature, aligned, constants, num_warps, device
        )
        _launches[key] = run
    return run


def backward_triton(
    grad_output: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    eps: float,
    need_input: bool,
    need_weight: bool,
    config: Config | None = None,
) -> tuple[Tensor, Tensor]:
    """The backward kernels; a gradient that is not needed comes back empty.

    ``config`` overrides the table, for tuning.
    """
    width, count = math.prod(normalized_shape), len(normalized_shape)
    need_weight = need_weight and weight is not None
    grad_input = new_like(input, input.shape if need_input else (0,))
    grad_weight = new_like(
        weight if weight is not None else input, normalized_shape if need_weight else (0,)
    )
    if input.numel() == 0:
        return grad_input, grad_weight.zero_()
    if not (need_input or need_weight):
        return grad_input, grad_weight
    grad_output, grad_stride = _rows(grad_output, width, count)
    input, stride = _rows(input, width, count)
    if weight is not None and not weight.is_contiguous():
        weight = weight.contiguous()
    if config is None:
        case = Case("backward", width, input.dtype)
        config, _ = choose(case, launch.capability(input.device))
    rows = input.numel() // width
    backward = _backward_wide if config.looped else _backward_narrow
    partial = backward(
        grad_output,
        grad_stride,
        input,
        stride,
        weight,
        grad_input,
        eps,
        rows,
        width,
        need_input,
        need_weight,
        config,
    )
    if partial is not None:
        _sum_weight(partial, grad_weight, width)
    return grad_input, grad_weight


def new_like(like: Tensor, shape: Sequence[int]) -> Tensor:
    """An uninitialised contiguous tensor of another shape."""
    return torch.empty(tuple(shape), dtype=like.dtype, device=like.device)


def _share_rows(rows: int, config: Config, device: torch.device) -> tuple[int, int]:
    """(number of programs, rows of each) for a fixed, and so deterministic, order of addition."""
    steps = ceil_div(rows, config.block_m)
    programs = min(steps, launch.sm_count(device) * config.programs_per_sm)
    each = ceil_div(steps, programs) * config.block_m
    return ceil_div(rows, each), each


def _backward_narrow(
    grad_output: Tensor, grad_stride: int, input: Tensor, stride: int, weight: Tensor | None,
    grad_input: Tensor, eps: float, rows: int, width: int, need_input: bool, need_weight: bool,
    config: Config,
) -> Tensor | None:  # fmt: skip
    compute = reference.compute_dtype(input.dtype)
    programs, each = _share_rows(rows, config, input.device)
    partial = None
    if need_weight:
        partial = torch.empty((programs, width), dtype=compute, device=input.device)
    tensors = (grad_output, input, weight, grad_input if need_input else None, partial)
    pointers, aligned = _pointers(tensors)
    kinds = (input.dtype, input.dtype, None if weight is None else weight.dtype,
             input.dtype if need_input else None, compute if need_weight else None)  # fmt: skip
    run = _bound(
        "backward_kernel",
        (*(_kind(kind) for kind in kinds), "i64", "i64", "i64", "i64", "fp64"),
        (*aligned, False, grad_stride & 15 == 0, stride & 15 == 0, False, False),
        {
            "N": width,
            "HAS_WEIGHT": weight is not None,
            "NEED_DX": need_input,
            "NEED_DW": need_weight,
            "COMPUTE": launch.triton_dtype(compute),
            "BLOCK_M": config.block_m,
            "BLOCK_N": config.block_n,
        },
        config.num_warps,
        input.device,
    )
    run(programs, 1, *pointers, rows, grad_stride, stride, each, eps)
    return partial


def _backward_wide(
    grad_output: Tensor, grad_stride: int, input: Tensor, stride: int, weight: Tensor | None,
    grad_input: Tensor, eps: float, rows: int, width: int, need_input: bool, need_weight: bool,
    config: Config,
) -> Tensor | None:  # fmt: skip
    compute = reference.compute_dtype(input.dtype)
    rstds = torch.empty((rows,), dtype=compute, device=input.device)
    tensors = (grad_output, input, weight, grad_input if need_input else None, rstds)
    pointers, aligned = _pointers(tensors)
    strides_aligned = (grad_stride & 15 == 0, stride & 15 == 0)
    kinds = (input.dtype, input.dtype, None if weight is None else weight.dtype,
             input.dtype if need_input else None, compute)  # fmt: skip
    run = _bound(
        "backward_wide_kernel",
        (*(_kind(kind) for kind in kinds), "i64", "i64", "i64", "fp64"),
        (*aligned, False, *strides_aligned, False),
        {
            "N": width,
            "HAS_WEIGHT": weight is not None,
            "NEED_DX": need_input,
            "COMPUTE": launch.triton_dtype(compute),
            "BLOCK_N": config.block_n,
        },
        config.num_warps,
        input.device,
    )
    run(rows, 1, *pointers, rows, grad_stride, stride, eps)
    if not need_weight:
        return None
    # A part of the rows for each of a few programs per block of columns.
    tile = Config(8, 256, 4, programs_per_sm=config.programs_per_sm)
    columns = ceil_div(width, tile.block_n)
    sharing = max(1, launch.sm_count(input.device) * config.programs_per_sm // columns)
    each = ceil_div(ceil_div(rows, sharing), tile.block_m) * tile.block_m
    parts = ceil_div(rows, each)
    partial = torch.empty((parts, width), dtype=compute, device=input.device)
    pointers, aligned = _pointers((grad_output, input, rstds, partial))
    run = _bound(
        "weight_partial_kernel",
        (_kind(input.dtype), _kind(input.dtype), _kind(compute), _kind(compute),
         "i64", "i64", "i64", "i64"),
        (*aligned, False, *strides_aligned, False),
        {
            "N": width,
            "COMPUTE": launch.triton_dtype(compute),
            "BLOCK_M": tile.block_m,
            "BLOCK_N": tile.block_n,
        },
        tile.num_warps,
        input.device,
    )  # fmt: skip
    run(columns, parts, *pointers, rows, grad_stride, stride, each)
    return partial


def _sum_weight(partial: Tensor, grad_weight: Tensor, width: int) -> None:
    pointers, aligned = _pointers((partial, grad_weight))
    block_n = 64 if width > 64 else 16
    run = _bound(
        "weight_sum_kernel",
        (_kind(partial.dtype), _kind(grad_weight.dtype), "i64"),
        (*aligned, False),
        {
            "N": width,
            "COMPUTE": launch.triton_dtype(partial.dtype),
            "BLOCK_M": 32,
            "BLOCK_N": block_n,
        },
        4,
        partial.device,
    )
    run(ceil_div(width, block_n), 1, *pointers, partial.shape[0])


def _pointers(tensors: Sequence[Tensor | None]) -> tuple[list[object], tuple[bool, ...]]:
    on_gpu = any(t is not None and t.device.type == "cuda" for t in tensors)
    both = [_pointer(tensor, on_gpu) for tensor in tensors]
    return [pointer for pointer, _ in both], tuple(aligned for _, aligned in both)
