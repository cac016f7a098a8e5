"""Registering an op with ``torch.library``: kernels, fake kernel and autograd formula.

The autograd formula is an ordinary ``autograd.Function`` under the op's Autograd key. It is
registered by hand, because ``torch.library.register_autograd`` adds about 5 us to each call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch

# Untyped in torch. FRAGMENT, since other packages may define ops of the same namespace.
library: Any = cast(Any, torch.library.Library)("torchsmith", "FRAGMENT")


def define(
    schema: str, *, cpu: Callable[..., Any], cuda: Callable[..., Any], fake: Callable[..., Any]
) -> Any:
    """Defines ``torchsmith::<name>`` and returns its overload.

    Args:
        schema: the op's signature, starting with its name.
        cpu: implementation for CPU tensors.
        cuda: implementation for CUDA tensors.
        fake: shapes, strides and dtypes without data.
    """
    name = schema.partition("(")[0]
    library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    library.impl(name, cpu, "CPU")
    library.impl(name, cuda, "CUDA")
    torch.library.register_fake(f"torchsmith::{name}", fake, lib=library)
    return getattr(torch.ops.torchsmith, name).default


def autograd(name: str, function: Callable[..., Any]) -> None:
    """Registers ``function`` under the op's Autograd key."""
    library.impl(name, function, "Autograd")
