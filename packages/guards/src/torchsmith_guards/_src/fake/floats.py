"""Float arguments that may vary from call to call, though torch's own functions want them known.

Where a schema says ``float``, not ``Scalar``, C++ asks a symbolic number for its value, which would
make it a constant. No layout depends on these arguments, and between their limits each function
takes the same path for all values: there a value stands in for the symbol, and what is guarded is
that it lies between the limits.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from torchsmith_guards._src.shapes.queries import hint_of

Target = Callable[..., object] | str
_Limits = tuple[float, float]  # both excluded

_ANY, _POSITIVE, _SHARE = (-math.inf, math.inf), (0.0, math.inf), (0.0, 1.0)
_SMALL = (1e-13, 1.0)  # what is divided by its root does not overflow
_OF_FUNCTIONS: dict[str, dict[str, _Limits]] = {
    **{f"dropout{rank}": {"p": _SHARE} for rank in ("", "1d", "2d", "3d")},
    "alpha_dropout": {"p": _SHARE},
    "feature_alpha_dropout": {"p": _SHARE},
    "cross_entropy": {"label_smoothing": _SHARE},
    "batch_norm": {"momentum": _ANY, "eps": _SMALL},
    **{f"{kind}_norm": {"eps": _SMALL} for kind in ("layer", "rms", "group", "instance")},
    "huber_loss": {"delta": _POSITIVE},
    "smooth_l1_loss": {"beta": _POSITIVE},
    "margin_ranking_loss": {"margin": _ANY},
    "hinge_embedding_loss": {"margin": _ANY},
    "cosine_embedding_loss": {"margin": _ANY},
    "triplet_margin_loss": {"margin": _POSITIVE},
    "pad": {"value": _ANY},
}
# Where in the arguments, for functions that have no signature.
_OF_BUILTINS: dict[Target, dict[str, tuple[int | None, _Limits]]] = {
    F.scaled_dot_product_attention: {"scale": (None, _POSITIVE), "dropout_p": (4, _SHARE)},
    torch.quantile: {"q": (1, _SHARE)},
    "quantile": {"q": (1, _SHARE)},
    "bernoulli_": {"p": (1, _SHARE)},
    "uniform_": {"from": (1, _ANY), "to": (2, _ANY)},
    "normal_": {"mean": (1, _ANY), "std": (2, _POSITIVE)},
    torch.normal: {"mean": (0, _ANY), "std": (1, _POSITIVE)},
    "exponential_": {"lambd": (1, _POSITIVE)},
}
for _rank, _linear in enumerate(("linear1d", "bilinear2d", "trilinear3d"), 1):
    for _name, _first in (("upsample_nearest", 2), ("_upsample_nearest_exact", 2), (_linear, 3)):
        _full = f"upsample_{_name}" if _name is _linear else f"{_name}{_rank}d"
        _OF_BUILTINS[getattr(torch.ops.aten, _full).default] = {
            f"scale {place}": (place, _POSITIVE) for place in range(_first, _first + _rank)
        }
_FLOATS = dict(_OF_BUILTINS)
for _name, _limits in _OF_FUNCTIONS.items():
    _function = getattr(F, _name)
    _places = list(inspect.signature(_function).parameters)
    _FLOATS[_function] = {n: (_places.index(n), limits) for n, limits in _limits.items()}


def varying_floats(
    target: Target, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[int | str, torch.SymFloat]:
    """The arguments of a call of ``target`` that are symbols and need not be known, by place or
    name. That they lie between their limits is guarded."""
    known = _FLOATS.get(target)
    if known is None:
        return {}
    found: dict[int | str, torch.SymFloat] = {}
    for name, (place, (low, high)) in known.items():
        where: int | str = name
        if place is not None and place < len(args):
            where = place
        number = args[where] if isinstance(where, int) else kwargs.get(name)
        if isinstance(number, torch.SymFloat) and hint_of(number) is not None:
            if (low == -math.inf or number > low) and (high == math.inf or number < high):
                found[where] = number
    return found


def with_examples(
    target: Target, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call of ``target`` with values for the symbols that need not be known."""
    found = varying_floats(target, args, kwargs)
    if not found:
        return args, kwargs
    values = {where: hint_of(number) for where, number in found.items()}
    args = tuple(values.get(place, arg) for place, arg in enumerate(args))
    return args, {name: values.get(name, arg) for name, arg in kwargs.items()}
