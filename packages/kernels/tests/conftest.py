"""Puts ``kernel_testing`` on the path; every test starts with the same random numbers.

Tests of large tensors run on GPUs of their size only.
"""

from __future__ import annotations

import sys
from pathlib import Path

import hypothesis
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

LARGE = 64 * 2**30  # bytes of device memory that the largest test may use


class TorchRandom:
    """Torch's random numbers as hypothesis wants them, so that each example can be repeated."""

    seed = staticmethod(torch.manual_seed)
    getstate = staticmethod(torch.get_rng_state)
    setstate = staticmethod(torch.set_rng_state)


RANDOM = TorchRandom()  # hypothesis keeps a weak reference
hypothesis.register_random(RANDOM)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "large: more than 2**31 elements; run these one at a time")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    memory = 0
    if torch.cuda.is_available():
        memory = torch.cuda.get_device_properties(0).total_memory
    if memory < LARGE:
        skip = pytest.mark.skip(reason=f"needs a GPU with {LARGE // 2**30} GiB of memory")
        for item in items:
            if item.get_closest_marker("large"):
                item.add_marker(skip)
