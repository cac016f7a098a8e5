"""Compares training calls of compiled programs with eager: results, gradients, and what is left.

A scenario is a program, a choice of inputs that require gradients (leaves or not), what is written
in place between the passes, and one or two backward passes with tangents of odd layouts. Both
sides play it; their journals must be equal.
"""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from composition.machines import Machine
from composition.programs import Program
from torch import fx
from torchsmith_fx_backend import Settings
from torchsmith_fx_backend._src.driver import compile_training
from torchsmith_fx_backend.errors import UnsupportedError

SETTINGS = Settings(graph_cache=False, verify=True, strict=True)
Function = Callable[..., Sequence[Any]]


@dataclass(frozen=True)
class Scenario:
    """What is done with a program; ``seed`` decides the details."""

    program: Program
    seed: int

    def wanted(self) -> list[str | None]:
        """Per input: None, ``leaf`` or ``inner``."""
        rng = random.Random(self.seed)
        return [
            rng.choice(("leaf", "leaf", "leaf", "inner", None))
            if spec.dtype.is_floating_point and spec.layout != "expanded"
            else None
            for spec in self.program.inputs
        ]


class Declined(Exception):
    """The compiled program says that it cannot do what is asked, and why."""


Entry = tuple[str, Any]
_FAULT = "eager's own fault"
Play = Callable[[Scenario, Function], list[Entry]]


def play(scenario: Scenario, function: Function) -> list[Entry]:
    """Run one side; the journal of everything that can be seen."""
    rng = random.Random(scenario.seed + 1)
    journal: list[Entry] = []
    leaves: list[torch.Tensor] = []
    args: list[torch.Tensor] = []
    for spec, kind in zip(scenario.program.inputs, scenario.wanted()):
        x = spec.make()
        if kind is not None:
            x.requires_grad_()
            leaves.append(x)
            if kind == "inner":
                x = x.clone(memory_format=torch.preserve_format)
        args.append(x)
    versions = [x._version for x in args]
    try:
        results = function(*args)
    except Exception as error:
        return [("forward raises", str(error)[:200])]
    tensors = [x for x in results if isinstance(x, torch.Tensor)]
    for number, x in enumerate(tensors):
        try:
            facts: Any = (x.dtype, x.shape, strides_of(x), x.requires_grad, x.is_leaf, x._is_view())
        except RuntimeError as error:
            return [*journal, (f"result {number} raises", kind_of(error))]
        journal.append((f"result {number} is", facts))
        journal.append((f"result {number}", x.detach().clone()))
    for number, (x, version) in enumerate(zip(args, versions)):
        journal.append((f"argument {number} written", x._version > version))
        journal.append((f"argument {number}", x.detach().clone()))
    journal.append(("sharing", sharing([*args, *tensors])))
    differentiable = [x for x in tensors if x.requires_grad and x.dtype.is_floating_point]
    if not differentiable:
        return journal
    written = rng.random() < 0.3
    if written:
        victim = rng.choice([*args, *tensors])
        with torch.no_grad():
            try:
                victim.add_(1)
                journal.append(("written between", True))
            except RuntimeError:
                journal.append(("written between", False))
    # The very same tensor may be there twice.
    chosen = rng.sample(differentiable, rng.randint(1, len(differentiable)))
    if written:  # a compiled graph checks all that it saved, whatever is differentiated
        chosen = differentiable
    tangents = [tangent(x, rng) for x in chosen]
    twice, retain = rng.random() < 0.3, rng.random() < 0.5
    sources = [x for x in (*leaves, *args) if x.requires_grad]
    by_call = rng.random() < 0.5
    outside = any(x._is_view() for x in chosen)
    for turn in range(2 if twice else 1):
        try:
            if by_call:
                unique = list({id(x): x for x in sources}.values())
                grads: Sequence[Any] = torch.autograd.grad(
                    chosen, unique, tangents, retain_graph=retain, allow_unused=True
                )
            else:
                torch.autograd.backward(chosen, tangents, retain_graph=retain)
                grads = [x.grad for x in leaves]
        except RuntimeError as error:
            kind = kind_of(error)
            journal.append((f"backward {turn} raises", turn if turn and kind != _FAULT else kind))
            continue
        for number, g in enumerate(grads):
            # Views are taken outside of the compiled graph, and beside them gradients are summed
            # up in another order; then the strides of inner ones may differ.
            layout = None if by_call and outside else strides_of(g) if g is not None else None
            facts = None if g is None else (g.dtype, g.shape, layout, g.requires_grad)
            journal.append((f"gradient {turn}.{number} is", facts))
            if g is not None:
                journal.append((f"gradient {turn}.{number}", g.detach().clone()))
    return journal


# Eager looks at the values to choose among formulas, or vectors of NaNs have other gradients than
# what is left over of them.
_CHANGING = re.compile(r"prod\(|relu6|hardtanh|(?<![rg])elu\(|hardswish")


# What eager says of a write that a backward pass comes upon, the second of a saved view that is one
# of several; of a graph that it has let go of; of its own zeros, which cannot be added to.
_KINDS = {
    "modified by an inplace operation": "written",
    "has been modified inplace": "written",
    "second time": "second time",
    "a leaf Variable that requires grad is being used": "a leaf is written",
    "a view of a leaf Variable that requires grad": "a leaf is written",
    "ZeroTensors are immutable": _FAULT,
}


