"""Rules of operators that give gradients: each is of the size and type of what it belongs to.

Derivatives call them with arguments that go together, so of sizes little is checked. Operands in
other orders than row-major (images: than channels-last on the CPU, too) are left to torch.
"""

from __future__ import annotations

from typing import Any

import torch

from torchsmith_guards._src.fake.layouts.base import (
    Layout,
    Layouts,
    alike,
    contiguous,
    fits,
    holds,
    image_layout,
    is_contiguous,
    rule,
    same_sizes,
    unsure_if,
    wanted,
)
from torchsmith_guards._src.fake.layouts.factories import copy_layout
from torchsmith_guards._src.fake.layouts.pointwise import pointwise_stride

# Operators, and the arguments whose gradients they give; a last argument says which are asked for.
_SEVERAL = {
    "native_group_norm_backward": (1, 4, 4),  # of the bias as of the weight
    "grid_sampler_2d_backward grid_sampler_3d_backward": (1, 2),
}
# These give that of their second argument.
_ONE = """
    nll_loss_backward nll_loss2d_backward
    max_pool3d_with_indices_backward avg_pool3d_backward _adaptive_avg_pool3d_backward
    adaptive_max_pool3d_backward
"""
_IMAGE = """
    max_pool2d_with_indices_backward avg_pool2d_backward _adaptive_avg_pool2d_backward
    adaptive_max_pool2d_backward
"""


@rule(_ONE)
def _one(grad: torch.Tensor, x: torch.Tensor, *_: Any) -> Layout:
    unsure_if(not fits(x, grad) or not is_contiguous(x))
    return contiguous(x.shape, x)


@rule(*(f"{kind}_pad{n}d_backward" for kind in ("reflection", "replication") for n in (1, 2, 3)))
def _of_padding(grad: torch.Tensor, x: torch.Tensor, *_: Any) -> Layout:
    unsure_if(not alike(x, grad) or holds(x.shape, 0))
    unsure_if(not is_contiguous(x) and x.device.type != "cpu")
    return image_layout(x.shape, x, suggested=True)


@rule("mse_loss_backward smooth_l1_loss_backward huber_loss_backward _log_softmax_backward_data")
@rule("glu_backward")
def _in_any_order(grad: torch.Tensor, x: torch.Tensor, *_: Any) -> Layout:
    unsure_if(not alike(x, grad) or holds(x.shape, 0))
    unsure_if(x.device.type != "cpu" and not is_contiguous(x))
    return contiguous(x.shape, x)


@rule("soft_margin_loss_backward")
def _of_a_margin(grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, *_: Any) -> Layout:
    unsure_if(not fits(x, grad, target) or not same_sizes(x.shape, target.shape))
    return x.shape, pointwise_stride((target, x), tuple(x.shape)), x.dtype, x.device, 0


@rule("binary_cross_entropy_backward")
def _of_an_entropy(grad: torch.Tensor, x: torch.Tensor, *_: Any) -> Layout:
    unsure_if(not fits(x, grad))
    return copy_layout(x, x.dtype, x.device)


@rule("log_sigmoid_backward")
def _log_sigmoid(grad: torch.Tensor, x: torch.Tensor, *_: Any) -> Layout:
    unsure_if(not is_contiguous(grad))  # which it is laid out as
    return _one(grad, x)


@rule("multi_margin_loss_backward multilabel_margin_loss_backward")
def _row_major(grad: torch.Tensor, x: torch.Tensor, *_: Any) -> Layout | None:
    return contiguous(x.shape, x) if alike(x, grad) else None  # torch itself cannot tell


@rule(_IMAGE)
def _image(grad: torch.Tensor, x: torch.Tensor, *_: Any) -> Layout:
    unsure_if(not fits(x, grad) or not (x.device.type == "cpu" or is_contiguous(x)))
    return image_layout(x.shape, x)


def _register(names: str, arguments: tuple[int, ...]) -> None:
    @rule(names)
    def several(grad: torch.Tensor, *rest: Any) -> Layouts:
        of = [(grad, *rest)[i] for i in arguments]
        unsure_if(not fits(of[0], grad) or not all(t is None or is_contiguous(t) for t in of))
        unsure_if(grad.device.type != "cpu" and not fits(*of))  # mixed types are the CPU's
        return wanted([None if t is None else contiguous(t.shape, t) for t in of], rest[-1])


for _names, _arguments in _SEVERAL.items():
    _register(_names, _arguments)


@rule("native_layer_norm_backward")
def _layer_norm(grad: torch.Tensor, x: torch.Tensor, *rest: Any) -> Layouts:
    """Row-major, in whatever order ``x`` and its gradient come."""
    of = (x, *rest[3:5])
    unsure_if(not fits(x, grad) or x.device.type not in ("cpu", "cuda"))
    unsure_if(x.device.type != "cpu" and not alike(*of))  # mixed types are the CPU's
    return wanted([None if t is None else contiguous(t.shape, t) for t in of], rest[-1])


@rule("_prelu_kernel_backward")
def _prelu(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> Layouts:
    unsure_if(not fits(x, weight) or not same_sizes(grad.shape, x.shape) or not is_contiguous(grad))
    return [_one(grad, x)] * 2
