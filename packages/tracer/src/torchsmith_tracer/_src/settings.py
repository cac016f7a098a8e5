"""Settings of the tracer: one frozen object, passed along; no process-wide state in a hot path.

``compile(..., options={...})`` sets fields for one region; ``Settings.patch`` changes the defaults
for the compile calls within a ``with`` block of this thread. Logging is asked for by the
environment: ``TORCHSMITH_LOGS=graph,guards,bytecode,recompiles,breaks``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace

LOG_STAGES = ("graph", "guards", "bytecode", "recompiles", "breaks")


def _log_stages() -> frozenset[str]:
    asked = {part.strip() for part in os.environ.get("TORCHSMITH_LOGS", "").split(",")}
    return frozenset(asked & set(LOG_STAGES))


@dataclass(frozen=True, slots=True)
class Settings:
    """Options of one compiled region.

    Attributes:
        fullgraph: a graph break is an error.
        dynamic: True: sizes and ints are symbolic from the first compile; False: never; None:
            those that changed since the last compile.
        recompile_limit: how many versions of one code object may exist for the same modules.
        fail_on_recompile_limit: raise at the limit instead of running eagerly with a warning.
        specialize_int, specialize_float: ints and floats are constants; when False those that
            changed become symbolic.
        capture_scalar_outputs: ``item()``, ``tolist()``, ``int()`` and ``float()`` of tensors stay
            in the graph as numbers that only the data determines.
        capture_dynamic_output_shape_ops: so do operators whose result has such a size
            (``nonzero``, boolean masks, ``unique``).
        suppress_backend_errors: a function that the backend fails on runs eagerly, with a warning.
        verify_correctness: what a backend makes is run once beside the graph as captured, on
            copies of the inputs; other results are an error. Graphs with random numbers are left
            out.
        log: stages that are printed to stderr.
    """

    fullgraph: bool = False
    dynamic: bool | None = None
    recompile_limit: int = 8
    fail_on_recompile_limit: bool = False
    specialize_int: bool = False
    specialize_float: bool = False
    capture_scalar_outputs: bool = False
    capture_dynamic_output_shape_ops: bool = False
    suppress_backend_errors: bool = False
    verify_correctness: bool = False
    log: frozenset[str] = frozenset()

    @staticmethod
    def current() -> Settings:
        """The defaults of this thread, with the log stages of the environment."""
        settings = _current.get()
        stages = _log_stages()
        return replace(settings, log=settings.log | stages) if stages else settings

    @staticmethod
    @contextmanager
    def patch(**changes: object) -> Iterator[Settings]:
        """Change defaults for compile calls within a ``with`` block of this thread.

        Raises:
            TypeError: a name is not a setting.
        """
        token = _current.set(replace(_current.get(), **changes))  # type: ignore[arg-type]
        try:
            yield _current.get()
        finally:
            _current.reset(token)

    def with_options(self, options: Mapping[str, object]) -> Settings:
        """A copy with the fields named in ``options`` replaced."""
        return replace(self, **options)  # type: ignore[arg-type]

    @staticmethod
    def option_names() -> tuple[str, ...]:
        """Fields that ``compile(options=...)`` may set."""
        own = {"fullgraph", "dynamic", "log"}
        return tuple(f.name for f in fields(Settings) if f.name not in own)

    def emit_log(self, stage: str, title: str, text: str) -> None:
        """Print a stage to stderr when it is switched on."""
        if stage in self.log:
            sys.stderr.write(f"[torchsmith {stage}] {title}\n{text}\n")


_DEFAULTS = Settings()
_current: ContextVar[Settings] = ContextVar("torchsmith_tracer_settings", default=_DEFAULTS)
