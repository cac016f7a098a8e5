"""How far a compiled graph had come when it failed.

A wrapper says in a comment below each line that writes into a tensor of the caller's what that was.
Nothing is kept while it runs: the traceback tells the line that failed.
"""

from __future__ import annotations

import linecache

import torch

WRITTEN = "# written: "  # what follows is a name of the wrapper's
GENERATED = "torchsmith_generated"  # the name of a wrapper's module


def written_before(error: BaseException) -> list[torch.Tensor]:
    """The tensors of the caller's that compiled graphs had written when ``error`` was raised."""
    found = list(getattr(error, "written", ()))  # said by who ran a whole graph
    place = error.__traceback__
    while place is not None:
        frame = place.tb_frame
        if frame.f_globals.get("__name__") == GENERATED:
            lines = linecache.getlines(frame.f_code.co_filename)
            above = [line.strip() for line in lines[frame.f_code.co_firstlineno : place.tb_lineno]]
            names = [line.removeprefix(WRITTEN) for line in above if line.startswith(WRITTEN)]
            known = {**frame.f_globals, **frame.f_locals}
            found += [known[name] for name in names if name in known]
        place = place.tb_next
    return list({id(tensor): tensor for tensor in found}.values())
