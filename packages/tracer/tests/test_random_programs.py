"""Random programs full of graph breaks: loops, contexts, handlers, closures, inlined callees.

Compiled and eager must agree on the result, the exception, and the order of every effect.
"""

import linecache
import random

import pytest
import torch
import torchsmith_tracer


class Writer:
    """Writes the source of a function ``f(a, n, log)`` and of helpers that it calls.

    ``log`` is a list that opaque functions append to, so that the order of effects is compared.
    """

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.lines = []
        self.helpers = 0
        self.counter = 0
        self.budget = 26

    def source(self):
        self.function("f", depth=0)
        return "\n".join(self.lines) + "\n"

    def function(self, name, depth):
        outer, self.lines = self.lines, []
        self.names = ["a", "n"]
        body = self.block(1, depth, loops=0)
        self.lines = outer
        nested = []
        self.lines += [f"def {name}(a, n, log):", "    x = a + 1", "    y = a * 2", "    k = n"]
        self.lines += nested + body + ["    return x, y, k", ""]

    def fresh(self):
        self.counter += 1
        return f"v{self.counter}"

    def block(self, indent, depth, loops):
        out = []
        for _ in range(self.random.randint(1, 4)):
            if self.budget <= 0:
                break
            self.budget -= 1
            out += self.statement(indent, depth, loops)
        return out or ["    " * indent + "x = x + 1"]

    def expression(self, depth):
        r = self.random
        kind = r.randrange(9)
        if kind == 0:
            return f"opaque(log, x, {r.randint(0, 5)})"
        if kind == 1:
            return f"torch.add(x, opaque(log, y, k)) * {r.randint(1, 3)}"
        if kind == 2:
            return "x * 2 - y"
        if kind == 3:
            return f"(x if opaque_bool(log, k, {r.randint(0, 3)}) else y) + k"
        if kind == 4:
            return "sum([opaque(log, x, i) for i in range(3)]) / 3"
        if kind == 5:
            return "(x + 1 if x.sum() > 3 else x - 1)"
        if kind == 6:
            return "torch.where(x > y, x, y)"
        if kind == 7:
            return "x.relu() + y"
        return "max(k, 1) * x"

    def statement(self, indent, depth, loops):
        r, pad = self.random, "    " * indent
        kinds = ["assign", "assign", "assign", "opaque", "if", "for", "while", "with", "try"]
        kinds += ["call", "data", "nested", "bump"]
        if loops:
            kinds += ["break", "continue", "return"]
        kind = r.choice(kinds)
        inner = lambda more=0: self.block(indent + 1, depth, loops + more)  # noqa: E731
        if kind == "assign":
            return [f"{pad}{r.choice('xy')} = {self.expression(depth)}"]
        if kind == "opaque":
            return [f"{pad}opaque(log, {r.choice(['x', 'y', 'k'])}, {r.randint(0, 9)})"]
        if kind == "bump":
            return [f"{pad}k += {r.randint(1, 2)}", f"{pad}log.append(k)"]
        if kind == "if":
            test = r.choice(["k > 2", "k % 2", "opaque_bool(log, k, 1)", "x.sum() > 5"])
            out = [f"{pad}if {test}:", *inner()]
            if r.random() < 0.5:
                out += [f"{pad}else:", *inner()]
            return out
        if kind == "for":
            name = self.fresh()
            items = r.choice(["range(3)", "[1, 2, k]", "enumerate('ab')", "zip((1, 2), (3, 4))"])
            out = [f"{pad}for {name} in {items}:", *inner(1)]
            if r.random() < 0.3:
                out += [f"{pad}else:", *inner()]
            return out
        if kind == "while":
            name = self.fresh()
            head = [f"{pad}{name} = 0", f"{pad}while {name} < {r.randint(1, 3)}:"]
            return [*head, f"{pad}    {name} += 1", *inner(1)]
        if kind == "with":
            swallow = r.random() < 0.4
            head = r.choice([f"Recorder(log, {swallow}) as c", "torch.no_grad()"])
            return [f"{pad}with {head}:", *inner()]
        if kind == "try":
            out = [f"{pad}try:", *inner()]
            if r.random() < 0.7:
                out.append(f"{pad}    fail(log, k, {r.randint(0, 4)})")
            name = self.fresh()
            out += [f"{pad}except ValueError as {name}:", f"{pad}    log.append(str({name}))"]
            out += inner()
            if r.random() < 0.4:
                out += [f"{pad}finally:", f"{pad}    k += 1", f"{pad}    log.append('finally')"]
            return out
        if kind == "call" and depth < 2:
            self.helpers += 1
            name = f"helper{self.helpers}"
            self.function(name, depth + 1)
            return [f"{pad}x, y, k = {name}(x, k, log)"]
        if kind == "data":
            return [f"{pad}k = int(x.sum().item()) % 5"]
        if kind == "nested":
            name = self.fresh()
            return [
                f"{pad}def {name}(z):",
                f"{pad}    nonlocal k",
                f"{pad}    k += 1",
                f"{pad}    return opaque(log, z, k) + x",
                f"{pad}y = {name}(y)",
            ]
        if kind in ("break", "continue"):
            return [f"{pad}if k > {r.randint(2, 8)}:", f"{pad}    {kind}"]
        if kind == "return":
            return [f"{pad}if k > 9:", f"{pad}    return x, y, k"]
        return [f"{pad}x = x + 1"]


