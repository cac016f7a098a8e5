"""Random programs full of graph breaks: loops, contexts, handlers, closures, inlined callees.

Compiled and eager must agree on the result, the exception, and the order of every effect.
"""

import collections
import contextlib
import dataclasses
import enum
import functools
import gc
import itertools
import linecache
import pathlib
import random
import sys
import types

import pytest
import torch
import torchsmith_tracer

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from random_snippets import HELPERS, SNIPPETS  # noqa: E402

_USED = (collections, contextlib, dataclasses, enum, functools, itertools)  # by the snippets


class Writer:
    """Writes the source of a function ``f(a, n, log)`` and of helpers that it calls.

    ``log`` is a list that opaque functions append to, so that the order of effects is compared.
    """

    def __init__(self, seed, snippets=0):
        self.random = random.Random(seed)
        self.snippets = snippets
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
        nested, self.lines = self.lines, outer
        self.lines += nested
        self.lines += [f"def {name}(a, n, log):", "    x = a + 1", "    y = a * 2", "    k = n"]
        self.lines += [*body, "    return x, y, k", ""]

    def generator(self, depth):
        """A generator function; its name."""
        self.helpers += 1
        name = f"items{self.helpers}"
        r = self.random
        outer, self.lines = self.lines, []
        body = self.block(2, depth + 1, loops=0)
        nested, self.lines = self.lines, outer
        # Values are tensors or numbers; what is sent in is written to the log.
        steps = ["        yield x", *body, "        log.append((yield k))"]
        if r.random() < 0.5:
            steps += [f"        for i in range({r.randint(1, 3)}):", "            yield i"]
        if r.random() < 0.4:
            steps += ["        yield from range(2)"]
        end = ["    finally:", f"        log.append('{name} ends')"]
        if r.random() < 0.4:
            end = [
                "    except ValueError as e:",
                "        log.append(str(e))",
                "        yield 7",
                *end,
            ]
        if r.random() < 0.2:
            end = ["    except GeneratorExit:", "        log.append('exit')", "        raise"]
        head = [f"def {name}(x, k, log):", "    y = x * 2", "    n = k", "    try:"]
        self.lines += [*nested, *head, *steps, *end, ""]
        return name

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
        kinds += ["call", "data", "nested", "bump", "generator", "steps", "comprehension"]
        kinds += ["raise", "finally", "inplace", "store", "keep", "again", "thrower"]
        kinds += ["snippet"] * self.snippets
        if loops:
            kinds += ["break", "continue", "return"]
        kind = r.choice(kinds)
        inner = lambda more=0: self.block(indent + 1, depth, loops + more)  # noqa: E731
        if kind == "snippet":
            self.counter += 1
            text = r.choice(SNIPPETS).replace("$", str(self.counter))
            text = "".join(str(r.randint(0, 4)) if c == "#" else c for c in text)
            return [pad + line for line in text.splitlines()]
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
        if kind == "generator" and depth < 2:
            name, item = self.generator(depth), self.fresh()
            call = f"{name}(x, k, log)"
            call = r.choice([call, call, f"zip({call}, range(2))", f"enumerate({call})"])
            out = [f"{pad}for {item} in {call}:", *inner(1)]
            return [*out, f"{pad}    log.append('item')"]
        if kind == "steps" and depth < 2:
            name, it = self.generator(depth), self.fresh()
            out = [f"{pad}{it} = {name}(x, k, log)"]
            for _ in range(r.randint(1, 4)):
                out.append(
                    pad
                    + r.choice(
                        [
                            f"log.append(next({it}, 'end') is not None)",
                            f"x = x + (next({it}, None) is not None)",
                            f"opaque(log, k, {r.randint(0, 9)})",
                            f"attempt(log, {it}.send, None)",
                            f"attempt(log, {it}.throw, ValueError('thrown'))",
                            f"{it}.close()",
                            f"{it} = None",
                            "log.append('between')",
                        ]
                    )
                )
                if out[-1].endswith("None") and "=" in out[-1]:
                    break
            return out
        if kind == "comprehension":
            form = r.choice(["[{e} for i in range({n})]", "{{i: {e} for i in range({n})}}"])
            e = r.choice(["i * k", "x * i", "opaque(log, i, k)", "(k + i, i)"])
            if r.random() < 0.3:
                return [f"{pad}log.append(any({e} is None for i in range({r.randint(1, 3)})))"]
            return [f"{pad}log.append(len({form.format(e=e, n=r.randint(1, 3))}))"]
        if kind == "raise":
            if r.random() < 0.4:
                out = [f"{pad}try:", f"{pad}    raise KeyError(k)", f"{pad}except KeyError as e:"]
                new = r.choice(["raise", "raise ValueError('new')", "raise ValueError(k) from e"])
                return [*out, f"{pad}    if k > {r.randint(2, 9)}:", f"{pad}        {new}"]
            return [f"{pad}if k > {r.randint(3, 9)}:", f"{pad}    raise ValueError(k)"]
        if kind == "keep":
            name = self.fresh()
            out = [f"{pad}try:", *inner(), f"{pad}    fail(log, k, {r.randint(0, 4)})"]
            out += [f"{pad}except (ValueError, KeyError) as {name}:", f"{pad}    box.kept = {name}"]
            return [*out, f"{pad}    log.append(chain(box.kept))", *inner()]
        if kind == "again":
            raised = r.choice(["box.kept", "box.kept", "box.kept from None"])
            raised = r.choice([raised, "ValueError(k) from box.kept"])
            out = [f"{pad}if box.kept and k > {r.randint(0, 4)}:", f"{pad}    raise {raised}"]
            return [f"{pad}log.append(chain(box.kept))", *out]
        if kind == "thrower":
            name, made = self.fresh(), self.fresh()
            out = [f"{pad}{made} = ValueError({r.randint(0, 9)})", f"{pad}def {name}():"]
            out += [f"{pad}    nonlocal k", f"{pad}    k += 1"]
            if r.random() < 0.5:
                out += [f"{pad}    if k % 2:", f"{pad}        fail(log, k, {r.randint(0, 4)})"]
            out.append(f"{pad}    raise {r.choice([made, made, f'KeyError(k) from {made}'])}")
            call = r.choice([f"attempt(log, {name})", f"attempt(log, {name})", f"{name}()"])
            out += [f"{pad}try:", f"{pad}    {call}", f"{pad}    log.append(chain({made}))"]
            # Else it leads to the frame that leads to it: when a circle ends is chance.
            return [*out, f"{pad}finally:", f"{pad}    {made} = None"]
        if kind == "finally":
            out = [f"{pad}try:", *inner(), f"{pad}finally:"]
            return [*out, f"{pad}    log.append('cleanup')", *inner()]
        if kind == "inplace":
            return [f"{pad}x.add_({r.randint(1, 3)})", f"{pad}log.append(float(k))"]
        if kind == "store":
            return [f"{pad}box.value = k", f"{pad}box.log = [box.value, *box.log[-2:]]"]
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


