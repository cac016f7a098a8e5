"""What all tests share: passes of the garbage collector look at what a module's tests make, not at
the million objects of libraries, of the tests' own descriptions and of the modules before. Many
tests ask for a whole pass."""

import gc

import pytest


@pytest.fixture(scope="module", autouse=True)
def _old_objects_are_not_looked_at():
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    gc.unfreeze()
