"""What changes between calls, at the whole stack: random sessions of calls, eager and compiled.

    python packages/torchsmith/tests/fuzz_calls.py --programs 10000 --seed 1 [--seconds 600]
    ... --session "Session(...)"    plays what a report has printed

A session is a small model and a row of steps: calls, backward passes and changes of anything that
a call may depend on. Both sides write down all that can be seen after each step. Each failing
session is shrunk and printed as text that runs. Exit status 1 when there was one.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parent
sys.path[:0] = [str(TESTS), str(TESTS.parents[1] / "fx-backend" / "tests")]
if __name__ == "__main__":
    os.environ.setdefault("TORCHSMITH_STRICT", "1")  # a failure of the tracer's own is an error

import torch  # noqa: E402
from calls.session import Session, Step, compare, generate, play, shrink  # noqa: E402


def problem_of(session: Session) -> str | None:
    """What is wrong in a session, whatever it is."""
    try:
        return compare(session)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def run(
    seeds: range, *, most: int = 20, seconds: float = math.inf, say: bool = False
) -> tuple[Counter[str], list[tuple[Session, str]]]:
    """Play sessions ``seeds``; counts, and up to ``most`` failures, shrunk."""
    counts: Counter[str] = Counter()
    failures: list[tuple[Session, str]] = []
    end = time.time() + seconds
    for seed in seeds:
        if time.time() > end or len(failures) >= most:
            break
        session = generate(seed)
        problem = problem_of(session)
        counts["sessions"] += 1
        counts["calls"] += sum(step.what == "call" for step in session.steps)
        if problem is None:
            continue
        counts["wrong"] += 1
        small = shrink(session) if say else session
        failures.append((small, problem_of(small) or problem))
        if say:
            print(report(*failures[-1]), flush=True)
    return counts, failures


def report(session: Session, problem: str) -> str:
    """A failing session as text that runs."""
    return f"# seed {session.seed}: {problem}\n{session}\n"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--programs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after so long")
    parser.add_argument("--most", type=int, default=20, help="stop after so many failures")
    parser.add_argument("--session", help="one session, as a report prints it")
    parser.add_argument("--journal", action="store_true", help="with --session: both journals")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.session:
        names = {"Session": lambda **facts: Session(**facts)}
        session = eval(options.session, names)
        steps = tuple(Step(*step) for step in session.steps)
        session = Session(**{**vars(session), "steps": steps})
        if options.journal:
            sides = [play(session, compiled=compiled) for compiled in (False, True)]
            for true, mine in zip(*sides):
                print(*true, "\n   ", *mine)
        print(problem := problem_of(session))
        return int(problem is not None)
    begin = time.time()
    first = options.seed * 1_000_000
    seeds = range(first, first + options.programs)
    counts, failures = run(seeds, most=options.most, seconds=options.seconds, say=True)
    seconds = round(time.time() - begin)
    print(json.dumps({"seed": options.seed, "wrong": 0, **counts, "seconds": seconds}))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
