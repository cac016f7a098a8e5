"""Operators that write their arguments, made functional.

Their functional variants may take more arguments. Without a variant the call runs on copies of what
it writes and returns the copies, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchsmith_fx_backend._src.capture.torch_private import OpOverload


def call_on_copies(op: str, writes: Sequence[int], *args: object) -> tuple[object, ...]:
    """Call operator ``op`` with copies of the arguments that it writes.

    Args:
        op: qualified overload name, for example ``mylib::update.default``.
        writes: positions in ``args`` of the written tensors.
        args: all arguments by position, keyword-only ones included.

    Returns:
        The operator's results, then the written copies in the order of ``writes``.
    """
    namespace, _, rest = op.partition("::")
    name, _, overload = rest.partition(".")
    target = getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
    values = list(args)
    for position in writes:
        value = values[position]
        if isinstance(value, torch.Tensor):
            values[position] = value.clone()
    schema = target._schema.arguments
    positional = [v for v, a in zip(values, schema) if not a.kwarg_only]
    keywords = {a.name: v for v, a in zip(values, schema) if a.kwarg_only}
    result = target(*positional, **keywords)
    results = result if isinstance(result, tuple) else () if result is None else (result,)
    return (*results, *(values[position] for position in writes))


def add_defaults(
    func: OpOverload, variant: OpOverload, args: list[Any], kwargs: dict[str, Any]
) -> None:
    """Append what ``func`` has a default for and ``variant`` requires."""
    defaults = {a.name: a.default_value for a in func._schema.arguments if a.has_default_value()}
    for argument in variant._schema.arguments[len(args) :]:
        name = argument.name
        if argument.has_default_value() or name in kwargs or name not in defaults:
            continue
        kwargs[name] = defaults[name]
