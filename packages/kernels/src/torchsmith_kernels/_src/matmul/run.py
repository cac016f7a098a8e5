"""Choosing and launching the kernels of ``matmul``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchsmith_kernels._src import launch
from torchsmith_kernels._src.matmul.config import Case, Config, table
from torchsmith_kernels._src.sizes import LOW_PRECISION, ceil_div

_KERNELS = "torchsmith_kernels._src.matmul.kernel"
plain_kernel = launch.Kernel(_KERNELS, "plain_kernel")
combine_kernel = launch.Kernel(_KERNELS, "combine_kernel")
gradient_kernel = launch.Kernel(_KERNELS, "gradient_kernel")
persistent_kernel = launch.Kernel("torchsmith_kernels._src.matmul.persistent", "persistent_kernel")

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
    case = case_of(a, b)
    if config is None:
        config = table.choose(case, launch.capability(a.device))
    m, n = case_size = (a.size(-2), b.size(-1))
    shape = case_size if a.dim() == 2 else (a.size(0), m, n)
    out = torch.empty(shape, dtype=a.dtype, device=a.device)
    pre = torch.empty_like(out) if save else None
    slots = [*extras, None, None, None, None][:MOST_EXTRAS]
    operands = (out, pre, bias, residual, *slots, float(scale))
    finish = {
        "ACTIVATION": activation,
        "SCALED": scale != 1,
        "EPILOGUE": epilogue,
        "EXTRAS": len(extras),
    }
    if config.library:
        _combine(_library(a, b).unsqueeze(0), operands, finish, config)
    elif config.persistent:
        _persistent(a, b, operands, finish, config, case)
    elif config.split > 1:
        _combine(_split(a, b, config), operands, finish, config)
    else:
        _plain(a, b, operands, finish, config, 0)
    return out, pre


def _library(a: Tensor, b: Tensor) -> Tensor:
    """cuBLAS's product in float32, not rounded to a smaller type."""
    if a.dtype is torch.float32:
        return torch.matmul(a, b)
    if a.device.type != "cuda" or a.dim() == 3:
        return torch.matmul(a.float(), b.float())
    product: Tensor = torch.mm(a, b, out_dtype=torch.float32)
    return product


def _unit(step_k: int, step_outer: int) -> str | None:
    if step_k == 1:
        return "k"
    return "o" if step_outer == 1 else None


def _plain(
    a: Tensor,
    b: Tensor,
    operands: tuple[Tensor | float | None, ...],
    finish: dict[str, object],
    config: Config,
    chunk: int,
) -> None:
    """The pointer kernel; a ``chunk`` of K per program along the grid's second axis."""
    m, k, n = a.size(-2), a.size(-1), b.size(-1)
    batches = a.size(0) if a.dim() == 3 else 1
    residual = operands[3]
    steps = _batch_strides(residual) if isinstance(residual, Tensor) else (0, 0, 0)
    tiles = ceil_div(m, config.block_m) * ceil_div(n, config.block_n)
    a_batch, a_row, a_k = _batch_strides(a)
    b_batch, b_k, b_column = _batch_strides(b)
    plain_kernel(
        (tiles * batches, ceil_div(k, chunk) if chunk else 1, 1),
        (a, b, *operands, m, n, k, a_batch, a_row, a_k, b_batch, b_k, b_column, *steps, chunk),
        {
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
        config.num_warps,
        config.num_stages,
    )


def _batch_strides(tensor: Tensor) -> tuple[int, int, int]:
    """Strides of batch, row and column."""
    strides = tensor.stride()
    return strides if len(strides) == 3 else (0, *strides)  # type: ignore[return-value]


def _split(a: Tensor, b: Tensor, config: Config) -> Tensor:
    """Partial products ``[splits, B, M, N]`` in float32."""
    k = a.size(-1)
    chunk = ceil_div(ceil_div(k, config.block_k), config.split) * config.block_k
    batches = a.size(0) if a.dim() == 3 else 1
    shape = (ceil_div(k, chunk), batches, a.size(-2), b.size(-1))
    partial = torch.empty(shape, dtype=torch.float32, device=a.device)
    none = (partial, None, None, None, None, None, None, None, 1.0)
    finish: dict[str, object] = {"ACTIVATION": None, "SCALED": False, "EPILOGUE": None, "EXTRAS": 0}
    _plain(a, b, none, finish, config, chunk)
    return partial


def _combine(
    partial: Tensor,
    operands: tuple[Tensor | float | None, ...],
    finish: dict[str, object],
    config: Config,
) -> None:
    """Sums partial products ``[splits, (B,) M, N]`` in order and finishes them."""
    out, residual = operands[0], operands[3]
    assert isinstance(out, Tensor)
    m, n = out.size(-2), out.size(-1)
    batches = out.size(0) if out.dim() == 3 else 1
    steps = _batch_strides(residual) if isinstance(residual, Tensor) else (0, 0, 0)
    block_m, block_n = (8, 256) if n > 64 else (32, 64)
    combine_kernel(
        (ceil_div(m, block_m) * ceil_div(n, block_n) * batches, 1, 1),
        (partial, *operands, m, n, *steps, partial.size(0), batches),
        {**finish, "BLOCK_M": block_m, "BLOCK_N": block_n},
        4,
    )


def _persistent(
    a: Tensor,
    b: Tensor,
    operands: tuple[Tensor | float | None, ...],
    finish: dict[str, object],
    config: Config,
    case: Case,
) -> None:
    """The persistent kernel; ``case.descriptors`` must hold."""
    m, k, n = a.size(0), a.size(1), b.size(1)
    a_by_k, b_by_k = case.layout[0] == "n", case.layout[1] == "t"
    residual = operands[3]
    row = column = 0
    tiles_of_residual = False
    if isinstance(residual, Tensor):
        row, column = residual.stride()
        pitch = _pitch(residual, 1) if residual.dtype == a.dtype else None
        tiles_of_residual = pitch is not None
        row = row if pitch is None else pitch
    tiles = ceil_div(m, config.block_m) * ceil_div(n, config.block_n)
    persistent_kernel(
        (min(tiles, config.waves * launch.sm_count(a.device)), 1, 1),
        (
            a,
            b,
            *operands,
            m,
            n,
            k,
            _pitch(a, 1 if a_by_k else 0),
            _pitch(b, 0 if b_by_k else 1),
            row,
            column,
        ),
        {
            "A_BY_K": a_by_k,
            "B_BY_K": b_by_k,
            **finish,
            "SAVE": operands[1] is not None,
            "RESIDUAL_TILES": tiles_of_residual,
            "BLOCK_M": config.block_m,
            "BLOCK_N": config.block_n,
            "BLOCK_K": config.block_k,
            "GROUP": config.group,
            "PIECES": config.pieces,
            "FLATTEN": config.flatten,
            "SPECIALIZE": config.specialize,
        },
        config.num_warps,
        config.num_stages,
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
