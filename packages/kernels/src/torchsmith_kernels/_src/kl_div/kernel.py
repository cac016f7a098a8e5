"""The Triton kernels of divergences between (log-)probabilities.

Elements come in ``rows`` of ``width``, cut into ``chunks`` of ``BLOCK``; tensors without gaps are
one long row (``FLAT``); ``EVEN`` if no chunk goes beyond its row. ``MODE`` says which divergence,
see the constants.

With 16-bit inputs the exact logarithm, about 30 instructions, would be what limits the speed.
``FAST`` uses the hardware's instead, whose relative error of 2**-22 such inputs do not show.
"""

from __future__ import annotations

import triton.language as tl
from triton.language.extra import libdevice

from torchsmith_kernels._src.jit import jit
from torchsmith_kernels._src.launch import interpreted

INTERPRETED = tl.constexpr(interpreted())

#: ``target`` holds probabilities: ``t * log(t) - t * x``.
PROBABILITIES = tl.constexpr(0)
#: ``target`` holds their logarithms: ``exp(t) * (t - x)``.
LOGARITHMS = tl.constexpr(1)
#: The same, where a target probability of zero contributes nothing whatever ``x`` is.
GUARDED = tl.constexpr(2)
#: Jensen-Shannon with weights ``beta`` of the target and ``rest = 1 - beta`` of the input.
MIXTURE = tl.constexpr(3)

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
#: The hardware's logarithm takes anything smaller for zero.
SMALLEST = tl.constexpr(2.0**-126)


@jit
def _exp(x: tl.tensor, FAST: tl.constexpr) -> tl.tensor:
    """``exp(x)``, exactly as eager's on a GPU; if ``FAST`` results below 2**-126 become 0."""
    if FAST:
        return tl.exp2(x * LOG2_E)
    elif INTERPRETED:
        return tl.exp(x)
    else:
        return libdevice.exp(x)


@jit
def _log2(x: tl.tensor) -> tl.tensor:
    """The hardware's logarithm, for which numpy's stands in Triton's interpreter."""
    if INTERPRETED:
        return tl.log2(x)
    else:
        return libdevice.fast_log2f(x)


