"""Choosing and launching the kernels of ``matmul``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from torchsmith_kernels._src import launch, tables
from torchsmith_kernels._src.matmul.config import Case, Config, table
from torchsmith_kernels._src.sizes import LOW_PRECISION, ceil_div

_KERNELS = "torchsmith_kernels._src.matmul.kernel"
plain_kernel = launch.Kernel(_KERNELS, "plain_kernel")
combine_kernel = launch.Kernel(_KERNELS, "combine_kernel")
gradient_kernel = launch.Kernel(_KERNELS, "gradient_kernel")
persistent_kernel = launch.Kernel("torchsmith_kernels._src.matmul.persistent", "persistent_kernel")

#: Activations for which aten calls cuBLASLt's own epilogue, computed before rounding.
FUSED_BY_LIBRARY = ("gelu_tanh",)

#: Pointers that a caller's epilogue may take.
MOST_EXTRAS = 4


def _pitch(tensor: Tensor, inner: int, addressed: bool = True) -> int | None:
    """Elements between rows along ``inner`` where a tensor descriptor takes them.

    Fake tensors have no address; ``addressed=False`` takes it for aligned.
    """
    pitch = tensor.stride(1 - inner)
    if tensor.size(1 - inner) == 1:
        pitch = max(pitch, tensor.size(inner))
        pitch += -pitch % 8
    if tensor.stride(inner) != 1 and tensor.size(inner) != 1:
        return None
    if pitch < tensor.size(inner) or pitch * tensor.itemsize % 16:
        return None
    return None if addressed and tensor.data_ptr() % 16 else pitch


def by_k(a: Tensor, b: Tensor) -> tuple[bool, bool]:
    """Whether K is the contiguous dimension of each operand (else the other one should be)."""
    a_by_k = a.stride(-1) == 1 or a.stride(-2) != 1
    b_by_k = b.stride(-2) == 1 and b.stride(-1) != 1
    return a_by_k, b_by_k


def case_of(a: Tensor, b: Tensor, addressed: bool = True) -> Case:
    """The table's case for a product; ``addressed=False`` for fake tensors."""
    a_by_k, b_by_k = by_k(a, b)
    batched = a.dim() == 3
    n = b.size(-1)
    descriptors = (
        not batched
        and a.dtype in LOW_PRECISION
        and launch.capability(a.device) >= 90
        and n % 8 == 0
        and _pitch(a, 1 if a_by_k else 0, addressed) is not None
        and _pitch(b, 0 if b_by_k else 1, addressed) is not None
    )
    layout = ("n" if a_by_k else "t") + ("t" if b_by_k else "n")
    return Case.of(a.size(-2), n, a.size(-1), a.dtype, layout, descriptors, batched)


def precision(dtype: torch.dtype) -> str:
    """How float32 operands are multiplied, as eager does: exactly unless TF32 is allowed."""
    if dtype is torch.float32 and torch.backends.cuda.matmul.allow_tf32:
        return "tf32"
    return "ieee"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a call needs but its tensors; all calls with like tensors share one.

    Attributes:
        shape: of the result.
        config: the kernel and its tiles.
        save: whether the activation's argument is returned as well.
        device: where all tensors are.
        grid: of the main kernel.
        sizes: its arguments after the tensors and the scale.
        constants: its compile-time arguments.
        partial: shape of the partial sums, where there are any.
        fused_by_library: whether cuBLASLt computes all of it.
        combine_grid: grid of the kernel that adds them.
        combine_sizes: as ``sizes``.
        combine_constants: as ``constants``.
    """

    shape: tuple[int, ...]
    config: Config
    save: bool
    device: torch.device
    grid: tuple[int, int, int] = (0, 1, 1)
    sizes: tuple[int, ...] = ()
    constants: dict[str, object] = field(default_factory=dict)
    partial: tuple[int, ...] = ()
    fused_by_library: bool = False
    combine_grid: tuple[int, int, int] = (0, 1, 1)
    combine_sizes: tuple[int, ...] = ()
    combine_constants: dict[str, object] = field(default_factory=dict)


#: Plans of calls seen before, by ``key``.
plans: tables.Remembered[Plan] = tables.Remembered()


def key(
    input: Tensor,
    other: Tensor,
    bias: Tensor | None,
    activation: str | None,
    residual: Tensor | None,
    scale: float,
    save: bool,
) -> tuple[object, ...]:
    """All that a call's plan and the checks of its arguments depend on."""
    return (
        input.shape,
        input.stride(),
        other.shape,
        other.stride(),
        input.dtype,
        other.dtype,
        input.device,
        other.device,
        (input.data_ptr() | other.data_ptr()) & 15,
        bias if bias is None else (bias.shape, bias.stride(), bias.dtype, bias.device),
        residual
        if residual is None
        else (
            residual.shape,
            residual.stride(),
            residual.dtype,
            residual.device,
            residual.data_ptr() & 15,
        ),
        activation,
        scale != 1,
        save,
        precision(input.dtype),
    )


