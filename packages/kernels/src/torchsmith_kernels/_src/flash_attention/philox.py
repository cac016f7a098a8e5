"""The random bits of dropout, in PyTorch exactly as in the kernels."""

from __future__ import annotations

from torch import Tensor

ROUNDS = 7  # the fewest that pass BigCrush (Salmon et al., 2011)
_LOW = 0xFFFFFFFF


def threshold(p: float) -> int:
    """What 31 random bits are compared with: those below are dropped."""
    return min(round(p * 2**31), 2**31 - 1)


def kept(seed: Tensor, plane: Tensor, q_index: Tensor, k_index: Tensor, p: float) -> Tensor:
    """Where dropout keeps, with Philox 4x32-7 on the counter ``(k, q, plane, 0)``.

    Args:
        seed: one int64.
        plane: number of the batch entry and head; broadcasts with the indices.
        q_index: number of the query.
        k_index: number of the key.
        p: probability of dropping.
    """
    zero = 0 * (k_index + q_index + plane)
    c0, c1, c2, c3 = zero + k_index, zero + q_index, zero + plane, zero
    key0, key1 = seed & _LOW, (seed >> 32) & _LOW
    for _ in range(ROUNDS):
        # Products wrap at 64 bits, which leaves both halves right.
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c2 = ((b >> 32) & _LOW) ^ c1 ^ key0, ((a >> 32) & _LOW) ^ c3 ^ key1
        c1, c3 = b & _LOW, a & _LOW
        key0, key1 = (key0 + 0x9E3779B9) & _LOW, (key1 + 0xBB67AE85) & _LOW
    keep: Tensor = (c0 >> 1) >= threshold(p)
    return keep
