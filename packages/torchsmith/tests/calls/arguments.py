"""What a call is given: tensors of any layout, history and aliasing, as told by a few facts."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch
from calls.blocks import WIDTH
from torch import nn

LAYOUTS = (
    "dense", "dense", "turned", "offset", "unaligned", "steps", "expanded", "last", "foreign",
)  # fmt: skip
HISTORIES = (
    "none", "none", "leaf", "leaf", "inner", "view", "part", "parameter", "detached", "inference",
)  # fmt: skip
SECONDS = ("absent", "absent", "other", "other", "same", "view", "overlap", "model", "buffer")
SIZES = (0, 1, 2, 3, 3, 5, 8)
NUMBERS: tuple[Any, ...] = (1, 1, 2, 3, 0, 0.5, 1.5, True, -1)
DTYPES = (torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16)


@dataclass
class Facts:
    """What arguments are made by."""

    size: int = 3
    layout: str = "dense"
    dtype: torch.dtype = torch.float32
    history: str = "none"
    second: str = "absent"
    number: Any = 1
    keyword: bool = False
    again: bool = False


@dataclass(eq=False)
class Given:
    """The arguments of a call, and the leaves that they come from."""

    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    leaves: list[torch.Tensor] = field(default_factory=list)

    def tensors(self) -> list[torch.Tensor]:
        return [x for x in (*self.args, *self.kwargs.values()) if isinstance(x, torch.Tensor)]


def shape_of(kind: str, size: int) -> tuple[int, ...]:
    """The sizes of a first argument, of which one is ``size``."""
    return {"rows": (size, WIDTH), "steps": (2, size, WIDTH), "images": (2, WIDTH, size, 3)}[kind]


def numbers(shape: tuple[int, ...], rng: random.Random, dtype: torch.dtype) -> torch.Tensor:
    """Numbers that are exact in any type; the global generator is not asked."""
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    return (torch.randint(-16, 17, shape, generator=generator) / 8).to(dtype)


def laid_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    """A copy of ``x`` of that layout."""
    match layout:
        case "turned":
            return x.transpose(0, -1).contiguous().transpose(0, -1)
        case "offset":
            return torch.cat([x.new_zeros(4), x.reshape(-1)])[4:].view(x.shape)
        case "unaligned":
            return torch.cat([x.new_zeros(1), x.reshape(-1)])[1:].view(x.shape)
        case "steps":
            return torch.stack([x, x], -1)[..., 0]
        case "expanded":
            return x[:1].clone().expand(x.shape) if len(x) else x.clone()
        case "last" if x.dim() == 4:
            return x.clone(memory_format=torch.channels_last)
        case "foreign" if x.dim() > 1:
            shape = (*x.shape[:-1], x.shape[-1] + 3)
            return x.new_zeros(shape)[..., : x.shape[-1]].copy_(x)
    return x.clone()


def with_history(x: torch.Tensor, history: str, leaves: list[torch.Tensor]) -> torch.Tensor:
    """``x`` as autograd is to know it; leaves are added to ``leaves``."""
    match history:
        case "parameter":
            x = nn.Parameter(x)
        case "leaf" | "inner" | "view" | "part":
            x.requires_grad_()
        case "inference":
            with torch.inference_mode():
                return x.clone()
    if not x.requires_grad:
        return x
    leaves.append(x)
    match history:
        case "inner":
            return x.clone(memory_format=torch.preserve_format)
        case "view":
            return x.clone(memory_format=torch.preserve_format)[...]
        case "part":
            return torch.cat([x, x]).narrow(0, 0, len(x))
    return x


def make(
    facts: Facts, kind: str, model: nn.Module, rng: random.Random, before: Given | None
) -> Given:
    """The arguments of a call."""
    if facts.again and before is not None:
        return before
    given = Given()
    x = laid_out(numbers(shape_of(kind, facts.size), rng, facts.dtype), facts.layout)
    x = with_history(x, facts.history, given.leaves)
    given.args.append(x)
    y = _second(facts, x, model, rng, given)
    if facts.keyword:
        given.kwargs = {"n": facts.number, "y": y}
    elif y is not None or facts.number != 1:
        given.args += [y, facts.number]
    return given


def _second(
    facts: Facts, x: torch.Tensor, model: nn.Module, rng: random.Random, given: Given
) -> torch.Tensor | None:
    match facts.second:
        case "other":
            y = numbers(tuple(x.shape), rng, facts.dtype)
            return with_history(y, rng.choice(("none", "leaf", "inner")), given.leaves)
        case "same":
            return x
        case "view":
            return x[:]
        case "overlap" if len(x) > 1:
            return x.detach()[:1]
        case "model":
            found = [p for p in model.parameters() if p.dim() == 1 and len(p) in (1, x.shape[-1])]
            return rng.choice(found) if found else None
        case "buffer":
            return next((b for b in model.buffers() if b.dim() == 0), None)
    return None
