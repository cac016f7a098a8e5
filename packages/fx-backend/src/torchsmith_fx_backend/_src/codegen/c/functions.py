"""The scalar functions that kernels call, from ``functions.c``; a unit includes those that it uses.

All of them are branch-free, so that a compiler turns them into vector code inside a simd loop, and
strict about NaN, infinities, signed overflow and denormals. The float32 polynomials are minimax
fits of our own with coefficients rounded one after the other; errors are below 2 ulp.
"""

from __future__ import annotations

import re
from pathlib import Path

_NAME = re.compile(r"\bts_\w+")
_TEXT = Path(__file__).with_name("functions.c").read_text("ascii")
# a declaration stays with the definition that it is for
_START = r"\n(?=TS_SIMD )|(?<!\);)\n(?=TS_INLINE |static inline )"
PROLOGUE, *_definitions = re.split(_START, _TEXT)
# name -> definition; names that occur in a definition are its dependencies
FUNCTIONS = {_NAME.findall(text)[0]: text for text in _definitions}


def prelude(code: str) -> str:
    """The definitions that ``code`` needs, dependencies first, after the common prologue."""
    order: list[str] = []

    def visit(name: str) -> None:
        definition = FUNCTIONS.get(name)
        if definition is None or name in order:
            return
        for needed in dict.fromkeys(_NAME.findall(definition)):
            if needed != name:
                visit(needed)
        order.append(name)

    for name in dict.fromkeys(_NAME.findall(code)):
        visit(name)
    return "\n".join([PROLOGUE, *(FUNCTIONS[name] for name in order)])
