"""Steps of random programs that look at windows, resample, or compare with targets."""

from __future__ import annotations

from typing import Any


def pool(d: Any, x: str) -> str | None:
    """A pooling over small windows."""
    t = d.values[x]
    if t.dim() not in (3, 4) or min(t.shape[-2:]) < 3 or not t.dtype.is_floating_point:
        return None
    size, step, pad = d.rng.choice(((2, 2, 0), (3, 2, 1), (2, 1, 1), (3, 1, 0)))
    if d.rng.random() < 0.5:
        which = d.rng.choice(("", "", ", return_indices=True)[1"))
        close = "]" if which else ")"
        return f"F.max_pool2d({x}, {size}, {step}, {pad}{which}{close}"
    return f"F.avg_pool2d({x}, {d.rng.choice((2, 4))}, {step})" if min(t.shape[-2:]) > 3 else None


def resample(d: Any, x: str) -> str | None:
    """A row or a picture with more or fewer points."""
    t = d.values[x]
    if t.dim() not in (3, 4) or t.dtype not in d.floats or 0 in t.shape:
        return None
    factor, smooth = d.rng.choice((2, 3, 1.5, 0.5)), "linear"
    if t.dim() == 4:
        smooth = d.rng.choice(("bilinear", "bilinear", "bicubic"))
    mode = d.rng.choice(("nearest", "nearest", "nearest-exact", smooth, smooth))
    if int(factor * min(t.shape[2:])) < 1:
        return None
    corners = d.rng.choice(("", ", align_corners=True")) if mode == smooth else ""
    return f"F.interpolate({x}, scale_factor={factor}, mode={mode!r}{corners})"


def patches(d: Any, x: str) -> str | None:
    """The patches of pictures, beside each other."""
    t = d.values[x]
    if t.dim() not in (3, 4) or min(t.shape[-2:]) < 3 or not t.dtype.is_floating_point:
        return None
    size, apart, pad, step = d.rng.choice(
        ((2, 1, 0, 2), (3, 1, 1, 1), ((1, 2), 2, 1, 1), ((2, 3), 1, (1, 0), (2, 1)), (1, 1, 0, 1))
    )
    return f"F.unfold({x}, {size}, {apart}, {pad}, {step})"


def sums(d: Any, x: str) -> str | None:
    """What the patches of pictures, taken apart in one way, are when put together in another."""
    t = d.values[x]
    if t.dim() != 4 or min(t.shape[-2:]) < 4 or t.dtype not in d.floats:
        return None
    size, apart, pad, step = d.rng.choice(((2, 1, 0, 2), (3, 1, 1, 1), (3, 2, 2, 1), (3, 1, 1, 2)))
    given = f"{size}, {apart}, {pad}, {step}"
    return f"F.fold(F.unfold({x}, {given}) * 2, {tuple(t.shape[-2:])}, {given})"


def rows(d: Any, x: str) -> str | None:
    """A convolution of each row with weights of its own, made of the first rows."""
    t = d.values[x]
    if t.dim() != 3 or 0 in t.shape or t.dtype not in d.floats:
        return None
    taps = d.rng.randint(1, min(3, t.shape[2]))
    pad, apart, step = d.rng.choice(((0, 1, 1), (2, 1, 1), (3, 2, 2), (1, 1, 3)))
    if t.shape[2] + 2 * pad <= apart * (taps - 1):
        return None
    if pad and not t[0].isfinite().all():  # nothing times infinity: eager's own kernels differ
        return None
    bias = d.rng.choice(("None", f"{x}[0, :, 0]"))
    given = f"{step}, {pad}, {apart}, groups={t.shape[1]}"
    return f"F.conv1d({x}, {x}[0, :, None, :{taps}], {bias}, {given})"


def odds(d: Any, x: str) -> str | None:
    """A loss of each element."""
    t = d.values[x]
    if not t.dim() or 0 in t.shape or t.dtype not in d.floats:
        return None
    weights = d.rng.choice(("", f", {x}.abs()", f", pos_weight={x}[-1].exp()"))
    way = d.rng.choice(("none", "sum", "mean"))
    target = f"{x}.flip(0).sigmoid()"
    return f"F.binary_cross_entropy_with_logits({x}, {target}{weights}, reduction={way!r})"


def loss(d: Any, x: str) -> str | None:
    """A cross-entropy."""
    t = d.values[x]
    if t.dim() != 2 or 0 in t.shape or t.dtype not in d.floats:
        return None
    targets = [d.rng.randrange(t.shape[1]) for _ in range(t.shape[0])]
    ignored = d.rng.choice(("", f", ignore_index={targets[0]}"))
    if d.rng.random() < 0.5:
        return f"F.nll_loss({x}, torch.tensor({targets}), reduction='sum'{ignored})"
    return f"F.cross_entropy({x}, torch.tensor({targets}), reduction='sum'{ignored})"
