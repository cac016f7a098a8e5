"""``torchsmith env``: what a bug report needs to say about the machine."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torchsmith_tracer import backend_names

PACKAGES = (
    "torchsmith",
    "torchsmith-guards",
    "torchsmith-tracer",
    "torchsmith-fx-backend",
    "torchsmith-kernels",
    "torch",
    "triton",
    "bytecode",
    "sympy",
    "numpy",
)
# What of the environment decides how programs are compiled and run.
_PREFIXES = ("TORCHSMITH_", "TORCH_", "TRITON_", "CUDA_", "OMP_", "KMP_", "MKL_")
_NAMES = ("CC", "CFLAGS", "LD_PRELOAD", "PYTHONOPTIMIZE", "PYTHONHASHSEED")


def add(commands: Any) -> None:
    """Put this command's parser there."""
    parser = commands.add_parser("env", help="versions, machine and settings, for a bug report")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the facts."""
    facts = environment()
    if options.json:
        print(json.dumps(facts, indent=2))
    else:
        width = max(map(len, facts))
        print("\n".join(f"{name:{width}}  {value}" for name, value in facts.items()))
    return 0


def environment() -> dict[str, str]:
    """Versions, machine and settings; what cannot be found out says why."""
    facts = {
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "executable": sys.executable,
        "platform": platform.platform(),
        "C library": " ".join(platform.libc_ver()) or "unknown",
    }
    facts.update((name, _version(name)) for name in PACKAGES)
    finders: dict[str, Callable[[], str]] = {
        "torch build": _torch_build,
        "processor": _processor,
        "threads": lambda: f"{torch.get_num_threads()} of {os.cpu_count()} processors",
        "accelerators": _accelerators,
        "C compiler": _compiler,
        "cache": _cache,
        "backends": lambda: ", ".join(backend_names()),
        "variables": _variables,
    }
    for name, find in finders.items():
        try:
            facts[name] = find()
        except Exception as error:  # noqa: BLE001 - the rest is wanted all the more
            facts[name] = f"unknown: {type(error).__name__}: {error}"
    return facts


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        # a source tree on the path: the package says it itself
        module = sys.modules.get(name.replace("-", "_"))
        return str(getattr(module, "__version__", "not installed"))


def _torch_build() -> str:
    parts = [f"CUDA {torch.version.cuda or 'none'}"]
    parts += [f"HIP {torch.version.hip}"] if torch.version.hip else []
    parts += [f"debug {torch.version.debug}", f"commit {torch.version.git_version[:10]}"]
    return ", ".join(parts)


def _processor() -> str:
    name = platform.processor() or platform.machine()
    file = Path("/proc/cpuinfo")
    for line in file.read_text().splitlines() if file.exists() else ():
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
            break
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}"


def _accelerators() -> str:
    found = []
    for number in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(number)
        memory = about.total_memory / 2**30
        found.append(f"{about.name} (sm_{about.major}{about.minor}, {memory:.0f} GiB)")
    return "; ".join(found) or "none"


def _compiler() -> str:
    configured = os.environ.get("CC", "")
    candidates = [shlex.split(configured)] if configured.strip() else []
    for command in [*candidates, ["cc"], ["gcc"], ["clang"]]:
        path = shutil.which(command[0])
        if path is not None:
            asked = [path, *command[1:], "--version"]
            done = subprocess.run(asked, capture_output=True, text=True, timeout=20)
            return f"{path}: {(done.stdout or done.stderr).partition(chr(10))[0]}"
    return "none found (tried $CC, cc, gcc, clang)"


def _cache() -> str:
    configured = os.environ.get("TORCHSMITH_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    root = Path(configured or os.path.join(base, "torchsmith"))
    if not root.exists():
        return f"{root} (not there yet)"
    state = "" if os.access(root, os.R_OK | os.W_OK | os.X_OK) else ", NOT WRITABLE"
    free = shutil.disk_usage(root).free / 2**30
    return f"{root} ({free:.1f} GiB free{state})"


def _variables() -> str:
    chosen = {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(_PREFIXES) or name in _NAMES
    }
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in chosen.items()) or "none"
