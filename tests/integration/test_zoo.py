"""Many model classes of transformers through the tracer: equal to eager, and how many graphs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from zoo import ENTRIES, check

TRAINED = (
    "LlamaForCausalLM MixtralForCausalLM MambaForCausalLM BertModel T5ForConditionalGeneration "
    "BartForConditionalGeneration SwinModel CLIPModel HubertModel BloomForCausalLM"
).split()


def verify(name: str, *, train: bool) -> None:
    verdict = check(name, train)
    assert not verdict.error
    assert verdict.equal
    expected = ENTRIES[name].get("breaks")
    if expected is None:
        assert (verdict.graphs, verdict.breaks) == (1, ())
    else:
        found = {re.search(r"TS-T\d+", text).group() for text in verdict.breaks}  # type: ignore[union-attr]
        assert found, "it is one graph now: take the entry's breaks away"
        assert found <= set(expected)


@pytest.mark.parametrize("name", ENTRIES)
def test_inference_equals_eager(name: str) -> None:
    verify(name, train=False)


@pytest.mark.parametrize("name", TRAINED)
def test_gradients_equal_eager(name: str) -> None:
    verify(name, train=True)


def test_nearly_all_models_are_one_graph() -> None:
    broken = [name for name, entry in ENTRIES.items() if "breaks" in entry]
    assert len(ENTRIES) >= 60
    assert len(broken) <= 0.05 * len(ENTRIES)
