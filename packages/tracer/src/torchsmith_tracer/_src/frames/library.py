"""Which code is a library's internals: the standard library's, torch's and our own.

A break never opens such a frame to go on inside it: the call that led there from the user's code
runs natively as a whole. Modules of ``torch.nn`` count as user code, since they are made of public
operators and call the user's modules, and so does ``DistributedDataParallel``, which calls one.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from types import CodeType, ModuleType

import torch

_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep
_TESTS = _STDLIB + "test" + os.sep  # programs that use the library
# Of this environment, and of the Python that it was made from.
_PACKAGES = [sysconfig.get_paths()[name] for name in ("purelib", "platlib")]
_PACKAGES += [_STDLIB + name for name in ("site-packages", "dist-packages")]
_SITE = tuple(path + os.sep for path in _PACKAGES)
_TORCH = os.path.dirname(torch.__file__) + os.sep
_CALLING_MODULES = (
    os.path.join(_TORCH, "nn", "modules") + os.sep,
    os.path.join(_TORCH, "nn", "parallel", "distributed.py"),
)
_HERE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep


def is_library(code: CodeType) -> bool:
    """True for code of the standard library, of torch and of this package."""
    path = code.co_filename
    if path.startswith(_TORCH):
        return not path.startswith(_CALLING_MODULES)
    if path.startswith(("<torchsmith", "<frozen", _HERE)):
        return True
    return _is_standard(path)


def _is_standard(path: str) -> bool:
    return path.startswith(_STDLIB) and not path.startswith((_TESTS, *_SITE))


def is_generated(code: CodeType) -> bool:
    """True for code of this package, and for what it generates other than the user's own."""
    return code.co_filename.startswith(("<torchsmith", _HERE))


def is_library_module(name: str) -> bool:
    """Whether the module of this name is one of the standard library, torch or numpy: by the file
    that it was loaded from, since a user's file may be called ``types.py``."""
    module = sys.modules.get(name)
    if not isinstance(module, ModuleType) or name == "__main__":
        return False
    top = name.partition(".")[0]
    path = getattr(module, "__file__", None)
    if not isinstance(path, str):  # built or frozen into the interpreter, or made by torch
        return top in sys.stdlib_module_names or top in ("torch", "numpy")
    if top == "numpy":  # installed anywhere; a file of the user's is no package
        return hasattr(sys.modules.get(top), "__path__")
    return path.startswith(_TORCH) or _is_standard(path)


def is_ours(path: object) -> bool:
    """Whether a file is part of this package, whose code never changes."""
    return isinstance(path, str) and path.startswith(_HERE)
