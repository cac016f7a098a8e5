"""Compares compiled programs with eager: values, layout, aliasing and what happens to inputs."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
import torchsmith_guards as guards
from composition.machines import Machine
from composition.programs import Program
from torch import fx
from torchsmith_fx_backend import Settings, compile_graph
from torchsmith_fx_backend.errors import UnsupportedError

SETTINGS = Settings(graph_cache=False, verify=True)
# Other sizes that a symbolic program is called with; 0 and 1 are specialised.
RESIZES: tuple[Callable[[int], int], ...] = (
    lambda n: n + 12 if n > 1 else n,
    lambda n: 2 * n if n > 1 else n,
)


@dataclass
class Prepared:
    """A compiled program; ``error`` when that failed."""

    program: Program
    compiled: Callable[..., object] | None = None
    error: str | None = None
    skipped: bool = False
    env: guards.ShapeEnv | None = None
    fakes: list[torch.Tensor] | None = None


def prepare(program: Program, machine: Machine, *, symbolic: bool) -> Prepared:
    """Compile ``program`` up to its kernels."""
    result = Prepared(program)
    examples: list[torch.Tensor] = [spec.make() for spec in program.inputs]
    if symbolic:
        result.env = guards.ShapeEnv()
        fake = guards.FakeMode(result.env)
        result.fakes = examples = [
            fake.fakeify(x, guards.LocalSource(f"x{i}"), set(range(x.dim())))
            for i, x in enumerate(examples)
        ]
    with warnings.catch_warnings(), torch.no_grad(), machine.installed():
        warnings.simplefilter("ignore")
        try:
            gm = fx.symbolic_trace(program.function())
            result.compiled = compile_graph(gm, examples, SETTINGS)
        except UnsupportedError:
            result.skipped = True
        except Exception as error:
            result.error = f"does not compile: {type(error).__name__}: {error}"
    return result


def compare(prepared: Prepared, signs: bool) -> str | None:
    """What differs from eager, or None."""
    if prepared.error is not None or prepared.compiled is None:
        return prepared.error if _runs(prepared.program) else None
    for resize in ((lambda n: n), *(RESIZES if prepared.env is not None else ())):
        if prepared.env is not None and not _guarded(prepared, resize):
            continue
        problem = _compare_call(prepared, resize, signs)
        if problem is not None:
            sizes = [list(spec.make(resize).shape) for spec in prepared.program.inputs]
            return f"{problem} (inputs of {sizes})"
    return None


def _runs(program: Program) -> bool:
    """Whether eager runs it: what is left of a program that was made smaller need not."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program.function()(*(spec.make() for spec in program.inputs))
        except Exception:
            return False
    return True


def _guarded(prepared: Prepared, resize: Callable[[int], int]) -> bool:
    """Whether the compiled program may be called with these sizes."""
    env, fakes = prepared.env, prepared.fakes
    assert env is not None and fakes is not None
    values = {name: resize(int(hint)) for name, hint in env.hints.items()}
    if not all(guard.condition.evaluate(values) for guard in env.guards):
        return False
    for fake, spec in zip(fakes, prepared.program.inputs, strict=True):
        real = spec.make(resize)
        expected = [*map(lambda n: _number(n, values), (*fake.shape, *fake.stride()))]
        if expected != [*real.shape, *real.stride()]:
            return False
    return True


def _number(size: int | torch.SymInt, values: dict[str, int]) -> int:
    return int(guards.expr_of(size).evaluate(values)) if isinstance(size, torch.SymInt) else size


