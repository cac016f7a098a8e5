"""Whether a backend compiles a graph right: it, eager and float64 run on copies of the inputs."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torchsmith_tracer
from torch import fx
from torch.utils import _pytree as pytree

from torchsmith._src.repro.cases import Case, entered
from torchsmith._src.repro.sandbox import LIMIT, Died, run_apart
from torchsmith._src.testing.clones import Copier, preserve_rng_state
from torchsmith._src.testing.same import Leaf, same

Backend = Callable[..., Any]
SEED = 1234
TOLERANCE = 1e-4
_WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}
_METHODS = {"float": "double", "half": "double", "bfloat16": "double"}


class BackendNotFoundError(LookupError):
    """A backend cannot be found by its name."""


@dataclass(frozen=True, slots=True)
class Failure:
    """How something fails.

    Attributes:
        kind: ``compile`` (the compiler raised), ``run`` (what it made raised, and eager does not),
            ``accuracy``, ``crash``, ``hang``, or ``error``: of a whole program.
        error: class of the exception, name of the signal, or what is inaccurate.
        message: what it says.
    """

    kind: str
    error: str
    message: str

    @property
    def key(self) -> tuple[str, str, str]:
        """What two failures have in common that are the same."""
        return self.kind, self.error, "" if self.kind == "accuracy" else normal(self.message)

    def __str__(self) -> str:
        return f"{self.kind} failure, {self.error}: {self.message}"


def normal(message: str) -> str:
    """The first line of ``message`` without what changes as a graph shrinks: numbers, numbered
    names, addresses, paths, and which operators there are."""
    text = message.strip().partition("\n")[0]
    text = re.sub(r"0x[0-9a-fA-F]+|\bk_[0-9a-f]+|(?<!\w)/[\w./\-]+", "#", text)
    text = re.sub(r"\b(aten|prims)\.[\w.]+", "#", text)
    text = re.sub(r"\b([A-Za-z_]+?)_?\d+\b", r"\1", text)
    text = re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "#", text)
    return re.sub(r"#(:#)?( \+ #(:#)?)*", "#", text)


@dataclass(frozen=True)
class Run:
    """One run: what it returned, what became of the inputs, and the gradients."""

    output: list[Any]
    input: list[Any]
    gradient: list[Any]
    draws: bool

    def parts(self) -> dict[str, list[Any]]:
        """To compare."""
        return {"output": self.output, "input": self.input, "gradient": self.gradient}


def run(fn: Callable[..., Any], inputs: Sequence[Any], dtype: torch.dtype | None = None) -> Run:
    """Call ``fn`` on copies of ``inputs``, backward too where that means something.

    Args:
        fn: a graph, or what a backend made of one.
        inputs: left alone.
        dtype: what floating-point inputs become first.
    """
    copier = Copier(dtype)
    copies = copier.all(inputs)
    with preserve_rng_state():
        torch.manual_seed(SEED)
        before = torch.random.get_rng_state()
        output = pytree.tree_leaves(fn(*copies), is_leaf=lambda x: x is None)
        draws = not torch.equal(before, torch.random.get_rng_state())
        roots = [x for x in output if isinstance(x, torch.Tensor) and x.requires_grad]
        leaves = list({id(x): x for x in copier.leaves.values()}.values())
        gradient: Sequence[Any] = ()
        if roots and leaves:
            tangents = [_tangent(x, number) for number, x in enumerate(roots)]
            gradient = torch.autograd.grad(roots, leaves, tangents, allow_unused=True)
    return Run(_detached(output), _detached(copies), _detached(gradient), draws)


def _detached(values: Sequence[Any]) -> list[Any]:
    return [x.detach() if isinstance(x, torch.Tensor) else x for x in values]


def _tangent(root: torch.Tensor, number: int) -> torch.Tensor:
    numbers = torch.Generator().manual_seed(SEED + number)
    wide = torch.complex128 if root.is_complex() else torch.float64
    values = torch.randn(root.shape, dtype=wide, generator=numbers)
    return torch.empty_like(root).copy_(values)


def find_backend(backend: str | Backend) -> Backend:
    """A backend by its name.

    Raises:
        BackendNotFoundError: nothing is called so, or it belongs to a program that ran.
    """
    if callable(backend):
        return backend
    if backend == "eager":
        return torchsmith_tracer.eager
    for point in importlib.metadata.entry_points(group="torchsmith.backends"):
        if point.name == backend:
            found: Backend = point.load()
            return found
    module, _, function = backend.rpartition(":")
    if not module or module == "__main__":
        raise BackendNotFoundError(backend)
    try:
        named: Backend = operator.attrgetter(function)(importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise BackendNotFoundError(backend) from error
    return named


def compiled_by(backend: Backend, case: Case, options: Mapping[str, Any]) -> Any:
    """What ``backend`` makes of ``case`` when its failures are errors and nothing is cached."""
    known = getattr(backend, "option_names", ())
    wanted = {"strict": True, "graph_cache": False, **case.options, **options}
    asked = {name: value for name, value in wanted.items() if name in known}
    keywords = {"options": asked} if asked else {}
    module = changed(case.gm, lambda constant: constant)  # a backend may change what it is given
    compiled = backend(module, Copier().all(case.inputs), **keywords)
    return module.forward if compiled is None else compiled


def judge(
    case: Case,
    options: Mapping[str, Any] | None = None,
    *,
    backend: Backend | None = None,
    compiled: Any = None,
    tol: float = TOLERANCE,
) -> Failure | None:
    """How ``case`` fails, if it does; a case that eager refuses does not.

    Args:
        case: a graph with inputs.
        options: for the backend, besides those of the case.
        backend: instead of the one that the case names.
        compiled: what the backend has made of the graph already.
        tol: see ``same``.
    """
    with entered(", ".join(case.contexts)):
        try:
            expected = run(case.gm.forward, case.inputs)
        except Exception:  # noqa: BLE001 - whatever it is, it is not the compiler's
            return None
        chosen = find_backend(backend or case.backend)
        more = dict(options or {})
        if expected.draws and "rng" in getattr(chosen, "option_names", ()):
            more["rng"], compiled = "eager", None  # its other draws are not eager's
        elif expected.draws and compiled is not None:
            return None
        if compiled is None:
            try:
                compiled = compiled_by(chosen, case, more)
            except Exception as error:  # noqa: BLE001 - this is what is looked for
                return _raised("compile", error)
        try:
            found = run(compiled, case.inputs)
        except Exception as error:  # noqa: BLE001 - as above
            return _raised("run", error)
        return _difference(case, expected, found, tol)


def judge_apart(
    case: Case,
    options: Mapping[str, Any] | None = None,
    *,
    limit: float = LIMIT,
    backend: Backend | None = None,
) -> Failure | None:
    """The same in another process, where a crash and a hang are failures, too."""
    try:
        found = run_apart(lambda: judge(case, options, backend=backend), limit)
    except RuntimeError as error:
        return Failure("error", "RuntimeError", str(error))
    if isinstance(found, Died):
        return died(found, limit)
    assert found is None or isinstance(found, Failure)
    return found


def died(how: Died, limit: float) -> Failure:
    """The failure of a process that ended without an answer."""
    if how.hung:
        return Failure("hang", "timeout", f"not done after {limit:g} s")
    return Failure("crash", how.signal or "exit", f"ended by {how.signal or how.status}")


def _raised(kind: str, error: Exception) -> Failure:
    return Failure(kind, type(error).__name__, str(error))


def _difference(case: Case, expected: Run, found: Run, tol: float) -> Failure | None:
    def compared(third: dict[str, list[Any]] | None) -> tuple[Leaf, ...]:
        theirs, ours = expected.parts(), found.parts()
        return same(
            theirs, ours, third, tol=tol, equal_nan=True, exact_stride=True, log_error=_quiet
        ).different

    leaves = compared(None)
    if leaves and any(leaf.error is not None for leaf in leaves):
        exact = referee(case)
        leaves = leaves if exact is None else compared(exact.parts())
    if not leaves:
        return None
    order = ["output", "gradient", "input"]
    first = min(leaves, key=lambda leaf: order.index(leaf.path.split("'")[1]))
    part = first.path.split("'")[1]
    what = "values" if first.error is not None else first.problem.split()[0]
    path = re.sub(r"result\['(\w+)'\]", r"\1 ", first.path)
    more = f", and in {len(leaves) - 1} other places" if len(leaves) > 1 else ""
    return Failure("accuracy", f"{part} {what}", str(first).replace(first.path, path) + more)


def referee(case: Case) -> Run | None:
    """The case computed in float64; None where that is not possible."""
    with contextlib.suppress(Exception):
        return run(_widened(case.gm).forward, case.inputs, torch.float64)
    return None


def _widened(gm: fx.GraphModule) -> fx.GraphModule:
    """``gm`` with float64 wherever it asks for another floating-point dtype."""
    wide = changed(gm, lambda x: _WIDE.get(x, x) if isinstance(x, torch.dtype) else x)
    for node in wide.graph.find_nodes(op="call_method"):
        node.target = _METHODS.get(node.target, node.target)
    wide.recompile()
    return wide


def changed(gm: fx.GraphModule, change: Callable[[Any], Any]) -> fx.GraphModule:
    """A copy of ``gm`` in which ``change`` is made to the constants among arguments of calls."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    for node in graph.nodes:
        if node.op.startswith("call"):
            node.args = fx.node.map_aggregate(node.args, change)
            node.kwargs = fx.node.map_aggregate(node.kwargs, change)
    return fx.GraphModule(gm, graph, "Case")


def _quiet(*args: object) -> None:
    pass
