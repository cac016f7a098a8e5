"""Every operator of torch's own database through ``torchsmith.compile``, against eager.

    python op_database.py [--only REGEX] [--dtypes float32,bfloat16,int64] [--samples 3] [--json]
    ... --symbolic           sizes that are symbols: dynamic=True
    ... --device cuda        instead of the CPU
    ... --part 3/12          the third of twelve parts, of as many processes

Exit status 1 when a result is wrong without an error or fewer than 97 of 100 are right. Operators
run in a process of their own, so that one that kills the interpreter counts as a crash.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import multiprocessing
import re
import signal
import sys
import types
import unittest
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torchsmith

if "expecttest" not in sys.modules:  # the database's module wants a class of it, and never uses it
    sys.modules["expecttest"] = types.ModuleType("expecttest")
    sys.modules["expecttest"].TestCase = unittest.TestCase  # type: ignore[attr-defined]
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

SECONDS = 120  # for all samples of one operator and dtype
DTYPES = ("float32", "bfloat16", "int64")
TOLERANCE = {
    torch.float32: (1e-4, 1e-5),
    torch.complex64: (1e-4, 1e-5),
    torch.bfloat16: (2e-2, 2e-2),
    torch.float16: (5e-3, 5e-3),
    torch.float64: (1e-7, 1e-7),
}
Result = tuple[str, str, str, str]  # operator, dtype, verdict, detail


def samples(op: Any, dtype: torch.dtype, count: int, device: str) -> list[Any]:
    """The first ``count`` sample inputs."""
    torch.manual_seed(0)
    found = op.sample_inputs(device, dtype, requires_grad=False)
    return list(itertools.islice(found, count))


def run(function: Callable[..., object], sample: Any) -> tuple[object, object]:
    """Result (or the exception) and the inputs afterwards, on copies and from one seed."""
    args = copy.deepcopy((sample.input, sample.args, sample.kwargs))
    torch.manual_seed(1)
    try:
        with torch.no_grad():
            return function(args[0], *args[1], **args[2]), args
    except Exception as error:  # noqa: BLE001 - compared with the other one's
        return error, args


def difference(want: object, got: object, exact: object | None, values: bool = True) -> str:
    """What distinguishes ``got`` from ``want``; empty when nothing does."""
    if isinstance(want, Exception) or isinstance(got, Exception):
        if type(want) is type(got):
            return ""
        return f"eager gives {_short(want)}, compiled {_short(got)}"
    ours, spec = pytree.tree_flatten(got)
    theirs, other = pytree.tree_flatten(want)
    if spec != other:
        return f"structure {other} became {spec}"
    refs = pytree.tree_leaves(exact) if exact is not None else [None] * len(ours)
    refs = refs if len(refs) == len(ours) else [None] * len(ours)
    for mine, right, ref in zip(ours, theirs, refs):
        if not isinstance(right, torch.Tensor):
            plain = isinstance(right, (bool, int, float, complex, str, type(None)))
            if type(mine) is not type(right) or (plain and mine != right and mine == mine):
                return f"{_short(right)} became {_short(mine)}"
            continue
        if mine.dtype != right.dtype or mine.shape != right.shape:
            return f"{right.dtype}{list(right.shape)} became {mine.dtype}{list(mine.shape)}"
        if mine.layout != right.layout or right.layout is not torch.strided:
            if mine.layout != right.layout:
                return f"{right.layout} became {mine.layout}"
            mine, right, ref = mine.to_dense(), right.to_dense(), None
        if values and not _close(mine, right, ref):
            where = (mine != right).nonzero()
            first = tuple(where[0].tolist()) if len(where) else ()
            return f"{len(where)} of {right.numel()} differ, {right[first]} became {mine[first]}"
        if mine.stride() != right.stride() and _strides(mine) != _strides(right):
            return f"strides {right.stride()} became {mine.stride()} of {list(right.shape)}"
    return ""


def _strides(x: torch.Tensor) -> list[int]:
    return [] if x.numel() == 0 else [s for s, n in zip(x.stride(), x.shape) if n != 1]


def _close(mine: torch.Tensor, right: torch.Tensor, ref: object) -> bool:
    rtol, atol = TOLERANCE.get(right.dtype, (0.0, 0.0))
    if torch.allclose(mine, right, rtol=rtol, atol=atol, equal_nan=True):
        return True
    if not isinstance(ref, torch.Tensor) or not right.dtype.is_floating_point:
        return False
    if ref.shape != right.shape or not torch.equal(mine.isfinite(), ref.isfinite()):
        return False
    ok = ref.isfinite() & right.isfinite()
    ours, theirs = ((x.double() - ref.double())[ok].abs().max() for x in (mine, right))
    return bool(ours <= 2 * theirs + atol)


def _short(value: object) -> str:
    if isinstance(value, Exception):
        return f"{type(value).__name__}: {str(value).splitlines()[0] if str(value) else ''}"[:160]
    return repr(value)[:80]


def check(
    op: Any, dtype: torch.dtype, count: int, symbolic: bool = False, device: str = "cpu"
) -> str:
    """What is wrong with the operator for this dtype; empty when nothing is."""
    given = samples(op, dtype, count, device)
    if not given:
        return ""
    undefined = "empty" in op.name
    for function in (op.op, op.inplace_variant):
        if function is None:
            continue
        for number, sample in enumerate(given):
            want, after = run(function, sample)
            compiled = torchsmith.compile(
                lambda x, *a, _f=function, **k: _f(x, *a, **k),
                dynamic=symbolic or None,
                options={"rng": "eager", "strict": True},
            )
            got, mine = run(compiled, sample)
            exact = _in_double(function, sample, dtype)
            found = difference(want, got, exact, not undefined)
            if not found and not isinstance(want, Exception):
                found = difference(after, mine, None, not undefined)
            if found:
                name = getattr(function, "__name__", op.name)
                kind = "CRASH" if isinstance(got, Exception) else "WRONG"
                return f"{kind} {name}, sample {number}: {found}"
    return ""


def _in_double(function: Callable[..., object], sample: Any, dtype: torch.dtype) -> object | None:
    if not dtype.is_floating_point:
        return None
    wide = lambda x: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
    try:
        result, _ = run(function, sample.transform(wide))
    except Exception:  # noqa: BLE001 - there is no reference then
        return None
    return None if isinstance(result, Exception) else result


def _work(inbox: Any, outbox: Any, *how: Any) -> None:
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _too_slow)
    while (job := inbox.get()) is not None:
        index, name = job
        signal.alarm(SECONDS)
        try:
            found = check(op_db[index], getattr(torch, name), *how)
        except Exception as error:  # noqa: BLE001 - the database's own functions may fail
            found = f"SKIP {_short(error)}"
        signal.alarm(0)
        outbox.put((index, name, found))


def _too_slow(*_: object) -> None:
    raise TimeoutError("too slow")


def results(jobs: list[tuple[int, str]], *how: Any) -> Iterator[Result]:
    """Verdicts as they come; ``how`` are the last arguments of ``check``."""
    context = multiprocessing.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    worker = None
    for index, name in jobs:
        if worker is None:
            worker = context.Process(target=_work, args=(inbox, outbox, *how), daemon=True)
            worker.start()
        inbox.put((index, name))
        found = "CRASH the interpreter died"
        while worker.is_alive():
            try:
                _, _, found = outbox.get(timeout=1)
                break
            except Exception:  # noqa: BLE001 - queue.Empty: look again whether it lives
                continue
        else:
            worker = None
        op = op_db[index]
        label = f"{op.name}.{op.variant_test_name}".rstrip(".")
        verdict, _, detail = found.partition(" ")
        yield label, name, verdict or "right", detail
    if worker is not None:
        inbox.put(None)
        worker.join(5)


def jobs(
    only: str = "", dtypes: tuple[str, ...] = DTYPES, device: str = "cpu"
) -> list[tuple[int, str]]:
    """The operators that support each dtype on the device."""
    return [
        (index, name)
        for index, op in enumerate(op_db)
        for name in dtypes
        if re.search(only, op.name) and getattr(torch, name) in op.supported_dtypes(device)
    ]


def part_of(jobs: list[Any], part: str) -> list[Any]:
    """Every ``n``-th of the jobs from the ``i``-th on, where ``part`` is ``"i/n"``."""
    first, step = map(int, part.split("/"))
    return jobs[first - 1 :: step]


def main() -> int:
    """Run everything and print what is not right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--symbolic", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--part", default="1/1")
    options = parser.parse_args()
    found = jobs(options.only, tuple(options.dtypes.split(",")), options.device)
    todo = part_of(found, options.part)
    how = options.samples, options.symbolic, options.device
    totals: dict[str, int] = {}
    for label, dtype, verdict, detail in results(todo, *how):
        totals[verdict] = totals.get(verdict, 0) + 1
        if verdict != "right":
            print(f"{verdict} {label} {dtype}: {detail}", flush=True)
    right, counted = totals.get("right", 0), sum(totals.values()) - totals.get("SKIP", 0)
    if options.json:
        print(json.dumps(totals))
    print(f"{right} of {counted} right ({right / max(counted, 1):.1%}); {totals}")
    return int(totals.get("WRONG", 0) > 0 or right < 0.97 * counted)


if __name__ == "__main__":
    sys.exit(main())