def forward(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    residual: Tensor | None = None,
    scale: float = 1.0,
    save: bool = False,
    config: Config | None = None,
    epilogue: object = None,
    extras: Sequence[Tensor] = (),
) -> tuple[Tensor, Tensor | None]:
    """``activation(scale * (a @ b) + bias)``, then ``epilogue``, then ``+ residual``.

    Args:
        a: ``[M, K]`` or ``[B, M, K]``, any strides; no dimension is 0.
        b: ``[K, N]`` or ``[B, K, N]``, any strides.
        bias: ``[N]``, contiguous.
        activation: one of ``reference.ACTIVATIONS``.
        residual: of the result's shape, any strides.
        scale: factor of the product.
        save: whether to return what the activation is applied to as well.
        config: overrides the table, for tuning.
        epilogue: a ``@triton.jit`` function ``(value, row, column, keep, *extras) -> value``.
        extras: what ``epilogue`` takes pointers of.

    Returns:
        The result, contiguous, and the saved tensor or None.
    """
    made = plan(a, b, activation, residual, scale, save, None, config, epilogue, len(extras))
    return execute(made, a, b, bias, residual, scale, extras)


def fused_by_library(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    activation: str | None,
    residual: Tensor | None,
    save: bool,
) -> bool:
    """Whether cuBLASLt has this epilogue: bias and tanh GELU, measured to be the fastest there."""
    return (
        activation in FUSED_BY_LIBRARY
        and a.device.type == "cuda"
        and a.dtype in LOW_PRECISION
        and a.dim() == 2
        and bias is not None
        and bias.dtype == a.dtype
        and residual is None
        and not save
        and min(a.size(1), b.size(1)) > 1
    )


def plan(
    a: Tensor,
    b: Tensor,
    activation: str | None,
    residual: Tensor | None,
    scale: float,
    save: bool,
    shape: tuple[int, ...] | None = None,
    config: Config | None = None,
    epilogue: object = None,
    extras: int = 0,
) -> Plan:
    """The plan of a call as of ``forward``; ``shape`` is the result's with all its dimensions."""
    case = case_of(a, b)
    if config is None:
        config = table.choose(case, launch.capability(a.device))
    m, k, n = a.size(-2), a.size(-1), b.size(-1)
    batches = a.size(0) if a.dim() == 3 else 1
    if shape is None:
        shape = (m, n) if a.dim() == 2 else (batches, m, n)
    finish: dict[str, object] = {
        "ACTIVATION": activation,
        "SCALED": scale != 1,
        "EPILOGUE": epilogue,
        "EXTRAS": extras,
    }
    start = Plan(shape, config, save, a.device)
    if config.library:
        return _with_sums(start, (1, batches, m, n), residual, finish)
    if config.persistent:
        return _persistent(start, a, b, residual, finish, case)
    if config.split > 1:
        chunk = ceil_div(ceil_div(k, config.block_k), config.split) * config.block_k
        sums = (ceil_div(k, chunk), batches, m, n)
        nothing = dict.fromkeys(finish, None) | {"SCALED": False, "EXTRAS": 0}
        return _with_sums(_plain(start, a, b, None, nothing, chunk), sums, residual, finish)
    return _plain(start, a, b, residual, finish, 0)


def execute(
    plan: Plan,
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    scale: float,
    extras: Sequence[Tensor] = (),
) -> tuple[Tensor, Tensor | None]:
    """Runs a plan on tensors like those it was made for."""
    if plan.fused_by_library and bias is not None:
        rows = a if a.dim() == 2 else a.reshape(-1, a.size(-1))
        found = torch._addmm_activation(bias, rows, b, alpha=scale, use_gelu=True)
        return found.view(plan.shape), None
    config = plan.config
    out = torch.empty(plan.shape, dtype=a.dtype, device=plan.device)
    pre = torch.empty(plan.shape, dtype=a.dtype, device=plan.device) if plan.save else None
    slots = [*extras, None, None, None, None][:MOST_EXTRAS]
    finish = (out, pre, bias, residual, *slots, float(scale))
    kernel = persistent_kernel if config.persistent else plain_kernel
    sums: Tensor | None = None
    if config.library:
        sums = _library(a, b)
    elif plan.partial:
        sums = torch.empty(plan.partial, dtype=torch.float32, device=plan.device)
        nothing = (sums, None, None, None, None, None, None, None, 1.0)
        args = (a, b, *nothing, *plan.sizes)
        kernel(plan.grid, args, plan.constants, config.num_warps, config.num_stages)
    else:
        args = (a, b, *finish, *plan.sizes)
        kernel(plan.grid, args, plan.constants, config.num_warps, config.num_stages)
    if sums is not None:
        args = (sums, *finish, *plan.combine_sizes)
        combine_kernel(plan.combine_grid, args, plan.combine_constants, 4)
    return out, pre


