"""The entry point by which a compiler finds the op."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torchsmith_kernels import Template, rms_norm_template
from torchsmith_kernels._src import store
from torchsmith_kernels._src.row_norm.config import Case


def call(**changes: object) -> dict[str, object]:
    with FakeTensorMode(allow_non_fake_inputs=True):
        x = torch.empty(4, 64, device="cuda", dtype=torch.bfloat16)
        weight = torch.empty(64, device="cuda", dtype=torch.bfloat16)
        return {"input": x, "normalized_shape": [64], "weight": weight, "eps": 1e-6, **changes}


def test_the_entry_point_leads_here() -> None:
    (found,) = [e for e in entry_points(group="torchsmith.kernels") if e.name == "rms_norm"]
    assert found.load() is rms_norm_template
    assert isinstance(rms_norm_template, Template)


def test_targets_exist_and_take_the_same_arguments() -> None:
    for target in rms_norm_template.targets:
        packet, _, overload = target.removeprefix("aten.").rpartition(".")
        schema = getattr(getattr(torch.ops.aten, packet), overload)._schema
        names = tuple(argument.name for argument in schema.arguments)
        assert names == rms_norm_template.parameters
    own = tuple(argument.name for argument in rms_norm_template.op._schema.arguments)
    assert own == rms_norm_template.parameters


def test_matches_what_the_kernels_take() -> None:
    assert rms_norm_template.matches(call())
    assert rms_norm_template.matches(call(weight=None))
    assert not rms_norm_template.matches(call(input=torch.empty(4, 64)))
    assert not rms_norm_template.matches(call(normalized_shape=[32]))
    assert not rms_norm_template.matches(call(normalized_shape="64"))
    assert not rms_norm_template.matches(call(input=None))


def test_the_op_computes_what_its_targets_do() -> None:
    x, weight = torch.randn(3, 8), torch.randn(8)
    want = torch.ops.aten._fused_rms_norm.default(x, [8], weight, 1e-6)
    got = rms_norm_template.op(x, [8], weight, 1e-6)
    position = rms_norm_template.targets["aten._fused_rms_norm.default"]
    torch.testing.assert_close(got, want[position])


def test_speedup_is_unknown_until_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHSMITH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert rms_norm_template.speedup(call()) is None
    key = Case("forward", 64, torch.bfloat16).key()
    store.save("rms_norm", 90, "a GPU", {key: {"speedup_over_fused": 1.2}})
    assert rms_norm_template.speedup(call()) == 1.2
    assert rms_norm_template.speedup(call(input=torch.empty(4, 64))) is None
