"""Attention as a compiler sees it that found it written out: products with a softmax between."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from torchsmith_kernels._src import launch, store, tables
from torchsmith_kernels._src.dispatch import Op
from torchsmith_kernels._src.flash_attention.call import MAX_HEAD_DIM, Call
from torchsmith_kernels._src.flash_attention.operators import op as flash_op
from torchsmith_kernels._src.sizes import LOW_PRECISION
from torchsmith_kernels._src.template import Template


def _call(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, softcap: float
) -> Call:
    lengths = query.shape[2], key.shape[2]
    nothing = None, None, None, None
    return Call(
        query, key, value, mask, *nothing, *lengths, 0.0, scale, softcap, None, None, False, ""
    )


def _kernel(*args: object) -> Tensor:
    output: Tensor = flash_op(*_call(*args))[0]  # type: ignore[arg-type]
    return output


def _fake(query: Tensor, *_: object) -> Tensor:
    return torch.empty_like(query)


op = Op(
    "attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, float scale, "
    "float softcap) -> Tensor",
    kernel=_kernel,
    fake=_fake,
)


def _matches(call: Mapping[str, object]) -> bool:
    query, key, value = (call.get(name) for name in ("query", "key", "value"))
    mask, softcap = call.get("attn_mask"), call.get("softcap", 0.0)
    for tensor in (query, key, value):
        if not isinstance(tensor, Tensor) or tensor.device.type != "cuda" or tensor.dim() != 4:
            return False
        if not all(type(size) is int and size > 0 for size in tensor.shape):
            return False
    assert isinstance(query, Tensor) and isinstance(key, Tensor) and isinstance(value, Tensor)
    plain = query.dtype in LOW_PRECISION and query.dtype == key.dtype == value.dtype
    fits = key.shape == value.shape and query.shape[1] % key.shape[1] == 0
    hides = mask is None or (isinstance(mask, Tensor) and mask.dtype is not torch.float64)
    small = query.shape[3] <= MAX_HEAD_DIM and query.shape[3] == key.shape[3]
    return plain and fits and hides and small and isinstance(softcap, float) and softcap >= 0


def _case(call: Mapping[str, object]) -> tuple[str, int]:
    """The key of measurements, and how many keys each query meets."""
    query, key = call["query"], call["key"]
    assert isinstance(query, Tensor) and isinstance(key, Tensor)
    kind = "capped" if call.get("softcap") else "plain"
    mask = "free" if call.get("attn_mask") is None else "masked"
    width = 1 << (query.shape[3] - 1).bit_length()
    return f"written out/{width}/{str(query.dtype)[6:]}/{kind}/{mask}", key.shape[2]


def _speedup(call: Mapping[str, object]) -> float | None:
    """Time of the products with a fused softmax over the kernel's, at the most keys that were
    measured and are not more than the call's; queries as many as keys."""
    query = call.get("query")
    if not isinstance(query, Tensor) or query.device.type != "cuda":
        return None
    if not torch.cuda.is_available():
        return None
    name, length = _case(call)
    if 4 * query.shape[2] < length:
        return None  # few queries for many keys: nobody measured
    capability = launch.capability(query.device)
    for table in (
        store.tuned_table("flash_attention", capability),
        tables.shipped("flash_attention", capability),
    ):
        measured = table.get(name, {}).get("speedup_over_products")
        if isinstance(measured, dict):
            known = [size for size in map(int, measured) if size <= length]
            return float(measured[str(max(known))]) if known else None
    return None


attention_template = Template(
    name="attention",
    targets={"attention": 0},
    parameters=("query", "key", "value", "attn_mask", "scale", "softcap"),
    op=op.overload,
    matches=_matches,
    speedup=_speedup,
)