def kind_of(error: RuntimeError) -> str:
    """What an error of a backward pass tells, whatever its words."""
    text = str(error)
    for sign, kind in _KINDS.items():
        if sign in text:
            return kind
    return text.splitlines()[0][:140]


def tangent(x: torch.Tensor, rng: random.Random) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    t = (torch.randint(-8, 9, x.shape, generator=generator, device="cpu") / 4).to(x)
    kind = rng.choice(("plain", "plain", "expanded", "transposed", "as result"))
    if kind == "expanded":
        return t.new_full((), 0.5).expand(x.shape)
    if kind == "transposed" and x.dim() > 1:
        return t.transpose(0, -1).contiguous().transpose(0, -1)
    if kind == "as result":
        return torch.empty_like(x.detach()).copy_(t)
    return t


def strides_of(x: torch.Tensor) -> Any:
    return [s for n, s in zip(x.shape, x.stride()) if n > 1] if x.numel() else None


def sharing(tensors: Sequence[torch.Tensor]) -> list[Any]:
    first: dict[int, int] = {}
    found: list[Any] = []
    for number, t in enumerate(tensors):
        pointer = t.untyped_storage().data_ptr()
        same = next(i for i, other in enumerate(tensors) if other is t)
        found.append((first.setdefault(pointer, number) if pointer else number, same))
    return found


@dataclass
class Prepared:
    """A compiled scenario; ``error`` when that failed."""

    scenario: Scenario
    compiled: Function | None = None
    error: str | None = None
    skipped: str | None = None


def prepare(scenario: Scenario, machine: Machine) -> Prepared:
    """Compile the program of ``scenario`` for its inputs."""
    result = Prepared(scenario)
    examples = []
    for spec, kind in zip(scenario.program.inputs, scenario.wanted()):
        x = spec.make().requires_grad_(kind is not None)
        examples.append(x.clone(memory_format=torch.preserve_format) if kind == "inner" else x)
    with _quiet(), machine.installed():
        try:
            gm = fx.symbolic_trace(scenario.program.function())
            result.compiled = compile_training(gm, examples, SETTINGS)
        except UnsupportedError as error:
            result.skipped = str(error.details["what"])
        except Exception as error:
            result.error = f"does not compile: {type(error).__name__}: {error}"
    return result


@contextmanager
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def compare(prepared: Prepared, machine: Machine, play: Play = play) -> str | None:
    """What differs from eager where both ``play``, or None."""
    scenario = prepared.scenario
    with _quiet():
        want = play(scenario, scenario.program.function())
        if want[0][0] == "forward raises":
            return None  # not a program with these gradients
        if prepared.error is not None:
            return prepared.error
        if prepared.compiled is None:
            return None
        try:
            with machine.installed():
                got = play(scenario, prepared.compiled)
        except Declined:
            return None
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    source = scenario.program.source()
    if any(i.special for i in scenario.program.inputs) and _CHANGING.search(source):
        return None
    if "kron(" in source and "_(" in source:
        return None  # saves aliases without versions: a write changes eager's gradient unseen
    doubtful: list[Entry] | None = None
    for (name, true), (label, mine) in zip(want, got):
        if true is _FAULT:
            return None
        if name != label:
            return f"{label} = {mine}, not {name} = {true}"
        if not isinstance(true, torch.Tensor):
            if (
                "prod(" in source
                and name.endswith("is")
                and len(true or ()) == len(mine or ()) == 4
            ):
                true, mine = (true[:2], true[3]), (mine[:2], mine[3])  # the layout, too
            if true != mine:
                return f"{name} {mine}, not {true}"
            continue
        problem = difference(mine, true)
        if problem is None:
            continue
        if doubtful is None:
            doubtful = _in_double(scenario, play)
        wide = dict(doubtful).get(name)
        if not isinstance(wide, torch.Tensor) or wide.shape != true.shape:
            continue  # double precision takes another way
        if difference(true, wide, 0.2) is not None:
            continue  # eager itself is off
        return f"{name}: {problem}"
    if len(want) != len(got):
        return f"{len(got)} entries, not {len(want)}"
    return None


def difference(mine: torch.Tensor, true: torch.Tensor, factor: float = 1.0) -> str | None:
    if not true.numel():
        return None
    low = true.dtype in (torch.bfloat16, torch.float16) or mine.dtype in (
        torch.bfloat16,
        torch.float16,
    )
    a, b = mine.double(), true.double()
    finite = b[torch.isfinite(b)].abs()
    tolerance = factor * (5e-2 if low else 2e-4)
    if not true.dtype.is_floating_point:
        tolerance = 0.0
    scale = max(1.0, float(finite.max())) if finite.numel() else 1.0
    close = torch.isclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
    if bool(close.all()):
        return None
    wrong = ~close
    return (
        f"{int(wrong.sum())} of {a.numel()}: {a[wrong][:4].tolist()}, not {b[wrong][:4].tolist()}"
    )


def _in_double(scenario: Scenario, play: Play) -> list[Entry]:
    """Eager's journal with all floating-point values in double precision."""
    program = scenario.program
    inputs = tuple(
        replace(i, dtype=torch.float64) if i.dtype.is_floating_point else i for i in program.inputs
    )
    text = re.sub("torch.(bfloat16|float16|float32)", "torch.float64", program.source())
    names: dict[str, object] = {"torch": torch, "F": torch.nn.functional}
    exec(text, names)
    wide = Scenario(replace(program, inputs=inputs), scenario.seed)
    return play(wide, names["fn"])  # type: ignore[arg-type]
