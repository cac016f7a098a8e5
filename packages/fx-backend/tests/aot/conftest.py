"""What tests of training share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from composition.machines import Reference


@pytest.fixture
def reference_machine() -> Iterator[None]:
    """Kernels run in the evaluator of the loop IR."""
    with Reference().installed():
        yield
