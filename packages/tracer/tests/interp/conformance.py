"""How much of Python the tracer speaks: CPython's own tests, each method captured without a break.

    python packages/tracer/tests/interp/conformance.py [--failures] [MODULE...]

A test counts when it passes in plain CPython under this harness and again when its method is
compiled with ``fullgraph=True`` and the eager backend. Each module runs in a process of its own,
each test for at most six seconds. ``--failures`` lists what failed and why.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest
import warnings
from collections.abc import Iterator

import torchsmith_tracer as tracer

MODULES = (
    "bool collections contextlib dict exceptions functools generator_stop generators heapq iter "
    "itertools list operator patma raise range set tuple with"
).split()
SECONDS = 6


class LateError(BaseException):
    """A test took too long."""


def flat(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from flat(test)
        elif type(test).__name__ != "_FailedTest" and "DocTest" not in type(test).__name__:
            yield test


def run(test: unittest.TestCase, seconds: int, *, compiled: bool) -> str | None:
    """None when the test passes, else why not."""
    name = test._testMethodName
    fresh = type(test)(name)
    if compiled:
        tracer.reset()
        setattr(fresh, name, tracer.compile(getattr(fresh, name), backend="eager", fullgraph=True))
    result = unittest.TestResult()
    signal.alarm(seconds)
    try:
        fresh.run(result)
    except BaseException as e:  # noqa: BLE001 - of the test, or it was late
        return repr(e)
    finally:
        signal.alarm(0)
    if result.skipped:
        return "skipped"
    return None if result.wasSuccessful() else (result.errors + result.failures)[0][1]


def measure(module: str, seconds: int = SECONDS) -> dict[str, str | None]:
    """What became of each test of ``test.<module>`` that CPython itself passes."""

    def late(*_: object) -> None:
        raise LateError

    signal.signal(signal.SIGALRM, late)
    warnings.simplefilter("ignore")
    os.chdir(tempfile.mkdtemp())
    # A failure inside of a sub-test would not end the test.
    unittest.TestCase.subTest = lambda self, *a, **k: contextlib.nullcontext()  # type: ignore
    found: dict[str, str | None] = {}
    ready = None
    tests = unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(module))
    for test in flat(tests):
        if type(test) is not ready:
            ready = type(test)
            with contextlib.suppress(BaseException):
                ready.setUpClass()
        if run(test, seconds, compiled=False) is None:
            found[test.id()] = run(test, seconds, compiled=True)
    return found


def in_a_process(module: str, seconds: int = SECONDS) -> dict[str, str | None]:
    """``measure(f"test.test_{module}")``, which changes the process that runs it."""
    command = [sys.executable, __file__, "--measure", f"test.test_{module}", "--seconds"]
    done = subprocess.run([*command, str(seconds)], capture_output=True, text=True, timeout=1800)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise RuntimeError(f"no result of {module}: {done.stderr[-2000:]}")
    return json.loads(lines[-1])


def reason(text: str) -> str:
    """One line of a failure that says most."""
    lines = [line.strip() for line in text.strip().splitlines()]
    coded = [line for line in lines if line.startswith("[TS-")]
    return (coded or [line for line in lines if "Error" in line] or lines)[-1][:150]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("modules", nargs="*", default=MODULES)
    parser.add_argument("--failures", action="store_true", help="list them")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=int, default=SECONDS, help="for each test")
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.seconds)))
        return
    passed = total = 0
    for module in options.modules:
        found = in_a_process(module.removeprefix("test_"), options.seconds)
        failed = {name: why for name, why in found.items() if why is not None}
        passed, total = passed + len(found) - len(failed), total + len(found)
        print(f"{module:20s} {len(found) - len(failed):4d} of {len(found):4d}", flush=True)
        for name, why in failed.items() if options.failures else ():
            print(f"    {name.split('.', 2)[-1]}: {reason(why)}")
    print(f"{'all':20s} {passed:4d} of {total:4d}: {passed / max(total, 1):.1%}")


if __name__ == "__main__":
    main()
