"""Passes over functional graphs: in place, fx graph to fx graph, each with one purpose.

A pass is called as its class is, has ``run(graph)``, and is a frozen dataclass where it has
options. It requires a functional graph as ``aot`` makes it (no writes but final ``copy_`` nodes,
``meta["val"]`` on every node) and guarantees one; the last pass alone leaves writes. Eager's
aliasing of outputs is kept. Read ``base.py`` first; ``PASSES`` is the order in which the driver
runs them.
"""

import torch

from torchsmith_fx_backend._src.passes.attention import AttentionMasks
from torchsmith_fx_backend._src.passes.base import Pass
from torchsmith_fx_backend._src.passes.batch_norms import BatchNorms
from torchsmith_fx_backend._src.passes.batches import BatchedProducts
from torchsmith_fx_backend._src.passes.biases import ConvolutionBiases
from torchsmith_fx_backend._src.passes.casts import ComparedValues, RedundantCasts
from torchsmith_fx_backend._src.passes.common import CommonSubexpressions, DeadCode
from torchsmith_fx_backend._src.passes.contractions import Contractions
from torchsmith_fx_backend._src.passes.fold import FoldConstants
from torchsmith_fx_backend._src.passes.frozen import FoldFrozen, FoldScales, PackConvolutions
from torchsmith_fx_backend._src.passes.fused_attention import FusedAttention
from torchsmith_fx_backend._src.passes.inplace import WritesInPlace
from torchsmith_fx_backend._src.passes.layouts import ChannelsLast, RowsAsImages, SharedCopies
from torchsmith_fx_backend._src.passes.lists import Lists
from torchsmith_fx_backend._src.passes.masked import MaskedWrites
from torchsmith_fx_backend._src.passes.noop import NoOps
from torchsmith_fx_backend._src.passes.once import ComputedOnce
from torchsmith_fx_backend._src.passes.padding import AlignedProducts
from torchsmith_fx_backend._src.passes.parts import NestedParts
from torchsmith_fx_backend._src.passes.patches import GroupProducts, PatchProducts
from torchsmith_fx_backend._src.passes.repeats import Repeats
from torchsmith_fx_backend._src.passes.templates import LibraryKernels, SummedRows
from torchsmith_fx_backend._src.passes.thin import ThinProducts
from torchsmith_fx_backend._src.passes.written import WrittenParts

PASSES: tuple[Pass, ...] = (
    Lists(),
    RedundantCasts(),
    NoOps(),
    WrittenParts(),
    MaskedWrites(),
    NestedParts(),
    BatchNorms(),
    BatchNorms("cuda", (torch.float16, torch.bfloat16, torch.float32), one_walk=True),
    FoldConstants(),
    CommonSubexpressions(),
    SummedRows(),
    AttentionMasks(),
    FusedAttention(),
    LibraryKernels(),
    ComputedOnce(),
    Contractions(),
    Repeats(),
    GroupProducts(),
    SharedCopies(),
    RowsAsImages(),
    ChannelsLast(),
    PatchProducts(),
    ConvolutionBiases(),
    ThinProducts(),
    AlignedProducts(),
    BatchedProducts(),
    ComparedValues(),
    DeadCode(),
    WritesInPlace(),
)
# With what a module holds as constants. Weights are packed once, so that even convolutions in
# float32 on a CPU gain from channels-last.
_SEVERAL = [type(each) for each in PASSES].index(CommonSubexpressions)
FROZEN_PASSES: tuple[Pass, ...] = (
    Lists(),
    *PASSES[: _SEVERAL + 1],
    FoldFrozen(),
    FoldScales(),
    ChannelsLast("cpu", (torch.float32,), biases=False),
    PackConvolutions(),
    *PASSES[_SEVERAL + 1 :],
)
