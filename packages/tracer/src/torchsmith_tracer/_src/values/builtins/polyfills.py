"""Python versions of functions in C that call back into the program, which are traced."""

from __future__ import annotations

import types

# They are typed by what they replace.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, var-annotated"


def pattern_sub(pattern, repl, string, count=0):
    pieces = []
    position = done = 0
    for match in pattern.finditer(string):
        if count and done >= count:
            break
        pieces.append(string[position : match.start()])
        pieces.append(repl(match))
        position = match.end()
        done += 1  # noqa: SIM113 - counts replacements
    pieces.append(string[position:])
    return "".join(pieces)


def namespace_repr(self, /):
    name = "namespace" if type(self) is types.SimpleNamespace else type(self).__name__
    parts = [f"{key}={value!r}" for key, value in vars(self).items()]
    return f"{name}({', '.join(parts)})"


def namespace_eq(self, other, /):
    if not issubclass(type(other), types.SimpleNamespace):
        return NotImplemented
    return self.__dict__ == other.__dict__
