"""The page: its templates filled with the data, as one file that needs nothing else."""

from __future__ import annotations

import html
import json
import os
import warnings
from collections.abc import Mapping
from importlib import resources
from typing import Any

from torchsmith_tracer.errors import TracerWarning


def page(data: Mapping[str, Any], text: str = "") -> str:
    """The page on one program.

    Args:
        data: see ``model``.
        text: the same as text, for browsers that run no scripts.
    """
    folder = resources.files(__package__) / "templates"
    parts = {
        "TITLE": html.escape(f"{data['function']} · torchsmith"),
        "STYLE": (folder / "page.css").read_text("utf-8"),
        "TEXT": html.escape(text),
        "SCRIPT": (folder / "page.js").read_text("utf-8"),
        "DATA": _script_json(data),
    }
    out = (folder / "page.html").read_text("utf-8")
    # What is put in is never looked through for further marks: it may be the user's own text.
    pieces = out.split("%%")
    return "".join(parts[p] if number % 2 else p for number, p in enumerate(pieces))


def _script_json(data: Mapping[str, Any]) -> str:
    """JSON that may stand in a script element: no markup in it, and nothing but ASCII."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), default=str)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def write_page(path: str | os.PathLike[str], content: str) -> bool:
    """Write the page; a place that cannot be written is a warning, and False."""
    try:
        with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(content)
    except OSError as error:
        text = f"[TS-T909] no report at {os.fspath(path)}: {error.strerror or error}"
        warnings.warn(text, TracerWarning, stacklevel=3)
        return False
    return True
