"""Functions that aten's libraries compute faster than what a compiler makes of loops."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import fx

from torchsmith_fx_backend._src.loops.ir import Compute, Op
from torchsmith_fx_backend._src.loops.registry import Pointwise

if TYPE_CHECKING:
    from torchsmith_fx_backend._src.schedule.facts import Facts

_ALWAYS = {(Op.POW, torch.float64)}  # no vector code; another walk through memory costs far less
_OPS = (Op.EXP, Op.LOG, Op.TANH, Op.SQRT)
_ALONE = {(op, dtype) for op in _OPS for dtype in (torch.float32, torch.float64)}
_ALONE |= {(Op.LOG2, torch.float32), (Op.SIN, torch.float64), (Op.COS, torch.float64)}
_BYTES = 1 << 13  # from this size of a result on; a call takes longer to begin than a launch
_COPY = torch.ops.aten.copy_.default


def library_is_faster(facts: Facts, node: fx.Node) -> bool:
    """Whether aten shall compute a node that could be a part of a kernel on a CPU."""
    if not isinstance(facts.rule(node), Pointwise) or facts.device(node).type != "cpu":
        return False
    own = facts.info(node)
    if own.bytes() < _BYTES:
        return False
    done = [(n.op, n.dtype) for n in facts.body(node).nodes if isinstance(n, Compute)]
    if not _ALWAYS.isdisjoint(done):
        return True
    if len(done) != 1 or done[0] not in _ALONE or len(node.all_input_nodes) != 1:
        return False
    source = node.all_input_nodes[0]
    around = [source, *facts.users(node)]
    alone = all(facts.rule(n) is None and n.target is not _COPY for n in around)
    return alone and own.dense() and facts.info(source).stride == own.stride
