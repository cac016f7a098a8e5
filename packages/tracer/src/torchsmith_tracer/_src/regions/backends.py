"""Finding backends by name, and calling them so that their failures say whose they are.

A backend is ``backend(gm: GraphModule, example_inputs: list) -> callable``, the protocol of
``torch.compile``. Names come from the entry-point group ``torchsmith.backends``. A backend may
name the options and modes it takes in attributes ``option_names`` and ``modes``; it is then called
with ``options=`` and ``mode=`` keywords when these were given. A returned callable may list what
it launches in an attribute ``kernels``, give lines about it by a function ``notes``, and say more
in ``schedules`` (see ``page/model.py``). A backend with an attribute ``native_nodes`` that
is true runs nodes with hooks and random generators as they are, in the order of the graph. A
function ``written_before`` of a backend lists the
tensors of the caller's that its graph had written when it raised an exception.
"""

from __future__ import annotations

import functools
import importlib.metadata
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import fx
from torchsmith_guards import is_interruption
from torchsmith_guards.records import new_graph, note_compiled, recorder

from torchsmith_tracer._src.regions.verified import compile_verified
from torchsmith_tracer._src.settings import Settings
from torchsmith_tracer._src.torch_private import without_anomalies
from torchsmith_tracer.errors import (
    BackendError,
    SkipGraph,
    TracerWarning,
    UnknownBackendError,
    UnknownOptionError,
)

GROUP = "torchsmith.backends"
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")

Compiled = Callable[..., object]

_no_modes: dict[tuple[str, str], object] = {}  # backends without modes that were given one


def eager(gm: fx.GraphModule, example_inputs: list[object]) -> Compiled:
    """The backend that runs the graph as it was captured, without compiling it."""
    # The forward function itself: a module's call adds hooks that no captured graph has.
    return gm.forward


eager.native_nodes = True  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """A resolved backend with the keywords it is called with."""

    name: str
    fn: Callable[..., object]
    kwargs: Mapping[str, object] = field(default_factory=dict)

    def compile(
        self, gm: fx.GraphModule, example_inputs: list[object], *, verify: bool = False
    ) -> Compiled:
        """Compile one graph; ``verify``: and compare what it computes with the graph itself.

        Raises:
            BackendError: the backend raised, or returned nothing that can be called.
            SkipGraph: the backend wants the function to run eagerly.
        """
        with (
            recorder.phase("backend"),
            recorder.graph(new_graph(gm, self.name, example_inputs)) as told,
        ):
            compiled = self._compile(gm, example_inputs, verify)
            note_compiled(told, compiled)
        return compiled

    def _compile(self, gm: fx.GraphModule, example_inputs: list[object], verify: bool) -> Compiled:
        compile_graph = functools.partial(self.fn, **self.kwargs)
        try:
            with without_anomalies():
                if verify:
                    compiled = compile_verified(self.name, compile_graph, gm, example_inputs)
                else:
                    compiled = compile_graph(gm, example_inputs)
        except (SkipGraph, BackendError):
            raise
        except Exception as e:
            if is_interruption(e):
                raise
            if (type(e).__module__, type(e).__name__) == ("torch._dynamo.exc", "SkipFrame"):
                raise SkipGraph(str(e)) from e
            raise BackendError(self.name, f"raised {type(e).__name__}: {e}") from e
        if not callable(compiled):
            raise BackendError(self.name, f"returned {compiled!r}, which is not callable")
        # Called as a module, a graph prints a traceback of its own of what the program raises.
        return compiled.forward if isinstance(compiled, fx.GraphModule) else compiled


def backend_names() -> list[str]:
    """Names of the installed backends."""
    return sorted({p.name for p in importlib.metadata.entry_points(group=GROUP)} | {"eager"})


def resolve(
    backend: str | Callable[..., object], mode: str | None, options: Mapping[str, object] | None
) -> tuple[BackendChoice, dict[str, object]]:
    """The backend, and those of the options that are settings of the tracer.

    Raises:
        UnknownBackendError: no such name.
        UnknownOptionError: a mode or option that nobody knows.
        TypeError: ``backend`` is neither a name nor callable.
    """
    name, fn = _find(backend)
    kwargs: dict[str, object] = {}
    modes: Sequence[str] = getattr(fn, "modes", MODES)
    if mode is not None:
        if mode not in modes:
            raise UnknownOptionError(
                f"[{UnknownOptionError.code}] unknown mode {mode!r}; valid: {', '.join(modes)}"
            )
        if hasattr(fn, "modes"):
            kwargs |= {"mode": mode} if mode != "default" else {}
        elif mode != "default" and _no_modes.setdefault((name, mode), own := object()) is own:
            warnings.warn(
                f"[TS-T906] mode={mode!r} has no effect: backend {name!r} has no modes. "
                "Leave the mode out",
                TracerWarning,
                stacklevel=4,
            )
    ours: dict[str, object] = {}
    theirs: dict[str, object] = {}
    settings = Settings.option_names()
    known: Sequence[str] | None = getattr(
        fn, "option_names", () if isinstance(backend, str) else None
    )
    for key, value in (options or {}).items():
        if key in settings:
            ours[key] = value
        elif known is None or key in known:
            theirs[key] = value
        else:
            valid = ", ".join(sorted({*settings, *known}))
            raise UnknownOptionError(
                f"[{UnknownOptionError.code}] unknown option {key!r} for backend {name!r}; "
                f"valid: {valid}"
            )
    if theirs:
        kwargs["options"] = theirs
    return BackendChoice(name, fn, kwargs), ours


def _find(backend: str | Callable[..., object]) -> tuple[str, Callable[..., object]]:
    if callable(backend):
        return str(getattr(backend, "__name__", type(backend).__name__)), backend
    if not isinstance(backend, str):
        raise TypeError(
            f"backend must be a name or a callable, not {type(backend).__name__}; "
            f"valid names: {', '.join(backend_names())}"
        )
    if backend == "eager":
        return backend, eager
    for point in importlib.metadata.entry_points(group=GROUP):
        if point.name == backend:
            loaded: Callable[..., object] = point.load()
            return backend, loaded
    raise UnknownBackendError(
        f"[{UnknownBackendError.code}] unknown backend {backend!r}; "
        f"valid: {', '.join(backend_names())}, or a callable"
    )
