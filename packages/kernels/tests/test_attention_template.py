"""Attention as a compiler finds it: the entry point, which calls fit, and what was measured."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torchsmith_kernels import Template, attention_template
from torchsmith_kernels._src import launch, store


def call(
    length: int = 1024, heads: int = 4, dtype: torch.dtype = torch.bfloat16, **changes: object
) -> dict[str, object]:
    with FakeTensorMode(allow_non_fake_inputs=True):
        query = torch.empty(2, 4, length, 64, device="cuda", dtype=dtype)
        key = torch.empty(2, heads, length, 64, device="cuda", dtype=dtype)
    usual = {"query": query, "key": key, "value": key, "attn_mask": None}
    return {**usual, "scale": 0.125, "softcap": 50.0, **changes}


def test_the_entry_point_leads_here() -> None:
    told = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    value = told["project"]["entry-points"]["torchsmith.kernels"]["attention"]
    entry = EntryPoint("attention", value, "torchsmith.kernels")
    assert entry.load() is attention_template
    assert isinstance(attention_template, Template)


def test_the_op_takes_the_parameters() -> None:
    own = tuple(argument.name for argument in attention_template.op._schema.arguments)
    assert own == attention_template.parameters


def test_matches_what_the_kernels_take() -> None:
    matches = attention_template.matches
    assert matches(call()) and matches(call(heads=2, softcap=0.0))
    assert not matches(call(heads=3))
    assert not matches(call(dtype=torch.float32))
    assert not matches(call(query=torch.empty(2, 4, 8, 64)))
    assert not matches(call(value=None))
    assert not matches(call(softcap=-1.0))


@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("masked", [False, True])
def test_the_op_computes_what_the_products_do(softcap: float, masked: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 4, 6, 8, generator=generator)
    key, value = torch.randn(2, 2, 2, 5, 8, generator=generator)
    mask = torch.randn(2, 1, 6, 5, generator=generator) if masked else None
    got = attention_template.op(query, key, value, mask, 0.3, softcap)
    wide = [x.double().repeat_interleave(2, 1) for x in (key, value)]
    scores = 0.3 * query.double() @ wide[0].mT
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    scores = scores if mask is None else scores + mask.double()
    want = torch.softmax(scores, -1) @ wide[1]
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)
    fake = torch.library.opcheck(
        attention_template.op,
        (query, key, value, mask, 0.3, softcap),
        test_utils=("test_schema", "test_faketensor"),
    )
    assert set(fake.values()) == {"SUCCESS"}


def test_speedup_is_that_of_the_longest_that_was_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHSMITH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(launch, "capability", lambda device: 99)
    speedup = attention_template.speedup
    assert speedup(call()) is None
    entry = {"speedup_over_products": {"512": 1.5, "2048": 3.0}}
    key = "written out/64/bfloat16/capped/free"
    store.save("flash_attention", 99, "a GPU", {key: entry})
    assert [speedup(call(n)) for n in (256, 512, 1024, 4096)] == [None, 1.5, 1.5, 3.0]
    assert speedup(call(softcap=0.0)) is None
    assert speedup(call(query=call(128)["query"])) is None
    assert speedup(call(query=torch.empty(2, 4, 8, 64))) is None


def test_what_is_shipped_for_an_h200_takes_it_without_a_mask_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(launch, "capability", lambda device: 90)
    monkeypatch.setattr(store, "tuned_table", lambda op, capability: {})
    mask = torch.zeros(1024, 1024, dtype=torch.bfloat16)
    for softcap in (0.0, 50.0):
        free = attention_template.speedup(call(softcap=softcap))
        masked = attention_template.speedup(call(softcap=softcap, attn_mask=mask))
        assert free is not None and masked is not None and masked < 1 < free