def program(seed):
    """Source text for one seed; helpers come before ``f``."""
    return Writer(seed).source()


@torchsmith_tracer.disable
def opaque(log, x, k):
    log.append(("opaque", float(x.sum()) if isinstance(x, torch.Tensor) else x, k))
    return x + k


@torchsmith_tracer.disable
def opaque_bool(log, k, m):
    log.append(("bool", k, m))
    return (k + m) % 2 == 0


@torchsmith_tracer.disable
def fail(log, k, m):
    log.append(("fail", k, m))
    if (k + m) % 2:
        raise ValueError(f"fail {k} {m}")


class Recorder:
    def __init__(self, log, swallow):
        self.log = log
        self.swallow = swallow

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, *rest):
        self.log.append(("exit", kind and kind.__name__))
        return self.swallow


def load(seed):
    text = program(seed)
    name = f"random_program_{seed}"
    space = {"__name__": name, "torch": torch, **globals()}
    space["__name__"] = name
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), space)
    return space["f"], text


def run(fn, a, n):
    log = []
    try:
        return fn(a.clone(), n, log), log
    except Exception as e:
        return (type(e).__name__, str(e)), log


def alike(a, b):
    if isinstance(a, torch.Tensor):
        return type(b) is torch.Tensor and a.dtype == b.dtype and torch.allclose(a, b)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, float):
        return abs(a - b) <= 1e-4 * max(1.0, abs(a))
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("limit", [8, 1])
@pytest.mark.parametrize("seed", [0, 3, 11, 17, 23, 42, 64, 80, 99, 128, 177, 201])
@pytest.mark.filterwarnings("ignore::torchsmith_tracer.errors.RecompileLimitWarning")
def test_compiled_equals_eager(seed, limit):
    fn, text = load(seed)
    compiled = torchsmith_tracer.compile(fn, options={"recompile_limit": limit})
    for a, n in ((torch.ones(3), 1), (torch.ones(3), 4), (torch.arange(3.0), 0)):
        expected, got = run(fn, a, n), run(compiled, a, n)
        assert alike(got, expected), text
        assert torch.is_grad_enabled(), text
    # Nothing fell back to running the function from its start, unless it raises there.
    for frame in compiled._torchsmith_region.log.frames:
        assert not frame.eager or frame.note, f"{frame.break_}\n{text}"
