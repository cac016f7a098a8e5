"""CPython's own tests, captured whole: as many pass as have passed before.

These are the modules without slow tests; ``nox -s conformance`` runs them all.
"""

from __future__ import annotations

import importlib.util
import sys

import conformance
import pytest

# Tests that passed on 3.11, 3.12 and 3.13, to be raised when more do.
FLOORS = {
    "bool": (28, 28, 28),
    "patma": (295, 296, 306),
    "generator_stop": (2, 2, 2),
    "raise": (34, 34, 35),
    "with": (50, 50, 50),
}


@pytest.mark.skipif(
    importlib.util.find_spec("test.test_bool") is None, reason="no tests of CPython"
)
@pytest.mark.parametrize("module", FLOORS)
def test_floor(module):
    found = conformance.in_a_process(module, seconds=60)
    passed = sum(why is None for why in found.values())
    assert passed >= FLOORS[module][sys.version_info[1] - 11], {
        name: conformance.reason(why) for name, why in found.items() if why is not None
    }
