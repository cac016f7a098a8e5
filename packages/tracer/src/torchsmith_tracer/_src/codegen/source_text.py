"""Generated source as modules that debuggers and tracebacks can show."""

from __future__ import annotations

import builtins
import linecache

_BUILTINS = vars(builtins).copy()  # a program may replace some
_made = iter(range(1, 1 << 62))


def compile_source(text: str, title: str, namespace: dict[str, object]) -> str:
    """Run ``text`` in ``namespace`` as a module that debuggers and tracebacks can show; returns
    the file name under which it is registered."""
    filename = f"<torchsmith {title} {next(_made)}>"
    namespace.setdefault("__builtins__", _BUILTINS)
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    exec(compile(text, filename, "exec"), namespace)
    return filename


def forget_source(filename: str) -> None:
    """Drop a registered source when its code dies."""
    linecache.cache.pop(filename, None)
