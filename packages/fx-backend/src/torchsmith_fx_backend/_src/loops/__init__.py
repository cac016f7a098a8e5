"""Loop IR: what an fx node computes, as data.

In: fx nodes of aten operators. Out: ``ir.Kernel``, a loop nest over an SSA list of scalar
operations. Read ``ir.py`` and ``index.py`` first, then ``body.py`` (what one node computes),
``nest.py`` (how a kernel grows of such bodies) and one of the lowering tables (``pointwise.py``);
``reference.py`` says what a kernel means.
"""

from torchsmith_fx_backend._src.loops import (  # noqa: F401 - they register their lowerings
    creation,
    gathers,
    pointwise,
    random,
    reductions,
    resampling,
    scatters,
    views,
    windows,
)
