"""Operators over signed zeros, infinities, NaN, denormals and extremes, to compare with eager."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
ALL = (*FLOATS, torch.int64, torch.int32, torch.uint8)

_BY_NAME = (
    "exp exp2 expm1 log log2 log1p log10 sqrt rsqrt sin cos tanh erf sigmoid reciprocal neg abs "
    "square sign floor ceil trunc round frac isnan isinf isfinite cosh nan_to_num"
)
UNARY = {name: getattr(torch, name) for name in _BY_NAME.split()}
UNARY |= {
    name: getattr(F, name)
    for name in "relu relu6 silu hardtanh hardswish leaky_relu elu softsign".split()
}
UNARY |= {
    "clamp": lambda x: x.clamp(0, 6),
    "clamp_min_negative_zero": lambda x: x.clamp(min=-0.0),
    "clamp_max_negative_zero": lambda x: x.clamp(max=-0.0),
    "add_zero": lambda x: x + 0.0,
    "subtract_zero": lambda x: x - 0.0,
    "zero_minus": lambda x: 0.0 - x,
    "times_zero": lambda x: x * 0.0,
    "half_power": lambda x: x**0.5,
    "remainder": lambda x: x % 3,
    "fmod": lambda x: torch.fmod(x, -2),
    "floor_divide": lambda x: x // -2,
    "threshold": lambda x: F.threshold(x, 0.0, -0.0),
    "copysign": lambda x: torch.copysign(x, -0.0),
    "fill": lambda x: x.masked_fill(x > 1, -0.0),
}
BINARY = {
    name: getattr(torch, name) for name in "add sub mul div maximum minimum eq lt ge where".split()
}
BINARY["where"] = lambda a, b: torch.where(a > b, a, b)
BINARY["trunc_divide"] = lambda a, b: torch.div(a, b, rounding_mode="trunc")
BINARY["floor_divide"] = lambda a, b: torch.div(a, b, rounding_mode="floor")
REDUCE = {
    "sum": lambda x: x.sum(-1),
    "mean": lambda x: x.mean(-1),
    "prod": lambda x: x.prod(-1),
    "sum_rows": lambda x: x.sum(0),
    "sum_all": lambda x: x.sum(),
    "norm": lambda x: torch.linalg.vector_norm(x, 1, -1),
}
_TOLERANCE = {
    torch.float32: 3e-6,
    torch.float64: 1e-11,
    torch.bfloat16: 1e-2,
    torch.float16: 2e-3,
}


def specials(dtype: torch.dtype, denormals: bool = True) -> torch.Tensor:
    """Each special value twice, so that vector lanes and what is left over both see it."""
    if dtype.is_floating_point:
        limits = torch.finfo(dtype)
        tiny = limits.smallest_normal / (4 if denormals else 1)
        signed = [0.0, 1.0, math.inf, tiny, 0.5, 1.5, 2.5, 3.0, 7.0, 0.3, 1e-3, 20.5]
        values = [*signed, *(-v for v in signed), math.nan]
        return torch.tensor(values * 2, dtype=torch.float64).to(dtype)
    limits = torch.iinfo(dtype)
    return torch.tensor([0, 1, 2, 3, 7, limits.max, limits.min, 5, 6] * 2, dtype=dtype)


def programs(dtype: torch.dtype, denormals: bool = True):
    """Label, functions by name, and inputs."""
    x = specials(dtype, denormals)
    half = x[: len(x) // 2]
    a, b = torch.meshgrid(half, half, indexing="ij")
    zeros = torch.tensor([[0.0, 0.0], [-0.0, -0.0], [-0.0, 0.0], [math.nan, 1.0], [-0.0, 1.0]])
    rows = zeros.to(dtype) if dtype.is_floating_point else x[:10].reshape(5, 2)
    yield "unary", _working(UNARY, x), (x,)
    yield "binary", _working(BINARY, a, b), (a.contiguous(), b.contiguous())
    yield "reduce", _working(REDUCE, rows), (rows,)
    yield "reduce ones", _working(REDUCE, rows[:, :1]), (rows[:, :1].contiguous(),)
    yield "reduce full tiles", _working(REDUCE, rows), (rows.repeat(1, 32),)


def _working(table, *args):
    """What eager does for this dtype."""
    found = {}
    for name, function in table.items():
        try:
            function(*args)
        except RuntimeError:
            continue
        found[name] = function
    return found


def differences(want: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    """Positions at which values are not close, or signs differ (those of NaN do not count)."""
    assert want.dtype == got.dtype and want.shape == got.shape
    if not want.dtype.is_floating_point:
        return (want != got).nonzero()
    nan = want.isnan() & got.isnan()
    slack = (
        _TOLERANCE[want.dtype] * want.double().abs() + 2 * torch.finfo(want.dtype).smallest_normal
    )
    close = (want == got) | nan | ((want.double() - got.double()).abs() <= slack)
    close &= want.isinf() == got.isinf()
    return (~close | ((want.signbit() != got.signbit()) & ~nan)).nonzero()
