"""The arguments of one call of the operator, and the sizes that follow from them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchsmith_kernels._src.flash_attention import score_mod as mods
from torchsmith_kernels._src.flash_attention.score_mod import ScoreMod

#: The operators' arguments, in the order of ``Call``.
SCHEMA = (
    "Tensor query, Tensor key, Tensor value, Tensor? attn_mask, Tensor? alibi_slopes, "
    "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? dropout_seed, SymInt max_seqlen_q, "
    "SymInt max_seqlen_k, float dropout_p, float scale, float softcap, SymInt? left, "
    "SymInt? right, bool bottom_right, str score_mod"
)
MAX_HEAD_DIM = 256
#: Elements between rows; a tile has up to 128 of them.
MAX_ROW_STRIDE = 2**24


class Call(NamedTuple):
    """Arguments of the operators.

    Attributes:
        query: ``[batch, heads, q, dim]``, or packed ``[total_q, heads, dim]``.
        key: ``[batch, kv_heads, k, dim]``, or packed ``[total_k, kv_heads, dim]``.
        value: as ``key``.
        attn_mask: boolean or to be added; expands to ``[batch, heads, q, k]``.
        alibi_slopes: contiguous float32 ``[heads]`` or ``[batch, heads]``.
        cu_seqlens_q: int32 ``[batch + 1]`` of a packed batch.
        cu_seqlens_k: as ``cu_seqlens_q``.
        dropout_seed: one int64.
        max_seqlen_q: queries of the longest sequence.
        max_seqlen_k: keys of the longest sequence.
        dropout_p: probability of dropping.
        scale: factor of the scores.
        softcap: limit of the scores, 0 for none.
        left: how many keys before its own place a query sees; None for all.
        right: how many keys after its own place a query sees; None for all.
        bottom_right: whether the last query stands at the last key, instead of first at first.
        score_mod: name of a ``ScoreMod``, or empty.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None
    alibi_slopes: Tensor | None
    cu_seqlens_q: Tensor | None
    cu_seqlens_k: Tensor | None
    dropout_seed: Tensor | None
    max_seqlen_q: int
    max_seqlen_k: int
    dropout_p: float
    scale: float
    softcap: float
    left: int | None
    right: int | None
    bottom_right: bool
    score_mod: str

    @property
    def packed(self) -> bool:
        """Whether sequences of different lengths lie one after the other."""
        return self.cu_seqlens_q is not None

    @property
    def batch(self) -> int:
        """Number of sequences."""
        if self.cu_seqlens_q is not None:
            return self.cu_seqlens_q.shape[0] - 1
        return self.query.shape[0]

    @property
    def heads(self) -> int:
        """Heads of ``query``."""
        return self.query.shape[1]

    @property
    def kv_heads(self) -> int:
        """Heads of ``key`` and ``value``."""
        return self.key.shape[1]

    @property
    def mod(self) -> ScoreMod | None:
        """The change of the scores, where there is one."""
        return mods.find(self.score_mod)

    @property
    def keep_scale(self) -> float:
        """The factor of what dropout keeps."""
        return 1 / (1 - self.dropout_p) if self.dropout_p < 1 else 0.0

    def bias(self) -> Tensor | None:
        """``attn_mask`` with all four dimensions."""
        if self.attn_mask is None:
            return None
        return self.attn_mask.expand(self.batch, self.heads, self.max_seqlen_q, self.max_seqlen_k)

    def lse_shape(self) -> tuple[int, ...]:
        """``[batch, heads, q]``, or packed ``[heads, total_q]``."""
        if self.packed:
            return (self.query.shape[1], self.query.shape[0])
        return (self.query.shape[0], self.query.shape[1], self.query.shape[2])


def regular(tensor: Tensor) -> bool:
    """Whether kernels can read ``tensor``, and write what ``torch.empty_like`` makes of it.

    Elements of the last dimension lie side by side, and those of no other, else ``empty_like``
    might swap the two. A tile's offsets fit 32 bits.
    """
    *others, step = zip(tensor.shape, tensor.stride(), strict=True)
    row = others[0 if tensor.dim() == 3 else 2]
    if row[0] > 1 and row[1] >= MAX_ROW_STRIDE:
        return False
    if step[0] == 1:
        return True
    return step[1] == 1 and all(size == 1 or stride != 1 for size, stride in others)


def rows(tensor: Tensor) -> Tensor:
    """``tensor`` as kernels can read it; copied only if need be."""
    return tensor if regular(tensor) else tensor.contiguous()


def strides(tensor: Tensor) -> tuple[int, int, int]:
    """Elements between sequences (0 in a packed batch), heads, and rows."""
    if tensor.dim() == 3:
        return 0, tensor.stride(1), tensor.stride(0)
    return tensor.stride(0), tensor.stride(1), tensor.stride(2)


def precision(dtype: torch.dtype) -> str:
    """How float32 products are made, as torch's own matrix products: ``ieee`` or ``tf32``."""
    if dtype is torch.float32 and torch.get_float32_matmul_precision() != "highest":
        return "tf32"
    return "ieee"
