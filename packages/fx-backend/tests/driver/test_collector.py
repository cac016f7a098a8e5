"""Compiling a graph does not run Python's collector, and leaves it as it was."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import fx
from torchsmith_fx_backend import smith


class Long(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(150):
            x = torch.sin(x) * 2
        return x


@pytest.mark.parametrize("training", [False, True])
def test_a_compile_is_not_interrupted(training: bool) -> None:
    x = torch.ones(3, requires_grad=training)
    gm = fx.symbolic_trace(Long())
    collections = []

    def watch(phase: str, info: dict[str, int]) -> None:
        collections.append((phase, info))

    limits = gc.get_threshold()
    gc.collect()
    gc.callbacks.append(watch)
    gc.set_threshold(50, 10, 10)
    try:
        compiled = smith(gm, [x])
        result = compiled(x)
        before = len(collections)
        if training:
            result.sum().backward()
        assert gc.isenabled()
    finally:
        gc.set_threshold(*limits)
        gc.callbacks.remove(watch)
    # What comes before and after the compile itself may collect.
    assert before < 200
    assert len(collections) - before < 100
