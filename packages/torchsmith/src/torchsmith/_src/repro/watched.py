"""A backend under watch: its graphs are compared with eager, and its failures are recorded.

``compile(..., verify=True)`` compares each compiled graph once, when it is compiled, and
``TORCHSMITH_REPRO=folder`` records what fails. A crash leaves no time for that, so a record is
written before a graph first runs, and taken away when it has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx
from torchsmith_fx_backend import on_failure

from torchsmith._src.repro.cases import Case, case_of, name_of
from torchsmith._src.repro.judge import Failure, compiled_by, find_backend, judge
from torchsmith._src.repro.records import Record, open_record
from torchsmith._src.repro.reduce import Reducer
from torchsmith._src.repro.stages import blame
from torchsmith._src.repro.watch import Watch
from torchsmith.errors import VerificationError

SEARCH = 30.0  # seconds that a wrong graph is searched for the place where it goes wrong


class Watched:
    """The backend ``inner``, watched; itself a backend."""

    def __init__(self, inner: str | Callable[..., Any], watch: Watch) -> None:
        self._inner = find_backend(inner)
        self._watch = watch
        name = inner if isinstance(inner, str) else None
        self.__name__ = name or str(getattr(inner, "__name__", type(inner).__name__))
        self._path = name_of(inner)
        # What tracers look at.
        for attribute in ("modes", "native_nodes", "option_names", "written_before"):
            if hasattr(self._inner, attribute):
                setattr(self, attribute, getattr(self._inner, attribute))
            elif name is not None and attribute == "option_names":
                self.option_names: Sequence[str] = ()

    def __call__(self, gm: fx.GraphModule, example_inputs: list[Any], **keywords: Any) -> Any:
        """Compile, and compare or record as is asked for.

        Raises:
            VerificationError: the results are not eager's.
        """
        options = dict(keywords.get("options") or {})
        if self._watch.errors and "strict" in getattr(self._inner, "option_names", ()):
            options["strict"] = True
            keywords["options"] = options
        if "mode" in keywords:
            options["mode"] = keywords["mode"]
        case = case_of(gm, example_inputs, self._path, options)
        record = open_record(self._watch.folder, case)

        def told(failed: fx.GraphModule, error: Exception) -> None:
            if failed is gm and record is not None:
                record.failed(Failure("compile", type(error).__name__, str(error)))

        stop = on_failure(told)
        try:
            try:
                compiled = self._inner(gm, example_inputs, **keywords)
            except Exception as error:
                told(gm, error)
                raise
            if self._watch.verify:
                self._verify(case, compiled, record)
        finally:
            stop()
        return compiled if record is None or compiled is None else _Recorded(compiled, case, record)

    def _verify(self, case: Case, compiled: Any, record: Record | None) -> None:
        failure = judge(case, backend=self._inner, compiled=compiled)
        if failure is None:
            return
        if record is not None:
            record.failed(failure)
        where = explained(case, self._inner)
        raise VerificationError(self.__name__, f"is wrong: {failure.message}\n{where}")


def explained(case: Case, backend: Callable[..., Any]) -> str:
    """Where ``case`` first goes wrong: the node, the user's line, its kernel and the stage."""

    def judged(case: Case, options: Mapping[str, Any] | None = None) -> Failure | None:
        return judge(case, options, backend=backend)

    if (again := judged(case)) is None:
        return (
            "Compiled anew, without the cache of graphs, it is right: what the cache holds is "
            "wrong, options={'graph_cache': False} leaves it out."
        )
    node, small = Reducer(judged, again, SEARCH).cut(case)
    lines = [f"It first differs at {node.name} = {_call(node)}"]
    place = [line for line in str(node.meta.get("stack_trace", "")).splitlines() if line.strip()]
    lines += place[-2:]
    with contextlib.suppress(Exception):
        kernels = getattr(compiled_by(backend, small, {}), "kernels", ())
        if kernels:
            lines.append(f"computed by kernel {kernels[-1][0]}")
    if case.backend == "smith":
        stage = blame(small, judged)
        lines.append(f"stage at fault: {stage}")
        if stage.options:
            lines.append(f"until it is mended, options={dict(stage.options)} leaves it out")
    return "\n".join(lines)


def _call(node: fx.Node) -> str:
    name = node.target if isinstance(node.target, str) else fx.node._get_qualified_name(node.target)
    arguments = [*map(str, node.args), *(f"{k}={v}" for k, v in node.kwargs.items())]
    return f"{name}({', '.join(arguments)})"


class _Recorded:
    """A compiled graph whose first call, and any call that raises, is of interest."""

    def __init__(self, compiled: Any, case: Case, record: Record) -> None:
        self._compiled, self._case, self._record = compiled, case, record

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiled, name)

    def __call__(self, *inputs: Any) -> Any:
        try:
            result = self._compiled(*inputs)
        except Exception as error:
            self._record.failed_unless_eager_does(self._case, inputs, error)
            raise
        self._record.ran()
        return result
