"""What all tests share.

Passes of the garbage collector look at what a module's tests make, not at the million objects of
libraries, of the tests' own descriptions and of the modules before. Many tests ask for a whole
pass. And an interruption is one also where a shell started the tests in the background, which
leaves it ignored.
"""

import gc
import signal
import threading

import pytest


@pytest.fixture(scope="module", autouse=True)
def _old_objects_are_not_looked_at():
    gc.collect()
    gc.freeze()


def pytest_configure():
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure():
    gc.unfreeze()
