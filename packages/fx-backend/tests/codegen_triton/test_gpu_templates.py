"""Lookup of kernel templates through entry points, with stand-ins for the packages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint

import pytest
import torch
from torchsmith_fx_backend._src.runtime import gpu_templates
from torchsmith_fx_backend._src.runtime.gpu_templates import (
    Template,
    TemplateWarning,
    choose_template,
    find_templates,
)

aten = torch.ops.aten


@dataclass(frozen=True)
class Fake:
    name: str = "fast_exp"
    targets: Mapping[str, int] = field(default_factory=lambda: {"aten.exp.default": 0})
    parameters: tuple[str, ...] = ("self",)
    op: torch._ops.OpOverload = aten.exp.default
    matches: Callable[[Mapping[str, object]], bool] = lambda call: True
    speedup: Callable[[Mapping[str, object]], float | None] = lambda call: None


installed: dict[str, object] = {}


class FakeEntry(EntryPoint):
    def load(self) -> object:
        value = installed[self.name]
        if isinstance(value, Exception):
            raise value
        return value


@pytest.fixture(autouse=True)
def entries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def listed(group: str) -> list[EntryPoint]:
        assert group == "torchsmith.kernels"
        return [FakeEntry(name, f"module:{name}", group) for name in installed]

    installed.clear()
    monkeypatch.setattr(gpu_templates, "entry_points", listed)
    find_templates.cache_clear()
    yield
    find_templates.cache_clear()


def test_templates_are_found_by_target() -> None:
    installed["a"] = first = Fake()
    installed["b"] = second = Fake(name="both", targets={"aten.exp.default": 0, "aten.x": 1})
    assert isinstance(first, Template)
    assert find_templates() == {"aten.exp.default": (first, second), "aten.x": (second,)}


def test_the_generated_kernel_stays_unless_measured_slower() -> None:
    x = torch.ones(2)
    installed["a"] = Fake()
    assert choose_template(aten.exp.default, (x,), {}) is None, "not measured"
    for speedup, taken in ((0.9, False), (1.0, False), (1.1, True)):
        installed["a"] = Fake(speedup=lambda call, s=speedup: s)
        find_templates.cache_clear()
        assert (choose_template(aten.exp.default, (x,), {}) is not None) == taken
    assert choose_template(aten.sin.default, (x,), {}) is None


def test_calls_are_matched_by_argument_name() -> None:
    seen: list[Mapping[str, object]] = []

    def matches(call: Mapping[str, object]) -> bool:
        seen.append(call)
        return call.get("eps") == 1e-6

    installed["a"] = template = Fake(
        targets={"aten._fused_rms_norm.default": 0},
        parameters=("input", "normalized_shape", "weight", "eps"),
        matches=matches,
        speedup=lambda call: 2.0,
    )
    x = torch.ones(2, 4)
    target = aten._fused_rms_norm.default
    assert choose_template(target, (x, [4], None, 1e-6), {}) == (template, 0)
    assert choose_template(target, (x, [4], None), {"eps": 1e-5}) is None
    assert seen[1] == {"input": x, "normalized_shape": [4], "weight": None, "eps": 1e-5}


def test_the_fastest_of_several_wins() -> None:
    installed["a"] = Fake(speedup=lambda call: 1.2)
    installed["b"] = best = Fake(name="b", speedup=lambda call: 1.5)
    installed["c"] = Fake(name="c", matches=lambda call: False, speedup=lambda call: 9.0)
    chosen = choose_template(aten.exp.default, (torch.ones(2),), {})
    assert chosen == (best, 0)


@pytest.mark.parametrize("broken", [ImportError("no module"), object()], ids=["import", "type"])
def test_a_broken_template_is_reported_once_and_left_out(broken: object) -> None:
    installed["a"], installed["z"] = broken, Fake()
    with pytest.warns(TemplateWarning, match=r"'a' \(module:a\)"):
        assert len(find_templates()["aten.exp.default"]) == 1
    assert len(find_templates()["aten.exp.default"]) == 1
