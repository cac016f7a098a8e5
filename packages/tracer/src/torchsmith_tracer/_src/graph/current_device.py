"""Which calls put tensors on the GPU that is current: those that name a GPU, and not by its number.

Fake tensors say the number, and so do the graphs that backends make: which GPU is current is a fact
of the call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from torchsmith_tracer._src.torch_private import is_unnumbered


def relies_on_current_device(
    target: Callable[..., object] | str, args: Sequence[object], kwargs: Mapping[str, object]
) -> bool:
    """Whether what ``target`` gives for these arguments of a graph depends on the current GPU:
    ``x.cuda()``, ``x.to("cuda")``, ``torch.ones(3, device="cuda")``."""
    if target == "cuda" and all(device is None for device in (*args[1:2], kwargs.get("device"))):
        return True
    return any(map(_unnumbered, args)) or any(map(_unnumbered, kwargs.values()))


def _unnumbered(argument: object) -> bool:
    if isinstance(argument, torch.device):
        return is_unnumbered(argument)
    return isinstance(argument, str) and (argument == "cuda" or argument.startswith("torch.cuda."))
