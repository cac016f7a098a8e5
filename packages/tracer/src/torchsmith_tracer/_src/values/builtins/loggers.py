"""Loggers: records of known text are made after the graph, in order, as all side effects are; a
logger that is silent at the level costs a guard."""

from __future__ import annotations

import logging
import os

import torch
from torchsmith_guards import GuardKind

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.addresses import VaryingText
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtins.registry import builtin
from torchsmith_tracer._src.values.constants import NONE, ConstantValue
from torchsmith_tracer._src.values.lazy import realize
from torchsmith_tracer._src.values.numpy_scalars import is_number_type
from torchsmith_tracer._src.values.symnum import SymNumValue

_PLAIN = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


def _plain(tx: Trace, value: Value, what: str) -> Value:
    """A value that nothing can change: the same at every call, or a number that varies."""
    value = realize(tx, value)
    if isinstance(value, SymNumValue | VaryingText):
        return value
    found = tx.interp.try_concrete(value)
    if type(found) not in _PLAIN and not is_number_type(type(found)):
        raise Unsupported("opaque-call", what=f"{what} of {value.describe()}")
    return ConstantValue(found)


def _log(
    tx: Trace, self: Value, level: int, name: str, args: tuple[Value, ...], kwargs: dict[str, Value]
) -> Value:
    what = f"logging.Logger.{name}"
    logger = getattr(self, "obj", None)
    set_here = any(issubclass(v.python_type(), _OF_LOGGING) for v in tx.journal.attrs)
    if type(logger) not in (logging.Logger, logging.RootLogger) or self.source is None or set_here:
        raise Unsupported("opaque-call", what=what)
    tx.builder.guard(self.source, GuardKind.ID, logger, "logger")
    enabled = tx.world.query(logging.Logger.isEnabledFor, logger, level)
    if not tx.interp.truth(enabled):
        return NONE
    stacklevel = kwargs.pop("stacklevel", ConstantValue(1))
    place = _caller(tx, tx.interp.try_index(stacklevel))
    if place is None or not args or any(not tx.interp.is_none(v) for v in kwargs.values()):
        raise Unsupported("opaque-call", what=what)
    known = [_plain(tx, arg, what) for arg in args]
    tx.journal.call_later(_emit, self, *map(ConstantValue, [level, *place]), *known)
    return NONE


_OF_LOGGING = (logging.Filterer, logging.Manager)


def _caller(tx: Trace, stacklevel: int | None) -> tuple[str, int, str] | None:
    """File, line and name of the frame that a record belongs to; None if it is not traced."""
    own = os.path.normcase(logging.getLogger.__code__.co_filename)
    frames = [f for f in tx.frames if os.path.normcase(f.info.code.co_filename) != own]
    if stacklevel is None or not 0 < stacklevel <= len(frames):
        return None
    frame = frames[-stacklevel]
    code = frame.info.code
    return code.co_filename, frame.line, code.co_name


def _emit(
    logger: logging.Logger, level: int, file: str, line: int, name: str, msg: str, *args: object
) -> None:
    """``Logger._log`` for a caller that is known already."""
    record = logger.makeRecord(logger.name, level, file, line, msg, args, None, name)
    logger.handle(record)


def _register(name: str, level: int) -> None:
    def implementation(tx: Trace, self: Value, *args: Value, **kwargs: Value) -> Value:
        return _log(tx, self, level, name, args, kwargs)

    builtin(getattr(logging.Logger, name))(implementation)


for _name in ("debug", "info", "warning", "error", "critical"):
    _register(_name, getattr(logging, _name.upper()))


@builtin(logging.Logger.exception, logging.Logger.log, logging.Logger._log)
def _break(tx: Trace, *args: Value, **kwargs: Value) -> Value:
    raise Unsupported("opaque-call", what="logging.Logger.log")
