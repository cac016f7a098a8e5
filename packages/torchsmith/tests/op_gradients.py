"""Gradients of every operator of torch's database through ``torchsmith.compile``, against eager.

    python op_gradients.py [--only REGEX] [--samples 2] [--dtype float32] [--seconds 3600]
    ... --symbolic           sizes that are symbols: dynamic=True
    ... --device cuda        instead of the CPU
    ... --part 3/12          the third of twelve parts, of as many processes
    ... --together           one compiled function for all samples: what changes between calls

What is not right must stand in ``op_gradients.json`` with a reason. Exit status 1 when something is
wrong that does not, or when fewer than 97 of 100 operators are right.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import re
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
import torchsmith
from op_database import difference, op_db, part_of
from torch.utils import _pytree as pytree

LISTED: dict[str, str] = json.loads(Path(__file__).with_suffix(".json").read_text())


def label_of(op: Any) -> str:
    """Name and variant."""
    return f"{op.name}.{op.variant_test_name}".rstrip(".")


def gradients(function: Callable[..., object], sample: Any) -> object:
    """Results and the gradients of all inputs that require one, or the exception."""
    args = copy.deepcopy((sample.input, sample.args, sample.kwargs))
    leaves = [x for x in pytree.tree_leaves(args) if _differentiable(x)]
    torch.manual_seed(1)
    try:
        result = function(args[0], *args[1], **args[2])
        outputs = [y for y in pytree.tree_leaves(result) if _differentiable(y)]
        generator = torch.Generator().manual_seed(2)
        tangents = [
            torch.rand(y.shape, generator=generator, dtype=torch.float64).to(y) for y in outputs
        ]
        found = torch.autograd.grad(outputs, leaves, tangents, allow_unused=True) if outputs else ()
    except Exception as error:  # noqa: BLE001 - compared with the other one's
        return error
    plain = pytree.tree_map(lambda y: y.detach() if isinstance(y, torch.Tensor) else y, result)
    return plain, [g if g is None else g.detach() for g in found]


def _differentiable(x: object) -> bool:
    return isinstance(x, torch.Tensor) and x.requires_grad


def check(
    op: Any,
    dtype: torch.dtype,
    count: int,
    symbolic: bool = False,
    together: bool = False,
    device: str = "cpu",
) -> str:
    """What is wrong with the gradients of an operator; empty when nothing is."""
    torch.manual_seed(0)
    given = list(itertools.islice(op.sample_inputs(device, dtype, requires_grad=True), count))
    compiled = None
    for number, sample in enumerate(given):
        want = gradients(op.op, sample)
        if isinstance(want, Exception):
            continue
        if compiled is None or not together:
            compiled = torchsmith.compile(
                lambda x, *a, _f=op.op, **k: _f(x, *a, **k),
                dynamic=symbolic or None,
                options={"rng": "eager"},
            )
        got = gradients(compiled, sample)
        wide = lambda x: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                exact: Any = gradients(op.op, sample.transform(lambda x: _wide(x, wide)))
            except Exception:  # noqa: BLE001 - there is no reference then
                exact = None
        found = difference(want, got, None if isinstance(exact, Exception) else exact)
        if found:
            return f"{'CRASH' if isinstance(got, Exception) else 'WRONG'} sample {number}: {found}"
    return ""


def _wide(x: object, wide: Callable[[Any], Any]) -> object:
    made = wide(x)
    if isinstance(x, torch.Tensor) and x.requires_grad:
        return made.detach().requires_grad_()
    return made


def jobs(only: str = "", dtype: torch.dtype = torch.float32, device: str = "cpu") -> list[int]:
    """The operators that have a derivative for ``dtype`` on the device."""
    return [
        index
        for index, op in enumerate(op_db)
        if re.search(only, op.name)
        and op.supports_autograd
        and dtype in op.supported_backward_dtypes(device)
        and dtype in op.supported_dtypes(device)
    ]


def main() -> int:
    """Run everything and print what is not right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--symbolic", action="store_true")
    parser.add_argument("--together", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--from", type=int, default=0, dest="first", help="skip so many operators")
    options = parser.parse_args()
    end = time.time() + options.seconds
    warnings.simplefilter("ignore")
    totals: dict[str, int] = {}
    unexplained = 0
    numbers = jobs(options.only, getattr(torch, options.dtype), options.device)
    numbers = part_of(numbers, options.part)[options.first :]
    for done, index in enumerate(numbers):
        if time.time() > end:
            print(f"stopped before operator {options.first + done}")
            break
        label = label_of(op_db[index])
        try:
            found = check(
                op_db[index],
                getattr(torch, options.dtype),
                options.samples,
                options.symbolic,
                options.together,
                options.device,
            )
        except Exception as error:  # noqa: BLE001 - the database's own functions may fail
            found = f"SKIP {type(error).__name__}: {str(error)[:150]}"
        torchsmith.reset()
        verdict = found.partition(" ")[0] or "right"
        if verdict in ("WRONG", "CRASH"):
            unexplained += label not in LISTED
            verdict = "listed" if label in LISTED else verdict
        totals[verdict] = totals.get(verdict, 0) + 1
        if verdict != "right":
            print(f"{verdict} {label}: {found or LISTED[label]}", flush=True)
    right, counted = totals.get("right", 0), sum(totals.values()) - totals.get("SKIP", 0)
    print(f"{right} of {counted} right ({right / max(counted, 1):.1%}); {totals}")
    return int(unexplained > 0 or right < 0.97 * counted)


if __name__ == "__main__":
    sys.exit(main())
