"""Random programs of numbers that change between calls, wherever they are found."""

import random
import types

import pytest
import torch
import torchsmith_tracer

X = torch.arange(12.0).reshape(3, 4)
PLACES = ("k", "o.n", "G", "L[0]", "D['x']")
VALUES = {
    "int": (0, 1, 2, 3, 5, -1, -4, 7, 100),
    "float": (0.0, -0.0, 1.5, 2.5, -3.25, 1e10, 0.1, float("inf"), float("nan")),
    "mixed": (0, 1, 3, 2.5, True, -2, 0.5),
}
FORMS = (
    *(f"({{}} {op} {{}})" for op in ("+", "-", "*", "//", "%", "/", "**", "and", "or")),
    *(f"({{}} if {{}} {op} {{}} else {{}})" for op in ("<", "==", ">=", "!=")),
    *("abs({})", "max({}, {})", "min({}, {})", "(-{})", "int({})", "float({})", "round({})"),
)
USES = ("x[: int(v0) % 4]", "str(v0)", "x.sum(int(v0) % 2)", "torch.full((2,), v0)")


def expression(rng, depth, names):
    if depth == 0 or rng.random() < 0.2:
        return rng.choice([*names, str(rng.randint(-3, 5)), repr(rng.choice([0.5, -1.5, 0.0]))])
    form = rng.choice(FORMS)
    return form.format(*(expression(rng, depth - 1, names) for _ in range(form.count("{}"))))


def program(rng):
    names = rng.sample(PLACES, rng.randint(1, 3))
    lines = []
    for i in range(rng.randint(1, 3)):
        known = [*names, *(f"v{j}" for j in range(i))]
        lines.append(f"v{i} = {expression(rng, rng.randint(1, 3), known)}")
    if rng.random() < 0.3:
        lines.append("o.n = v0")
    uses = [f"x * v{i}", "v0", *(use for use in USES if rng.random() < 0.25)]
    return "def f(x, k):\n    " + "\n    ".join(lines) + f"\n    return {', '.join(uses)}\n"


def outcome(space, fn, x, values):
    space["o"].n, space["G"], space["L"][0], space["D"]["x"], k = values
    try:
        found = repr(fn(x, k))
    except torchsmith_tracer.errors.TracerError:
        raise
    except Exception as e:
        found = f"{type(e).__name__}: {e}"
    return found, repr(space["o"].n)


@pytest.mark.parametrize("seed", range(40))
def test_numbers(seed):
    rng = random.Random(seed)
    text, kind = program(rng), rng.choice(tuple(VALUES))
    eager, ours = (
        {"torch": torch, "o": types.SimpleNamespace(), "L": [0], "D": {}} for _ in range(2)
    )
    exec(text, eager)
    exec(text, ours)
    dynamic = True if rng.random() < 0.3 else None
    options = {"recompile_limit": 50}
    compiled = torchsmith_tracer.compile(ours["f"], dynamic=dynamic, options=options)
    for _ in range(6):
        values = [rng.choice(VALUES[kind]) for _ in PLACES]
        x = X[:, : rng.choice([4, 4, 3, 2])]
        want = outcome(eager, eager["f"], x, values)
        assert outcome(ours, compiled, x, values) == want, (text, values)
