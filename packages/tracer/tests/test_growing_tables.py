"""Dicts and sets that have other keys at each call: caches, windows, what is noted at each step."""

import collections
import copy
import random
import types
import warnings

import pytest
import torch
import torchsmith_tracer

CALLS = 18  # more than the limit of compiles


class Holder:
    def __init__(self):
        self.n = 0
        self.table, self.words, self.seen = {}, {}, set()
        self.ordered = collections.OrderedDict()
        self.lists = collections.defaultdict(list)


def noted(h, x):
    h.table[h.n] = x.sum()
    h.words[f"step{h.n}"] = h.n
    return x + 1


def cached(h, x):
    if h.n not in h.table:
        h.table[h.n] = x * h.n
    return h.table[h.n] + len(h.table)


def window(h, x):
    h.ordered[h.n] = x
    if len(h.ordered) > 4:
        h.ordered.popitem(last=False)
    return x + sum(h.ordered)


def all_values(h, x):
    h.table[h.n] = x.sum() * 2
    for key, value in h.table.items():
        x = x + key * value
    return x + sum(h.table.values())


def elements(h, x):
    h.seen.add(h.n)
    h.seen.add(h.n + 100)
    return x + len(h.seen) + (h.n in h.seen) + max(h.seen)


def by_default(h, x):
    h.lists[h.n].append(x)
    h.lists["all"].append(h.n)
    return x + len(h.lists[h.n]) + len(h.lists["all"])


def nested(h, x):
    h.table.setdefault("inner", {})[h.n] = [x]
    return x * len(h.table["inner"])


def copied(h, x):
    before = dict(h.table)
    h.table[h.n] = 1
    return x + len(before) + len({**h.table, "more": 2}), before


def of_shapes(h, x):
    key = tuple(x.shape)
    if key not in h.table:
        h.table[key] = torch.ones(key)
    return h.table[key] + x


def missing(h, x):
    try:
        return x + h.table[h.n]
    except KeyError as e:
        h.table[h.n + 1] = x.sum()
        return x * len(e.args)


PROGRAMS = [
    *(noted, cached, window, all_values, elements, by_default, nested, copied, of_shapes),
    missing,
]


def result(fn, holder, i):
    holder.n = i
    return fn(holder, torch.ones(2 + i % 11))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda fn: fn.__name__)
def test_the_limit_is_not_reached(program, capture):
    compiled = torchsmith_tracer.compile(program, backend=capture)
    ours, eager = Holder(), Holder()
    with warnings.catch_warnings():
        warnings.simplefilter("error", torchsmith_tracer.errors.RecompileLimitWarning)
        for i in range(CALLS):
            torch.testing.assert_close(result(compiled, ours, i), result(program, eager, i))
    assert repr(vars(ours)) == repr(vars(eager))
    enough = capture.n
    for i in range(CALLS, CALLS + 4):
        result(compiled, ours, i)
    assert capture.n == enough


def test_arguments_of_a_few_kinds_have_code_of_their_own(capture):
    def f(batch):
        return sum(batch.values()) * len(batch)

    compiled = torchsmith_tracer.compile(f, backend=capture, fullgraph=False)
    batches = [{name: torch.ones(2) for name in names} for names in ("ab", "abc", "xy")]
    for batch in batches * 3:
        assert torch.equal(compiled(batch), f(batch))
    assert capture.n == 3


def test_a_whole_graph_is_compiled_for_each_content(capture):
    def f(batch):
        return sum(batch.values())

    compiled = torchsmith_tracer.compile(f, backend=capture, fullgraph=True)
    for n in range(1, 7):
        batch = {i: torch.ones(2) for i in range(n)}
        assert torch.equal(compiled(batch), f(batch))
    assert capture.n == 6


STEPS = """
h.table[{k}] = {v}
h.table.pop({k}, None)
x = x + (h.table.get({k}, 0))
if {k} in h.table: del h.table[{k}]
x = x + len(h.table)
x = x + sum(v for v in h.table.values())
h.table.update({{{k}: {v}, h.n + 9: 1}})
h.words.setdefault({k}, []).append(h.n)
x = x + sum(len(v) for v in h.words.values())
h.words = {{k: list(v) for k, v in h.words.items() if len(v) < 3}}
h.seen.add({k})
h.seen.discard({k})
h.seen = h.seen.union([{k}])
x = x * (2 if h.seen else 3)
h.ordered[{k}] = {v}
if h.ordered: h.ordered.move_to_end(next(iter(h.ordered)))
if len(h.ordered) > 3: h.ordered.popitem(last=False)
x = x + next(iter(h.ordered.values()), 0)
h.lists[{k}].append(x)
x = x + sum(h.lists[{k}], torch.zeros(2))
opaque(x)
other = h.table; other[{k}] = {v}; x = x + len(other)
for key in list(h.table): x = x + (key if key % 2 else h.table[key])
x = note(h, x, {k})
try: x = x + h.table[{k}]|except KeyError: h.table[{k}] = 1
if h.n % 5 == 4: h.table.clear()
with torch.no_grad(): h.table[{k}] = len(h.seen)
""".strip().splitlines()


@torchsmith_tracer.disable
def opaque(x):
    return x


def note(h, x, k):
    h.table[k] = h.table.get(k, 0) + 1
    return x * h.table[k]


def random_program(seed):
    rng = random.Random(seed)
    lines = ["def f(h, x):"]
    for _ in range(rng.randint(2, 6)):
        step = rng.choice(STEPS)
        k = rng.choice(["h.n", "h.n % 4", "h.n // 3", "2", "len(h.table)"])
        v = rng.choice(["x", "h.n", "3", "x.sum()"])
        lines += ["    " + part for part in step.format(k=k, v=v).split("|")]
    space = {"torch": torch, "opaque": opaque, "note": note}
    exec("\n".join([*lines, "    return x"]), space)
    assert isinstance(space["f"], types.FunctionType)
    return space["f"], "\n".join(lines)


def mismatch(seed):
    """What differs between eager and compiled for one random program, or None."""
    program, text = random_program(seed)
    compiled = torchsmith_tracer.compile(program, backend="eager")
    outcomes = []
    for fn in (program, compiled):
        holder, found = Holder(), []
        for i in range(CALLS):
            holder.n = i
            try:
                found.append(repr(fn(holder, torch.ones(2))))
            except Exception as e:
                found.append(repr(e))
            found.append(repr(vars(copy.copy(holder))))
        outcomes.append(found)
    for want, got in zip(*outcomes, strict=True):
        if want != got:
            return f"seed {seed}\n{text}\neager    {want}\ncompiled {got}"
    return None


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.filterwarnings("ignore::torchsmith_tracer.errors.RecompileLimitWarning")
def test_random_programs(seed):
    assert mismatch(seed) is None
