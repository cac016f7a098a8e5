"""Command line: explain how a function is captured.

    python -m torchsmith_tracer FILE::func [--arg SPEC ...] [--json] [--html OUT] [--dynamic]

The file is imported. Example inputs come from ``--arg`` (``f32[2,3]`` makes a tensor, anything else
is read as a Python literal), or from the file's ``example_inputs`` or ``inputs`` (a tuple, a dict
of keyword arguments, or a function that returns one). Exit codes: 0 captured whole, 1 there are
graph breaks, 2 usage.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import re
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from torchsmith_tracer import backend_names, explain
from torchsmith_tracer.errors import TracerError

_DTYPES = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
    "i8": torch.int8,
    "u8": torch.uint8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "c64": torch.complex64,
    "b1": torch.bool,
}
_TENSOR = re.compile(r"(\w+)\[([\d,\s]*)\]$")


class UsageError(Exception):
    """A mistake in how the command was called."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m torchsmith_tracer", description="Explain how a function is captured."
    )
    parser.add_argument("target", metavar="FILE::func", help="a function or module in a file")
    parser.add_argument(
        "--arg",
        action="append",
        default=[],
        metavar="SPEC",
        help="one positional argument: f32[2,3] for a tensor, or a Python literal",
    )
    parser.add_argument("--backend", default="eager", help="eager, or an installed backend")
    parser.add_argument("--mode", help="one of the backend's modes, such as max-autotune")
    parser.add_argument("--dynamic", action="store_true", help="symbolic sizes from the start")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--html", metavar="OUT", help="write a page for the browser as well")
    options = parser.parse_args(argv)
    try:
        space, name = _load(options.target)
        fn = _find(space, name)
        args, kwargs = _inputs(space, options.arg)
        if options.backend not in backend_names():
            raise UsageError(
                f"unknown backend {options.backend!r}; valid: {', '.join(backend_names())}"
            )
    except UsageError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    dynamic = True if options.dynamic else None
    try:
        made = explain(fn, backend=options.backend, dynamic=dynamic, mode=options.mode)
        report = made(*args, **kwargs)
    except TracerError as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    if options.html is not None and not report.save(options.html):
        return 1
    print(json.dumps(report.to_json(), indent=2) if options.json else str(report))
    return 1 if report.break_count else 0


def _load(target: str) -> tuple[types.ModuleType, str]:
    path_text, found, name = target.partition("::")
    if not found or not name:
        raise UsageError(f"expected FILE::func, got {target!r}")
    path = Path(path_text)
    if not path.is_file():
        raise UsageError(f"no such file: {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"not a Python file: {path}")
    module = importlib.util.module_from_spec(spec)
    # Traced code finds the globals of a module by its name.
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent.resolve()))
    spec.loader.exec_module(module)
    return module, name


def _find(space: types.ModuleType, name: str) -> Callable[..., Any]:
    found: Any = space
    for part in name.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{space.__file__} has no {name!r}")
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(f"{name!r} is not callable")
    return found  # type: ignore[no-any-return]


def _inputs(
    space: types.ModuleType, specs: Sequence[str]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if specs:
        return tuple(parse_argument(s) for s in specs), {}
    for name in ("example_inputs", "inputs"):
        found = getattr(space, name, None)
        if found is None:
            continue
        value = found() if callable(found) else found
        if isinstance(value, dict):
            return (), value
        return tuple(value) if isinstance(value, tuple | list) else (value,), {}
    return (), {}


def parse_argument(spec: str) -> Any:
    """``f32[2,3]`` -> a random tensor; otherwise a Python literal.

    Raises:
        UsageError: neither of them.
    """
    match = _TENSOR.match(spec.strip())
    if match is not None:
        dtype = _DTYPES.get(match[1]) or getattr(torch, match[1], None)
        if not isinstance(dtype, torch.dtype):
            raise UsageError(f"unknown dtype {match[1]!r}; valid: {', '.join(_DTYPES)}")
        shape = [int(n) for n in match[2].split(",") if n.strip()]
        if dtype.is_floating_point or dtype.is_complex:
            return torch.randn(shape, dtype=dtype)
        return torch.randint(0, 2, shape).to(dtype)
    try:
        return ast.literal_eval(spec)
    except (ValueError, SyntaxError):
        raise UsageError(f"not a tensor spec or Python literal: {spec!r}") from None


if __name__ == "__main__":
    sys.exit(main())
