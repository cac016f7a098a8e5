"""Functions that generated Triton kernels call, beyond what ``triton.language`` offers.

Elementary functions come from libdevice, the library that CUDA's own math functions (and so eager
PyTorch's kernels) are built from; that keeps accuracy and the treatment of NaN, infinities and
subnormals the same as in aten. Triton's interpreter cannot call libdevice, so there the same names
are NumPy functions, which lets every generated kernel run on a machine without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

Function = TypeVar("Function", bound=Callable[..., object])
# Typed here, since triton's own decorator has no types that survive without triton installed.
jit: Callable[[Function], Function] = triton.jit

INTERPRETED = triton.knobs.runtime.interpret

if INTERPRETED:
    from torchsmith_fx_backend._src.codegen.triton import interpreted as _fn
else:
    _fn = libdevice

_RSQRT = tl.constexpr("rsqrt.approx.f32 $0, $1;")
_EXP = tl.constexpr("""{
    .reg .f32 n, r;
    fma.rn.f32 n, $1, 0f3BBB989D, 0f3F000000;  // x / (252 ln 2) + 1/2, between 0 and 1
    cvt.sat.f32.f32 n, n;
    fma.rm.f32 n, n, 0f437C0000, 0f4B400001;  // its low bits are the exponent of two, biased
    add.f32 r, n, 0fCB40007F;
    neg.f32 r, r;
    fma.rn.f32 r, $1, 0f3FB8AA3B, r;  // x / ln 2 less that exponent, in two steps
    fma.rn.f32 r, $1, 0f32A57060, r;
    ex2.approx.ftz.f32 r, r;
    shl.b32 n, n, 23;
    mul.f32 $0, r, n;
}""")
exp2 = _fn.exp2
expm1 = _fn.expm1
log = _fn.log
log2 = _fn.log2
log1p = _fn.log1p
sin = _fn.sin
cos = _fn.cos
tanh = _fn.tanh
erf = _fn.erf
power = _fn.pow
fmod = _fn.fmod
trunc = _fn.trunc
nearbyint = _fn.rint
copysign = _fn.copysign
tan, asin, acos, atan, atan2 = (
    libdevice.tan,
    libdevice.asin,
    libdevice.acos,
    libdevice.atan,
    libdevice.atan2,
)
sinh, asinh, acosh, atanh = libdevice.sinh, libdevice.asinh, libdevice.acosh, libdevice.atanh
erfc, lgamma = libdevice.erfc, libdevice.lgamma
if INTERPRETED:
    exp, rsqrt = _fn.exp, _fn.rsqrt
else:
    # The two that most kernels need only one of, as the very instructions that libdevice has for
    # them: to link libdevice takes triton 35 ms, more than half of a small kernel's time.

    @jit
    def exp(x: tl.tensor) -> tl.tensor:
        """``e ** x``."""
        if x.dtype == tl.float32:
            return tl.inline_asm_elementwise(_EXP, "=f,f", [x], tl.float32, True, 1)
        else:
            return libdevice.exp(x)

    @jit
    def rsqrt(x: tl.tensor) -> tl.tensor:
        """``1 / sqrt(x)``."""
        if x.dtype == tl.float32:
            return tl.inline_asm_elementwise(_RSQRT, "=f,f", [x], tl.float32, True, 1)
        else:
            return libdevice.rsqrt(x)


@jit
def sigmoid(x: tl.tensor) -> tl.tensor:
    """``1 / (1 + exp(-x))``; 0 at minus infinity, 1 at infinity."""
    one = tl.full([], 1.0, x.dtype)
    return divide(one, one + exp(-x))


@jit
def divide(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """IEEE division, as aten; Triton's own ``/`` rounds fp32 less exactly."""
    if a.dtype == tl.float32:
        return tl.div_rn(a, b)
    else:
        return a / b


@jit
def square_root(x: tl.tensor) -> tl.tensor:
    """IEEE square root."""
    if x.dtype == tl.float32:
        return tl.sqrt_rn(x)
    else:
        return tl.sqrt(x)


