"""Random programs with random gradients, compiled for training and compared with eager.

    python packages/fx-backend/tests/fuzz_gradients.py --programs 10000 --seed 1
    ... --machine c          C kernels (default: the reference evaluator on the printed loop IR)
    ... --machine gpu        Triton kernels on a GPU

Each failing program is shrunk and printed as text that runs. Exit status 1 when there was one.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy
import torch

sys.path.insert(0, str(Path(__file__).parent))

from composition import sessions, ways  # noqa: E402
from composition.gradients import Play, Scenario, compare, play, prepare  # noqa: E402
from composition.machines import MACHINES, Machine  # noqa: E402
from composition.programs import Program, generate  # noqa: E402
from composition.shrink import shrink  # noqa: E402


def run(
    seeds: range,
    machine: Machine,
    *,
    most: int = 20,
    say: bool = False,
    seconds: float = math.inf,
    play: Play = play,
) -> tuple[Counter[str], list[tuple[Scenario, str]]]:
    """Play scenarios ``seeds``; counts, and up to ``most`` failures with their shrunk programs."""
    counts: Counter[str] = Counter()
    failures: list[tuple[Scenario, str]] = []
    end = time.time() + seconds
    for seed in seeds:
        if time.time() > end:
            break
        scenario = Scenario(generate(seed, symbolic=False), seed)
        ready = prepare(scenario, machine)
        counts["skipped" if ready.skipped else "run"] += 1
        if ready.skipped and say:
            counts[f"skipped: {ready.skipped[:60]}"] += 1
        machine.prepare()
        problem = compare(ready, machine, play)
        if problem is None:
            continue
        if machine.excuses(scenario.program.source(), problem):
            counts["excused"] += 1
            continue
        counts["wrong"] += 1

        def fails(program: Program) -> bool:
            return _problem(replace(scenario, program=program), machine, play) is not None

        small = replace(scenario, program=shrink(scenario.program, fails, most=150))
        failures.append((small, _problem(small, machine, play) or problem))
        if say:
            print(report(*failures[-1]), flush=True)
        if len(failures) >= most:
            break
    return counts, failures


def _problem(scenario: Scenario, machine: Machine, play: Play) -> str | None:
    ready = prepare(scenario, machine)
    machine.prepare()
    return compare(ready, machine, play)


def report(scenario: Scenario, problem: str) -> str:
    """A failing scenario as text that runs."""
    pairs = zip(scenario.program.inputs, scenario.wanted())
    inputs = "\n".join(f"#   x{i} = {spec} {kind}" for i, (spec, kind) in enumerate(pairs))
    return f"# seed {scenario.seed}: {problem}\n{inputs}\n{scenario.program.source()}"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--programs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--machine", choices=MACHINES, default="reference")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after so long")
    parser.add_argument("--most", type=int, default=20, help="stop after so many failures")
    parser.add_argument("--sessions", action="store_true", help="several calls, of other facts")
    parser.add_argument(
        "--ways", action="store_true", help="derivatives twice, of some, checkpoints"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    numpy.seterr(all="ignore")
    begin = time.time()
    seeds = range(options.seed * 1_000_000, options.seed * 1_000_000 + options.programs)
    counts, failures = run(
        seeds,
        MACHINES[options.machine](),
        most=options.most,
        say=True,
        seconds=options.seconds,
        play=sessions.play if options.sessions else ways.play if options.ways else play,
    )
    for what, number in counts.most_common():
        print(number, what)
    print(f"{time.time() - begin:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
