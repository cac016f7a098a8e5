"""What all tests share.

Passes of the garbage collector look at what a module's tests make, not at the million objects of
libraries, of the tests' own descriptions and of the modules before. Many tests ask for a whole
pass. And an interruption is one also where a shell started the tests in the background, which
leaves it ignored.

``--share N`` runs the first case of each test and one in N of its other cases, which are others on
each Python; tests of what follows bytecode run whole.
"""

import gc
import signal
import sys
import threading
import zlib

import pytest

FOLLOW_BYTECODE = {"interp", "codegen", "frames", "breaks"}


def pytest_addoption(parser):
    parser.addoption("--share", type=int, default=1, help="one in N of a test's cases")


def pytest_collection_modifyitems(config, items):
    share, seen, kept, left = config.getoption("share"), set(), [], []
    for item in items:
        test = item.nodeid.partition("[")[0]
        drawn = zlib.crc32(f"{sys.version_info[:2]} {item.nodeid}".encode()) % share == 0
        whole = drawn or test not in seen or item.path.parent.name in FOLLOW_BYTECODE
        (kept if whole else left).append(item)
        seen.add(test)
    config.hook.pytest_deselected(items=left)
    items[:] = kept


@pytest.fixture(scope="module", autouse=True)
def _old_objects_are_not_looked_at():
    gc.collect()
    gc.freeze()


def pytest_configure():
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure():
    gc.unfreeze()
