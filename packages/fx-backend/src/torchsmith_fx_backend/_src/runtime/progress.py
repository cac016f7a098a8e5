"""How far a compiled graph had come when it failed.

A wrapper says in a comment below each line that writes into a tensor of the caller's what that was.
Nothing is kept while it runs: the traceback tells the line that failed.
"""

from __future__ import annotations

import linecache
import types

import torch

WRITTEN = "# written: "  # what follows are names of the wrapper's
GENERATED = "torchsmith_generated"  # the name of a wrapper's module


def written_before(error: BaseException) -> list[torch.Tensor]:
    """The tensors of the caller's that compiled graphs had written when ``error`` was raised."""
    found = list(getattr(error, "written", ()))  # said by who ran a whole graph
    place = error.__traceback__
    while place is not None:
        found += _named(place.tb_frame, place.tb_lineno)
        place = place.tb_next
    return list({id(tensor): tensor for tensor in found}.values())


def _named(frame: types.FrameType, line: int) -> list[torch.Tensor]:
    if frame.f_globals.get("__name__") != GENERATED:
        return []
    lines = linecache.getlines(frame.f_code.co_filename)[frame.f_code.co_firstlineno : line]
    texts = [text.strip() for text in lines]
    names = [t.removeprefix(WRITTEN).split(", ") for t in texts if t.startswith(WRITTEN)]
    places = {**frame.f_globals, **frame.f_locals}
    return [places[name] for some in names for name in some if name in places]