@jit
def maximum(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """Larger value, the second of equals; NaN wins over everything."""
    if a.dtype.is_floating():
        return tl.where(a > b, a, tl.where(a != a, a, b))
    else:
        return tl.maximum(a, b)


@jit
def minimum(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """Smaller value, the second of equals; NaN wins over everything."""
    if a.dtype.is_floating():
        return tl.where(a < b, a, tl.where(a != a, a, b))
    else:
        return tl.minimum(a, b)


@jit
def multiply(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """Combine function of a product reduction."""
    return a * b


@jit
def reduce_max(x: tl.tensor) -> tl.tensor:
    """Maximum over axis 1, kept as extent 1; propagates NaN."""
    return tl.reduce(x, 1, maximum)[:, None]


@jit
def reduce_min(x: tl.tensor) -> tl.tensor:
    """Minimum over axis 1, kept as extent 1; propagates NaN."""
    return tl.reduce(x, 1, minimum)[:, None]


@jit
def reduce_sum(x: tl.tensor) -> tl.tensor:
    """Sum over axis 1, kept as extent 1; it starts from 0.0, so that it is never -0.0."""
    return tl.sum(x, 1)[:, None] + tl.zeros([], x.dtype)


@jit
def reduce_prod(x: tl.tensor) -> tl.tensor:
    """Product over axis 1, kept as extent 1."""
    return tl.reduce(x, 1, multiply)[:, None]


@jit
def reduce_any(x: tl.tensor) -> tl.tensor:
    """Logical or over axis 1, kept as extent 1."""
    return (tl.max(x.to(tl.int32), 1) > 0)[:, None]


@jit
def reduce_all(x: tl.tensor) -> tl.tensor:
    """Logical and over axis 1, kept as extent 1."""
    return (tl.min(x.to(tl.int32), 1) > 0)[:, None]


@jit
def argmax_index(value: tl.tensor, position: tl.tensor, best: tl.tensor) -> tl.tensor:
    """Smallest position whose value equals ``best`` (or is NaN when ``best`` is), over axis 1."""
    hit = (value == best) | ((value != value) & (best != best))
    far = tl.full([], 9223372036854775807, tl.int64)
    return tl.min(tl.where(hit, position, far), 1)[:, None]


@jit
def greater(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """``a`` strictly beats ``b`` in an argmax: larger, or NaN against a number."""
    return (a > b) | ((a != a) & (b == b))


@jit
def less(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """``a`` strictly beats ``b`` in an argmin: smaller, or NaN against a number."""
    return (a < b) | ((a != a) & (b == b))


@jit
def floor_divide_int(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """Integer division that rounds to minus infinity."""
    quotient = a // b
    remainder = a - quotient * b
    return quotient - ((remainder != 0) & ((remainder < 0) != (b < 0))).to(quotient.dtype)


@jit
def modulo_int(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """Integer remainder with the divisor's sign."""
    remainder = a % b
    wrong = (remainder != 0) & ((remainder < 0) != (b < 0))
    return tl.where(wrong, remainder + b, remainder)


@jit
def modulo_float(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """Float remainder with the divisor's sign, as ``torch.remainder``."""
    remainder = fmod(a, b)
    wrong = (remainder != 0) & ((remainder < 0) != (b < 0))
    return tl.where(wrong, remainder + b, remainder)


@jit
def floor_divide_float(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """Float division rounded to minus infinity by the algorithm of CPython and aten."""
    remainder = fmod(a, b)
    quotient = divide(a - remainder, b)
    wrong = (remainder != 0) & ((b < 0) != (remainder < 0))
    quotient = tl.where(wrong, quotient - 1, quotient)
    floored = tl.floor(quotient)
    floored = tl.where(quotient - floored > 0.5, floored + 1, floored)
    plain = divide(a, b)
    floored = tl.where(quotient == 0, copysign(quotient, plain), floored)
    return tl.where(b == 0, plain, floored)


@jit
def power_int(base: tl.tensor, exponent: tl.tensor) -> tl.tensor:
    """Integer power by squaring, wrapping; a negative exponent gives 1, -1 or 0 as in aten."""
    result = base * 0 + 1
    factor = base
    left = exponent
    if base.dtype.is_int_signed():
        left = tl.where(exponent < 0, 0, exponent)
    for _ in range(63):
        result = tl.where((left & 1) != 0, result * factor, result)
        factor = factor * factor
        left = left >> 1
    if base.dtype.is_int_signed():
        odd = (exponent & 1) != 0
        unit = tl.where(base == -1, tl.where(odd, -1, 1), tl.where(base == 1, 1, 0))
        result = tl.where(exponent < 0, unit.to(base.dtype), result)
    return result


@jit
def shift_left(a: tl.tensor, b: tl.tensor, BITS: tl.constexpr) -> tl.tensor:
    """``a << b``; 0 where the shift is negative or at least the width, as aten."""
    ok = (b >= 0) & (b < BITS)
    safe = tl.where(ok, b, 0)
    return tl.where(ok, a << safe, 0).to(a.dtype)


@jit
def shift_right(a: tl.tensor, b: tl.tensor, BITS: tl.constexpr) -> tl.tensor:
    """``a >> b`` with the sign kept; an out-of-range shift leaves only the sign, as aten."""
    ok = (b >= 0) & (b < BITS)
    safe = tl.where(ok, b, BITS - 1).to(a.dtype)
    shifted = (a >> safe).to(a.dtype)
    if a.dtype.is_int_unsigned():
        shifted = tl.where(ok, shifted, 0).to(a.dtype)
    return shifted


@jit
def online_update(
    running: tl.tensor, total: tl.tensor, value: tl.tensor, keep: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """One step of a one-pass softmax: folds ``value`` into (running maximum, scaled sum).

    Lanes where ``keep`` is false leave the state unchanged. Equal operands are compared instead of
    subtracted, since infinity minus infinity is NaN; ``online_sum`` restores aten's NaN at the end.
    """
    value = tl.where(keep, value, running)
    new = maximum(running, value)
    old_scale = tl.where(running == new, 1.0, exp(running - new))
    term = tl.where(value == new, 1.0, exp(value - new))
    return new, total * old_scale + tl.where(keep, term, 0.0)


@jit
def online_sum(running: tl.tensor, total: tl.tensor, best: tl.tensor) -> tl.tensor:
    """Sum of ``exp(value - best)`` over axis 1 from per-lane states; NaN unless best is finite."""
    scale = tl.where(running == best, 1.0, exp(running - best))
    result = tl.sum(total * scale, 1)[:, None]
    return tl.where(tl.abs(best) < float("inf"), result, float("nan"))


# Scans take what is carried and a block, and give what is carried on and the scanned block. What
# is carried on is the block's last element, which a sum of one-hot products picks exactly.


@jit
def _last(x: tl.tensor) -> tl.tensor:
    lanes = tl.arange(0, x.shape[1])[None, :]
    here = lanes == x.shape[1] - 1
    return tl.sum(tl.where(here, x, tl.zeros_like(x)), axis=1, keep_dims=True).to(x.dtype)


@jit
def _plus(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    return a + b


@jit
def scan_sum(carried: tl.tensor, x: tl.tensor) -> tl.tensor:
    y = carried + tl.associative_scan(x, 1, _plus)
    return _last(y), y


@jit
def scan_prod(carried: tl.tensor, x: tl.tensor) -> tl.tensor:
    y = carried * tl.associative_scan(x, 1, multiply)
    return _last(y), y


@jit
def scan_max(carried: tl.tensor, x: tl.tensor) -> tl.tensor:
    y = maximum(carried, tl.associative_scan(x, 1, maximum))
    return _last(y), y


@jit
def scan_min(carried: tl.tensor, x: tl.tensor) -> tl.tensor:
    y = minimum(carried, tl.associative_scan(x, 1, minimum))
    return _last(y), y


@jit
def _log_add(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    low, high = minimum(a, b), maximum(a, b)
    same = (low == high) & (tl.abs(low) == float("inf"))
    return tl.where(same, low, high + log1p(exp(low - high)))


@jit
def scan_logsumexp(carried: tl.tensor, x: tl.tensor) -> tl.tensor:
    y = _log_add(carried, tl.associative_scan(x, 1, _log_add))
    return _last(y), y


@jit
def _later_max(a: tl.tensor, i: tl.tensor, b: tl.tensor, j: tl.tensor) -> tl.tensor:
    # ``b`` comes later; -1 stands for a place behind the row.
    takes = ((b >= a) | (b != b)) & (j >= 0)
    return tl.where(takes, b, a), tl.where(takes, j, i)


@jit
def _later_min(a: tl.tensor, i: tl.tensor, b: tl.tensor, j: tl.tensor) -> tl.tensor:
    takes = ((b <= a) | (b != b)) & (j >= 0)
    return tl.where(takes, b, a), tl.where(takes, j, i)


@jit
def scan_argmax(carried: tl.tensor, place: tl.tensor, x: tl.tensor, where: tl.tensor) -> tl.tensor:
    best, position = tl.associative_scan((x, where), 1, _later_max)
    best, position = _later_max(carried, place, best, position)
    return _last(best), _last(position), position


@jit
def scan_argmin(carried: tl.tensor, place: tl.tensor, x: tl.tensor, where: tl.tensor) -> tl.tensor:
    best, position = tl.associative_scan((x, where), 1, _later_min)
    best, position = _later_min(carried, place, best, position)
    return _last(best), _last(position), position
