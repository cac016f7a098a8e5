"""Random nesting of loops, contexts, handlers, generators and breaks, compiled against eager.

    python fuzz_nesting.py --programs 10000 --seed 0

Prints every program that differs; the exit status is 1 when one does.
"""

import argparse
import pathlib
import sys
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import torchsmith_tracer
from test_random_programs import mismatch


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", type=int, default=3, help="how many failures to print in full")
    parser.add_argument("--snippets", type=int, default=0, help="how likely they are, e.g. 40")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    failed = []
    for seed in range(args.seed, args.seed + args.programs):
        found = mismatch(seed, limit=8 if seed % 3 else 1, snippets=args.snippets)
        if found is not None:
            failed.append(seed)
            if len(failed) <= args.show:
                print(f"--- seed {seed}\n{found}", flush=True)
        if seed % 50 == 0:
            torchsmith_tracer.reset()
    print(f"{args.programs} programs, {len(failed)} differ: {failed[:50]}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
