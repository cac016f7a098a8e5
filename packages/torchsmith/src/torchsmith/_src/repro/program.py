"""Runs whole programs apart, and takes statements out of one while it fails in the same way."""

from __future__ import annotations

import ast
import linecache
import os
import sys
import time
import types
from collections.abc import Callable, Collection
from dataclasses import replace

import torchsmith_tracer

from torchsmith._src.repro.judge import Failure, died
from torchsmith._src.repro.reduce import shrink
from torchsmith._src.repro.sandbox import Died, run_apart
from torchsmith._src.repro.watch import Watch, watching


def outcome(
    path: str, text: str, watch: Watch, limit: float, *, eager: bool = False
) -> Failure | None:
    """How the program ``text`` ends, in a process of its own; None: well.

    Args:
        path: where it is from: its ``__file__``, and first entry of its import path.
        text: its source.
        watch: what is asked of compile calls.
        limit: seconds after which it hangs.
        eager: compiled functions run as if they were not compiled.
    """

    def inside() -> Failure | None:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        sys.stdout = sys.stderr = os.fdopen(nowhere, "w")
        main = types.ModuleType("__main__")
        main.__file__ = path
        sys.modules["__main__"], sys.argv = main, [path]
        sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
        linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
        try:
            with (
                watching(watch),
                torchsmith_tracer.set_stance("force_eager" if eager else "default"),
            ):
                exec(compile(text, path, "exec"), main.__dict__)
        except SystemExit as end:
            return Failure("error", "SystemExit", str(end.code)) if end.code else None
        except BaseException as error:  # noqa: BLE001 - this is what is looked for
            return Failure("error", type(error).__name__, str(error))
        return None

    found = run_apart(inside, limit)
    if isinstance(found, Died):
        return died(found, limit)
    assert found is None or isinstance(found, Failure)
    return found


def stage_of(path: str, text: str, watch: Watch, failure: Failure, limit: float) -> str:
    """The stage at fault where no single graph fails: the tracer, its guards, or the backend."""

    def fails(other: Watch) -> bool:
        found = outcome(path, text, other, limit)
        return found is not None and found.key == failure.key

    if not fails(replace(watch, backend="eager")):
        return "backend, on several graphs together"
    return "tracer" if fails(replace(watch, backend="eager", fresh=True)) else "guards"


def fewer_statements(
    text: str, fails: Callable[[str], bool], say: Callable[[str], object], budget: float
) -> str:
    """``text`` without the statements that it fails without."""
    count = sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(text)))
    end = time.monotonic() + budget
    known: dict[str, bool] = {}  # without a function, its statements make no difference

    def without(kept: Collection[int]) -> bool:
        rest = _without(text, set(range(count)) - set(kept))
        if rest not in known:
            if time.monotonic() > end:
                return False
            known[rest] = fails(rest)
        return known[rest]

    kept = shrink(list(range(count)), without, lambda n: say(f"{n} of {count} statements"))
    return _without(text, set(range(count)) - set(kept))


class _Remover(ast.NodeTransformer):
    def __init__(self, gone: set[ast.stmt]) -> None:
        self._gone = gone

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody", "handlers"):
            block = getattr(node, name, None)
            if isinstance(block, list) and not block:
                if name == "body" and not isinstance(node, ast.Module):
                    node.body = [ast.Pass()]  # type: ignore[attr-defined]
        return node

    def visit(self, node: ast.AST) -> ast.AST | None:
        return None if node in self._gone else self.generic_visit(node)


def _without(text: str, gone: set[int]) -> str:
    """``text`` without the statements of these numbers, in the order of ``ast.walk``."""
    tree = ast.parse(text)
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    _Remover({statements[n] for n in gone}).visit(tree)
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"
