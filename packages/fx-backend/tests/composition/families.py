"""Makers of programs: products, norms, activations, orders, complex numbers, and writes by parts.

Each draws a line of its table and fills in the value ``x``, a dimension of it and small numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from composition.programs import Draft

PRODUCTS = """
torch.matmul({x}, {x}.mT)
{x}.mT @ {x}
torch.matmul({x}, {x}[..., 0, :])
torch.einsum('...ij,...kj->...ik', {x}, {x} * 2)
torch.einsum('...ij,...ij->...i', {x}, {x})
F.linear({x}, {x}.flatten(0, -2))
"""
OF_MATRICES = """
torch.addmm({x} @ {x}.mT, {x}, {x}.mT, beta=0.5, alpha=2)
torch.addmv({x}[:, 0], {x}, {x}[0])
torch.outer({x}[0], {x}[:, 0])
torch.kron({x}, {x}[:1])
torch.cdist({x}, {x} + 1)
"""
OF_BATCHES = """
torch.baddbmm({x} @ {x}.mT, {x}, {x}.mT, beta=2, alpha=0.5)
torch.bmm({x}, {x}.mT)
torch.cdist({x}, {x}[:, :1] + 1, p=1)
"""
NORMS = """
F.group_norm({x}, {groups})
F.layer_norm({x}, {x}.shape[-1:])
F.rms_norm({x}, {x}.shape[-1:])
F.normalize({x} + 9, dim={dim})
F.local_response_norm({x}, 2)
F.batch_norm({x}, None, None, {weight}, training=True)
F.batch_norm({x}, {weight}, {weight}.abs() + 1, {weight})
F.instance_norm({x}, weight={weight})
"""
ACTIVATIONS = """
F.gelu({x})
F.gelu({x}, approximate='tanh')
F.silu({x})
F.elu({x})
F.celu({x}, 0.5)
F.selu({x})
F.mish({x})
F.softplus({x})
F.hardswish({x})
F.hardsigmoid({x})
F.hardtanh({x})
F.logsigmoid({x})
F.tanhshrink({x})
F.softsign({x})
F.softshrink({x})
F.leaky_relu({x}, 0.25)
F.relu6({x})
F.prelu({x}, {x}.new_full((1,), 0.5))
F.glu({x}, {dim})
F.smooth_l1_loss({x}, {x} * 2, reduction='none')
F.huber_loss({x}, {x} + 1)
F.mse_loss({x}, {x}.flip(0))
F.kl_div({x}, {x}.sigmoid(), reduction='none')
F.binary_cross_entropy_with_logits({x}, ({x} + 3) * 0.25)
F.cosine_similarity({x}, {x}.flip(0) + 1, {dim})
torch.addcmul({x}, {x}, {x}, value=0.5)
torch.addcdiv({x}, {x}, {x} + 9)
torch.lerp({x}, {x} * 2, 0.25)
torch.logaddexp({x}, {x}.flip(0))
torch.logaddexp2({x} * 2, {x})
"""
CHOSEN = """
{x}.contiguous().median({dim})[0]
{x}.contiguous().kthvalue({one}, {dim})[0]
{x}.double().quantile(0.25, {dim})
torch.bucketize({x}, torch.tensor([-1.0, 0.0, 1.5]), right={truth})
torch.searchsorted(torch.tensor([-1, 0, 1, 2]), {x})
torch.msort({x})
torch.isin({x}, torch.tensor([0, 1, 2]))
torch.heaviside({x}, {x})
torch.nansum({x}, {dim})
F.one_hot({x}.long().clamp(0, 2), 3)
{x}.masked_scatter({x} > 0, {x}.flip({dim}))
"""
REARRANGED = """
torch.diff({x}, n={one}, dim={dim})
torch.diag_embed({x}, {few})
{x}.tensor_split([1, 2], {dim})[{few}]
{x}.narrow_copy({dim}, 0, 1)
{x}.index_reduce({dim}, torch.tensor([0]), {x}.narrow({dim}, -1, 1), '{most}')
{x}.put(torch.tensor([0, -1]), {x}.flatten()[:2])
torch.take({x}, torch.tensor([[0], [-1]]))
{x}.unflatten({dim}, (-1, 1)).swapdims(0, -1)
{x}.repeat_interleave(torch.tensor({times}), {dim}, output_size={total})
{x}.clone().unsqueeze_({dim})
{x}.clone().transpose_(0, {dim})
torch.cat([{x}.flatten(), {x}.new_zeros(0)])
torch.cat([{x}] * 3, {dim})
torch.stack([{x}] * 2, {dim})
{x}.clone().fill_({x}.flatten()[0])
torch.block_diag({x}[:1].flatten(), {x}[:1].flatten())
{x}.flatten()[: 96 // (96 // (1 + {x}.size({dim}) % 90))]
{x}.flatten()[:1].expand(24 // {x}.size({dim}), 24 // (24 // (1 + {x}.size(0) % 20))).sum({few} % 2)
"""
MADE_COMPLEX = """
torch.complex({x}, {x} * 2)
({x} * (1 + 2j))
torch.polar({x}, {x})
torch.view_as_complex(torch.stack([{x}, {x} + 1], -1))
torch.fft.fft({x}, dim={dim})
"""
TURNED = ("", ".conj()", " * 2j", ".transpose(0, -1)", " * (3 - 1j)", ".conj().flip(0)")
MADE_REAL = (".real", ".imag", ".abs()", ".conj().imag * 2", ".sum(-1).real")
OF_SIGNALS = """
F.conv1d({x}, {x}[:1, :, :2], stride={one}, padding={truth:d})
F.conv_transpose1d({x}, {x}[:1, :, :2].expand({channels}, -1, -1), stride={one})
F.avg_pool1d({x}, 2, {one})
F.interpolate({x}, scale_factor=2, mode='linear')
"""
OF_IMAGES = """
F.conv2d({x}, {x}[:1, :, :2, :2], stride={one}, padding={truth:d})
F.conv2d({x}, {x}[:1, :1, :2, :2].expand({channels}, -1, -1, -1), groups={channels})
F.conv_transpose2d({x}, {x}[:1, :1, :2, :2].expand({channels}, 2, -1, -1), stride={one})
F.adaptive_avg_pool2d({x}, ({one}, 1))
F.adaptive_max_pool2d({x}, {one})
F.avg_pool2d({x}, 2, {one}, {truth:d}, count_include_pad=False)
F.avg_pool2d({x}, 2, {one}, ceil_mode=True)
F.interpolate({x}, scale_factor=2, mode='bicubic')
F.interpolate({x}, size=(3, 5), mode='nearest-exact')
F.interpolate({x}, size=(2, 3), mode='area')
F.pixel_shuffle({x}.repeat(1, 4, 1, 1), 2)
F.pixel_unshuffle({x}.repeat(1, 1, 2, 2), 2)
F.lp_pool2d({x} + 9, 2.0, 2)
"""
PARTS = (
    "[0]", ".unsqueeze(0)", ".transpose(0, -1)", "[..., ::2]", ".unbind(0)[0]", ".detach()",
    ".tensor_split(2)[0]", ".view(-1)", ".unfold(0, 1, 1)", ".narrow(0, 0, 1)", ".movedim(0, -1)",
)  # fmt: skip
WRITTEN = ("copy_({x}.flatten()[0])", "fill_({x}.flatten()[-1])", "logical_not_()", "zero_()")
WRITTEN_NUMBERS = (
    "mul_({x}.flatten()[:1] * 2)", "sigmoid_()", "addcmul_({x}.sum(), {x}.flatten()[0])", "relu_()",
    "clamp_(-1, {x}.flatten()[0])", "tanh_()", "div_({x}.flatten()[:1] + 9)", "abs_()", "square_()",
    "silu_()",
)  # fmt: skip


def _drawn(d: Draft, x: str, *tables: str) -> str:
    t = d.values[x]
    channels = t.shape[1] if t.dim() > 1 else 1
    times = [d.rng.randint(0, 2) for _ in range(t.shape[0] if t.dim() else 1)]
    dim = d.rng.randrange(t.dim()) if t.dim() else 0
    line = d.rng.choice("".join(tables).strip().split("\n"))
    return line.format(
        x=x,
        dim=0 if "{times}" in line else dim,
        one=d.rng.randint(1, 2),
        few=d.rng.randint(0, 2),
        truth=d.rng.random() < 0.5,
        most=d.rng.choice(("amax", "amin")),
        times=times,
        total=sum(times),
        channels=channels,
        groups=d.rng.choice([n for n in range(1, channels + 1) if channels % n == 0]),
        weight=f"{x}.flatten()[:1].sigmoid().repeat({channels})",
    )


def _real(d: Draft, x: str, low: int, high: int = 4) -> bool:
    t = d.values[x]
    return t.dtype.is_floating_point and low <= t.dim() <= high and 0 not in t.shape


def product(d: Draft, x: str) -> str | None:
    """Products of matrices, with what is added to them, and distances."""
    rank = d.values[x].dim()
    more = OF_MATRICES if rank == 2 else OF_BATCHES if rank == 3 else ""
    return _drawn(d, x, PRODUCTS, more) if _real(d, x, 2) else None


def norm(d: Draft, x: str) -> str | None:
    """Norms over groups, rows, instances, batches."""
    return _drawn(d, x, NORMS) if _real(d, x, 2) else None


def activation(d: Draft, x: str) -> str | None:
    """Activation functions and losses by element."""
    return _drawn(d, x, ACTIVATIONS) if _real(d, x, 1) else None


def chosen(d: Draft, x: str) -> str | None:
    """Elements by their order or place among bounds, whole numbers as classes."""
    return None if d.values[x].dtype is torch.bool or not _filled(d, x) else _drawn(d, x, CHOSEN)


def rearranged(d: Draft, x: str) -> str | None:
    """Differences, diagonals made, parts of uneven sizes, counted repetitions."""
    return _drawn(d, x, REARRANGED) if _filled(d, x) else None


def _filled(d: Draft, x: str) -> bool:
    return d.values[x].dim() > 0 and 0 not in d.values[x].shape


def complex_part(d: Draft, x: str) -> str | None:
    """Through complex numbers and back to real ones."""
    if d.values[x].dtype not in d.floats or not _filled(d, x):
        return None
    made = _drawn(d, x, MADE_COMPLEX)
    return f"({made}{d.rng.choice(TURNED)}){d.rng.choice(MADE_REAL)}"


def convolved(d: Draft, x: str) -> str | None:
    """Convolutions with a part of the image, and windows of several kinds."""
    if not _real(d, x, 3) or d.values[x].dtype not in d.floats:
        return None
    return _drawn(d, x, OF_SIGNALS if d.values[x].dim() == 3 else OF_IMAGES)


def written_part(d: Draft, x: str) -> str | None:
    """Writes through views of several kinds, with operands."""
    if not _filled(d, x):
        return None
    words = WRITTEN_NUMBERS if d.values[x].dtype.is_floating_point else ()
    return f"{x}{d.rng.choice(PARTS)}.{d.rng.choice((*WRITTEN, *words)).format(x=x)}"