def _library(a: Tensor, b: Tensor) -> Tensor:
    """cuBLAS's product in float32, not rounded to a smaller type."""
    if a.dtype is torch.float32:
        return torch.matmul(a, b).contiguous()
    if a.device.type != "cuda" or a.dim() == 3:
        return torch.matmul(a.float(), b.float()).contiguous()
    product: Tensor = torch.mm(a, b, out_dtype=torch.float32)
    return product


def _unit(step_k: int, step_outer: int) -> str | None:
    if step_k == 1:
        return "k"
    return "o" if step_outer == 1 else None


def _strides(tensor: Tensor | None) -> tuple[int, ...]:
    """Strides of batch, row and column."""
    if tensor is None:
        return (0, 0, 0)
    strides = tensor.stride()
    return strides if len(strides) == 3 else (0, *strides)


def _plain(
    start: Plan,
    a: Tensor,
    b: Tensor,
    residual: Tensor | None,
    finish: dict[str, object],
    chunk: int,
) -> Plan:
    """The pointer kernel; a ``chunk`` of K per program along the grid's second axis."""
    config = start.config
    m, k, n = a.size(-2), a.size(-1), b.size(-1)
    batches = a.size(0) if a.dim() == 3 else 1
    tiles = ceil_div(m, config.block_m) * ceil_div(n, config.block_n)
    _, a_row, a_k = a_steps = _strides(a)
    _, b_k, b_column = b_steps = _strides(b)
    return replace(
        start,
        grid=(tiles * batches, ceil_div(k, chunk) if chunk else 1, 1),
        sizes=(m, n, k, *a_steps, *b_steps, *_strides(residual), chunk),
        constants={
            "A_UNIT": _unit(a_k, a_row),
            "B_UNIT": _unit(b_k, b_column),
            "EVEN_K": k % config.block_k == 0 and chunk % config.block_k == 0,
            "PRECISION": precision(a.dtype),
            "SPLIT": chunk > 0,
            **finish,
            "BLOCK_M": config.block_m,
            "BLOCK_N": config.block_n,
            "BLOCK_K": config.block_k,
            "GROUP": config.group,
        },
    )


def _with_sums(
    start: Plan,
    partial: tuple[int, int, int, int],
    residual: Tensor | None,
    finish: dict[str, object],
) -> Plan:
    """The kernel that adds ``[splits, B, M, N]`` in order and finishes the sums."""
    splits, batches, m, n = partial
    block_m, block_n = (8, 256) if n > 64 else (32, 64)
    return replace(
        start,
        partial=partial,
        combine_grid=(ceil_div(m, block_m) * ceil_div(n, block_n) * batches, 1, 1),
        combine_sizes=(m, n, *_strides(residual), splits, batches),
        combine_constants={**finish, "BLOCK_M": block_m, "BLOCK_N": block_n},
    )


def _persistent(
    start: Plan,
    a: Tensor,
    b: Tensor,
    residual: Tensor | None,
    finish: dict[str, object],
    case: Case,
) -> Plan:
    """The persistent kernel; ``case.descriptors`` must hold."""
    config = start.config
    m, k, n = a.size(0), a.size(1), b.size(1)
    a_by_k, b_by_k = case.layout[0] == "n", case.layout[1] == "t"
    a_pitch, b_pitch = _pitch(a, 1 if a_by_k else 0), _pitch(b, 0 if b_by_k else 1)
    assert a_pitch is not None and b_pitch is not None
    _, row, column = _strides(residual)
    pitch = None
    if residual is not None and residual.dtype == a.dtype:
        pitch = _pitch(residual, 1)
        row = row if pitch is None else pitch
    tiles = ceil_div(m, config.block_m) * ceil_div(n, config.block_n)
    return replace(
        start,
        grid=(min(tiles, config.waves * launch.sm_count(a.device)), 1, 1),
        sizes=(m, n, k, a_pitch, b_pitch, row, column),
        constants={
            "A_BY_K": a_by_k,
            "B_BY_K": b_by_k,
            **finish,
            "SAVE": start.save,
            "RESIDUAL_TILES": pitch is not None,
            "BLOCK_M": config.block_m,
            "BLOCK_N": config.block_n,
            "BLOCK_K": config.block_k,
            "GROUP": config.group,
            "PIECES": config.pieces,
            "FLATTEN": config.flatten,
            "SPECIALIZE": config.specialize,
        },
    )


def activation_gradient(grad: Tensor, pre: Tensor, activation: str) -> Tensor:
    """``grad * activation'(pre)``, contiguous."""
    grad, pre = grad.contiguous(), pre.contiguous()
    out = torch.empty_like(pre)
    count = pre.numel()
    gradient_kernel(
        (ceil_div(count, 2048), 1, 1),
        (grad, pre, out, count),
        {"ACTIVATION": activation, "BLOCK": 2048},
        8,
    )
    return out
