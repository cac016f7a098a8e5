"""What all tests share: passes of the garbage collector look at what tests make, not at the million
objects of libraries and of the tests' own descriptions. Many tests ask for a whole pass."""

import gc


def pytest_collection_finish():
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    gc.unfreeze()
