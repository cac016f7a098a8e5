"""Triton kernels as torch.library ops, usable from eager PyTorch.

>>> import torch
>>> from torchsmith_kernels import rms_norm
>>> rms_norm(torch.tensor([[3.0, 4.0]]), (2,), eps=0.0)
tensor([[0.8485, 1.1314]])
"""

from torchsmith_kernels._src.add_layer_norm.op import add_layer_norm
from torchsmith_kernels._src.add_rms_norm.op import add_rms_norm
from torchsmith_kernels._src.apply_rotary.op import apply_rotary
from torchsmith_kernels._src.bias_gelu_dropout.op import bias_gelu_dropout
from torchsmith_kernels._src.cross_entropy.functional import cross_entropy
from torchsmith_kernels._src.cross_entropy.module import CrossEntropyLoss
from torchsmith_kernels._src.dropout.module import Dropout
from torchsmith_kernels._src.dropout.op import dropout
from torchsmith_kernels._src.embedding.module import Embedding
from torchsmith_kernels._src.embedding.op import embedding
from torchsmith_kernels._src.flash_attention.op import flash_attention
from torchsmith_kernels._src.flash_attention.score_mod import ScoreMod
from torchsmith_kernels._src.flash_attention.template import attention_template
from torchsmith_kernels._src.fused_linear_cross_entropy.functional import (
    fused_linear_cross_entropy,
)
from torchsmith_kernels._src.fused_linear_cross_entropy.module import (
    FusedLinearCrossEntropyLoss,
)
from torchsmith_kernels._src.gated.module import GeGLU, SwiGLU
from torchsmith_kernels._src.geglu.op import geglu
from torchsmith_kernels._src.group_norm.module import GroupNorm
from torchsmith_kernels._src.group_norm.op import group_norm
from torchsmith_kernels._src.js_div.op import js_div
from torchsmith_kernels._src.kl_div.op import kl_div
from torchsmith_kernels._src.layer_norm.module import LayerNorm
from torchsmith_kernels._src.layer_norm.op import layer_norm
from torchsmith_kernels._src.matmul.epilogue import addmm_template, matmul_template
from torchsmith_kernels._src.matmul.op import matmul
from torchsmith_kernels._src.paged_attention.op import paged_attention
from torchsmith_kernels._src.relu_squared.op import relu_squared
from torchsmith_kernels._src.rms_norm.module import RMSNorm
from torchsmith_kernels._src.rms_norm.op import rms_norm
from torchsmith_kernels._src.rms_norm.template import rms_norm_template
from torchsmith_kernels._src.softmax.module import LogSoftmax, Softmax
from torchsmith_kernels._src.softmax.op import log_softmax, softmax
from torchsmith_kernels._src.sum_rows.rewrite import sum_rows_template
from torchsmith_kernels._src.swiglu.op import swiglu
from torchsmith_kernels._src.template import Template
from torchsmith_kernels.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    DeviceError,
    DimensionError,
    DtypeError,
    FallbackWarning,
    KernelsError,
    PatchError,
    ShapeError,
    TuningError,
)
from torchsmith_kernels.patch import patch
from torchsmith_kernels.tune import tune

__all__ = [
    "ArgumentTypeError",
    "ArgumentValueError",
    "CrossEntropyLoss",
    "DeviceError",
    "DimensionError",
    "Dropout",
    "DtypeError",
    "Embedding",
    "FallbackWarning",
    "FusedLinearCrossEntropyLoss",
    "GeGLU",
    "GroupNorm",
    "KernelsError",
    "LayerNorm",
    "LogSoftmax",
    "PatchError",
    "RMSNorm",
    "ScoreMod",
    "ShapeError",
    "Softmax",
    "SwiGLU",
    "Template",
    "TuningError",
    "add_layer_norm",
    "add_rms_norm",
    "addmm_template",
    "apply_rotary",
    "attention_template",
    "bias_gelu_dropout",
    "cross_entropy",
    "dropout",
    "embedding",
    "flash_attention",
    "fused_linear_cross_entropy",
    "geglu",
    "group_norm",
    "js_div",
    "kl_div",
    "layer_norm",
    "log_softmax",
    "matmul",
    "matmul_template",
    "paged_attention",
    "patch",
    "relu_squared",
    "rms_norm",
    "rms_norm_template",
    "softmax",
    "sum_rows_template",
    "swiglu",
    "tune",
]