def program(seed, snippets=0):
    """Source text for one seed; helpers come before ``f``. ``snippets``: how likely they are."""
    return (HELPERS if snippets else "") + Writer(seed, snippets).source()


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


def attempt(log, fn, *args):
    try:
        log.append(fn(*args) is not None)
    except (StopIteration, ValueError, TypeError, KeyError, AttributeError) as e:
        log.append(type(e).__name__)
    finally:
        del fn, args  # an exception among them leads back here: all frames would wait for the gc


class Box:
    """Attributes that programs store to."""

    def __init__(self):
        self.value, self.log, self.kept = 0, [], None


def chain(error):
    """The texts of an exception and of those that it leads to."""
    found = []
    while error is not None and len(found) < 9:
        found.append((described(error), described(error.__cause__), error.__suppress_context__))
        error = error.__context__
    return found


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


def load(seed, snippets=0):
    text = program(seed, snippets)
    name = f"random_program_{seed}"
    space = {"__name__": name, "torch": torch, **globals()}
    space["__name__"] = name
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), space)
    return space["f"], text


def run(fn, a, n):
    """(result or exception with its cause and context, effects, the argument afterwards)"""
    log, box, a = [], Box(), a.clone()
    fn.__globals__["box"] = box
    gc.disable()  # a program may make cycles with generators in them: when these end is chance
    try:
        out = fn(a, n, log)
    except Exception as e:
        out = chain(e)
    finally:
        gc.enable()
    kept = described(box.kept)
    box.kept = None  # what only it leads to ends now, not where the next run has another box
    gc.collect(0)  # all that the program has made is young
    return out, log, a, box.value, box.log, kept


def described(error):
    return error and (type(error).__name__, str(error))


def mismatch(seed, limit, backend="eager", snippets=0):
    """What differs between eager and compiled for one program, or None."""
    fn, text = load(seed, snippets)
    other = load(seed, snippets)[0] if snippets else fn  # counters and caches of its own
    options = {"recompile_limit": limit}
    compiled = torchsmith_tracer.compile(other, backend=backend, options=options)
    space = other.__globals__
    for a, n in ((torch.ones(3), 1), (torch.ones(3), 4), (torch.arange(3.0), 0)):
        expected = run(fn, a, n)
        space["compiled"] = compiled
        got = run(types.FunctionType(CALL.__code__, space), a, n)
        if not alike(got, expected):
            return f"{text}\nexpected {expected}\ngot      {got}"
        if not torch.is_grad_enabled():
            return f"{text}\ngrad mode was left off"
    # Nothing fell back to running the function from its start, unless it raises there.
    for frame in compiled._torchsmith_region.log.frames:
        if frame.eager and not frame.note:
            return f"{text}\n{frame.break_}"
    return None


def CALL(a, n, log):
    return compiled(a, n, log)  # noqa: F821 - set by ``mismatch``


def alike(a, b):
    if isinstance(a, torch.Tensor):
        if type(b) is not torch.Tensor or a.dtype != b.dtype:
            return False
        return torch.allclose(a, b, equal_nan=True)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, float):
        return a == b or (a != a and b != b) or abs(a - b) <= 1e-4 * max(1.0, abs(a))
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.filterwarnings("ignore::torchsmith_tracer.errors.RecompileLimitWarning")
def test_compiled_snippets_equal_eager(seed):
    assert mismatch(seed, 8, snippets=40) is None


@pytest.mark.parametrize("limit", [8, 1])
@pytest.mark.parametrize("seed", [0, 3, 11, 17, 23, 42, 64, 80, 99, 128, 177, 201])
@pytest.mark.filterwarnings("ignore::torchsmith_tracer.errors.RecompileLimitWarning")
def test_compiled_equals_eager(seed, limit):
    assert mismatch(seed, limit) is None
