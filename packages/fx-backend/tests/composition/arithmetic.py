"""Makers of programs: whole numbers that wrap and divide, promotion, orders, bounds of NaN."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from composition.programs import Draft


def whole(d: Draft, x: str) -> str | None:
    """Quotients, remainders, shifts and products of whole numbers, negative ones among them."""
    t = d.values[x]
    if t.dtype.is_floating_point or t.dtype is torch.bool:
        return None
    by = d.rng.choice(("3", "-3", "2", "-2", f"{x}.clamp_min(1)", f"({x} | 1)"))
    words = (
        f"torch.div({x}, {by}, rounding_mode='floor')",
        f"torch.div({x}, {by}, rounding_mode='trunc')",
        f"{x} // {by}",
        f"{x} % {by}",
        f"torch.fmod({x}, {by})",
        f"{x} << {d.rng.randint(0, 2)}",
        f"{x} >> {d.rng.randint(0, 3)}",
        f"~{x}",
        f"{x} * 37 + 113",
        f"{x} ** {d.rng.randint(0, 3)}",
        f"torch.gcd({x}, {by if by[0] in '(x' else x})",
    )
    return d.rng.choice(words)


def promoted(d: Draft, x: str) -> str | None:
    """A tensor without dimensions or a number of another kind beside a tensor."""
    kinds = ("float64", "float32", "int64", "int8", "uint8", "bool")
    other = f"torch.tensor({d.rng.randint(0, 3)}, dtype=torch.{d.rng.choice(kinds)})"
    words = ["{0} + {1}", "{1} * {0}", "torch.where({0} == {0}, {0}, {1})", "{0} - {1}"]
    if d.rng.random() < 0.5:
        return d.rng.choice(words).format(x, d.rng.choice(("2.5", "True", "3")))
    words += ["torch.maximum({0}, {1})", "torch.minimum({1}, {0})"]
    return d.rng.choice(words).format(x, other)


def bounded(d: Draft, x: str) -> str | None:
    """Bounds that are crossed, missing, or NaN."""
    if d.values[x].dtype is torch.bool:
        return None
    if not d.values[x].dtype.is_floating_point:
        return f"{x}.clamp({d.rng.randint(-2, 3)}, {d.rng.randint(-2, 3)})"
    low, high = (d.rng.choice(("-1.5", "0.5", "2", "float('nan')", "None")) for _ in "ab")
    if low == high == "None":
        low = "0"
    words = (f"{x}.clamp({low}, {high})", f"torch.fmax({x}, {x}.flatten()[:1] * 2)",
             f"torch.minimum({x}, {x} * -1)", f"{x}.nan_to_num(0.5, 2.0, -2.0)")  # fmt: skip
    return d.rng.choice(words)


def ordered(d: Draft, x: str) -> str | None:
    """Sorted rows, or where their elements come from, used as an index at once."""
    t = d.values[x]
    if not t.dim() or 0 in t.shape:
        return None
    dim = d.rng.randrange(-t.dim(), t.dim())
    falling = d.rng.choice((True, False))
    order = f"{x}.sort({dim}, descending={falling}, stable=True)"
    count = d.rng.randint(1, t.shape[dim])
    words = (f"{order}[0]", f"{order}[1]", f"{x}.gather({dim}, {order}[1].flip({dim}))",
             f"{x}.topk({count}, {dim}, largest={falling})[0]",
             f"{x}.gather({dim}, {x}.topk({count}, {dim})[1])",
             f"torch.scatter(torch.zeros_like({x}), {dim}, {order}[1], {order}[0])",
             f"torch.aminmax({x}, dim={dim})[{d.rng.randint(0, 1)}]")  # fmt: skip
    return d.rng.choice(words)


def gathered_windows(d: Draft, x: str) -> str | None:
    """Columns of windows, and their sum back into an image."""
    t = d.values[x]
    if t.dim() not in (3, 4) or not t.dtype.is_floating_point or 0 in t.shape:
        return None
    size, step = d.rng.randint(1, 2), d.rng.randint(1, 2)
    pad = d.rng.randint(0, 1)
    columns = f"F.unfold({x}, {size}, stride={step}, padding={pad})"
    image = f"{x}.shape[-2:]" if d.symbolic else str(tuple(t.shape[-2:]))
    if t.dim() == 4 and d.rng.random() < 0.5:
        return f"F.fold({columns}, {image}, {size}, stride={step}, padding={pad})"
    return columns
