"""NumPy versions of the libdevice functions, for Triton's interpreter only.

Each function takes and returns interpreter tensors. Nothing here is used when kernels are compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

Array = npt.NDArray[np.generic]


def _elementwise(function: Callable[..., Array]) -> Callable[..., tl.tensor]:
    def apply(*args: tl.tensor) -> tl.tensor:
        first = max(args, key=lambda arg: len(arg.shape))
        with np.errstate(all="ignore"):
            data = function(*(arg.handle.data for arg in args))
        data = np.asarray(data).astype(first.handle.data.dtype)
        blocked = any(arg.type.is_block() for arg in args)
        kind = tl.block_type(first.dtype, list(data.shape)) if blocked else first.dtype
        return tl.tensor(TensorHandle(data, first.dtype), kind)

    return apply


exp = _elementwise(np.exp)
exp2 = _elementwise(np.exp2)
expm1 = _elementwise(np.expm1)
log = _elementwise(np.log)
log2 = _elementwise(np.log2)
log1p = _elementwise(np.log1p)
sin = _elementwise(np.sin)
cos = _elementwise(np.cos)
tanh = _elementwise(np.tanh)
erf = _elementwise(np.vectorize(math.erf, otypes=[np.float64]))
pow = _elementwise(np.power)
fmod = _elementwise(np.fmod)
trunc = _elementwise(np.trunc)
rint = _elementwise(np.rint)
copysign = _elementwise(np.copysign)
rsqrt = _elementwise(lambda x: 1 / np.sqrt(x))
