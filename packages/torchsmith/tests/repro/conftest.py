"""Faults to plant into the compiler: each wrong in a way that a compiler goes wrong in."""

import dataclasses

import pytest
import torch
import torchsmith
from torchsmith_fx_backend._src.loops import registry
from torchsmith_fx_backend._src.runtime.launchers import launcher_for

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    """No graph that was compiled with a fault outlives its test."""
    monkeypatch.setenv("TORCHSMITH_GRAPH_CACHE", "0")
    yield
    forget_kernels()
    torchsmith.reset()


@pytest.fixture
def wrong_exp(monkeypatch):
    """``exp`` is lowered as if it were ``sin``."""
    swap_lowering(monkeypatch, aten.exp.default, aten.sin.default)


def forget_kernels():
    """The text of a kernel is kept for as long as the process lives."""
    launcher_for(torch.device("cpu"))._texts.clear()


def swap_lowering(monkeypatch, op, other):
    wrong = dataclasses.replace(registry.LOWERINGS[op], emit=registry.LOWERINGS[other].emit)
    monkeypatch.setitem(registry.LOWERINGS, op, wrong)
