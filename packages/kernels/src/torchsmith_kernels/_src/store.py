"""Tuned configurations on disk: one JSON file per op and compute capability.

Files lie in ``kernels/`` below ``$TORCHSMITH_CACHE_DIR`` (or the XDG cache directory). They are
data only, written atomically; a damaged file is reported once and counts as empty.
"""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from functools import cache
from pathlib import Path

Table = dict[str, dict[str, object]]


def folder() -> Path:
    """Where tuned configurations are kept."""
    configured = os.environ.get("TORCHSMITH_CACHE_DIR")
    if configured:
        return Path(configured) / "kernels"
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "torchsmith" / "kernels"


def path_of(op: str, capability: int) -> Path:
    """The file of one op on one kind of chip."""
    return folder() / f"{op}.sm_{capability}.json"


@cache
def _read(path: Path) -> Table:
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        warnings.warn(f"torchsmith: ignoring tuned configurations in {path}: {error}", stacklevel=2)
        return {}
    entries = data.get("entries") if isinstance(data, dict) else None
    if not isinstance(entries, dict) or not all(isinstance(e, dict) for e in entries.values()):
        warnings.warn(
            f"torchsmith: ignoring tuned configurations in {path}: no table of entries",
            stacklevel=2,
        )
        return {}
    return entries


def tuned_table(op: str, capability: int) -> Table:
    """Stored entries by case; read once per process."""
    return _read(path_of(op, capability))


def save(op: str, capability: int, device_name: str, entries: Table) -> Path:
    """Adds ``entries`` to the stored table and returns the file."""
    path = path_of(op, capability)
    _read.cache_clear()
    merged = {**tuned_table(op, capability), **entries}
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    with os.fdopen(handle, "w") as file:
        json.dump({"device": device_name, "entries": merged}, file, indent=1, sort_keys=True)
    os.replace(temporary, path)
    _read.cache_clear()
    return path
