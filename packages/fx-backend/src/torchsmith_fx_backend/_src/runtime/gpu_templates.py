"""Finding hand-written kernels that other packages offer, without importing any by name.

A template is whatever an entry point of the group ``torchsmith.kernels`` loads to, provided that it
has the attributes of ``Template``. The generated, fused kernel stays unless a template takes the
call *and* was measured to be faster.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol, runtime_checkable

import torch

GROUP = "torchsmith.kernels"


@runtime_checkable
class Template(Protocol):
    """An op that can stand for other ops; see the README of ``torchsmith-kernels``.

    Attributes:
        name: the op's name.
        targets: overload names that it replaces, each with the position of the output it computes.
        parameters: argument names, in the order of ``op`` and of the targets.
        op: the overload to call.
        matches: whether the op's kernels take a call, given by argument name with fake tensors.
        speedup: time of generated code over the op's for a call; None where nobody measured.
    """

    @property
    def name(self) -> str: ...

    @property
    def targets(self) -> Mapping[str, int]: ...

    @property
    def parameters(self) -> tuple[str, ...]: ...

    @property
    def op(self) -> torch._ops.OpOverload: ...

    @property
    def matches(self) -> Callable[[Mapping[str, object]], bool]: ...

    @property
    def speedup(self) -> Callable[[Mapping[str, object]], float | None]: ...


class TemplateWarning(UserWarning):
    """An entry point of ``torchsmith.kernels`` cannot be used and is left out."""


@cache
def find_templates() -> Mapping[str, tuple[Template, ...]]:
    """Installed templates by target overload name, in the order of their own names.

    An entry point that does not load, or loads something else, is reported once and left out: a
    broken add-on must not break compilation.
    """
    found: dict[str, list[Template]] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda e: e.name):
        template = _load(entry)
        if template is not None:
            for target in template.targets:
                found.setdefault(target, []).append(template)
    return {target: tuple(templates) for target, templates in found.items()}


def _load(entry: EntryPoint) -> Template | None:
    try:
        template = entry.load()
    except (ImportError, AttributeError, RuntimeError, OSError) as error:
        warnings.warn(
            f"torchsmith: kernel template {entry.name!r} ({entry.value}) does not load: {error}",
            TemplateWarning,
            stacklevel=4,
        )
        return None
    if not isinstance(template, Template):
        warnings.warn(
            f"torchsmith: kernel template {entry.name!r} ({entry.value}) lacks attributes of the "
            "protocol: name, targets, parameters, op, matches, speedup",
            TemplateWarning,
            stacklevel=4,
        )
        return None
    return template


def choose_template(
    target: torch._ops.OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> tuple[Template, int] | None:
    """A template that is measured faster than generated code for this call.

    Args:
        target: the op of the graph node.
        args: its positional arguments, with fake tensors for tensors.
        kwargs: its keyword arguments, likewise.

    Returns:
        The template and the position of the target's output that it computes, or None to keep the
        generated kernel. The caller must see to it that no other output is used.
    """
    best: tuple[float, Template] | None = None
    for template in find_templates().get(str(target), ()):
        call = {**dict(zip(template.parameters, args, strict=False)), **kwargs}
        if not template.matches(call):
            continue
        speedup = template.speedup(call)
        if speedup is not None and speedup > 1 and (best is None or speedup > best[0]):
            best = (speedup, template)
    if best is None:
        return None
    return best[1], best[1].targets[str(target)]
