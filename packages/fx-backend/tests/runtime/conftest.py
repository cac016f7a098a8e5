"""A cache of its own for each test, and small plans."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torchsmith_fx_backend._src.loops.index import const, var
from torchsmith_fx_backend._src.loops.ir import BufferArg, Compute, Kernel, Literal, Load, Op, Store
from torchsmith_fx_backend._src.runtime import launchers
from torchsmith_fx_backend._src.runtime.cache import Cache
from torchsmith_fx_backend._src.schedule.plan import Allocate, Free, Launch, Layout, Name, Plan


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture(autouse=True)
def fresh_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process: no kernel is loaded yet, no warning has been given."""
    monkeypatch.setattr(launchers, "_instances", {})


class Plans:
    """Builders of small plans."""

    cpu = torch.device("cpu")

    def layout(self, *size: int, dtype: torch.dtype = torch.float32) -> Layout:
        strides, step = [], 1
        for extent in reversed(size):
            strides.append(const(step))
            step *= extent
        return Layout(dtype, self.cpu, tuple(map(const, size)), tuple(reversed(strides)))

    def add(self, value: float, size: int) -> Kernel:
        """``out[i] = in[i] + value``"""
        f32 = torch.float32
        body = (
            Load(0, var(0), f32),
            Literal(value, f32),
            Compute(Op.ADD, (0, 1), f32),
            Store(1, var(0), 2),
        )
        args = (BufferArg(f32, True, False), BufferArg(f32, False, True))
        return Kernel((const(size),), 1, body, args, ())

    def plus(self, value: float, size: int = 8) -> Plan:
        """``x + value``"""
        return Plan(
            ("x",),
            (),
            (
                Allocate("buf0", self.layout(size)),
                Launch(self.add(value, size), ("x", "buf0"), self.cpu, ("y = x + value",)),
                Free("x"),
            ),
            (Name("buf0"),),
        )


@pytest.fixture
def plans() -> Plans:
    return Plans()
