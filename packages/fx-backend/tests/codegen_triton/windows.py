"""Programs whose kernels read windows: convolutions of rows, patches and their sums."""

import torch
import torch.nn.functional as F
from torchsmith_fx_backend._src.loops import windows


def _fold(weight, image):
    product = weight.view(2, 2, 1, 9, 6, 8) * image.view(2, 2, 3, 1, 6, 8)
    return F.fold(product.view(2, 54, 48), (6, 8), 3, padding=1) + 1


PROGRAMS = {
    "causal rows": (
        lambda x, w: F.silu(F.conv1d(x.mT, w, padding=3, groups=6)[..., :9].mT),
        ((2, 9, 6), (6, 1, 4)),
    ),
    "two results each, in steps": (
        lambda x, w: F.conv1d(x, w, padding=2, stride=2, groups=3),
        ((2, 3, 17), (6, 1, 3)),
    ),
    "patches": (lambda x: F.unfold(x, (3, 2), padding=(1, 0), stride=2).cos(), ((2, 3, 7, 8),)),
    "sums of patches": (_fold, ((2, 18, 6, 8), (2, 6, 6, 8))),
    "averages of what is there": (
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        ((2, 3, 8, 10),),
    ),
    "gradients of averages": (
        lambda g, x: torch.ops.aten.avg_pool2d_backward(
            g, x, [3, 3], [2, 2], [1, 1], True, False, None
        ),
        ((2, 3, 5, 6), (2, 3, 8, 10)),
    ),
    "gradients of maxima": (
        lambda g, x: torch.ops.aten.max_pool2d_with_indices_backward(
            g, x, [3, 3], [2, 2], [1, 1], [1, 1], False, F.max_pool2d(x, 3, 2, 1, 1, False, True)[1]
        ),
        ((2, 3, 4, 5), (2, 3, 8, 10)),
    ),
    "sums of patches in steps": (
        lambda x: F.fold(x, (7, 9), 3, padding=1, stride=2),
        ((2, 27, 20),),
    ),
}


def in_threads(monkeypatch):
    """Windows are lowered as they are for a GPU, on a machine without one."""
    monkeypatch.setattr(windows, "in_threads", lambda value: True)


def inputs(name, dtype):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, generator=generator).to(dtype) for size in PROGRAMS[name][1]]
