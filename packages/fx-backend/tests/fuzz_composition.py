"""Random compositions of operators, compiled and compared with eager.

    python packages/fx-backend/tests/fuzz_composition.py --programs 20000 --seed 1
    ... --machine c          C kernels (default: the reference evaluator on the printed loop IR)
    ... --triton             printed Triton under its interpreter
    ... --machine gpu        Triton kernels on a GPU
    ... --machine planned    the reference evaluator on what is planned for a GPU
    ... --symbolic           every size a symbol, each program called with other sizes, too
    ... --large              sizes that fill vectors, rows of them and tiles

Each failing program is shrunk and printed as text that runs. Exit status 1 when there was one.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections import Counter
from pathlib import Path

if "--triton" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

import numpy
import torch

sys.path.insert(0, str(Path(__file__).parent))

from composition.check import compare, prepare  # noqa: E402
from composition.machines import MACHINES, Machine  # noqa: E402
from composition.programs import Program, generate  # noqa: E402
from composition.shrink import shrink  # noqa: E402

BATCH = 32


def run(
    seeds: range,
    machine: Machine,
    *,
    symbolic: bool = False,
    large: bool = False,
    most: int = 20,
    say: bool = False,
    seconds: float = math.inf,
) -> tuple[Counter[str], list[tuple[int, Program, str]]]:
    """Run programs ``seeds``; counts, and up to ``most`` failures with their shrunk programs."""
    counts: Counter[str] = Counter()
    failures: list[tuple[int, Program, str]] = []
    end = time.time() + seconds
    for start in range(seeds.start, seeds.stop, BATCH):
        if time.time() > end:
            break
        batch = range(start, min(start + BATCH, seeds.stop))
        programs = [generate(seed, symbolic=symbolic, large=large) for seed in batch]
        prepared = [prepare(p, machine, symbolic=symbolic) for p in programs]
        machine.prepare()
        for seed, ready in zip(batch, prepared):
            counts["skipped" if ready.skipped else "run"] += 1
            problem = compare(ready, machine.signs)
            if problem is None:
                continue
            if machine.excuses(ready.program.source(), problem):
                counts["excused"] += 1
                continue
            counts["wrong"] += 1

            def fails(program: Program) -> bool:
                again = prepare(program, machine, symbolic=symbolic)
                machine.prepare()
                return compare(again, machine.signs) is not None

            small = shrink(ready.program, fails)
            again = prepare(small, machine, symbolic=symbolic)
            machine.prepare()
            problem = compare(again, machine.signs) or problem
            failures.append((seed, small, problem))
            if say:
                print(report(seed, small, problem), flush=True)
            if len(failures) >= most:
                return counts, failures
    return counts, failures


def report(seed: int, program: Program, problem: str) -> str:
    """A failing program as text that runs."""
    inputs = "\n".join(f"#   x{i} = {spec}" for i, spec in enumerate(program.inputs))
    return f"# seed {seed}: {problem}\n{inputs}\n{program.source()}"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--programs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--machine", choices=MACHINES, default="reference")
    parser.add_argument("--triton", action="store_true")
    parser.add_argument("--symbolic", action="store_true")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after so long")
    parser.add_argument("--most", type=int, default=20, help="stop after so many failures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    numpy.seterr(all="ignore")
    machine = MACHINES["triton" if options.triton else options.machine]()
    begin = time.time()
    seeds = range(options.seed * 1_000_000, options.seed * 1_000_000 + options.programs)
    counts, failures = run(
        seeds,
        machine,
        symbolic=options.symbolic,
        large=options.large,
        most=options.most,
        say=True,
        seconds=options.seconds,
    )
    print(f"{dict(counts)} in {time.time() - begin:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
