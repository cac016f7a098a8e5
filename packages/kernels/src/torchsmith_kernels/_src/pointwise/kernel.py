"""Device functions of element-wise kernels: tiles, activations, random words."""

from __future__ import annotations

import triton.language as tl
from triton import knobs
from triton.language.extra import libdevice

from torchsmith_kernels._src.jit import jit

# Philox 4x32 (Salmon et al., 2011): multipliers and the steps of the key.
MULTIPLIER_A = tl.constexpr(0xD2511F53)
MULTIPLIER_B = tl.constexpr(0xCD9E8D57)
KEY_STEP_A = tl.constexpr(0x9E3779B9)
KEY_STEP_B = tl.constexpr(0xBB67AE85)
# Set in the counter's highest word, where torch's own generators never have it.
OWN_STREAM = tl.constexpr(0x80000000)
# Set in a group's number for a second call that refines the words of the first.
SECOND_CALL = tl.constexpr(1 << 62)
ROUNDS = tl.constexpr(10)
INTERPRETED = tl.constexpr(knobs.runtime.interpret)


@jit
def wide(x: tl.tensor) -> tl.tensor:
    """``x`` in the type that it is computed in."""
    if x.dtype.primitive_bitwidth == 64:
        return x
    else:
        return x.to(tl.float32)


