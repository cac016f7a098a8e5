"""Makers of programs: quotients, mixed types, choices, windows, lists of tensors, unpooling, and
writes under masks, through views of views and into ``out=``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from composition.families import PARTS

if TYPE_CHECKING:
    from composition.programs import Draft

# Exact operands: the results jump.
QUOTIENTS = """
torch.div({x}, {by}, rounding_mode='floor')
torch.div({x}, {y}, rounding_mode='trunc')
torch.remainder({x}, {by})
torch.remainder({x}, {y})
torch.fmod({x}, {by})
torch.fmod({y}, {x})
torch.floor_divide({x}, {by})
{x} // {y}
{by} % {x}
{x}.frac()
torch.copysign({x}, {y})
torch.sgn({x}) * {y}
torch.nextafter({x}, {y})
torch.isclose({x}, {y})
torch.logical_xor({x}, {y})
F.hardshrink({x}, 0.5)
F.threshold({x}, 0.5, 2)
"""
# The condition is exact, the rest may be anything.
CHOICES = """
torch.where({x} > 0, 1, 2)
torch.where({x} <= 0.5, 1.5, {y})
torch.where({x} != 0, {y}, torch.tensor(2, dtype=torch.float64))
torch.where({x}.bool(), {x}, {y})
torch.where({x} > {y}, {x}, {y}.to(torch.{kind}))
({x} > 0) * {y}
({x} > 0).sum({dim}) + {y}.sum()
{y}.masked_fill({x} > 0, -1)
torch.masked_scatter({y}, {x} > 0, torch.broadcast_tensors({y}, {x})[0].flip(0))
"""
MIXED = """
{x} + {y}
{x} * {y}.to(torch.{kind})
{x}.to(torch.{kind}) - {y}
torch.maximum({x}, {y})
torch.hypot({x}, {y})
torch.ldexp({x}, torch.tensor([1]))
torch.sub({x}, {y}, alpha=2)
torch.addcmul({x}, {y}, {x}.to(torch.{kind}))
{x}.sum({dim}, dtype=torch.float64)
{x}.cumsum({dim}, dtype=torch.{kind})
torch.full_like({x}, 2, dtype=torch.{kind}) + {y}
torch.zeros_like({x}, memory_format=torch.contiguous_format) + {x}
"""
WINDOWS = """
{x}.unfold({dim}, 2, 1).sum(-1)
{x}.unfold({dim}, 2, 2).amax(-1) + {x}.unfold({dim}, 2, 2).amin(-1)
{x}.cumsum({dim}).flip({dim}).cumsum({dim})
torch.trapezoid({x}, dim={dim})
torch.cumulative_trapezoid({x}, dim={dim})
torch.var_mean({x}, {dim})[0]
torch.std_mean({x}, {dim}, keepdim=True)[0]
{x}.nanmean({dim})
{x}.sum({dim}, keepdim=True) - {x}
F.softmin({x}, {dim})
F.pairwise_distance({x}, {y})
F.triplet_margin_loss({x}, {x} + 1, {x} * 2)
F.poisson_nll_loss({x}, {x}.abs())
F.soft_margin_loss({x}, {x}.sign())
torch.logaddexp({x}, {y})
torch.xlogy({x}.abs(), {x}.abs() + 1)
torch.float_power({x}.abs(), 0.5)
torch.renorm({x}, 2, {dim}, 3.0)
"""
OF_LISTS = """
torch._foreach_add([{x}, {y}], 2)[{few}]
torch._foreach_mul([{x}, {y}], [{y}, {x}])[{few}]
torch._foreach_sub([{x}, {x}], [{x}, {y}], alpha=2)[1]
torch._foreach_maximum([{x}, {y}], 0)[{few}]
torch._foreach_neg([{x}, {y}])[{few}]
torch._foreach_addcmul([{x}], [{x}], [{x}], 0.5)[0]
torch._foreach_lerp([{x}], [{x} * 2], 0.25)[0]
torch.hstack([{x}, {x} * 2])
torch.vstack([{x}, {x}])
torch.dstack([{x}, {x}])
torch.column_stack([{x}, {x}])
torch.broadcast_tensors({x}, {y})[{few}]
torch.meshgrid({x}.flatten()[:3], {x}.flatten()[:2], indexing='ij')[{few}]
torch.cartesian_prod({x}.flatten()[:2], {x}.flatten()[:3])
torch.atleast_3d({x}) * 2
torch.tensordot({x}, {x}, dims=([{dim}], [{dim}]))
"""
UNPOOLED = """
F.max_unpool2d(F.max_pool2d({x}, 2), F.max_pool2d({x}, 2, return_indices=True)[1], 2)
F.max_unpool2d({x}[..., ::2, ::2], {places}, 2, output_size={image})
F.adaptive_max_pool2d({x}, 2, return_indices=True)[1]
F.grid_sample({x}, ({x}.sigmoid().mean() - 0.5).expand({batch}, 3, 2, 2), align_corners={truth})
F.affine_grid({x}.flatten()[:6].view(1, 2, 3), (1, 1, 3, 2), align_corners={truth})
F.channel_shuffle({x}, {channels})
F.interpolate({x}, size=(5, 3), mode='bilinear', antialias=True)
F.pad({x}, (1, 0, 2, -1), value=0.5)
"""
LOOKED_UP = """
torch.searchsorted({x}.sort(-1)[0], {x})
torch.searchsorted({x}.sort(-1)[0], {x}, right=True)
{x}.sort({dim})[0].diff(dim={dim})
{x}.topk(1, {dim})[0] + {x}.topk(1, {dim}, largest=False)[0]
{x}.argsort({dim}, stable=True).argsort({dim}, stable=True)
{x}.gather({dim}, {x}.argmax({dim}, keepdim=True))
{x}.scatter({dim}, {x}.argmin({dim}, keepdim=True), 7)
{x}[{x}.flatten().argsort(stable=True)[:1] * 0]
torch.zeros_like({x}).scatter_add({dim}, ({x} > 0).long() * 0, {x})
"""
UNDER_MASKS = """
{x}.index_put_([{x} > 0], {x}.new_full((), 3))
{x}.masked_scatter_({x} > 0, {x}.flip({dim}))
{x}.masked_fill_({x}.abs() == 1, -2)
{x}.mul_({x} > 0)
{x}.copy_({x} > 1)
{x}{part}.masked_fill_({x}{part} > 0, 1)
{x}{part}.index_fill_(0, torch.tensor([0]), 2)
"""
THROUGH_VIEWS = """
{x}{part}{other}.add_(1)
{x}{part}{other}.mul_({x}.flatten()[:1])
{x}{part}{other}.copy_({x}.flatten()[0])
{x}{part}.copy_({x}{part}.flip(0))
{x}[0].copy_({x}[-1])
{x}.flatten()[:1].add_(3)
torch.add({x}{part}, 1, out={x}{part})
torch.neg({x}, out={x})
torch.cumsum({x}, {dim}, out={x})
torch.clamp({x}{part}, -1, 1, out={x}{part})
(torch._foreach_add_([{x}], 1), {x})[1]
(torch._foreach_mul_([{x}{part}], 2), {x})[1]
{x}.index_put_([torch.tensor([[0], [0]]), torch.tensor([0, -1])], {x}.flatten()[0], True)
"""


def _drawn(d: Draft, x: str, table: str) -> str | None:
    t = d.values[x]
    shape = t.shape
    y = d.pick(lambda u: u.shape == shape or (u.dim() <= t.dim() and u.numel() == 1)) or x
    exact = table in (QUOTIENTS,)
    if exact and not d.exact(y):
        y = x
    half = (*shape[:-2], *(n // 2 for n in shape[-2:])) if t.dim() > 1 else shape
    line = d.rng.choice(table.strip().split("\n"))
    channels = shape[1] if t.dim() > 1 else 1
    return line.format(
        x=x,
        y=y,
        by=d.rng.choice(("2", "-2", "3", "-3", *(("0.5", "-1.5", "0.0") if _floats(d, x) else ()))),
        kind=d.rng.choice(("float64", "float32", "bfloat16", "int32", "int8", "uint8", "bool")),
        dim=d.rng.randrange(-t.dim(), t.dim()) if t.dim() else 0,
        few=d.rng.randint(0, 1),
        truth=d.rng.random() < 0.5,
        part=d.rng.choice(PARTS),
        other=d.rng.choice(PARTS),
        channels=d.rng.choice([n for n in range(1, channels + 1) if channels % n == 0] or [1]),
        batch=shape[0] if shape else 1,
        places=f"torch.arange({_product(half[-2:])}).view({[*half[-2:]]})"
        f".repeat({[*shape[:-2], 1, 1]}) * 2",
        image=f"{x}.shape[-2:]",
    )


def _product(sizes: tuple[int, ...]) -> int:
    result = 1
    for size in sizes:
        result *= size
    return result


def _floats(d: Draft, x: str) -> bool:
    return d.values[x].dtype.is_floating_point


def _filled(d: Draft, x: str, least: int = 1) -> bool:
    return d.values[x].dim() >= least and 0 not in d.values[x].shape


def quotient(d: Draft, x: str) -> str | None:
    """Quotients and remainders of any sign, signs, neighbours, comparisons."""
    return _drawn(d, x, QUOTIENTS)


def choice(d: Draft, x: str) -> str | None:
    """One of two values by a condition, numbers and other types among them."""
    return _drawn(d, x, CHOICES)


def mixed(d: Draft, x: str) -> str | None:
    """Arithmetic of different types."""
    return _drawn(d, x, MIXED)


def summed(d: Draft, x: str) -> str | None:
    """Sums over windows and running sums, moments, losses that reduce."""
    return _drawn(d, x, WINDOWS) if _floats(d, x) and _filled(d, x) else None


def listed(d: Draft, x: str) -> str | None:
    """Operators of lists of tensors."""
    return _drawn(d, x, OF_LISTS) if _filled(d, x) else None


def unpooled(d: Draft, x: str) -> str | None:
    """Positions of pooling, and images made from them and from grids."""
    fits = _filled(d, x, 4) and d.values[x].dim() == 4 and d.values[x].dtype in d.floats
    return _drawn(d, x, UNPOOLED) if fits else None


def looked_up(d: Draft, x: str) -> str | None:
    """Chains of orders and places."""
    return _drawn(d, x, LOOKED_UP) if _filled(d, x) else None


def under_mask(d: Draft, x: str) -> str | None:
    """Writes where a mask is true."""
    return _drawn(d, x, UNDER_MASKS) if _filled(d, x) else None


def through_views(d: Draft, x: str) -> str | None:
    """Writes through views of views, from what they overlap, and by ``out=``."""
    return _drawn(d, x, THROUGH_VIEWS) if _filled(d, x) else None
