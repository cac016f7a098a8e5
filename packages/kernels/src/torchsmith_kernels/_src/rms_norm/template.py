"""The RMS norm op as a compiler sees it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from torchsmith_kernels._src.check import FLOATING
from torchsmith_kernels._src.rms_norm.op import op
from torchsmith_kernels._src.row_norm.config import Case, width_class
from torchsmith_kernels._src.store import tuned_table
from torchsmith_kernels._src.template import Template


def _matches(call: Mapping[str, object]) -> bool:
    input, shape = call.get("input"), call.get("normalized_shape")
    weight = call.get("weight")
    if not isinstance(input, torch.Tensor) or not isinstance(shape, list | tuple):
        return False
    # A width that is only known at run time would compile a kernel per value.
    if input.device.type != "cuda" or not all(type(size) is int for size in shape):
        return False
    if input.dtype not in FLOATING or tuple(input.shape[-len(shape) :]) != tuple(shape):
        return False
    return weight is None or (isinstance(weight, torch.Tensor) and weight.dtype in FLOATING)


def _speedup(call: Mapping[str, object]) -> float | None:
    input, shape = call.get("input"), call.get("normalized_shape")
    if not isinstance(input, torch.Tensor) or not isinstance(shape, list | tuple):
        return None
    if input.device.type != "cuda" or not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability(input.device)
    case = Case("forward", width_class(math.prod(shape)), input.dtype)
    entry = tuned_table("rms_norm", 10 * major + minor).get(case.key(), {})
    measured = entry.get("speedup_over_fused")
    return float(measured) if isinstance(measured, int | float) else None


rms_norm_template = Template(
    name="rms_norm",
    targets={"aten.rms_norm.default": 0, "aten._fused_rms_norm.default": 0},
    parameters=("input", "normalized_shape", "weight", "eps"),
    op=op.overload,
    matches=_matches,
    speedup=_speedup,
)