def _compare_call(prepared: Prepared, resize: Callable[[int], int], signs: bool) -> str | None:
    program = prepared.program
    ours, theirs = ([spec.make(resize) for spec in program.inputs] for _ in range(2))
    ours_before, theirs_before = ([x._version for x in xs] for xs in (ours, theirs))
    assert prepared.compiled is not None
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            want = program.function()(*theirs)
        except Exception:
            return None  # not a program at these sizes
        try:
            got = prepared.compiled(*ours)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    assert isinstance(got, (tuple, list))
    if len(got) != len(want):
        return f"{len(got)} results, not {len(want)}"
    for number, (mine, true) in enumerate(zip(got, want)):
        problem = _layout(mine, true) or _values(mine, true, program, signs)
        if problem is not None:
            if _ill_conditioned(program, resize, number):
                continue
            return f"result {number}: {problem}"
    for number, (mine, true) in enumerate(zip(ours, theirs)):
        problem = _values(mine, true, program, signs)
        if problem is not None and not _ill_conditioned(program, resize, None):
            return f"input {number} afterwards: {problem}"
        bumped = [mine._version > ours_before[number], true._version > theirs_before[number]]
        if bumped[0] != bumped[1]:
            return f"input {number}: written {bumped[1]}, counted {bumped[0]}"
    if _sharing([*ours, *got]) != _sharing([*theirs, *want]):
        return f"sharing {_sharing([*ours, *got])}, not {_sharing([*theirs, *want])}"
    return None


def _sharing(tensors: Iterable[torch.Tensor]) -> list[int]:
    """For each tensor, the first one with the same memory."""
    first: dict[int, int] = {}
    result = []
    for number, t in enumerate(tensors):
        pointer = t.untyped_storage().data_ptr()
        result.append(first.setdefault(pointer, number) if pointer and t.numel() else number)
    return result


def _layout(mine: torch.Tensor, true: torch.Tensor) -> str | None:
    if mine.dtype is not true.dtype:
        return f"{mine.dtype}, not {true.dtype}"
    if mine.shape != true.shape:
        return f"shape {list(mine.shape)}, not {list(true.shape)}"
    steps = [(m, t) for n, m, t in zip(mine.shape, mine.stride(), true.stride()) if n > 1]
    if mine.numel() and any(m != t for m, t in steps):
        return f"strides {mine.stride()}, not {true.stride()}"
    return None


# Eager's zeros of these differ in sign between vectors and what is left over of them.
_UNSIGNED = re.compile(r"max|min|clamp")


def _values(mine: torch.Tensor, true: torch.Tensor, program: Program, signs: bool) -> str | None:
    if not true.numel():
        return None
    a, b = mine.detach().double(), true.detach().double()
    rtol = atol = 0.0
    if true.dtype.is_floating_point and (program.rounds or program.rough):
        scale = float(b[torch.isfinite(b)].abs().max()) if bool(torch.isfinite(b).any()) else 1.0
        rtol = 4e-2 if program.rough else 1e-4
        atol = rtol * max(1.0, scale)
    close = torch.isclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
    if not bool(close.all()):
        wrong = ~close
        return (
            f"{int(wrong.sum())} of {a.numel()} values: "
            f"{a[wrong][:4].tolist()}, not {b[wrong][:4].tolist()}"
        )
    if signs and not (program.rounds or program.rough or _UNSIGNED.search(program.source())):
        wrong = (a == 0) & (b == 0) & (torch.signbit(a) != torch.signbit(b))
        if bool(wrong.any()):
            return f"{int(wrong.sum())} zeros of the other sign"
    return None


def _ill_conditioned(program: Program, resize: Callable[[int], int], number: int | None) -> bool:
    """Whether eager itself, in double precision, gives another result."""
    if not program.rounds and not program.rough:
        return False
    wide = [
        replace(i, dtype=torch.float64) if i.dtype.is_floating_point else i for i in program.inputs
    ]
    text = program.source()
    for low in ("bfloat16", "float16", "float32"):
        text = text.replace(f"torch.{low}", "torch.float64")
    names: dict[str, object] = {"torch": torch, "F": torch.nn.functional}
    exec(text, names)
    results = []
    for run, inputs in ((program.function(), program.inputs), (names["fn"], wide)):
        given = [spec.make(resize) for spec in inputs]
        try:
            made = run(*given)  # type: ignore[operator]
        except Exception:
            return False
        results.append(made if number is not None else given)
    lax = replace(program, rounds=True)
    pairs = zip(*results) if number is None else [(results[0][number], results[1][number])]
    return any(_values(a, b, lax, False) is not None for a, b in pairs)
