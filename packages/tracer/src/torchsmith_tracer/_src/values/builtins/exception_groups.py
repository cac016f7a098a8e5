"""Exception groups and ``except*`` in Python: what is traced instead of CPython's C functions."""

from __future__ import annotations

import sys

# They are typed by what they replace.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, var-annotated"

_CONDITION = (
    "expected an exception type, a tuple of exception types, or a callable (other than a class)"
    if sys.version_info >= (3, 13)
    else "expected a function, exception type or tuple of exception types"
)


def _is_kind(condition):
    return isinstance(condition, type) and issubclass(condition, BaseException)


def _matcher(condition):
    kinds = condition if isinstance(condition, tuple) else (condition,)
    if all(map(_is_kind, kinds)):  # whatever their metaclasses answer
        return lambda exc: any(base is kind for base in type(exc).__mro__ for kind in kinds)
    if callable(condition) and not isinstance(condition, type):
        return condition
    raise TypeError(_CONDITION)


def _subset(group, exceptions):
    """A group like ``group`` of some of its exceptions, or None."""
    if not exceptions:
        return None
    made = group.derive(exceptions)
    if not isinstance(made, BaseExceptionGroup):
        raise TypeError("derive must return an instance of BaseExceptionGroup")
    made.__traceback__ = group.__traceback__
    made.__context__ = group.__context__
    made.__cause__ = group.__cause__
    notes = getattr(group, "__notes__", None)
    if isinstance(notes, list | tuple):
        made.__notes__ = list(notes)
    return made


def _parts(exc, matches, wants_rest):
    """What of ``exc`` matches, and the rest."""
    if matches(exc):
        return exc, None
    if not isinstance(exc, BaseExceptionGroup):
        return None, exc
    found, rest = [], []
    for inner in exc.exceptions:
        match, other = _parts(inner, matches, wants_rest)
        if match is not None:
            found.append(match)
        if other is not None and wants_rest:
            rest.append(other)
    return _subset(exc, found), _subset(exc, rest)


def split(self, matcher_value, /):
    return _parts(self, _matcher(matcher_value), True)


def subgroup(self, matcher_value, /):
    return _parts(self, _matcher(matcher_value), False)[0]


def derive(self, excs, /):
    return BaseExceptionGroup(self.message, excs)


def text(self, /):
    count = len(self.exceptions)
    return f"{self.message} ({count} sub-exception{'' if count == 1 else 's'})"


def match_star(exc, kinds):
    """``except* kinds``: what is left of ``exc``, and what matches as a group."""
    listed = kinds if isinstance(kinds, tuple) else (kinds,)
    if not all(map(_is_kind, listed)):
        raise TypeError("catching classes that do not inherit from BaseException is not allowed")
    if any(issubclass(kind, BaseExceptionGroup) for kind in listed):
        text = "catching ExceptionGroup with except* is not allowed. Use except instead."
        raise TypeError(text)
    if _matcher(kinds)(exc):
        if isinstance(exc, BaseExceptionGroup):
            return None, exc
        return None, BaseExceptionGroup("", (exc,))
    if isinstance(exc, BaseExceptionGroup):
        match, rest = exc.split(kinds)
        return rest, match
    return exc, None


def _leaves(exc, out):
    if isinstance(exc, BaseExceptionGroup):
        for inner in exc.exceptions:
            _leaves(inner, out)
    else:
        out.append(exc)


def reraise_star(original, raised):
    """What an ``except*`` statement raises in the end, or None: of the exceptions that its clauses
    raised and left over, parts of the ``original`` are put together again."""
    if not isinstance(original, BaseExceptionGroup):
        return raised[0] if raised else None
    new, again = [], []
    for exc in raised:
        if exc is None:
            continue
        same = (
            exc.__traceback__ is original.__traceback__
            and exc.__cause__ is original.__cause__
            and exc.__context__ is original.__context__
        )
        (again if same else new).append(exc)
    leaves = []
    for exc in again:
        _leaves(exc, leaves)
    if leaves:
        kept, _ = _parts(original, lambda exc: any(exc is leaf for leaf in leaves), False)
        if not new:
            return kept
        new.append(kept)
    if not new:
        return None
    return new[0] if len(new) == 1 else BaseExceptionGroup("", new)