@jit
def place(
    rows: tl.tensor,
    width: tl.tensor,
    FLAT: tl.constexpr,
    HEIGHT: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tuple[tl.tensor, ...]:
    """This program's tile: its first row and column, offsets inside of it, and what exists.

    Starts are 64 bits wide, offsets inside of the tile 32. ``FLAT`` says that there is one row.
    """
    program = tl.program_id(0)
    if FLAT:
        row = tl.full((), 0, tl.int64)
        column = program.to(tl.int64) * COLUMNS
    else:
        across = (width + (COLUMNS - 1)) // COLUMNS
        row = (program // across).to(tl.int64) * HEIGHT
        column = (program % across).to(tl.int64) * COLUMNS
    down = tl.arange(0, HEIGHT)[:, None]
    along = tl.arange(0, COLUMNS)[None, :]
    keep = along < width - column
    if HEIGHT > 1:
        keep = keep & (down < rows - row)
    return row, column, down, along, keep


@jit
def at(
    pointer: tl.tensor,
    stride: tl.tensor,
    row: tl.tensor,
    column: tl.tensor,
    down: tl.tensor,
    along: tl.tensor,
    HEIGHT: tl.constexpr,
) -> tl.tensor:
    """Addresses of a tile in a tensor whose rows are ``stride`` elements apart."""
    start = pointer + row * stride + column
    if HEIGHT > 1:
        return start + down * stride.to(tl.int64) + along
    return start + down + along


@jit
def exp2(x: tl.tensor, FAST: tl.constexpr) -> tl.tensor:
    """``2**x``; ``FAST`` takes the hardware's, which rounds subnormal results to zero."""
    if FAST and not INTERPRETED:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.exp2(x)


@jit
def reciprocal(x: tl.tensor, FAST: tl.constexpr) -> tl.tensor:
    """``1 / x``; ``FAST`` takes the hardware's, which rounds subnormal results to zero."""
    if FAST and not INTERPRETED:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1
        )
    else:
        return 1 / x


@jit
def silu(x: tl.tensor, FAST: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """``x * sigmoid(x)`` and its derivative."""
    s = reciprocal(1 + exp2(x * -1.4426950408889634, FAST), FAST)
    return x * s, s * (1 + x * (1 - s))


@jit
def gelu(x: tl.tensor, FAST: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """``x * Phi(x)`` with the normal distribution function, and its derivative.

    ``FAST`` takes Phi from Hastings' approximation (Abramowitz and Stegun, 26.2.17), whose error
    of 7.5e-8 is nothing beside a rounding to 16 bits. Its exponential is that of the derivative.
    """
    bell = exp2(x * x * -0.7213475204444817, FAST)
    if FAST:  # the coefficients include the density's 1 / sqrt(2 * pi)
        t = reciprocal(1 + 0.2316419 * tl.abs(x), FAST)
        tail = 0.7107068706 + t * (-0.7265760129 + t * 0.5307027145)
        tail = t * (0.1274147959 + t * (-0.1422483683 + t * tail))
        beyond = 0.5 - bell * tail  # Phi(|x|) - 0.5
        value = 0.5 * x + tl.abs(x) * beyond
        # beyond with the sign of x; a comparison and a choice would be two instructions
        sign = x.to(tl.int32, bitcast=True) & -0x80000000
        below = 0.5 + (beyond.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)
    else:
        below = 0.5 + 0.5 * tl.erf(x * 0.7071067811865476)
        value = x * below
    return value, below + x * (0.3989422804014327 * bell)


@jit
def gelu_tanh(x: tl.tensor, FAST: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """``x * 0.5 * (1 + tanh(u))``, ``u = sqrt(2 / pi) * (x + 0.044715 * x**3)``; its derivative.

    ``FAST`` takes ``0.5 * (1 + tanh(u))`` as ``sigmoid(2 * u)``.
    """
    square = x * x
    if FAST or INTERPRETED:
        u = x * (-2.302208198144325 - 0.1029432395800235 * square)  # -2 * u / log(2)
        s = reciprocal(1 + exp2(u, FAST), FAST)
        if FAST:
            rest = 1 - s
        else:  # keeps its precision where s is near 1
            rest = 1 / (1 + tl.exp2(-u))
    else:
        t = libdevice.tanh(x * (0.7978845608028654 + 0.035677408136300125 * square))
        s = 0.5 + 0.5 * t
        rest = 0.5 - 0.5 * t
    slope = 1.5957691216057308 + 0.2140644488178007 * square
    return x * s, s + x * s * rest * slope


@jit
def activation(x: tl.tensor, KIND: tl.constexpr, FAST: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Value and derivative of ``silu``, ``gelu`` or ``gelu_tanh``.

    ``FAST`` allows errors far below a rounding to 16 bits.
    """
    if KIND == "silu":
        return silu(x, FAST)
    elif KIND == "gelu":
        return gelu(x, FAST)
    else:
        return gelu_tanh(x, FAST)


@jit
def philox(group: tl.tensor, key: tl.tensor, offset: tl.tensor) -> tuple[tl.tensor, ...]:
    """Four blocks of random 32-bit words: Philox of the counter ``(group, offset)``.

    All arguments are 64 bits wide.
    """
    c0 = group.to(tl.uint32)
    c1 = (group >> 32).to(tl.uint32)
    c2 = offset.to(tl.uint32)
    c3 = (offset >> 32).to(tl.uint32) ^ OWN_STREAM
    k0 = key.to(tl.uint32)
    k1 = (key >> 32).to(tl.uint32)
    for _ in tl.static_range(ROUNDS):
        product_a = c0.to(tl.uint64) * MULTIPLIER_A
        product_b = c2.to(tl.uint64) * MULTIPLIER_B
        c0 = (product_b >> 32).to(tl.uint32) ^ c1 ^ k0
        c2 = (product_a >> 32).to(tl.uint32) ^ c3 ^ k1
        c1 = product_b.to(tl.uint32)
        c3 = product_a.to(tl.uint32)
        k0 = tl.add(k0, KEY_STEP_A, sanitize_overflow=False)
        k1 = tl.add(k1, KEY_STEP_B, sanitize_overflow=False)
    return c0, c1, c2, c3


@jit
def _halves(
    group: tl.tensor, key: tl.tensor, offset: tl.tensor, WIDE: tl.constexpr
) -> tuple[tl.tensor, ...]:
    """Words of the elements ``8 * group + i``: those of even ``i``, then those of odd ``i``."""
    a, b, c, d = philox(group, key, offset)
    # Only the upper half of a word counts where the lower is not asked for.
    if WIDE:
        e, f, g, h = philox(group | SECOND_CALL, key, offset)
        upper = 0xFFFF0000
        lower = 0xFFFF
        return (
            (a << 16) | (e & lower),
            (b << 16) | (f & lower),
            (c << 16) | (g & lower),
            (d << 16) | (h & lower),
            (a & upper) | (e >> 16),
            (b & upper) | (f >> 16),
            (c & upper) | (g >> 16),
            (d & upper) | (h >> 16),
        )
    else:
        return a << 16, b << 16, c << 16, d << 16, a, b, c, d


@jit
def factors(
    width: tl.tensor,
    row: tl.tensor,
    column: tl.tensor,
    down: tl.tensor,
    along: tl.tensor,
    seed: tl.tensor | None,
    key: tl.tensor,
    offset: tl.tensor,
    threshold: tl.tensor,
    scale: tl.tensor,
    HEIGHT: tl.constexpr,
    COLUMNS: tl.constexpr,
    ALIGNED: tl.constexpr,
    WIDE: tl.constexpr,
) -> tl.tensor:
    """What the elements of a tile are multiplied by: 0, or ``scale`` if their word is large enough.

    The same for every shape of the tile: words belong to elements counted through all rows.
    """
    if seed is not None:
        key = tl.load(seed)
        offset = tl.load(seed + 1)
    else:
        key = key.to(tl.int64)
        offset = offset.to(tl.int64)
    first = (row + down) * width.to(tl.int64) + column
    if ALIGNED:  # rows begin with a group
        group = (first >> 3) + tl.arange(0, COLUMNS // 8)[None, :]
        a, b, c, d, e, f, g, h = _halves(group, key, offset, WIDE)
        even = tl.join(tl.join(a, c), tl.join(b, d))
        odd = tl.join(tl.join(e, g), tl.join(f, h))
        word = tl.join(even, odd).reshape(HEIGHT, COLUMNS)
    else:
        element = first + along
        a, b, c, d, e, f, g, h = _halves(element >> 3, key, offset, WIDE)
        low = (element & 2) == 0
        even = tl.where((element & 4) == 0, tl.where(low, a, b), tl.where(low, c, d))
        odd = tl.where((element & 4) == 0, tl.where(low, e, f), tl.where(low, g, h))
        word = tl.where((element & 1) == 0, even, odd)
    return tl.where(word >= threshold.to(tl.uint32), scale, 0.0)