@jit
def _fast_mixture(
    x: tl.tensor, t: tl.tensor, beta: tl.tensor, rest: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """See ``_mixture``; probabilities below 2**-120 count as that."""
    x = tl.maximum(x * LOG2_E, -120.0, propagate_nan=tl.PropagateNan.ALL)
    t = tl.maximum(t * LOG2_E, -120.0, propagate_nan=tl.PropagateNan.ALL)
    # The factor log(2) is a literal, as the interpreter takes no constexpr here.
    q = tl.exp2(x) * (rest * 0.6931471805599453)
    p = tl.exp2(t) * (beta * 0.6931471805599453)
    log_mean = _log2((p + q) * LOG2_E)
    return q * (x - log_mean), p * (t - log_mean)


@jit
def _mixture(
    x: tl.tensor, t: tl.tensor, beta: tl.tensor, rest: tl.tensor, FAST: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """``rest * q * (x - log(m))`` and ``beta * p * (t - log(m))``.

    These are the derivatives by ``x`` and ``t``, and their sum is the divergence. Everything is
    relative to the higher of the two logarithms, so nothing overflows or cancels.
    """
    if FAST:
        return _fast_mixture(x, t, beta, rest)
    else:
        # Two that are minus infinity differ by nothing.
        apart = tl.where(x == t, 0.0, t - x)
        high = _exp(tl.maximum(x, t), FAST)
        low = _exp(-tl.abs(apart), FAST)
        target_higher = apart >= 0
        log_mean = tl.log(tl.where(target_higher, beta + rest * low, rest + beta * low))
        low *= high
        p = tl.where(target_higher, high, low)
        q = tl.where(target_higher, low, high)
        by_x = tl.where(q == 0, 0.0, rest * q * (-tl.maximum(apart, 0.0) - log_mean))
        by_t = tl.where(p == 0, 0.0, beta * p * (tl.minimum(apart, 0.0) - log_mean))
        # A maximum may drop a NaN.
        bad = apart != apart
        return tl.where(bad, apart, by_x), tl.where(bad, apart, by_t)


@jit
def _loss(
    x: tl.tensor,
    t: tl.tensor,
    beta: tl.tensor,
    rest: tl.tensor,
    MODE: tl.constexpr,
    FAST: tl.constexpr,
) -> tl.tensor:
    """One element's contribution."""
    if MODE == PROBABILITIES:
        if FAST:
            entropy = tl.where(tl.abs(t) < SMALLEST, 0.0, t * (_log2(t) * LN_2))
        else:
            entropy = tl.where(t == 0, 0.0, t * tl.log(t))
        value = entropy - t * x
    elif MODE == LOGARITHMS:
        value = _exp(t, FAST) * (t - x)
    elif MODE == GUARDED:
        p = _exp(t, FAST)
        value = tl.where(p == 0, 0.0, p * (t - x))
    else:
        by_x, by_t = _mixture(x, t, beta, rest, FAST)
        value = by_x + by_t
    return value


@jit
def _place(
    unit: tl.tensor, chunks: tl.tensor, BLOCK: tl.constexpr, FLAT: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Row and first column of a chunk."""
    if FLAT:
        return (unit * 0).to(tl.int64), unit.to(tl.int64) * BLOCK
    else:
        return (unit // chunks).to(tl.int64), (unit % chunks).to(tl.int64) * BLOCK


@jit
def _read(
    x: tl.tensor,
    stride: tl.tensor,
    row: tl.tensor,
    first: tl.tensor,
    n: tl.tensor,
    inside: tl.tensor,
    EVEN: tl.constexpr,
) -> tl.tensor:
    """A chunk of a row."""
    place = x + row * stride + first + n
    if EVEN:
        return tl.load(place).to(tl.float32)
    else:
        return tl.load(place, inside, other=0.0).to(tl.float32)


@jit
def sum_kernel(
    x: tl.tensor,
    t: tl.tensor,
    partial: tl.tensor,
    units: tl.tensor,
    chunks: tl.tensor,
    width: tl.tensor,
    x_stride: tl.tensor,
    t_stride: tl.tensor,
    divisor: tl.tensor,
    beta: tl.tensor,
    rest: tl.tensor,
    MODE: tl.constexpr,
    FAST: tl.constexpr,
    FLAT: tl.constexpr,
    EVEN: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """Adds up every ``num_programs``-th chunk; ``partial`` gets one sum per program.

    A single program writes the result: only then is ``divisor`` not one.
    """
    total = tl.zeros([BLOCK], tl.float32)
    program, programs = tl.program_id(0), tl.num_programs(0)
    for step in tl.range(0, tl.cdiv(units - program, programs), num_stages=STAGES):
        row, first = _place(program + step * programs, chunks, BLOCK, FLAT)
        n = tl.arange(0, BLOCK)
        inside = n < width - first
        a = _read(x, x_stride, row, first, n, inside, EVEN)
        b = _read(t, t_stride, row, first, n, inside, EVEN)
        value = _loss(a, b, beta, rest, MODE, FAST)
        if not EVEN:
            value = tl.where(inside, value, 0.0)
        total += value
    tl.store(partial + program, tl.div_rn(tl.sum(total, 0), divisor).to(partial.dtype.element_ty))


@jit
def finish_kernel(
    partial: tl.tensor,
    y: tl.tensor,
    count: tl.tensor,
    divisor: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """The sum of all programs over ``divisor``; one program."""
    n = tl.arange(0, BLOCK)
    total = tl.sum(tl.load(partial + n, n < count, other=0.0), 0)
    tl.store(y, tl.div_rn(total, divisor).to(y.dtype.element_ty))


@jit
def each_kernel(
    x: tl.tensor,
    t: tl.tensor,
    y: tl.tensor,
    chunks: tl.tensor,
    width: tl.tensor,
    x_stride: tl.tensor,
    t_stride: tl.tensor,
    beta: tl.tensor,
    rest: tl.tensor,
    MODE: tl.constexpr,
    FAST: tl.constexpr,
    FLAT: tl.constexpr,
    EVEN: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Each element's contribution, to adjacent rows."""
    row, first = _place(tl.program_id(0), chunks, BLOCK, FLAT)
    n = tl.arange(0, BLOCK)
    inside = n < width - first
    a = _read(x, x_stride, row, first, n, inside, EVEN)
    b = _read(t, t_stride, row, first, n, inside, EVEN)
    value = _loss(a, b, beta, rest, MODE, FAST)
    tl.store(y + row * width + first + n, value.to(y.dtype.element_ty), inside)


@jit
def backward_kernel(
    grad: tl.tensor,
    x: tl.tensor,
    t: tl.tensor,
    dx: tl.tensor,
    dt: tl.tensor,
    chunks: tl.tensor,
    width: tl.tensor,
    grad_stride: tl.tensor,
    x_stride: tl.tensor,
    t_stride: tl.tensor,
    divisor: tl.tensor,
    beta: tl.tensor,
    rest: tl.tensor,
    MODE: tl.constexpr,
    FAST: tl.constexpr,
    SCALAR: tl.constexpr,
    NEED_X: tl.constexpr,
    NEED_T: tl.constexpr,
    FLAT: tl.constexpr,
    EVEN: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The gradients that are needed, to adjacent rows; ``grad`` is one number if ``SCALAR``."""
    row, first = _place(tl.program_id(0), chunks, BLOCK, FLAT)
    n = tl.arange(0, BLOCK)
    inside = n < width - first
    b = _read(t, t_stride, row, first, n, inside, EVEN)
    if SCALAR:
        upstream = tl.div_rn(tl.load(grad).to(tl.float32), divisor)
    else:
        upstream = _read(grad, grad_stride, row, first, n, inside, EVEN)
    out = row * width + first + n
    if MODE == MIXTURE:
        a = _read(x, x_stride, row, first, n, inside, EVEN)
        by_x, by_t = _mixture(a, b, beta, rest, FAST)
        if NEED_X:
            tl.store(dx + out, (upstream * by_x).to(dx.dtype.element_ty), inside)
        if NEED_T:
            tl.store(dt + out, (upstream * by_t).to(dt.dtype.element_ty), inside)
    else:
        if MODE == PROBABILITIES:
            p = b
        else:
            p = _exp(b, FAST)
        if NEED_X:
            tl.store(dx + out, (-upstream * p).to(dx.dtype.element_ty), inside)
        if NEED_T:
            a = _read(x, x_stride, row, first, n, inside, EVEN)
            if MODE == PROBABILITIES:
                # Like eager's quotient of the two, the one is NaN for probabilities 0 and inf.
                log = tl.log(b)
                value = log + (1.0 + 0.0 * log) - a
            elif MODE == LOGARITHMS:
                value = p * (b - a) + p
            else:
                value = tl.where(p == 0, 0.0, p * (b - a)) + p
            tl.store(dt + out, (upstream * value).to(dt.dtype.element_ty), inside)
