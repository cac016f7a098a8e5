"""Every kind of fact of the mutation fuzzer, changed and changed back alone."""

import contextlib
import pathlib
import sys
import types

import pytest
import torchsmith_tracer

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from fuzz_mutation import FACTS, PRELUDE, outcome

CASES = [(i, j) for i, fact in enumerate(FACTS) for j in range(len(fact.changes))]


@pytest.mark.parametrize("i, j", CASES)
def test_a_change_is_seen(i, j, monkeypatch):
    monkeypatch.setenv("TORCHSMITH_STRICT", "0")  # some changes break torch's own code
    own = f"_alone_{i}_{j}"
    setup, read, do, undo = (
        text.replace("$", own) for text in (FACTS[i].setup, FACTS[i].read, *FACTS[i].changes[j])
    )
    module = types.ModuleType(f"facts{own}")
    space = vars(module)
    body = f"def f(x):\n    return x * 2 + ({read})\n"
    exec(compile(f"{PRELUDE}\n{setup}\n{body}", module.__name__, "exec"), space)
    compiled = torchsmith_tracer.compile(space["f"], backend="eager")
    try:
        for statement in ("", do, undo):
            exec(statement, space)
            kind = space["x_grad"][0]
            assert outcome(compiled, kind) == outcome(space["f"], kind), statement
    finally:
        with contextlib.suppress(Exception):
            exec(undo, space)
